"""The connection between a caller, such as fgrun, and the first process of its job: it carries descriptors.

The caller listens at a socket in a directory that only its user can enter: other users can neither
connect nor take the places of its queue. Where the job cannot reach that directory, or there is none, it
connects to an abstract socket with a random name, which disappears with the caller. Each side checks that the
other side is a process of its own user. Arguments of processes are visible to all users and variables are
not, so the first process of a job gets the name in a variable.
"""

import os
import re
import secrets
import select
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ECONNREFUSED
from pathlib import Path
from types import TracebackType

import msgspec
from msgspec import Struct

from fgsched.system.places import folder

try:  # hashlib loads OpenSSL, which takes longer than the rest
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

_CREDENTIALS = struct.Struct("3i")
_LONGEST = 1 << 17  # bytes of a message
_STREAMS = 3
_WAITING = 4096  # connections: those of other users are refused, but take a place until then
DETACH = b"\0"  # a caller leaves, and the command runs on
PORT = b"port "  # with the number of a port that was reserved for the job
TAKEN = b"taken"  # another caller has the terminal
VARIABLE = "FG_LINK"  # the name of the first caller and its directory, for the first process of its job only
_ABANDONED = re.compile(r"fgrun-[0-9a-f]{32}", re.ASCII)
_MOST_ABANDONED = 100  # sockets of callers that were killed and are looked at by a new one


class Greeting(Struct, frozen=True, kw_only=True):
    """The first message of a caller. The descriptors of the caller's streams come with it."""

    streams: tuple[int, ...] = ()  # 0, 1 and 2, as far as the job gets those of the caller
    terminal: bool = False  # the job opens a terminal of its own and sends its other side
    rows: int = 24  # of the terminal
    columns: int = 80
    command: tuple[str, ...] = ()  # of an agent that has none
    variables: dict[str, str] = {}  # that are added for it
    port: bool = False  # the agent reserves a port
    stays: bool = False  # the command survives the loss of its caller


class CallerGone(Exception):
    """Raised if the caller has ended, or is not a process of this user."""


def join_name(job: int, attempt: int, caller: int) -> str:
    """Return the name at which a caller awaits the agent that joins a running job."""
    return f"fgjoin-{job}.{attempt}-{caller}"


def attach_name(name: str) -> str:
    """Return the name at which a job whose first caller had `name` awaits further callers."""
    return f"{name}.attach"


def _address(name: str) -> str:
    """Return the address of a name; it tells a reader of /proc/net/unix nothing about the name."""
    return f"\0fgsched/{blake2b(name.encode(), digest_size=16).hexdigest()}"


def new_name() -> str:
    """Return a name that no other caller has."""
    return f"fgrun-{secrets.token_hex(16)}"


def callers(run: Path) -> Path:
    """Return the directory of first callers, below the run directory of their user's own controller."""
    return run / "callers"


def words(name: str, directory: Path) -> str:
    """Return the value of FG_LINK."""
    return f"{name}:{directory}"


def of_words(value: str) -> tuple[str, Path | None]:
    """Return name and directory of the value of FG_LINK; scripts of earlier versions have no directory."""
    name, _, directory = value.partition(":")
    return name, Path(directory) if directory else None


class Listener:
    """What the job's first process can connect to: a socket in a directory, and one without a file."""

    def __init__(self, name: str, directory: Path | None) -> None:
        """Listen; raise OSError if the name is taken."""
        self._name, self._directory = name, -1
        self._ready = select.epoll()
        self._sockets: list[socket.socket] = []
        try:
            self._listen(_address(name))
            if directory is not None:
                with suppress(OSError):  # of a full disk, or none is there: the other socket is enough
                    self._listen_below(directory)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Listener":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor that is ready for reading when there is a connection; -1 if it is closed."""
        return -1 if self._ready.closed else self._ready.fileno()

    @property
    def addresses(self) -> list[bytes | str]:
        """Return the addresses, the one that other users cannot reach last."""
        return [listener.getsockname() for listener in self._sockets]

    def accept(self) -> socket.socket | None:
        """Accept a connection; None if the other side belongs to another user or has gone."""
        for listener in reversed(self._sockets):
            try:
                connection, _ = listener.accept()
            except OSError:
                continue
            if _is_own(connection):
                return connection
            connection.close()
        return None

    def close(self) -> None:
        """Close the sockets, and remove the file."""
        if self._directory >= 0:
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._directory)
        self.leave()

    def leave(self) -> None:
        """Close the sockets in this process, because another one has them."""
        self._ready.close()
        for listener in self._sockets:
            listener.close()
        self._sockets.clear()
        if self._directory >= 0:
            os.close(self._directory)
        self._directory = -1

    def _listen(self, address: str) -> None:
        listener = _socket()
        try:
            listener.bind(address)
            listener.listen(_WAITING)
        except BaseException:
            listener.close()
            raise
        listener.setblocking(False)
        self._ready.register(listener, select.EPOLLIN)
        self._sockets.append(listener)

    def _listen_below(self, directory: Path) -> None:
        with folder(directory, make=True, mode=0o700):
            pass
        self._directory = _opened(directory)
        _remove_abandoned(self._directory)
        self._listen(_below(self._directory, self._name))


