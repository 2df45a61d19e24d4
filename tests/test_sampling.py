"""Samples from the simulated GPU to the accounts, through the real controller and accountant."""

import json
import os
import select
import signal

import pytest

from awaiting import LOOKS, until
from fgsched.accounting.ledger import MINUTE, Reader
from fgsched.accounting.records import CLASSES
from live_host import PATIENCE, Home

GIB = 1 << 30
CONFIG = "[host]\ncpus = 8\n[sampling]\ninterval = 0.25\n"


@pytest.fixture
def scripted(tmp_path):
    """A home whose GPUs show what a script says, and what its jobs say."""
    home = Home(tmp_path / "home", devices="sim:2x16G:H100", config=CONFIG)
    script = home.path / "cards" / "script.json"
    script.parent.mkdir()

    def show(**cards):
        script.with_suffix(".new").write_text(json.dumps(cards))
        script.with_suffix(".new").rename(script)

    show(**{"0": {"power": 300, "temperature": 61}})
    home.run("fgq", "-h", env={"FG_SIM_SCRIPT": str(script)})
    yield home, show
    if home.places.socket.exists():
        home.leave()


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


def accounts(home):
    home.leave()
    return Reader(home.places.accounts)


def test_the_use_of_jobs_and_gpus_reaches_the_accounts(scripted):
    home, _ = scripted
    busy, idle = working(home, "sm=80 mem=6G"), working(home, "sm=0 mem=2G")
    now = until_sampled(home, busy, lambda usage: usage.sampled > 1)
    assert now.peak == 6 * GIB
    assert now.active == pytest.approx(now.charged, rel=0.3)
    assert now.used == pytest.approx(0.8 * now.sampled, rel=0.3)
    assert [job for job, _ in now.neighbours] == [idle]
    held = until_sampled(home, idle, lambda usage: usage.held > 0.5)
    assert (held.used, held.active, held.busy) == (0.0, 0.0, 0.0)
    home.client.ask("cancel", ids=[busy, idle])
    home.wait(busy, idle)
    reader = accounts(home)
    uses = [one for one in reader.card_uses(MINUTE, 0, 1e12)]
    owners = list(reader.owner_uses(MINUTE, 0, 1e12))
    sampled = reader.sample(busy)
    reader.close()
    assert {(one.card[-1], one.temperature) for one in uses} == {("0", 61), ("1", None)}
    for use in uses:
        assert sum(getattr(use, name) for name in CLASSES) == pytest.approx(use.sampled)
    own = [one for one in owners if one.job == busy]
    assert sum(one.charged for one in own) == pytest.approx(sampled.charged)
    assert sum(one.energy for one in own) == pytest.approx(sampled.energy)
    first = [one for one in uses if one.card.endswith("0")]
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
    pid = int(home.places.lock.read_text())
    ended = os.pidfd_open(pid)
    signal.pidfd_send_signal(ended, signal.SIGTERM)
    home.disconnect()
    assert select.select([ended], [], [], PATIENCE)[0]
    os.close(ended)
    before = Reader(home.places.accounts)
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
