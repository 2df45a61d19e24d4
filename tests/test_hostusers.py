"""The host's accounts: asked for beside the loop, believed for a while, and missed without harm."""

import os
import pwd
import re
import select
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from fgsched.domain.errors import Busy
from fgsched.system import names
from fgsched.system.hostusers import HostUser, HostUsers, LookupHelpers, look_up, of_user, parse
from live_host import PATIENCE, ROOT

ANN = HostUser(name="ann", gid=7, home="/home/ann", groups=(7, 8), names=("ann", "lab"))


class Service:
    """A helper that the test answers for: what was asked of it, and how often it was given up."""

    def __init__(self):
        self.asked, self.said, self.abandoned = [], [], 0

    def ask(self, uid, busy=0):
        self.asked.append(uid)

    def rest(self):
        self.rested = True

    def read(self):
        said, self.said = self.said, []
        return said

    def abandon(self):
        self.abandoned += 1


class People:
    """Accounts that change, and a clock that is set."""

    def __init__(self):
        self.now, self.there = 100.0, {7: ANN}
        self.service, self.woken = Service(), []
        self.accounts = HostUsers(self.service, lambda: self.now)

    def answer(self):
        """The service answers all that was asked until now, and what is asked then."""
        while self.service.asked:
            uid = self.service.asked.pop(0)
            self.service.said.append(packet(uid, self.there.get(uid)))
            self.woken += self.accounts.receive()

    def launch(self, uid):
        """Where the account comes that a start gets."""
        got = []
        self.accounts.look_up(uid, got.append)
        return got

    def wait(self, seconds):
        for _ in range(seconds):
            self.now += 1.0
            self.woken += self.accounts.expire()


def packet(uid, account):
    if account is None:
        return b"%d" % uid
    texts = [account.name, account.home, *account.names]
    coded = " ".join(text.encode().hex() for text in texts)
    return f"{uid} {account.gid} {','.join(map(str, account.groups))} {coded}".encode()


@pytest.fixture
def people():
    return People()


def test_an_account_is_looked_up_once_for_many_starts(people):
    got = [people.launch(7) for _ in range(100)]
    assert got == [[]] * 100
    people.answer()
    assert got == [[ANN]] * 100
    assert people.launch(7) == [ANN]


def test_a_start_waits_for_what_is_at_most_five_seconds_old(people):
    people.launch(7)
    people.answer()
    people.there.clear()
    people.now += 4.9
    assert people.launch(7) == [ANN]
    people.now += 0.1
    got = people.launch(7)
    assert got == []
    people.answer()
    assert got == [None], "the account is gone"


def test_a_request_is_taken_on_an_older_answer_while_it_is_asked_for_again(people):
    assert not people.accounts.is_known(7)
    people.answer()
    assert people.woken == [7]
    people.now += 200.0
    assert people.accounts.is_known(7)
    assert people.service.asked == [7]
    assert people.accounts.of(7) == ANN


def test_an_account_that_comes_is_seen_within_five_seconds(people):
    people.accounts.is_known(9)
    people.answer()
    assert people.accounts.is_known(9)
    assert people.accounts.of(9) is None
    people.there[9] = ANN
    people.now += 5
    assert not people.accounts.is_known(9)
    people.answer()
    assert people.accounts.of(9) == ANN


def test_a_service_that_does_not_answer_is_asked_by_another_process(people):
    assert not people.accounts.is_known(7)
    people.wait(5)
    assert people.service.abandoned == 1
    assert people.woken == [7], "who waited is told that it is busy"
    with pytest.raises(Busy, match="does not answer for uid 7"):
        people.accounts.of(7)
    assert people.accounts.is_known(7), "for a while it is not asked again"
    people.now += 10
    assert not people.accounts.is_known(7)
    assert people.service.asked == [7, 7]
    people.answer()
    assert people.accounts.of(7) == ANN


def test_a_start_goes_on_with_an_old_answer_if_no_new_one_comes(people):
    people.launch(7)
    people.answer()
    people.now += 10_000
    got = people.launch(7)
    people.wait(5)
    assert got == [ANN]


def test_a_start_of_a_user_who_was_never_told_waits_until_the_service_answers(people):
    got = people.launch(7)
    people.wait(30)
    assert got == []
    assert people.service.abandoned > 1
    people.answer()
    assert got == [ANN]


def test_a_user_who_cannot_be_told_does_not_stop_the_others(people):
    people.launch(7)
    people.launch(8)
    people.launch(9)
    assert people.service.asked == [7], "one question is out at a time"
    people.service.asked.clear()
    got = people.launch(9)
    people.wait(1)
    assert people.service.asked == [8], "by another process"
    people.answer()
    assert got == [None]
    assert people.accounts.cached(7) is None


def test_answers_that_nobody_waits_for_are_kept(people):
    people.service.said.append(packet(7, ANN))
    people.accounts.receive()
    assert people.accounts.cached(7) == ANN


