"""Samples from the simulated GPU to the accounts, through the real controller and accountant."""

import json
import os
import select
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from awaiting import LOOKS, until
from builders import World, a_gpu, a_job
from fgsched.accounting.ledger import LedgerReader
from fgsched.accounting.records import CLASSES
from fgsched.controller.sampling import SampledUsage, Sampling
from fgsched.domain.job import JobUsage
from fgsched.domain.states import JobState
from fgsched.domain.times import MINUTE
from live_host import PATIENCE, Home

GIB = 1 << 30
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
CONFIG = "[host]\ncpus = 8\n[sampling]\ninterval = 0.25\n"


@pytest.fixture
def scripted(tmp_path):
    """A home whose GPUs show what a script says, and what its jobs say."""
    home = Home(tmp_path / "home", devices="sim:2x16G:H100", config=CONFIG)
    script = home.path / "cards" / "script.json"
    script.parent.mkdir()

    def show(**gpus):
        script.with_suffix(".new").write_text(json.dumps(gpus))
        script.with_suffix(".new").rename(script)

    show(**{"0": {"power": 300, "temperature": 61}})
    home.run("fgq", "-h", env={"FG_SIM_SCRIPT": str(script)})
    yield home, show
    if home.paths.socket.exists():
        home.leave()


SUMS = JobUsage(
    **{"sampled": 60.0, "charged": 30.0, "active": 20.0, "held": 10.0, "empty": 0.0, "used": 15.0},
    **{"memory": 60.0 * GIB, "peak": GIB, "with_process": 60.0, "busy": 20.0, "longest_idle": 5.0},
)


class EarlierController:
    """What the controller before had sampled: one job."""

    def sampled_until(self):
        return 1000.0

    def samples_of(self, jobs):
        return {1: SUMS}


def test_the_sums_of_a_job_are_shown_while_it_runs_and_after_its_end():
    world, sent, sampled = World([a_gpu(0)]), [], SampledUsage(1.0)
    sampling = Sampling(world.engine, None, lambda *records: sent.extend(records), sampled)
    sampling.begin(EarlierController())
    running, other = a_job(1, state=JobState.RUNNING), a_job(2, state=JobState.RUNNING)
    assert (sampled.of(running), sampled.of(other)) == (SUMS, None)
    sampling.ended([running, other])
    assert [(record.job, record.usage.sampled) for record in sent] == [(1, 60.0)]
    assert (sampled.of(running), sampled.of(other)) == (sent[0].usage, None)


def working(home, load, share=5000):
    """A job that has set its load, and goes on."""
    gate = home.path / f"gate{len(os.listdir(home.path))}"
    os.mkfifo(gate)
    job = home.submit(f"echo '{load}' >$FG_SIM_LOAD; echo >{gate}; exec sleep 1000000", share=share)
    gate.read_text()
    return job


def usage_of(home, job):
    """What was sampled of a job so far."""
    return next((one.usage for one in home.queue("usage", id=[job])), None)


def until_sampled(home, job, is_so):
    return until(
        home.path / "cards", lambda: (found := usage_of(home, job)) and is_so(found) and found, LOOKS
    )


def is_mostly_active(usage):
    """Whether the time before the script had set its load is outweighed."""
    charged, used = pytest.approx(usage.active, rel=0.3), pytest.approx(0.8 * usage.sampled, rel=0.3)
    return usage.sampled > 1 and usage.charged == charged and usage.used == used


def accounts(home):
    home.leave()
    return LedgerReader(home.paths.accounts)


def test_the_use_of_jobs_and_gpus_reaches_the_accounts(scripted):
    home, _ = scripted
    busy, idle = working(home, "sm=80 mem=6G"), working(home, "sm=0 mem=2G")
    now = until_sampled(home, busy, is_mostly_active)
    assert now.peak == 6 * GIB
    assert [job for job, _ in now.neighbours] == [idle]
    held = until_sampled(home, idle, lambda usage: usage.held > 0.5)
    assert (held.used, held.active, held.busy) == (0.0, 0.0, 0.0)
    home.client.ask("cancel", ids=[busy, idle])
    home.wait(busy, idle)
    reader = accounts(home)
    uses = [one for one in reader.gpu_uses(MINUTE, 0, 1e12)]
    owners = list(reader.owner_uses(MINUTE, 0, 1e12))
    sampled = reader.sample(busy)
    reader.close()
    assert {(one.uuid[-1], one.temperature) for one in uses} == {("0", 61), ("1", None)}
    for use in uses:
        assert sum(getattr(use, name) for name in CLASSES) == pytest.approx(use.sampled)
    own = [one for one in owners if one.job == busy]
    assert sum(one.charged for one in own) == pytest.approx(sampled.charged)
    assert sum(one.energy for one in own) == pytest.approx(sampled.energy)
    first = [one for one in uses if one.uuid.endswith("0")]
    assert sum(one.energy for one in first) == pytest.approx(300 * sum(one.sampled for one in first), rel=0.1)


def test_foreign_processes_are_in_the_accounts_by_user_and_command(scripted):
    home, show = scripted
    show(
        **{
            "0": {
                "processes": [{"pid": (1 << 22) + 5, "memory": "4G", "sm": 50, "uid": 0, "command": "pmemd"}]
            }
        }
    )
    until(home.path / "cards", lambda: home.gpus()[0]["external"] == 4 * GIB, LOOKS)
    for _ in range(3):
        until_next_look(home)
    reader = accounts(home)
    (use,) = {(one.user, one.command, one.peak) for one in reader.foreign_uses(MINUTE, 0, 1e12)}
    reader.close()
    assert use == ("root", "pmemd", 4 * GIB)


