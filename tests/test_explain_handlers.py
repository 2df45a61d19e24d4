"""fgq --why and --start, fgsub --test-only: what keeps a job waiting, what helps, and when it starts."""

import json
import re
import time
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from awaiting import rest
from live_host import Home, living

STARTS = ["JOBID", "PARTITION", "NAME", "USER", "ST", "START_TIME", "LIKELY_START"]
STARTS += ["KNOWN", "GPUS", "GPU(REASON)"]
SQUEUE = ["JOBID", "PARTITION", "NAME", "USER", "ST", "START_TIME", "NODES", "SCHEDNODES"]
SQUEUE += ["NODELIST(REASON)"]
TIME = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d"


@pytest.fixture
def home(tmp_path):
    with living(tmp_path / "home") as one:
        yield one


def script(home: Home, *options: str) -> str:
    path = home.path / "job.sh"
    path.write_text("#!/bin/sh\n" + "".join(f"#FG {option}\n" for option in options) + "true\n")
    return str(path)


def plain(text: str) -> str:
    return re.sub(TIME, "TIME", text)


def test_every_blocker_is_told_with_figures_what_lifts_it_and_a_smaller_request(home):
    home.running(share=4500, time_limit=3600)
    home.running(share=6000)  # on the other card
    home.submit(share=7500, name="eval")
    done = home.run("fgq", "--why", "3")
    user = home.job(3)["user"]
    assert plain(done.out) == (
        f"Job 3 (eval, {user}) waits: GpuFragmented\n"
        "  needs 0.75 of one GPU; 0.95 is free in total, at most 0.55 on one GPU\n"
        "    lifted when job 1 ends, by TIME at the latest\n"
        "  starts by TIME at the latest\n"
        "  --gpus=0.55 instead of 0.75 starts now on GPU 0:\n"
        "    fgctl update job=3 gpus=0.55\n"
    )


MOST_MEMORY = {"gpus": 1, "share": 1000, "memory": 12 << 30}
ONE, TWO = "sim:1x16G", "sim:2x16G"


@pytest.mark.parametrize(
    ("gpus", "first", "wish"),
    [
        (ONE, {"share": 6000}, {"share": 7500}),
        (ONE, {"share": 6000, "time_limit": 7200}, {"share": 10_000}),
        (ONE, {"demand": {"gpus": 1, "share": 2500, "cpus": 60}}, {"demand": {"cpus": 30}}),
        (ONE, {"demand": MOST_MEMORY}, {"demand": {"gpus": 1, "memory": 8 << 30}}),
        (TWO, {"share": 10_000}, {"demand": {"gpus": 2, "share": 10_000}}),
    ],
)
def test_whoever_follows_the_advice_starts(tmp_path, gpus, first, wish):
    with living(tmp_path / "home", devices=gpus) as home:
        home.running(**first)
        waiting = home.submit("exit 0", **wish)
        (told,) = home.run("fgq", "--json", "--why", str(waiting)).json["jobs"]
        assert told["advice"], told
        changed = home.run("fgctl", "update", f"job={waiting}", told["advice"][0]["update"])
        assert (changed.status, changed.err) == (0, "")
        assert home.wait(waiting)[0]["state"] == "COMPLETED"


def test_a_job_behind_a_reservation_is_told_whose_it_is_and_how_short_it_would_have_to_be(tmp_path):
    with living(tmp_path / "home", devices="sim:1x16G") as home:
        home.running(share=5000, time_limit=7200)
        home.submit(share=10_000)
        home.submit(share=2500)
        told = plain(home.run("fgq", "--why", "3").out)
        assert "fits now, but would delay a job with higher priority\n" in told
        assert "    lifted when job 2 has started, by TIME at the latest\n" in told
        assert "  --time=1:59:00 instead of UNLIMITED starts now on GPU 0:\n" in told
        assert home.run("fgctl", "update", "job=3", "timelimit=1:59:00").status == 0
        assert home.wait(3)[0]["state"] == "COMPLETED"


def test_an_instant_is_shown_in_the_readers_time_zone_and_format(home):
    """The sentences are made in the client: one time zone in one answer, whatever the controller's is."""
    home.running(share=10_000, time_limit=3600)
    home.running(share=10_000, time_limit=7200)
    home.submit(share=10_000)
    at = home.run("fgq", "--json", "--why", "3").json["jobs"][0]["blockers"][0]["at"]
    for zone, form in (("Asia/Tokyo", "%d.%m. %H:%M"), ("America/New_York", "%m/%d %I:%M %p")):
        said = home.run("fgq", "--why", "3", env={"TZ": zone, "FG_TIME_FORMAT": form}).out
        local = datetime.fromtimestamp(at, ZoneInfo(zone)).strftime(form)
        assert re.findall(r"by (.*) at the latest", said) == [local, local]