def test_nothing_is_due_while_nothing_is_asked(people):
    assert people.accounts.due is None
    people.launch(7)
    assert people.accounts.due == 5.0
    people.answer()
    assert people.accounts.due is None


def test_a_users_own_controller_asks_nobody():
    accounts = of_user(os.geteuid())
    entry = pwd.getpwuid(os.geteuid())
    assert not accounts.has_helper
    assert accounts.is_known(12345)
    assert accounts.of(12345) is None
    assert accounts.of(os.geteuid()).home == entry.pw_dir
    assert accounts.due is None


def test_what_the_host_says_of_somebody_is_what_is_found():
    entry = pwd.getpwall()[0]
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    found = look_up(entry.pw_uid)
    assert (found.name, found.gid, found.home, found.groups) == (
        *(entry.pw_name, entry.pw_gid, entry.pw_dir),
        groups,
    )
    assert look_up(3_999_999_999) is None


def test_names_come_as_they_are(monkeypatch):
    strange = pwd.struct_passwd(("caf\udce9 x", "x", 7, 8, "", "", "/"))
    monkeypatch.setattr(names.pwd, "getpwuid", lambda uid: strange)
    monkeypatch.setattr(names.os, "getgrouplist", lambda name, gid: [8])
    monkeypatch.setattr(names, "_name", lambda gid: "")
    account = HostUser(name="caf\udce9 x", gid=8, home="", groups=(8,), names=("",))
    assert parse(names.answer(7)) == (7, account)
    assert (account.named, account.by_name) == ((), {"8": 8})
    assert (ANN.named, ANN.by_name) == (("ann", "lab"), {"7": 7, "8": 8, "ann": 7, "lab": 8})


def test_nothing_of_the_controller_asks_the_name_service_itself():
    """`places` looks for a home before there is a queue; the commands are processes of their own."""
    asking = re.compile(r"\b(pwd|grp)\.get|getgrouplist\(|getpwnam\(|initgroups\(")
    found = {
        str(path.relative_to(ROOT / "fgsched"))
        for path in (ROOT / "fgsched").rglob("*.py")
        if asking.search(path.read_text())
    }
    assert {name for name in found if not name.startswith(("cli/", "slurm/"))} == {
        "system/outputs.py",  # in the mailer and in fgreport
        "submission/checks.py",  # in the submitting process
        "views/choices.py",  # in the commands: the controller has its own reader of user names
        *("views/documents.py", "views/fields.py", "views/job.py"),  # in the commands
        "system/places.py",  # in fgctl and fgtail
        "system/names.py",
        "system/paths.py",
    }


# -- the process that asks ---------------------------------------------------------------------------


@pytest.fixture
def helper():
    helper = LookupHelpers()
    yield helper
    helper.close()


def heard(helper):
    assert select.select([helper], [], [], 60)[0]
    return [parse(packet) for packet in helper.read()]


def test_the_helper_tells_of_accounts_and_is_started_again_when_it_was_killed(helper):
    helper.ask(0)
    assert heard(helper) == [(0, look_up(0))]
    (process,) = helper.processes
    process.kill()
    process.wait()
    helper.ask(0)
    assert heard(helper) == [(0, look_up(0))]


def test_what_hangs_is_given_up_and_its_question_is_not_asked_again(helper, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    usual, helper._command = helper._command, ["/bin/sh", "-c", f"exec cat {tmp_path}/fifo"]
    helper.ask(0)
    (process,) = helper.processes
    helper.abandon()
    process.wait()
    helper._command = usual
    helper.ask(3_999_999_999)
    assert heard(helper) == [(3_999_999_999, None)]


def test_while_one_process_hangs_another_answers_and_one_is_kept(helper, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    hangs = f"import os; os.read(0, 64); open({str(tmp_path / 'fifo')!r})"
    usual, helper._command = helper._command, [sys.executable, "-S", "-c", hangs]
    helper.start_helper()
    helper._command = usual
    helper.ask(3_999_999_998)
    helper.ask(3_999_999_999, busy=1)
    assert len(helper.processes) == 2
    assert heard(helper)[0][1] is None
    last = helper.processes[1]
    helper.rest()
    last.wait()
    helper.ask(0)
    assert len(helper.processes) == 1


def test_the_helper_ends_when_nobody_can_ask_any_more(helper):
    helper.ask(0)
    heard(helper)
    (process,) = helper.processes
    helper._ours.close()
    helper._theirs.close()
    assert process.wait(PATIENCE) == 0


HANGING = """
import os, signal
from fgsched.system import pam
pam._asked = lambda service, user: (print(os.getpid(), flush=True), signal.pause())
pam._in_a_child("login", "ann")
"""


def test_a_pam_session_that_hangs_is_killed_with_its_helper():
    command = [sys.executable, "-I", "-c", HANGING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as helper:
        assert helper.stdout is not None
        session = os.pidfd_open(int(helper.stdout.readline()))
        helper.kill()
    try:
        assert select.select([session], [], [], PATIENCE)[0]
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(session, signal.SIGKILL)
        os.close(session)
