"""The accountant: what it is sent is stored once, summed to hours and days, kept and acknowledged."""

import os
import select
import socket
import sqlite3
from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from awaiting import PATIENCE
from endedjobs import changed
from fgsched.accounting import guard
from fgsched.accounting.accountant import Accountant, day_of, hour_of, serve
from fgsched.accounting.ledger import LedgerReader
from fgsched.accounting.messages import AccountantProcess, Answer, Keep, batch_line, encoded, parse_answer
from fgsched.accounting.records import Gap, GpuUseRecord, HealthEvent, JobSample, Minute
from fgsched.domain.times import DAY, HOUR, MINUTE
from test_ledger import CARD, JOB, USAGE

KEEP = Keep(minutes=14 * DAY, hours=400 * DAY, days=-1)
BERLIN = ZoneInfo("Europe/Berlin")
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/Havana"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "accounts.db"


@pytest.fixture
def accountant(path):
    one = Accountant(path, UTC, KEEP)
    yield one
    one.close()


def batch(*records, number=1):
    return batch_line(number, [(type(record), encoded(record)) for record in records])


def minute(at, uuid="GPU-0", **more):
    return Minute(at=at, gpus=(GpuUseRecord(at=at, uuid=uuid, sampled=60.0, free=60.0, **more),))


def sums(path, span):
    reader = LedgerReader(path)
    found = [(use.at, use.sampled) for use in reader.gpu_uses(span, 0, 1e10)]
    reader.close()
    return found


def jobs(path):
    reader = LedgerReader(path)
    found = list(reader.jobs(0, 1e10))
    reader.close()
    return found


def test_a_batch_is_stored_and_acknowledged(accountant, path):
    answer = accountant.answer(batch(CARD, JOB, Gap(since=1.0, until=2.0, why="x"), number=7), 100.0)
    assert (answer.number, answer.error, answer.refused, answer.size > 0) == (7, "", (), True)
    assert jobs(path) == [changed(JOB, name="train \\xe4")]


def test_a_batch_that_is_sent_again_changes_nothing(accountant, path):
    line = batch(CARD, JOB, minute(3600), Gap(since=1.0, until=2.0, why="x"))
    accountant.answer(line, 4000.0)
    before = jobs(path), sums(path, MINUTE), sums(path, HOUR), sums(path, DAY)
    assert accountant.answer(line, 5000.0).error == ""
    assert (jobs(path), sums(path, MINUTE), sums(path, HOUR), sums(path, DAY)) == before


def test_hours_and_days_are_sums_of_their_minutes_whenever_these_arrive(accountant, path):
    accountant.answer(batch(CARD, minute(60), minute(3600)), 4000.0)
    accountant.answer(batch(minute(0), minute(90_000)), 90_100.0)
    assert sums(path, HOUR) == [(0, 120.0), (3600, 60.0), (90_000, 60.0)]
    assert sums(path, DAY) == [(0, 180.0), (DAY, 60.0)]


def test_what_was_sampled_of_a_job_is_kept_until_the_job_arrives(accountant, path):
    accountant.answer(batch(CARD, JobSample(job=7, usage=replace(USAGE, used=1.0))), 0.0)
    accountant.answer(batch(JobSample(job=7, usage=USAGE)), 1.0)
    accountant.answer(batch(changed(JOB, usage=None)), 2.0)
    accountant.answer(batch(JobSample(job=7, usage=replace(USAGE, used=2.0))), 3.0)
    assert [job.usage for job in jobs(path)] == [USAGE]


def test_a_record_that_cannot_be_stored_delays_no_other(accountant, path):
    accountant.answer(batch(CARD, JOB), 0.0)
    other = changed(JOB, submitted_at=11.0)
    late = changed(JOB, id=8)
    unknown = HealthEvent(at=1.0, uuid="GPU-9", kind="xid", detail="79")
    answer = accountant.answer(batch(other, late, unknown, minute(0, uuid="GPU-9"), minute(60)), 100.0)
    assert (answer.error, answer.refused) == ("", (7,))
    assert [job.id for job in jobs(path)] == [7, 8]
    assert sums(path, MINUTE) == [(60, 60.0)]