def test_one_that_is_held_is_told_how_it_is_released(home):
    job = home.submit(hold=True)
    told = home.run("fgq", "--why", str(job)).out
    assert told.endswith("  held; its owner can release it\n    lifted with fgctl release 1\n"), (
        "more would be untrue"
    )


def test_one_that_waits_for_another_is_told_for_which(home):
    home.running()
    home.submit(dependency="afterok:1")
    assert "waits for afterok:1" in home.run("fgq", "--why", "2").out


def test_a_dependency_that_can_never_be_met_is_told_with_the_command_that_removes_it(home):
    ended = home.submit(hold=True)
    home.run("fgcancel", str(ended))
    job = home.submit(dependency=f"afterok:{ended}")
    told = home.run("fgq", "--why", str(job)).out
    command = f"fgctl update job={job} dependency="
    assert told.endswith(
        f"  dependency afterok:{ended} can never be met: 1 is CANCELLED\n    lifted with {command}\n"
    )
    assert home.run(*command.split()).status == 0
    assert home.wait(job)[0]["state"] == "COMPLETED"


def test_the_task_that_broke_a_dependency_on_an_array_is_named(home):
    array = int(
        home.run("fgsub", "--parsable", "--array=1-3", "--wrap", "exit $((FG_ARRAY_TASK_ID == 2))").out
    )
    home.run("fgwait", str(array))
    job = home.submit(dependency=f"afterok:{array}")
    assert f"can never be met: {array}_2 is FAILED\n" in home.run("fgq", "--why", str(job)).out


def test_without_a_name_it_is_about_all_of_mine_that_wait(home):
    assert home.run("fgq", "--why").out == "You have no pending jobs.\n"
    home.running(share=10_000)
    home.running(share=10_000)
    home.submit(share=10_000, count=2)
    assert re.findall(r"^Job (\d+)", home.run("fgq", "--why").out, re.MULTILINE) == ["3", "4"]


def test_a_job_that_does_not_wait_is_told_so(home):
    job = home.running()
    assert "is not pending: it is RUNNING" in home.run("fgq", "--why", str(job)).out


def test_an_unknown_job_is_refused(home):
    done = home.run("fgq", "--why", "99")
    assert done.status == 3
    assert "Invalid job id specified: 99" in done.err


def test_a_name_without_why_is_refused(home):
    done = home.run("fgq", "18")
    assert (done.status, done.out) == (2, "")
    assert "--why" in done.err


def test_starts_are_told_in_their_order(home):
    for _ in range(2):
        home.running(share=10_000, time_limit=3600)
    home.submit(share=10_000, time_limit=600, count=3)
    done = home.run("fgq", "--start")
    heading, *lines = [line.split() for line in done.lines]
    assert heading == STARTS
    waiting = [line for line in lines if line[4] == "PD"]
    starts = [line[5] for line in waiting]
    assert [line[0] for line in waiting] == ["3", "4", "5"]
    assert starts == sorted(starts)
    assert all(re.fullmatch(TIME, start) for start in starts)
    assert starts[2] > starts[1], "the third has to wait for a third card"


def test_a_job_behind_one_without_a_limit_has_no_start(home):
    for _ in range(2):
        home.running(share=10_000)
    home.submit(share=10_000)
    assert home.run("fgq", "-h", "-j", "3", "--start").lines[0].split()[5:7] == ["N/A", "N/A"]
    assert "start time unknown: a job ahead of it has no time limit" in home.run("fgq", "--why", "3").out


def test_of_a_job_that_is_to_wait_for_its_time_only_that_is_told(home):
    assert home.run("fgsub", "-J", "later", "--begin=now+1hour", "--wrap", "true").status == 0
    user = home.job(1)["user"]
    said = plain(home.run("fgq", "--why").out)
    assert said == f"Job 1 (later, {user}) waits: BeginTime\n  not before TIME\n"


