"""Run a command inside a running job of the same user, with the limits, devices and variables of the job."""

import errno
import os
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fgsched import protocol
from fgsched.client import Client
from fgsched.domain.errors import Refused, Unreachable
from fgsched.domain.states import JobState
from fgsched.interactive import link
from fgsched.interactive.connected import Connected, ConnectionPlan, Interrupted
from fgsched.interactive.signals import ENDING, Signals
from fgsched.lifecycle.launchspec import job_dir

_TRIES = 5
_PATIENCE = 2.0  # seconds between two requests: the shepherd ignores one while another process starts
_PAUSE = 0.1  # seconds between two looks at a job that is starting
_NUMBERS = 1 << 24
_PASSED = ("TERM", "COLUMNS", "LINES")  # of the caller, for a command on a terminal


def join(client: Client, reference: int, plan: ConnectionPlan, command: tuple[str, ...]) -> int:
    """Run a command in a job and return its exit code.

    Raises:
        Refused: the job does not run, or has several tasks; or the command was ended with the job.
        NotPermitted: the job belongs to another user.
        Unreachable: the job does not answer.
        Interrupted: a signal ended the caller.
    """
    job = client.call(protocol.ShowJob(id=reference))
    while job.state is JobState.STARTING:  # its script can be faster than the report of its start
        time.sleep(_PAUSE)
        job = client.call(protocol.ShowJob(id=reference))
    if job.state is not JobState.RUNNING:
        raise Refused(f"job {reference} is not running: it is {job.state.value}")
    listener, number = _listener(job, client.places.run)
    with (
        listener,
        Signals() as signals,
        _connection(client, job.id, number, listener, signals) as connection,
    ):
        status = _connected(connection, signals, plan).run(command, _variables(plan))
    if status is None:
        raise Refused(f"the command in job {job.id} was ended with the job, or its end is unknown")
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def _connected(connection: socket.socket, signals: Signals, plan: ConnectionPlan) -> Connected:
    """Return the connection to the command; a second interrupt kills the command, not the job."""

    def end() -> None:
        with suppress(OSError):
            connection.send(bytes([signal.SIGKILL]))

    return Connected(connection, signals, plan, _said(plan), end)


def _variables(plan: ConnectionPlan) -> dict[str, str]:
    return {name: os.environ[name] for name in _PASSED if plan.terminal and name in os.environ}


def _said(plan: ConnectionPlan) -> Callable[[str], None]:
    """Return what prints a line on standard error."""

    def say(text: str) -> None:
        if not plan.quiet and sys.stderr is not None:
            print(f"{plan.name}: {text}", file=sys.stderr, flush=True)

    return say


def _listener(job: protocol.JobInfo, run: Path) -> tuple[link.Listener, int]:
    """Return a socket for the agent of a job, in the job's directory, and the number in its name."""
    directory = Path(job_dir(str(run), job.id, job.attempt))
    while True:
        number = secrets.randbelow(_NUMBERS)
        try:
            return link.listen(link.join_name(job.id, job.attempt, number), directory), number
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise


def _connection(
    client: Client, job: int, number: int, listener: link.Listener, signals: Signals
) -> socket.socket:
    """Ask for an agent until one connects. Raises Unreachable, Interrupted, or the refusal."""
    for _ in range(_TRIES):
        outcome = client.call(protocol.Join(ids=[job], caller=number)).jobs[0]
        if outcome.error is not None:
            raise outcome.error.error()
        if (connection := _accepted(listener, signals, time.monotonic() + _PATIENCE)) is not None:
            return connection
    raise Unreachable(
        f"job {job} starts no further process",
        "Its shepherd was killed, its script made a user namespace, or the interpreter of fgsched cannot be "
        "executed in the job.",
    )


def _accepted(listener: link.Listener, signals: Signals, until: float) -> socket.socket | None:
    """Return the connection of the agent; connections of other users are closed, and cost no time of `until`.

    Raises Interrupted.
    """
    sources: list[Any] = [listener, signals]
    while (left := until - time.monotonic()) > 0:
        ready, _, _ = select.select(sources, [], [], left)
        for received in signals.take():
            if received in ENDING:
                raise Interrupted(received)
        if listener in ready and (connection := listener.accept()) is not None:
            return connection
    return None