def test_a_record_that_cannot_be_parsed_or_breaks_a_rule_delays_no_other(accountant, path, capsys):
    accountant.answer(batch(CARD), 0.0)
    unknown = Gap(since=float("nan"), until=1.0, why="x")
    too_large = replace(CARD, uuid="GPU-7", total=1 << 70)
    endless = changed(JOB, id=8, suspended=float("inf"))
    records = (unknown, too_large, endless, JOB, minute(0), Gap(since=1.0, until=2.0, why="z"))
    answer = accountant.answer(batch(*records, number=3), 100.0)
    assert (answer.number, answer.error, answer.refused) == (3, "", (8,))
    assert ([job.id for job in jobs(path)], sums(path, MINUTE)) == ([7], [(0, 60.0)])
    assert capsys.readouterr().err.count("it is left out: ") == 3
    assert accountant.answer(batch(*records), 200.0).refused == (8,)


def test_old_minutes_and_hours_are_deleted_and_their_days_stay(accountant, path):
    accountant.answer(batch(CARD, *(minute(at) for at in range(0, 2 * DAY, 1800))), 2.0 * DAY)
    days = sums(path, DAY)
    now = 16 * DAY
    while accountant.prune(now):
        pass
    assert [at for at, _ in sums(path, MINUTE)] == list(range(2 * DAY, 2 * DAY, 1800))
    assert len(sums(path, HOUR)) == 48
    while accountant.prune(500 * DAY):
        pass
    assert (sums(path, HOUR), sums(path, DAY)) == ([], days)


def test_a_minute_older_than_the_kept_ones_does_not_change_its_hour(accountant, path):
    accountant.answer(batch(CARD, minute(0), minute(60)), 100.0)
    while accountant.prune(20 * DAY):
        pass
    assert accountant.answer(batch(minute(120)), 20.0 * DAY).error == ""
    assert (sums(path, MINUTE), sums(path, HOUR)) == ([], [(0, 120.0)])


def test_new_accounts_appear_with_all_their_tables(accountant, path, monkeypatch):
    """A reader that comes while they are made finds no accounts, and no empty ones."""
    seen, link = [], os.link

    def noted(here, there):
        LedgerReader(here).close()
        seen.append(there.exists())
        return link(here, there)

    monkeypatch.setattr(os, "link", noted)
    assert accountant.answer(batch(CARD), 0.0).error == ""
    assert (seen, os.listdir(path.parent).count("accounts.db.new")) == ([False], 0)


def test_accounts_that_are_missing_are_not_replaced_by_empty_ones(accountant, path):
    accountant.answer(batch(CARD), 0.0)
    kept = path.with_name("away.db")
    accountant.close()
    path.rename(kept)
    answer = accountant.answer(batch(JOB), 1.0)
    assert answer.error == f"the accounts {path} are missing"
    assert str(guard.marker_of(path)) in answer.remedy
    kept.rename(path)
    assert accountant.answer(batch(JOB), 2.0).error == ""
    assert [job.id for job in jobs(path)] == [7]


def test_accounts_that_are_replaced_while_they_are_open_are_noticed(accountant, path, tmp_path):
    accountant.answer(batch(CARD), 0.0)
    other = tmp_path / "other" / "accounts.db"
    other.parent.mkdir()
    stranger = Accountant(other, UTC, KEEP)
    stranger.answer(batch(CARD), 0.0)
    stranger.close()
    os.replace(other, path)
    answer = accountant.answer(batch(JOB), 1.0)
    assert "contains other accounts" in answer.error
    guard.marker_of(path).unlink()
    assert accountant.answer(batch(JOB), 2.0).error == ""


def test_newer_accounts_are_left_as_they_are(accountant, path):
    accountant.answer(batch(CARD), 0.0)
    accountant.close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    answer = accountant.answer(batch(JOB), 1.0)
    assert "has version 99" in answer.error
    assert "Use the fgsched that wrote it" in answer.remedy


