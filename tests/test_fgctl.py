"""fgctl: what it shows of a job, and what it changes."""

import os
import time

import pytest

from fgsched import protocol
from fgsched.cli.runningjob import wait_until_running
from fgsched.domain.errors import Exit
from live_host import Done, living


def pairs(text):
    """The Key=Value pairs of what fgctl shows; two blanks are between them."""
    found = {}
    for line in text.splitlines():
        for pair in line.strip().split("  "):
            key, _, value = pair.partition("=")
            found.setdefault(key, value)
    return found


def job(home, job_id):
    return home.job(job_id)


def test_a_job_is_shown_with_all_that_it_was_given(home):
    one = home.running(name="train", share=2500, comment="first try")
    shown = pairs(home.run("fgctl", "show", "job", str(one)).out)
    expected = {
        **{"JobId": str(one), "JobName": "train", "JobState": "RUNNING", "ExitCode": "0:0", "NumCPUs": "1"},
        **{"ReqGpus": "1", "ReqFraction": "0.25", "GpuIdx": "0", "GpuFraction": "0.25", "GpuMem": "4096M"},
        **{"GpuMemPeak": "Unknown", "Enforce": "shim", "TimeLimit": "UNLIMITED", "Comment": "first try"},
        **{"WorkDir": str(home.path), "StdOut": f"{home.path}/fg-{one}.out", "StdIn": "/dev/null"},
    }
    assert expected.items() <= shown.items()
    assert shown["GpuUuid"].startswith("GPU-")


def test_times_are_shown_in_the_form_of_fg_time_format(home):
    job = home.submit(hold=True)
    shown = home.run("fgctl", "show", "job", str(job), env={"FG_TIME_FORMAT": "year %Y"}).out
    year = time.localtime(home.job(job)["submitted_at"]).tm_year
    assert f"SubmitTime=year {year}" in shown


def test_a_waiting_job_is_shown_with_why_it_waits(home):
    first = home.running(share=10_000)
    second = home.running(share=10_000)
    one = home.submit(share=5000)
    shown = pairs(home.run("fgctl", "show", "job", str(one)).out)
    assert shown["Reason"] == "Resources"
    assert shown["Why"].startswith("needs 0.5 of one GPU")
    assert {job(home, each)["state"] for each in (first, second)} == {"RUNNING"}


def test_the_events_of_a_job_are_shown_in_their_order(home):
    out = home.run("fgctl", "show", "job", str(home.ended("exit 3"))).out
    steps = [line.split(",")[2] for line in out.splitlines() if "Event=" in line]
    assert steps == ["PENDING->CONFIGURING", "CONFIGURING->RUNNING", "RUNNING->FAILED"]


def test_one_line_holds_one_job(home):
    home.submit(count=2, hold=True)
    lines = home.run("fgctl", "show", "-o", "job").lines
    assert [line.partition("  ")[0] for line in lines] == ["JobId=1", "JobId=2"]


def test_a_name_cannot_steer_the_terminal(home):
    one = home.submit(hold=True, name="\x1b]52;c;aGk=\x07x", comment="\u202eevil")
    out = home.run("fgctl", "show", "job", str(one)).out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "\u202e" not in out


def test_json_holds_the_same(home):
    one = home.ended("exit 3")
    (shown,) = home.run("fgctl", "show", "--json", "job", str(one)).json["jobs"]
    assert (shown["id"], shown["exit_code"], shown["state"]) == (one, 3, "FAILED")
    assert shown["submitted_at_iso"].startswith("20")


def test_gpus_partitions_and_settings_are_shown(home):
    home.running(share=2500)
    gpus = home.run("fgctl", "show", "gpu").out.split("\n\n")
    assert pairs(gpus[0])["FreeFraction"] == "0.75"
    assert pairs(gpus[1])["Jobs"] == ""
    assert pairs(home.run("fgctl", "show", "partition").out)["TotalCPUs"] == "64"
    assert pairs(home.run("fgctl", "show", "config").out)["kill_wait"] == "30"
    assert home.run("fgctl", "show", "gpu", "7").status == Exit.REFUSED
    assert home.run("fgctl", "show", "partition", "night").status == Exit.REFUSED


def test_a_held_job_waits_until_it_is_released(home):
    one = home.submit(hold=True)
    assert home.run("fgctl", "release", str(one)).status == 0
    assert home.wait(one)[0]["state"] == "COMPLETED"
    again = home.submit(hold=True)
    assert home.run("fgctl", "uhold", str(again)).status == 0
    assert job(home, again)["held"] == "user"


def test_what_does_not_wait_cannot_be_held(home):
    one = home.ended()
    done = home.run("fgctl", "hold", str(one), "99")
    assert done.status == Exit.NO_SUCH_JOB
    assert f"job {one} is no longer pending" in done.err


