"""fgacct: what jobs did, in sacct's columns and for programs."""

import os
import pwd
import re
import sqlite3
import time
from functools import partial

import msgspec
import pytest

from fgsched import protocol
from fgsched.cli.fgacct import Window, _window, in_order
from fgsched.client import Client
from fgsched.domain.states import JobState
from fgsched.views import columns, documents, fields
from fgsched.views.listing import Delimited
from fgsched.views.options import ACCOUNTING
from jobinfos import completed
from live_host import Home, living, zone_at_noon

ME = pwd.getpwuid(os.geteuid()).pw_name
DASHES = "------------ ---------- ---------- --------- -------- ---------- ---------- ---------- --------"
HEADER = "JobID           JobName  Partition      User   ReqGPU  MaxGPUMem    Elapsed      State ExitCode"
GIB = 1 << 30


@pytest.fixture(scope="module")
def accounts(tmp_path_factory):
    """1 exited with 3, 2 was killed by TERM, 3 was cancelled while it waited, 4 runs, 5 is held."""
    with living(tmp_path_factory.mktemp("accounts") / "home") as home:
        home.ended("exit 3", name="a-long-name-of-a-job", comment="say=x,y")
        home.ended("kill -TERM $$", name="shot")
        cancelled = home.submit(hold=True, name="=1+1", submit_line="fgsub --wrap 'a | b'")
        home.client.ask("cancel", ids=[cancelled])
        home.running(name="train", share=5000, time_limit=5400)
        home.submit(name="later", hold=True, share=0)
        yield home


def cells(done):
    return [line.split("|") for line in done.lines]


def record(**changes):
    """A finished job that held a quarter of a card for half an hour."""
    gpu = {"gpu": 3, "uuid": "GPU-x", "model": "H100", "share": 2500, "memory": 4 * GIB, "charged": 5000}
    base = {
        **{"id": 7, "uid": 0, "gid": 0, "user": "ann", "state": "COMPLETED", "reason": "None", "attempt": 1},
        **{
            "submitted_at": 10.0,
            "eligible_at": 12.0,
            "started_at": 20.0,
            "ended_at": 30.0,
            "elapsed": 1800.0,
            "tier": "shim",
        },
        **{"exit_code": 0, "signal": 0, "gpu_peak": GIB, "max_rss": 1, "cpu_seconds": 61.5},
        **{"cancelled_by": None, "is_private": False, "allocated": [gpu], "restarts": 0, "suspended": 0.0},
        **{"array": None, "task": None, "tasks": None},
        "request": {"name": "job", "demand": {"gpus": 1, "share": 2500, "cpus": 4}, "chdir": "/home/ann"},
    }
    return completed(msgspec.convert(base | changes, protocol.JobInfo))


def shown(name, unit="M", **changes):
    column = columns.of_accounts(name, unit).pieces[0].column
    return column.cell(record(**changes))


def test_without_jobs_there_is_only_the_heading(home: Home):
    done = home.run("fgacct", env=zone_at_noon())
    assert (done.status, done.lines, done.err) == (0, [HEADER, DASHES], "")


def test_the_script_of_a_job_is_printed_once_however_many_steps_it_has(accounts):
    shown = accounts.run("fgacct", "--steps", "-B", "-j", "1").lines
    assert [line for line in shown if line.startswith("Batch Script")] == ["Batch Script for 1"]


def test_the_usual_columns_are_sacct_s_and_cuts_are_marked(accounts):
    lines = accounts.run("fgacct", env=zone_at_noon()).lines
    assert lines[:2] == [HEADER, DASHES]
    assert re.sub(r"00:00:\d\d", "00:00:00", lines[2]) == (
        f"1            a-long-na+       main {ME:>9}     0.25              00:00:00     FAILED      3:0"
    )
    assert lines[3].split()[-2:] == ["FAILED", "0:15"]
    assert lines[4].split()[-2:] == ["CANCELLED+", "0:0"]
    assert [line.split()[0] for line in lines[2:]] == ["1", "2", "3", "4", "5"]


def test_who_cancelled_is_told(accounts):
    done = accounts.run("fgacct", "-n", "-P", "-j", "3", "-o", "State,Start,Reason")
    assert done.out == f"CANCELLED by {os.geteuid()}|None|None\n"


def test_brief_is_id_state_and_code(accounts):
    assert accounts.run("fgacct", "-b", "-n", "-j", "1-2").lines == [
        "1                FAILED      3:0",
        "2                FAILED     0:15",
    ]


