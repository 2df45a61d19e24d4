"""The load of processes on a GPU, from samples that the driver soon forgets, and who runs them."""

import os
import pwd
import subprocess

import pytest

from fgsched.gpus.processes import IDLE, LAG, Load, LoadMeter, ProcessNames, Sample, command

SECOND = 1_000_000
NOW = 1000 * SECOND


def meter():
    """A meter whose samples so far were taken away."""
    one = LoadMeter(NOW)
    one.add([], NOW + LAG)
    one.take()
    assert one.seen == NOW
    return one


def test_several_rows_of_a_process_share_the_time():
    one = meter()
    rows = [Sample(7, NOW + SECOND, 80, 10), Sample(7, NOW + 2 * SECOND, 40, 30)]
    one.add(rows, NOW + 2 * SECOND)
    assert one.take() == {7: Load(6000, 2000)}


def test_a_mean_is_about_the_samples_that_name_other_processes_too():
    """Of an H100, in whose two samples since the last look each of two processes was at work once."""
    one = meter()
    rows = [Sample(7, NOW + SECOND // 5, 50, 0), Sample(8, NOW + 2 * SECOND // 5, 50, 0)]
    one.add(rows, NOW + SECOND // 2)
    assert one.take() == {7: Load(5000, 0), 8: Load(5000, 0)}


def test_samples_of_several_looks_at_the_driver_count_by_their_length():
    one = meter()
    one.add([Sample(7, NOW + SECOND, 100, 0)], NOW + SECOND)
    one.add([], NOW + 4 * SECOND)
    assert one.seen == NOW + 4 * SECOND - LAG
    assert one.take() == {7: Load(10000 * SECOND // (4 * SECOND - LAG), 0)}


def test_a_look_without_new_measurements_has_the_last_result():
    one = meter()
    one.add([Sample(7, NOW + SECOND, 30, 5)], NOW + SECOND)
    assert one.take() == one.take() == {7: Load(3000, 500)}


def test_a_process_that_is_idle_has_no_load():
    one = meter()
    one.add([Sample(7, NOW + SECOND, 30, 5)], NOW + SECOND)
    one.take()
    one.add([], NOW + 3 * SECOND)
    assert one.take().get(7, IDLE) == Load(0, 0)


def test_a_sample_covers_two_seconds_at_most():
    one = meter()
    one.add([Sample(7, NOW + 10 * SECOND, 100, 0)], NOW + 10 * SECOND)
    assert one.take() == {7: Load(2000, 0)}


def test_a_clock_that_is_set_back_begins_a_new_measurement():
    one = meter()
    one.add([], NOW - 3600 * SECOND)
    one.add([Sample(7, NOW - 3599 * SECOND, 60, 0)], NOW - 3599 * SECOND)
    assert one.take() == {7: Load(6000, 0)}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["/usr/bin/python3.11", "/home/ann/train.py", "--token=secret"], "python3.11 train.py"),
        (["python", "-m", "torch.distributed.run", "x"], "python torch.distributed.run"),
        (["python", "-c", "secret"], "python"),
        (["/opt/amber/bin/pmemd.cuda", "-O"], "pmemd.cuda"),
        (["-bash"], "-bash"),
        (["", ""], ""),
        ([f"/x/{'n' * 100}"], "n" * 64),
    ],
)
def test_the_command_of_a_process_has_no_options_and_no_arguments(words, name):
    assert command([word.encode() for word in words]) == name


def test_a_process_is_named_while_it_lives():
    names = ProcessNames()
    child = subprocess.Popen(["sleep", "1000000"])
    try:
        found = names.of([child.pid, 1 << 23])
    finally:
        child.kill()
        child.wait()
    assert {pid: (pwd.getpwuid(one.uid).pw_uid, one.command) for pid, one in found.items()} == {
        child.pid: (os.getuid(), "sleep")
    }
    assert names.of([child.pid]) == {}