def test_runs_that_the_running_job_has_outlived_tell_nothing(home):
    for _ in range(3):
        home.ended(name="train", time_limit=36_000)
    home.running(share=10_000, name="train", time_limit=36_000)
    home.running(share=10_000, name="train", time_limit=36_000)
    home.submit(share=10_000)
    while home.job(4)["elapsed"] <= max(home.job(number)["elapsed"] for number in (1, 2, 3)):
        rest()
    said = home.run("fgq", "--json", "--why", "6").json["jobs"][0]["start"]
    assert (said["known"], said.get("likely"), said["before"]) == (0, None, 1)
    assert "likely" not in home.run("fgq", "--why", "6").out


def test_what_is_likely_follows_from_earlier_runs_of_the_jobs_ahead(home):
    """The first of two jobs that wait has earlier runs, and is shorter than its limit."""
    for _ in range(3):
        home.ended(name="train", time_limit=36_000)
    for _ in range(2):
        home.running(share=10_000, name="other", time_limit=60)
    for _ in range(2):
        home.submit(share=10_000, name="train", time_limit=36_000)
    last = home.submit(share=10_000, time_limit=60)
    said = home.run("fgq", "--json", "--why", str(last)).json["jobs"][0]["start"]
    assert said["known"] > 0
    assert said["likely"] < said["latest"] - 30_000, "those before it were over within a second"
    assert f"earlier runs are known of {said['known']} of the" in home.run("fgq", "--why", str(last)).out


def slurm(home, *words):
    done = home.run(*words)
    assert done.status == 0, done.err
    return done.out


@pytest.mark.parametrize("kind", ["behind a job with a limit", "begins later"])
def test_the_start_of_a_pending_job_is_the_same_wherever_it_is_shown(home, kind):
    if kind == "begins later":
        assert home.run("fgsub", "--begin=now+2hours", "--wrap", "true").status == 0
    else:
        for _ in range(2):
            home.running(share=10_000, time_limit=3600)
        home.submit(share=10_000)
    job = str(max(job.id for job in home.queue("id")))
    expected = slurm(home, "squeue", "-h", "-j", job, "--start", "-o", "%S").strip()
    assert re.fullmatch(TIME, expected)
    assert slurm(home, "squeue", "-h", "-j", job, "-o", "%S").strip() == expected
    assert slurm(home, "squeue", "-h", "-j", job, "-O", "StartTime").strip() == expected
    assert f"StartTime={expected} " in slurm(home, "scontrol", "show", "job", job)
    assert f"StartTime={expected} " in home.run("fgctl", "show", "job", job).out
    assert expected in home.run("fgq", "-h", "-j", job, "--start").out
    seconds = json.loads(slurm(home, "squeue", "--json", "-j", job))["jobs"][0]["start_time"]
    number = seconds if isinstance(seconds, int) else seconds["number"]
    assert time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(number)) == expected


def test_the_columns_of_squeue_start_are_its_own(home):
    done = home.run("fgq", "--start", "--slurm-columns")
    assert done.lines[0].split() == SQUEUE


def test_test_only_tells_where_a_job_would_start_and_queues_nothing(home):
    done = home.run("fgsub", "--test-only", script(home, "--gpus=0.5"))
    assert (done.status, done.out) == (0, "")
    assert plain(done.err) == "fgsub: Job 1 to start at TIME on GPU 0 (0.5, 8192 MiB) in partition main\n"
    assert len(home.run("fgq", "-h").lines) == 0
    assert home.ended() == 1, "no number was used up"


def test_test_only_tells_what_a_job_would_wait_for_and_until_when(home):
    for _ in range(2):
        home.running(share=10_000, time_limit=3600)
    done = home.run("fgsub", "--test-only", script(home, "--gpus=0.5"))
    assert done.status == 0
    assert plain(done.err) == (
        "fgsub: Job 3 to start at TIME on GPU 0 in partition main, at the latest\n"
        "  needs 0.5 of one GPU; GPU 0 has 0 left\n"
        "    lifted when job 1 ends, by TIME at the latest\n"
    )


def test_test_only_refuses_what_could_never_run(home):
    done = home.run("fgsub", "--test-only", script(home, "--gpus=3"))
    assert done.status == 1
    assert "Batch job submission failed" in done.err


def test_a_script_cannot_say_test_only_of_itself(home):
    assert home.run("fgsub", script(home, "--test-only")).status == 2


def test_a_task_of_an_array_is_named_as_the_queue_shows_it(home):
    home.running(array="3", share=10_000, time_limit=3600)
    waiting = home.submit(share=10_000, demand={"gpus": 2, "share": 10_000})
    done = home.run("fgq", "--why", str(waiting))
    assert "    lifted when job 1_3 ends, by TIME at the latest\n" in plain(done.out)
