"""A queue belongs to one host: another one with the same home never starts its jobs again."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from awaiting import until_written
from crashing import controller_of
from fgsched.domain.errors import StorageError, Unreachable
from fgsched.system import ownhost
from fgsched.system.ownhost import (
    HostIdentity,
    QueueOwner,
    claim,
    hold_jobs_lock,
    is_same,
    owner_of,
    refuse_another_host,
)
from live_host import ROOT, living

A = HostIdentity(machine="a" * 32, name="alpha", boot="boot-1", pids="1", hardware=("02:00:00:00:00:01",))
OTHER_CARDS = ("02:00:00:00:00:02",)
_NAMESPACES = ["unshare", "--uts", "--pid", "--mount", "--fork", "--mount-proc"]
_AS_ANOTHER = """
hostname "$NEW_NAME"
mount --bind "$IDS/boot" /proc/sys/kernel/random/boot_id
[ -e "$IDS/machine" ] && mount --bind "$IDS/machine" /etc/machine-id
exec "$@"
"""


def other(**changes):
    return HostIdentity(
        **{name: changes.get(name, getattr(A, name)) for name in HostIdentity.__struct_fields__}
    )


@pytest.mark.parametrize(
    ("here", "lives", "same"),
    [
        (A, True, True),
        (other(name="renamed"), True, True),
        (other(boot="boot-2"), False, True),
        (other(boot="boot-2", name="renamed"), False, True),
        (other(boot="boot-2", name="renamed", hardware=()), False, False),
        (other(boot="boot-2", hardware=()), False, True),
        (other(boot="boot-2", name="clone", hardware=OTHER_CARDS), False, False),
        (other(boot="boot-2", hardware=OTHER_CARDS), False, False),
        (other(boot="boot-2", name="clone"), True, False),
        (other(boot="boot-2", machine="b" * 32), False, False),
        (other(boot="boot-2", machine=""), False, False),
        (other(pids="2", machine="", name="rebuilt"), False, True),
        (other(pids="2", machine="", name="beside"), True, False),
    ],
    ids=lambda value: "" if isinstance(value, bool) else f"{value.name}-{value.boot}-{value.pids}",
)
def test_what_tells_a_host_from_another(here, lives, same):
    assert is_same(A, here, lives=lives) is same


def test_a_host_without_a_machine_id_is_another_one_after_a_restart():
    container = other(machine="", hardware=())
    assert not is_same(container, other(machine="", hardware=(), boot="boot-2"), lives=False)


def owner(host=A):
    return QueueOwner(host=host, pid=42, since=0.0)


def test_the_first_host_keeps_the_queue_and_another_one_is_told_where_it_is(tmp_path):
    claim(tmp_path, owner())
    claim(tmp_path, owner(other(boot="boot-2")))
    with pytest.raises(Unreachable, match=r"belongs to host alpha: its last controller there has pid 42"):
        claim(tmp_path, owner(other(boot="boot-3", machine="b" * 32)))
    assert owner_of(tmp_path).host.boot == "boot-2"


def test_a_queue_is_taken_over_only_if_nobody_uses_it(tmp_path):
    claim(tmp_path, owner())
    stranger = owner(other(boot="boot-3", machine="b" * 32))
    lock = hold_jobs_lock(tmp_path)
    with pytest.raises(Unreachable, match="belongs to host alpha"):
        claim(tmp_path, stranger, takes_over=True)
    os.close(lock)
    claim(tmp_path, stranger, takes_over=True)
    assert owner_of(tmp_path) == stranger


def test_of_two_hosts_that_claim_at_once_only_one_has_the_queue(tmp_path, monkeypatch):
    claim(tmp_path, owner())
    monkeypatch.setattr(ownhost, "owner_of", lambda state: None)  # it was read before the other one wrote
    with pytest.raises(Unreachable):
        claim(tmp_path, owner(other(machine="b" * 32)))


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("x")])
def test_a_record_that_cannot_be_read_is_an_error_with_its_path(tmp_path, make):
    make(tmp_path / "host")
    with pytest.raises(StorageError, match=f"{tmp_path}/host"):
        refuse_another_host(tmp_path)


# -- namespaces with another host name, boot id and machine id ------------------------------------


@pytest.fixture
def elsewhere(tmp_path):
    """Return a function that runs a command on what looks like another host."""
    ids = tmp_path / "ids"
    ids.mkdir()

    def run(home, *words, name="beta", boot="11111111-2222-3333-4444-555555555555", machine="b" * 32):
        (ids / "boot").write_text(f"{boot}\n")
        if machine is None:
            (ids / "machine").unlink(missing_ok=True)
        else:
            (ids / "machine").write_text(f"{machine}\n" if machine else "")
        environ = home.environ | {"NEW_NAME": name, "IDS": str(ids)}
        words = [sys.executable, "-m", f"fgsched.cli.{words[0]}", *words[1:]]
        return subprocess.run(
            [*_NAMESPACES, "sh", "-c", _AS_ANOTHER, "sh", *words],
            env=environ,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    (ids / "boot").write_text("x\n")
    trial = [*_NAMESPACES, "mount", "--bind", str(ids / "boot"), "/proc/sys/kernel/random/boot_id"]
    if not shutil.which("unshare") or subprocess.run(trial, capture_output=True, check=False).returncode:
        pytest.skip("needs namespaces of hosts, processes and mounts")
    return run


@pytest.mark.compiler
@pytest.mark.parametrize("runs", [True, False], ids=["its controller runs", "its controller is stopped"])
@pytest.mark.parametrize("machine", ["b" * 32, None, ""], ids=["another machine", "a clone", "without an id"])
def test_a_job_of_one_host_is_not_run_again_by_another_one(tmp_path, elsewhere, runs, machine):
    with living(tmp_path / "home") as home:
        gate, out = home.path / "gate", home.path / "out"
        os.mkfifo(gate)
        words = ["fgsub", "--gpus=1", "-o", str(out), "--open-mode=append", "--wrap"]
        assert home.run(*words, f"echo ran; cat {gate}").status == 0
        until_written(out, "ran")
        pid = controller_of(home)
        if not runs:
            assert home.run("fgsched", "stop").status == 0
        for command in (["fgq"], ["fgsub", "--wrap", "true"], ["fgsched", "start", "--take-over"]):
            told = elsewhere(home, *command, machine=machine)
            assert (told.returncode, told.stdout) == (5, "")
            assert f"its last controller there has pid {pid}" in told.stderr
            assert f"belongs to host {os.uname().nodename}" in told.stderr
        gate.write_text("")
        assert [job["state"] for job in home.wait(1)] == ["COMPLETED"]
        assert out.read_text() == "ran\n"
        assert elsewhere(home, "fgsched", "doctor", machine=machine).stdout.count("belongs to host") > 0


@pytest.mark.compiler
def test_a_renamed_host_goes_on_with_its_queue_and_a_lost_one_is_taken_over(tmp_path, elsewhere):
    with living(tmp_path / "home") as home:
        assert home.run("fgsub", "--hold", "--wrap", "true").status == 0
        assert home.run("fgsched", "stop").status == 0
        told = elsewhere(home, "fgq", "-h", machine="b" * 32)
        assert "fgsched start --take-over" in told.stderr
        renamed = elsewhere(home, "fgq", "-h", "-o", "%i", machine=None, name="renamed")
        assert (renamed.returncode, renamed.stdout) == (0, "1\n")
        assert owner_of(home.path).host.name == "renamed"
        assert elsewhere(home, "fgsched", "start", "--take-over").returncode == 0
        assert owner_of(home.path).host.name == "beta"
        told = home.run("fgq", "-h")
        assert (told.status, "belongs to host beta" in told.err) == (5, True)
        assert home.run("fgsched", "start", "--take-over").status == 0
        assert home.run("fgq", "-h", "-o", "%i").out == "1\n"


# -- file systems without locks, and locks that others hold -----------------------------------------

_NO_LOCKS = r"""
#include <errno.h>
#include <fcntl.h>
int flock(int fd, int how) { errno = FAULT; return -1; }
"""


@pytest.mark.compiler
@pytest.mark.parametrize("fault", ["ENOSYS", "ENOLCK", "EOPNOTSUPP"])
def test_a_file_system_without_locks_is_named_and_nothing_is_called_damaged(tmp_path, fault):
    library = tmp_path / "nolocks.so"
    words = ["cc", "-shared", "-fPIC", f"-DFAULT={fault}", "-x", "c", "-", "-o", library]
    subprocess.run(words, input=_NO_LOCKS, text=True, check=True)
    with living(tmp_path / "home") as home:
        for words in (["fgsub", "--wrap", "true"], ["fgsched", "start"], ["fgsched", "run"]):
            told = home.run(*words, env={"LD_PRELOAD": str(library)})
            assert told.status == 6, told
            assert f"the file system of {home.path} has no locks" in told.err
            assert "nothing is damaged" in told.err
        assert home.run("fgq", "-h").status == 0, "with locks it works"


@pytest.mark.compiler
def test_a_file_in_the_place_of_a_running_controllers_socket_is_named_at_once(tmp_path):
    with living(tmp_path / "home") as home:
        assert home.run("fgq", "-h").status == 0
        moved = home.paths.socket.with_name("moved")
        home.paths.socket.rename(moved)
        home.paths.socket.write_text("precious")
        for command in ("fgq", "fginfo"):
            told = home.run(command)
            assert (told.status, "is not a socket" in told.err, "waiting" in told.err) == (5, True, False)
        home.paths.socket.unlink()
        moved.rename(home.paths.socket)


@pytest.mark.compiler
def test_a_command_says_who_holds_the_lock_for_which_it_waits(tmp_path):
    from filelock import FileLock

    with living(tmp_path / "home") as home:
        home.paths.prepare(os.geteuid())
        with FileLock(home.path / "starting.lock"):
            command = subprocess.Popen(
                [sys.executable, "-m", "fgsched.cli.fgq", "-h"],
                env=home.environ,
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
            said = command.stderr.readline()
        assert f"another command (pid {os.getpid()}, " in said
        assert (command.wait(120), command.stderr.read()) == (0, "")
        command.stderr.close()


# -- whose controller a command asks ----------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("command", [["fgq"], ["fgsub", "--wrap", "true"], ["fginfo"]])
def test_a_command_with_sudo_starts_no_controller_of_roots(tmp_path, command):
    with living(tmp_path / "home") as home:
        sudo = {"FG_HOME": "", "HOME": str(home.path), "SUDO_USER": "ann", "SUDO_UID": "1000"}
        told = home.run(*command, env=sudo)
        assert (told.status, told.out) == (5, "")
        assert "Without sudo the command asks the controller of ann" in told.err
        assert not (home.path / ".local/state/fgsched/queue.db").exists()
