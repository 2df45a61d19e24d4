"""The run directory of FG_HOME: in memory where the user has a directory there, otherwise in FG_HOME."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from crashing import controller_of, kill
from fgsched.domain.errors import Unreachable
from fgsched.system.paths import Paths
from fgsched.system.runplace import placed
from live_host import living

ME, BOOT = os.geteuid(), "boot-2"
_MEMORY = Path("/dev/shm")
pytestmark = pytest.mark.skipif(
    not os.access(_MEMORY, os.W_OK) or os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC != 0,
    reason="needs /dev/shm, writable and without noexec",
)


@pytest.fixture
def memory():
    """A user's directory for run-time files, on another file system than the home."""
    path = Path(tempfile.mkdtemp(prefix="fgtest-", dir=_MEMORY))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def home(disk, memory):
    if disk.stat().st_dev == memory.stat().st_dev:
        pytest.skip("needs a temporary directory on another file system than /dev/shm")
    (disk / "home").mkdir(0o700)
    return disk / "home"


def paths_of(home):
    return Paths.find({"FG_HOME": str(home)}, ME)


def place(home, memory):
    """Do what a controller does at its start, and return its paths."""
    paths = paths_of(home)
    paths.prepare(ME)
    return placed(paths, {"XDG_RUNTIME_DIR": str(memory)} if memory else {}, ME, BOOT)


def test_the_run_directory_is_in_memory_and_every_command_finds_it(home, memory):
    before = paths_of(home)
    paths = place(home, memory)
    assert (paths.run.parent, paths.run_link, paths.socket) == (memory, home / "run", home / "run/socket")
    assert paths_of(home) == paths, "also a command without XDG_RUNTIME_DIR"
    for one in (before, paths):
        one.check(ME)
        one.prepare(ME)
    assert before.socket == paths.socket, "a command that was started earlier connects to the same socket"


def test_the_next_controller_uses_the_same_directory_whatever_its_variables_are(home, memory, tmp_path):
    first = place(home, memory)
    assert place(home, None) == first
    assert place(home, tmp_path) == first


def test_after_a_restart_of_the_host_the_directory_is_made_again(home, memory):
    first = place(home, memory)
    first.run.rmdir()
    assert place(home, memory) == first
    assert first.run.is_dir()


def test_without_a_directory_in_memory_after_a_restart_of_the_host_it_is_in_the_home(home, memory):
    place(home, memory)
    shutil.rmtree(memory)
    paths = place(home, None)
    assert (paths.run, paths.run_link) == (home / "run", None)
    assert (home / "run").is_dir()
    assert not (home / "run").is_symlink()


@pytest.mark.parametrize(
    ("claim", "moves"),
    [(f"P:5:6:{BOOT}", False), (f"H:5:6:{BOOT}", False), ("P:5:6:boot-1", True), ("T", True)],
)
@pytest.mark.parametrize("folder", ["claim", "0123abcd/claim", "0123abcd/claimed"])
def test_a_run_directory_with_attempts_of_this_boot_keeps_its_place(home, memory, claim, moves, folder):
    (home / "run" / folder).mkdir(parents=True, mode=0o755)
    (home / "run" / folder / "1.1").symlink_to(claim)
    paths = place(home, memory)
    assert (paths.run_link is not None) is moves
    assert (home / "run" / folder / "1.1").is_symlink() is not moves


def test_a_directory_that_others_can_write_or_that_is_on_the_same_file_system_is_not_used(home, memory, disk):
    assert place(home, disk).run == home / "run"
    memory.chmod(0o777)
    assert place(home, memory).run == home / "run"


def test_a_link_to_a_directory_that_others_can_write_is_refused(home, memory):
    paths = place(home, memory)
    paths.run.chmod(0o777)
    with pytest.raises(Unreachable, match="can be changed by others"):
        paths_of(home).check(ME)


@pytest.mark.skipif(ME != 0, reason="needs root")
def test_a_link_or_a_target_of_another_user_is_refused(home, memory):
    paths = place(home, memory)
    os.chown(paths.run, 65534, 65534)
    with pytest.raises(Unreachable, match="belongs to uid 65534"):
        paths_of(home).check(ME)
    os.chown(paths.run, ME, ME)
    os.lchown(home / "run", 65534, 65534)
    with pytest.raises(Unreachable, match="is a symbolic link"):
        paths_of(home).check(ME)


def test_a_link_that_was_removed_is_made_again(home, memory):
    paths = place(home, memory)
    (home / "run").unlink()
    (home / "run").mkdir()
    paths.prepare(ME)
    assert paths_of(home) == paths


@pytest.mark.compiler
def test_jobs_run_below_the_link_and_a_killed_controller_is_followed_by_one_in_the_same_place(home, memory):
    with living(home) as place_of:
        runtime = {"XDG_RUNTIME_DIR": str(memory)}
        place_of.run("fgq", "-h", env=runtime)
        job = place_of.submit("echo $FG_JOB_DIR")
        place_of.wait(job)
        assert Path((home / f"fg-{job}.out").read_text()).is_relative_to(paths_of(home).run)
        kill(controller_of(place_of))
        assert place_of.run("fgq", "-h").status == 0, "without the variable, as from cron"
        assert paths_of(home).run.parent == memory
