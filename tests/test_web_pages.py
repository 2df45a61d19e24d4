"""The contexts of the pages as values, and each page as HTML: nothing that a user gave is more than text."""

import re
import shlex
import time
from html.parser import HTMLParser

import pytest
from msgspec.structs import force_setattr, replace

import history
from fgsched import protocol
from fgsched.accounting.periods import Choice, chosen
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import Hold, OomReport, Request
from fgsched.domain.states import JobState, Reason
from fgsched.domain.waiting import Advice, Blocker, ExpectedStart, Explanation, Shortfall, Trial, Unblock
from fgsched.reports import numbers
from fgsched.reports.drawing import DARK, LIGHT
from fgsched.reports.model import Figures, GpuRow, GpuRows, Mark, Report, Section, Span, Step
from fgsched.reports.registry import NAMES as REPORTS
from fgsched.reports.registry import kind
from fgsched.system.process import TreeUse
from fgsched.web.app import PAGES
from fgsched.web.frame import STATIC, FormNotice, frame_of, render
from fgsched.web.output import FileId, FileTail, plain
from fgsched.web.pages import array as array_page
from fgsched.web.pages import gpu as gpu_page
from fgsched.web.pages import job as job_page
from fgsched.web.pages import now as now_page
from fgsched.web.pages import queue as queue_page
from fgsched.web.pages import reports as reports_page
from fgsched.web.pages import submit as submit_page
from fgsched.web.pages.gpubars import BarPart, bar, polyline, status_of
from fgsched.web.pages.submit import NAMES, FormAnswer, SubmissionWish, filled
from fgsched.web.pages.words import span
from fgsched.web.reading import (
    DAY_OPTIONS,
    ArrayData,
    GpuData,
    HostLook,
    JobData,
    QueueData,
    ReportData,
    confined,
)
from fgsched.web.visit import Viewer, Visit
from topframes import DAY, GIB, JOBS, NOW, frame

ANN, INES = Viewer(uid=8, name="ann"), Viewer(uid=1, name="ines")
SCRIPTS = ["/static/htmx.min.js", "/static/live.js"]
NASTY = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "</title></main></pre><script>",
    "javascript:alert(1)",
    "\u202eevil\u2066",
    "a\x00b\x1b[31m\x7f",
    "x" * 255,
    "&lt;b&gt; &amp;",
    "\udcff\udc80",
)


@pytest.fixture(autouse=True)
def in_utc(monkeypatch):
    with history.zone():
        monkeypatch.setenv("TZ", "UTC")
        time.tzset()
        yield


ABOUT = protocol.About(
    **{
        name: ""
        for name in (
            *("version", "mode", "state", "run_dir", "source", "note", "enforce", "fence", "host", "preload"),
            *("host_memory_held_by", "host_memory_note", "pids_note", "run_space_note", "preload_note"),
            *("other_gpus", "watchdog"),
        )
    },
    protocol=2,
    pid=1,
    unresolved_pids=[],
    earlier_jobs=[],
    visible=None,
    started_at=0.0,
    gpus=8,
    pids_held=False,
    internal_errors=protocol.InternalErrors(),
    operator=False,
    interval=5.0,
    run_space=0,
    site=None,
    config={},
)


def look(jobs=JOBS, *, operator=False, starts=None, **config):
    shown, kept = frame(jobs=jobs)
    about = replace(ABOUT, operator=operator, config=config)
    return HostLook(frame=shown, history=kept, about=about, starts=starts or {})


def visit(path="/", *, viewer=ANN, query=None, **params):
    return Visit(path=path, query=query or {}, params=params, viewer=viewer, token="t0ken", now=NOW)


def page(path, data, of=None):
    """The HTML of a page as the process sends it."""
    row = next(row for row in PAGES if row.path == path)
    of = of or visit(path)
    shown = frame_of(of, nav=row.nav, live=row.live, note=FormNotice())
    return render(row.template, {"page": row.context(data, of), "frame": shown})


# -- now -------------------------------------------------------------------------------------------------


