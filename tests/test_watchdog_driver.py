"""The watchdog at work: controller, spawner, pynvml and hook over the fake driver."""

import os
import re
import subprocess
import time

import pytest

import awaiting
import fakecuda
import fgshim
from driver_host import config_of, hosting
from fakecuda import Card
from live_host import PATIENCE

pytestmark = pytest.mark.compiler
GIB, MIB = 1 << 30, 1 << 20
CONTEXT = 320 * MIB
TAKEN = 256 * MIB  # for what a context costs, until one was seen
QUICK = "[jobs]\nkill_wait = 5\n"


@pytest.fixture
def gpus():
    return [Card("A100", 40 * GIB, context=CONTEXT), Card("A100", 40 * GIB, context=CONTEXT)]


@pytest.fixture
def host(driver, tmp_path, gpus):
    """Two cards of 40 GiB; the watchdog ends what it finds."""
    if not fgshim.library().exists():
        pytest.skip("the hook is not built: run setup.py build_ext --inplace")
    with hosting(tmp_path / "home", driver, *gpus, more=QUICK) as one:
        yield one


@pytest.fixture
def mild(driver, tmp_path, gpus):
    """The same; the watchdog only warns."""
    if not fgshim.library().exists():
        pytest.skip("the hook is not built: run setup.py build_ext --inplace")
    with hosting(tmp_path / "home", driver, *gpus, more=f'{QUICK}[fence]\nwatchdog = "warn"\n') as one:
        yield one


def until(host, job, is_so):
    """What is known of the job once it is so: each change of it is stored."""
    awaiting.until(host.path, lambda: is_so(host.job(job)))
    return host.job(job)


def unhooked(host, size, *options):
    """A job that takes memory with an empty environment, and holds it."""
    env = " ".join(f"{name}={value}" for name, value in host.driver.env.items())
    line = f"exec env -i {env} {host.driver.program} 'alloc {size}' hold <{host.path}/never"
    if not (host.path / "never").exists():
        os.mkfifo(host.path / "never")
        host.open.callback(os.close, os.open(host.path / "never", os.O_RDWR))
    done = host.run("fgsub", "--parsable", "--output=/dev/null", *options, "--wrap", line)
    assert (done.status, done.err) == (0, "")
    return int(done.out)


def events(found, reason):
    return [event for event in found["events"] if event[4] == reason]


def test_a_context_counts_from_its_first_moment_and_by_what_it_costs_once_that_was_seen(host):
    _, first = host.live("--gpu-mem=8G")
    assert first.until_ready().say("info")[1:] == (8 * GIB - TAKEN, 8 * GIB)
    deadline = time.monotonic() + PATIENCE
    while first.say("info")[1] != 8 * GIB - CONTEXT:
        assert time.monotonic() < deadline
    _, second = host.live("--gpu-mem=8G")
    assert second.until_ready().say("info")[1:] == (8 * GIB - CONTEXT, 8 * GIB)
    assert second.say(f"alloc {8 * GIB - CONTEXT}")[0] == 0
    assert second.say("alloc 1")[0] == 2


def test_the_first_job_on_a_gpu_model_is_charged_for_stacks_until_a_context_was_seen(driver, tmp_path):
    if not fgshim.library().exists():
        pytest.skip("the hook is not built: run setup.py build_ext --inplace")
    context = 518 * MIB
    gpu = Card("H100", 80 * GIB, context=context, processors=132, threads=2048)
    with hosting(tmp_path / "home", driver, gpu, more=QUICK) as host:
        _, first = host.live("--gpu-mem=8G")
        assert first.until_ready().say("info")[1:] == (8 * GIB - TAKEN - 264 * MIB, 8 * GIB)
        deadline = time.monotonic() + PATIENCE
        while first.say("info")[1] != 8 * GIB - context:
            assert time.monotonic() < deadline
        _, second = host.live("--gpu-mem=8G")
        assert second.until_ready().say("info")[1:] == (8 * GIB - context, 8 * GIB)


def test_memory_that_a_process_gives_to_others_of_its_job_is_not_charged_again_as_past_the_hook(host):
    _, giver = host.live("--gpu-mem=8G")
    assert giver.until_ready().say("alloc 4G")[0] == 0
    assert giver.say("ipc-give 0")[0] == 0
    deadline = time.monotonic() + PATIENCE
    while giver.say("info")[1] != 4 * GIB - CONTEXT:  # the watchdog has looked twice
        assert time.monotonic() < deadline, giver.say("info")
    assert giver.say(f"alloc {4 * GIB - CONTEXT}")[0] == 0


