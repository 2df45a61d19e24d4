"""The accounts are guarded as the queue is: what is missing or damaged is an error with figures."""

import random
import shutil
import sqlite3
from contextlib import closing, contextmanager, suppress
from datetime import UTC

import pytest

from endedjobs import changed
from faultydisk import FaultyDisk, why_not
from fgsched.accounting import guard
from fgsched.accounting.accountant import Accountant
from fgsched.accounting.ledger import Ledger, LedgerReader
from fgsched.controller.moving import PastJobs
from fgsched.domain.errors import StorageError
from fgsched.store import files
from fgsched.store.store import Unreadable
from fgsched.system import disk
from test_accountant import CARD, JOB, KEEP, batch, minute

COMMITS = 12
FRAME, HEADER = 24 + 4096, 32


def jobs_of(path):
    reader = LedgerReader(path)
    try:
        return [job.id for job in reader.jobs(0, 1e10)]
    finally:
        reader.close()


def rows_of(path):
    """Return the jobs whose rows are in the table; its indexes may have others."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return [row[0] for row in db.execute("SELECT id FROM job NOT INDEXED ORDER BY id")]


@pytest.fixture
def killed(tmp_path):
    """The files of accounts whose accountant was killed: 12 jobs, one a commit, the last ten in the log."""
    here = tmp_path / "alive"
    here.mkdir()
    path = here / "accounts.db"
    accountant = Accountant(path, UTC, KEEP)
    for number in range(1, COMMITS + 1):
        if number == 3:
            accountant.close()  # makes a checkpoint
        answer = accountant.answer(batch(CARD, changed(JOB, id=number), minute(60 * number)), 1.0)
        assert answer.error == ""
    there = tmp_path / "killed"
    there.mkdir()
    for file in here.iterdir():
        if not file.name.endswith("-shm"):
            shutil.copy(file, there / file.name)
    accountant.close()
    return there / "accounts.db"


def refused(path):
    """Return the error of the accountant; every reader must have it too, and nothing may be changed."""
    before = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.suffix != ".db-shm"}
    accountant = Accountant(path, UTC, KEEP)
    error = accountant.answer(batch(changed(JOB, id=99)), 2.0).error
    accountant.close()
    assert error
    with pytest.raises(StorageError):
        jobs_of(path)
    with pytest.raises(Unreadable):
        PastJobs(path).past(1)
    assert guard.damage(path)
    after = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.name in before}
    assert after == before
    return error


def test_accounts_of_a_killed_accountant_have_all_their_jobs(killed):
    assert guard.damage(killed) == ""
    accountant = Accountant(killed, UTC, KEEP)
    assert accountant.answer(batch(changed(JOB, id=13)), 2.0).error == ""
    accountant.close()
    assert jobs_of(killed) == list(range(1, COMMITS + 2))


def test_a_lost_log_is_an_error_that_counts_the_lost_jobs_and_dates_them(killed):
    killed.with_name("accounts.db-wal").unlink()
    error = refused(killed)
    assert "lack their last 10 commits, from " in error
    assert "with 10 ended jobs" in error


def test_a_flipped_bit_in_any_frame_of_the_log_is_no_silent_loss(killed, tmp_path):
    data = killed.with_name("accounts.db-wal").read_bytes()
    frames = (len(data) - HEADER) // FRAME
    assert frames > 20
    silent = []
    for frame in range(frames):
        where = tmp_path / f"flip-{frame}"
        shutil.copytree(killed.parent, where)
        at = HEADER + frame * FRAME + 24 + 1000 + frame % 1000
        flipped = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
        (where / "accounts.db-wal").write_bytes(flipped)
        path = where / "accounts.db"
        answer = Accountant(path, UTC, KEEP).answer(batch(changed(JOB, id=99)), 2.0)
        if not answer.error and jobs_of(path) != [*range(1, COMMITS + 1), 99]:
            silent.append(frame)
        if answer.error:
            with pytest.raises(StorageError):
                jobs_of(path)
    assert silent == []


def test_an_accountant_that_starts_after_a_loss_of_power_writes_the_number_of_the_last_commit_again(killed):
    file = killed.with_suffix(".commits")
    latest = files.read_commit(file)
    older = latest._replace(number=latest.number - 3, last_job=COMMITS - 3)  # never synchronised
    files.Record(file, older).close()
    accountant = Accountant(killed, UTC, KEEP)
    accountant.begin()
    accountant.close()
    assert files.read_commit(file)[:3] == latest[:3]


def test_an_accountant_makes_no_accounts_before_it_has_something_to_store(tmp_path):
    Accountant(tmp_path / "accounts.db", UTC, KEEP).begin()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 31, HEADER + FRAME * 3, HEADER + FRAME * 7 + 100])
def test_a_truncated_log_is_refused(killed, size):
    log = killed.with_name("accounts.db-wal")
    log.write_bytes(log.read_bytes()[:size])
    assert "lack their last" in refused(killed)


def test_an_older_copy_is_refused_with_figures(killed, tmp_path):
    older = tmp_path / "older.db"
    with sqlite3.connect(killed) as db, sqlite3.connect(older) as copy:
        db.execute("DELETE FROM job WHERE id > 6")
        db.execute("UPDATE commits SET count = 6, jobs = 6")
        db.commit()
        db.backup(copy)
    db.close()
    copy.close()
    killed.with_name("accounts.db-wal").unlink(missing_ok=True)
    killed.with_name("accounts.db-shm").unlink(missing_ok=True)
    shutil.copy(older, killed)
    assert "lack their last 6 commits" in refused(killed)


def test_a_copy_from_before_the_guard_is_refused_where_a_guarded_one_was(killed, tmp_path):
    fresh = tmp_path / "unguarded.db"
    ledger = Ledger(fresh)
    name = guard.recorded_name(killed)
    with ledger.write():
        ledger._db.execute("UPDATE meta SET value = ? WHERE key = 'name'", (name,))
    ledger.close()
    killed.with_name("accounts.db-wal").unlink()
    shutil.copy(fresh, killed)
    assert "lack their last 12 commits" in refused(killed)


def test_a_missing_or_damaged_commit_file_is_refused(killed):
    file = killed.with_name("accounts.commits")
    data = file.read_bytes()
    file.unlink()
    assert "accounts.commits is missing" in refused(killed)
    file.write_bytes(b"\0" * len(data))
    assert "no record" in refused(killed)
    file.write_bytes(data)
    assert guard.damage(killed) == ""


def test_a_flipped_bit_in_the_file_is_found_at_every_page(killed, tmp_path):
    accountant = Accountant(killed, UTC, KEEP)
    accountant.answer(batch(changed(JOB, id=13)), 2.0)
    accountant.close()
    data = killed.read_bytes()
    for page in range(len(data) // 4096):
        at = page * 4096 + 2000
        killed.write_bytes(data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])
        assert "differs from its checksums" in Accountant(killed, UTC, KEEP).answer(batch(JOB), 2.0).error
        assert guard.damage(killed)
    killed.write_bytes(data)
    killed.with_name("accounts.damaged").unlink(missing_ok=True)
    assert guard.damage(killed) == ""


def test_another_program_that_wrote_the_accounts_is_no_damage(killed):
    with sqlite3.connect(killed) as db:
        db.execute("UPDATE job SET name = 'renamed' WHERE id = 3")
    db.close()
    accountant = Accountant(killed, UTC, KEEP)
    assert accountant.answer(batch(changed(JOB, id=13)), 2.0).error == ""
    accountant.close()
    assert guard.damage(killed) == ""


def test_a_log_that_is_removed_under_a_running_accountant_costs_nothing(tmp_path):
    path = tmp_path / "accounts.db"
    accountant = Accountant(path, UTC, KEEP)
    for number in range(1, 4):
        assert accountant.answer(batch(CARD, changed(JOB, id=number)), 1.0).error == ""
        path.with_name("accounts.db-wal").unlink()
    assert accountant.answer(batch(changed(JOB, id=4)), 1.0).error == ""
    accountant.close()
    assert (jobs_of(path), guard.damage(path)) == ([1, 2, 3, 4], "")


def test_a_log_that_is_removed_costs_nothing_where_the_accountant_is_closed_next(tmp_path):
    path = tmp_path / "accounts.db"
    accountant = Accountant(path, UTC, KEEP)
    assert accountant.answer(batch(CARD, changed(JOB, id=1)), 1.0).error == ""
    path.with_name("accounts.db-wal").unlink()
    accountant.close()
    assert (jobs_of(path), guard.damage(path)) == ([1], "")


@contextmanager
def accounts_on_a_faulty_disk(folder, checkpoint=0):
    """Give the disk, an accountant that has stored the jobs 1 to 39 there, and the path of its accounts."""
    (folder / "disk").mkdir()
    path = folder / "disk" / "accounts.db"
    with FaultyDisk(folder / "disk", random.Random(1)) as device:
        accountant = Accountant(path, UTC, KEEP)
        for number in range(1, 40):
            assert accountant.answer(batch(CARD, changed(JOB, id=number)), 1.0).error == ""
            if number == checkpoint:
                accountant.close()
        yield device, accountant, path


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("calls", range(0, 30, 3))
@pytest.mark.parametrize("is_full", [False, True])
def test_a_job_is_in_the_accounts_once_whichever_call_of_the_disk_fails(tmp_path, calls, is_full):
    with accounts_on_a_faulty_disk(tmp_path, checkpoint=39 * is_full) as (device, accountant, path):
        device.is_full = is_full
        device.arm(calls, "EIO")
        for number in range(40, 45):
            answer = accountant.answer(batch(changed(JOB, id=number)), 2.0)
            assert answer.error == "" or str(path) in answer.error
            assert answer.error or number in jobs_of(path), "what is acknowledged is there"
        device.is_full = False
        device.disarm()
        for number in range(40, 45):
            assert accountant.answer(batch(changed(JOB, id=number)), 3.0).error == ""
        accountant.close()
        assert (jobs_of(path), guard.damage(path)) == ([*range(1, 45)], "")


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_accounts_whose_quota_is_used_up_say_so(tmp_path, monkeypatch):
    """SQLite reports an I/O error."""
    monkeypatch.setattr(disk, "has_used_up_quota", lambda place: place == tmp_path / "disk")
    with accounts_on_a_faulty_disk(tmp_path) as (device, accountant, path):
        device.arm(0, "EIO", "write")
        answer = accountant.answer(batch(changed(JOB, id=40)), 2.0)
        accountant.close()
    assert answer.error == f"the accounts {path}: the quota for {path.parent} is used up"


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("calls", range(12))
def test_a_log_that_is_removed_costs_nothing_where_a_call_of_the_disk_fails_at_the_close(tmp_path, calls):
    with accounts_on_a_faulty_disk(tmp_path) as (device, accountant, path):
        reading = f"file:{path}?mode=ro"  # with a reader SQLite makes no checkpoint at the close
        with closing(sqlite3.connect(reading, uri=True)) as reader:
            reader.execute("SELECT count(*) FROM job").fetchone()
            path.with_name("accounts.db-wal").unlink()
            device.arm(calls, "EIO")
            accountant.close()
            device.disarm()
        assert jobs_of(path) == list(range(1, 40))


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("calls", range(20))
def test_a_log_that_is_removed_is_no_silent_loss_where_power_fails_at_the_close(tmp_path, calls):
    with accounts_on_a_faulty_disk(tmp_path, checkpoint=20) as (device, accountant, path):
        path.with_name("accounts.db-wal").unlink()
        device.arm(calls, "cut")
        accountant.close()
        device.disarm()
        device.restore(is_power=True)
        assert guard.damage(path) or rows_of(path) == list(range(1, 40))


def test_a_log_that_is_removed_before_the_first_message_of_an_accountant_costs_nothing(killed):
    accountant = Accountant(killed, UTC, KEEP)
    accountant.begin()
    killed.with_name("accounts.db-wal").unlink()
    for number in range(COMMITS + 1, COMMITS + 4):
        assert accountant.answer(batch(changed(JOB, id=number)), 2.0).error == ""
    accountant.close()
    assert (jobs_of(killed), guard.damage(killed)) == ([*range(1, COMMITS + 4)], "")


def test_many_commits_keep_checksums_while_a_reader_holds_an_old_state(tmp_path):
    path = tmp_path / "accounts.db"
    accountant = Accountant(path, UTC, KEEP)
    accountant.answer(batch(CARD), 1.0)
    reader = LedgerReader(path)
    with reader.reading():
        assert list(reader.jobs(0, 1e10)) == []
        for number in range(1, 300):
            accountant.answer(batch(changed(JOB, id=number)), 1.0)
    reader.close()
    assert guard.damage(path) == ""
    for number in range(300, 600):
        accountant.answer(batch(changed(JOB, id=number)), 1.0)
    accountant.close()
    assert (len(jobs_of(path)), guard.damage(path)) == (599, "")


def lose_log_after_half_of_a_checkpoint(path):
    """Leave the ten jobs of the log in the indexes of jobs, and not in their table. Return the lost log."""
    log = path.with_name("accounts.db-wal")
    data = log.read_bytes()
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as db:
        roots = {row[0] for row in db.execute("SELECT rootpage FROM sqlite_master WHERE type = 'index'")}
    with path.open("rb+") as file:
        for start in range(HEADER, len(data), FRAME):
            page = int.from_bytes(data[start : start + 4], "big")
            if page in roots:
                file.seek((page - 1) * 4096)
                file.write(data[start + 24 : start + FRAME])
    log.unlink()
    return data


def test_a_recovery_after_half_of_a_checkpoint_makes_the_indexes_again(killed):
    lose_log_after_half_of_a_checkpoint(killed)
    assert "lack their last" in refused(killed)
    guard.recover(killed, "damaged-1")
    with closing(sqlite3.connect(killed)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert jobs_of(killed) == [1, 2]


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("calls", range(0, 40, 2))
def test_a_log_that_is_found_after_a_recovery_that_failed_has_all_jobs(killed, calls):
    data, before = lose_log_after_half_of_a_checkpoint(killed), killed.read_bytes()
    with FaultyDisk(killed.parent, random.Random(calls)) as device:
        device.arm(calls, "EIO")
        with suppress(StorageError, OSError):
            guard.recover(killed, "damaged-1")
        device.disarm()
    assert killed.read_bytes() == before
    killed.with_name("accounts.db-wal").write_bytes(data)
    guard.recover(killed, "damaged-2")
    assert (jobs_of(killed), guard.damage(killed)) == ([*range(1, COMMITS + 1)], "")
    assert not list(killed.parent.glob("*.recovering*"))


def test_a_recovery_repairs_the_log_and_accepts_what_is_there(killed):
    log = killed.with_name("accounts.db-wal")
    data = bytearray(log.read_bytes())
    data[HEADER + 24 + 4000] ^= 4
    log.write_bytes(data)
    assert "lack their last" in refused(killed)
    report = guard.recover(killed, "damaged-1")
    assert "continue after commit 12, with 12 jobs" in report
    assert killed.with_name("accounts.db-wal.damaged-1").read_bytes() == data
    accountant = Accountant(killed, UTC, KEEP)
    assert accountant.answer(batch(changed(JOB, id=13)), 2.0).error == ""
    accountant.close()
    assert jobs_of(killed) == list(range(1, COMMITS + 2))
    assert guard.recover(killed, "damaged-2") == ""


def test_a_recovery_accepts_a_loss(killed):
    killed.with_name("accounts.db-wal").unlink()
    assert "with 2 jobs" in guard.recover(killed, "damaged-1")
    assert guard.damage(killed) == ""
    assert jobs_of(killed) == [1, 2]


@pytest.mark.parametrize("row", ["1, 12, 0, x'6a', 0.0", "1, 'job', 0, 12, 0.0", "1, 12, 0, 12, NULL"])
def test_a_damaged_count_of_commits_is_damage_and_no_internal_error(killed, row):
    """A page of an older log can have other rows in the place of this one."""
    table = "DROP TABLE commits; CREATE TABLE commits (only, count, rows, jobs, at)"
    with closing(sqlite3.connect(killed)) as db, db:
        db.executescript(f"{table}; INSERT INTO commits VALUES ({row})")
    assert refused(killed)


def test_a_lost_count_of_commits_is_damage_and_no_internal_error(killed):
    with closing(sqlite3.connect(killed)) as db, db:
        db.execute("DELETE FROM commits")
    assert refused(killed)
