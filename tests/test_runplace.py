"""The run directory of a user's controller: in the state directory, or where no logout removes it."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from awaiting import until_written
from crashing import controller_of, kill
from fgsched.domain.errors import StorageError
from fgsched.system import runplace
from fgsched.system.paths import Paths
from fgsched.system.runplace import file_system, placed
from live_host import living

ME, BOOT = os.geteuid(), "boot-2"
NO_HOST = Path("/nonexistent")


@pytest.fixture
def shared(tmp_path):
    """A directory that every user can write to, as /var/tmp."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    return tmp_path / "shared"


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir(0o700)
    return tmp_path / "home"


def paths_of(home):
    return Paths.find({"FG_HOME": str(home)}, ME)


def place(home, *shared):
    """Do what a controller does at its start, and return its paths."""
    paths = paths_of(home)
    paths.prepare(ME)
    return placed(paths, ME, BOOT, shared=shared)


def on_a_network(monkeypatch, *homes):
    """Pretend that these directories are on NFS."""
    kind = runplace.file_system
    monkeypatch.setattr(
        runplace, "file_system", lambda path: "nfs4" if path.is_relative_to(homes[0]) else kind(path)
    )


def test_the_run_directory_is_in_the_state_directory_whatever_the_variables_are(home, shared):
    paths = place(home, shared)
    assert (paths.run, paths.run_link) == (home / "run", None)
    state = {"HOME": str(home), "XDG_RUNTIME_DIR": "/run/user/0"}
    for environ in (state, {"HOME": str(home)}):
        own = Paths.find(environ, ME, system_run=NO_HOST, initialised=NO_HOST)
        assert own.run == home / ".local/state/fgsched/run"


@pytest.mark.parametrize("name", ["a b", "a:b", "a\tb", "a" * 90])
def test_a_path_that_the_linker_or_a_socket_cannot_take_has_its_run_directory_elsewhere(
    tmp_path, shared, name
):
    home = tmp_path / name
    home.mkdir(0o700)
    paths = place(home, shared)
    assert (paths.run.parent, paths.run_link) == (shared, home / "run")
    assert paths.run.stat().st_mode & 0o777 == 0o700
    assert paths_of(home) == paths == place(home, shared)


def test_a_home_on_a_network_has_its_run_directory_on_this_host(home, shared, monkeypatch):
    on_a_network(monkeypatch, home)
    before = paths_of(home)
    paths = place(home, shared)
    assert paths.run.parent == shared
    assert before.refreshed(ME) == paths_of(home) == paths


def test_the_types_of_file_systems_are_those_of_the_kernel():
    assert file_system(Path("/proc/self/status")) == "proc"
    assert file_system(Path("/proc/none/below")) == "proc"


def test_without_any_place_the_controller_says_what_it_needs(home, tmp_path, monkeypatch):
    on_a_network(monkeypatch, home)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)  # without the sticky bit others could exchange it
    with pytest.raises(StorageError, match=r"neither the state directory nor .*open can hold"):
        place(home, tmp_path / "open")


def squat_file(path):
    path.touch()


def squat_open(path):
    path.mkdir()
    path.chmod(0o777)


def squat_link(path):
    path.symlink_to("/etc")


@pytest.mark.parametrize("squat", [squat_file, squat_open, squat_link, None])
def test_what_a_cleaner_removed_and_another_made_again_is_left_for_another_name(
    home, shared, monkeypatch, squat
):
    on_a_network(monkeypatch, home)
    first = place(home, shared)
    first.run.rmdir()
    if squat:
        squat(first.run)
        assert paths_of(home).is_lost
    paths_of(home).check(ME)
    second = place(home, shared)
    assert second.run.parent == shared
    assert (second.run == first.run) is (squat is None)
    assert not second.is_lost
    if squat:
        assert os.path.lexists(first.run), "it is not ours to remove"


@pytest.mark.parametrize(
    ("claim", "moves"),
    [(f"P:5:6:{BOOT}", False), (f"H:5:6:{BOOT}", False), ("P:5:6:boot-1", True), ("T", True)],
)
@pytest.mark.parametrize("folder", ["0123abcd/claim", "0123abcd/claimed"])
def test_a_run_directory_elsewhere_is_kept_while_attempts_of_this_boot_use_it(
    home, tmp_path, claim, moves, folder
):
    before = tmp_path / "fgsched-1234abcd"
    (before / folder).mkdir(parents=True, mode=0o755)
    (before / folder / "1.1").symlink_to(claim)
    (home / "run").symlink_to(before)
    paths = place(home)
    assert (paths.run != before) is moves
    assert before.exists() is not moves


def test_a_link_that_was_removed_is_made_again(home, shared, monkeypatch):
    on_a_network(monkeypatch, home)
    paths = place(home, shared)
    (home / "run").unlink()
    (home / "run").mkdir()
    paths.prepare(ME)
    assert paths_of(home) == paths


@pytest.mark.compiler
@pytest.mark.parametrize("name", ["my home", "a" * 120])
def test_jobs_run_whatever_the_path_of_the_home_is(tmp_path, name):
    with living(tmp_path / name) as home:
        job = home.submit("echo $FG_JOB_DIR")
        home.wait(job)
        run = home.paths.run
        assert run.parent in runplace.SHARED
        assert Path((home.path / f"fg-{job}.out").read_text()).is_relative_to(run)
        kill(controller_of(home))
        assert home.run("fgq", "-h").status == 0


@pytest.mark.compiler
def test_jobs_go_on_and_start_after_the_last_logout_has_removed_the_runtime_directory(tmp_path):
    runtime = Path(tempfile.mkdtemp(prefix="fgtest-", dir="/dev/shm"))
    with living(tmp_path / "home", devices="sim:1x16G") as home:
        login = {"XDG_RUNTIME_DIR": str(runtime)}
        assert home.run("fgq", "-h", env=login).status == 0
        gate, words = home.path / "gate", ["--gpus=1", "-o", "out.%j", "--wrap"]
        os.mkfifo(gate)
        first, second = f"echo on; cat {gate}; ls -d $FG_JOB_DIR", "echo started"
        for script in (first, second):
            assert home.run("fgsub", *words, script, env=login).status == 0
        until_written(home.path / "out.1", "on")
        shutil.rmtree(runtime)  # logind: the last session has ended
        gate.write_text("")
        assert [job["state"] for job in home.wait(1, 2)] == ["COMPLETED", "COMPLETED"]
        assert "started" in (home.path / "out.2").read_text()
        assert "cannot be preloaded" not in (home.path / "out.1").read_text()
        assert home.run("fgq", "-h").status == 0, "as from cron, without the variable"


def test_in_a_chroot_without_a_mount_for_its_root_the_file_system_is_known(tmp_path, monkeypatch):
    listed = runplace.file_system(tmp_path)
    mounts = tmp_path / "mountinfo"
    mounts.write_text("30 1 0:25 / /proc rw - proc proc rw\n")
    monkeypatch.setattr(runplace, "_MOUNTS", mounts)
    assert runplace.file_system(tmp_path / "not" / "there") == listed
    assert runplace.is_suitable(Path("/tmp/fgsched-01234567"))
    assert runplace.file_system(Path("/proc/self")) == "proc"
