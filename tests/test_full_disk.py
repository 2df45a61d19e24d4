"""A real file system without space below the state of root's controller, and later with space."""

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import silent
from awaiting import PATIENCE, rest
from fakehost import UIDS, hosting, why_not
from fgsched import protocol
from fgsched.domain.errors import StorageError
from fgsched.store import StorageBroken, Store
from fgsched.system import disk
from live_host import living
from mailserver import serving

_WHY_NOT = why_not()
pytestmark = pytest.mark.root
needs_hosts = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "can be made")
OPTIONS = {"blocks": "size=12m", "inodes": "size=64m,nr_inodes=120"}
STATE = "var/lib/fgsched"


def become(is_so):
    """Return the value of a condition once it is true."""
    end = time.monotonic() + PATIENCE
    while not (found := is_so()):
        assert time.monotonic() < end, "it never came to that"
        rest()
    return found


class Filled:
    """A file system without a block or an inode, until the block ends."""

    def __init__(self, folder):
        self._folder, self._count = folder / "filling", 0

    def __enter__(self):
        self._folder.mkdir()
        for size in (1 << 20, 4096, 0):
            self._fill(size)
        return self

    def settle(self):
        """Write all that waits to be written, which gives reserved space back, and fill that."""
        for _ in range(3):
            os.sync()
            self._fill(4096)

    def _fill(self, size):
        while True:
            self._count += 1
            try:
                with open(self._folder / str(self._count), "wb") as file:
                    file.write(bytes(size))
                    file.flush()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                return
            if not size and self._count > 5000:  # inodes are not limited
                return

    def __exit__(self, *_):
        for name in os.listdir(self._folder):
            os.unlink(self._folder / name)
        self._folder.rmdir()


def states(host, ids):
    return [host.job(number)["state"] for number in ids]


def processes(host):
    """Return the processes of alice's jobs."""
    return host.do("root", "pgrep", "-u", str(UIDS["alice"]), "-f", "sleep 1000000").out.split()


def waiting_mails(host):
    return os.listdir(host.root / STATE / "mail/new")


@needs_hosts
@pytest.mark.parametrize("lacking", OPTIONS)
def test_what_ends_on_a_full_disk_is_stored_and_mailed_once_when_there_is_space(tmp_path, lacking):
    with serving(tmp_path / "mails") as server, hosting(config=_config(server), started=False) as host:
        options = f"mode=700,{OPTIONS[lacking]}"
        made = host.do("root", "sh", "-ec", f"mkdir -p /{STATE}; mount -t tmpfs -o {options} none /{STATE}")
        assert made.status == 0, made.err
        host.start()
        mails = ("--mail-type=END", "--mail-user=alice")
        jobs = [host.running("alice", "--gpus=0.25", *mails) for _ in range(4)]
        with Filled(host.root / STATE):
            for number in jobs:
                done = host.run("alice", "fgcancel", "--signal=KILL", str(number))
                assert done.status == 0, done.err
            become(lambda: not processes(host))
            assert host.run("root", "fgq").status == 0, "questions are answered"
            told = host.run("root", "fgsched", "doctor")
            assert "FAIL disk" in told.out, told.out
            assert not server.mails
        # A cancellation is stored where the end of another job left room for it.
        become(lambda: set(states(host, jobs)) <= {"FAILED", "CANCELLED"})
        become(lambda: len(server.mails) == 4 and not waiting_mails(host))
        assert host.ended("bob", "exit 0")["state"] == "COMPLETED", "without a restart"
        assert len(server.mails) == 4, "each once"
        shown = host.run("root", "fgacct", "-n", "-X", "-o", "JobID,State", "-S", "today")
        assert shown.out.count("FAILED") + shown.out.count("CANCELLED") == 4, shown.out


def _config(server):
    return '[gpus]\ndevices = "sim:2x16G"\n[host]\ncpus = 64\n' + server.settings(domain='"example.org"')


# -- a quota ------------------------------------------------------------------------------------------


def _quotas() -> str:
    """Return why no file system with a quota can be made; "" if one can."""
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        return "needs uid 0 and loop devices"
    if not shutil.which("mkfs.btrfs") or "btrfs" not in Path("/proc/filesystems").read_text():
        return "needs btrfs, whose subvolumes have quotas without tools of the kernel's quotas"
    return ""


needs_quotas = pytest.mark.skipif(bool(_quotas()), reason=_quotas() or "can be made")


@contextmanager
def limited(folder, size):
    """Yield a directory with a quota of `size` (as "24M") in a file system that has more space."""
    image, place = folder / "image", folder / "disk"
    place.mkdir()
    image.touch()
    os.truncate(image, 256 << 20)
    run = (
        ("mkfs.btrfs", "-q", image),
        ("mount", "-o", "loop", image, place),
        ("btrfs", "quota", "enable", place),
    )
    made = (
        ("btrfs", "subvolume", "create", place / "home"),
        ("btrfs", "qgroup", "limit", size, place / "home"),
    )
    try:
        for command in (*run, *made):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        yield place / "home"
    finally:
        subprocess.run(["umount", "--lazy", place], check=False)


