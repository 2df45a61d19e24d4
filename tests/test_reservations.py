"""fgctl create reservation, end to end: who gets the cards, what is told of it, and that it is kept."""

import grp
import json
import os
import pwd

import pytest

from fgsched.domain.errors import Exit
from live_host import Home, living

ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    config = Home.config + "[accounts.lab]\n"
    with living(tmp_path_factory.mktemp("reserved") / "home", config=config) as one:
        yield one


@pytest.fixture
def gpus(tmp_path):
    with living(tmp_path / "home") as one:
        yield one


def fgctl(home, *words):
    return home.run("fgctl", *words)


def reserve(home, name, *words):
    done = fgctl(home, "create", f"reservation={name}", *words)
    assert done.status == 0, done.err
    return name


def job(home, *words, script="exit 0"):
    file = home.path / "job.sh"
    file.write_text(f"#!/bin/sh\n{script}\n")
    return home.run("fgsub", "--parsable", *words, str(file))


def column(home, letter, job_id):
    return home.run("fgq", "-h", "-o", letter, "-j", job_id.out.strip()).out.strip()


def test_a_job_that_would_run_into_a_reservation_waits_and_is_told_so(gpus):
    reserve(gpus, "talk", "starttime=now+1hour", "duration=2h", f"users={ME}", "gpu=0-1")
    waits = job(gpus, "--gpus=1", "--time=3h")
    assert column(gpus, "%r", waits) == "Reservation"
    assert column(gpus, "%v", waits) == "(null)"
    why = gpus.run("fgq", "--why", waits.out.strip()).out
    assert "would overlap reservation talk, from " in why
    assert "--time=" in why, why
    assert "starts now" in why
    short = job(gpus, "--gpus=1", "--time=30")
    assert gpus.wait(int(short.out))[0]["state"] == "COMPLETED"
    tried = gpus.run("fgsub", "--test-only", "--gpus=1", "--time=3h", "--wrap", "true")
    assert tried.status == 0, tried.err
    assert "to start at" in tried.out + tried.err
    starts = gpus.run("fgq", "--start", "-h").out
    assert starts.split()[0] == waits.out.strip()


def test_jobs_of_a_reservation_wait_for_it_and_run_in_it(gpus):
    reserve(gpus, "later", "starttime=now+1hour", "duration=1h", f"users={ME}", "gpu=0")
    early = job(gpus, "--gpus=1", "--time=10", "--reservation=later")
    assert column(gpus, "%r|%v", early) == "Reservation|later"
    assert "begins at" in gpus.run("fgq", "--why", early.out.strip()).out
    assert gpus.run("fgq", "-h", "-O", "Reservation:10", "-j", early.out.strip()).out.strip() == "later"
    assert fgctl(gpus, "update", "reservation=later", "starttime=now", "duration=1h").status == 0
    assert gpus.wait(int(early.out))[0]["state"] == "COMPLETED"


def test_a_reservation_that_begins_starts_its_jobs_by_itself(gpus):
    reserve(gpus, "soon", "starttime=now+2seconds", "duration=1h", f"users={ME}", "gpu=0")
    early = job(gpus, "--gpus=1", "--time=10", "--reservation=soon")
    assert gpus.wait(int(early.out))[0]["state"] == "COMPLETED"


def test_a_reservation_that_ends_lets_others_start_by_itself(gpus):
    reserve(gpus, "brief", "duration=3s", "flags=maint", "gpu=0-1")
    waits = job(gpus, "--gpus=1")
    assert gpus.wait(int(waits.out))[0]["state"] == "COMPLETED"
    assert fgctl(gpus, "show", "reservation", "-o").out == ""


def test_it_is_kept_over_a_restart_and_a_reconfigure(gpus):
    reserve(gpus, "kept", "duration=2h", f"users={ME}", "gpus=0.5")
    before = fgctl(gpus, "show", "reservation", "kept").out
    assert "GpuFraction=0.5" in before
    assert "State=ACTIVE" in before
    assert fgctl(gpus, "reconfigure").status == 0
    assert fgctl(gpus, "show", "reservation", "kept").out == before
    assert gpus.run("fgsched", "stop").status == 0
    assert fgctl(gpus, "show", "reservation", "kept").out == before
    waits = job(gpus, "--gpus=2")
    assert column(gpus, "%r", waits) == "Reservation"


