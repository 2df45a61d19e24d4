"""The controller's end of the socket: one JSON object in each line; the kernel identifies the client."""

import os
import re
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from fgsched import PROTOCOL, codec, protocol
from fgsched.domain.errors import BadUsage, Busy, FgschedError, Refused, Unreachable
from fgsched.domain.steps import Steps

MAX_FRAME = 8 * 2**20  # bytes of one request
_MAX_OUT = 64 * 2**20  # bytes that a client which does not read may leave with us
_BACKLOG = 512  # clients that have connected and are not accepted yet
_LARGE = 2**18  # bytes of a request from which on its values are counted before they are parsed
_CONTAINERS, _ITEMS = 100_000, 500_000
_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)|[{\[,]', re.DOTALL)
_CREDENTIALS = struct.Struct("3i")


class ClientConnection:
    """A client connection. The kernel states its user."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid, self.uid, self.gid = _CREDENTIALS.unpack(raw)
        self._in = bytearray()
        self._scanned = 0  # bytes of `_in` that are known to hold no line end
        self._end = -1  # where the first line ends; -1: no whole line is here
        self.has_line = False
        self._out = bytearray()
        self.is_closed = False
        self.is_answering = False  # an answer has begun that is not whole yet
        self._is_first = True  # row of a list that is being sent
        self.is_waiting = False  # for the end of jobs: it sends no further requests

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def buffered(self) -> int:
        """Number of received bytes that are not handled yet."""
        return len(self._in)

    @property
    def unsent(self) -> int:
        """Number of bytes of answers that the client has not read."""
        return len(self._out)

    def fill(self, most: int) -> None:
        """Receive up to `most` bytes. Close at the end of the stream or if a request is too long."""
        if not most:
            return
        try:
            data = self._socket.recv(most)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._in += data
        if not self.has_line:
            self._scan()
        if not self.has_line and len(self._in) > MAX_FRAME:
            self.fail(Refused(f"a request is longer than {MAX_FRAME >> 20} MiB", "Send it in parts."))
            self.close()

    def take_line(self) -> bytes | bytearray:
        """Remove the first complete line and return it without its end. `has_line` must be true."""
        if self._end == len(self._in) - 1:  # nothing else is here: a large request is not copied
            whole, self._in = self._in, bytearray()
            self._scanned, self._end, self.has_line = 0, -1, False
            del whole[-1:]
            return whole
        with memoryview(self._in) as view:
            line = bytes(view[: self._end])
        del self._in[: self._end + 1]
        self._scanned = 0
        self._scan()
        return line

    def _scan(self) -> None:
        self._end = self._in.find(b"\n", self._scanned)
        self._scanned, self.has_line = len(self._in), self._end >= 0

    def succeed(self, result: Any) -> None:
        """Send an answer."""
        self._put(codec.encode_answer(result))

    def begin_list(self, name: str) -> None:
        """Begin an answer whose field `name` is a list. `add_rows` adds its items and `end_list` ends it."""
        self._is_first = self.is_answering = True
        self._put(b'{"v":%d,"ok":{"%s":[' % (PROTOCOL, name.encode()))

    def add_rows(self, rows: Sequence[Any]) -> None:
        """Send some rows of the list that was begun."""
        if rows:
            comma, self._is_first = b"" if self._is_first else b",", False
            self._put(comma + codec.encode(rows)[1:-1])

    def end_list(self, name: str, answer: msgspec.Struct) -> None:
        """End the list, and the answer with the other fields of `answer`."""
        self.is_answering = False
        fields = {key: value for key, value in msgspec.structs.asdict(answer).items() if key != name}
        self._put(b"]%s}}\n" % (b"," + codec.encode(fields)[1:-1] if fields else b""))

    def fail(self, error: FgschedError) -> None:
        """Answer with an error. `busy` tells the client when to retry."""
        busy = protocol.Retry(after=error.after) if isinstance(error, Busy) else None
        self._reply(codec.Reply(v=PROTOCOL, error=protocol.Problem.of(error), busy=busy))

    def send_progress(self, progress: protocol.Progress) -> None:
        """Send a progress line before the answer to a waiting client."""
        self._reply(codec.Reply(v=PROTOCOL, progress=progress))

    def _reply(self, reply: codec.Reply) -> None:
        self._put(codec.encode(reply) + b"\n")

    def _put(self, data: bytes) -> None:
        if self.is_closed:
            return
        self._out += data
        self.flush()
        if len(self._out) > _MAX_OUT:
            self.close()

    def flush(self) -> None:
        """Send as much as the client accepts now."""
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def close(self) -> None:
        self.is_closed = True
        self._in.clear()
        self._out.clear()
        self._end, self.has_line = -1, False
        self._socket.close()


def parse(line: bytes | bytearray, calls: codec.Decoder) -> protocol.Call[Any]:
    """Return the request in `line`.

    Raises: BadUsage, which names the wrong field; Unreachable for another version of the protocol.
    """
    if len(line) > _LARGE:
        _refuse_too_many(line)
    return calls.decode(line)


def _refuse_too_many(line: bytes | bytearray) -> None:
    """Refuse a request with so many values that parsing takes long. Raises BadUsage.

    All separators are counted first, which is cheap. Only if there are too many, the separators within texts
    are subtracted.
    """
    if line.count(b"{") + line.count(b"[") <= _CONTAINERS and line.count(b",") <= _ITEMS:
        return
    containers = items = 0
    for match in _STRUCTURE.finditer(line):
        mark = match[0]
        items += mark == b","
        containers += mark in (b"{", b"[")
        if containers > _CONTAINERS or items > _ITEMS:
            raise BadUsage(
                f"a request has more than {_CONTAINERS} objects and lists, or {_ITEMS} values",
                "Send it in parts.",
            )


def listen(path: Path, *, for_all: bool) -> socket.socket:
    """Return the listening socket at `path`, replacing a stale one. The caller holds the controller's lock.

    The socket is bound under another name in the same directory and renamed when its mode is set. A file that
    is not a socket is not changed.

    Raises:
        Unreachable: another kind of file is at `path`.
    """
    if path.exists() and not path.is_socket():
        raise Unreachable(
            f"{path} is not a socket.", "Move it away; the controller's socket has to be there."
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    mask = os.umask(0o111 if for_all else 0o177)
    try:
        sock.bind(str(fresh))
    finally:
        os.umask(mask)
    sock.listen(_BACKLOG)
    sock.setblocking(False)
    fresh.rename(path)
    return sock


# -- long answers ----------------------------------------------------------------------------------


Answer = TypeVar("Answer", bound=msgspec.Struct)
PIECE = 100  # rows


class LongAnswer(Struct, Generic[Answer], frozen=True):
    """An answer with a long list in `field`, whose rows are sent in pieces.

    A piece may be produced long after the request: the client reads slowly, or other users are served first.
    So the rows are chosen when the request arrives. An error of the request must be raised before this is
    returned, or by the first piece.
    """

    field: str
    pieces: Iterable[Sequence[Any]]  # rows of the list
    rest: Callable[[], Answer]  # the answer with an empty list; called after the last piece

    def whole(self) -> Answer:
        """Return the answer in one piece."""
        rows = [row for piece in self.pieces for row in piece]
        return msgspec.structs.replace(self.rest(), **{self.field: rows})


def listing(connection: ClientConnection, answer: LongAnswer[Any]) -> Iterator[None]:
    """Send a long answer, one piece in each step."""
    pieces = iter(answer.pieces)
    piece = next(pieces, ())
    connection.begin_list(answer.field)
    connection.add_rows(piece)
    del piece  # a client that does not read would keep it: 150 KiB for 100 jobs
    yield
    for piece in pieces:
        connection.add_rows(piece)
        del piece
        yield
    connection.end_list(answer.field, answer.rest())


class LongQuestion(Struct, Generic[Answer], frozen=True):
    """A request whose answer takes long to compute. Other requests are served between the steps.

    One such request of each user is answered at a time: the others of the user begin when it has ended.
    So `begin` is called at that time, with the seconds since the epoch.
    """

    begin: Callable[[float], Steps[Answer | LongAnswer[Answer]]]


class Parts(Protocol):
    """A sequence of which parts are taken."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Sequence[Any]: ...


def cut(items: Parts, rows: int = PIECE) -> Iterator[Sequence[Any]]:
    """Split the items into pieces of at most `rows` items."""
    for start in range(0, len(items), rows):
        yield items[start : start + rows]