def test_the_first_page_says_what_is_charged_and_what_comes_next():
    starts = {41098: ExpectedStart(latest=NOW + 3600, likely=NOW + 1200)}
    shown = now_page.context(look(starts=starts), visit())
    assert shown.lede == "7.0 of 8 GPUs are charged; 12 jobs run and 22 wait."
    assert (shown.first.id, shown.starts) == ("41098", "by 15:23, likely 14:43")
    assert [row.id for row in shown.next] == ["41098", "41099", "41130"]
    assert shown.next[0].by == "15:23"
    assert (shown.more_next, shown.more_own, shown.title) == (19, 1, "21 PD")


def test_own_jobs_are_listed_with_their_use():
    shown = now_page.context(look(), visit(viewer=INES))
    (row,) = shown.own
    assert (row.id, row.state.word, row.gpus, row.memory) == ("41075", "running", "0.5", "0.0 of 40 GiB")
    assert (row.time, row.next) == ("2 h 41 min of 12 h", "ends by 23:42")
    assert shown.counts == "1 runs, 0 wait, 0 ended in the last minutes."


def test_a_user_without_jobs_is_told_so():
    shown = now_page.context(look(jobs=[]), visit())
    assert (shown.own, shown.counts, shown.first) == ([], "You have no job here.", None)
    assert "No job waits." in page("/", look(jobs=[]))


def test_the_bars_of_a_gpu_are_its_jobs_to_scale():
    state = status_of(look())
    two = bar(state.gpus[2])
    assert [(part.x, part.width, part.style) for part in two.parts] == [
        ("0%", "30%", "H"),
        ("30%", "30%", "A"),
        ("60%", "25%", "H"),
        ("85%", "10%", "H"),
        ("95%", "5%", "FR"),
    ]
    assert two.busy == "4 % busy"
    assert two.used == "17.0 of 80 GiB"
    down = bar(state.gpus[5])
    assert down.parts == (BarPart("0%", "100%", "D", "down: Xid 94, contained ECC error"),)
    outside = bar(state.gpus[3])
    assert outside.used == "22.0 of 80 GiB, 22.0 outside"
    assert [part.style for part in outside.memory] == ["X"]


def test_a_gap_ends_a_line_of_a_plot():
    assert polyline([(0.0, 0.0), (0.5, 1.0), (0.6, None), (1.0, 2.0)]) == ["0,100 500,0", "1000,0"]
    assert polyline([]) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (30, "< 1 min"),
        (7200, "2 h"),
        (7260, "2 h 01 min"),
        (36_000, "10 h"),
        (172_800, "2 d"),
        (180_000, "2 d 2 h"),
    ],
)
def test_a_whole_duration_has_one_unit(seconds, text):
    assert span(seconds) == text


# -- queue -----------------------------------------------------------------------------------------------


def queue(jobs=JOBS, viewer=ANN, operator=False, ended=(), **query):
    data = QueueData(look=look(jobs, operator=operator), ended=ended)
    return queue_page.context(data, visit("/queue", viewer=viewer, query=query))


def test_the_queue_has_the_order_of_the_scheduler():
    shown = queue()
    assert [row.id for row in shown.rows][:3] == ["41021", "41024", "41036"]
    assert [row.id for row in shown.rows][12:15] == ["41098", "41099", "41130"]
    assert [(one.label, one.count) for one in shown.filter_links] == [
        ("all", 34),
        ("mine", 21),
        ("running", 12),
        ("pending", 22),
        ("ended today", 0),
        ("failed today", 0),
    ]


def test_filters_searches_and_orders_are_links_that_keep_each_other():
    shown = queue(show="running", q="NADIA", sort="-job")
    assert [row.id for row in shown.rows] == ["41080", "41036"]
    assert shown.filter_links[0].href == "/queue?q=NADIA&sort=-job"
    assert [one.is_current for one in shown.filter_links] == [False, False, True, False, False, False]
    assert (shown.headings[0].sorted, shown.headings[0].href) == (
        "descending",
        "/queue?show=running&q=NADIA",
    )
    assert shown.hidden == [("show", "running"), ("sort", "-job")]


