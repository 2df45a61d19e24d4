"""The limits that a login of a user has: those of PID 1, and what pam_limits reads of /etc/security."""

import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fgsched.jobs.rlimits import UNLIMITED, Limits, lower

_FIRST = Path("/proc/1/limits")
_FILE, _FOLDER = Path("/etc/security/limits.conf"), Path("/etc/security/limits.d")
_FRESH = 5.0  # seconds for which what was found is believed, as of accounts
_KIB, _MINUTE = 1024, 60
_ITEMS = {  # of limits.conf: (resource, factor)
    "core": (resource.RLIMIT_CORE, _KIB),
    "data": (resource.RLIMIT_DATA, _KIB),
    "fsize": (resource.RLIMIT_FSIZE, _KIB),
    "memlock": (resource.RLIMIT_MEMLOCK, _KIB),
    "nofile": (resource.RLIMIT_NOFILE, 1),
    "rss": (resource.RLIMIT_RSS, _KIB),
    "stack": (resource.RLIMIT_STACK, _KIB),
    "cpu": (resource.RLIMIT_CPU, _MINUTE),
    "nproc": (resource.RLIMIT_NPROC, 1),
    "as": (resource.RLIMIT_AS, _KIB),
    "locks": (10, 1),
    "sigpending": (resource.RLIMIT_SIGPENDING, 1),
    "msgqueue": (resource.RLIMIT_MSGQUEUE, 1),
    "nice": (resource.RLIMIT_NICE, 1),
    "rtprio": (resource.RLIMIT_RTPRIO, 1),
}
_NAMES = {  # of /proc/<pid>/limits
    "Max cpu time": resource.RLIMIT_CPU,
    "Max file size": resource.RLIMIT_FSIZE,
    "Max data size": resource.RLIMIT_DATA,
    "Max stack size": resource.RLIMIT_STACK,
    "Max core file size": resource.RLIMIT_CORE,
    "Max resident set": resource.RLIMIT_RSS,
    "Max processes": resource.RLIMIT_NPROC,
    "Max open files": resource.RLIMIT_NOFILE,
    "Max locked memory": resource.RLIMIT_MEMLOCK,
    "Max address space": resource.RLIMIT_AS,
    "Max file locks": 10,
    "Max pending signals": resource.RLIMIT_SIGPENDING,
    "Max msgqueue size": resource.RLIMIT_MSGQUEUE,
    "Max nice priority": resource.RLIMIT_NICE,
    "Max realtime priority": resource.RLIMIT_RTPRIO,
    "Max realtime timeout": resource.RLIMIT_RTTIME,
}
_USER, _GROUP, _ANYBODY = 3, 2, 1  # how closely a line names a user: a closer one wins


class Line(NamedTuple):
    """One line of limits.conf."""

    domain: str
    kind: str  # "soft", "hard" or "-"; with no item: the user has none of the file's limits
    item: str
    value: str


class LoginOwner(NamedTuple):
    """A user as limits.conf names users."""

    name: str
    uid: int
    groups: Mapping[str, int]  # name -> gid


def parse(text: str) -> list[Line]:
    """The lines of a limits.conf that mean something to us; others are passed over, as pam_limits does."""
    lines = []
    for raw in text.splitlines():
        fields = raw.partition("#")[0].split()
        if len(fields) == 2 and fields[1] == "-":
            lines.append(Line(fields[0], "-", "", ""))
        elif len(fields) == 4 and fields[1] in ("soft", "hard", "-") and fields[2] in _ITEMS:
            lines.append(Line(*fields))
    return lines


def closeness(domain: str, who: LoginOwner) -> int:
    """How closely a domain names a user: 0, not at all. Only a line with the name is for root."""
    if domain == who.name:
        return _USER
    if not who.uid:
        return 0
    if domain == "*":
        return _ANYBODY
    if domain.startswith("@"):
        ids: Iterable[int] = who.groups.values()
        return _GROUP if domain[1:] in who.groups or _in_range(domain[1:], ids) else 0
    return _USER if _in_range(domain, [who.uid]) else 0


