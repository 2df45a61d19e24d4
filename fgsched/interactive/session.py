"""Follow a foreground job from its submission to its end, with the caller's streams and signals."""

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
from fgsched.client import Client, Watch
from fgsched.domain.errors import FgschedError, Refused, Unreachable
from fgsched.domain.states import JobState
from fgsched.interactive import link
from fgsched.interactive.connected import Connected, ConnectionPlan, Interrupted
from fgsched.interactive.terminal import ENDING, Signals
from fgsched.lifecycle.launchspec import job_dir

_LOOK = 0.5  # seconds between two looks at what reports nothing
_QUIET = 0.5  # seconds after which a job that waits is reported
_REFRESH = 10.0  # seconds between two forecasts
_AWAY = 60.0  # seconds that a controller may be away while the job waits
_TRIES = 5
_PATIENCE = 2.0  # seconds between two requests: the shepherd ignores one while another process starts
_PAUSE = 0.1  # seconds between two looks at a job that is starting
_NUMBERS = 1 << 24
_PASSED = ("TERM", "COLUMNS", "LINES")  # of the caller, for a command on a terminal


class Session:
    """One foreground job. Call `follow` once."""

    def __init__(
        self,
        client: Client,
        job: int,
        listener: link.Listener,
        plan: ConnectionPlan,
        forecast: Callable[[], str],
    ) -> None:
        """`forecast` returns a line about the start of the pending job, for a terminal."""
        self._client, self._job, self._listener, self._plan = client, job, listener, plan
        self._forecast = forecast
        self._line = _StatusLine(plan)

    def follow(self, started: Callable[[], None] = lambda: None) -> None:
        """Wait for the start, connect the streams, and return when the job has ended.

        `started` is called when the job has been connected; if the plan leaves the job, this returns then.

        Raises:
            Interrupted: a signal ended the caller.
            Detached: the caller left the job's terminal.
            Refused: the job had to wait for too long; or an error of the client.
        """
        with Signals() as signals, self._client.watch([self._job]) as watch:
            connection = self._wait_for_start(signals, watch)
            self._listener.close()
            if connection is not None:
                with connection:
                    self._line.allocated(self._job)
                    started()
                    if self._plan.leaves:
                        _leave(connection)
                        return
                    Connected(connection, signals, self._plan, self._line.say, self._cancel_now).run()
            self._wait_for_end(signals, watch)

    # -- while it waits --------------------------------------------------------------------------------

    def _wait_for_start(self, signals: Signals, watch: Watch) -> socket.socket | None:
        """Return the connection to the job; None if it ended without one."""
        controller = _Controller(watch)
        began = time.monotonic()
        while True:
            ready = controller.select([self._listener, signals])
            if self._listener in ready and (connection := self._listener.accept()):
                return connection
            for number in signals.take():
                self._give_up(number)
            if controller.is_over():
                return None
            waited = time.monotonic() - began
            if self._plan.patience is not None and controller.is_pending and waited >= self._plan.patience:
                self._cancel()
                raise Refused("Requested nodes are busy")
            if self._plan.patience is None and controller.is_pending and waited >= _QUIET:
                self._line.waits(self._job, self._forecast)

    def _give_up(self, number: int) -> None:
        """Cancel the pending job after a signal that ends the caller."""
        if number not in ENDING:
            return
        self._line.clear()
        self._cancel()
        raise Interrupted(number)

    def _cancel_now(self) -> None:
        self._line.say(f"job {self._job} is being cancelled")
        self._cancel()

    def _cancel(self) -> None:
        try:
            self._client.call(protocol.Cancel(ids=[self._job]))
        except FgschedError as error:
            self._line.say(f"job {self._job} could not be cancelled: {error.cause}")

    # -- when its command has ended --------------------------------------------------------------------

    def _wait_for_end(self, signals: Signals, watch: Watch) -> None:
        """Wait until the controller has recorded the end of the job."""
        controller = _Controller(watch)
        while not controller.is_over():
            controller.select([signals])
            for number in signals.take():
                if number in ENDING:
                    self._cancel()


def _leave(connection: socket.socket) -> None:
    """Let the job run on without its caller."""
    with suppress(OSError):  # it has ended already
        link.greet(connection, link.Greeting(), ())
        connection.send(link.DETACH)


class _Controller:
    """The news of the job, which a restart of the controller delays."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._away_since = 0.0  # monotonic clock; 0: it is there

    @property
    def is_pending(self) -> bool:
        """Whether the controller said that the job does not run yet."""
        return self._watch.progress is not None and not self._watch.progress.running

    def is_over(self) -> bool:
        """Return whether the job has ended. Raises Unreachable if the controller is away for too long."""
        try:
            is_over = self._watch.is_over(0)
        except Unreachable:
            now = time.monotonic()
            self._away_since = self._away_since or now
            if now - self._away_since > _AWAY:
                raise
            return False
        self._away_since = 0.0
        return is_over

    def select(self, sources: list[link.Listener | Signals]) -> list[object]:
        """Wait for news or for one of the sources, at most half a second."""
        watches = [self._watch] if self._watch.fileno() >= 0 else []
        return list(select.select([*sources, *watches], [], [], _LOOK)[0])


class _StatusLine:
    """What the caller reads on standard error: one line that changes on a terminal, else a line an event."""

    def __init__(self, plan: ConnectionPlan) -> None:
        self._plan = plan
        self._is_live = not plan.quiet and sys.stderr is not None and sys.stderr.isatty()
        self._was_pending = False
        self._next = 0.0  # monotonic clock: when the next forecast is due
        self._width = 0

    def waits(self, job: int, forecast: Callable[[], str]) -> None:
        """Report that the job waits; on a terminal also why and how long."""
        if not self._was_pending:
            self._was_pending = True
            for text in self._plan.queued:
                self.say(text.format(job=job))
        if self._is_live and time.monotonic() >= self._next:
            self._next = time.monotonic() + _REFRESH
            with suppress(FgschedError):
                columns = os.get_terminal_size(2).columns
                text = forecast()[: max(columns - 1, 0)]
                print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
                self._width = len(text)

    def allocated(self, job: int) -> None:
        """Report that the job starts, if it had to wait."""
        self.clear()
        if self._was_pending:
            self.say(f"job {job} has been allocated resources")

    def clear(self) -> None:
        """Remove the line that changes."""
        if self._width:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self._width = 0

    def say(self, text: str) -> None:
        """Print a line of its own."""
        if not self._plan.quiet and sys.stderr is not None:
            print(f"{self._plan.name}: {text}", file=sys.stderr, flush=True)


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
    listener, number = _listener(job, client.paths.run)
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

    def kill_command() -> None:
        with suppress(OSError):
            connection.send(bytes([signal.SIGKILL]))

    return Connected(connection, signals, plan, _said(plan), kill_command)


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
    while (remaining := until - time.monotonic()) > 0:
        ready, _, _ = select.select(sources, [], [], remaining)
        for received in signals.take():
            if received in ENDING:
                raise Interrupted(received)
        if listener in ready and (connection := listener.accept()) is not None:
            return connection
    return None
