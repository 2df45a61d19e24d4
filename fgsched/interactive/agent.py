"""Become the command of a foreground job: take the caller's streams or open a terminal, then execute it.

`python -I -m fgsched.interactive.agent NAME COMMAND [ARGUMENT]…` is the script of such a job. The command
replaces this process, so signals and exit status are those of a batch job. A second process, the
watcher, passes on the caller's signals, and hangs up when the caller has gone.

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
from typing import NoReturn

from fgsched.interactive import link

_HUNG_UP = 128 + signal.SIGHUP
_NOT_FOUND, _NOT_EXECUTED = 127, 126
_PATIENCE = 10.0  # seconds that the command has after SIGHUP, and again after SIGTERM


def main() -> None:
    """Execute the command of the arguments with the streams of the caller."""
    name, *command = sys.argv[1:]
    if name == "--join":
        _join(command[0])
    try:
        connection = link.connect(name)
        greeting, descriptors = link.greeted(connection)
    except (link.Gone, OSError):
        print("fgsched: the caller of this job has gone", file=sys.stderr)
        sys.exit(_HUNG_UP)
    _take_streams(connection, greeting, descriptors)
    _start_watcher(connection)
    execute(command)


def _join(name: str) -> NoReturn:
    """Run the caller's command as a child, and return its wait status to the caller."""
    try:
        connection = link.connect(name)
        greeting, descriptors = link.greeted(connection)
    except (link.Gone, OSError):
        os._exit(_HUNG_UP)
    command = os.fork()
    if not command:
        os.setsid()
        os.environ.update(greeting.variables)
        _take_streams(connection, greeting, descriptors)
        execute(greeting.command)
    for descriptor in descriptors:
        os.close(descriptor)
    watched = os.pidfd_open(command)
    _detach()
    _watch(connection, command, watched)
    select.select([watched], [], [])
    _signal(command, signal.SIGTERM)  # what it left in its process group
    with suppress(OSError):
        connection.send(b"status %d" % os.waitpid(command, 0)[1])
    os._exit(0)


def _take_streams(connection: socket.socket, greeting: link.Greeting, descriptors: Sequence[int]) -> None:
    if greeting.terminal:
        _take_terminal(connection, greeting)
    for stream, descriptor in zip(greeting.streams, descriptors, strict=True):
        os.dup2(descriptor, stream)
        os.close(descriptor)


def execute(command: Sequence[str]) -> NoReturn:
    """Execute a command that PATH leads to, with the default signals; exit with 126 or 127 if that fails."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # the interpreter ignores them
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        print(f"fgsched: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTED)


def _take_terminal(connection: socket.socket, greeting: link.Greeting) -> None:
    """Open a terminal, make it that of this session, and send its other side to the caller."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", greeting.rows, greeting.columns, 0, 0))
    fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
    link.send_terminal(connection, ours)
    os.close(ours)
    for stream in range(3):
        os.dup2(theirs, stream)
    if theirs > 2:
        os.close(theirs)


# -- the watcher ---------------------------------------------------------------------------------------


def _start_watcher(connection: socket.socket) -> None:
    """Start the watcher, which is no child of the command: only the shepherd is to wait for it."""
    command = os.getpid()
    watched = os.pidfd_open(command)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os.close(watched)
        connection.close()
        return
    if os.fork():
        os._exit(0)
    try:
        _detach()
        _watch(connection, command, watched)
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


def _watch(connection: socket.socket, command: int, watched: int) -> None:
    """Deliver the caller's signals until the command has ended; the end of the caller is a hang-up."""
    while True:
        ready, _, _ = select.select([connection.fileno(), watched], [], [])
        if watched in ready:
            return
        message = _received(connection)
        if not message:
            _hang_up(command, watched)
            return
        _signal(command, message[0])


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(64)
    except OSError:
        return b""


def _hang_up(command: int, watched: int) -> None:
    """End the command: SIGHUP, then SIGTERM, then SIGKILL. The shepherd ends the processes that it leaves."""
    _signal(command, signal.SIGHUP)
    _signal(command, signal.SIGCONT)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if select.select([watched], [], [], _PATIENCE)[0]:
            return
        _signal(command, number)


def _signal(command: int, number: int) -> None:
    """Send a signal to the process group of the command, which leads its session."""
    with suppress(OSError, ValueError):
        os.killpg(command, number)


if __name__ == "__main__":
    main()