def test_a_job_whose_limit_is_smaller_than_a_context_is_told_so(host):
    line = f"{host.driver.program} info"
    done = host.run("fgsub", "--parsable", "--gpu-mem=128M", "--output=said", "--wrap", line)
    job = int(done.out)
    host.wait(job)
    said = (host.path / "said").read_text()
    assert said.startswith("info 2\n")
    assert "fgsched: GPU 0: a CUDA context, taken to cost 256.0 MiB, refused to process" in said


def test_a_job_past_its_limit_and_past_the_hook_is_ended_and_both_are_said(host):
    job = unhooked(host, "9G", "--gpu-mem=8G")
    host.wait(job)
    found = host.job(job)
    assert (found["state"], found["reason"]) == ("OUT_OF_MEMORY", "GpuOutOfMemory")
    assert found["warning"] == (
        f"ended by the watchdog: it holds {9 * 1024 + 320}M on GPU 0, and its limit is 8192M"
    )
    assert found["post_mortem"] == {
        "gpu": 0, "asked": 0, "held": 9 * GIB + CONTEXT, "limit": 8 * GIB, "jobs": (), "strangers": 0,
    }  # fmt: skip
    assert events(found, "GpuOverLimit")
    assert "Warning=ended by the watchdog" in host.run("fgctl", "show", "job", str(job)).out


def test_a_job_that_holds_memory_without_the_hook_is_ended(host):
    job = unhooked(host, "1G", "--gpu-mem=8G")
    host.wait(job)
    found = host.job(job)
    assert (found["state"], found["reason"]) == ("FAILED", "GpuUnhooked")
    assert found["warning"].endswith("without the hook: LD_PRELOAD was removed")


def test_processes_that_cannot_load_the_hook_are_shown_before_they_hold_gpu_memory(mild):
    job, fakejob = mild.live("--gpu-mem=8G")
    assert fakejob.until_ready().say("info")[0] == 0
    static = mild.path / "waits"
    source = b"#include <unistd.h>\nint main(void) { pause(); }\n"
    words = [fakecuda.compiler(), "-static", "-x", "c", "-", "-o", static]
    if subprocess.run(words, input=source, check=False).returncode:
        pytest.skip("the C compiler cannot build static programs")
    line = f"echo ready >{mild.path}/begun; exec {static}"
    os.mkfifo(mild.path / "begun")
    other = int(mild.run("fgsub", "--parsable", "--gpu-mem=8G", "--output=/dev/null", "--wrap", line).out)
    assert (mild.path / "begun").read_text() == "ready\n"
    deadline = time.monotonic() + PATIENCE
    while "Unhooked=" not in (shown := mild.run("fgctl", "show", "job", str(other)).out):
        assert time.monotonic() < deadline, shown
    assert re.search(r"Unhooked=process \d+ \(waits\): it is statically linked\n", shown)
    assert "Unhooked=" not in mild.run("fgctl", "show", "job", str(job)).out


def test_a_job_that_only_has_a_context_is_left_alone(host):
    job, fakejob = host.live("--gpu-mem=8G")
    assert fakejob.until_ready().say("info")[0] == 0
    probe = unhooked(host, "1G", "--gpu-mem=8G")
    host.wait(probe)  # several looks lie in between
    assert host.job(job)["state"] == "RUNNING"
    assert host.job(job)["warning"] == ""


def test_a_job_on_a_card_that_it_was_not_given_is_ended(host):
    job, fakejob = host.live("--gpu-mem=8G")
    fakejob.until_ready()
    stray = host.stranger("device 1", "alloc 1G", FG_JOB_DIR=host.job_dir(job))
    until(host, job, lambda found: found["state"] != "RUNNING")
    stray.kill()
    host.wait(job)
    found = host.job(job)
    assert (found["state"], found["reason"]) == ("FAILED", "GpuNotGiven")
    assert "on GPU 1, which the job was not given" in found["warning"]