def test_running_jobs_are_in_the_way_unless_they_are_to_be_ignored(gpus):
    runs = gpus.running(share=5000)
    words = ("create", "reservation=r", "duration=1h", f"users={ME}", "gpu=0")
    refused = fgctl(gpus, *words)
    assert refused.status == Exit.REFUSED
    assert f"jobs may still run on its GPUs when it begins: {runs}" in refused.err
    assert fgctl(gpus, *words, "flags=ignore_jobs").status == 0
    shown = json.loads(fgctl(gpus, "show", "--json", "reservation", "r").out)
    assert shown["reservations"][0]["flags"] == []


def test_what_is_taken_by_one_reservation_is_not_to_be_had_by_another(home):
    reserve(home, "one", "starttime=now+1day", "duration=1h", f"users={ME}", "gpu=0", "share=0.75")
    again = fgctl(home, "create", "reservation=one", "duration=1h", f"users={ME}", "gpu=1")
    assert (again.status, "there is a reservation one already" in again.err) == (Exit.REFUSED, True)
    refused = fgctl(home, "create", "reservation=two", "duration=2d", f"users={ME}", "gpu=0", "share=0.5")
    assert refused.status == Exit.REFUSED
    assert "GPU 0 has not so much left then: reservation one" in refused.err
    reserve(home, "two", "duration=2d", f"users={ME}", "gpus=0.5")
    assert "GpuIdx=1" in fgctl(home, "show", "reservation", "two").out
    assert fgctl(home, "delete", "reservation", "two").status == 0
    assert fgctl(home, "delete", "reservation=one").status == 0
    gone = fgctl(home, "delete", "reservation=one")
    assert (gone.status, "invalid reservation name" in gone.err) == (Exit.REFUSED, True)


def test_scontrols_spelling_is_taken(home):
    words = ("ReservationName=s", "StartTime=now+1hour", "Duration=60", "Users=root", "gpu=all")
    done = fgctl(home, "create", "reservation", *words)
    assert done.status == 0, done.err
    assert "Duration=1:00:00" in fgctl(home, "show", "reservation", "s", "-o").out
    assert fgctl(home, "delete", "reservation=s").status == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gpu=0",), "needs an end"),
        (("gpu=0", "duration=1h"), "needs users=, groups= or accounts="),
        (("duration=1h", "users=root"), "keeps GPUs"),
        (("gpu=7", "duration=1h", "users=root"), "this host has no GPU 7"),
        (("gpu=0", "gpus=1", "duration=1h", "users=root"), "give one"),
        (("gpu=0", "share=2", "duration=1h", "users=root"), "share="),
        (("gpu=0", "duration=1h", "endtime=now+2hours", "users=root"), "say the same"),
        (("gpu=0", "duration=1h", "users=root", "flags=daily"), "no flag 'daily'"),
        (("gpu=0", "duration=1h", "users=root", "nodes=x"), "there is no node x"),
        (("gpu=0", "duration=1h", "users=root", "corecnt=1"), "corecnt is not a key of a reservation"),
        (("gpu=0", "starttime=late", "duration=1h", "users=root"), "starttime=late is not a time"),
        (("gpu=0", "duration", "users=root"), "duration is not KEY=VALUE\nJoin the two with ="),
        (("gpu=0", "starttime=now+2hours", "endtime=now+1hour", "users=root"), "ends before it begins"),
        (("gpus=3", "duration=1h", "users=root"), "2 GPUs of 2 can be reserved so"),
    ],
)
def test_what_makes_no_reservation_is_refused(home, words, said):
    done = fgctl(home, "create", "reservation=bad", *words)
    assert done.status in (Exit.REFUSED, Exit.USAGE), done
    assert said in done.err


@pytest.mark.parametrize(
    ("words", "cause", "remedy"),
    [
        ("users=root,no-such-user", "user: no-such-user: this host has no user", "getent passwd NAME"),
        ("users=3999999999", "user: 3999999999: this host has no user", "getent passwd NAME"),
        ("groups=no-such-group", "group: no-such-group: this host has no group", "getent group NAME"),
        ("accounts=lab,iron", "account: iron", "There is lab."),
    ],
)
def test_a_reservation_for_an_unknown_user_group_or_account_is_refused(home, words, cause, remedy):
    refused = fgctl(home, "create", "reservation=typo", "duration=1h", "gpu=0", words)
    assert refused.status == Exit.REFUSED
    assert f"fgctl: error: invalid {cause}" in refused.err
    assert remedy in refused.err
    assert "typo" not in fgctl(home, "show", "reservation").out