def test_a_file_that_is_no_database_is_told_and_left(accountant, path):
    path.write_bytes(b"no database at all" * 100)
    assert "file is not a database" in accountant.answer(batch(JOB), 1.0).error
    assert path.read_bytes() == b"no database at all" * 100


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_on_a_full_disk_nothing_is_acknowledged_and_later_all_is_stored(accountant, path):
    accountant.answer(batch(CARD), 0.0)
    ledger = accountant._ledger
    pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
    ledger._db.execute(f"PRAGMA max_page_count = {pages}")
    many = [changed(JOB, id=number, output="x" * 4000) for number in range(1, 20)]
    answer = accountant.answer(batch(*many), 1.0)
    assert "full" in answer.error
    assert jobs(path) == []
    assert accountant.answer(batch(*many), 2.0).error == ""
    assert len(jobs(path)) == 19


def test_the_accountant_ends_when_the_other_end_is_closed(accountant, path):
    ours, theirs = socket.socketpair()
    ours.sendall(batch(CARD, JOB, number=3)[:50])
    ours.sendall(batch(CARD, JOB, number=3)[50:] + b"nonsense\n")
    ours.shutdown(socket.SHUT_WR)
    serve(accountant, theirs.fileno(), theirs.fileno(), clock=lambda: 100.0)
    theirs.close()
    first, second, rest = ours.makefile("rb").read().split(b"\n")
    ours.close()
    assert parse_answer(first).number == 3
    assert parse_answer(second) == Answer(number=-1, error=parse_answer(second).error)
    assert rest == b""
    assert len(jobs(path)) == 1


def test_what_a_controller_has_sent_before_its_end_is_stored_though_it_reads_no_answer(accountant, path):
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(batch(CARD, JOB) + batch(minute(60), number=2))
        serve(accountant, theirs.fileno(), theirs.fileno(), clock=lambda: 100.0)
    assert (len(jobs(path)), sums(path, MINUTE)) == (1, [(60, 60.0)])


def test_an_accountant_that_cannot_start_says_so_in_one_line(tmp_path, capfd):
    process = AccountantProcess(tmp_path / "missing" / "accounts.db", Keep(minutes=DAY, hours=DAY, days=DAY))
    process.start()
    with open(os.pidfd_open(process.pid), "rb") as ended:
        assert select.select([ended], [], [], PATIENCE)[0]
    process.close()
    lock = tmp_path / "missing" / "accounts.lock"
    assert capfd.readouterr().err == f"the accountant cannot start: {lock}: No such file or directory\n"


def test_a_new_file_can_be_read_by_its_owner_only(accountant, path):
    accountant.answer(batch(CARD), 0.0)
    assert path.stat().st_mode & 0o777 == 0o600


# -- hours and days ------------------------------------------------------------------------------------


def test_a_day_has_25_hours_when_the_clock_is_set_back():
    begin, end = day_of(1_792_904_400, BERLIN)  # 2026-10-25
    assert (begin, end - begin) == (1_792_879_200, 25 * HOUR)
    hours = [hour_of(at, BERLIN) for at in range(begin, end, HOUR)]
    assert hours == [(at, at + HOUR) for at in range(begin, end, HOUR)]


def test_a_day_has_23_hours_when_the_clock_is_set_forward():
    begin, end = day_of(1_774_742_400, BERLIN)  # 2026-03-29
    assert (begin, end - begin) == (1_774_738_800, 23 * HOUR)


@given(st.integers(0, 4_000_000_000), st.sampled_from(ZONES))
def test_hours_and_days_cover_all_times_once_in_every_zone(at, name):
    zone = ZoneInfo(name)
    for find in (hour_of, day_of):
        begin, end = find(at, zone)
        assert begin <= at < end
        assert find(begin, zone) == find(end - 1, zone) == (begin, end)
        assert find(end, zone)[0] == end
    hour, day = hour_of(at, zone), day_of(at, zone)
    assert day[0] <= hour[0] < hour[1] <= day[1], "an hour belongs to one day"
