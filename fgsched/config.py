"""Settings, read once from a TOML file. A missing file means the defaults.

Each key is declared once, as a field of Config: type, unit, default, range and one line of meaning.
"""

import os
import tomllib
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fgsched import settings as kinds
from fgsched.errors import BadUsage, Refused
from fgsched.model import Limits
from fgsched.places import Places
from fgsched.settings import Kind, Unfit
from fgsched.units import Site

__all__ = ["KEYS", "Config", "Key", "Places", "load"]

MIB = 1 << 20
GIB = 1 << 30
_NOT_YET = {"partitions": "There is one partition, called main. Remove the table."}


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
    def shown_default(self) -> str:
        return self.default_text or self.kind.show(self.default)

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


def _key(table: str, kind: Kind, default: Any, **about: Any) -> Any:
    return field(default=default, metadata={"table": table, "kind": kind, **about})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All that a site can set. `load` makes one; without arguments it holds the defaults."""

    devices: str = _key("gpus", kinds.DEVICES, "auto", says="Cards to give out.")
    headroom: int = _key(
        "gpus", kinds.SIZE, 0, low=0, high=64 * GIB, says="Bytes of each card that no job is given."
    )
    max_jobs_per_gpu: int = _key(
        "gpus", kinds.WHOLE, 0, low=0, high=1000, says="Jobs on one card at a time; 0 is no limit."
    )
    share_step: int = _key(
        "gpus", kinds.SHARE, 1, low=1, high=10_000, says="Shares are multiples of this part of a GPU."
    )
    shards_per_gpu: int = _key(
        "gpus", kinds.WHOLE, 0, low=0, high=10_000, says="Shards in one GPU; 0 refuses --gres=shard."
    )
    fgpu_per_gpu: int = _key(
        "gpus", kinds.WHOLE, 0, low=0, high=10_000, says="Units of --fgpu in one GPU; 0 refuses --fgpu."
    )
    placement: str = _key(
        "gpus", kinds.one_of("pack", "spread"), "pack", says="Leave most to the usual requests, or spread."
    )
    cpus: int = _key(
        "host",
        kinds.WHOLE,
        0,
        low=1,
        high=65_536,
        default_text="those the controller may run on",
        says="CPUs to give out.",
    )
    memory: int = _key(
        "host",
        kinds.SIZE,
        0,
        low=64 * MIB,
        high=1 << 50,
        default_text="all there is",
        says="Host memory to give out.",
    )
    kill_wait: float = _key(
        "jobs", kinds.SECONDS, 30, low=5, high=3600, says="From SIGTERM to SIGKILL when a job is ended."
    )
    default_time: int = _key(
        "jobs", kinds.DURATION, 0, says="Time limit of jobs that name none; in the form of --time."
    )
    max_script: int = _key("jobs", kinds.SIZE, 4 * MIB, low=MIB, high=4 * MIB, says="Longest script taken.")
    allow_root_jobs: bool = _key(
        "jobs", kinds.SWITCH, False, says="Whether root and uids below 1000 may own jobs on the host."
    )
    tmp: str = _key("jobs", kinds.PATH, "/tmp", says="Where each job's own TMPDIR is made.")
    interval: float = _key(
        "sampling", kinds.SECONDS, 5, low=1, high=3600, says="Between two looks at the cards."
    )
    deadline: float = _key(
        "sampling", kinds.SECONDS, 2, low=1, high=60, says="Time the driver has for an answer."
    )
    clean_timeout: float = _key(
        "sampling",
        kinds.SECONDS,
        30,
        low=1,
        high=3600,
        says="Time an ended job's processes have to leave a card before it is suspect.",
    )
    watchdog: str = _key(
        "fence",
        kinds.one_of("kill", "warn"),
        "kill",
        says="What becomes of a job that holds device memory beyond its limit or past the hook.",
    )
    tolerance: int = _key(
        "fence",
        kinds.SIZE,
        512 * MIB,
        low=0,
        high=64 * GIB,
        says="Bytes beyond its limit that each process of a job may hold.",
    )
    operators: tuple[str, ...] = _key(
        "operators", kinds.USERS, (), name="users", says="Users who may see, hold and end every job."
    )

    @property
    def limits(self) -> Limits:
        """The part of it that placement and planning obey."""
        return Limits(
            cpus=self.cpus or len(os.sched_getaffinity(0)),
            host_memory=self.memory or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            max_jobs_per_gpu=self.max_jobs_per_gpu,
            share_step=self.share_step,
            spread=self.placement == "spread",
        )

    @property
    def site(self) -> Site:
        """The part of it that amounts in a request are read with."""
        return Site(
            shards_per_gpu=self.shards_per_gpu,
            fgpu_per_gpu=self.fgpu_per_gpu,
            share_step=self.share_step,
            host_memory=self.limits.host_memory,
        )


def _declared() -> dict[str, Key]:
    named: dict[str, dict[str, Any]] = {
        one.name: {"name": one.name, "default": one.default} | one.metadata for one in fields(Config)
    }
    return {declared: Key(**about) for declared, about in named.items()}


# By the name of the field; the name in the file differs where the table says it already.
KEYS: dict[str, Key] = _declared()
_TABLES = {key.table for key in KEYS.values()}


def load(places: Places) -> Config:
    """The settings of this host or user. BadUsage names the file, the line and the key."""
    path = places.config_file
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if places.config_named:
            raise BadUsage(f"{path}: there is no such file.", "Correct or unset FGSCHED_CONFIG.") from None
        return Config()
    except OSError as error:
        raise BadUsage(f"{path}: cannot be read: {error.strerror}.") from error
    if places.mode == "system" and os.geteuid() == 0:
        refuse_unless_safe(path, owner=0)
    return _parse(path, data)


def refuse_unless_safe(path: Path, *, owner: int, writers: int = 0o022) -> None:
    """Refuse a file that, itself or by a directory above it, somebody else could change.

    `writers` are the bits of those who must not; programs may lie where a group of administrators installs.
    """
    path = path.resolve()
    for place in (path, *path.parents):
        found = place.stat()
        # In a sticky directory only the owners replace files.
        sticky = place != path and found.st_mode & 0o1000
        if found.st_uid not in (0, owner):
            raise Refused(
                f"{place} belongs to uid {found.st_uid}, and root obeys {path}.", f"chown root {place}"
            )
        if found.st_mode & writers and not sticky:
            raise Refused(
                f"{path} is writable by others ({place} has mode {found.st_mode & 0o7777:04o}).",
                f"chmod go-w {place}",
            )


def _parse(path: Path, data: bytes) -> Config:
    try:
        text = data.decode()
        tree = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise BadUsage(f"{path}:{data.count(10, 0, error.start) + 1}: this is not UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        line, reason = kinds.place_of(error, text)
        raise BadUsage(f"{path}:{line}: {reason}.") from error
    found: dict[str, Any] = {}
    for table, values in tree.items():
        where = f"{path}:{kinds.line_of(text, (table,))}"
        if table in _NOT_YET:
            raise BadUsage(f"{where}: [{table}]: not supported yet.", _NOT_YET[table])
        if table not in _TABLES or not isinstance(values, dict):
            raise BadUsage(f"{where}: there is no table [{table}].", _nearest_table(table))
        for name, value in values.items():
            where = f"{path}:{kinds.line_of(text, (table, name))}"
            declared = _find(where, table, name)
            found[declared] = _value(where, KEYS[declared], value)
    return Config(**found)


def _find(where: str, table: str, name: str) -> str:
    """The field that a key of the file sets."""
    names = {(key.table, key.name): declared for declared, key in KEYS.items()}
    if (table, name) in names:
        return names[table, name]
    elsewhere = [key for key in KEYS.values() if key.name == name]
    near = get_close_matches(name, [key for home, key in names if home == table], n=1, cutoff=0.5)
    if elsewhere:
        remedy = f"{name} belongs to [{elsewhere[0].table}]."
    elif near:
        remedy = f"Did you mean {near[0]}?"
    else:
        remedy = f"[{table}] has {', '.join(key for home, key in names if home == table)}."
    raise BadUsage(f"{where}: [{table}] has no key {name}.", remedy)


def _nearest_table(name: str) -> str:
    if near := get_close_matches(name, _TABLES, n=1, cutoff=0.5):
        return f"Did you mean [{near[0]}]?"
    if homes := [key.table for key in KEYS.values() if key.name == name]:
        return f"{name} is a key of [{homes[0]}]."
    return f"Tables are {', '.join(f'[{table}]' for table in sorted(_TABLES))}."


def _value(where: str, key: Key, value: object) -> Any:
    try:
        return key.read(value)
    except Unfit:
        shown = f'"{value}"' if isinstance(value, str) else str(value)
        raise BadUsage(f"{where}: {key.table}.{key.name} = {shown} is not {key.allowed}.") from None
