"""Restart the controller, also with a version that was just installed. Running jobs are not affected."""

import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from fgsched import gpus, protocol
from fgsched.cli.stopping import controller
from fgsched.client import Client
from fgsched.config.load import load
from fgsched.domain.errors import NotPermitted, Refused, Unreachable
from fgsched.domain.states import JobState
from fgsched.launch import regions
from fgsched.store.opening import refuse_newer_file
from fgsched.system.paths import Paths
from fgsched.system.process import handles

_PATIENCE = 600.0  # seconds until requests are accepted again; the start reads the whole queue
_PAUSE = 0.05  # seconds between two attempts to connect
_UNIT = "fgsched.service"
_LISTED = 10  # ids of jobs in a message
_HELD = {JobState.STARTING, JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING}


class _Before(Struct, frozen=True):
    """A controller and its running jobs."""

    version: str
    started_at: float  # epoch seconds
    attempts: dict[int, int]  # of the running jobs: id -> number of starts


def upgrade(paths: Paths) -> str:
    """Check the installed version, then restart the controller with it; return what to print.

    Raises:
        Refused: the installation is not complete, or running jobs need the earlier version.
        StorageError: the queue is of a newer version than the installed one.
        FgschedError: the configuration is not valid for this version, or the restart failed.
    """
    from fgsched.cli.doctor import FAIL, installation

    _check_settings(paths)
    for finding in installation():
        if finding.verdict == FAIL:
            raise Refused(f"{finding.check}: {finding.text}", finding.remedy or "Nothing was changed.")
    refuse_other_build(paths)
    refuse_newer_file(paths.queue)
    return restart(paths)


def _check_settings(paths: Paths) -> None:
    """Read the configuration as the restarted controller will. Raises FgschedError if it is not valid."""
    gpus.check(load(paths))


def refuse_other_build(paths: Paths) -> None:
    """Refuse an upgrade while jobs run with a hook of another layout. Raises Refused."""
    with suppress(OSError):
        files = list(paths.run.glob("job/[0-9]*/region"))
        foreign = [path.parent.name for path in files if regions.is_of_another_build(path)]
        if foreign:
            listed = ", ".join(sorted(foreign)[:_LISTED])
            raise Refused(
                f"{len(foreign)} running jobs count GPU memory in the format of another version: {listed}",
                "Wait until they have ended, or install the version with which they were started.",
            )


def restart(paths: Paths) -> str:
    """Make the controller execute its program again, and wait for it; return what to print.

    It needs no common protocol: the running controller can be of another version.

    Raises:
        FgschedError: the configuration is not valid; the controller continues.
        NotPermitted: the controller is another user's.
        Refused: a job that was running is not running any more because of the restart.
        Unreachable: no controller is running, or it does not come back.
    """
    _check_settings(paths)
    with suppress(Unreachable), Client(paths, may_start=False) as client:
        before = _state(client)
        return _restarted(paths, before)
    return _restarted(paths, None)


def _state(client: Client) -> _Before:
    about = client.call(protocol.Ping())
    jobs = client.call(protocol.ListQueue(fields=("id", "state", "attempt"))).jobs
    attempts = {job.id: job.attempt for job in jobs if job.state in _HELD}
    return _Before(about.version, about.started_at, attempts)


def _restarted(paths: Paths, before: _Before | None) -> str:
    process, pid = controller(paths)
    with open(process, "rb") as ended:
        _refuse_without_handler(pid)
        try:
            signal.pidfd_send_signal(process, signal.SIGUSR1)
        except PermissionError:
            raise NotPermitted("the controller is another user's", "Ask root.") from None
        after = _await(paths, before.started_at if before else time.time(), ended.fileno())
    return _compared(pid, before, after)


def _refuse_without_handler(pid: int) -> None:
    """Refuse to signal a controller that the signal would kill. Raises Refused."""
    if not handles(pid, [signal.SIGUSR1]):
        raise Refused(
            "the running controller is of a version that cannot restart itself",
            "Run fgsched stop, then fgsched start. Running jobs continue.",
        )


def _await(paths: Paths, since: float, process: int) -> _Before:
    """Wait for a controller that was started later. Raises Unreachable if the process ends."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        with suppress(Unreachable), Client(paths, may_start=False) as client:
            state = _state(client)
            if state.started_at > since:
                return state
        if select.select([process], [], [], _PAUSE)[0]:
            if not _may_come_back(paths):
                break
            time.sleep(_PAUSE)
    raise Unreachable("the controller did not come back", f"Its log tells why: {_log(paths)}")


def _may_come_back(paths: Paths) -> bool:
    """Return whether systemd will start the controller again after its process has ended."""
    if paths.mode == "user":
        return False
    with suppress(OSError):
        words = ("systemctl", "show", "--property=ActiveState", "--value", _UNIT)
        state = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
        return state in ("active", "activating", "deactivating", "reloading")
    return False


def _log(paths: Paths) -> str | Path:
    return "journalctl -u fgsched" if paths.mode == "system" else paths.log


def _compared(pid: int, before: _Before | None, after: _Before) -> str:
    """Return what to print. Raises Refused if a job was started again or put back into the queue."""
    if before is None:
        return f"controller restarted (pid {pid}), version {after.version}\n"
    changed = [job for job, count in before.attempts.items() if after.attempts.get(job, count) != count]
    if changed:
        raise Refused(f"restarted, and these jobs were started again: {changed[:_LISTED]}", "fgq shows them.")
    versions = f"version {after.version}"
    if before.version != after.version:
        versions = f"version {before.version} -> {after.version}"
    count = len(before.attempts)
    jobs = f"; {count} running job{'s' if count != 1 else ''} continue{'s' if count == 1 else ''}"
    return f"controller restarted (pid {pid}), {versions}{jobs if count else ''}\n"
