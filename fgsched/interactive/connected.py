"""Serve the connection to a command in a job: its streams or its terminal, and the caller's signals."""

import errno
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import Struct, structs

from fgsched.interactive import link, terminal
from fgsched.interactive.terminal import FORWARDED, Signals

_LOOK = 0.5  # seconds between two looks at what reports nothing
_TWICE = 1.0  # seconds within which a second interrupt cancels the job
_DETACHES = b"\x1c"  # Ctrl-\
_REST = 1.0  # seconds for which the last output of a terminal is awaited
_REDRAW = 2.0  # seconds in which a program notices that the window size has changed


class Interrupted(Exception):
    """Raised if a signal ended the caller before the job has started."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Detached(Exception):
    """Raised if the caller has left a command that runs on."""

    def __init__(self, *, is_taken: bool) -> None:
        """`is_taken`: another terminal was attached in its place."""
        super().__init__()
        self.is_taken = is_taken


class ConnectionPlan(Struct, frozen=True, kw_only=True):
    """How a foreground job is connected."""

    name: str  # of the command, for messages
    job: int = 0
    streams: tuple[int, ...] = (0, 1, 2)  # of the caller that the job gets
    terminal: bool = False  # the job gets a terminal of its own
    stays: bool = False  # the job survives the loss of the caller; Ctrl-\ on its terminal detaches the caller
    variables: dict[str, str] = {}  # that the job gets and nothing stores
    serves: Callable[[int], bool] | None = None  # looks for a server at the job's port until it returns True
    leaves: bool = False  # the caller ends as soon as the job has started
    quiet: bool = False
    patience: float | None = None  # seconds that the job may wait; then it is cancelled
    queued: tuple[str, ...] = ("job {job} queued and waiting for resources",)  # lines about a job that waits


class Connected:
    """The connection to a command that is about to start. Call `run` once."""

    def __init__(
        self,
        connection: socket.socket,
        signals: Signals,
        plan: ConnectionPlan,
        say: Callable[[str], None],
        cancel: Callable[[], None],
    ) -> None:
        """`say` prints a line, `cancel` ends the job after a second interrupt."""
        self._connection, self._signals, self._plan = connection, signals, plan
        self._say, self._cancel = say, cancel
        self._interrupted_at = 0.0  # monotonic clock
        self._status: int | None = None
        self._port = 0  # at which the server is awaited
        self._resize_at = 0.0  # monotonic clock: when the window size is put right at the latest; 0: it is

    def run(self, command: tuple[str, ...] = (), variables: dict[str, str] | None = None) -> int | None:
        """Serve the command until it has ended; return its wait status if the other side reports it.

        `command` is for an agent that has none; `variables` are added to those of the job.

        Raises:
            Interrupted: a signal ended the caller.
            Detached: the caller left the terminal, or another caller took it.
        """
        greeting = link.Greeting(
            command=command,
            variables={**self._plan.variables, **(variables or {})},
            stays=self._plan.stays,
            port=self._plan.serves is not None,
        )
        if self._plan.terminal:
            self._run_on_terminal(greeting)
        else:
            self._run_on_streams(greeting)
        return self._status

    def _greet(self, greeting: link.Greeting, descriptors: tuple[int, ...]) -> None:
        with suppress(ConnectionError):  # the job has ended, which the next read tells
            link.greet(self._connection, greeting, descriptors)

    def _run_on_streams(self, greeting: link.Greeting) -> None:
        feed = None
        descriptors = {stream: _own(stream) for stream in self._plan.streams}
        if 0 in descriptors and os.isatty(0):  # it stays the caller's, which may be in the background
            reading, writing = os.pipe2(os.O_CLOEXEC)
            descriptors[0] = reading
            feed = terminal.Feed(0, writing, is_terminal=False)
        greeting = structs.replace(greeting, streams=tuple(descriptors))
        self._greet(greeting, tuple(descriptors.values()))
        if feed is not None:
            os.close(descriptors[0])
        while not self._serve(feed):
            pass

    def _serve(self, feed: terminal.Feed | None) -> bool:
        """Handle what is ready; return whether the command has ended."""
        reads, writes = (feed.reads(), feed.writes()) if feed else ([], [])
        # whether the caller is in the foreground, and when a server answers, is not reported
        pause = _LOOK if feed or self._port else None
        sources: list[Any] = [self._connection, self._signals, *reads]
        ready, free, _ = select.select(sources, writes, [], pause)
        if feed and free:
            feed.write()
        if feed and 0 in ready:
            feed.read()
        for number in self._signals.take():
            self._pass_on(number)
        if self._port and self._plan.serves is not None and self._plan.serves(self._port):
            self._port = 0
        return self._connection in ready and self._is_over()

    def _is_over(self) -> bool:
        """Read from the connection; return whether it has ended."""
        try:
            message = self._connection.recv(64)
        except OSError:
            return True
        if message == link.TAKEN:
            raise Detached(is_taken=True)
        if message.startswith(link.PORT):
            self._port = int(message.removeprefix(link.PORT))
        if message.startswith(b"status "):
            self._status = int(message.removeprefix(b"status "))
        return not message

    def _pass_on(self, number: int) -> None:
        """Send a signal to the job: the first interrupt asks it to end, a second one cancels it."""
        if number == signal.SIGHUP:
            raise Interrupted(number)  # the end of the connection hangs up
        if number == signal.SIGINT and time.monotonic() - self._interrupted_at < _TWICE:
            self._cancel()
        elif number == signal.SIGINT:
            self._interrupted_at = time.monotonic()
            self._say(f"interrupt sent to job {self._plan.job} (one more within 1 sec to cancel it)")
            self._send(number)
        elif number in FORWARDED:
            self._send(number)

    def _send(self, number: int) -> None:
        with suppress(OSError):  # the command has ended
            self._connection.send(bytes([number]))

    # -- on a terminal ---------------------------------------------------------------------------------

    def _run_on_terminal(self, greeting: link.Greeting) -> None:
        rows, columns = terminal.size_of(0)
        greeting = structs.replace(greeting, terminal=True, rows=rows, columns=columns)
        self._greet(greeting, ())
        self._use_terminal()

    def attach(self) -> None:
        """Serve a command that has a terminal until it has ended. Raises Interrupted and Detached."""
        self._use_terminal(redraws=True)

    def _use_terminal(self, *, redraws: bool = False) -> None:
        master, output = link.take_terminal(self._connection)
        if master < 0:
            return
        stop = _DETACHES if self._plan.stays else b""
        feed = terminal.Feed(0, master, is_terminal=True, stop=stop)
        try:
            with terminal.raw(0):
                _show(output)
                if redraws:
                    self._redraw(master)
                while self._serve_terminal(feed, master):
                    pass
        finally:
            self._put_size_right(master)
            feed.close()
        while not self._serve(None):
            pass

    def _redraw(self, master: int) -> None:
        """Make the programs of the terminal draw again: change its size until they have noticed it."""
        rows, columns = terminal.size_of(0)
        terminal.set_size(master, (rows, columns + 1))
        self._resize_at = time.monotonic() + _REDRAW

    def _put_size_right(self, master: int) -> None:
        if self._resize_at:
            self._resize_at = 0.0
            terminal.set_size(master, terminal.size_of(0))

    def _leave_if_over(self, feed: terminal.Feed) -> None:
        """Raise Interrupted if the caller's terminal was lost, Detached if its user asked for it."""
        if feed.is_lost:
            raise Interrupted(signal.SIGHUP)
        if feed.is_stopped:
            self._send(link.DETACH[0])
            raise Detached(is_taken=False)

    def _serve_terminal(self, feed: terminal.Feed, master: int) -> bool:
        """Handle what is ready; return whether the terminal is still in use."""
        sources: list[Any] = [self._connection, self._signals, master, *feed.reads()]
        ready, free, _ = select.select(sources, feed.writes(), [], _LOOK)
        is_over = self._connection in ready and self._is_over()  # first: the output may be for another caller
        if free:
            feed.write()
        if 0 in ready:
            feed.read()
        self._leave_if_over(feed)
        if master in ready or time.monotonic() >= self._resize_at:
            self._put_size_right(master)
        if not ready:
            feed.repeat_end()
        for number in self._signals.take():
            if number == signal.SIGWINCH:
                terminal.set_size(master, terminal.size_of(0))
            elif number in (signal.SIGHUP, signal.SIGTERM):  # a shell on a terminal ignores SIGTERM
                raise Interrupted(number)
            elif number != signal.SIGINT:  # that of a terminal in raw mode is a character
                self._send(number)
        if is_over:
            while select.select([master], [], [], _REST)[0] and _copied(master):
                pass
            return False
        return master not in ready or _copied(master)


def _copied(master: int) -> bool:
    """Copy once from the job's terminal; return whether it is open."""
    data = terminal.read(master)
    _show(data or b"")
    return data != b""


def _show(data: bytes) -> None:
    """Write output on the caller's terminal. Raises Interrupted if it was lost."""
    try:
        terminal.write_all(1, data)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise Interrupted(signal.SIGHUP) from None


def _own(stream: int) -> int:
    """Return a descriptor of the caller, or one of /dev/null if it is closed."""
    try:
        os.fstat(stream)
    except OSError:
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    return stream