def test_rows_come_in_pages_of_100():
    many = [replace(JOBS[-1], id=50_000 + at) for at in range(250)]
    first, last, beyond = queue(many), queue(many, page="3"), queue(many, page="99")
    assert (len(first.rows), first.earlier, first.later) == (100, "", "/queue?page=2")
    assert (len(last.rows), last.first, last.earlier, last.later) == (50, 201, "/queue?page=2", "")
    assert [row.id for row in beyond.rows] == [row.id for row in last.rows]
    assert queue(many, page="-1").first == queue(many, page="x").first == 1


def test_a_user_selects_own_jobs_and_an_operator_all():
    assert {row.user for row in queue().rows if row.may_change} == {"ann"}
    assert all(row.may_change for row in queue(operator=True).rows)
    assert not queue(viewer=Viewer(uid=8, name="ann", read_only=True)).has_changes


def test_jobs_that_ended_today_are_there_once():
    failed = replace(JOBS[0], state=JobState.FAILED, ended_at=NOW - 60, id=40_000)
    shown = queue(show="failed", ended=[failed, replace(JOBS[0], state=JobState.COMPLETED)])
    assert [row.id for row in shown.rows] == ["40000"]
    assert [one.count for one in shown.filter_links][4:] == [1, 1]


# -- job -------------------------------------------------------------------------------------------------

RUNNING = replace(
    next(job for job in JOBS if job.id == 41080),
    attempt=1,
    now=[protocol.OnGpu(gpu=2, memory=6 * GIB, busy=1500)],
    request=Request(name="rl-atari", submit_dir="/home/nadia", submit_line="fgsub --gpus=0.3 train.sh"),
    steps=[protocol.StateChange(1, NOW - 7140, "CONFIGURING", "RUNNING", "None")],
    cpus=8,
    host_memory=32 * GIB,
)
NADIA = Viewer(uid=4, name="nadia")
TAIL = FileTail("/home/nadia/fg-41080.out", "epoch 1\n", 8, 8, FileId(1, 2))
USE = TreeUse(cpu_seconds=7140 * 4.9, rss=8 * GIB)


def job(job=RUNNING, viewer=NADIA, operator=False, **more):
    data = JobData(look=look(operator=operator), job=job, **more)
    return job_page.context(data, visit(f"/job/{job.id}", viewer=viewer, job=str(job.id)))


def test_a_running_job_shows_what_it_uses_of_its_request():
    shown = job(use=USE, tail=TAIL)
    assert shown.lede == (
        "on 0.3 of GPU 2 for 1 h 59 min; it ends by Fri 12:24. It uses 6.0 of 24 GiB of GPU memory."
    )
    assert [(use.label, use.text, use.used) for use in shown.uses] == [
        ("GPU memory", "6.0 of 24 GiB", "25%"),
        ("GPU time", "50 % of its share", "50%"),
        ("CPUs, mean", "4.9 of 8", "61.3%"),
        ("Host memory", "8.0 of 32 GiB", "25%"),
        ("Time", "1 h 59 min of 1 d", "8.3%"),
    ]
    assert [action.verb for action in shown.actions] == ["cancel", "requeue"]
    assert shown.output_name == "fg-41080.out"


def test_an_operator_may_do_more_and_another_user_nothing():
    verbs = [action.verb for action in job(operator=True, viewer=ANN).actions]
    assert verbs == ["cancel", "update", "suspend", "requeue"]
    assert job(viewer=ANN).actions == ()
    assert job(viewer=Viewer(uid=4, name="nadia", read_only=True)).actions == ()
    assert job(operator=True).actions[1].fields == (("timelimit", "1-01:00:00"),)


PENDING = next(job for job in JOBS if job.id == 41098)
EXPLANATION = Explanation(
    id=41098,
    called=41098,
    name="llama-ft-2",
    user="ann",
    state=JobState.PENDING,
    reason=Reason.RESOURCES,
    blockers=[
        Blocker(
            Shortfall(Reason.RESOURCES, "share", gpu=2, need=10_000, remaining=500),
            Unblock((41040,), NOW + 3600),
            "main",
        )
    ],
    advice=[Advice(option="gpus", before=10_000, after=5000, gpus=(6,))],
    start=ExpectedStart(latest=NOW + 3600, likely=NOW + 1200, known=1, before=1),
)