def test_a_user_and_a_group_are_named_by_number_too(home):
    by_number = (f"users={os.geteuid()}", f"groups={os.getegid()}", "accounts=lab")
    reserve(home, "numbers", "duration=1h", "gpu=0", *by_number)
    shown = fgctl(home, "show", "reservation", "numbers").out.split()
    assert {f"Users={ME}", f"Groups={grp.getgrgid(os.getegid()).gr_name}", "Accounts=lab"} <= set(shown)
    changed = fgctl(home, "update", "reservation=numbers", "users=no-such-user")
    assert (changed.status, "invalid user: no-such-user" in changed.err) == (Exit.REFUSED, True)
    assert fgctl(home, "delete", "reservation=numbers").status == 0


def test_a_job_is_refused_by_a_reservation_that_it_can_never_use(home):
    reserve(home, "small", "duration=1h", "users=nobody", "gpu=1", "share=0.5")
    for words, said in (
        (("--reservation=none",), "invalid reservation: none"),
        (("--reservation=small",), "the job's time limit is UNLIMITED"),
        (("--reservation=small", "--time=2h"), "Ask for at most --time=1:00:00"),
        (("--reservation=small", "--time=10", "--gpus=1"), "It keeps 0.5 of GPU 1."),
    ):
        refused = job(home, *words)
        assert refused.status != 0
        assert said in refused.err
    assert fgctl(home, "delete", "reservation=small").status == 0


def test_fginfo_lists_reservations_and_marks_their_cards(home):
    reserve(home, "shown", "duration=1h", f"users={ME}", "gpu=1")
    reserve(home, "fix", "duration=1h", "flags=maint", "gpu=0")
    listed = home.run("fginfo", "-T", "-h").out.splitlines()
    assert sorted(line.split()[:2] for line in listed) == [["fix", "ACTIVE"], ["shown", "ACTIVE"]]
    states = [line.split()[2] for line in home.run("fginfo", "-g", "-h").out.splitlines()]
    assert states == ["maint", "resv"]
    told = json.loads(home.run("fginfo", "--json").out)["reservations"]
    assert {one["name"] for one in told} == {"fix", "shown"}
    for name in ("shown", "fix"):
        assert fgctl(home, "delete", f"reservation={name}").status == 0


def test_a_reservation_with_running_jobs_stays_and_lasts_as_long_as_they(gpus):
    reserve(gpus, "busy", "duration=2h", f"users={ME}", "gpu=0")
    runs = gpus.running(share=5000, reservation="busy", time_limit=3600)
    for words in (("delete",), ("update", "duration=10"), ("update", "gpu=0", "share=0.25")):
        refused = fgctl(gpus, words[0], "reservation=busy", *words[1:])
        assert refused.status == Exit.REFUSED, words
    assert f"jobs of reservation busy run: {runs}" in fgctl(gpus, "delete", "reservation=busy").err
    assert fgctl(gpus, "update", "reservation=busy", "duration=3h", "users=root").status == 0


def test_a_job_whose_reservation_is_gone_says_so_and_runs_without_it(gpus):
    reserve(gpus, "gone", "starttime=now+1hour", "duration=1h", f"users={ME}", "gpu=0")
    waits = job(gpus, "--gpus=1", "--time=10", "--reservation=gone")
    other = fgctl(gpus, "update", "reservation=gone", "users=nobody")
    assert (other.status, "waits for a reservation of this name" in other.err) == (Exit.REFUSED, True)
    assert fgctl(gpus, "delete", "reservation=gone").status == 0
    assert "has ended or was deleted" in gpus.run("fgq", "--why", waits.out.strip()).out
    assert fgctl(gpus, "update", f"job={waits.out.strip()}", "reservation=").status == 0
    assert gpus.wait(int(waits.out))[0]["state"] == "COMPLETED"


def test_a_reservation_without_a_name_gets_one_and_it_is_printed(gpus):
    words = ("create", "reservation", "duration=60", f"users={ME}", "nodes=ALL", "flags=maint,ignore_jobs")
    for number in (1, 2):
        done = gpus.run("fgctl", *words, f"starttime=now+{number}days")
        assert (done.status, done.out, done.err) == (0, f"Reservation created: {ME}_{number}\n", "")
    done = gpus.run(
        "fgctl", "create", "reservation", "starttime=now+9days", "duration=60", "gpu=0", "flags=maint"
    )
    assert done.out == "Reservation created: resv_1\n"
