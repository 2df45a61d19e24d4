"""Where the page of a user lies, and what the command says to its process: files in the user's run directory.

The process of the page holds a lock for its life, so a socket without a process is recognised. Each side
checks that the other side belongs to its own user.

The page has a name of its own, NAME.localhost, which browsers find at the loopback. A browser sends the
cookies of a name to every port: those of 127.0.0.1 also to a server of another user that is looked at.
"""

import fcntl
import os
import re
import secrets
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from fgsched.domain.errors import NotPermitted, StorageError, Unreachable
from fgsched.system.paths import Paths, written
from fgsched.system.places import open_own
from fgsched.system.process import boot_id
from fgsched.system.runplace import placed

_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid of SO_PEERCRED
_PATIENCE = 10.0  # seconds for an answer of the process
_LONGEST = 1 << 16  # bytes of a message
_NAME = re.compile(r"fg[0-9a-f]{16}\.localhost")
CODE_LIFE = 120.0  # seconds in which a code opens the page

Answer = TypeVar("Answer", bound=Struct)


class WebOptions(Struct, frozen=True, kw_only=True):
    """How the process of the page is started."""

    socket: bool = False  # listen at a Unix socket instead of a port of this host
    keep: bool = False  # do not end without an open page
    added: tuple[str, ...] = ()  # variables of this process that its jobs must not have


class WebOrder(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the command asks of the process."""

    op: Literal["open", "status", "stop"]
    code: str = ""  # SHA-256 of the code that opens the page, in hexadecimal digits
    read_only: bool = False  # the page that the code opens shows no forms and no output
    keep: bool = False


class WebStatus(Struct, frozen=True, kw_only=True):
    """The state of the process."""

    version: str
    pid: int
    since: float  # epoch seconds of its start
    name: str = ""  # that a browser has to use: fg0123456789abcdef.localhost; "": of an earlier version
    port: int = 0  # on the loopback; 0: it listens at the Unix socket
    sessions: int = 0  # that were opened and have not ended
    streams: int = 0  # pages that are open
    keep: bool = False


class WebPlace(Struct, frozen=True, kw_only=True):
    """The files of a user's page."""

    run: Path  # a directory of the user alone

    @property
    def control(self) -> Path:
        """The socket of the commands."""
        return self.run / "web.ctl"

    @property
    def http(self) -> Path:
        """The socket of `fgsched web --socket`, for `ssh -L`."""
        return self.run / "web.sock"

    @property
    def port(self) -> Path:
        """The file with the last port, which is used again."""
        return self.run / "web.port"

    @property
    def name(self) -> Path:
        """The file with the name of the page, which is used again."""
        return self.run / "web.name"

    @property
    def log(self) -> Path:
        """The errors of the process."""
        return self.run / "web.log"

    def locked(self) -> int | None:
        """Return the descriptor of the lock of the process; None: another process has it."""
        with written(self.run / "web.lock"):
            descriptor = os.open(self.run / "web.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def listener(self, path: Path) -> socket.socket:
        """Return the listening socket at `path`, for this user alone. The caller holds the lock."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        mask = os.umask(0o177)
        try:
            with written(path):
                path.unlink(missing_ok=True)
                sock.bind(str(path))
        finally:
            os.umask(mask)
        sock.listen(64)
        return sock

    def ask(self, order: WebOrder) -> WebStatus | None:
        """Send an order to the process and return its state; None: there is no process.

        Raises: Unreachable, if it does not answer or belongs to another user.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(_PATIENCE)
            try:
                sock.connect(str(self.control))
                refuse_others(sock)
                sock.sendall(msgspec.json.encode(order) + b"\n")
                return read_message(sock, WebStatus)
            except (FileNotFoundError, ConnectionRefusedError):
                return None
            except (OSError, msgspec.MsgspecError) as error:
                why = f"the process of the page does not answer: {error}"
                raise Unreachable(
                    why, f"End it with kill, and repeat the command. Its log: {self.log}"
                ) from None


def find_webplace(paths: Paths, environ: Mapping[str, str], uid: int) -> WebPlace:
    """Return the place of a user's page: the run directory of the user's own controller.

    The directory is made if there is none, as it is where the host has a controller for all users.

    Raises:
        StorageError: it cannot be made.
        NotPermitted: other users can change it.
    """
    own = paths.own(environ, uid)
    with written(own.state):
        own.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = placed(own, uid, boot_id()) if not os.path.lexists(own.run) or own.is_lost else own
    try:
        os.close(open_own(own.run))
    except PermissionError:
        raise NotPermitted(
            f"{own.run} is not a directory that only you can change", "Remove it, and repeat the command."
        ) from None
    except OSError as error:
        raise StorageError(f"{own.run} cannot be used: {error.strerror}") from None
    return WebPlace(run=own.run)


def peer_uid(sock: socket.socket) -> int:
    """Return the uid of the process at the other end of a Unix socket."""
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)


def refuse_others(sock: socket.socket) -> None:
    """Raise PermissionError if the other end belongs to another user."""
    if peer_uid(sock) != os.geteuid():
        raise PermissionError(0, "it belongs to another user")


def read_message(sock: socket.socket, kind: type[Answer]) -> Answer:
    """Read a line of JSON. Raises OSError, or MsgspecError for anything else."""
    data = b""
    while not data.endswith(b"\n") and len(data) < _LONGEST:
        part = sock.recv(_LONGEST)
        if not part:
            break
        data += part
    return msgspec.json.decode(data, type=kind)


def own_name(place: WebPlace) -> str:
    """Return the name of this user's page, which no other user can guess; the first call makes it.

    Raises StorageError if it cannot be written.
    """
    with suppress(OSError, ValueError):
        name = place.name.read_text()
        if _NAME.fullmatch(name):
            return name
    name = f"fg{secrets.token_hex(8)}.localhost"
    with written(place.name):
        place.name.write_text(name)
    return name


def kept_port(place: WebPlace) -> int:
    """Return the port that the last process had; 0: none is known."""
    with suppress(OSError, ValueError):
        port = int(place.port.read_text())
        return port if 1024 <= port <= 65535 else 0
    return 0
