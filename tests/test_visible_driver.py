"""CUDA_VISIBLE_DEVICES in jobs and steps of a controller with the four cards of the fake driver."""

import json
import sys

import pytest

from driver_host import hosting
from fakecuda import Card
from test_hook_visible import LOOK

pytestmark = pytest.mark.compiler
pytest.importorskip("pynvml")
GIB = 1 << 30
CARDS = [Card(f"A100 {at}", 16 * GIB) for at in range(4)]


@pytest.fixture(scope="module")
def host(built_driver, tmp_path_factory):
    folder = tmp_path_factory.mktemp("visible")
    with hosting(folder / "home", built_driver.at(folder / "cards"), *CARDS) as host:
        (host.path / "look.py").write_text(LOOK)
        yield host


@pytest.fixture
def busy(host):
    """A job that has the first card, so that other jobs get the others."""
    job, fakejob = host.live("--gpus=1")
    fakejob.until_ready()
    yield [gpu.uuid[4:] for gpu in CARDS[1:]]
    host.run("fgcancel", str(job))
    host.wait(job)


def looking(host, *options):
    """What a job sees, with its variables."""
    line = f"{sys.executable} look.py; echo $CUDA_VISIBLE_DEVICES $FG_JOB_GPUS $FG_GPU_UUIDS"
    done = host.run("fgsub", *options, "--wait", "--quiet", "--output=seen", "--wrap", line)
    said, variables = (host.path / "seen").read_text().splitlines()
    assert done.status == 0
    return json.loads(said), variables.split()


def test_a_job_with_two_of_four_cards_has_the_numbers_0_and_1(host, busy):
    seen, (words, indices, uuids) = looking(host, "--gpus=2")
    assert (words, indices, uuids) == ("0,1", "1,2", f"GPU-{busy[0]},GPU-{busy[1]}")
    assert seen["cuda"] == seen["nvml"] == busy[:2]


def test_a_share_of_a_card_is_number_0(host, busy):
    seen, (words, indices, _) = looking(host, "--gpus=0.5")
    assert (words, indices) == ("0", "1")
    assert seen["cuda"] == seen["nvml"] == busy[:1]


def test_shares_of_several_cards_are_numbered_from_0(host, busy):
    seen, (words, _, _) = looking(host, "--gpus=2", "--gpu-mem=4G")
    assert words == "0,1"
    assert seen["cuda"] == seen["nvml"]
    assert len(set(seen["cuda"]) & set(busy)) == 2


def test_a_job_that_is_not_limited_has_the_numbers_of_the_host(host, busy):
    config = host.path / "fgsched.toml"
    assert config.exists()
    seen, (words, indices, _) = looking(host, "--gpus=2", "--tier=watchdog")
    assert words == indices == "1,2"
    assert seen["cuda"] == seen["nvml"] == busy[:2]


def test_steps_have_the_numbers_of_their_gpus(host, busy):
    step = (
        "echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES $SLURM_STEP_GPUS; [ $SLURM_PROCID = 1 ] && {python} look.py"
    )
    step = step.format(python=sys.executable)
    (host.path / "steps.sh").write_text(f"#!/bin/sh\nsrun -n2 --gpus-per-task=1 sh -c '{step}; true'\n")
    options = ("--gpus=2", "--ntasks=2", "--wait", "--quiet", "--output=stepped")
    assert host.run("fgsub", *options, "steps.sh").status == 0
    lines = (host.path / "stepped").read_text().splitlines()
    assert {line for line in lines if line[0] != "{"} == {"0 0 1", "1 1 2"}
    [seen] = [json.loads(line) for line in lines if line[0] == "{"]
    assert seen["cuda"] == seen["nvml"] == busy[1:2]


def test_a_command_that_joins_a_job_has_its_numbers(host, busy):
    job, fakejob = host.live("--gpus=2")
    fakejob.until_ready()
    done = host.run("fgrun", f"--jobid={job}", sys.executable, "look.py")
    seen = json.loads(done.out)
    assert seen["cuda"] == seen["nvml"] == busy[:2]
    host.run("fgcancel", str(job))
    host.wait(job)


def test_a_direct_run_has_numbers(host, busy):
    seen = json.loads(host.run("fgrun", "--gpus=2", sys.executable, "look.py").out)
    assert seen["cuda"] == seen["nvml"] == busy[:2]