def listen(name: str, directory: Path | None = None) -> Listener:
    """Return what the job's first process can connect to. Raises OSError if the name is taken.

    `directory` is one that only this user can enter; it is made if it is missing.
    """
    return Listener(name, directory)


def _opened(directory: Path) -> int:
    """Open a directory that only this user can enter. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077:
        return descriptor
    os.close(descriptor)
    raise PermissionError(f"{directory} is not a directory that only you can enter")


def _below(directory: int, name: str) -> str:
    """Return the address of a socket in an open directory: a path may be too long for one."""
    return f"/proc/self/fd/{directory}/{name}"


def _remove_abandoned(directory: int) -> None:
    """Remove sockets at which no process listens any more."""
    names = filter(_ABANDONED.fullmatch, os.listdir(directory))
    for name in [name for name, _ in zip(names, range(_MOST_ABANDONED), strict=False)]:
        with _socket() as caller, suppress(OSError):
            caller.setblocking(False)
            if caller.connect_ex(_below(directory, name)) == ECONNREFUSED:
                os.unlink(name, dir_fd=directory)


def connect(name: str, directory: Path | None = None) -> socket.socket:
    """Connect to the caller. Raises CallerGone."""
    connection = _connected_below(directory, name) if directory is not None else None
    if connection is None:
        connection = _socket()
        try:
            connection.connect(_address(name))
        except OSError:
            connection.close()
            raise CallerGone from None
    if not _is_own(connection):
        connection.close()
        raise CallerGone
    return connection


def _connected_below(directory: Path, name: str) -> socket.socket | None:
    """Return a connection to a socket in a directory; None if the directory or the socket is not there."""
    connection = _socket()
    try:
        with _descriptor(directory) as opened:
            connection.connect(_below(opened, name))
    except OSError:
        connection.close()
        return None
    return connection


@contextmanager
def _descriptor(directory: Path) -> Iterator[int]:
    descriptor = _opened(directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def greet(connection: socket.socket, greeting: Greeting, descriptors: tuple[int, ...]) -> None:
    """Send the greeting with one descriptor for each of its streams."""
    socket.send_fds(connection, [msgspec.json.encode(greeting)], list(descriptors))


def greeted(connection: socket.socket) -> tuple[Greeting, list[int]]:
    """Return the greeting and its descriptors. Raises CallerGone."""
    data, descriptors, _, _ = socket.recv_fds(connection, _LONGEST, _STREAMS)
    if not data:
        raise CallerGone
    return msgspec.json.decode(data, type=Greeting), descriptors


def send_terminal(connection: socket.socket, terminal: int, output: bytes = b"") -> None:
    """Send the other side of the job's terminal to the caller, with output that was not read yet."""
    socket.send_fds(connection, [b"terminal" + output], [terminal])


def take_terminal(connection: socket.socket) -> tuple[int, bytes]:
    """Return the other side of the job's terminal and unread output; -1 if there is none."""
    try:
        data, descriptors, _, _ = socket.recv_fds(connection, _LONGEST, 1)
    except OSError:
        return -1, b""
    return (descriptors[0] if descriptors else -1), data.removeprefix(b"terminal")


def _is_own(connection: socket.socket) -> bool:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(raw)[1] == os.geteuid())
