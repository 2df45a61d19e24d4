"""What a value in the configuration file may be, and on which line it stands."""

import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from fgsched.domain import units
from fgsched.domain.errors import BadUsage

_AT = re.compile(r" \(at line (\d+), column \d+\)$|\(at end of document\)$")
_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
_ASSIGNMENT = re.compile(r"\s*([\w\-.\"' ]+?)\s*=")


class Unfit(Exception):
    """A value that is not of the kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A sort of value: how it is read, how it is shown, and what to write in words."""

    takes: str
    unit: str = ""
    read: Callable[[object], Any]
    show: Callable[[Any], str] = str


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What a field of Config is to the person who writes the file."""

    name: str
    table: str
    kind: Kind
    default: Any
    low: float | None = None
    high: float | None = None
    says: str
    default_text: str = ""  # where the default is not the same everywhere

    @property
    def allowed(self) -> str:
        """The values it takes, in words."""
        if self.low is None or self.high is None:
            return self.kind.takes
        return f"{self.kind.takes}, from {self.kind.show(self.low)} to {self.kind.show(self.high)}"

    def read(self, value: object) -> Any:
        """The value as the field holds it, or Unfit."""
        found = self.kind.read(value)
        if self.low is not None and self.high is not None and not self.low <= found <= self.high:
            raise Unfit
        return found


def key(table: str, kind: Kind, default: Any, **about: Any) -> Any:
    return field(default=default, metadata={"table": table, "kind": kind, **about})


def declared(kind: type) -> dict[str, Key]:
    """{field: what it is in the file} of a dataclass whose fields are made with `key`."""
    made: dict[str, dict[str, Any]] = {
        one.name: {"name": one.name, "default": one.default} | dict(one.metadata)
        for one in fields(kind)
        if "kind" in one.metadata
    }
    return {own: Key(**about) for own, about in made.items()}


def value_of(where: str, name: str, key: Key, value: object) -> Any:
    """The value as the field holds it; BadUsage with the place and what is allowed."""
    try:
        return key.read(value)
    except Unfit:
        shown = f'"{value}"' if isinstance(value, str) else str(value)
        raise BadUsage(f"{where}: {name} = {shown} is not {key.allowed}.") from None


def one_of(*words: str) -> Kind:
    def read(value: object) -> str:
        if value not in words:
            raise Unfit
        return str(value)

    return Kind(takes=" or ".join(f'"{word}"' for word in words), read=read, show=lambda word: f'"{word}"')


def some_of(*words: str) -> Kind:
    def read(value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or any(word not in words for word in value):
            raise Unfit
        return tuple(value)

    def show(chosen: Iterable[str]) -> str:
        return "[" + ", ".join(f'"{word}"' for word in chosen) + "]"

    return Kind(takes=f"a list of some of {show(words)}", read=read, show=show)


def line_of(text: str, path: Sequence[str]) -> int:
    """The line on which a key, or else the table above it, is named; 1 when neither is found."""
    table: tuple[str, ...] = ()
    named: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            here = table = _parts(header[1])
        elif assignment := _ASSIGNMENT.match(line):
            here = (*table, *_parts(assignment[1]))
        else:
            continue
        for length in range(1, len(here) + 1):
            named.setdefault(here[:length], number)
    wanted = tuple(path)
    return next((named[wanted[:n]] for n in range(len(wanted), 0, -1) if wanted[:n] in named), 1)


def place_of(error: tomllib.TOMLDecodeError, text: str) -> tuple[int, str]:
    """The line and the reason of what TOML itself refuses."""
    message = str(error)
    at = _AT.search(message)
    line = int(at[1]) if at and at[1] else len(text.splitlines()) or 1
    return line, _AT.sub("", message).strip()


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unfit
    return value


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Unfit
    return value


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise Unfit
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Unfit
    return value


def _path(value: object) -> str:
    path = _text(value)
    if not path.startswith("/") or "\0" in path:
        raise Unfit
    return path


def _users(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise Unfit
    return tuple(value)


def _indices(value: object) -> tuple[int, ...]:
    """A list of whole numbers, or a text such as "0,2-3"."""
    if isinstance(value, list):
        return tuple(sorted({_integer(one) for one in value}))
    try:
        return units.parse_indices(_text(value))
    except BadUsage as error:
        raise Unfit from error


def _cards(value: object) -> str:
    """An amount in the form of --gpus, kept as it is written."""
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else _text(value)
    try:
        units.parse_gpus(text)
    except BadUsage as error:
        raise Unfit from error
    return text


def _gpu_memory(value: object) -> str:
    """Memory of a card in the form of --gpu-mem: a size, or a part of the card."""
    text = _text(value)
    try:
        units.parse_share(text) if text.endswith("%") else units.parse_bytes(text)
    except BadUsage as error:
        raise Unfit from error
    return text


def _devices(value: object) -> str:
    """As one text, in the form of FG_DEVICES: a number is how many, a list has a comma."""
    if isinstance(value, list):
        items = [item if isinstance(item, str) else str(_integer(item)) for item in value]
        return ",".join(items) + "," if items else "none"
    return value if isinstance(value, str) else str(_integer(value))


FOREVER = -1  # of KEPT


def _kept(value: object) -> int:
    """Seconds; FOREVER."""
    if value == "forever":
        return FOREVER
    seconds: int = _unit(units.parse_duration)(value)
    return seconds


def _kept_text(seconds: int) -> str:
    return {FOREVER: '"forever"', 0: '"0"'}.get(seconds) or f'"{units.format_limit(seconds)}"'


def _unit(parse: Callable[[str], int]) -> Callable[[object], int]:
    """One of the texts that commands take as well."""

    def read(value: object) -> int:
        try:
            return parse(str(value) if isinstance(value, float) else _text(value))
        except BadUsage as error:
            raise Unfit from error

    return read


DEVICES = Kind(
    takes='"auto", "none", "sim:4x80G:H100", how many, or a list of indices or UUIDs',
    read=_devices,
    show=lambda text: f'"{text}"',
)
PATH = Kind(takes="an absolute path", read=_path, show=lambda path: f'"{path}"')
SECONDS = Kind(takes="seconds", unit="s", read=_seconds, show=lambda number: f"{number:g}")
SWITCH = Kind(takes="true or false", read=_switch, show=lambda on: str(on).lower())
USERS = Kind(takes="a list of user names", read=_users, show=lambda names: f"[{', '.join(names)}]")
NAMES = Kind(takes="a list of names", read=_users, show=lambda names: f"[{', '.join(names)}]")
INDICES = Kind(
    takes='a list of GPUs such as [0, 1] or "0-1"',
    read=_indices,
    show=lambda found: f'"{units.format_indices(found)}"',
)
XIDS = Kind(takes="a list of Xid numbers such as [48, 79]", read=_indices, show=lambda found: str([*found]))
CARDS = Kind(takes='an amount of GPUs such as 0.5, 2 or "a100:1"', read=_cards, show=lambda text: f'"{text}"')
GPU_MEMORY = Kind(
    takes='memory of a GPU such as "8G" or "50%"', read=_gpu_memory, show=lambda text: f'"{text}"'
)
WORD = Kind(takes="a name", read=_text, show=lambda text: f'"{text}"')
WHOLE = Kind(takes="a whole number", read=_integer)
SIZE = Kind(
    takes='a size such as "256M"',
    unit="bytes",
    read=_unit(units.parse_bytes),
    show=lambda size: f'"{units.format_mebibytes(round(size))}"',
)
SHARE = Kind(
    takes='a share such as 0.05 or "5%"',
    unit="GPU",
    read=_unit(units.parse_share),
    show=lambda share: f'"{units.format_share(round(share))}"',
)
GPUS = Kind(
    takes="an amount of GPUs such as 0.5 or 2",
    unit="GPU",
    read=lambda value: _unit(units.parse_units)(str(value) if type(value) is int else value),
    show=lambda share: f'"{units.format_share(round(share))}"',
)
DURATION = Kind(
    takes='a time such as "1-12:00:00"; a bare number is minutes, "0" no limit',
    read=_unit(units.parse_duration),
    show=lambda seconds: f'"{units.format_limit(seconds)}"',
)
KEPT = Kind(
    takes='a time such as "30-00:00:00"; a bare number is minutes, "0" is not at all, or "forever"',
    read=_kept,
    show=_kept_text,
)