def test_the_long_list_tells_what_was_held_and_why_it_ended(accounts):
    done = accounts.run("fgacct", "-l", "-P", "-j", "1,4", "--noconvert")
    heading, first, second = cells(done)
    ended, runs = (dict(zip(heading, row, strict=True)) for row in (first, second))
    assert (ended["ReqGPU"], ended["ReqGPUMem"], ended["GPUIdx"]) == ("0.25", str(4 * GIB), "0")
    assert (ended["Reason"], ended["Enforce"], ended["Timelimit"]) == ("NonZeroExitCode", "shim", "UNLIMITED")
    assert (runs["End"], runs["State"], runs["Timelimit"]) == ("Unknown", "RUNNING", "01:30:00")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-a",), "12345"),
        (("-u", ME), "12345"),
        (("-u", "nobody"), ""),
        (("-S", "now+0", "-E", "now"), "45"),
        (("-S", "-1h", "-s", "F"), "12"),
        (("-S", "-1h", "-s", "failed,CA"), "123"),
        (("-S", "-1h", "-s", "R"), "124"),
        (("-S", "-1h", "-s", "SUSPENDED"), ""),
        (("-S", "-1h", "-E", "now-50minutes"), ""),
        (("-s", "PD", "-j", "1-5"), "12345"),
        (("-s", "CA", "-j", "1-5"), "3"),
        (("-X", "-j", "5,1"), "51"),
    ],
)
def test_the_window_and_the_states_choose_the_jobs(accounts, words, expected):
    done = accounts.run("fgacct", "-n", "-P", "-o", "JobID", *words, env=zone_at_noon())
    assert (done.status, "".join(done.lines), done.err) == (0, expected, "")


def test_states_without_a_window_are_those_of_this_moment_and_a_note_says_so(accounts):
    done = accounts.run("fgacct", "-n", "-P", "-o", "JobID", "-s", "R,PD,F")
    assert (done.status, done.lines) == (0, ["4", "5"])
    assert done.err.startswith("fgacct: note: -s without -S ")


