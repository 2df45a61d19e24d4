"""The log of decisions: which lines there are, that no value can forge one, and who may see which."""

import sys

import pytest

from builders import ROOT, World, a_demand, a_gpu, a_job, a_result, full_disk
from fgsched.controller.caller import Caller
from fgsched.controller.decisionlog import DecisionLog, fields, text_of, value, without_paths
from fgsched.controller.handlers.about import log_lines
from fgsched.controller.turn import HostShort, StartFailed
from fgsched.domain.errors import StorageError
from fgsched.domain.job import WHOLE
from fgsched.domain.states import JobState
from fgsched.protocol import ShowLog

ANN = Caller(1, 1, "ann", is_operator=False)


def logged(world):
    """Return what the log has gained."""
    lines = text_of(world.engine.log.recent_lines)
    world.engine.log.recent_lines.clear()
    return lines


@pytest.fixture
def world():
    return World([a_gpu(0)])


def test_a_job_has_a_line_for_its_start_and_one_for_its_end(world):
    world.submit([a_demand(2500)])
    world.settle()
    assert logged(world) == "info job=1 user=ann event=start attempt=1 gpu=0 share=0.25\n"
    world.host.finish(1, 1, a_result(3 << 8))
    world.settle()
    assert logged(world) == (
        "info job=1 user=ann event=end state=FAILED attempt=1 exit=3 cpu=0.50 max_rss=1 gpu_peak=0"
        " elapsed=1.00 reason=NonZeroExitCode\n"
    )


def test_the_end_by_a_signal_tells_the_signal(world):
    world.submit([a_demand()])
    world.settle()
    logged(world)
    world.host.finish(1, 1, a_result(9))
    world.settle()
    assert " signal=9 " in logged(world)


def test_the_end_of_a_job_whose_gpu_is_not_clean_yet_has_its_reason(world):
    world.submit([a_demand(2500)])
    world.settle()
    world.engine.gpu_states.needs_cleaning = True
    logged(world)
    world.host.finish(1, 1, a_result(3 << 8))
    world.settle()
    assert logged(world) == (
        "info job=1 user=ann event=end state=FAILED attempt=1 exit=3 cpu=0.50 max_rss=1 gpu_peak=0"
        " elapsed=1.00 reason=NonZeroExitCode\n"
    )
    world.engine.gpu_states.needs_cleaning = False
    world.settle()
    assert logged(world) == ""


def test_the_end_of_an_attempt_that_is_requeued_says_so(world):
    world.submit([a_demand(2500)])
    world.settle()
    world.engine.gpu_states.needs_cleaning = True
    world.ask(ROOT, "requeue", ids=[1])
    world.settle()
    assert logged(world).splitlines()[1:] == [
        "info job=1 user=ann event=requeue by=root",
        "info job=1 user=ann event=end requeue=yes attempt=1 signal=15 cpu=0.50 max_rss=1 gpu_peak=0"
        " elapsed=1.00",
    ]
    world.engine.gpu_states.needs_cleaning = False
    world.settle()
    assert logged(world).splitlines()[0] == "info job=1 user=ann event=requeued attempt=1"


def test_who_cancelled_held_released_or_requeued_a_job_is_told(world):
    world.submit([a_demand(WHOLE)] * 2)
    world.settle()
    logged(world)
    world.ask(ANN, "hold", ids=[2])
    world.ask(ROOT, "hold", ids=[2])
    world.ask(ROOT, "release", ids=[2])
    world.ask(ROOT, "requeue", ids=[1])
    world.settle()
    world.said_before = logged(world).splitlines()
    assert world.said_before[:4] == [
        "info job=2 user=ann event=hold held=user by=ann",
        "info job=2 user=ann event=hold held=admin by=root",
        "info job=2 user=ann event=release by=root",
        "info job=1 user=ann event=requeue by=root",
    ]
    assert "info job=1 user=ann event=requeued attempt=1" in world.said_before
    world.ask(ANN, "cancel", ids=[1])
    world.ask(ROOT, "cancel", ids=[2])
    lines = logged(world).splitlines()
    assert "info job=1 user=ann event=cancel by=ann" in lines
    assert "info job=2 user=ann event=cancel by=root" in lines


def test_a_job_that_is_suspended_and_resumed_has_a_line_for_each(world):
    world.submit([a_demand(2500)])
    world.settle()
    logged(world)
    world.ask(ROOT, "suspend", ids=[1])
    world.ask(ROOT, "resume_jobs", ids=[1])
    assert logged(world).splitlines() == [
        "info job=1 user=ann event=suspend by=root",
        "info job=1 user=ann event=resume by=root",
    ]


def test_a_launch_that_was_refused_is_a_warning_with_its_cause_and_without_paths(world):
    world.submit([a_demand(WHOLE)] * 2)
    logged(world)
    world.host.inbox.clear()
    world.turn(HostShort(1, 1, "could not be started: [Errno 28] No space left: '/home/ann/secret'"))
    assert logged(world).splitlines()[0] == (
        "warning job=1 user=ann event=refuse-launch attempt=1 retry=yes"
        ' why="could not be started: [Errno 28] No space left: …"'
    )
    world.host.inbox.clear()
    world.turn(StartFailed(2, 1, "exec /home/ann/job.sh: Permission denied"))
    assert 'warning job=2 user=ann event=refuse-launch attempt=1 why="exec …: Permission denied"' in logged(
        world
    )


