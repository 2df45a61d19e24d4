"""Stop the controller. Running jobs are not affected."""

import os
import select
import signal
import socket
import struct
from contextlib import suppress

from fgsched import protocol
from fgsched.client import Client, NotRunning, connect
from fgsched.codec import OtherProtocol
from fgsched.domain.errors import BadUsage, NotPermitted, Unreachable
from fgsched.domain.states import JobState
from fgsched.system.paths import Paths

_LEAVING = 60  # seconds that a controller has to stop
_CREDENTIALS = struct.Struct("3i")


def stop_nearest(paths: Paths, *, is_kill: bool = False) -> str:
    """Stop the caller's own controller if one runs beside the host's, otherwise the one that commands use.

    A user has both if the own one was started before the host had one. The errors are those of `stop`.
    """
    beside = _running_beside(paths)
    if beside is None:
        return stop(paths, is_kill=is_kill)
    stopped = stop(beside, is_kill=is_kill)
    return f"your own {stopped}The controller of the host continues.\n"


def _running_beside(paths: Paths) -> Paths | None:
    """Return the paths of the caller's own controller if it runs and is not the one that commands use."""
    with suppress(NotRunning, BadUsage):
        beside = paths.own(os.environ, os.geteuid())
        if beside != paths:
            connect(beside, may_start=False).close()
            return beside
    return None


def stop(paths: Paths, *, is_kill: bool = False) -> str:
    """Stop a controller and wait until its process has ended; return what to print.

    Args:
        is_kill: cancel all jobs first; otherwise running jobs continue.

    Raises:
        NotPermitted: the caller is not an operator.
        Unreachable: the controller does not answer or does not stop.
    """
    with Client(paths, may_start=False) as client:
        try:
            about = client.call(protocol.Ping())
        except NotRunning as error:
            if client.was_there:
                raise
            return f"{error.cause}\n"
        except OtherProtocol:
            if is_kill:
                raise
            return _end(paths)
        if not about.operator:  # before any job is ended
            raise NotPermitted("only an operator may stop the controller", "Ask root, or an operator.")
        pid = about.pid
        if is_kill:
            end_all(client)
        ended = os.pidfd_open(pid)
        running = client.call(protocol.Stop()).running
    with open(ended, "rb") as watched:
        _await_end(watched.fileno(), pid)
    jobs = "; 1 running job continues" if running == 1 else f"; {running} running jobs continue"
    return f"controller stopped (pid {pid}){jobs if running else ''}\n"


def controller(paths: Paths) -> tuple[int, int]:
    """Return a pidfd and the pid of the controller that listens. Raises NotRunning."""
    with connect(paths, may_start=False) as line:
        raw = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid = _CREDENTIALS.unpack(raw)[0]
    return os.pidfd_open(pid), pid


def _end(paths: Paths) -> str:
    """Stop a controller that understands no request of this program; return what to print."""
    process, pid = controller(paths)
    with open(process, "rb") as watched:
        try:
            signal.pidfd_send_signal(process, signal.SIGTERM)
        except PermissionError:
            raise NotPermitted("the controller is another user's", "Ask root.") from None
        _await_end(watched.fileno(), pid)
    return f"controller stopped (pid {pid}); running jobs continue\n"


def _await_end(process: int, pid: int) -> None:
    if not select.select([process], [], [], _LEAVING)[0]:
        raise Unreachable(f"the controller (pid {pid}) does not stop", "Its log may tell why.")


def end_all(client: Client) -> None:
    """Cancel every job, pending ones first so that none of them starts, and wait for their end."""
    jobs = client.call(protocol.ListQueue(fields=("id", "state"))).jobs
    ids = [job.id for job in sorted(jobs, key=lambda job: job.state is not JobState.PENDING)]
    client.call(protocol.Cancel(ids=ids))
    client.call(protocol.Signal(ids=ids, signal=int(signal.SIGKILL)))
    client.call(protocol.Wait(ids=ids), patience=None)
