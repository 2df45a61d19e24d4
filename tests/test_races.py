"""Another user exchanges directories and links all the time while root makes and writes files there."""

import ctypes
import os
import shutil
import sys
import time
from contextlib import suppress

import pytest

from awaiting import PATIENCE
from fakehost import CONFIG, UIDS, hosting, why_not
from fgsched.cli import hint
from fgsched.cli.cron import install_units
from fgsched.domain.errors import FgschedError
from fgsched.system import places
from fgsched.system.spaces import Scratch
from inmemory import new_directory
from otheruser import acting

UID, OTHER, THIRD = os.geteuid(), 54321, 54322
AT_FDCWD, EXCHANGE = -100, 2
pytestmark = [pytest.mark.root, pytest.mark.skipif(UID != 0, reason="only root can be another user")]
_WHY_NOT = why_not()
on_a_host = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "can be made")
LIBC = ctypes.CDLL(None, use_errno=True)
ROUNDS = 300


def exchange(one, other):
    """Exchange two entries at once, or leave them if one of them is not there."""
    LIBC.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), EXCHANGE)


def repeated(act):
    """Return what calls a function again and again, whatever the files of the moment refuse."""

    def acts():
        while True:
            with suppress(OSError):
                act()

    return acts


@pytest.fixture
def place():
    """A directory that every user can enter, with one of another user and a secret of root's."""
    path = new_directory()
    (path / "secret").mkdir(mode=0o755)
    (path / "secret" / "name").write_text("secret")
    (path / "home").mkdir()
    os.chown(path / "home", OTHER, OTHER)
    yield path
    shutil.rmtree(path)


def replace(path):
    places.replace_file(path / "home" / "rep" / "name", b"written", make=True)


def write_new(path):
    with (
        suppress(FileExistsError),
        places.new_file(path / "home" / "rep" / f"n{time.monotonic_ns()}") as file,
    ):
        file.write(b"written")


def write_units(path):
    install_units(path / "home" / "rep" / "units", {"name": "written"})


def remember(path):
    os.environ["FG_HOME"] = str(path / "home" / "rep")
    try:
        hint.remember(["written"])
    finally:
        del os.environ["FG_HOME"]


@pytest.mark.parametrize("write", [replace, write_new, write_units, remember])
def test_an_exchange_at_any_moment_leads_nothing_of_root_elsewhere(place, write):
    os.mkdir(place / "home" / "rep", 0o755)
    os.chown(place / "home" / "rep", OTHER, OTHER)
    os.symlink(place / "secret", place / "home" / "link")
    os.lchown(place / "home" / "link", OTHER, OTHER)
    refused = rounds = 0
    always = write is remember  # root makes nothing in directories of another user
    latest = time.monotonic() + PATIENCE  # on a busy host the other user may not run for many rounds
    with acting(OTHER, repeated(lambda: exchange(place / "home" / "rep", place / "home" / "link"))):
        while rounds < ROUNDS or (refused in (0, None if always else rounds) and time.monotonic() < latest):
            rounds += 1
            try:
                write(place)
            except (OSError, FgschedError):
                refused += 1
    assert os.listdir(place / "secret") == ["name"]
    assert (place / "secret" / "name").read_text() == "secret"
    assert refused > 0, "the exchange is met"
    assert refused < rounds or always, "both are met"


def clean(tmp, names):
    """Remove root's directories, as a cleaner of /tmp does, and note their names."""
    for root in os.listdir(tmp):
        if os.lstat(tmp / root).st_uid == 0:
            (names / root).touch()
            shutil.rmtree(tmp / root, ignore_errors=True)


def squat(tmp, names, secret):
    """Make the directories that were removed, for all, and exchange what is made in them with a link."""
    for root in os.listdir(names):
        with suppress(OSError):
            os.mkdir(tmp / root)
            os.chmod(tmp / root, 0o777)
        with suppress(OSError):
            os.symlink(secret, tmp / root / "link")
        for entry in os.listdir(tmp / root):
            if entry != "link":
                exchange(tmp / root / entry, tmp / root / "link")


