"""The connection between a caller, such as fgrun, and the first process of its job: it carries descriptors.

The caller listens at an abstract socket with a random name, which disappears with the caller. Each side
checks that the other side is a process of its own user.
"""

import os
import secrets
import socket
import struct

import msgspec
from msgspec import Struct

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


class Gone(Exception):
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


def listen(name: str) -> socket.socket:
    """Return a socket that the job's first process can connect to."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    listener.bind(_address(name))
    listener.listen(_WAITING)
    listener.setblocking(False)
    return listener


def accept(listener: socket.socket) -> socket.socket | None:
    """Accept a connection; None if the other side belongs to another user or has gone."""
    try:
        connection, _ = listener.accept()
    except OSError:
        return None
    if not _is_own(connection):
        connection.close()
        return None
    return connection


def connect(name: str) -> socket.socket:
    """Connect to the caller. Raises Gone."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        connection.connect(_address(name))
    except OSError:
        connection.close()
        raise Gone from None
    if not _is_own(connection):
        connection.close()
        raise Gone
    return connection


def greet(connection: socket.socket, greeting: Greeting, descriptors: tuple[int, ...]) -> None:
    """Send the greeting with one descriptor for each of its streams."""
    socket.send_fds(connection, [msgspec.json.encode(greeting)], list(descriptors))


def greeted(connection: socket.socket) -> tuple[Greeting, list[int]]:
    """Return the greeting and its descriptors. Raises Gone."""
    data, descriptors, _, _ = socket.recv_fds(connection, _LONGEST, _STREAMS)
    if not data:
        raise Gone
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