@pytest.mark.parametrize(
    ("word", "field", "value"),
    [
        ("Name=eval", "name", "eval"),
        ("comment=a b", "comment", "a b"),
        ("TimeLimit=2h", "time_limit", 7200),
        ("output=%j.log", "output", "%j.log"),
    ],
)
def test_a_pending_job_is_changed(home, word, field, value):
    one = home.submit(hold=True)
    assert home.run("fgctl", "update", f"job={one}", word) == home.run(
        "fgctl", "update", f"JobId={one}", word
    )
    assert job(home, one)["request"][field] == value


def test_what_a_job_needs_is_changed_in_one_step(home):
    one = home.submit(hold=True, share=2500)
    done = home.run("fgctl", "update", f"job={one}", "gpus=0.5", "gpu-mem=2G", "cpus=3", "mem=1G")
    assert (done.status, done.err) == (0, "")
    demand = job(home, one)["request"]["demand"]
    assert demand == {"gpus": 1, "share": 5000, "memory": 2 << 30, "cpus": 3, "host_memory": 1 << 30}


def test_a_change_to_no_gpu_takes_its_memory_away(home):
    one = home.submit(hold=True)
    assert home.run("fgctl", "update", f"job={one}", "gpus=0").status == 0
    assert job(home, one)["request"].get("demand", {}).get("gpus", 0) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["job=1", "gpus=0.55x"], "gpus=0.55x is not a number"),
        (["job=1", "wckey=5"], "wckey cannot be changed"),
        (["job=1"], "nothing to change"),
        (["name=x"], "update needs job=ID"),
        (["job=1", "name"], "name is not KEY=VALUE\nJoin the two with ="),
        (["job=1", "name=a", "JobName=b"], "JobName is given twice"),
    ],
)
def test_a_change_that_means_nothing_is_bad_usage(home, words, says):
    done = home.run("fgctl", "update", *words)
    assert (done.status, done.out) == (Exit.USAGE, "")
    assert says in done.err


def test_a_running_job_keeps_what_it_has(home):
    one = home.running()
    assert home.run("fgctl", "update", f"job={one}", "gpus=1").status == Exit.REFUSED
    assert home.run("fgctl", "update", f"job={one}", "name=later").status == 0


def test_a_drained_gpu_gets_no_jobs_until_it_is_resumed(home):
    assert home.run("fgctl", "drain", "gpu=0-1", "reason=fan is loud").status == 0
    one = home.submit()
    shown = pairs(home.run("fgctl", "show", "gpu", "0").out)
    assert shown["State"] == "drained"
    assert shown["Note"].startswith("fan is loud [")
    assert pairs(home.run("fgctl", "show", "job", str(one)).out)["Reason"] == "GpuDrained"
    assert home.run("fgctl", "resume", "gpu=1").status == 0
    assert home.wait(one)[0]["state"] == "COMPLETED"


@pytest.mark.parametrize("words", [["gpu=0"], ["reason=x"], ["gpu=x", "reason=y"], ["gpu=0", "why=y"]])
def test_a_drain_needs_a_gpu_and_a_reason(home, words):
    assert home.run("fgctl", "drain", *words).status == Exit.USAGE


def test_the_processes_of_a_job_are_listed(home):
    one = home.running()
    heading, *lines = home.run("fgctl", "listpids", str(one)).lines
    assert heading == "PID JOBID"
    assert lines
    assert all(os.path.exists(f"/proc/{line.split()[0]}") and line.endswith(f" {one}") for line in lines)
    two = home.running()
    both = home.run("fgctl", "listpids", f"{one}-{two}").lines
    assert both[: len(lines) + 1] == [heading, *lines]
    assert heading not in both[1:]


def test_the_script_is_written_as_it_was_queued(home):
    one = home.submit("echo hé", hold=True)
    script = "#!/bin/sh\necho hé\n"
    assert home.run("fgctl", "write", "batch_script", str(one), "-").out == script
    home.run("fgctl", "write", "batch_script", str(one))
    assert (home.path / f"fg-{one}.sh").read_text() == script
    assert home.run("fgctl", "write", "batch_script", str(one), "/no/such/place").status == Exit.USAGE


@pytest.mark.parametrize("plant", [os.symlink, os.link])
def test_a_script_with_a_name_that_nobody_chose_is_written_through_no_link(home, plant):
    one = home.ended("exit 0")
    precious = home.path / f"precious-{one}"
    precious.write_text("kept")
    plant(precious, home.path / f"fg-{one}.sh")
    assert home.run("fgctl", "write", "batch_script", str(one)).status == Exit.USAGE
    assert precious.read_text() == "kept"


def test_a_ping_never_starts_a_controller(home):
    done = home.run("fgctl", "ping")
    assert (done.status, done.err) == (
        Exit.UNREACHABLE,
        "fgctl: error: the controller is not running\nStart it: fgsched start\n",
    )
    assert home.client.ask("ping")
    assert " is UP (pid " in home.run("fgctl", "ping").out


class ReleasingClient:
    """A client that releases a held job when it waits for the next event."""

    def __init__(self, home, held):
        self._home, self._held, self.asked = home, held, []

    def call(self, call, **more):
        self.asked.append(type(call).__name__)
        if isinstance(call, protocol.Events) and call.after and self._held:
            self._home.run("fgctl", "release", str(self._held))
            self._held = 0
        return self._home.client.call(call, **more)