def test_where_the_policy_is_to_warn_the_job_goes_on_and_what_was_seen_stands_with_it(mild):
    job = unhooked(mild, "1G", "--gpu-mem=8G")
    found = until(mild, job, lambda found: found["warning"])
    assert (found["state"], found["reason"]) == ("RUNNING", "GpuUnhooked")
    assert len(events(found, "GpuUnhooked")) == 1
    other = unhooked(mild, "9G", "--gpu-mem=8G")
    until(mild, other, lambda found: found["warning"])
    assert mild.job(job)["state"] == mild.job(other)["state"] == "RUNNING"
    assert len(events(mild.job(job), "GpuUnhooked")) == 1


def test_a_refusal_is_examined_and_fgacct_shows_it(host):
    neighbour, its = host.live("--gpu-mem=16G")
    its.until_ready()
    stranger = host.stranger("alloc 2G")
    line = f"{host.driver.program} 'alloc 3G' 'alloc 2G'; exit 1"
    done = host.run("fgsub", "--parsable", "--gpu-mem=4G", "--output=/dev/null", "--wrap", line)
    job = int(done.out)
    host.wait(job)
    found = host.job(job)["post_mortem"]
    assert (found["gpu"], found["asked"], found["limit"]) == (0, 2 * GIB, 4 * GIB)
    assert 3 * GIB + TAKEN <= found["held"] <= 3 * GIB + CONTEXT
    assert found["jobs"] == ((neighbour, 16 * GIB),)
    stranger.kill()
    shown = host.run("fgctl", "show", "job", str(job)).out
    assert "OomKind=gpu  OomGpu=0  OomAsked=2048M" in shown
    assert f"OomOthers=job {neighbour}:16384M" in shown
    fields = "OOMKind,OOMAsked,OOMLimit"
    done = host.run("fgacct", "-n", "-P", "-j", str(job), "-o", fields, "--units=M")
    assert done.lines == ["gpu|2048M|4096M"], done.err


def test_the_jobs_of_a_card_that_falls_off_the_bus_end_and_the_other_card_goes_on(host):
    lost, first = host.live("--gpus=1", "--no-requeue")
    first.until_ready()
    kept, second = host.live("--gpus=1")
    second.until_ready()
    gone = host.job(lost)["allocated"][0]["gpu"]
    host.driver.set(gone, lost=1)
    host.wait(lost)
    found = host.job(lost)
    assert (found["state"], found["reason"]) == ("NODE_FAIL", "GpuLost")
    assert f"GPU {gone} fell off the bus" in found["warning"]
    assert host.gpu(gone)["state"] == "down"
    assert (host.job(kept)["state"], second.say("alloc 1G")[0]) == ("RUNNING", 0)
    host.driver.set(gone, lost=0)
    back, third = host.live("--gpus=1")
    third.until_ready()
    assert host.job(back)["allocated"][0]["gpu"] == gone


def test_a_driver_that_is_gone_when_the_controller_starts_takes_no_card_away(host, tmp_path):
    running, fakejob = host.live("--gpus=1")
    fakejob.until_ready()
    before = host.gpu(0)
    assert host.run("fgsched", "stop").status == 0
    (host.path / "fgsched.toml").write_text(config_of(deadline=2, more=QUICK))  # and the next try comes soon
    host.driver.state.rename(tmp_path / "elsewhere")
    waiting, late = host.live("--gpus=2")
    shown = host.gpu(0)
    assert (shown["state"], shown["note"]) == ("suspect", "the NVIDIA driver is not loaded")
    same = ("uuid", "model", "usable")
    assert [shown[name] for name in same] == [before[name] for name in same]
    assert (host.job(running)["state"], host.job(waiting)["state"]) == ("RUNNING", "PENDING")
    (tmp_path / "elsewhere").rename(host.driver.state)
    host.client.ask("cancel", ids=[running])
    late.until_ready()


def test_errors_in_a_cards_memory_drain_it_and_its_job_goes_on(host):
    job, fakejob = host.live("--gpus=1")
    fakejob.until_ready()
    gpu = host.job(job)["allocated"][0]["gpu"]
    host.driver.set(gpu, ecc=2)
    awaiting.until(host.path, lambda: host.gpu(gpu)["state"] == "drng")
    assert host.gpu(gpu)["note"] == "errors in its memory that could not be corrected: 2 [watchdog]"
    assert (host.job(job)["state"], fakejob.say("alloc 1G")[0]) == ("RUNNING", 0)
