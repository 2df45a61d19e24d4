"""fgcancel: which jobs it ends, what it says, and with which status it ends itself."""

import pytest

from awaiting import until
from fgsched.domain.errors import Exit


def states(home, *ids):
    return [home.job(one)["state"] for one in ids]


def until_up(home):
    """A script has got as far as its line `echo > up`."""
    until(home.path, (home.path / "up").exists)


def test_a_running_job_and_a_range_of_pending_ones_are_cancelled_silently(home):
    running, held = home.running(), home.submit(count=3, hold=True)
    done = home.run("fgcancel", str(running), f"{held}-{held + 2}")
    assert (done.status, done.out, done.err) == (0, "", "")
    assert [one["state"] for one in home.wait(running, held, held + 1, held + 2)] == ["CANCELLED"] * 4


def test_ids_come_from_standard_input_too(home):
    held = home.submit(count=2, hold=True)
    done = home.run("fgcancel", "-", input=f"{held}\n{held + 1}\n")
    assert (done.status, states(home, held, held + 1)) == (0, ["CANCELLED"] * 2)


def test_two_hundred_thousand_ids_are_no_trouble(home):
    held = home.submit(hold=True)
    done = home.run("fgcancel", "-", input="\n".join(str(one) for one in range(1, 200_001)))
    assert (done.status, states(home, held)) == (Exit.NO_SUCH_JOB, ["CANCELLED"])
    assert len(done.err.splitlines()) == 199_999


def test_nothing_named_is_never_all(home):
    held = home.submit(hold=True)
    done = home.run("fgcancel")
    assert (done.status, states(home, held)) == (Exit.USAGE, ["PENDING"])
    assert done.err.startswith("fgcancel: error: no job is named")


@pytest.mark.parametrize("option", ["-u", "-n", "-p", "-t", "-A", "-q"])
@pytest.mark.parametrize("text", ["", ","])
def test_a_filter_that_is_empty_is_never_all(home, option, text):
    held = home.submit(hold=True)
    done = home.run("fgcancel", "--me", option, text)
    assert (done.status, states(home, held)) == (Exit.USAGE, ["PENDING"])
    assert "is empty" in done.err


def test_a_state_that_no_job_has_is_never_all(home):
    held = home.submit(hold=True)
    done = home.run("fgcancel", "-v", "-t", "REQUEUED", str(held))
    assert (done.status, done.err) == (0, "fgcancel: no active jobs match\n")
    assert states(home, held) == ["PENDING"]


def test_a_job_that_is_over_is_nothing_to_speak_of_unless_asked(home):
    job = home.ended()
    assert home.run("fgcancel", str(job)) == home.run("fgcancel", "-s", "USR1", str(job))
    assert home.run("fgcancel", str(job)).err == ""
    assert home.run("fgcancel", "-v", str(job)).err == f"fgcancel: job {job} already COMPLETED\n"
    strict = home.run("fgcancel", "--strict", str(job))
    assert (strict.status, strict.err) == (3, f"fgcancel: error: job {job} already COMPLETED\n")


def test_an_unknown_id_is_told_and_the_others_are_cancelled(home):
    held = home.submit(hold=True)
    done = home.run("fgcancel", "99", str(held))
    assert done.status == Exit.NO_SUCH_JOB
    assert done.err == "fgcancel: error: Kill job error on job id 99: Invalid job id specified\n"
    assert states(home, held) == ["CANCELLED"]


@pytest.mark.parametrize("word", ["abc", "0", "-5", "1.x", "12_3_4", "12_", "٣", "5-1"])
def test_what_is_no_job_id_is_bad_usage(home, word):
    done = home.run("fgcancel", word)
    assert (done.status, done.out) == (Exit.USAGE, "")
    assert "is not a job id" in done.err


def test_an_id_beyond_all_ids_is_no_such_job(home):
    done = home.run("fgcancel", "9" * 20)
    assert (done.status, "does not exist" in done.err) == (Exit.NO_SUCH_JOB, True)


@pytest.mark.parametrize("name", ["SIGFOO", "0", "65", ""])
def test_a_bad_signal_is_answered_with_the_good_ones(home, name):
    done = home.run("fgcancel", "-s", name, "1")
    assert done.status == Exit.USAGE
    assert "USR1" in done.err


def test_a_signal_reaches_the_job_which_goes_on(home):
    job = home.submit('trap "echo got it; exit 7" USR1; echo > up; while :; do sleep 0.05; done')
    until_up(home)
    assert home.run("fgcancel", "-s", "usr1", "-b", str(job)).status == 0
    assert home.wait(job)[0]["exit_code"] == 7
    assert "got it" in (home.path / f"fg-{job}.out").read_text()


def test_a_signal_other_than_the_ending_ones_is_refused_for_a_pending_job(home):
    held = home.submit(hold=True)
    done = home.run("fgcancel", "-s", "USR1", str(held))
    assert (done.status, states(home, held)) == (Exit.REFUSED, ["PENDING"])
    assert done.err == f"fgcancel: error: Signal job error on job id {held}: job {held} is not running\n"


def test_kill_ends_a_job_that_does_not_listen(home):
    job = home.submit('trap "" TERM; echo > up; while :; do sleep 0.05; done')
    until_up(home)
    assert home.run("fgcancel", "-s", "KILL", str(job)).status == 0
    assert home.wait(job)[0]["state"] == "CANCELLED"


def test_filters_are_joined_by_and(home):
    named = home.submit(hold=True, name="eval")
    other = home.submit(hold=True, name="train")
    running = home.running(name="eval")
    assert home.run("fgcancel", "--me", "-n", "eval", "-t", "PD", "-p", "main").status == 0
    assert states(home, named, other, running) == ["CANCELLED", "PENDING", "RUNNING"]


def test_an_empty_selection_is_no_error(home):
    done = home.run("fgcancel", "-v", "-n", "nobody")
    assert (done.status, done.err) == (0, "fgcancel: no active jobs match\n")


def test_a_dry_run_prints_and_does_nothing(home):
    held = home.submit(hold=True, name="a\x1b[31mb")
    done = home.run("fgcancel", "--dry-run", str(held))
    assert done.status == 0
    assert done.out.startswith(f"Would cancel job_id={held} name=a?[31mb partition=main ")
    assert states(home, held) == ["PENDING"]


def test_who_is_asked_can_say_no(home):
    held = home.submit(count=2, hold=True)
    done = home.run("fgcancel", "-i", f"{held}-{held + 1}", input="n\ny\n")
    assert done.err.startswith(f"Cancel job_id={held} name=job partition=main [y/n]? ")
    assert states(home, held, held + 1) == ["PENDING", "CANCELLED"]


def test_a_reason_is_kept_with_the_job(home):
    held = home.submit(hold=True)
    assert home.run("fgcancel", "--reason", "wrong data", str(held)).status == 0
    assert "CancelReason=wrong data" in home.run("fgctl", "show", "job", str(held)).out


def test_jobs_of_an_account_or_a_quality_of_service_are_chosen(home):
    held = home.submit(hold=True, account="lab")
    assert home.run("fgcancel", "-A", "nobodys", str(held)).status == 0
    assert home.run("fgcancel", "-q", "none-such", str(held)).status == 0
    assert states(home, held) == ["PENDING"]
    assert home.run("fgcancel", "-A", "lab").status == 0
    assert states(home, held) == ["CANCELLED"]
