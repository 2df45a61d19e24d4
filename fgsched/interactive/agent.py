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

from fgsched.interactive import link
from fgsched.interactive.watcher import HeldTerminal, Watcher, signal_group

_HUNG_UP = 128 + signal.SIGHUP
_NOT_FOUND, _NOT_EXECUTED = 127, 126
LOOPBACK = "127.0.0.1"
PORT = "{port}"  # in a word of the command: the reserved port


def main() -> None:
    """Execute the command of the arguments with the streams of the caller."""
    command = sys.argv[1:]
    if command[0] == "--join":
        _join(command[1])
    said = os.environ.pop(link.VARIABLE, None) or command.pop(0)  # scripts of earlier versions begin with it
    name, directory = link.of_words(said)
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
    Watcher(connection, command, watched).run()
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
        Watcher(connection, command, watched, stays=greeting.stays, held=held).run()
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
