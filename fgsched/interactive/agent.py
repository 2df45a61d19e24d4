"""Become the command of a foreground job: take the caller's streams or open a terminal, then execute it.

`python -I -m fgsched.interactive.agent COMMAND [ARGUMENT]…` is the script of such a job, with the name of the
caller in FG_LINK. The command replaces this process, so signals and exit status are those of a batch job. A
second process, the watcher, passes on the caller's signals, and hangs up when the caller has gone.

`python -I -m fgsched.interactive.agent --join NAME` is started by the shepherd of a running job, for
`srun --jobid`. The command comes from the caller and is a child of this process, which returns its status.
"""

import fcntl
import os
import select
import signal
import socket
import struct
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from fgsched.interactive import link, terminal
from fgsched.system import preloading

_PATIENCE = 10.0  # seconds that the command has after SIGHUP, and again after SIGTERM
_HELD = 1 << 16  # bytes of output that are kept while no caller reads
_HANDOVER = 3.0  # seconds that a caller has to leave the terminal, which another one has taken
_HUNG_UP = 128 + signal.SIGHUP


def signal_group(command: int, number: int) -> None:
    """Send a signal to the process group of a command, which leads its session."""
    with suppress(OSError, ValueError):
        os.killpg(command, number)


class HeldTerminal:
    """The caller's side of a job's terminal, and a socket at which the next caller asks for it."""

    def __init__(self, name: str, master: int, directory: Path | None = None) -> None:
        """Listen for the next caller.

        Args:
            name: of the job's first caller.
            master: the descriptor of the terminal.
            directory: that of the job.
        """
        self.master = master
        self._output = b""  # that no caller has read
        self._is_in_use = True  # a program has it open
        try:
            self.listener: link.Listener | None = link.listen(link.attach_name(name), directory)
        except OSError:  # the job runs without it
            self.listener = None

    def reads(self, *, is_watched: bool) -> list[int | link.Listener]:
        """Return what to wait for; the output is read here unless a caller reads it."""
        reads: list[int | link.Listener] = [] if self.listener is None else [self.listener]
        return reads if is_watched or not self._is_in_use else [*reads, self.master]

    def keep_output(self) -> None:
        """Read once, so that the command does not wait; the last 64 KiB are kept."""
        data = terminal.read(self.master)
        self._is_in_use = data != b""
        self._output = (self._output + (data or b""))[-_HELD:]

    def accept(self) -> socket.socket | None:
        """Accept another caller; return None if it has gone."""
        return None if self.listener is None else self.listener.accept()

    def give(self, caller: socket.socket) -> bool:
        """Send a caller the terminal and the output that was kept; return False if it has gone."""
        try:
            link.send_terminal(caller, self.master, self._output)
        except OSError:
            caller.close()
            return False
        self._output = b""
        return True

    def close(self) -> None:
        """Close the terminal: the kernel hangs up its programs."""
        os.close(self.master)
        if self.listener is not None:
            self.listener.close()

    def leave(self) -> None:
        """Close the terminal in this process, because the watcher has it."""
        os.close(self.master)
        if self.listener is not None:
            self.listener.leave()


