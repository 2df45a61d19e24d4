"""Backups of queue and accounts while jobs run, their restoration, and archives of old records."""

import os
import tarfile
import threading
from contextlib import suppress

import pytest

from endedjobs import changed
from fgsched.accounting.backup import archive, back_up
from fgsched.accounting.ledger import Ledger, LedgerReader
from fgsched.domain.errors import Refused
from fgsched.domain.times import DAY, HOUR, MINUTE
from live_host import living
from test_accountant import minute, sums
from test_ledger import CARD, JOB
from test_moving import SOON, moved, of_accounts


def fill(ledger):
    """Add ten jobs, one for each day, and a minute of each day."""
    with ledger.write():
        ledger.add_gpus([CARD])
        ledger.add_jobs(changed(JOB, id=one, ended_at=one * DAY + 0.5) for one in range(10))
        for day in range(10):
            ledger.add_minute(minute(day * DAY))
            ledger.roll(HOUR, day * DAY, day * DAY + HOUR)
            ledger.roll(DAY, day * DAY, (day + 1) * DAY)


@pytest.fixture
def ledger(tmp_path):
    one = Ledger(tmp_path / "accounts.db")
    fill(one)
    yield one
    one.close()


def ids(path):
    reader = LedgerReader(path)
    found = [job.id for job in reader.jobs(0, 1e10)]
    reader.close()
    return found


def test_an_archive_takes_old_jobs_minutes_and_hours_and_leaves_days(ledger, tmp_path):
    file = tmp_path / "old.db"
    whole = sums(ledger.path, DAY)
    assert archive(ledger, file, 4 * DAY) == 4
    assert (ids(file), ids(ledger.path)) == ([0, 1, 2, 3], [4, 5, 6, 7, 8, 9])
    for span in (MINUTE, HOUR):
        assert [at for at, _ in sums(file, span)] == [day * DAY for day in range(4)]
        assert [at for at, _ in sums(ledger.path, span)] == [day * DAY for day in range(4, 10)]
    assert sums(ledger.path, DAY) == whole
    assert archive(ledger, file, 6 * DAY) == 2, "the same file takes more"
    assert ids(file) == [0, 1, 2, 3, 4, 5]


def test_archived_jobs_are_as_they_were(ledger, tmp_path):
    reader = LedgerReader(ledger.path)
    before = list(reader.jobs(0, 4 * DAY))
    archive(ledger, tmp_path / "old.db", 4 * DAY)
    old = LedgerReader(tmp_path / "old.db")
    assert list(old.jobs(0, 4 * DAY)) == before
    old.close()
    reader.close()


def test_the_ids_of_archived_jobs_are_not_used_again(ledger, tmp_path):
    archive(ledger, tmp_path / "old.db", 100 * DAY)
    reader = LedgerReader(ledger.path)
    assert (list(reader.jobs(0, 1e10)), reader.last_id()) == ([], 9)
    reader.close()


class Interrupted(Exception):
    """The process that makes the archive ends."""


@pytest.mark.parametrize("calls", range(12))
def test_an_archive_that_is_interrupted_anywhere_is_continued(ledger, tmp_path, calls, monkeypatch):
    """Each record is in one file after the second call, whichever transaction was the last of the first."""
    file, left, write = tmp_path / "old.db", [calls], Ledger.write

    def counted(self):
        left[0] -= 1
        if left[0] < 0:
            raise Interrupted
        return write(self)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "write", counted)
        with suppress(Interrupted):
            archive(ledger, file, 4 * DAY)
    archive(ledger, file, 4 * DAY)
    assert (ids(file), ids(ledger.path)) == ([0, 1, 2, 3], [4, 5, 6, 7, 8, 9])
    for span in (MINUTE, HOUR):
        assert len(sums(file, span)) == 4
        assert len(sums(ledger.path, span)) == 6


def test_an_archive_of_other_accounts_is_refused(ledger, tmp_path):
    archive(ledger, tmp_path / "old.db", DAY)
    (tmp_path / "other").mkdir()
    other = Ledger(tmp_path / "other" / "accounts.db")
    with pytest.raises(Refused, match="is an archive of other accounts"):
        archive(other, tmp_path / "old.db", DAY)
    other.close()


def test_the_accounts_are_not_their_own_archive(ledger):
    with pytest.raises(Refused, match="is the file of the accounts"):
        archive(ledger, ledger.path, 100 * DAY)
    assert len(ids(ledger.path)) == 10


def test_a_backup_replaces_no_file(ledger, tmp_path):
    file = tmp_path / "backup.tar"
    file.write_text("precious")
    with pytest.raises(Refused, match="exists"):
        back_up(ledger.path, ledger.path, file)
    assert file.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_backup_into_a_directory_that_is_missing_names_the_directory(home):
    file = home.path / "missing" / "x.tar"
    done = home.run("fgctl", "backup", str(file))
    cause = f"{file} cannot be written: there is no directory {file.parent}"
    assert (done.status, done.err) == (6, f"fgctl: error: {cause}\nMake it first.\n")


@pytest.mark.compiler
def test_a_backup_made_while_jobs_run_is_restored(tmp_path):
    with living(tmp_path / "home", config=SOON) as home:
        old = home.ended("exit 3")
        moved(home, old)
        stop = threading.Event()
        made = []

        def submit():
            while not stop.is_set():
                made.append(int(home.run("fgsub", "--parsable", "--output=/dev/null", "--wrap", "true").out))

        thread = threading.Thread(target=submit)
        thread.start()
        file = tmp_path / "backup.tar"
        done = home.run("fgctl", "backup", str(file))
        stop.set()
        thread.join()
        assert (done.status, done.err) == (0, "")
        assert file.stat().st_mode & 0o777 == 0o600
        home.wait(*made)
        assert home.run("fgctl", "backup", str(file)).status == 1
    with living(tmp_path / "restored", config=SOON) as other:
        with tarfile.open(file) as tar:
            assert sorted(tar.getnames()) == ["accounts.db", "queue.db"]
            for (
                name
            ) in tar.getnames():  # extractall has no filter before Python 3.11.4, and needs one from 3.12 on
                (other.path / name).write_bytes(tar.extractfile(name).read())
        history = [(job["id"], job["state"], job["exit_code"]) for job in other.history()]
        assert history[0] == (old, "FAILED", 3)
        numbers = [number for number, _, _ in history]
        assert numbers == list(range(1, len(history) + 1)), "each submitted job once"
        other.wait(*numbers)
        assert other.submit(hold=True) > numbers[-1]


@pytest.mark.compiler
def test_old_jobs_are_archived_by_a_command(tmp_path):
    with living(tmp_path / "home", config=SOON) as home:
        job = home.ended()
        moved(home, job)
        file = tmp_path / "old.db"
        done = home.run("fgctl", "archive", "--before", "now", str(file))
        assert (done.status, done.out) == (0, f"{file}: 1 jobs moved\n")
        assert ids(file) == [job]
        assert of_accounts(home.path) == set()
        assert home.run("fgctl", "show", "job", str(job)).status == 3
        assert home.submit() == job + 1
        done = home.run("fgctl", "archive", "--before", "now", "/nonexistent/old.db")
        assert done.status == 6


@pytest.mark.root
def test_root_writes_no_copy_where_another_user_could_exchange_it(home, tmp_path):
    assert home.run("fgsched", "start").status == 0
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    for words in (("backup",), ("archive", "--before", "now-1hour")):
        done = home.run("fgctl", *words, str(theirs / "copy"))
        assert (done.status, list(theirs.iterdir())) == (1, [])
        assert f"{theirs} belongs to uid 65534" in done.err
