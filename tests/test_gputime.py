"""Shares of compute from the command to the region: asked, launched, counted and shown."""

import os
import time

import pytest

import fgshim
from arbiter import Page
from awaiting import PATIENCE, rest
from driver_host import hosting
from fakecuda import Card
from fgsched.domain.job import COMPUTE_FAIR, COMPUTE_HARD, COMPUTE_NONE
from fgshim import region

pytestmark = pytest.mark.compiler
GIB = 1 << 30
MS = 1_000_000


@pytest.fixture
def host(driver, tmp_path):
    if not fgshim.library().exists():
        pytest.skip("the hook is not built: run setup.py build_ext --inplace")
    with hosting(tmp_path / "home", driver, Card("A100", 40 * GIB, context=256 << 20)) as one:
        yield one


def account(host, job):
    """What the job's region says of its first card."""
    fd = region.open_region(host.paths.run / "job" / f"{job}.1" / "region")
    account = region.Account(fd, 0)
    account.read()
    os.close(fd)
    return account


def until(host, job, **wanted):
    """What the controller says of a job once it says this."""
    deadline = time.monotonic() + PATIENCE
    while (found := host.job(job)) | wanted != found:
        assert time.monotonic() < deadline, found
        rest()
    return found


def launching(host, *options):
    """A job that launches kernels of a millisecond until it is cancelled."""
    line = f"exec {host.driver.launcher} kernel 1000000 100000000 5"
    done = host.run("fgsub", "--parsable", "--output=/dev/null", *options, "--wrap", line)
    assert (done.status, done.err) == (0, "")
    return int(done.out)


@pytest.mark.parametrize("word", [COMPUTE_HARD, COMPUTE_FAIR, COMPUTE_NONE])
def test_what_is_asked_for_reaches_the_region_and_is_shown(host, word):
    job, fakejob = host.live("--gpus=0.5", f"--gpu-compute={word}")
    fakejob.until_ready()
    assert account(host, job).policy == word
    shown = host.run("fgctl", "show", "job", str(job)).out
    assert f"GpuCompute={word}" in shown
    [row] = host.run("fgq", "--json").json["jobs"]
    assert row["gpu_compute"] == word


def test_fair_is_what_a_job_gets_that_asks_for_nothing(host):
    job, fakejob = host.live("--gpus=0.5")
    fakejob.until_ready()
    assert account(host, job).policy == COMPUTE_FAIR


def test_a_header_can_ask_and_an_update_can_change_it_while_the_job_waits(host):
    script = host.path / "job.sh"
    script.write_text("#!/bin/sh\n#FG --gpus=0.5 --gpu-compute=hard --hold\ntrue\n")
    job = int(host.run("fgsub", "--parsable", str(script)).out)
    assert host.job(job)["gpu_compute"] == COMPUTE_HARD
    assert host.run("fgctl", "update", f"job={job}", "gpu-compute=none").status == 0
    assert host.job(job)["gpu_compute"] == COMPUTE_NONE


def test_another_word_is_refused_with_those_there_are(host):
    done = host.run("fgsub", "--gpus=0.5", "--gpu-compute=half", "--wrap", "true")
    assert done.status == 2
    assert "give hard, fair or none" in done.err


def test_a_job_with_a_whole_card_is_not_paced(host):
    job, fakejob = host.live("--gpus=1", "--gpu-compute=hard")
    fakejob.until_ready()
    assert host.job(job)["gpu_compute"] == COMPUTE_NONE
    assert account(host, job).policy == COMPUTE_NONE


def test_a_partition_and_the_site_say_what_a_job_gets_that_asks_for_nothing(driver, tmp_path):
    more = '[gpus]\ngpu_compute = "hard"\n[partitions.loose]\ngpu_compute = "none"\n'
    with hosting(tmp_path / "home", driver, Card("A100", 40 * GIB, context=256 << 20), more=more) as host:
        for options, word in (((), COMPUTE_HARD), (("--partition=loose",), COMPUTE_NONE)):
            job, fakejob = host.live("--gpus=0.25", *options)
            fakejob.until_ready()
            assert account(host, job).policy == word


def test_a_region_that_its_job_cut_short_is_left_alone(host):
    job = launching(host, "--gpus=0.5")
    until(host, job, pacing="turns")
    with open(host.paths.run / "job" / f"{job}.1" / "region", "r+b") as file:
        file.truncate(100)
    other, fakejob = host.live("--gpus=0.25")
    fakejob.until_ready()
    assert host.job(other)["state"] == "RUNNING"


def page_of(host, job):
    """The page of a job's turns, as a further process of the job has it."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return Page(host.paths.run / "job" / f"{job}.1" / "turns")
        except OSError:
            assert time.monotonic() < deadline, "no arbiter listens"
            rest()


def until_held(page):
    deadline = time.monotonic() + PATIENCE
    while page.word != region.TURN_HELD:
        assert time.monotonic() < deadline, "the job has no turn"
        rest()


def test_jobs_of_a_shared_gpu_take_turns_and_go_on_under_the_next_controller(host):
    jobs = [launching(host, "--gpus=0.5", f"--gpu-compute={word}") for word in (COMPUTE_HARD, COMPUTE_FAIR)]
    for _ in range(2):
        pages = [page_of(host, job) for job in jobs]
        for page in pages:
            until_held(page)
        before = [account(host, job).used for job in jobs]
        deadline = time.monotonic() + PATIENCE
        while any(account(host, job).used <= used for job, used in zip(jobs, before, strict=True)):
            assert time.monotonic() < deadline, "their GPU time is counted"
            rest()
        assert host.run("fgsched", "restart").status == 0
        for page in pages:
            assert page.connection.recv(1) == b"", "the next controller's arbiter has ended this one"
            page.close()
    assert [host.job(job)["state"] for job in jobs] == ["RUNNING"] * 2


def test_a_job_that_is_not_paced_takes_no_turns(host):
    paced, free = launching(host, "--gpus=0.5"), launching(host, "--gpus=0.5", "--gpu-compute=none")
    page = page_of(host, paced)
    until_held(page)
    page.close()
    assert not (host.paths.run / "job" / f"{free}.1" / "turns").exists()