def test_a_quota_that_was_raised_after_it_refused_a_write_is_no_failed_disk(tmp_path, monkeypatch):
    """SQLite names no quota: an earlier refusal decides about one further error, and a commit forgets it."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_WRITE"
    used_up = iter([True, False, False, True])
    monkeypatch.setattr(disk, "has_used_up_quota", lambda place: next(used_up))
    store = Store(tmp_path / "queue.db")
    kinds = [type(store._unwritten(error)) for _ in range(4)]
    assert kinds == [StorageError, StorageError, StorageBroken, StorageError]
    error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
    assert isinstance(store._unwritten(error), StorageBroken)
    store.close()


@needs_quotas
def test_a_users_controller_whose_quota_is_used_up_says_so_goes_on_and_loses_nothing(tmp_path):
    with limited(tmp_path, "24M") as place, living(place / "state") as home:
        running = home.running()
        ended = home.ended("exit 7")
        pid = home.client.call(protocol.Ping()).pid
        with Filled(place):
            refused = home.run("fgsub", "--gpus=0.25", "--wrap", "true")
            assert (refused.status, refused.out) == (6, "")
            assert f"the quota for {place}" in refused.err, refused.err
            assert home.job(running)["state"] == "RUNNING"
            told = home.run("fgsched", "doctor")
            assert f"FAIL disk        the quota for {place}" in told.out, told.out
            killed = home.run("fgcancel", "--signal=KILL", str(running))
            assert killed.status == 0, killed.err
        become(lambda: home.job(running)["state"] == "FAILED")
        assert home.client.call(protocol.Ping()).pid == pid, "the same controller"
        assert home.job(ended)["exit_code"] == 7
        become(lambda: home.run("fgsub", "--gpus=0.25", "--wrap", "true").status == 0)


@needs_quotas
def test_accounts_are_read_where_a_quota_has_no_space_for_a_page_of_the_index_of_their_log(tmp_path):
    """With copy on write, a page that is mapped and on the disk needs space when it is written again."""
    with limited(tmp_path, "24M") as place:
        words = [sys.executable, "-c", WRITER, str(place / "accounts.db")]
        writer = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert writer.stdout.readline() == "2 rows\n"
            with Filled(place) as full:
                full.settle()  # from now on, each page of the index needs space
                assert read(place) == (0, "2 rows\n"), "a new mark of a reader"
                writer.kill()
                writer.wait()
                assert read(place) == (0, "2 rows\n"), "a new index"
                (place / "accounts.db-shm").unlink()
                status, text = read(place)
                assert (status, "space on its disk" in text) == (1, True), "no space for the name of an index"
        finally:
            writer.communicate()


WRITER = """
import sys
from fgsched.accounting.ledger import Ledger

ledger = Ledger(sys.argv[1])
ledger._db.execute("CREATE TABLE row (value)")
for value in 1, 2:
    ledger._db.execute("INSERT INTO row VALUES (?)", [value])
print("2 rows", flush=True)
sys.stdin.read()
"""
READER = """
import sys
from fgsched.accounting.ledger import LedgerReader

for [count] in LedgerReader(sys.argv[1])._db.execute("SELECT count(*) FROM row"):
    print(count, "rows")
"""


def read(place):
    """Read the accounts in a process; return its status and output."""
    words = [sys.executable, "-c", READER, str(place / "accounts.db")]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stdout or done.stderr


@needs_quotas
def test_a_quota_for_the_files_of_a_job_ends_this_job_alone_and_names_the_file(tmp_path):
    with limited(tmp_path, "8M") as place, living(tmp_path / "state") as home:
        with Filled(place):
            told = home.run("fgsub", "--parsable", "--output", str(place / "new"), "--wrap", "true")
            home.wait(int(told.out))
            job = home.job(int(told.out))
            assert (job["state"], job["reason"]) == ("FAILED", "JobLaunchFailure")
            assert f"open {place}/new: Disk quota exceeded" in job["detail"], job["detail"]
            assert home.job(home.ended("exit 4"))["exit_code"] == 4
        script = f"head -c 64M /dev/urandom >{place}/data || exit 9"
        told = home.run("fgsub", "--parsable", "--output", str(place / "out"), "--wrap", script)
        home.wait(int(told.out))
        job = home.job(int(told.out))
        assert (job["state"], job["exit_code"]) == ("FAILED", 9)
        told = home.run("fgsub", "--parsable", "--wrap", "ulimit -f 8; exec head -c 1M /dev/zero >large")
        home.wait(int(told.out))
        job = home.job(int(told.out))
        assert (job["state"], job["signal"]) == ("FAILED", signal.SIGXFSZ)


# -- a disk that fails ----------------------------------------------------------------------------------


@pytest.mark.root
@silent.needs_fuse
@pytest.mark.parametrize("option", ["output", "error", "input", "chdir"])
def test_a_file_that_the_disk_cannot_open_ends_its_job_alone_and_is_named(home, tmp_path, option):
    (far := tmp_path / "far").mkdir()
    (far / "file").touch()
    path = far if option == "chdir" else far / "file"
    made = home.run("fgsub", "--parsable", "--hold", f"--{option}", str(path), "--wrap", "true")
    with silent.failing(far):
        assert home.run("fgctl", "release", made.out.strip()).status == 0
        home.wait(int(made.out))
        job = home.job(int(made.out))
        assert (job["state"], job["reason"]) == ("FAILED", "JobLaunchFailure")
        assert f"{path}: Input/output error" in job["detail"]
        assert f"{path}: Input/output error" in home.run("fgctl", "show", "job", made.out.strip()).out
        told = home.run("fgtail", made.out.strip())
        assert told.status == (1 if option == "output" else told.status)
        assert "Traceback" not in told.err
    assert home.job(home.ended("exit 4"))["exit_code"] == 4