def test_a_submission_has_one_line_whatever_the_number_of_its_jobs(world):
    request = {"name": "a", "demand": {"cpus": 1}, "directory": "/", "array": ""}
    world.log = world.engine.log
    world.engine.log.by = ""
    world.engine.log.submitted(a_job(5), 100)
    world.engine.log.flush(1.0)
    assert logged(world) == "info job=5 user=ann event=submit count=100\n"
    assert request["array"] == ""


def test_a_drained_gpu_has_a_line(world):
    world.ask(ROOT, "drain", gpu=0, reason='loud\nerror job=1 user=ann event="end"')
    assert logged(world) == (
        r'info event=gpu gpu=0 state=drained why="loud\x0aerror job=1 user=ann event=\"end\" [root]"' + "\n"
    )


def test_a_turn_that_is_not_committed_leaves_no_line(world):
    world.submit([a_demand(2500)])
    world.settle()
    logged(world)
    with full_disk(world), pytest.raises(StorageError):
        world.ask(ANN, "cancel", ids=[1])
    assert logged(world) == ""
    world.ask(ANN, "cancel", ids=[1])
    assert "event=cancel by=ann" in logged(world)


def test_a_log_that_fails_keeps_no_job_from_anything(world):
    world.engine.log._write = lambda lines: 1 / 0
    world.submit([a_demand(2500)])
    world.settle()
    world.host.finish(1, 1, a_result())
    world.settle()
    assert (world.job(1).state, world.job(1).warning) == (JobState.COMPLETED, "")
    assert world.engine.faults.text.startswith("the log: ZeroDivisionError")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ann", "ann"),
        ("ann@host.example", "ann@host.example"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "no"', r'"say \"no\""'),
        ("back\\slash", r'"back\\slash"'),
        ("line\nerror job=1", r'"line\x0aerror job=1"'),
        ("\x1b[31mred\x7f", r'"\x1b[31mred\x7f"'),
        ("\u2028 \u202e \udce9", r'"\u2028 \u202e \udce9"'),
        ("größe", '"größe"'),
        ("x" * 300, '"' + "x" * 199 + '…"'),
    ],
)
def test_a_value_that_is_no_plain_word_is_quoted(text, shown):
    assert value(text) == shown


def test_values_that_are_none_are_left_out():
    assert fields(event="gpu", gpu=0, why=None) == "event=gpu gpu=0"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("No space left on device", "No space left on device"),
        ("exec /bin/x y: No such file", "exec …: No such file"),
        ("[Errno 2] No such file: '/a: b'", "[Errno 2] No such file: …"),
        ("/a and /b: gone", "…: gone"),
    ],
)
def test_paths_are_left_out_of_a_cause(text, shown):
    assert without_paths(text) == shown


def test_an_owner_sees_the_lines_of_own_jobs_and_an_operator_sees_all(world):
    world.submit([a_demand(2500)])
    world.engine.log.submitted(a_job(5).changed(uid=2, user="bob"), 3)
    world.engine.log.note("reconfigure", changed="nothing")
    world.turn()
    texts = [line.text for line in world.engine.log.lines(uid=1)]
    assert texts == ["job=1 user=ann event=start attempt=1 gpu=0 share=0.25"]
    assert [line.text for line in world.engine.log.lines(uid=2, job=7)] == [
        "job=5 user=bob event=submit count=3"
    ]
    assert len(world.engine.log.lines()) == 3
    assert world.engine.log.lines(uid=2, job=1) == []


def test_the_request_for_the_log_shows_a_user_only_lines_about_own_jobs(world):
    world.submit([a_demand(2500)])
    world.engine.log.note("reconfigure", changed="nothing")
    world.turn()
    log, bob = world.engine.log, Caller(2, 2, "bob", is_operator=False)
    assert [line.text[:5] for line in log_lines(log, ANN, ShowLog()).lines] == ["job=1"]
    assert log_lines(log, bob, ShowLog(job=1)).lines == []
    assert len(log_lines(log, ROOT, ShowLog()).lines) == 2
    assert len(log_lines(log, ROOT, ShowLog(job=1)).lines) == 1


def test_a_change_that_cannot_be_told_costs_no_line_of_other_jobs(caplog):
    written = []
    log = DecisionLog(written.extend)
    for number in (1, 2, 3):
        job = a_job(number)
        log.step(job, job.changed(held="user", user="ann" if number != 2 else 7))
    log.flush(1.0)
    assert [line.text for line in written] == [f"job={n} user=ann event=hold held=user" for n in (1, 3)]
    assert caplog.messages == ["job 2: a decision cannot be logged"]


def test_a_long_value_that_a_client_sent_is_not_kept():
    text = "12_[" + "1," * 100_000 + "1]"
    held = sys.getrefcount(text)
    assert len(value(text)) < 300
    assert sys.getrefcount(text) == held
