"""Reports and histories of users of a shared host, who may not read the accounts: the controller answers."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from endedjobs import an_ended_job
from fakehost import CONFIG, UIDS, hosting, why_not
from fgsched.accounting.ledger import Ledger
from fgsched.accounting.records import GpuRecord, Owner
from fgsched.domain.errors import Exit
from fgsched.domain.job import WHOLE
from fgsched.system.process import identify
from live_host import zone_at_noon

_WHY_NOT = why_not()
pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "can be made")]
DAY = 86_400
WHEN = time.time() // DAY * DAY - 10 * DAY  # a day that has ended, whenever these tests run
PERIOD = [
    word
    for option, at in (("--since", WHEN), ("--until", WHEN + DAY))
    for word in (option, time.strftime("%Y-%m-%d", time.gmtime(at)))
]


def job(id, user):
    """A failed job of the middle of that day."""
    at = WHEN + DAY / 2
    return an_ended_job(
        **{"id": id, "owner": Owner(uid=UIDS[user], user=user), "name": f"{user}s-job", "state": "FAILED"},
        **{"reason": "NonZeroExitCode", "submitted_at": at, "eligible_at": at, "started_at": at},
        **{"ended_at": at + 600, "exit_code": 1, "output": f"/home/{user}/SECRET.out"},
        **{"gpus": 1, "share": WHOLE, "memory": 1 << 30, "model": "A100", "charged": 600.0},
    )


@pytest.fixture(scope="module")
def host():
    with hosting(config=CONFIG, started=False) as one:
        made = one.path / "accounts.db"
        ledger = Ledger(made)
        gpu = GpuRecord(uuid="GPU-1", gpu=0, model="A100", total=80 << 30, since=WHEN, until=WHEN + DAY)
        with ledger.write():
            ledger.add_gpus([gpu])
            ledger.add_jobs([job(900_001, "alice"), job(900_002, "bob")])
        ledger.close()
        made.chmod(0o600)
        place = one.root / "var/lib/fgsched"
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copy(made, place / "accounts.db")
        one.start()
        yield one


def report(host, user, *words):
    done = host.run(user, "fgreport", *words)
    assert (done.status, done.err) == (0, ""), (user, words)
    return done.out


def refused(host, user, command, *words):
    done = host.run(user, command, *words)
    return done.status, done.err.splitlines()[0]


def test_a_user_has_the_report_that_root_has_about_this_user(host):
    own = report(host, "alice", "me", *PERIOD)
    assert own == report(host, "root", "me", "--user", "alice", *PERIOD)
    assert " alice " in own or "alice\n" in own
    assert "bob" not in own
    html = report(host, "alice", "me", *PERIOD, "--format", "html")
    assert html == report(host, "root", "me", "--user", "alice", *PERIOD, "--format", "html")


def test_a_period_without_records_is_one_sentence_for_a_user_too(host):
    before = time.strftime("%Y-%m-%d", time.gmtime(WHEN - 5 * DAY))
    said = report(host, "alice", "users", "--since", before, "--until", PERIOD[1])
    assert said.startswith("Nothing was accounted in the period ")
    assert f"the accounts begin on {PERIOD[1]}. --since {PERIOD[1]}" in " ".join(said.splitlines())
    assert said == report(host, "root", "users", "--since", before, "--until", PERIOD[1])
    assert report(host, "carol", "me", *PERIOD).startswith("No job of carol ran in the period ")


def test_reports_on_all_users_hide_the_paths_of_others(host):
    found, whole = (report(host, user, "failures", *PERIOD, "--format", "json") for user in ("bob", "root"))
    assert ("alices-job" in found, "SECRET" in found, "SECRET" in whole) == (True, False, True)
    assert "SECRET" in report(host, "carol", "failures", *PERIOD, "--format", "json")


def test_a_user_gets_the_replay_of_the_report_on_capacity(host):
    words = ["capacity", *PERIOD, "--format", "csv", "--section", "replay"]
    found = report(host, "bob", *words)
    assert found == report(host, "root", *words)
    assert found.splitlines()[1].split(",")[:2] == ["A100", "2"]


def test_errors_of_a_report_are_those_that_root_gets(host):
    for words in (["me", "--since", "2099-01-01"], ["users", "--by", "nothing"], ["nonsense"]):
        assert refused(host, "bob", "fgreport", *words) == refused(host, "root", "fgreport", *words), words


def test_a_reporter_that_was_killed_is_started_again(host):
    report(host, "bob", "me", *PERIOD)
    (pid,) = reporters(host)
    ended = os.pidfd_open(pid)
    signal.pidfd_send_signal(ended, signal.SIGKILL)
    os.close(ended)
    done = host.run("bob", "fgreport", "me", *PERIOD)
    assert (done.status, done.out) == (0, report(host, "root", "me", "--user", "bob", *PERIOD))


def reporters(host):
    """The processes that make reports for the users of a host."""
    controller = host.ask("root", "ping")["ok"]["pid"]
    pids = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
    return [
        int(pid)
        for pid in pids
        if identify(int(pid)) and b"simulate.reporter" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def test_a_site_that_keeps_users_private_shows_each_user_only_the_own_jobs(host):
    hers, his = host.submit("alice", "exit 0"), host.submit("bob", "exit 0")
    host.over(hers), host.over(his)
    assert listed(host, "bob", "-a") == [hers, his]
    settings = host.path / "etc/fgsched/fgsched.toml"
    settings.write_text(f"{settings.read_text()}[accounting]\nprivate_data = true\n")
    assert host.run("root", "fgctl", "reconfigure").status == 0
    assert {user: listed(host, user, "-a") for user in ("bob", "carol")} == {
        "bob": [his],
        "carol": [hers, his],
    }
    assert listed(host, "bob", "-j", f"{hers},{his}") == [his]
    assert host.run("bob", "fgeff", str(hers)).status == Exit.NO_SUCH_JOB
    for words in (["overview"], ["me", "--user", "alice"]):
        status, said = refused(host, "bob", "fgreport", *words)
        assert (status, "keeps them private" in said) == (Exit.NOT_PERMITTED, True)
    for user, name in (("bob", "me"), ("bob", "health"), ("bob", "capacity"), ("carol", "overview")):
        report(host, user, name, *PERIOD)


def test_a_user_learns_that_the_controller_is_down():
    with hosting(started=False) as host:
        host.start()
        assert host.run("bob", "fgreport", "me").status == Exit.DONE
        host.stop()
        done = host.run("bob", "fgreport", "me")
        assert (done.status, done.out) == (Exit.UNREACHABLE, "")
        assert done.err.startswith("fgreport: error: the controller is not running\n")
        assert "only root may read the accounts" in done.err
        assert "as root, 'fgreport me --user bob' works now" in done.err
        assert host.run("root", "fgreport", "me", "--user", "bob").status == Exit.DONE


def listed(host, user, *words):
    """The ids that fgacct shows."""
    done = host.run(user, "fgacct", "-n", "-P", "-o", "JobIDRaw", *words, env=zone_at_noon())
    return sorted(map(int, done.out.split()))
