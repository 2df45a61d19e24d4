"""Follow a foreground job from its submission to its end, with the caller's streams and signals."""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import Struct

from fgsched import protocol
from fgsched.client import Client, Watch
from fgsched.domain.errors import FgschedError, Refused, Unreachable
from fgsched.interactive import link, terminal
from fgsched.interactive.signals import ENDING, FORWARDED, Signals

_LOOK = 0.5  # seconds between two looks at what reports nothing
_QUIET = 1.0  # seconds after which a job that waits is reported
_REFRESH = 10.0  # seconds between two forecasts
_TWICE = 1.0  # seconds within which a second interrupt cancels the job
_AWAY = 60.0  # seconds that a controller may be away while the job waits


class Interrupted(Exception):
    """Raised if a signal ended the caller before the job has started."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Plan(Struct, frozen=True, kw_only=True):
    """How a foreground job is connected."""

    name: str  # of the command, for messages
    streams: tuple[int, ...] = (0, 1, 2)  # of the caller that the job gets
    terminal: bool = False  # the job gets a terminal of its own
    quiet: bool = False
    patience: float | None = None  # seconds that the job may wait; then it is cancelled
    queued: tuple[str, ...] = ("job {job} queued and waiting for resources",)  # lines about a job that waits


class Session:
    """One foreground job. Call `follow` once."""

    def __init__(
        self, client: Client, job: int, listener: socket.socket, plan: Plan, forecast: Callable[[], str]
    ) -> None:
        """`forecast` returns a line about the start of the pending job, for a terminal."""
        self._client, self._job, self._listener, self._plan = client, job, listener, plan
        self._forecast = forecast
        self._line = _Line(plan)
        self._interrupted_at = 0.0  # monotonic clock

    def follow(self, started: Callable[[], None] = lambda: None) -> None:
        """Wait for the start, connect the streams, and return when the job has ended.

        `started` is called when the job has been connected. Raises Interrupted; Refused if it had to wait for
        too long; the errors of the client.
        """
        with Signals() as signals, self._client.watch([self._job]) as watch:
            connection = self._wait_for_start(signals, watch)
            self._listener.close()
            if connection is not None:
                with connection:
                    self._line.allocated(self._job)
                    started()
                    self._run(connection, signals)
            self._wait_for_end(signals, watch)

    # -- while it waits --------------------------------------------------------------------------------

    def _wait_for_start(self, signals: Signals, watch: Watch) -> socket.socket | None:
        """Return the connection to the job; None if it ended without one."""
        controller = _Controller(watch)
        began = time.monotonic()
        while True:
            ready = controller.select([self._listener, signals])
            if self._listener in ready and (connection := link.accept(self._listener)):
                return connection
            for number in signals.take():
                self._give_up(number)
            if controller.is_over():
                return None
            waited = time.monotonic() - began
            if self._plan.patience is not None and controller.is_pending and waited >= self._plan.patience:
                self._cancel()
                raise Refused("Requested nodes are busy")
            if controller.is_pending and waited >= _QUIET:
                self._line.waits(self._job, self._forecast)

    def _give_up(self, number: int) -> None:
        """Cancel the pending job after a signal that ends the caller."""
        if number not in ENDING:
            return
        self._line.clear()
        self._cancel()
        raise Interrupted(number)

    def _cancel(self) -> None:
        try:
            self._client.call(protocol.Cancel(ids=[self._job]))
        except FgschedError as error:
            self._line.say(f"job {self._job} could not be cancelled: {error.cause}")

    # -- while it runs ---------------------------------------------------------------------------------

    def _run(self, connection: socket.socket, signals: Signals) -> None:
        """Connect the job's streams, and serve them until the job's command has ended."""
        if self._plan.terminal:
            self._run_on_terminal(connection, signals)
            return
        feed = None
        descriptors = dict.fromkeys(self._plan.streams, -1)
        descriptors = {stream: _own(stream) for stream in descriptors}
        if 0 in descriptors and os.isatty(0):  # it stays the caller's, which may be in the background
            reading, writing = os.pipe2(os.O_CLOEXEC)
            descriptors[0] = reading
            feed = terminal.Feed(0, writing, is_terminal=False)
        link.greet(connection, link.Greeting(streams=tuple(descriptors)), tuple(descriptors.values()))
        if feed is not None:
            os.close(descriptors[0])
        while not self._serve(connection, signals, feed):
            pass

    def _serve(self, connection: socket.socket, signals: Signals, feed: terminal.Feed | None) -> bool:
        """Handle what is ready; return whether the command has ended."""
        reads, writes = (feed.reads(), feed.writes()) if feed else ([], [])
        pause = _LOOK if feed else None  # whether the caller is in the foreground is not reported
        sources: list[Any] = [connection, signals, *reads]
        ready, free, _ = select.select(sources, writes, [], pause)
        if feed and free:
            feed.write()
        if feed and 0 in ready:
            feed.read()
        for number in signals.take():
            self._pass_on(connection, number)
        return connection in ready and not _received(connection)

    def _pass_on(self, connection: socket.socket, number: int) -> None:
        """Send a signal to the job: the first interrupt asks it to end, a second one cancels it."""
        if number == signal.SIGHUP:
            raise Interrupted(number)  # the end of the connection hangs up
        if number == signal.SIGINT and time.monotonic() - self._interrupted_at < _TWICE:
            self._line.say(f"job {self._job} is being cancelled")
            self._cancel()
        elif number == signal.SIGINT:
            self._interrupted_at = time.monotonic()
            self._line.say(f"interrupt sent to job {self._job} (one more within 1 sec to cancel it)")
            _send(connection, number)
        elif number in FORWARDED:
            _send(connection, number)

    def _run_on_terminal(self, connection: socket.socket, signals: Signals) -> None:
        rows, columns = terminal.size_of(0)
        link.greet(connection, link.Greeting(terminal=True, rows=rows, columns=columns), ())
        master = link.take_terminal(connection)
        if master < 0:
            return
        feed = terminal.Feed(0, master, is_terminal=True)
        try:
            with terminal.raw(0):
                while self._serve_terminal(connection, signals, feed, master):
                    pass
        finally:
            feed.close()

    def _serve_terminal(
        self, connection: socket.socket, signals: Signals, feed: terminal.Feed, master: int
    ) -> bool:
        """Handle what is ready; return whether the terminal is still in use."""
        sources: list[Any] = [connection, signals, master, *feed.reads()]
        ready, free, _ = select.select(sources, feed.writes(), [], _LOOK)
        if free:
            feed.write()
        if 0 in ready:
            feed.read()
        for number in signals.take():
            if number == signal.SIGWINCH:
                terminal.set_size(master, terminal.size_of(0))
            elif number == signal.SIGHUP:
                raise Interrupted(number)
            elif number != signal.SIGINT:  # that of a terminal in raw mode is a character
                _send(connection, number)
        if master in ready:
            data = terminal.read(master)
            terminal.write_all(1, data)
            return bool(data)
        return connection not in ready  # the command has ended, and nothing more is to be read

    # -- when its command has ended --------------------------------------------------------------------

    def _wait_for_end(self, signals: Signals, watch: Watch) -> None:
        """Wait until the controller has recorded the end of the job."""
        controller = _Controller(watch)
        while not controller.is_over():
            controller.select([signals])
            for number in signals.take():
                if number in ENDING:
                    self._cancel()


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

    def select(self, sources: list[socket.socket | Signals]) -> list[object]:
        """Wait for news or for one of the sources, at most half a second."""
        own = [self._watch] if self._watch.fileno() >= 0 else []
        return list(select.select([*sources, *own], [], [], _LOOK)[0])


class _Line:
    """What the caller reads on standard error: one line that changes on a terminal, else a line an event."""

    def __init__(self, plan: Plan) -> None:
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


def _own(stream: int) -> int:
    """Return a descriptor of the caller, or one of /dev/null if it is closed."""
    try:
        os.fstat(stream)
    except OSError:
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    return stream


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(64)
    except OSError:
        return b""


def _send(connection: socket.socket, number: int) -> None:
    with suppress(OSError):  # the command has ended
        connection.send(bytes([number]))