def test_an_unknown_id_is_an_error_and_the_others_are_shown(accounts):
    done = accounts.run("fgacct", "-n", "-P", "-o", "JobID", "-j", "2,77")
    assert (done.status, done.out) == (3, "2\n")
    assert done.err == "fgacct: error: Invalid job id specified: 77\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-S", "now+1hour"), "the window begins in the future"),
        (("-S", "2026-01-02", "-E", "2026-01-01"), "the window ends before it begins"),
        (("-S", "yesterdayish"), "yesterdayish is not a time"),
        (("-o", "Nonsense"), "unknown field Nonsense"),
        (("-o", "JobID%x"), "JobID%x is not a field"),
        (("-o", "Priority"), "unknown field Priority"),
        (("--units=P",), "--units=P: give K, M or G"),
        (("-P", "--delimiter="), "--delimiter is empty"),
        (("-b", "-l"), "give one of them"),
        (("-j", "x"), "x is not a job id"),
        (("--physics", "x"), "No such option"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(accounts, words, said):
    done = accounts.run("fgacct", *words)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("fgacct: error: ")
    assert said in done.err.splitlines()[0]


@pytest.mark.parametrize(
    ("changes", "eligible", "planned"),
    [
        ({}, "1970-01-01T00:00:12", "00:00:08"),
        ({"started_at": None}, "1970-01-01T00:00:12", ""),
        ({"eligible_at": None, "started_at": None}, "Unknown", ""),
        ({"eligible_at": 25.0}, "1970-01-01T00:00:25", "00:00:00"),
    ],
)
def test_what_a_job_waited_is_counted_from_when_it_could_start(monkeypatch, changes, eligible, planned):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert (shown("Eligible", **changes), shown("Planned", **changes)) == (eligible, planned)


def test_the_list_of_fields_has_those_that_can_be_shown(accounts):
    names = accounts.run("fgacct", "-e").out.split()
    assert sorted(accounts.run("fgacct", "-P", "-o", "ALL").lines[0].split("|")) == sorted(names)
    assert "MaxGPUMem" in names
    done = accounts.run("fgacct", "-P", "-j", "1", "-o", ",".join(names))
    assert done.lines[0] == "|".join(names)
    row = dict(zip(names, done.lines[1].split("|"), strict=True))
    assert row["StdOut"] == row["StdErr"] == f"{accounts.path}/fg-1.out"
    assert row["WorkDir"] == str(accounts.path)


def test_delimiters_do_not_come_up_in_fields(accounts):
    done = accounts.run("fgacct", "-p", "-n", "-j", "3", "-o", "JobName,SubmitLine")
    assert done.out == "=1+1|fgsub --wrap 'a ? b'|\n"
    done = accounts.run("fgacct", "-P", "-n", "--delimiter=,", "-j", "1,3", "-o", "JobName,Comment")
    assert done.lines == ['a-long-name-of-a-job,"say=x,y"', "'=1+1,"]


def test_json_has_numbers_nulls_and_times_of_both_kinds(accounts):
    answer = accounts.run("fgacct", "--json", "-j", "1,3-4").json
    failed, cancelled, train = answer["jobs"]
    assert (failed["state"], failed["exit_code"], failed["signal"]) == ("FAILED", 3, 0)
    assert (failed["req_gpu"], failed["alloc_gpu"], failed["req_gpu_mem"]) == (0.25, 0.25, 4 * GIB)
    assert (failed["max_gpu_mem"], failed["gpu_idx"], failed["oom_kind"]) == (None, [0], None)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+0000", failed["end_time_iso"])
    assert (cancelled["cancelled_by"], cancelled["start_time"]) == (os.geteuid(), None)
    assert (train["end_time"], train["time_limit"]) == (None, 5400)


def test_a_history_of_many_pages_is_shown_whole(home):
    home.submit(count=1203, hold=True)
    done = home.run("fgacct", "-n", "-P", "-o", "JobID", env=zone_at_noon())
    assert done.lines == [str(job) for job in range(1, 1204)]
    assert len(home.run("fgacct", "-n", "-P", "-o", "JobID", "-j", "1-1203").lines) == 1203


def test_the_tasks_of_an_array_are_together_in_order_though_their_rows_are_not():
    """The rows of array 1 are 1 (its last task), 2 and 4; the page ends before row 5."""
    rows = {1: [record(id=2, array=1, task=0), record(id=4, array=1, task=1), record(id=1, array=1, task=2)]}
    asked, known = [], set()

    def rows_of(arrays):
        asked.extend(arrays)
        return [row for array in arrays for row in rows[array]]

    page = [rows[1][2], rows[1][0], record(id=3), rows[1][1]]
    assert [job.id for job in in_order(page, rows_of, known)] == [2, 4, 1, 3]
    assert [job.id for job in in_order([record(id=5, array=1, task=9)], rows_of, known)] == []
    assert (asked, known) == ([1], {1})
    assert [job.id for job in in_order([record(id=6, array=6)], lambda arrays: [], known)] == [6]


# -- without a process ------------------------------------------------------------------------------------


def test_hours_are_charged_for_the_larger_of_share_and_memory():
    assert shown("GPUHours") == "0.2500"
    assert shown("WastedGPUMemHours") == "1.5000"


def test_what_was_sampled_of_a_job_is_shown_and_what_was_not_is_empty():
    sums = {"sampled": 1000.0, "charged": 250.0, "active": 100.0, "held": 90.0, "empty": 60.0, "used": 72.0}
    rest = {"memory": 3000.0 * GIB, "peak": 4 * GIB, "with_process": 1.0, "busy": 1.0, "longest_idle": 1.0}
    usage = sums | rest | {"energy": 1234.5}
    names = ("AveGPUMem", "AveGPUUtil", "EnergyJ", "GPUHoursIdle", "GPUHoursUsed")
    assert [shown(name, usage=usage) for name in names] == ["3072M", "7.2", "1234", "0.0417", "0.0200"]
    assert shown("EnergyJ", usage=usage | {"energy": None}) == ""
    assert [shown(name) for name in names] == [""] * 5


def test_what_nothing_measured_is_empty_and_not_zero():
    assert shown("MaxGPUMem", tier="none") == ""
    assert shown("WastedGPUMemHours", allocated=[]) == ""
    assert shown("ReqGPU", allocated=[], request={"name": "x", "demand": {"gpus": 1, "memory": 1}}) == ""


@pytest.mark.parametrize(
    ("reason", "kind"), [("GpuOutOfMemory", "gpu"), ("OutOfMemory", "host"), ("NonZeroExitCode", "")]
)
def test_which_memory_ran_out_is_told(reason, kind):
    assert shown("OOMKind", state="OUT_OF_MEMORY", reason=reason) == kind


def test_only_a_job_that_ran_out_of_memory_has_a_kind():
    assert shown("OOMKind", state="FAILED", reason="OutOfMemory") == ""


@pytest.mark.parametrize("reason", ["Priority", "Resources"])
def test_waiting_for_ones_turn_is_not_kept_as_a_reason(reason):
    assert shown("Reason", reason=reason) == "None"


@pytest.mark.parametrize(
    ("size", "unit", "expected"),
    [
        (0, "G", "0"),
        (1, "M", "1M"),
        (GIB, "M", "1024M"),
        (3 * GIB // 2, "G", "1.50G"),
        (1, "G", "0.01G"),
        (1025, "K", "2K"),
        (1025, "", "1025"),
    ],
)
def test_memory_is_rounded_up_in_the_unit_asked_for(size, unit, expected):
    assert fields.amount(size, unit) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CPUTime", "02:00:00"),
        ("TotalCPU", "01:01.500"),
        ("Elapsed", "00:30:00"),
        ("ElapsedRaw", "1800"),
        ("AllocGPU", "0.25"),
        ("GPUIdx", "3"),
        ("GPUType", "H100"),
        ("Restarts", "0"),
        ("PreemptedBy", ""),
        ("DerivedExitCode", "0:0"),
        ("StdOut", "/home/ann/fg-7.out"),
    ],
)
def test_a_record_becomes_its_text(name, expected):
    assert shown(name) == expected


