"""Process beside the controller that passes its events on to a command or a socket of the site.

It is a reader like any other. While the site does not take events, they are kept in the controller's ring,
and a line says how many were lost. The process ends with the controller.
"""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from fgsched import codec
from fgsched.client import Client
from fgsched.domain.errors import FgschedError, Refused
from fgsched.hooks.programs import base, refuse_unsafe_directory, refuse_unsafe_program
from fgsched.hooks.subscription import BEGUN, VERSION, follow, lines_of
from fgsched.system.paths import Paths

SECONDS = 60.0  # time limit of the command for one batch
_SOCKET_SECONDS = 5.0  # time in which the socket must take an event
Deliver = Callable[[Sequence[str]], None]


class Commands:
    """Runs a program for each batch, with one event in each line of its standard input."""

    def __init__(self, path: str, seconds: float = SECONDS) -> None:
        self._path, self._seconds = path, seconds
        self._process: subprocess.Popen[bytes] | None = None

    def deliver(self, lines: Sequence[str]) -> None:
        """Run the program with these lines. Raises OSError or Refused if it fails or is late."""
        refuse_unsafe_program("[events] command", self._path, os.geteuid())
        null = subprocess.DEVNULL
        with subprocess.Popen(
            [self._path],
            stdin=subprocess.PIPE,
            stdout=null,
            stderr=null,
            env=base("events"),
            cwd="/",
            start_new_session=True,
        ) as self._process:
            try:
                self._process.communicate("".join(f"{line}\n" for line in lines).encode(), self._seconds)
            except subprocess.TimeoutExpired:
                self.kill()
                raise OSError(errno.ETIMEDOUT, f"did not end within {self._seconds:g} s") from None
        if self._process.returncode:
            raise OSError(errno.EIO, f"exited with status {self._process.returncode}")

    def kill(self) -> None:
        """End the program that runs."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


class Socket:
    """Sends each event to a Unix socket: as a datagram, or as a line of a stream."""

    def __init__(self, path: str, seconds: float = _SOCKET_SECONDS) -> None:
        self._path, self._seconds = path, seconds
        self._socket: socket.socket | None = None
        self._end = b""  # of an event

    def deliver(self, lines: Sequence[str]) -> None:
        """Send these lines. Raises OSError or Refused if the socket does not take them in time."""
        try:
            for line in lines:
                self._connected().sendall(line.encode() + self._end)
        except OSError:
            self.kill()
            raise

    def _connected(self) -> socket.socket:
        if self._socket is None:
            refuse_unsafe_directory("[events] socket", Path(self._path).parent, os.geteuid())
            try:
                self._socket, self._end = self._dial(socket.SOCK_DGRAM), b""
            except OSError as error:
                if error.errno != errno.EPROTOTYPE:
                    raise
                self._socket, self._end = self._dial(socket.SOCK_STREAM), b"\n"
        return self._socket

    def _dial(self, kind: int) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, kind)
        sock.settimeout(self._seconds)
        try:
            sock.connect(self._path)
        except OSError:
            sock.close()
            raise
        return sock

    def kill(self) -> None:
        """Close the connection; the next event opens another one."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None


class Relay:
    """Delivers batches, and counts what could not be delivered."""

    def __init__(self, deliver: Deliver, report: Callable[[str], None]) -> None:
        """`report` takes a text for the log, once for each failure that lasts."""
        self._deliver, self._report = deliver, report
        self._lost, self._is_failing = 0, False

    def pass_on(self, lines: Sequence[str]) -> None:
        """Deliver lines, after one about the events that were lost before."""
        if not lines:
            return
        loss = codec.encode({"version": VERSION, "event": "lost", "count": self._lost}).decode()
        try:
            self._deliver([loss, *lines] if self._lost else lines)
        except (OSError, Refused) as error:
            self._lost += len(lines)
            why = error.cause if isinstance(error, Refused) else error.strerror or str(error)
            if not self._is_failing:
                self._report(f"events are lost: the site's command or socket: {why}")
            self._is_failing = True
            return
        self._lost, self._is_failing = 0, False


def _end_with_the_controller(kill: Callable[[], None]) -> None:
    """End the process when the controller closes descriptor 0."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        kill()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def batches(paths: Paths) -> Iterator[list[str]]:
    """Yield the lines of each batch of events. Raises FgschedError if there is no controller for a minute."""
    with Client(paths, may_start=False) as client:
        event_batches = follow(client, "")
        next(event_batches)
        yield [BEGUN]
        for batch in event_batches:
            yield list(lines_of(batch, as_json=True))


def main() -> None:
    """Run the relay. The arguments are the mode, the command and the socket; one of the last two is empty."""
    mode, command, path = sys.argv[1:4]
    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))
    paths = Paths.find(os.environ, os.geteuid(), system=mode == "system")
    target: Commands | Socket = Commands(command) if command else Socket(path)
    _end_with_the_controller(target.kill)
    relay = Relay(target.deliver, _log)
    try:
        for lines in batches(paths):
            relay.pass_on(lines)
    except FgschedError as error:
        _log(f"events are not passed on: {error.cause}")
