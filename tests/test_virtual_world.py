"""Whole sites in virtual time: whatever dies, whenever, no controller breaks a promise."""

import logging
import os
import random
import shutil
import sqlite3
import subprocess
from contextlib import closing, suppress
from datetime import UTC

import pytest

from endedjobs import changed
from faultydisk import KINDS, FaultyDisk, why_not
from fgsched.accounting.accountant import Accountant
from fgsched.accounting.ledger import Ledger
from fgsched.accounting.messages import Keep
from fgsched.accounting.records import Gap
from fgsched.domain.errors import StorageError
from fgsched.domain.times import DAY
from fgsched.store import Store
from fgsched.store.recovering import recover
from fgsched.system import disk
from live_host import ROOT
from test_accountant import batch
from test_guarded_accounts import jobs_of
from test_ledger import CARD, JOB
from test_sums import submit
from virtualworld import VirtualWorld, Weather
from worldchecks import Violation

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
BUSY, CALM = range(4), range(1000, 1010)  # seeds of each run
UNKNOWN = 0  # instead of a commit, as in an unpacked archive
BROKE = [  # seed, days, what was wrong
    (7, 22.0, "a GPU that an earlier attempt had not left was given to another job"),
    (9, 9.0, "no end was stored while the accounts could not be read"),
    (10, 30.0, "a letter that a loss of power had cut short was not sent"),
    (22, 17.0, "commits were lost behind a commit whose sync had failed"),
    (33, 21.0, "a log was lost with the name that a killed controller had given it"),
    (301, 30.0, "the log of the accounts was lost with its name: a sync of the directory had failed"),
]
MOST = 10.0  # days of these: a changed controller has another history; what each showed has its own test
DAYS, PACE = 100, 0.03  # of a calm history
FAULTS = ("kills", "power cuts", "stops", "reboots", "disk errors", "disk full", "accountants killed")


