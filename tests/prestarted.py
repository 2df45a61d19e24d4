"""Commands and controllers that are forked from a process which has imported them already.

The suite starts thousands of them, and imports are most of the CPU time of a start. A forked process is a
real process with its own environment, descriptors and session. `fits` says when one must be executed instead.
"""

import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import platform
import pwd
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
_CLONE_PARENT = 0x8000
_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())  # the number of the system call
_FIXED = {"LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT)}  # read when an interpreter starts, as these:
_READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "GLIBC_", "MALLOC_", "FG_TIME_FORMAT", "SLURM_TIME_FORMAT")
_PRELOAD = "LD_PRELOAD"  # a process that forks is started for each value
_CRASH_AT = "FG_CRASH_AT"
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_ROOM = 16_384  # bytes in which a forked process shows its environment in /proc
_PACKET = 1 << 17  # bytes
_NEW_MOUNTS, _SET_DUMPABLE = 0x20000, 4  # of setns(2) and prctl(2)
_HIGH = 200  # the first descriptor above those of the process that forks; a shell may allow 256
_COMMANDS = [f"fgsched.cli.{path.stem}" for path in sorted((ROOT / "fgsched/cli").glob("fg*.py"))]
_CONTROLLER = "fgsched.controller.__main__"


class NamespaceUser(NamedTuple):
    """Where a process runs: in the mount namespace of another, as a user of that namespace."""

    pid: int
    uid: int


class Popen(subprocess.Popen[str]):
    """A process `python -m MODULE WORD…`, forked: Popen([MODULE, WORD, …], env=…, cwd=…).

    The module "-c" is a program in the first word.
    """

    def __init__(self, words: Sequence[str], *, inside: NamespaceUser | None = None, **about: Any) -> None:
        self._inside = inside
        super().__init__(words, **about)

    def _execute_child(self, args: Any, *more: Any) -> None:
        """Fork instead of executing. The parameters are those of Python 3.11 to 3.14."""
        cwd, env, ends = more[4], more[5], more[9:15]
        given = (ends[0], ends[3], ends[5])
        streams = [usual if end == -1 else end for usual, end in enumerate(given)]
        about = {"module": args[0], "words": args[1:], "env": dict(env), "cwd": str(cwd)}
        about["inside"] = self._inside
        self.pid = _server(env.get(_PRELOAD, "")).fork(about, streams)
        self._child_created = True
        self._close_pipe_fds(*ends)


def run(words: Sequence[str], *, input: str | None = None, timeout: float, **about: Any) -> Any:
    """Fork a command and wait for its end, as subprocess.run executes one."""
    if input is not None:
        about["stdin"] = subprocess.PIPE
    with Popen(words, **about) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(words, process.returncode, out, err)


def fits(env: Mapping[str, str]) -> bool:
    """Return whether a process with these variables may be forked: its interpreter starts as ours."""
    early = {name: value for name, value in env.items() if name.startswith(_READ_AT_START)}
    early.pop(_PRELOAD, None)
    size = sum(len(os.fsencode(f"{name}={value}\0")) for name, value in env.items())
    return _CLONE is not None and early == _FIXED and size < _ROOM and _inherited() == _first_inherited()


def _inherited() -> list[object]:
    """Return what a process inherits besides its environment and descriptors."""
    umask = os.umask(0o077)
    os.umask(umask)
    signals = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return [umask, signals, blocked, os.getpriority(os.PRIO_PROCESS, 0), *map(resource.getrlimit, _LIMITS)]


@cache
def _first_inherited() -> list[object]:
    return _inherited()


@cache
def _server(preload: str) -> "_Server":
    return _Server(preload)


class _Server:
    """The end of this process: asks the process that forks."""

    def __init__(self, preload: str) -> None:
        _first_inherited()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            end = theirs.fileno()
            command = [sys.executable, __file__, str(end)]
            env = {"PATH": os.environ["PATH"], "TZ": "UTC", "ROOM": "x" * _ROOM, **_FIXED}
            env |= {_PRELOAD: preload} if preload else {}
            self._process = subprocess.Popen(command, pass_fds=[end], env=env, cwd="/")
        atexit.register(self._end)

    def fork(self, about: Mapping[str, Any], streams: Sequence[int]) -> int:
        """Return the pid of a child of this process."""
        return _asked(self._socket, about, streams)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


def _asked(end: socket.socket, about: Mapping[str, Any], descriptors: Sequence[int]) -> int:
    """Send a request with descriptors, and return the pid of the new process."""
    ours, theirs = os.pipe()
    try:
        socket.send_fds(end, [json.dumps(about).encode()], [*descriptors, theirs])
    finally:
        os.close(theirs)
    with open(ours, "rb") as answer:
        return int(answer.read())


