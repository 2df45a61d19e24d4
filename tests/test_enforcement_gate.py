"""The gate before a launch: a fence is tried once for many jobs, and a launch that waits is never lost."""

from pathlib import Path

import pytest

from builders import a_job
from fgsched import gpus
from fgsched.controller import enforcementcheck as wait_index
from fgsched.controller.enforcementcheck import EnforcementCheck
from fgsched.domain.states import JobState
from fgsched.gpus.hooktest import LIMIT, verdict
from fgsched.launch.launcher import PendingLaunch
from fgsched.store import GpuAllocation

CARD = GpuAllocation(0, "GPU-0", "A100", 5000, 1 << 30, 5000)


class Asked:
    """What stands for the sampler: remembers the questions."""

    def __init__(self):
        self.questions = []

    def ask(self, want):
        self.questions.append(want)


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


class Host:
    """A gate, and what it did with each launch."""

    def __init__(self, path: Path, *, is_real: bool = True):
        self.hook = path / "libfgshim.so"
        self.hook.write_bytes(b"one")
        self.sampler = Asked()
        self.done = []
        self.gate = EnforcementCheck(
            self.sampler, run=str(path), hook=self.hook, is_real=is_real, driver=self._driver
        )

        self.driver = ""

    def _driver(self):
        return self.driver

    def launch(self, job_id, *, tier="shim", given=(CARD,), cgroup=""):
        job = a_job(job_id, state=JobState.STARTING, tier=tier)
        go, refuse = lambda: self.done.append(job_id), lambda why: self.done.append((job_id, why))
        self.gate.open_for(PendingLaunch(job, given, go=go, refuse=refuse, cgroup=cgroup))

    def answer(self, error=""):
        want = self.sampler.questions[-1]
        self.gate.hear(gpus.GpuAnswer(want="hooktest" if want.startswith("hooktest") else want, error=error))


def test_a_fence_is_tried_once_for_all_jobs(host):
    host.launch(1)
    host.launch(2)
    assert (host.done, len(host.sampler.questions)) == ([], 1)
    host.answer()
    host.launch(3)
    assert (host.done, len(host.sampler.questions)) == ([1, 2, 3], 1)


def test_another_build_of_the_hook_is_tried_again(host):
    host.launch(1)
    host.answer()
    host.hook.write_bytes(b"another")
    host.launch(2)
    assert (host.done, len(host.sampler.questions)) == ([1], 2)


def test_another_driver_is_tried_again(host):
    host.launch(1)
    host.answer()
    host.driver = "615"
    host.launch(2)
    assert (host.done, len(host.sampler.questions)) == ([1], 2)


def test_a_fence_that_does_not_hold_refuses_those_who_wait_and_is_tried_again_for_the_next(host):
    host.launch(1)
    host.answer("a hole")
    assert host.done == [(1, "its enforcement does not work: a hole")]
    assert host.gate.verdict == "a hole"
    host.launch(2)
    host.answer()
    assert host.done[1:] == [2]


@pytest.mark.parametrize("about", [{"tier": "watchdog"}, {"tier": "none"}, {"given": ()}])
def test_a_job_without_the_hook_or_without_cards_waits_for_nothing(host, about):
    host.launch(1, **about)
    assert (host.done, host.sampler.questions) == ([1], [])


def test_on_simulated_cards_there_is_nothing_to_try(tmp_path):
    host = Host(tmp_path, is_real=False)
    host.launch(1)
    assert (host.done, host.sampler.questions) == ([1], [])


def test_a_question_that_was_lost_is_asked_again(host, monkeypatch):
    host.launch(1)
    host.gate.remind()
    assert len(host.sampler.questions) == 1
    monkeypatch.setattr(wait_index, "_PATIENCE", 0.0)
    host.gate.remind()
    host.answer()
    assert (host.done, len(host.sampler.questions)) == ([1], 2)


def test_a_limit_of_the_driver_is_set_for_each_job_on_its_own_cgroup(host, tmp_path):
    for job_id in (1, 2):
        host.launch(job_id, tier="driver", cgroup=str(tmp_path / f"group{job_id}"))
    assert (tmp_path / "group1").is_dir()
    assert host.done == []
    assert [str(CARD.memory) in question for question in host.sampler.questions] == [True, True]
    host.answer()
    assert host.done == [2]


def test_a_limit_that_is_not_kept_refuses_the_job_and_leaves_no_cgroup(host, tmp_path):
    host.launch(1, tier="driver", cgroup=str(tmp_path / "group"))
    host.answer("no")
    assert host.done == [(1, "its enforcement does not work: no")]
    assert not (tmp_path / "group").exists()


HOLDS = f'{{"status": 2, "total": {LIMIT}}}'


@pytest.mark.parametrize(
    ("said", "refusals", "why"),
    [
        (HOLDS, 1, ""),
        (HOLDS, 0, "an allocation above the limit was not refused (status 2, refusals 0)"),
        (
            HOLDS.replace("2", "0", 1),
            1,
            "an allocation above the limit was not refused (status 0, refusals 1)",
        ),
        (
            '{"status": 2, "total": 7}',
            1,
            f"a job would see 7 bytes of GPU memory instead of its limit of {LIMIT}",
        ),
        ('{"error": "no driver"}', 0, "no driver"),
        ("", 0, "the test of the hook failed: it burns"),
    ],
)
def test_a_fence_holds_only_if_the_hook_itself_refused_and_showed_the_share(said, refusals, why):
    assert verdict(said, "it burns\n", refusals) == why