def attributes_read(show, job):
    """The attributes of a job that a function reads."""
    read = set()

    class Spy:
        def __getattr__(self, name):
            read.add(name)
            return getattr(job, name)

    show(Spy())
    return read


@pytest.mark.parametrize("job", [record(), record(state="PENDING", allocated=[], started_at=None)])
def test_every_attribute_that_a_column_or_the_document_reads_is_asked_for(job):
    asked = set(documents.fields(documents.keys_of("fgacct")))
    for column in fields.ACCOUNTS:
        assert attributes_read(column.cell, job) - {"step"} <= set(column.fields), column.heading
    assert attributes_read(partial(documents.record, documents.keys_of("fgacct")), job) <= asked


@pytest.mark.parametrize("name", ["Comment", "WorkDir", "SubmitLine", "StdOut", "StdErr"])
def test_what_is_the_owners_is_empty_for_others(name):
    assert shown(name, is_private=True) == ""


def test_a_job_was_pending_until_it_started_and_running_until_it_ended():
    job = record()  # pending from 10 to 20, running to 30
    pending, running = {JobState.PENDING}, {JobState.RUNNING}
    assert Window(20, 40, pending).has(job)
    assert not Window(21, 40, pending).has(job)
    assert not Window(0, 19, running).has(job)
    assert Window(0, 20, running).has(job)
    assert Window(30, 40, {JobState.COMPLETED}).has(job)
    assert not Window(31, 40, {JobState.COMPLETED}).has(job)
    assert not Window(15, 29, {JobState.COMPLETED}).has(job)
    assert not Window(0, 40, {JobState.FAILED}).has(job)
    assert not Window(0, 40, set()).has(job)
    assert Window(30, 40, None).has(job)


def test_a_width_says_on_which_side_a_column_is():
    wide, left = columns.of_accounts("JobName%20,State%-15").pieces
    assert (wide.width, wide.right, left.width, left.right) == (20, True, 15, False)


def test_csv_is_quoted_as_its_rfc_says():
    table = Delimited(",")
    chosen = [piece.column for piece in columns.of_accounts("JobName,Comment").pieces]
    job = record(request={"name": 'say "x"', "comment": "@cmd", "demand": {}})
    assert list(table.lines([job], chosen, header=False)) == ['"say ""x""",\'@cmd']


def test_jobs_from_before_the_clock_was_set_back_are_shown(home):
    ended, waits = home.ended(), home.submit(hold=True)
    home.run("fgsched", "stop")
    with sqlite3.connect(home.paths.queue) as db:
        db.execute("UPDATE job SET submitted_at = submitted_at + 86400, ended_at = ended_at + 86400")
    db.close()
    shown = cells(home.run("fgacct", "-nP", "-o", "JobID", env=zone_at_noon()))
    assert [row[0] for row in shown] == [str(ended), str(waits)]
    assert cells(home.run("fgacct", "-nP", "-o", "JobID", "-s", "PD")) == [[str(waits)]]
    assert home.run("fgacct", "-nP", "-E", "now", env=zone_at_noon()).lines == []
    with Client(home.paths) as client:
        assert len(client.call(protocol.ListHistory(fields=("id",))).jobs) == 2


def test_a_job_that_never_started_was_never_running():
    waits = record(state="PENDING", started_at=None, ended_at=None)
    window = _window(ACCOUNTING.read(["-S", "1970-01-02", "-s", "R"])[0], everything=False)
    assert not window.has(waits)