def test_a_pending_job_shows_each_blocker_and_each_change():
    shown = job(PENDING, ANN, explanation=EXPLANATION)
    assert shown.lede == "for 2 h 44 min. It starts by 15:23, likely 14:43."
    (blocker,) = shown.pending.blockers
    assert blocker.text == "needs one whole GPU; GPU 2 has 0.05 left"
    assert blocker.lifted.startswith("when job 41040 ends, by ")
    (change,) = shown.pending.changes
    assert (change.text, change.label, change.key, change.value) == (
        "--gpus=0.5 instead of 1",
        "Use 0.5",
        "gpus",
        "0.5",
    )
    assert change.line == "fgctl update job=41098 gpus=0.5"
    assert shown.pending.ahead == []
    assert [action.verb for action in shown.actions] == ["cancel", "hold"]


def test_a_pending_job_shows_who_is_considered_before_it():
    last = replace(JOBS[-1], partition="main")
    shown = job(last, ANN, explanation=replace(EXPLANATION, id=last.id)).pending
    assert [row.id for row in shown.ahead] == ["41098", "41099", "41130", "41131", "41132"]
    assert shown.more_ahead == 16
    held = replace(last, reason=Reason.HELD_USER)
    assert job(held, ANN, explanation=EXPLANATION).pending.ahead == []
    assert [action.verb for action in job(replace(PENDING, held="user"), ANN).actions] == [
        "cancel",
        "release",
    ]
    assert [action.verb for action in job(replace(PENDING, held="admin"), ANN).actions] == ["cancel"]


ENDED = replace(
    RUNNING,
    state=JobState.OUT_OF_MEMORY,
    reason=Reason.GPU_OUT_OF_MEMORY,
    ended_at=NOW - 60,
    elapsed=360.0,
    now=[],
    indices=[],
    post_mortem=OomReport(gpu=2, asked=GIB, held=int(19.6 * GIB), limit=20 * GIB, jobs=((41036, 24 * GIB),)),
)


def test_an_ended_job_shows_what_happened_and_the_line_for_the_next_run():
    shown = job(ENDED)
    assert (shown.state.word, shown.state.mark) == ("GPU out of memory", "F")
    assert shown.lede == "after 6 min: it held 19.6 GiB of its 20 GiB and asked for 1 GiB more."
    assert [(fact.name, fact.text) for fact in shown.ended.facts][:4] == [
        ("Refused", "1 GiB on GPU 2"),
        ("Held", "19.6 GiB"),
        ("Limit", "20 GiB"),
        ("Others on the GPU", "job 41036 24 GiB: not the cause; the limit was the job's own"),
    ]
    assert shown.ended.line == "#FG --gpu-mem=22G --cpus-per-task=1"
    assert shown.actions == []


# -- gpu -------------------------------------------------------------------------------------------------


def gpu(index, **more):
    operator = more.pop("operator", False)
    data = GpuData(look=look(operator=operator), **more)
    return gpu_page.context(data, visit(f"/gpu/{index}", gpu=str(index)))


def test_a_gpu_shows_its_jobs_its_health_and_who_else_uses_it():
    stranger = protocol.GpuProcessInfo(gpu=2, pid=7, memory=GIB, since=NOW - 60, user="eve", command="python")
    elsewhere = replace(stranger, gpu=3)
    shown = gpu(2, processes=[stranger, elsewhere, replace(stranger, job=41036)])
    assert shown.lede == "4 jobs hold 0.95 of it; 0.05 is free."
    assert [(row.id, row.user, row.share) for row in shown.jobs][:2] == [
        ("41036", "nadia", "0.3"),
        ("41080", "nadia", "0.3"),
    ]
    assert [(row.pid, row.user, row.memory, row.since) for row in shown.outside] == [
        (7, "eve", "1 GiB", "14:22")
    ]
    assert dict((name, text) for name, text, _ in shown.health)["Temperature, power"] == "36 °C, 58 W"
    assert dict((name, text) for name, text, _ in gpu(5).health)["Reason"].startswith("Xid 94")


