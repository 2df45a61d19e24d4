"""A disk that forgets: builds, from the record of all changes, files that a power cut can leave.

What was written after the last synchronisation of a file survives page by page, or not, or in part
(sectors). Names behave as on one of two kinds of file systems. With a journal (ext4) their changes
survive in order, and a synchronisation of any file makes all earlier ones durable. Without one
(`loose`), each change of a name survives or not by itself until its directory is synchronised.
"""

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_HEAD = struct.Struct("<c3xIQQQ")
_PAGE, _SECTOR = 4096, 512


@dataclass(frozen=True)
class Change:
    """One record: the byte at which it ends in the log, its kind, and its arguments."""

    end: int
    kind: str
    file: int = 0
    offset: int = 0
    began: int = 0  # bytes of the log when a synchronisation began
    data: bytes = b""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.decode() for part in self.data.split(b"\0"))


def changes(log: Path) -> Iterator[Change]:
    """Read the log. A line between the records, of a job or client, has its first letter as its kind."""
    data, at = log.read_bytes(), 0
    while at < len(data):
        if data[at : at + 1].islower():
            end = data.index(b"\n", at) + 1
            yield Change(end, chr(data[at]), data=data[at + 2 : end - 1])
        else:
            kind, length, file, offset, began = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + length
            yield Change(end, kind.decode(), file, offset, began, data[at + _HEAD.size : end])
        at = end


@dataclass
class File:
    """A file: its durable bytes, and its changes since."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)

    def sync(self, began: int) -> None:
        """Make the changes durable that were made before a synchronisation began."""
        for change in [one for one in self.pending if one.end <= began]:
            _apply(self.durable, change)
        self.pending = [one for one in self.pending if one.end > began]

    def whole(self) -> bytes:
        """Return the bytes that a program would read."""
        data = bytearray(self.durable)
        for change in self.pending:
            _apply(data, change)
        return bytes(data)

    def survivor(self, luck: random.Random, keep: float) -> bytes:
        """Return bytes that a power cut can leave; `keep`: the chance of each page's change."""
        data = bytearray(self.durable)
        metadata = luck.randint(0, len(self.pending)) if 0 < keep < 1 else round(keep) * len(self.pending)
        size = len(data)
        chances: dict[int, bool] = {}
        for number, change in enumerate(self.pending):
            if change.kind == "T":
                if number < metadata:
                    size = change.offset
                    _apply(data, change)
                continue
            if number < metadata:
                size = max(size, change.offset + len(change.data))
            for start, piece in _pieces(change):
                page = start // _PAGE
                alive = chances.setdefault(page, True) and luck.random() < keep
                if not alive and chances[page] and 0 < keep < 1:  # this change of the page is torn
                    piece = piece[: luck.randrange(len(piece) // _SECTOR + 1) * _SECTOR]
                elif not alive:
                    piece = b""
                chances[page] = alive  # a page is written whole: later changes came with earlier ones
                _put(data, start, piece)
        data += bytes(max(0, size - len(data)))
        return bytes(data[:size])


def _pieces(change: Change) -> Iterator[tuple[int, bytes]]:
    """Return the parts of a write, page by page."""
    at = 0
    while at < len(change.data):
        start = change.offset + at
        length = min(len(change.data) - at, _PAGE - start % _PAGE)
        yield start, change.data[at : at + length]
        at += length


def _put(data: bytearray, offset: int, piece: bytes) -> None:
    if piece:
        data += bytes(max(0, offset - len(data)))
        data[offset : offset + len(piece)] = piece


def _apply(data: bytearray, change: Change) -> None:
    if change.kind == "T":
        del data[change.offset :]
        data += bytes(max(0, change.offset - len(data)))
    else:
        _put(data, change.offset, change.data)


class Disk:
    """The files below a directory as a series of changes makes them."""

    def __init__(self, *, loose: bool) -> None:
        self.loose = loose
        self.files: dict[int, File] = {}
        self.names: dict[str, File | None] = {}  # durable; None: a directory
        self.pending: list[tuple[Change, File | None]] = []  # changes of names

    def take(self, change: Change) -> None:
        """Make one change."""
        match change.kind:
            case "C":
                self.files[change.file] = File()
                self.pending.append((change, self.files[change.file]))
            case "W" | "T":
                if change.file in self.files:
                    self.files[change.file].pending.append(change)
            case "S":
                if change.file in self.files:
                    self.files[change.file].sync(change.began)
                if not self.loose:
                    self._commit(change.began, "")
            case "D":
                self._commit(change.began, "" if not self.loose else change.names[0])
            case "R" | "L" | "U" | "M":
                self.pending.append((change, self.files.get(change.file)))

    def _commit(self, began: int, directory: str) -> None:
        """Make changes of names durable, of all directories or of one."""
        left = []
        for change, file in self.pending:
            is_there = not directory or any(_parent(name) == directory for name in change.names)
            if change.end <= began and is_there:
                _rename(self.names, change, file)
            else:
                left.append((change, file))
        self.pending = left

    def survivor(self, luck: random.Random) -> dict[str, bytes | None]:
        """Return {path: bytes or None for a directory} as a power cut now can leave it."""
        keep = luck.choice((0.0, 1.0, 0.5, 0.5, 0.9, 0.1))
        names = dict(self.names)
        pending = self.pending
        if self.loose:
            pending = [one for one in pending if luck.random() < keep]
        elif keep < 1:
            pending = pending[: luck.randint(0, len(pending)) if keep else 0]
        for change, file in pending:
            _rename(names, change, file)
        return {name: None if file is None else file.survivor(luck, keep) for name, file in names.items()}


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _rename(names: dict[str, File | None], change: Change, file: File | None) -> None:
    """Make one change of names; a name whose directory did not survive is not there either."""
    match change.kind:
        case "C" | "M":
            names[change.names[0]] = file
        case "U":
            names.pop(change.names[0], None)
        case "L":
            names[change.names[1]] = file
        case "R":
            if file is None:  # a directory: with all that is in it
                old, new = change.names
                for name in [one for one in names if one == old or one.startswith(f"{old}/")]:
                    names[new + name[len(old) :]] = names.pop(name)
            else:
                names.pop(change.names[0], None)
                names[change.names[1]] = file


def lay_out(survivor: dict[str, bytes | None], root: str, into: Path) -> None:
    """Write the files below `root` into a directory."""
    for name in sorted(survivor):
        if name.startswith(f"{root}/"):
            path, data = into / name[len(root) + 1 :], survivor[name]
            if data is None:
                path.mkdir(0o700, parents=True, exist_ok=True)
            elif path.parent.is_dir():
                path.write_bytes(data)
                path.chmod(0o600)