def until_next_look(home):
    asked = iter([False, True])
    until(home.path / "cards", lambda: next(asked), LOOKS)


def test_a_controller_that_starts_again_continues_the_sums_of_running_jobs(scripted):
    home, _ = scripted
    job = working(home, "sm=80 mem=6G")
    until_sampled(home, job, lambda usage: usage.sampled > 0.5)
    script = home.path / "cards" / "script.json"
    pid = int(home.paths.lock.read_text())
    ended = os.pidfd_open(pid)
    signal.pidfd_send_signal(ended, signal.SIGTERM)
    home.disconnect()
    assert select.select([ended], [], [], PATIENCE)[0]
    os.close(ended)
    before = LedgerReader(home.paths.accounts)
    was = before.sample(job)
    before.close()
    home.run("fgq", "-h", env={"FG_SIM_SCRIPT": str(script)})
    now = until_sampled(home, job, lambda usage: usage.sampled > was.sampled)
    assert now.charged >= was.charged
    assert now.first_process == was.first_process


def test_without_accounts_nothing_is_sampled(tmp_path):
    home = Home(tmp_path / "home", config=CONFIG + "[accounting]\nenabled = false\n")
    try:
        job = home.running()
        assert usage_of(home, job) is None
    finally:
        home.leave()


@pytest.fixture
def clock(tmp_path):
    """Variables with which the wall clock of a controller is set, and a function that sets it (seconds)."""
    library, offset = tmp_path / "fakeclock.so", tmp_path / "offset"
    source = Path(__file__).with_name("fakeclock.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)

    def shift(seconds):
        offset.write_text(str(seconds))

    shift(0)
    return {"LD_PRELOAD": str(library), "FAKE_CLOCK": str(offset)}, shift


def begun(path, clock):
    """A home whose controller samples two idle GPUs with a clock that can be set."""
    home = Home(path, devices="sim:2x16G:H100", config=CONFIG)
    script = home.path / "cards" / "script.json"
    script.parent.mkdir()
    script.write_text("{}")
    home.run("fgq", "-h", env=clock[0] | {"FG_SIM_SCRIPT": str(script)})
    return home


@pytest.fixture
def timed(tmp_path, clock):
    home = begun(tmp_path / "home", clock)
    yield home
    if home.paths.socket.exists():
        home.leave()


@needs_gcc
def test_jobs_and_sums_survive_a_clock_that_is_set_back_while_they_are_sampled(timed, clock):
    home = timed
    job = working(home, "sm=80 mem=6G")
    before = until_sampled(home, job, lambda usage: usage.sampled > 0.5)
    clock[1](-7200)
    after = until_sampled(home, job, lambda usage: usage.sampled > before.sampled + 0.5)
    assert after.charged > before.charged
    assert home.job(job)["state"] == "RUNNING"
    home.client.ask("cancel", ids=[job])
    (ended,) = home.wait(job)
    assert ended["state"] == "CANCELLED"
    reader = accounts(home)
    uses = list(reader.gpu_uses(MINUTE, 0, 1e12))
    kept = reader.sample(job)
    reader.close()
    first, last = min(one.at for one in uses), max(one.at for one in uses)
    assert 7000 < last - first < 7400, "minutes before and after the step"
    assert all(0 < one.sampled <= 60 for one in uses)
    assert kept.sampled >= after.sampled


@pytest.fixture
def small_disk(tmp_path, clock):
    """A disk of 6 MiB with the home of a controller whose GPUs are sampled."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m,mode=700", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this host does not let us mount a file system")
    home = begun(disk / "home", clock)
    try:
        yield disk, home
    finally:
        (disk / "filler").unlink(missing_ok=True)  # the controller needs space to end its jobs
        if home.paths.socket.exists():
            home.leave()
        subprocess.run(["umount", "--lazy", disk], check=True)


def _told(home):
    """What `fgsched status` says about accounts that cannot be written."""
    said = home.run("fgsched", "status").out
    return next((line for line in said.splitlines() if line.startswith("accounts")), "")


@pytest.mark.root
@needs_gcc
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_jobs_go_on_while_the_disk_is_full_and_what_was_sampled_is_stored_later(small_disk, clock):
    disk, home = small_disk
    gate, other = home.path / "gate", working(home, "sm=20 mem=1G")
    os.mkfifo(gate)
    script = f"echo 'sm=80 mem=6G' >$FG_SIM_LOAD; echo >{gate}; read _ <{gate}"
    job = home.submit(script, share=5000)
    gate.read_text()
    before = until_sampled(home, job, lambda usage: usage.sampled > 0.5)
    with open(disk / "filler", "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    full = until_sampled(home, job, lambda usage: usage.sampled > before.sampled + 0.5)
    gate.write_text("end\n")
    clock[1](120)  # the minute is over, and its samples are sent
    told = until(home.path / "cards", lambda: _told(home), LOOKS)
    assert "full" in told
    assert home.job(other)["state"] == "RUNNING"
    (disk / "filler").unlink()
    (ended,) = home.wait(job)
    assert ended["state"] == "COMPLETED"
    reader = accounts(home)
    kept, goes_on = reader.sample(job), reader.sample(other)
    uses = [one for one in reader.gpu_uses(MINUTE, 0, 1e12) if one.uuid.endswith("0")]
    reader.close()
    assert min(kept.sampled, goes_on.sampled, sum(one.sampled for one in uses)) >= full.sampled