def report_of(sections):
    span = Span(NOW - DAY, NOW, "", "", "", "", "period", False)
    return Report("utilization", "", "", span, (), Figures(()), sections, (), ())


def test_the_last_day_of_a_gpu_is_that_of_the_report():
    rate = numbers.rate(61.0, 100.0)
    steps = (Step(0.6, 0.1, 0.0, 0.0, 0.0), None)
    row = GpuRow(2, "GPU-2", "A100", (), rate, rate, numbers.unknown("bytes"), steps)
    part = GpuRows((row,), NOW - DAY, DAY // 2, (Mark(0.0, "14:00"),), "", key="day")
    report = report_of(sections=(Section("day", "Last 24 hours", "", (part,)),))
    shown = gpu(2, report=report)
    assert shown.lede.endswith("It was active for 61 % of the last 24 hours.")
    assert [style for style, _ in shown.day.paths] == ["A", "H"]
    assert (shown.day.marks, gpu(3, report=report).day) == (["14:00"], None)
    period = chosen(Choice(since=DAY_OPTIONS["since"]), kind("utilization").default, NOW)
    assert DAY <= period.until - period.since <= DAY + 3600


def test_an_operator_drains_a_gpu_and_resumes_another():
    assert [gpu(index, operator=True).verb for index in (2, 5)] == ["drain", "resume"]
    assert gpu(2).verb == ""
    with pytest.raises(BadUsage, match="this host has no GPU 99"):
        gpu(99)


# -- submit ----------------------------------------------------------------------------------------------

HOLD = Hold(gpu=6, share=5000, memory=24 * GIB)
AT_ONCE = Trial(id=41_200, partition="main", holds=(HOLD,), advice=EXPLANATION.advice)
WAITS = Trial(id=41_200, partition="main", blockers=EXPLANATION.blockers, advice=EXPLANATION.advice)


def wish(**fields):
    fields = {name.replace("_", "-"): text for name, text in fields.items()}
    return SubmissionWish(fields=fields, home="/home/ann")


def submission(trial=None, *, refusal=None, **fields):
    runs = [replace(RUNNING, id=7, state=JobState.COMPLETED, usage=None, elapsed=6720.0)]
    asked = FormAnswer(
        wish=wish(**fields), key="k" * 20, trial=trial, refusal=refusal, runs=runs, time_limit=7200
    )
    return submit_page.context(replace(asked, models={6: "RTX A6000"}), visit("/submit"))


def test_the_form_makes_the_command_that_fgsub_reads():
    asked = wish(
        script="vit/train.sh", arguments="--epochs '4 0'", gpus=" 0.5 ", job_name="a b", more="--nice=5"
    )
    words = ["--gpus=0.5", "--job-name=a b", "--nice=5", "/home/ann/vit/train.sh", "--epochs", "4 0"]
    assert asked.words() == words
    assert asked.words(hold=True) == [*words[:3], "--hold", *words[3:]]
    assert asked.line() == f"cd /home/ann/vit && fgsub {shlex.join(words)}"
    assert wish(script="~/x.sh").words() == ["/home/ann/x.sh"]
    assert wish(script="/srv/x.sh").directory == "/srv"
    pasted = wish(text="#!/bin/sh\r\nexit 0\r\n", gpus="1")
    assert (pasted.text, pasted.line()) == (
        b"#!/bin/sh\nexit 0\n",
        "cd /home/ann && fgsub --gpus=1 < SCRIPT",
    )


@pytest.mark.parametrize(
    ("fields", "cause", "field"),
    [
        ({}, "script: none is named", "script"),
        ({"script": "a", "text": "#!/bin/sh"}, "script: a path and a text", "script"),
        ({"text": "#!/bin/sh", "arguments": "x"}, "arguments: a script that is pasted", "arguments"),
        ({"script": "a", "arguments": "'"}, "arguments: a quotation mark", "arguments"),
        ({"script": "a", "more": "'"}, "other options: a quotation mark", "more"),
    ],
)
def test_a_form_that_contradicts_itself_is_refused_at_its_field(fields, cause, field):
    with pytest.raises(BadUsage, match=cause) as refused:
        wish(**fields).words()
    assert submit_page.field_of(refused.value.cause) == field


@pytest.mark.parametrize(
    ("cause", "field"),
    [
        ("--gpus=x is not a number", "gpus"),
        ("train.sh:3: --gres=gpu:x is not a number", "gpus"),
        ("--mem-per-cpu=x is not a size", "mem"),
        ("--signal=x is not a signal", "more"),
        ("partition night does not exist", "partition"),
        ("the time limit is longer than the longest of the partition", "partition"),
        ("standard input has no interpreter", "text"),
        ("the queue is full", ""),
    ],
)
def test_a_refusal_is_shown_at_the_field_that_it_names(cause, field):
    assert submit_page.field_of(cause) == field
    shown = submission(refusal=BadUsage(cause, "Do this."), script="a")
    text = shown.errors[field]
    assert text.endswith(". Do this.")
    assert [row.name for row in shown.rows if row.error] == [field] * (
        field in {row.name for row in shown.rows}
    )
    assert (shown.forecast.error, shown.forecast.sentence) == ("" if field else text, "")


def test_the_forecast_says_when_and_where_and_what_would_start_it_now():
    shown = submission(AT_ONCE, script="/a/b", gpus="0.5").forecast
    assert shown.sentence == "At once, on half of GPU 6 RTX A6000; it ends by 16:23."
    assert shown.offers == ()
    assert shown.command == "cd /a && fgsub --gpus=0.5 /a/b"
    start = ExpectedStart(latest=NOW + 3600, likely=NOW + 1200)
    waits = submission(replace(WAITS, start=start), script="/a/b").forecast
    assert waits.sentence == "By 15:23, likely 14:43."
    assert waits.lines[0].startswith("needs one whole GPU; GPU 2 has 0.05 left; lifted when job 41040 ends")
    assert [(offer.label, offer.set) for offer in waits.offers] == [("Use 0.5", "gpus=0.5")]
    assert submission(WAITS, script="/a/b").forecast.sentence.startswith("It would wait; start time unknown")
    host = submission(replace(AT_ONCE, holds=()), script="/a/b").forecast
    assert host.sentence == "At once, without a GPU; it ends by 16:23."


def test_earlier_runs_of_the_name_are_hints():
    hints = {row.name: (row.hint, row.offer) for row in submission(AT_ONCE, script="/a/b").rows if row.hint}
    assert hints == {"time": ("the last 1 runs took at most 1 h 52 min", "")}


def test_a_job_is_submitted_again_with_its_own_request_and_the_line_for_the_next_run():
    line = "fgsub --gpus=0.3 --gpu-mem=20G --signal=TERM@60 --hold train.sh --epochs '4 0'"
    request = Request(name="rl-atari", submit_dir="/home/nadia", chdir="/home/nadia", submit_line=line)
    fields = filled(replace(ENDED, request=request), "text", line="#FG --gpu-mem=22G --cpus-per-task=1")
    assert {name: text for name, text in fields.items() if text} == {
        "gpus": "0.3",
        "gpu-mem": "22G",
        "cpus-per-task": "1",
        "more": "--signal=TERM@60",
        "script": "/home/nadia/train.sh",
        "arguments": "--epochs '4 0'",
    }
    pasted = replace(request, submit_line="fgsub --gpus=1")
    fields = filled(replace(ENDED, request=pasted), "#!/bin/sh\n")
    assert (fields["text"], fields["chdir"]) == ("#!/bin/sh\n", "/home/nadia")
    assert job(ENDED, script="#!/bin/sh").again == "/submit?again=41080"
    assert job(ENDED, ANN, script="#!/bin/sh").again == ""


# -- an array, reports ---------------------------------------------------------------------------------


def test_an_array_shows_its_tasks_and_the_slowest():
    tasks = [
        replace(RUNNING, id=700 + at, array=700, task=at, elapsed=60.0 * at, state=state)
        for at, state in enumerate((JobState.COMPLETED, JobState.FAILED, JobState.RUNNING))
    ]
    waiting = replace(PENDING, id=700, array=700, task=None, tasks="3-15%4", started_at=None)
    data = ArrayData(look=look(), jobs=[waiting, *tasks])
    shown = array_page.context(data, visit("/array/700", viewer=NADIA))
    assert shown.lede == "16 tasks: 1 run, 13 wait, 2 have ended, of which 1 failed."
    assert [(state.word, count) for state, count in shown.counts[:1]] == [("pending", 13)]
    assert [task.label for task in shown.tasks] == ["0", "1", "2", "3-15"]
    assert [task.label for task in shown.slowest][:2] == ["2", "1"]
    assert [action.verb for action in shown.actions] == ["cancel"]


def test_a_report_has_links_to_its_periods_and_the_command():
    data = ReportData(name="waits", text="GPU report")
    shown = reports_page.context(data, visit("/reports/waits", query={"since": "-7d"}))
    assert shown.line == "fgreport waits --since -7d"
    assert [link.label for link in shown.periods if link.is_current] == ["7 days"]
    assert set(reports_page.KINDS) == set(REPORTS)


# -- the host that keeps its users private -----------------------------------------------------------------


def test_a_read_only_page_of_a_private_host_shows_no_job_of_others():
    corridor = Viewer(uid=8, name="ann", read_only=True)
    private = look(operator=True, private_data=True)
    shown = confined(private, corridor)
    assert {job.uid for job in shown.frame.jobs} == {8}
    assert shown.frame.charged == pytest.approx(private.frame.charged)
    assert confined(private, ANN) is private
    assert confined(look(operator=True), corridor).frame.jobs == JOBS
    text = page("/", shown, visit(viewer=corridor))
    assert not [name for name in ("nadia", "farid", "rl-atari") if name in text]


# -- HTML ------------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    """The elements of a page: that each is closed, and which attributes and scripts there are."""

    VOID = ("meta", "link", "input", "rect", "line", "polyline", "circle", "br", "img")

    def __init__(self, text):
        super().__init__()
        self.open, self.names, self.attributes, self.ids, self.data = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open[-1:] == [tag], f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        self.data.append(data)


def nasty_job(text):
    request = Request(name="x")
    for name in ("name", "submit_dir", "submit_line"):
        force_setattr(request, name, text)  # as an old queue could have it
    return replace(
        RUNNING,
        name=text,
        user=text,
        partition=text,
        account=text,
        comment=text,
        unmet=text,
        warning=text,
        detail=text,
        note=text,
        request=request,
        allocated=[replace(part, model=text) for part in RUNNING.allocated],
        steps=[protocol.StateChange(1, NOW, text, text, text)],
    )


def every_page(text):
    """Each page with a text in every field that a user gives."""
    one = nasty_job(text)
    waiting = replace(PENDING, name=text, user=text, dependency=text)
    ended = replace(one, state=JobState.FAILED, ended_at=NOW, id=40_000)
    cards = look(jobs=[one, waiting])
    tail = FileTail(f"/tmp/{text}", plain(text), 8, 8, FileId(1, 2))
    explanation = replace(EXPLANATION, name=text, user=text)
    viewer = Viewer(uid=4, name=text)
    for path, data in {
        "/": cards,
        "/queue": QueueData(look=cards, ended=[ended]),
    }.items():
        yield page(path, data, visit(path, viewer=viewer, query={"q": text, "show": "all"}))
        yield page(path, data, visit(path, viewer=viewer, query={"show": text, "sort": text, "page": text}))
    task = replace(ended, array=39_000, task=3)
    yield page("/array/{job}", ArrayData(look=cards, jobs=[task]), visit("/array/39000", viewer=viewer))
    report = ReportData(name="me", text=text)
    yield page("/reports/{report}", report, visit("/reports/me", viewer=viewer, query={"since": text}))
    yield page("/reports", ReportData(), visit("/reports", viewer=viewer))
    for about in (one, waiting, ended):
        more = {"explanation": explanation} if about is waiting else {}
        data = JobData(look=cards, job=about, tail=tail, script=text, use=USE, **more)
        yield page("/job/{job}", data, visit("/job/7", viewer=viewer, job="7", query={"file": text}))
    yield page("/help", None, visit("/help", viewer=viewer))
    stranger = protocol.GpuProcessInfo(gpu=2, pid=7, memory=GIB, since=NOW, user=text, command=text)
    data = GpuData(look=cards, processes=[stranger])
    yield page("/gpu/{gpu}", data, visit("/gpu/2", viewer=viewer, gpu="2"))
    form = SubmissionWish(fields=dict.fromkeys(NAMES, text), home=text)
    asked = FormAnswer(wish=form, key=text, trial=WAITS, warnings=[text], headers=[text], again=text)
    refused = FormAnswer(wish=form, key=text, refusal=BadUsage(text, text))
    for data in (asked, refused, replace(refused, refusal=BadUsage(f"--gpus={text}"))):
        yield page("/submit", data, visit("/submit", viewer=viewer))


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_what_a_user_gave_is_text_on_every_page(text):
    for html in every_page(text):
        tags = Tags(html)
        scripts = [value for tag, name, value in tags.attributes if tag == "script" and name == "src"]
        assert tags.names.count("script") == len(scripts)
        own = [value.partition("?")[0] for value in scripts]
        assert own in (SCRIPTS, [*SCRIPTS, "/static/submit.js"])
        assert not [name for _, name, _ in tags.attributes if name.startswith("on") or name == "style"]
        links = [
            value for _, name, value in tags.attributes if name in ("href", "src", "action", "formaction")
        ]
        assert [value for value in links if value[:1] not in ("/", "#")] == []
        assert not [value for value in links if value[:2] == "//"]
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", html)
        html.encode()
        assert "49" not in "".join(tags.data) or "7 * 7" not in text


def test_every_page_has_one_heading_a_language_and_unique_names():
    for html in every_page("train"):
        tags = Tags(html)
        assert tags.names.count("h1") == 1
        assert ("html", "lang", "en") in tags.attributes
        assert len(tags.ids) == len(set(tags.ids))
        assert tags.names.count("th") == [name for _, name, _ in tags.attributes].count("scope")


def test_every_form_repeats_the_token_and_none_is_on_a_read_only_page():
    corridor = Viewer(uid=4, name="nadia", read_only=True)
    for html in every_page("train"):
        for form in re.findall(r'<form method="post".*?</form>', html, re.DOTALL):
            assert form.count('name="token" value="t0ken"') == 1
    data = JobData(look=look(), job=RUNNING)
    html = page("/job/{job}", data, visit("/job/7", viewer=corridor, job="7"))
    assert re.findall(r'<form method="post" action="([^"]+)"', html) == ["/ended"]


def test_the_pages_have_the_weight_of_a_page():
    assert len(page("/", look()).encode()) <= 30_000
    assert (STATIC / "page.css").stat().st_size <= 10 << 10
    assert sum((STATIC / name).stat().st_size for name in ("htmx.min.js", "live.js")) <= 45_000
    assert (STATIC / "submit.js").stat().st_size <= 4_000
    assert len((STATIC / "live.js").read_text().splitlines()) <= 120


def test_the_colours_are_those_of_the_reports():
    names = {
        "bg": "page",
        "alt": "code",
        "ink": "ink",
        "soft": "soft",
        "line": "rule",
        "good": "good",
        "bad": "bad",
    }
    names |= {"freeline": "outline", "on": "on_active"}
    classes = {"active": "active", "held": "held-idle", "empty": "reserved-empty", "free": "free"}
    classes |= {"external": "external", "down": "down"}
    style = (STATIC / "page.css").read_text()
    light, dark = (
        dict(re.findall(r"--(\w+):(#\w+)", one)) for one in re.findall(r":root\{(.*?)\}", style)[:2]
    )
    for shown, palette in ((light, LIGHT), (dark, DARK)):
        expected = {name: getattr(palette, field) for name, field in names.items()}
        expected |= {name: palette.classes[kind] for name, kind in classes.items()}
        assert {name: _long(shown[name]) for name in expected} == expected


def _long(colour):
    return "#" + "".join(2 * digit for digit in colour[1:]) if len(colour) == 4 else colour