# --- the process that forks ---


def _serve(end: socket.socket) -> None:
    """Fork until the test process has closed its end."""
    _import_all()
    again, theirs = socket.socketpair(
        socket.AF_UNIX, socket.SOCK_SEQPACKET
    )  # for commands that start a controller
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for controllers
    gc.freeze()
    while True:
        for one in select.select([end, again], [], [])[0]:
            packet, descriptors, _, _ = socket.recv_fds(one, _PACKET, 16)
            if not packet and one is end:
                return
            _fork(json.loads(packet), descriptors, theirs)


def _import_all() -> None:
    for name in (*_COMMANDS, _CONTROLLER, "fgsched.slurm.names", "json", "logging"):
        importlib.import_module(name)
    import fgsched.client

    fgsched.client._execute = _controller  # type: ignore[assignment]


def _fork(about: dict[str, Any], descriptors: list[int], asking: socket.socket) -> None:
    *streams, answer = descriptors
    pid = _clone() if about["module"] != _CONTROLLER else os.fork()
    if pid == 0:
        _become(about, streams, asking)
    os.write(answer, str(pid).encode())
    for one in descriptors:
        os.close(one)


def _clone() -> int:
    """Fork a child of the parent of this process, which can wait for it."""
    libc = ctypes.PyDLL(None)
    libc.PyOS_BeforeFork()  # takes the locks that the other two release
    pid = int(libc.syscall(_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        libc.PyOS_AfterFork_Child()
    else:
        libc.PyOS_AfterFork_Parent()
    return pid


def _become(about: dict[str, Any], streams: list[int], asking: socket.socket) -> None:
    """Run a module as the program of this process, and exit."""
    global _asking, _inside
    status = 255
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _asking = socket.socket(fileno=_arranged(streams, asking.fileno()))
        _environ(about["env"])
        if _inside := about["inside"]:
            _enter(*_inside)
        os.chdir(about["cwd"])
        if about["module"] == _CONTROLLER:
            os.setsid()
        sys.path[0] = about["cwd"]
        sys.argv = [about["module"], *about["words"]]
        status = _ran(about["module"])
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _enter(pid: int, uid: int) -> None:
    """Go into the mount namespace of a process, and become one of its users with their groups."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/mnt") as namespace:
        if libc.setns(namespace.fileno(), _NEW_MOUNTS):
            raise OSError(ctypes.get_errno(), "setns")
    if uid:
        os.initgroups(pwd.getpwuid(uid).pw_name, uid)
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0)  # as after an execve: its files in /proc are its user's


def _arranged(streams: list[int], asking: int) -> int:
    """Make the descriptors 0, 1, 2 … of a new process, and return where the socket for requests is now."""
    high = [os.dup2(one, _HIGH + place, inheritable=False) for place, one in enumerate([asking, *streams])]
    os.closerange(0, _HIGH)
    for place, one in enumerate(high[1:]):
        os.dup2(one, place)
        os.close(one)
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            open(place, mode, closefd=False),  # noqa: SIM115 (open until the process exits)
            encoding="utf-8",
            errors="backslashreplace" if place == 2 else "surrogateescape",
            line_buffering=place == 2 or os.isatty(place),
        )
        for place, mode in enumerate(["rb", "wb", "wb"])
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    return high[0]


def _environ(env: dict[str, str]) -> None:
    """Set the environment, also as /proc shows it."""
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    if _CRASH_AT in env:  # the module reads it when it is imported
        importlib.reload(sys.modules["fgsched.crash"])
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[47]), int(fields[48])
    shown = b"".join(os.fsencode(f"{name}={value}\0") for name, value in env.items())
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)


def _ran(module: str) -> int:
    """Run a module as `python -m` does, and return the exit status."""
    sys.modules.pop(module, None)  # it was imported, and runs as __main__
    try:
        if module == "-c":
            exec(sys.argv.pop(1), {"__name__": "__main__"})
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _controller(ready: int, log: int, options: tuple[str, ...]) -> Any:
    """Take the place of fgsched.client._execute: the process that forks starts the controller."""
    about = {"module": _CONTROLLER, "words": [str(3), *options], "env": dict(os.environ), "cwd": "/"}
    about["inside"] = _inside
    null = os.open(os.devnull, os.O_RDWR)
    return _Controller(_asked(_asking, about, [null, log, log, ready]))


class _Controller:
    """The methods of subprocess.Popen that the client uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end: int | None = None
        with suppress(ProcessLookupError):  # it has ended: a refused start is soon over
            self._end = os.pidfd_open(pid)

    def wait(self) -> int:
        """Wait for its end; its exit status is unknown."""
        if self._end is not None:
            select.select([self._end], [], [])
        return 1


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
