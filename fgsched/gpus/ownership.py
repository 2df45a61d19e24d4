"""Ensure that only one controller of the host allocates a GPU, by a name that the kernel reserves.

The name is that of an abstract socket and contains the GPU's UUID. The kernel removes it when the process
ends, and no file remains. A controller in another network namespace, such as a container's, is not detected.

Every user can connect to it, to learn who has the GPU. Connections take places in a queue of the kernel until
the controller takes them, so it does that whenever there are any. Who connects waits for a second at most.
"""

import errno
import logging
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress

from msgspec import Struct

from fgsched.domain.errors import Refused
from fgsched.domain.job import Gpu

log = logging.getLogger("fgsched.controller")
_CREDENTIALS = struct.Struct("3i")
_PATIENCE = struct.pack("ll", 1, 0)  # seconds and microseconds for a place in the queue of a holder
_QUEUE = 4096  # connections that wait for the controller; more wait for a place, in their order
_MOST = 64  # connections that are taken before other work of the controller


class Holder(Struct, frozen=True, kw_only=True):
    """The controller that allocates a GPU."""

    pid: int
    uid: int

    @property
    def words(self) -> str:
        """Return uid and pid as text. The name of the user is not looked up: the name service may block."""
        return f"uid {self.uid} (pid {self.pid})" if self.pid else "an unknown process"


class Ownership:
    """The names of the GPUs that this controller allocates."""

    def __init__(self) -> None:
        self._sockets: dict[str, socket.socket] = {}

    def take(self, gpus: Iterable[Gpu]) -> dict[int, Holder]:
        """Reserve the names of GPUs; return {index: holder} of the GPUs of other controllers.

        Raises:
            Refused: the kernel refuses a name.
        """
        holders = {}
        for gpu in gpus:
            if gpu.uuid not in self._sockets and (holder := self._take(gpu.uuid)):
                holders[gpu.index] = holder
        return holders

    @property
    def listeners(self) -> list[socket.socket]:
        """Return the sockets to which others connect to learn who has a GPU."""
        return list(self._sockets.values())

    def close(self) -> None:
        """Release the GPUs."""
        for listener in self._sockets.values():
            listener.close()
        self._sockets.clear()

    def _take(self, uuid: str) -> Holder | None:
        name = _name(uuid)
        try:
            self._sockets[uuid] = _listening(name)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return _holder(name)
            raise Refused(
                f"GPU {uuid} cannot be taken for this controller: {error}",
                "Set exclusive = false in [gpus] of fgsched.toml to use GPUs without taking them.",
            ) from None
        return None


def _listening(name: str) -> socket.socket:
    """Return a socket that listens under a name of the kernel. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(name)
        listener.listen(_QUEUE)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def dismiss(listener: socket.socket) -> None:
    """Close connections whose other side has read from them which process listens: their places are free."""
    with suppress(OSError):
        for _ in range(_MOST):
            listener.accept()[0].close()


def _connected(name: str) -> Holder:
    """Return uid and pid of the process that listens under a name. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)
        caller.connect(name)
        raw = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return Holder(pid=pid, uid=uid)


def _holder(name: str) -> Holder:
    """Return uid and pid of the process that listens under a name; pid 0 if it does not answer."""
    try:
        return _connected(name)
    except OSError:  # full, not yet listening, or just gone
        return Holder(pid=0, uid=-1)


def holder_of(uuid: str) -> Holder | None:
    """Return the controller that allocates a GPU; None if there is none."""
    try:
        return _connected(_name(uuid))
    except ConnectionRefusedError:
        return None
    except OSError:
        return Holder(pid=0, uid=-1)


def _name(uuid: str) -> str:
    return f"\0fgsched/gpu/{uuid.lower()}"


def own(gpus: Iterable[Gpu], *, exclusive: bool, is_root: bool) -> Ownership:
    """Reserve the names of GPUs for a controller; log the other controllers of GPUs that it shares.

    A user cannot prevent the host's controller from starting: root shares GPUs with a user's controller, and
    with a process that has the name and does not listen.

    Raises:
        Refused: another controller allocates one of the GPUs, or the kernel refuses a name, and `exclusive`
            is set.
    """
    owned = Ownership()
    try:
        holders = owned.take(gpus)
    except Refused as error:
        if exclusive:
            owned.close()
            raise
        log.warning("%s", error.cause)
        return owned
    refused = {
        gpu: holder for gpu, holder in holders.items() if exclusive and (holder.uid == 0 or not is_root)
    }
    if refused:
        owned.close()
        raise refusal(refused)
    for gpu, holder in holders.items():
        log.warning("GPU %d is also allocated by the controller of %s", gpu, holder.words)
    return owned


def refusal(holders: dict[int, Holder]) -> Refused:
    """Return the error for GPUs that another controller allocates."""
    names = sorted({holder.words for holder in holders.values()})
    gpus = ", ".join(map(str, sorted(holders)))
    return Refused(
        f"another controller of this host allocates GPU {gpus}: that of {', '.join(names)}",
        "Submit to that controller, or choose other GPUs with [gpus] devices in fgsched.toml, "
        "or set exclusive = false there to share them: memory that the other controller's jobs use is then "
        "counted as used by foreign processes.",
    )
