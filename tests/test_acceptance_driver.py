"""Acceptance cases A8 and A13, and strangers and faults: controller, pynvml and hook over the fake driver."""

import os
import signal
import sys
from pathlib import Path

import pytest

import fgshim
from awaiting import until
from driver_host import hosting
from fakecuda import Card
from fakecuda.job import answers

pytestmark = pytest.mark.compiler
GIB = 1 << 30
CONTEXT = 256 << 20
WARN = '[fence]\nwatchdog = "warn"\n'  # else it may end a job that has a process without the hook


@pytest.fixture
def host(driver, tmp_path):
    """One card of 40 GiB; a process's context takes 256 MiB of it."""
    if not fgshim.library().exists():
        pytest.skip("the hook is not built: run setup.py build_ext --inplace")
    with hosting(tmp_path / "home", driver, Card("A100", 40 * GIB, context=CONTEXT)) as one:
        yield one


def controllers_child(host, module):
    """The pid of the helper process that runs a module."""
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if module.encode() in words and f"FG_HOME={host.path}".encode() in environment:
            return int(entry.name)
    raise AssertionError(f"no process runs {module}")


def until_gpu(host, *, gpu, state):
    """Wait until a card is in a state: the controller logs each change."""
    until(host.path, lambda: host.gpu(gpu)["state"] == state)


def test_the_cards_are_those_that_the_driver_names(host):
    gpu = host.gpu()
    assert (gpu["model"], gpu["total"]) == ("A100", 40 * GIB)


def test_a_job_is_told_the_cpus_near_its_cards(driver, tmp_path):
    with hosting(tmp_path / "home", driver, Card("A100", 8 * GIB), Card("A100", 8 * GIB)) as host:
        line = 'echo "$FG_GPU_CPUS" >>cpus'
        for gpus in (1, 2, 0):
            assert host.run("fgsub", f"--gpus={gpus}", "--wait", "--wrap", line).status == 0
        assert (host.path / "cpus").read_text() == "0-1\n0-3\n\n"
        assert host.gpu(1)["cpus"] == [2, 3]


def test_a13_a_job_of_8_gib_sees_a_card_of_8_gib_and_is_refused_more(host):
    _, neighbour = host.live("--gpu-mem=8G")
    assert neighbour.until_ready().say("alloc 4G")[0] == 0
    before = neighbour.say("info")
    job, fakejob = host.live("--gpu-mem=8G")
    status, free, total = fakejob.until_ready().say("info")
    assert (status, total) == (0, 8 * GIB)
    assert 8 * GIB - 2 * CONTEXT <= free <= 8 * GIB
    assert fakejob.say("alloc 9G")[0] == 2
    assert fakejob.say("alloc 6G")[0] == 0
    assert fakejob.say(f"alloc {2 * GIB - CONTEXT}")[0] == 0
    assert fakejob.say("alloc 2M")[0] == 2
    assert neighbour.say("info") == before
    assert host.job(job)["tier"] == "shim"


def test_a13_a_job_sees_none_but_its_own_processes(host):
    _, neighbour = host.live("--gpu-mem=8G")
    assert neighbour.until_ready().say("alloc 4G")[0] == 0
    look = host.path / "look.py"
    look.write_text(
        "import pynvml as n\nn.nvmlInit()\nh = n.nvmlDeviceGetHandleByIndex(0)\n"
        "print(n.nvmlDeviceGetCount(), n.nvmlDeviceGetMemoryInfo(h).total,"
        " [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)])\n"
    )
    words = ("--gpu-mem=8G", "--output=seen", "--wait", "--wrap", f"{sys.executable} {look}")
    assert host.run("fgsub", *words).status == 0
    assert (host.path / "seen").read_text() == f"1 {8 * GIB} []\n"


def test_a_refused_allocation_is_written_down_with_the_job(host):
    line = f"{host.driver.program} 'alloc 2G'; exit 1"
    done = host.run(
        "fgsub", "--parsable", "--gpu-mem=1G", "--output=seen", "--error=/dev/null", "--wrap", line
    )
    host.wait(int(done.out))
    found = host.job(int(done.out))
    assert answers((host.path / "seen").read_text())[0][0] == 2
    assert (found["state"], found["reason"]) == ("OUT_OF_MEMORY", "GpuOutOfMemory")
    assert found["refusals"] == 1


def test_a_job_that_runs_is_told_what_it_was_refused(host):
    job, fakejob = host.live("--gpu-mem=1G")
    assert fakejob.until_ready().say("alloc 256M")[0] == 0
    assert host.job(job)["refused"] == ""
    assert fakejob.say("alloc 2G")[0] == 2
    [line] = [
        line for line in host.run("fgctl", "show", "job", str(job)).out.splitlines() if "Refused=" in line
    ]
    assert "GPU 0: 2048.0 MiB refused" in line