def _in_range(text: str, ids: Iterable[int]) -> bool:
    """Whether one of the ids is in "500:1000", "500:", or is the one of ":500"."""
    low, colon, high = text.partition(":")
    if not colon or not (low + high).isdecimal():
        return False
    if not low:
        return int(high) in ids
    return any(int(low) <= one and (not high or one <= int(high)) for one in ids)


def value_of(item: str, text: str) -> int | None:
    """The limit in the kernel's unit; None if it is none."""
    number, factor = _ITEMS[item]
    if text in ("unlimited", "infinity", "-1"):
        return 20 + 20 if number == resource.RLIMIT_NICE else UNLIMITED
    try:
        value = int(text)
    except ValueError:
        return None
    if number == resource.RLIMIT_NICE:
        return min(40, max(0, 20 - value))
    if value < 0:
        return None
    return value * factor if value * factor < 2**63 else UNLIMITED


def limits_of(who: LoginOwner, lines: Sequence[Line], base: Limits) -> Limits:
    """What a login of this user has, as pam_limits(8) has it: the closest line wins, of equals the last."""
    found: dict[tuple[int, str], tuple[int, int]] = {}  # (resource, soft or hard) -> (closeness, value)
    for line in lines:
        close = closeness(line.domain, who)
        if close > _ANYBODY and not line.item:
            return dict(base)
        value = value_of(line.item, line.value) if close and line.item else None
        if value is None:
            continue
        for kind in ("soft", "hard") if line.kind == "-" else (line.kind,):
            key = (_ITEMS[line.item][0], kind)
            if close >= found.get(key, (0, 0))[0]:
                found[key] = (close, value)
    return {number: _pair(number, found, limit) for number, limit in base.items()}


def _pair(
    number: int, found: Mapping[tuple[int, str], tuple[int, int]], base: tuple[int, int]
) -> tuple[int, int]:
    soft = found.get((number, "soft"), (0, base[0]))[1]
    hard = found.get((number, "hard"), (0, base[1]))[1]
    return lower(soft, hard), hard


def first_limits(text: str) -> Limits:
    """What /proc/1/limits says."""
    found = {}
    for line in text.splitlines()[1:]:
        name, words = line[:26].strip(), line[26:].split()
        if name in _NAMES and len(words) >= 2:
            soft, hard = (UNLIMITED if word == "unlimited" else int(word) for word in words[:2])
            found[_NAMES[name]] = (soft, hard)
    return found


class Logins:
    """Remembers what it found, as long as accounts are believed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read_at = -_FRESH
        self._lines: list[Line] = []
        self._found: dict[tuple[str, int, tuple[tuple[str, int], ...]], Limits] = {}

    def of(self, name: str, uid: int, groups: Mapping[str, int]) -> Limits:
        """The limits of a login of this user. `groups`: name -> gid, as the name service told them."""
        now = self._clock()
        if now - self._read_at >= _FRESH:
            self._read_at, self._lines = now, _lines()
            self._base = first_limits(_text(_FIRST)) or _own()
            self._found.clear()
        key = (name, uid, tuple(groups.items()))
        if key not in self._found:
            who = LoginOwner(name, uid, groups)
            self._found[key] = limits_of(who, self._lines, self._base)
        return self._found[key]


def _own() -> Limits:
    """The controller's, where those of PID 1 cannot be read: a request must never set them by itself."""
    return {number: resource.getrlimit(number) for number in range(16)}


def _lines() -> list[Line]:
    """limits.conf, then the files of limits.d in the order of their names."""
    with suppress(OSError):
        names = sorted(name for name in os.listdir(_FOLDER) if name.endswith(".conf"))
        return [line for path in (_FILE, *(_FOLDER / name for name in names)) for line in parse(_text(path))]
    return parse(_text(_FILE))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
