"""Determine the resource limits of a user's login: the limits of PID 1, changed as pam_limits would.

The rules are in /etc/security, in the form of limits.conf(5).
"""

import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fgsched.domain.text import lazy_regex
from fgsched.domain.times import MINUTE
from fgsched.domain.units import KIB
from fgsched.lifecycle.launchspec import UNLIMITED, ResourceLimits, lower

_INIT_LIMITS = Path("/proc/1/limits")
_LINGER = Path("/var/lib/systemd/linger")
_SESSION = lazy_regex(r"/session-[^/\s]+\.scope")
_MANAGER = lazy_regex(r"/user@[0-9]+\.service")
_DEADLINE = 25  # seconds for a question to logind: a call of D-Bus has as long


_FILE, _FOLDER = Path("/etc/security/limits.conf"), Path("/etc/security/limits.d")
_MAX_AGE = 5.0  # seconds for which the files are not read again
_ITEMS = {  # items of limits.conf: (resource, factor to the kernel's unit)
    "core": (resource.RLIMIT_CORE, KIB),
    "data": (resource.RLIMIT_DATA, KIB),
    "fsize": (resource.RLIMIT_FSIZE, KIB),
    "memlock": (resource.RLIMIT_MEMLOCK, KIB),
    "nofile": (resource.RLIMIT_NOFILE, 1),
    "rss": (resource.RLIMIT_RSS, KIB),
    "stack": (resource.RLIMIT_STACK, KIB),
    "cpu": (resource.RLIMIT_CPU, MINUTE),
    "nproc": (resource.RLIMIT_NPROC, 1),
    "as": (resource.RLIMIT_AS, KIB),
    "locks": (10, 1),
    "sigpending": (resource.RLIMIT_SIGPENDING, 1),
    "msgqueue": (resource.RLIMIT_MSGQUEUE, 1),
    "nice": (resource.RLIMIT_NICE, 1),
    "rtprio": (resource.RLIMIT_RTPRIO, 1),
}
_NAMES = {  # names in /proc/<pid>/limits
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
_USER, _GROUP, _ANYBODY = 3, 2, 1  # precedence of the line's domain


class LimitsLine(NamedTuple):
    """One line of limits.conf."""

    domain: str
    kind: str  # "soft", "hard" or "-" for both
    item: str  # "": the user is exempt from all limits of the file
    value: str


class LoginOwner(NamedTuple):
    """A user with the names that limits.conf may use."""

    name: str
    uid: int
    groups: Mapping[str, int]  # name -> gid


def parse(text: str) -> list[LimitsLine]:
    """Parse limits.conf; lines that are malformed or have an unknown item are ignored, as by pam_limits."""
    lines = []
    for raw in text.splitlines():
        fields = raw.partition("#")[0].split()
        if len(fields) == 2 and fields[1] == "-":
            lines.append(LimitsLine(fields[0], "-", "", ""))
        elif len(fields) == 4 and fields[1] in ("soft", "hard", "-") and fields[2] in _ITEMS:
            lines.append(LimitsLine(*fields))
    return lines


def precedence(domain: str, user: LoginOwner) -> int:
    """Return the precedence of a domain for a user; 0 if it does not apply.

    Only a line with the user's name applies to root.
    """
    if domain == user.name:
        return _USER
    if not user.uid:
        return 0
    if domain == "*":
        return _ANYBODY
    if domain.startswith("@"):
        ids: Iterable[int] = user.groups.values()
        return _GROUP if domain[1:] in user.groups or _in_range(domain[1:], ids) else 0
    return _USER if _in_range(domain, [user.uid]) else 0


def _in_range(text: str, ids: Iterable[int]) -> bool:
    """Tell whether a range such as "500:1000", "500:" or ":500" (one id) contains one of the ids."""
    low, colon, high = text.partition(":")
    if not colon or not (low + high).isdecimal():
        return False
    if not low:
        return int(high) in ids
    return any(int(low) <= job_id and (not high or job_id <= int(high)) for job_id in ids)


def value_of(item: str, text: str) -> int | None:
    """Convert a value of limits.conf to the kernel's unit (bytes, seconds or a count); None if malformed."""
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


def limits_of(user: LoginOwner, lines: Sequence[LimitsLine], base: ResourceLimits) -> ResourceLimits:
    """Return the limits of a user's login as pam_limits(8) sets them.

    The line with the highest precedence wins, and of equal ones the last.

    Args:
        base: the limits before pam_limits changes them.
    """
    limits: dict[tuple[int, str], tuple[int, int]] = {}  # (resource, soft or hard) -> (precedence, value)
    for line in lines:
        rank = precedence(line.domain, user)
        if rank > _ANYBODY and not line.item:
            return dict(base)
        value = value_of(line.item, line.value) if rank and line.item else None
        if value is None:
            continue
        for kind in ("soft", "hard") if line.kind == "-" else (line.kind,):
            key = (_ITEMS[line.item][0], kind)
            if rank >= limits.get(key, (0, 0))[0]:
                limits[key] = (rank, value)
    return {number: _pair(number, limits, limit) for number, limit in base.items()}


def _pair(
    number: int, limits: Mapping[tuple[int, str], tuple[int, int]], base: tuple[int, int]
) -> tuple[int, int]:
    soft = limits.get((number, "soft"), (0, base[0]))[1]
    hard = limits.get((number, "hard"), (0, base[1]))[1]
    return lower(soft, hard), hard


def parse_limits(text: str) -> ResourceLimits:
    """Parse the text of /proc/<pid>/limits."""
    limits = {}
    for line in text.splitlines()[1:]:
        name, words = line[:26].strip(), line[26:].split()
        if name in _NAMES and len(words) >= 2:
            soft, hard = (UNLIMITED if word == "unlimited" else int(word) for word in words[:2])
            limits[_NAMES[name]] = (soft, hard)
    return limits


class Logins:
    """The limits of logins, cached for 5 seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read_at = -_MAX_AGE
        self._lines: list[LimitsLine] = []
        self._found: dict[tuple[str, int, tuple[tuple[str, int], ...]], ResourceLimits] = {}

    def of(self, name: str, uid: int, groups: Mapping[str, int]) -> ResourceLimits:
        """Return the limits of a user's login.

        Args:
            groups: {name: gid} of the user's groups.
        """
        now = self._clock()
        if now - self._read_at >= _MAX_AGE:
            self._read_at, self._lines = now, _read_lines()
            self._base = parse_limits(_read_text(_INIT_LIMITS)) or _own_limits()
            self._found.clear()
        key = (name, uid, tuple(groups.items()))
        if key not in self._found:
            user = LoginOwner(name, uid, groups)
            self._found[key] = limits_of(user, self._lines, self._base)
        return self._found[key]


def _own_limits() -> ResourceLimits:
    """Return the controller's limits, for hosts where those of PID 1 cannot be read."""
    return {number: resource.getrlimit(number) for number in range(16)}


def _read_lines() -> list[LimitsLine]:
    """Read limits.conf, then the files of limits.d in the order of their names."""
    with suppress(OSError):
        names = sorted(name for name in os.listdir(_FOLDER) if name.endswith(".conf"))
        return [
            line for path in (_FILE, *(_FOLDER / name for name in names)) for line in parse(_read_text(path))
        ]
    return parse(_read_text(_FILE))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def reason(cgroups: str, *, kills: bool | None, lingers: bool) -> str:
    """Return the end of which login ends a user's controller, and why; "" if none does.

    KillUserProcesses ends the processes of each login with that login, also while the user has others.

    Args:
        cgroups: those of the process, as /proc/PID/cgroup has them.
        kills: whether logind ends the processes of a login of this user; None: it has not answered.
        lingers: whether the user's manager stays without a login.
    """
    if _MANAGER.search(cgroups):
        why = "it runs below the user's service manager, which ends without linger"
        return "" if lingers else f"the last logout ends the controller and its jobs: {why}"
    if _SESSION.search(cgroups) and kills is None:
        return f"a logout may end the controller and its jobs: logind has not answered in {_DEADLINE} s"
    if _SESSION.search(cgroups) and kills:
        why = "logind has KillUserProcesses=yes"
        return f"the end of the login that started it ends the controller and its jobs: {why}"
    return ""


def surviving_start(user: str) -> str:
    """Return what to type for a controller that survives logouts. Without polkit only root enables linger."""
    return (
        "loginctl enable-linger && fgsched stop && systemd-run --user --scope fgsched start. "
        f"If logind denies it, root types: loginctl enable-linger {user}"
    )


def reason_for(pid: int, user: str) -> str:
    """Return `reason` for the controller with a pid; "" also if that is unknown."""
    with suppress(OSError):
        cgroups = Path(f"/proc/{pid}/cgroup").read_text()
        return reason(cgroups, kills=is_killed(user, _of_logind()), lingers=(_LINGER / user).exists())
    return ""


def is_killed(user: str, settings: str | None) -> bool | None:
    """Return whether logind ends all processes of a session of the user at its end; None: unknown.

    `settings`: lines NAME=VALUE of logind; None: it has not answered. KillExcludeUsers takes precedence over
    KillOnlyUsers.
    """
    if settings is None:
        return None
    values = dict(line.partition("=")[::2] for line in settings.splitlines())
    only = values.get("KillOnlyUsers", "").split()
    excluded = values.get("KillExcludeUsers", "").split()
    return values.get("KillUserProcesses") == "yes" and user not in excluded and (not only or user in only)


def _of_logind() -> str | None:
    """Return the settings of logind about processes of a session; "" without logind, None without answer."""
    names = ("KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers")
    command = ["loginctl", "show-session", *(f"--property={name}" for name in names)]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE, check=True).stdout
    except subprocess.TimeoutExpired:
        return None
    except (OSError, subprocess.CalledProcessError):
        return ""