def test_a8_a_large_job_starts_only_when_the_card_no_longer_lists_the_last_one(driver, tmp_path):
    """What a job left behind outside its process tree is known by its environment."""
    with hosting(tmp_path / "home", driver, Card("A100", 40 * GIB, context=CONTEXT), more=WARN) as host:
        check_that_a_large_job_waits(host)


def check_that_a_large_job_waits(host):
    first, fakejob = host.live("--gpu-mem=30G")
    assert fakejob.until_ready().say("alloc 1G")[0] == 0
    leaked = host.stranger("alloc 8G", FG_JOB_DIR=host.job_dir(first))
    host.client.ask("cancel", ids=[first])
    second, large = host.live("--gpus=1")
    until(host.path, lambda: host.job(first)["state"] != "RUNNING")
    shown = host.job(first)
    assert shown["state"] == "COMPLETING"
    assert shown["reason"] == "GpuCleaning"
    assert host.job(second)["state"] == "PENDING"
    assert host.job(second)["reason"] == "GpuCleaning"
    assert not large.is_there()
    leaked.kill()
    large.until_ready()
    assert host.job(first)["state"] == "CANCELLED"


def test_a8_a_card_that_is_not_left_in_time_gets_no_job_until_it_is(driver, tmp_path):
    gpus = [Card("A100", 40 * GIB), Card("A100", 40 * GIB)]
    with hosting(tmp_path / "home", driver, *gpus, timeout=1, more=WARN) as host:
        first, fakejob = host.live("--gpu-mem=30G")
        fakejob.until_ready()
        leaked = host.stranger("alloc 8G", FG_JOB_DIR=host.job_dir(first))
        host.client.ask("cancel", ids=[first])
        assert host.wait(first)[0]["state"] == "CANCELLED", host.job(first)
        assert host.gpu()["state"] == "suspect"
        assert f"job {first}" in host.gpu()["note"]
        host.ended("exit 0", share=100)  # it needed a fresh look at the cards
        assert host.gpu()["state"] == "suspect"
        other, elsewhere = host.live("--gpu-mem=30G")
        elsewhere.until_ready()
        assert [one["gpu"] for one in host.job(other)["allocated"]] == [1]
        leaked.kill()
        third, back = host.live("--gpu-mem=30G")
        back.until_ready()
        assert [one["gpu"] for one in host.job(third)["allocated"]] == [0]


def test_what_strangers_hold_is_not_given_out_and_is_named(host):
    stranger = host.stranger("alloc 30G")
    job, fakejob = host.live("--gpu-mem=16G")
    host.client.ask("cancel", ids=[host.ended("exit 0", share=100)])  # a look at the card lies in between
    shown = host.job(job)
    assert (shown["state"], shown["reason"]) == ("PENDING", "GpuExternalUse")
    assert "because processes outside fgsched hold" in host.why(job)
    assert host.gpu()["external"] == 30 * GIB + CONTEXT
    stranger.kill()
    fakejob.until_ready()


def test_a_probe_that_hangs_holds_up_new_jobs_only_until_another_one_answers(driver, tmp_path):
    with hosting(tmp_path / "home", driver, Card("A100", 40 * GIB, context=CONTEXT), deadline=2) as host:
        running, fakejob = host.live("--gpu-mem=4G")
        fakejob.until_ready()
        os.kill(controllers_child(host, "fgsched.gpus.probe"), signal.SIGSTOP)
        _, another = host.live("--gpu-mem=4G")
        assert host.run("fgctl", "ping").status == 0
        assert fakejob.say("alloc 1G")[0] == 0
        another.until_ready()
        assert host.job(running)["state"] == "RUNNING"
        until_gpu(host, gpu=0, state="mix")  # a slow host may have made the next probe late, too


def test_a_card_that_falls_off_the_bus_is_suspect_and_the_other_goes_on(driver, tmp_path):
    with hosting(tmp_path / "home", driver, Card("A100"), Card("A100")) as host:
        first, fakejob = host.live("--gpus=1")
        fakejob.until_ready()
        driver.show_only(1)
        until_gpu(host, gpu=1, state="suspect")
        assert "Invalid Argument" in host.gpu(1)["note"]
        second, waiting = host.live("--gpus=1")
        assert fakejob.say("alloc 1G")[0] == 0
        assert host.job(second)["state"] == "PENDING"
        host.client.ask("cancel", ids=[first])
        waiting.until_ready()
        assert [one["gpu"] for one in host.job(second)["allocated"]] == [0]
        driver.show_only(2)
        until_gpu(host, gpu=1, state="idle")
