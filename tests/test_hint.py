"""The note of fgsub that earlier runs used much less GPU memory."""

import os
import time
from types import SimpleNamespace

import pytest

from fgsched.cli import fgsub
from fgsched.cli.hint import hint, print_hint
from fgsched.domain.errors import Unreachable
from fgsched.domain.job import Demand, Request
from fgsched.domain.states import JobState
from fgsched.protocol import Allocation, HistoryPage, JobInfo
from fgsched.submission.request import wants_hint
from terminals import on_terminal
from test_sampling import scripted, until_sampled

__all__ = ["scripted"]

GIB = 1 << 30
SAID = (
    "the last 3 runs of train used at most 6.0 of 40.0 GiB of GPU memory; --gpu-mem=7G is enough\n"
    "fgeff --name shows more; FGSUB_HINT=no switches such notes off."
)

GPU = Allocation(gpu=0, uuid="GPU-a", model="A100", share=5000, memory=40 * GIB, charged=5000)


def run(id, peak, **changes):
    given = {
        "id": id,
        "name": "train",
        "state": JobState.COMPLETED,
        "gpus": 1,
        "tier": "shim",
        "gpu_peak": peak,
        "allocated": [GPU],
    }
    return JobInfo(**given | changes)


NEW = JobInfo(id=9, name="train", gpus=1, memory=40 * GIB)
RUNS = [run(1, 5 * GIB), run(2, 6 * GIB), run(3, 4 * GIB)]


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ([*RUNS, NEW], SAID),
        ([*RUNS[:1], NEW], ""),  # one run is not a habit
        ([*RUNS, run(4, 11 * GIB), NEW], ""),  # 40 is not more than four times 11
        ([*RUNS, run(4, 40 * GIB, name="other"), NEW], SAID),
        ([*RUNS, run(4, 40 * GIB, state=JobState.FAILED), NEW], SAID),
        ([*(run(1, 0, tier="none") for _ in range(3)), NEW], ""),  # nothing was measured
        ([*RUNS, JobInfo(id=9, name="train", gpus=1, memory=None)], ""),  # it depends on the GPU
        ([*RUNS, JobInfo(id=9, name="train", gpus=0, memory=40 * GIB)], ""),
        ([NEW], ""),
        ([], ""),
    ],
)
def test_a_request_of_more_than_four_times_the_peak_is_worth_a_note(jobs, said):
    assert hint(9, "train", jobs) == said


def test_a_run_long_ago_does_not_count():
    jobs = [run(1, 30 * GIB), *(run(2 + at, GIB) for at in range(5)), NEW]
    assert "used at most 1.0 of 40.0 GiB" in hint(9, "train", jobs)


class Answers:
    """A client that answers with jobs, or fails."""

    def __init__(self, jobs):
        self.jobs, self.calls = jobs, []

    def call(self, call):
        self.calls.append(call)
        if self.jobs is None:
            raise Unreachable("gone", "start it")
        return HistoryPage(jobs=self.jobs)


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("FG_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_name_gets_one_note_a_day_and_the_look_is_bounded(state, capsys):
    client = Answers([*RUNS, NEW])
    print_hint(client, 9, "train")
    assert capsys.readouterr().err == f"fgsub: note: {SAID}\n"
    print_hint(client, 9, "train")
    assert capsys.readouterr().err == ""
    assert [(call.after, call.uid) for call in client.calls] == [(0, os.geteuid())]
    assert (state / "hints").read_text() == time.strftime("%Y-%m-%d train\n")


def test_the_notes_of_other_days_are_forgotten(state, capsys):
    state.mkdir()
    (state / "hints").write_text("2001-01-01 train\n2001-01-01 other\n")
    print_hint(Answers([*RUNS, NEW]), 9, "train")
    assert capsys.readouterr().err
    assert (state / "hints").read_text().count("\n") == 1


def test_a_hint_that_fails_is_silent(state, capsys):
    print_hint(Answers(None), 9, "train")
    state.write_text("a file where the directory is to be")
    print_hint(Answers([*RUNS, NEW]), 9, "train")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("flags", "gpus", "is_terminal", "env", "wanted"),
    [
        ({}, 1, True, "", True),
        ({}, 1, True, "no", False),
        ({}, 1, False, "", False),
        ({}, 0, True, "", False),
        ({"parsable": True}, 1, True, "", False),
        ({"quiet": True}, 1, True, "", False),
        ({"json": True}, 1, True, "", False),
    ],
)
def test_only_a_person_who_has_not_switched_it_off_gets_a_note(
    flags, gpus, is_terminal, env, wanted, monkeypatch
):
    kinds = {"quiet": False, "parsable": False, "json": False}
    request = Request(name="train", demand=Demand(gpus=gpus))
    job = SimpleNamespace(flags=SimpleNamespace(**kinds | flags), submission=SimpleNamespace(request=request))
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: is_terminal))
    monkeypatch.setenv("FGSUB_HINT", env)
    assert (fgsub.is_for_person() and wants_hint(job, os.environ)) == wanted


# -- with a controller ---------------------------------------------------------------------------------

NOTE = (
    "fgsub: note: the last 2 runs of train used at most 1.0 of 12.0 GiB of GPU memory; --gpu-mem=2G is enough"
)


def ran(home, name, load):
    """Let a job that sets its load complete after it was sampled."""
    gate = home.path / f"gate{len(os.listdir(home.path))}"
    os.mkfifo(gate)
    job = home.submit(f"echo '{load}' >$FG_SIM_LOAD; read line <{gate}", name=name)
    until_sampled(home, job, lambda usage: usage.peak)
    gate.write_text("go\n")
    assert [one["state"] for one in home.wait(job)] == ["COMPLETED"]


def noted(home, *words, **env):
    """The notes of a submission on a terminal."""
    lines = on_terminal(home, "fgsub", "--gpu-mem=12G", *words, "--wrap=exit 0", columns=200, env=env)
    assert [line for line in lines if line.startswith("Submitted batch job ")]
    return [line for line in lines if "used at most" in line]


def test_a_submission_on_a_terminal_is_compared_with_the_history_of_its_name(scripted):
    home, _ = scripted
    for name in ("train", "other"):
        ran(home, name, "sm=50 mem=1G")
        ran(home, name, "sm=50 mem=600M")
    ran(home, "large", "sm=50 mem=6G")
    ran(home, "large", "sm=50 mem=6G")
    assert noted(home, "-J", "large") == []
    assert noted(home, "-J", "train", FGSUB_HINT="no") == []
    assert noted(home, "-J", "train") == [NOTE]
    assert noted(home, "-J", "train") == []  # one note a day
    done = home.run("fgsub", "--gpu-mem=12G", "-J", "other", "--wrap=exit 0")
    assert (done.status, done.err) == (0, "")
    (home.path / "fgsched.toml").write_text(f"{home.config}[jobs]\nhints = false\n")
    assert home.run("fgctl", "reconfigure").status == 0
    assert noted(home, "-J", "other") == []
    (home.path / "fgsched.toml").write_text(home.config)
    assert home.run("fgctl", "reconfigure").status == 0
    assert noted(home, "-J", "other") == [NOTE.replace("train", "other")]