def test_wait_job_returns_when_a_pending_job_runs(home):
    held = home.submit("exec sleep 1000000", hold=True)
    client = ReleasingClient(home, held)
    wait_until_running(client, held)
    assert home.job(held)["state"] == "RUNNING"
    assert client.asked[:3] == ["Events", "ListQueue", "Events"], "it waits for an event, not for a time"


def test_wait_job_is_over_at_once_for_a_job_that_runs_and_refused_for_one_that_never_will(home):
    assert home.run("fgctl", "wait_job", str(home.running())) == Done(0, "", "")
    done = home.run("fgctl", "wait_job", str(over := home.ended("exit 3")))
    assert (done.status, f"job {over} has ended: FAILED" in done.err) == (Exit.REFUSED, True)
    assert home.run("fgctl", "wait_job", "99").status == Exit.NO_SUCH_JOB


def test_a_message_is_appended_to_the_error_file_of_a_running_job(home):
    job = home.running(error="err-%j")
    assert home.run("fgctl", "notify", str(job), "saves", "at\x1b 18:00").status == 0
    assert (home.path / f"err-{job}").read_text() == "saves at? 18:00\n"
    done = home.run("fgctl", "notify", str(home.submit(hold=True)), "hello")
    assert (done.status, "does not run" in done.err) == (Exit.REFUSED, True)
    done = home.run("fgctl", "notify", "99", "hello")
    assert done.status == Exit.NO_SUCH_JOB


@pytest.mark.parametrize("verb", ["takeover", "shutdown"])
def test_slurms_other_verbs_are_refused_by_name(home, verb):
    done = home.run("fgctl", verb, "7")
    assert (done.status, done.err) == (Exit.USAGE, f"fgctl: error: {verb} is not supported yet\n")


@pytest.mark.parametrize("words", [[], ["dance"], ["show"], ["show", "nothing"]])
def test_a_verb_is_needed_and_has_to_be_one(home, words):
    assert home.run("fgctl", *words).status == Exit.USAGE


# -- small things that a newcomer stumbles over -----------------------------------------------------


@pytest.mark.parametrize("kind", ["jobs", "JobId", "JobName", "job"])
def test_a_kind_of_record_may_be_a_plural_or_the_name_of_its_id(home, kind):
    one = home.submit(hold=True)
    assert pairs(home.run("fgctl", "show", kind, str(one)).out)["JobId"] == str(one)


def test_settings_are_shown_in_the_units_of_the_file(tmp_path):
    with living(tmp_path / "home", config='[host]\ncpus = 4\n[jobs]\nkeep_scripts_size = "1M"\n') as home:
        shown = pairs(home.run("fgctl", "show", "config").out)
        raw = home.run("fgctl", "show", "config", "--json").json["config"]["config"]
    assert (shown["keep_scripts_size"], shown["keep_scripts"]) == ("1M", "30-00:00:00")
    assert (shown["share_step"], shown["placement"], shown["cpus"]) == ("0.0001", "pack", "4")
    assert (raw["keep_scripts_size"], raw["share_step"]) == (2**20, 1)


def test_how_a_job_is_limited_is_not_said_before_it_starts(home):
    shown = pairs(home.run("fgctl", "show", "job", str(home.submit(hold=True))).out)
    assert (shown["Enforce"], shown["Preload"]) == ("(null)", "(null)")
    shown = pairs(home.run("fgctl", "show", "job", str(home.submit(hold=True, share=0))).out)
    assert (shown["Enforce"], shown["Preload"]) == ("none", "none")


def test_changes_that_leave_the_state_have_one_event(home):
    first, one = home.submit(hold=True), home.submit(hold=True)
    for dependency in (f"afterany:{first}", "", f"afterany:{first}", ""):
        assert home.run("fgctl", "update", f"job={one}", f"dependency={dependency}").status == 0
    shown = home.run("fgctl", "show", "job", str(one)).out
    assert len(home.job(one)["events"]) == 4
    assert shown.count("PENDING->PENDING") == 1


def test_the_refusal_of_a_change_names_what_can_be_changed(home):
    running = home.running()
    done = home.run("fgctl", "update", f"job={running}", "gpus=1")
    assert (done.status, done.err) == (
        1,
        f"fgctl: error: job {running} is no longer pending: "
        "what it asks for (GPUs, CPUs, memory) stays\n"
        "Its name, comment, mails, requeue flag and time limit can change.\n",
    )
    assert home.run("fgctl", "update", f"job={running}", "requeue=0").status == 0


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("update", "gpu=0", "state=drain"), "update changes no GPU\nfgctl drain gpu=N"),
        (("create", "name=a"), "create needs partition=NAME or reservation=NAME"),
        (("delete", "name=a"), "delete needs partition=NAME or reservation=NAME"),
    ],
)
def test_what_is_changed_by_another_word_is_told(home, words, cause):
    done = home.run("fgctl", *words)
    assert (done.status, done.err.startswith(f"fgctl: error: {cause}")) == (2, True), done.err