def test_a_cleaner_and_another_user_that_run_all_the_time_get_no_directory_of_a_user(place):
    tmp, names, made = place / "tmp", place / "names", 0
    for path, mode in ((place / "run", 0o711), (tmp, 0o1777), (names, 0o777)):
        path.mkdir()
        path.chmod(mode)
    scratch = Scratch(place / "run", f"{tmp}/fg-", for_all=True)
    cleaner, squatter = (lambda: clean(tmp, names)), (lambda: squat(tmp, names, place / "secret"))
    with acting(0, repeated(cleaner)), acting(OTHER, repeated(squatter)):
        for _ in range(ROUNDS):
            with suppress(OSError):  # the cleaner was faster, again and again: the job waits
                scratch.of(THIRD, THIRD)
                made += 1
    assert made > 0
    assert os.lstat(place / "secret").st_uid == 0
    assert os.lstat(place / "secret" / "name").st_uid == 0
    last = scratch.of(THIRD, THIRD)
    assert os.lstat(last).st_uid == THIRD
    assert os.lstat(os.path.dirname(last)).st_uid == 0


# -- a host with users -----------------------------------------------------------------------------------


SWAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
place, secret = sys.argv[1:]
print("ready", flush=True)
while True:
    try:
        for entry in os.listdir(place):
            path, link = f"{place}/{entry}", f"{place}/link{entry}"
            if entry.startswith("link"):
                continue
            if not os.path.lexists(link):
                os.symlink(secret, link)
            libc.renameat2(-100, path.encode(), -100, link.encode(), 2)
            libc.renameat2(-100, path.encode(), -100, link.encode(), 2)
    except OSError:
        pass
"""
FORESEEABLE = [
    *("/tmp/fgsched-{uid}", "/tmp/fgsched", "/tmp/fgrun-{uid}", "/tmp/fg-{uid}", "/tmp/.fgsched-{uid}"),
    *("/var/tmp/fgsched-{uid}", "/var/tmp/fgsched", "/dev/shm/fgsched-{uid}", "/dev/shm/fgsched"),
]
SQUATS = {
    "a directory": "mkdir -m 755 {path}",
    "a directory for all": "mkdir {path}; chmod 777 {path}",
    "a file": "touch {path}",
    "a FIFO": "mkfifo {path}",
    "a link": "ln -s /etc {path}",
}


@pytest.fixture(scope="module")
def host():
    with hosting(config=CONFIG) as made:
        yield made


@on_a_host
def test_a_user_who_exchanges_directories_of_own_jobs_harms_only_those(host):
    secret = host.path / "secret"
    secret.mkdir()
    secret.chmod(0o755)
    (secret / "name").write_text("secret")
    host.ended("alice", "echo $TMPDIR")
    place = os.path.dirname(host.output("alice")[0])
    with host.enter("alice", sys.executable, "-c", SWAP, place, secret) as swap:
        try:
            assert swap.stdout.readline() == "ready\n"
            for _ in range(5):
                host.ended("alice", "echo x >$TMPDIR/x")
                assert host.ended("bob", "echo x >$TMPDIR/x")["state"] == "COMPLETED"
        finally:
            swap.kill()
    assert os.listdir(secret) == ["name"]
    assert (secret / "name").read_text() == "secret"
    assert (secret / "name").stat().st_uid == 0


@on_a_host
@pytest.mark.parametrize("kind", SQUATS)
def test_every_name_that_can_be_foreseen_is_taken_and_jobs_run(host, kind):
    paths = [path.format(uid=UIDS["alice"]) for path in FORESEEABLE]
    own = {"FG_HOME": str(host.home("alice") / "own")}  # a controller of alice's
    made = "; ".join(SQUATS[kind].format(path=path) for path in paths)
    try:
        host.do("bob", "sh", "-c", made)
        assert all(map(os.path.lexists, paths))
        for words in (("fgsub", "--wait", "--wrap", "true"), ("fgrun", "true"), ("fgq",)):
            done = host.run("alice", *words)
            assert done.status == 0, done.err
        done = host.run("alice", "fgsub", "--wait", "--wrap", "true", env=own)
        assert done.status == 0, done.err
    finally:
        host.do("bob", "sh", "-c", "; ".join(f"rm -rf {path}" for path in paths))
        assert host.run("alice", "fgsched", "stop", env=own).status == 0
