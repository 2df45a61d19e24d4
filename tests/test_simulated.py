"""Simulated cards that are scripted: strangers, and a driver in trouble, seen through the real controller."""

import json
import os

import pytest

from awaiting import LOOKS, until
from live_host import Home


@pytest.fixture
def scripted(tmp_path):
    """A home whose cards show what a script says, looked at every second."""
    home = Home(tmp_path / "home", devices="sim:2x16G", config="[host]\ncpus = 8\n[sampling]\ninterval = 1\n")
    script = home.path / "cards" / "script.json"
    script.parent.mkdir()
    script.write_text("{}")

    def show(**gpus):
        script.with_suffix(".new").write_text(json.dumps(gpus))
        script.with_suffix(".new").rename(script)

    home.run("fgq", "-h", env={"FG_SIM_SCRIPT": str(script)})
    yield home, show
    home.leave()


def until_seen(home, is_so):
    """Wait until something is so; it is checked after each look of the controller at the cards."""
    return until(home.path / "cards", is_so, LOOKS)


def test_strangers_memory_is_in_the_way_until_it_is_gone(scripted):
    home, show = scripted
    show(**{"0": {"used": "12G"}, "1": {"used": "12G"}})
    job = home.submit(share=5000)
    until_seen(home, lambda: home.job(job)["reason"] == "GpuExternalUse")
    left = "GPU 0 has 4096M left, because processes outside fgsched hold 12288M"
    assert home.why(job) == f"needs 8192M of GPU memory; {left}"
    show()
    home.wait(job)
    assert home.job(job)["state"] == "COMPLETED"


def test_a_card_that_does_not_answer_is_suspect_and_the_other_goes_on(scripted):
    home, show = scripted
    show(**{"0": {"error": "GPU is lost"}})
    job = home.submit(share=5000)
    home.wait(job)
    record = home.job(job)
    assert [gpu["gpu"] for gpu in record["allocated"]] == [1]
    states = {gpu["index"]: (gpu["state"], gpu["note"]) for gpu in home.gpus()}
    assert states == {0: ("suspect", "GPU is lost"), 1: ("ok", "")}
    doctor = home.run("fgsched", "doctor")
    assert "WARN GPU states  GPU 0 is suspect: GPU is lost" in doctor.lines
    assert "fgctl resume gpu=0" in doctor.out


@pytest.mark.parametrize(
    ("sickness", "said"),
    [
        ({"xids": [48]}, "the driver told of Xid 48"),
        ({"remap": "pending"}, "rows of its memory are bad, and their replacement is pending"),
    ],
)
def test_a_card_with_errors_is_drained_and_who_fails_on_it_runs_elsewhere(scripted, sickness, said):
    home, show = scripted
    started, go = home.path / "started", home.path / "go"
    for fifo in (started, go):
        os.mkfifo(fifo)
    script = f'[ "$FG_RESTART_COUNT" = 1 ] && exit 0; echo >{started}; read word <{go}; exit 1'
    job = home.submit(script, share=5000)
    started.read_text()
    show(**{"0": sickness})
    until_seen(home, lambda: home.gpus()[0]["state"] == "drained")
    assert home.run("fginfo", "-g", "-h").out.split()[2] == "drng", "its job goes on"
    go.write_text("on\n")
    home.wait(job)
    record = home.job(job)
    assert (record["state"], record["restarts"]) == ("COMPLETED", 1)
    assert [place["gpu"] for place in record["allocated"]] == [1]
    index, state, user, since, *why = home.run("fginfo", "-R", "-h").out.split()
    assert (index, state, user) == ("0", "drain", "watchdog")
    assert since.startswith("20")
    assert " ".join(why) == said
    show()
    assert home.run("fgctl", "resume", "gpu=0").status == 0
    assert home.run("fginfo", "-R", "-h").out == ""


def test_the_doctor_says_when_the_driver_lists_processes_that_do_not_exist_here(scripted):
    """As in a container: nothing else changes."""
    home, show = scripted
    pid = (1 << 22) - 1
    show(**{"0": {"processes": [{"pid": pid, "memory": "1G"}]}})
    home.running(share=5000)
    until_seen(home, lambda: home.client.ask("ping")["unresolved_pids"])
    done = home.run("fgsched", "doctor")
    warning = f"WARN processes   the driver lists pids that do not exist in this PID namespace: {pid}"
    assert (done.status, warning in done.lines) == (0, True)
    show(**{"0": {"processes": []}})  # or the card is waited for when the job ends
