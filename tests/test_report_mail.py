"""fgreport --to: the mail that arrives, silence on standard output, and a mail server that is away."""

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

import history
from awaiting import until
from fgsched.domain.errors import Exit
from fgsched.mail.spool import Spool
from live_host import Home
from mailserver import serving

WEEK = ("overview", "--week", "2026-W46")


@pytest.fixture
def server(tmp_path):
    with serving(tmp_path / "mails") as one:
        yield one


@pytest.fixture
def report(tmp_path, server):
    home = Home(tmp_path / "home", config=server.settings(domain='"example.org"', deadline="60"))
    history.write(history.FORTNIGHT, home.path / "accounts.db")
    return lambda *words: home.run("fgreport", *words, env={"TZ": history.ZONE})


def parts(mail):
    return [(part.get_content_type(), part.get_filename()) for part in mail.walk() if not part.is_multipart()]


def test_a_report_is_mailed_as_text_and_html_with_the_page(report, server):
    done = report(*WEEK, "--to", "root,ann@example.org", "--format", "text,csv")
    assert (done.status, done.out, done.err) == (0, "", "")
    (mail,) = server.mails
    host = os.uname().nodename.split(".")[0]
    assert (mail["X-To"], str(mail["Subject"])) == (
        "root@example.org,ann@example.org",
        f"GPU report 2026-W46, {host}",
    )
    assert parts(mail) == [
        ("text/plain", None),
        ("text/html", None),
        ("text/html", "overview.html"),
        ("text/csv", "overview-2026-W46.csv"),
    ]
    assert mail.get_body(("plain",)).get_content().startswith("GPU report")


def test_a_subject_of_ones_own_has_no_line_break(report, server):
    assert report(*WEEK, "--to", "root", "--subject", "GPUs\r\nBcc: eve@example.org").status == 0
    assert (str(server.mails[0]["Subject"]), server.mails[0]["Bcc"]) == ("GPUs Bcc: eve@example.org", None)


def test_nothing_to_report_is_not_mailed(report, server):
    done = report("failures", "--week", "2026-W40", "--only-if", "--to", "root")
    assert (done.status, done.out, done.err, server.mails) == (0, "", "", [])


def test_a_mail_that_cannot_be_sent_waits_for_the_next_one(report, server):
    server.stop()
    done = report(*WEEK, "--to", "root")
    assert (done.status, done.out) == (0, "")
    assert "the mail is not sent yet; it waits in" in done.err
    server.start()
    assert report(*WEEK, "--to", "root").err == ""
    assert len(server.mails) == 2


def test_reports_that_cron_starts_together_are_all_sent_without_a_word(report, server, tmp_path):
    spool = Spool(tmp_path / "home" / "mail" / "reports")
    with (spool.path / "lock").open("w") as lock, ThreadPoolExecutor() as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        both = [pool.submit(report, *WEEK, "--to", "root") for _ in range(2)]
        until(spool.path / "new", lambda: len(os.listdir(spool.path / "new")) == 2)
        lock.close()
        done = [one.result() for one in both]
    assert [(one.status, one.out, one.err) for one in done] == [(0, "", "")] * 2
    assert len(server.mails) == 2


def test_foreign_and_refused_addresses_are_told(report, server):
    done = report(*WEEK, "--to", "ann@evil.org")
    assert (done.status, done.out) == (Exit.REFUSED, "")
    assert "mail to ann@evil.org is not allowed" in done.err
    server.refused = {"bob@example.org": "550 no such user"}
    done = report(*WEEK, "--to", "bob")
    assert (done.status, done.out) == (Exit.REFUSED, "")
    assert "550 no such user" in done.err