@pytest.fixture(autouse=True)
def quiet():
    """Let the many controllers log nothing."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def lived(seed, directory, days, *, pace=1.0):
    directory.mkdir()
    with VirtualWorld(seed, directory, Weather().paced(pace)) as world:
        try:
            world.run(days)
            world.finish()
        except Violation as broken:
            again = f"scripts/bench/world --seed {seed} --days {days} --pace {pace}"
            pytest.fail(f"{broken}\nrepeat it: {again}", pytrace=False)
        return world


def seeds_of_the_commit():
    """Return ten seeds, mostly others in each commit, of 1,040 whose histories were lived through."""
    words = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        number = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout[:12], 16)
    except (OSError, ValueError, subprocess.CalledProcessError):
        number = UNKNOWN
    first = (1 + number % 8) * 10**11 + 23_456_789_000 + number // 8 % 13 * 10
    return range(first, first + 10)


def test_no_promise_is_broken_where_faults_are_many(tmp_path):
    worlds = [lived(seed, tmp_path / str(seed), 2.0) for seed in BUSY]
    assert [kind for kind in FAULTS if not any(world.counts[kind] for world in worlds)] == []
    assert sum(len(world.host.runs) for world in worlds) > 60


@pytest.mark.parametrize("part", range(4))
def test_no_promise_is_broken_in_two_thousand_calm_days(tmp_path, part):
    seeds = [*CALM, *seeds_of_the_commit()][part::4]
    worlds = [lived(seed, tmp_path / str(seed), DAYS, pace=PACE) for seed in seeds]
    assert sum(world.counts["days"] for world in worlds) == 500
    assert sum(len(world.host.runs) for world in worlds) > 20


@pytest.mark.parametrize(("seed", "days"), [(seed, min(days, MOST)) for seed, days, _ in BROKE])
def test_no_promise_is_broken_in_histories_that_broke_one(tmp_path, seed, days):
    counts = lived(seed, tmp_path / str(seed), days).counts
    assert any(counts[fault] for fault in FAULTS)


def test_one_seed_is_one_history(tmp_path):
    first, again, other = (lived(seed, tmp_path / name, 1.0) for seed, name in ((3, "a"), (3, "b"), (4, "c")))
    assert first.history == again.history != other.history
    assert first.counts == again.counts


def written(path, number):
    """Commit the next numbers until the power fails, and return the last committed one."""
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        try:
            db.execute("CREATE TABLE IF NOT EXISTS n (n)")
            for _ in range(20):
                db.execute("INSERT INTO n VALUES (?)", (number + 1,))
                number += 1
        except sqlite3.OperationalError:
            pass
    db.close()
    return number


def test_a_power_cut_loses_no_synchronised_write_and_can_lose_the_others(tmp_path):
    path, lost = tmp_path / "a.db", 0
    with FaultyDisk(tmp_path, random.Random(1)) as disk:
        last = written(path, 0)
        for calls in range(2, 38, 2):
            disk.arm(calls, "cut")
            last = written(path, last)
            disk.disarm()
            lost += len(disk.unsynced)
            disk.restore(is_power=True)
            with sqlite3.connect(path) as db:
                here = [row[0] for row in db.execute("SELECT n FROM n ORDER BY n")]
            db.close()
            assert here[:last] == list(range(1, last + 1))
            last = len(here)
    assert lost > 5, "the power was never cut between a write and its sync"


@pytest.fixture
def faulty(tmp_path):
    """A disk, and the descriptor of a file on it that has two synchronised pages."""
    (tmp_path / "disk").mkdir()
    with FaultyDisk(tmp_path / "disk", random.Random(1)) as device:
        fd = os.open(tmp_path / "disk" / "a", os.O_RDWR | os.O_CREAT)
        disk.write(fd, b"old " * 2048)
        disk.sync(fd)
        yield device, fd
        os.close(fd)


def failed_sync(device, fd):
    disk.write(fd, b"new " * 2048)
    device._draw = random.Random(3)  # nothing is evicted at once
    device.arm(0, "EIO")
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(fd)


def test_pages_of_a_failed_sync_are_lost_at_a_power_cut_although_later_syncs_succeed(faulty):
    device, fd = faulty
    failed_sync(device, fd)
    disk.sync(fd)
    assert os.pread(fd, 8192, 0) == b"new " * 2048
    device.restore(is_power=True)
    assert os.pread(fd, 8192, 0) == b"old " * 2048


def test_only_the_pages_of_a_failed_sync_that_are_written_again_survive(faulty):
    device, fd = faulty
    failed_sync(device, fd)
    disk.write(fd, b"xxxx", 5000)
    disk.sync(fd)
    device.restore(is_power=True)
    assert os.pread(fd, 4096, 0) == b"old " * 1024
    assert os.pread(fd, 4096, 4096) == b"new " * 226 + b"xxxx" + b"new " * 797


def test_a_file_that_is_written_again_survives_whatever_happened_to_its_syncs(faulty, tmp_path):
    device, fd = faulty
    failed_sync(device, fd)
    disk.write_again(tmp_path / "disk" / "a")
    device.restore(is_power=True)
    assert (tmp_path / "disk" / "a").read_bytes() == b"new " * 2048


CHANGES = {
    "create": lambda path: disk.create_file(path.with_name("new"), b"new"),
    "rename": lambda path: disk.rename(path, path.with_name("new")),
    "link": lambda path: disk.link(path, path.with_name("new")),
    "remove": lambda path: disk.remove(path),
}


def here(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_names_is_durable_after_a_sync_of_its_directory_and_can_be_lost_before(tmp_path, change):
    (tmp_path / "disk").mkdir()
    path, fates = tmp_path / "disk" / "a", set()
    with FaultyDisk(tmp_path / "disk", random.Random(1)) as device:
        for _ in range(12):
            disk.replace_file(path, b"old")
            before = here(path.parent)
            CHANGES[change](path)
            after = here(path.parent)
            device.restore(is_power=True)
            assert here(path.parent) in (before, after)
            fates.add(here(path.parent) == after)
            disk.remove(path.with_name("new"), missing_ok=True)
            disk.replace_file(path, b"old")
        CHANGES[change](path)
        disk.sync_directory(path.parent)
        device.restore(is_power=True)
        assert here(path.parent) == after
    assert fates == {True, False}


def test_changes_of_names_whose_directory_could_not_be_synchronised_are_lost_unless_made_again(tmp_path):
    (tmp_path / "disk").mkdir()
    path = tmp_path / "disk" / "a"
    with FaultyDisk(tmp_path / "disk", random.Random(1)) as device:
        disk.replace_file(path, b"old")
        device.arm(0, "EIO", "directory")
        with pytest.raises(OSError, match="Input/output"):
            disk.replace_file(path, b"new")
        disk.sync_directory(path.parent)
        assert path.read_bytes() == b"new"
        device.restore(is_power=True)
        assert path.read_bytes() == b"old"
        device.arm(0, "EIO", "directory")
        with pytest.raises(OSError, match="Input/output"):
            disk.replace_file(path, b"new")
        disk.write_again(path)
        device.restore(is_power=True)
        assert here(path.parent) == {"a": b"new"}


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_strikes_the_calls_of_its_kind_only(tmp_path, kind):
    (tmp_path / "disk").mkdir()
    path = tmp_path / "disk" / "a"

    def work():
        disk.replace_file(path, b"content")
        disk.link(path, path.with_name("b"))
        disk.remove(path.with_name("b"))
        fd = disk.kernel.open(path, os.O_RDWR)
        disk.kernel.truncate(fd, 3)
        os.close(fd)

    with FaultyDisk(tmp_path / "disk", random.Random(1)) as device:
        work()
        device.arm(0, "EIO", kind)
        with pytest.raises(OSError, match="Input/output"):
            work()
        assert device.hurt == {f"disk: {kind}": 1}


@pytest.mark.parametrize("left", [b"", bytes(32)], ids=["empty", "header"])
@pytest.mark.parametrize("fate", range(4))
def test_commits_do_not_rely_on_the_name_of_a_log_that_another_process_created(tmp_path, left, fate):
    (tmp_path / "disk").mkdir()
    path = tmp_path / "disk" / "queue.db"
    with FaultyDisk(tmp_path / "disk", random.Random(fate)) as device:
        Store(path).close()
        disk.create_file(path.with_name("queue.db-wal"), left, syncs=False)
        device.is_full = True  # nothing else synchronises the directory
        store = Store(path)
        device.is_full = False
        submit(store, 1)
        device.cut()
        with suppress(sqlite3.Error):
            store._opened.db.close()
        device.restore(is_power=True)
        again = Store(path)
        assert again.last_id() == 1
        again.close()


def test_a_name_that_was_not_synchronised_can_be_lost_and_a_synchronised_one_is_kept(tmp_path):
    (tmp_path / "disk").mkdir()
    path = tmp_path / "disk" / "a"
    contents = set()
    with FaultyDisk(tmp_path / "disk", random.Random(1)) as device:
        for number in range(10):
            disk.replace_file(path, b"kept %d" % number)
            disk.create_file(path.with_name("b"), b"lost")
            disk.rename(path.with_name("b"), path)
            device.restore(is_power=True)
            contents.add(path.read_bytes().split()[0])
            assert path.read_bytes() in (b"kept %d" % number, b"lost")
    assert contents == {b"kept", b"lost"}


def new_accounts(folder, device):
    """Store two jobs in new accounts and cut the power. Return what reads their ids."""
    path = folder / "accounts.db"
    accountant = Accountant(path, UTC, Keep(minutes=DAY, hours=DAY, days=-1))
    for number in (1, 2):
        while accountant.answer(batch(CARD, changed(JOB, id=number)), 1.0).error:
            accountant.close()  # as its process ends
    device.cut()
    accountant.close()
    return lambda: jobs_of(path)


def new_queue(folder, device):
    """Store two jobs in a new queue and cut the power. Return what reads their ids."""
    path, number, store = folder / "queue.db", 1, None
    while number < 3:
        with suppress(StorageError, sqlite3.Error):  # as its controller ends, and the next one starts
            store = store or Store(path)
            submit(store, number)
            number += 1
            continue
        if store is not None:
            store.close()
        store = None
    device.cut()
    with suppress(StorageError, sqlite3.Error):
        store.close()

    def read():
        with closing(Store(path)) as again:
            return [job.id for job in again.open_jobs()]

    return read


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        *(("directory", calls) for calls in range(8)),
        *(("sync", calls) for calls in range(14)),
        *(("", calls) for calls in range(30)),
    ],
)
@pytest.mark.parametrize("make", [new_accounts, new_queue])
def test_nothing_relies_on_a_new_file_whose_name_or_pages_a_failed_sync_lost(tmp_path, make, kind, calls):
    """Later syncs succeed without writing what the failed one has lost; SQLite ignores some errors, too."""
    for fate in range(4):
        folder = tmp_path / str(fate)
        folder.mkdir()
        with FaultyDisk(folder, random.Random(fate)) as device:
            device.arm(calls, "EIO", kind)
            read = make(folder, device)
            assert not list(folder.glob("*.new*")), "pages are in a log that nobody will read"
            device.disarm()
            device.restore(is_power=True)
            assert read() == [1, 2]


@pytest.mark.parametrize("calls", range(60))
def test_a_recovered_queue_is_whole_on_the_disk_or_not_recovered(tmp_path, calls):
    (tmp_path / "disk").mkdir()
    path = tmp_path / "disk" / "queue.db"
    with closing(Store(path)) as store:
        submit(store, 1)
        submit(store, 2)
    is_done = False
    with FaultyDisk(tmp_path / "disk", random.Random(calls)) as device:
        device.arm(calls, "EIO")
        with suppress(StorageError):
            recover(path, started={}, beyond=0, ending="damaged-1", now=9.0)
            is_done = True
        device.disarm()
        device.restore(is_power=True)
        if not is_done:
            recover(path, started={}, beyond=0, ending="damaged-2", now=9.0)
        with closing(Store(path)) as again:
            assert [job.id for job in again.open_jobs()] == [1, 2]


@pytest.mark.parametrize("fate", range(4))
def test_accounts_do_not_rely_on_the_name_of_a_log_that_a_failed_sync_of_the_directory_lost(tmp_path, fate):
    (tmp_path / "disk").mkdir()
    path = tmp_path / "disk" / "accounts.db"
    with FaultyDisk(tmp_path / "disk", random.Random(fate)) as device:
        Ledger(path).close()
        disk.sync_directory(path.parent)
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("SELECT count(*) FROM job").fetchone()  # creates the log
            device.arm(0, "EIO", "directory")
            with pytest.raises(OSError, match="Input/output"):
                disk.replace_file(path.with_name("mail"), b"of another process")
            ledger = Ledger(path, is_guarded=True)
            with ledger.write():
                ledger.add_gap(Gap(since=1.0, until=2.0, why="controller stopped"))
            device.cut()
            ledger.close()
        device.restore(is_power=True)
        with closing(Ledger(path, is_guarded=True)), closing(sqlite3.connect(path)) as reader:
            assert reader.execute("SELECT count(*) FROM gap").fetchone() == (1,)


def test_a_log_between_its_two_names_is_found_again(tmp_path):
    (tmp_path / "disk").mkdir()
    store = Store(tmp_path / "disk" / "queue.db")
    submit(store, 1)
    left = tmp_path / "left by a killed controller"
    shutil.copytree(tmp_path / "disk", left)
    store.close()
    (left / "queue.db-wal").rename(left / "queue.db-wal.name")
    with closing(Store(left / "queue.db")) as again:
        assert again.last_id() == 1