def _termination() -> int:
    """Return a descriptor that is readable after a SIGTERM, which all processes of an ending job get."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    return reading


def _dismiss(caller: socket.socket) -> None:
    """Make a caller end, so that it reads no output that is for its successor."""
    with caller, suppress(OSError):  # it has gone, or it is stopped
        caller.send(link.TAKEN)
        caller.settimeout(_HANDOVER)
        while caller.recv(64):  # signals that it has sent meanwhile
            pass


class CallerRelay:
    """Serves the callers of a command until it has ended. Call `run` once."""

    def __init__(
        self,
        caller: socket.socket,
        command: int,
        watched: int,
        *,
        stays: bool = False,
        held: HeldTerminal | None = None,
    ) -> None:
        """`watched` is a pidfd of the command; `stays`: the command survives the loss of its caller."""
        self._caller: socket.socket | None = caller
        self._command, self._watched = command, watched
        self._stays, self._held = stays, held
        self._ending = _termination() if held is not None else -1

    def run(self) -> None:
        """Deliver signals until the command has ended; hang up at the end of the caller, unless it stays."""
        while True:
            ready = select.select(self._sources(), [], [])[0]
            if self._watched in ready:
                return
            if self._ending in ready:  # a shell on a terminal ignores SIGTERM
                os.read(self._ending, 64)
                signal_group(self._command, signal.SIGHUP)
            elif self._held is not None and self._held.listener in ready:
                if not self._change_caller(self._held):
                    self._hang_up()
                    return
            elif self._held is not None and self._held.master in ready:
                self._held.keep_output()
            elif not self._hear():
                self._hang_up()
                return

    def _sources(self) -> list[int | socket.socket | link.Listener]:
        callers = [] if self._caller is None else [self._caller]
        held = [] if self._held is None else self._held.reads(is_watched=self._caller is not None)
        return [self._watched, *([self._ending] if self._ending >= 0 else []), *callers, *held]

    def _change_caller(self, held: HeldTerminal) -> bool:
        """Give the terminal to another caller; return whether the command may run on."""
        caller = held.accept()
        if caller is None:
            return True
        if self._caller is not None:
            _dismiss(self._caller)
        self._caller = caller if held.give(caller) else None
        return self._caller is not None or self._stays

    def _hear(self) -> bool:
        """Read from the caller; return whether the command may run on."""
        caller = self._caller
        if caller is None:
            return True
        try:
            message = caller.recv(64)
        except OSError:
            message = b""
        if message and message != link.DETACH:
            signal_group(self._command, message[0])
            return True
        caller.close()
        self._caller = None
        return bool(message) or self._stays

    def _hang_up(self) -> None:
        """End the command: SIGHUP, then SIGTERM, then SIGKILL. The shepherd ends what it leaves."""
        if self._held is not None:
            self._held.close()
        signal_group(self._command, signal.SIGHUP)
        signal_group(self._command, signal.SIGCONT)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if select.select([self._watched], [], [], _PATIENCE)[0]:
                return
            signal_group(self._command, number)


_NOT_FOUND, _NOT_EXECUTED = 127, 126
LOOPBACK = "127.0.0.1"
PORT = "{port}"  # in a word of the command: the reserved port


def main() -> None:
    """Execute the command of the arguments with the streams of the caller."""
    preloading.restore(os.environ)
    command = sys.argv[1:]
    if command[0] == "--join":
        _join(command[1])
    words = os.environ.pop(link.VARIABLE, None) or command.pop(0)  # scripts of earlier versions begin with it
    name, directory = link.of_words(words)
    try:
        connection = link.connect(name, directory)
        greeting, descriptors = link.greeted(connection)
    except (link.CallerGone, OSError):
        print("fgsched: the caller of this job has gone", file=sys.stderr)
        sys.exit(_HUNG_UP)
    os.environ.update(greeting.variables)
    reserved = reserve_port() if greeting.port else None  # until the watcher ends
    if reserved is not None:
        port = reserved.getsockname()[1]
        connection.send(link.PORT + b"%d" % port)
        command = [word.replace(PORT, str(port)) for word in command]
    master = _take_streams(connection, greeting, descriptors)
    _start_watcher(connection, greeting, None if master < 0 else HeldTerminal(name, master, _directory()))
    execute(command)


def _join(name: str) -> NoReturn:
    """Run the caller's command as a child, and return its wait status to the caller."""
    try:
        connection = link.connect(name, _directory())
        greeting, descriptors = link.greeted(connection)
    except (link.CallerGone, OSError):
        os._exit(_HUNG_UP)
    command = os.fork()
    if not command:
        os.setsid()
        os.environ.update(greeting.variables)
        master = _take_streams(connection, greeting, descriptors)
        if master >= 0:  # nothing attaches to a command that joined
            os.close(master)
        execute(greeting.command)
    for descriptor in descriptors:
        os.close(descriptor)
    watched = os.pidfd_open(command)
    _detach()
    CallerRelay(connection, command, watched).run()
    select.select([watched], [], [])
    signal_group(command, signal.SIGTERM)  # what it left in its process group
    with suppress(OSError):
        connection.send(b"status %d" % os.waitpid(command, 0)[1])
    os._exit(0)


def _directory() -> Path | None:
    """Return the directory of the job, which only its user can enter."""
    place = os.environ.get("FG_JOB_DIR")
    return Path(place) if place else None


def reserve_port() -> socket.socket:
    """Bind a free port of the loopback, without listening at it: a server of this user can then listen there.

    The kernel gives the port to no other socket that does not name it.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((LOOPBACK, 0))
    return reserved


def _take_streams(connection: socket.socket, greeting: link.Greeting, descriptors: Sequence[int]) -> int:
    """Take the caller's streams, or a terminal; return the caller's side of the terminal, -1 without one."""
    master = _take_terminal(connection, greeting) if greeting.terminal else -1
    for stream, descriptor in zip(greeting.streams, descriptors, strict=True):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    return master


def execute(command: Sequence[str]) -> NoReturn:
    """Execute a command that PATH leads to, with the default signals; exit with 126 or 127 if that fails."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # the interpreter ignores them
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        print(f"fgsched: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTED)


def _take_terminal(connection: socket.socket, greeting: link.Greeting) -> int:
    """Open a terminal for this session; send its other side to the caller, and return it."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", greeting.rows, greeting.columns, 0, 0))
    fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
    link.send_terminal(connection, ours)
    for stream in range(3):
        os.dup2(theirs, stream)
    if theirs > 2:
        os.close(theirs)
    return ours


# -- the watcher ---------------------------------------------------------------------------------------


def _start_watcher(connection: socket.socket, greeting: link.Greeting, held: HeldTerminal | None) -> None:
    """Start the watcher, which is no child of the command: only the shepherd is to wait for it."""
    command = os.getpid()
    watched = os.pidfd_open(command)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os.close(watched)
        connection.close()
        if held is not None:
            held.leave()
        return
    if os.fork():
        os._exit(0)
    try:
        _detach()
        CallerRelay(connection, command, watched, stays=greeting.stays, held=held).run()
    finally:
        os._exit(0)


def _detach() -> None:
    """Leave the terminal and its signals, and ignore the signals to the whole job."""
    with suppress(PermissionError):  # an agent that joins leads its session already
        os.setsid()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)


if __name__ == "__main__":
    main()
