"""Stop the controller, or cancel its jobs first."""

import os
import select
import signal

from fgsched import protocol
from fgsched.client import Client, NotRunning
from fgsched.domain.errors import NotPermitted, Unreachable
from fgsched.domain.job import JobState
from fgsched.system.paths import Paths

_LEAVING = 60  # seconds that a controller has to stop


def stop(places: Paths, *, is_kill: bool = False) -> str:
    """Stop the controller and wait until its process has ended; return what to print.

    Args:
        is_kill: cancel all jobs first; otherwise running jobs continue.

    Raises:
        NotPermitted: the caller is not an operator.
        Unreachable: the controller does not answer or does not stop.
    """
    with Client(places, may_start=False) as client:
        try:
            about = client.call(protocol.Ping())
        except NotRunning as error:
            if client.was_there:
                raise
            return f"{error.cause}\n"
        if not about.operator:  # before any job is ended
            raise NotPermitted("only an operator may stop the controller", "Ask root, or an operator.")
        pid = about.pid
        if is_kill:
            end_all(client)
        gone = os.pidfd_open(pid)
        running = client.call(protocol.Stop()).running
    with open(gone, "rb") as watched:
        if not select.select([watched], [], [], _LEAVING)[0]:
            raise Unreachable(f"the controller (pid {pid}) does not stop", "Its log may tell why.")
    jobs = "; 1 running job continues" if running == 1 else f"; {running} running jobs continue"
    return f"controller stopped (pid {pid}){jobs if running else ''}\n"


def end_all(client: Client) -> None:
    """Cancel every job, pending ones first so that none of them starts, and wait for their end."""
    jobs = client.call(protocol.ListQueue(fields=("id", "state"))).jobs
    ids = [job.id for job in sorted(jobs, key=lambda job: job.state is not JobState.PENDING)]
    client.call(protocol.Cancel(ids=ids))
    client.call(protocol.Signal(ids=ids, signal=int(signal.SIGKILL)))
    client.call(protocol.Wait(ids=ids), patience=None)
