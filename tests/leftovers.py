"""End what the tests of a run left, and fail the run for it; remove what a controller left outside its home.

The run has a parent that adopts each process whose own parent has ended, such as a controller, whatever the
process has done to its environment, session or user. It reaps them as init would, also if the run is killed.
"""

import ctypes
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fgsched.system.paths import Paths
from fgsched.system.process import descendants, kill

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PASSED_ON = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}
_AWAITED = {*_PASSED_ON, signal.SIGCHLD}
_PATIENCE = 30.0  # seconds that the helpers of a run have to end by themselves
_NAMES = (
    "PYTEST_CURRENT_TEST",
    "FG_HOME",
    "FG_JOB_DIR",
    "FG_RUN",
)  # variables that tell which test started it


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the tests below a process that ends what they leave; xdist has one for all its workers."""
    if not hasattr(config, "workerinput"):
        supervise()


def supervise() -> None:
    """Fork. Return in the child, which runs the tests; the parent ends with the exit status of the run."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    run = os.fork()
    if run:
        _attend(run)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _attend(run: int) -> None:
    """Wait for the run, pass on its signals, and end the process."""
    status = 1
    try:
        status = _status_of(run)
        left = _end_leftovers(_PATIENCE if status in (0, 1, 5) else 0.0)
        for line in left:
            print(f"left by the tests, killed now: {line}", file=sys.stderr, flush=True)
        status = status or bool(left)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _status_of(run: int) -> int:
    """Return the exit status of the run, as a shell has it."""
    while True:
        event = signal.sigwaitinfo(_AWAITED)
        if event.si_signo != signal.SIGCHLD:
            if event.si_code <= 0:  # a terminal has sent it to the run as well
                os.kill(run, event.si_signo)
            continue
        for pid, status in _ended_children():
            if pid == run:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code


def _ended_children() -> Iterator[tuple[int, int]]:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            yield ended


def _end_leftovers(patience: float) -> list[str]:
    """Wait until no process is left; after `patience` seconds kill those that are, and describe them."""
    latest, described = time.monotonic() + patience, dict[int, str]()
    while left := descendants(os.getpid()):
        if time.monotonic() >= latest:
            for process in left:
                described.setdefault(process.pid, _describe(process.pid))
                with suppress(PermissionError):
                    kill(process, signal.SIGKILL)
        if time.monotonic() >= latest + _PATIENCE:
            break  # the kernel does not let it end, or it is another user's
        for _ in _ended_children():
            pass
        select.select([], [], [], 0.01)
    return list(described.values())


def _describe(pid: int) -> str:
    """Return the pid, the command line and what tells the test of a process."""
    command = " ".join(_strings(pid, "cmdline")) or "(no command line)"
    marks = [entry for entry in _strings(pid, "environ") if entry.partition("=")[0] in _NAMES]
    with suppress(OSError):
        marks.append(f"in {os.readlink(f'/proc/{pid}/cwd')}")
    return f"{pid}: {command[:200]} [{', '.join(marks)}]"


def _strings(pid: int, name: str) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return []
    return [part.decode(errors="replace") for part in text.split(b"\0") if part]


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def tmpdirs(paths: Paths) -> list[Path]:
    """Return the directories in /tmp that controllers of these places made for TMPDIRs and did not remove."""
    return [Path(os.readlink(link)) for link in paths.run.glob("*/scratch")]


def remove_outside(paths: Paths) -> None:
    """Remove what a controller that has ended keeps outside its state directory, which is removed."""
    for directory in tmpdirs(paths):
        shutil.rmtree(directory)
    if paths.run_link is not None:
        shutil.rmtree(paths.run, ignore_errors=True)
