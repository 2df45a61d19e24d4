"""Settings, read once from a TOML file. A missing file means the defaults.

Each key is declared once, as a field of Config: type, unit, default, range and one line of meaning.
"""

import os
import tomllib
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fgsched.config import schema as sections
from fgsched.config import settings as kinds
from fgsched.config.precedence import check_file
from fgsched.config.schema import SECTIONS, Sections
from fgsched.config.settings import Key, declared, key
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import HostLimits
from fgsched.domain.policy import Policy, Weights
from fgsched.domain.units import SubmitContext
from fgsched.jobs.cpubinding import WORDS as BINDINGS
from fgsched.jobs.enforcement import WORDS
from fgsched.jobs.private import WORDS as PRELOADS
from fgsched.system.paths import Paths
from fgsched.system.trust import refuse_unless_safe

__all__ = ["KEYS", "SECTIONS", "Config", "Key", "Paths", "load"]

MIB = 1 << 20
GIB = 1 << 30
_STANDARD = Weights()


def _weight(default: int, says: str) -> Any:
    return key("priority", kinds.WHOLE, default, low=0, high=10**9, says=says)


def _span(default: int, says: str) -> Any:
    return key("priority", kinds.DURATION, default, low=60, high=366 * 86_400, says=says)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All that a site can set. `load` makes one; without arguments it holds the defaults."""

    devices: str = key("gpus", kinds.DEVICES, "auto", says="Cards to give out.")
    headroom: int = key(
        "gpus", kinds.SIZE, 0, low=0, high=64 * GIB, says="Bytes of each card that no job is given."
    )
    max_jobs_per_gpu: int = key(
        "gpus", kinds.WHOLE, 0, low=0, high=1000, says="Jobs on one card at a time; 0 is no limit."
    )
    share_step: int = key(
        "gpus", kinds.SHARE, 1, low=1, high=10_000, says="Shares are multiples of this part of a GPU."
    )
    shards_per_gpu: int = key(
        "gpus", kinds.WHOLE, 0, low=0, high=10_000, says="Shards in one GPU; 0 refuses --gres=shard."
    )
    fgpu_per_gpu: int = key(
        "gpus", kinds.WHOLE, 0, low=0, high=10_000, says="Units of --fgpu in one GPU; 0 refuses --fgpu."
    )
    placement: str = key(
        "gpus", kinds.one_of("pack", "spread"), "pack", says="Leave most to the usual requests, or spread."
    )
    defragment: int = key(
        "gpus", kinds.DURATION, 0, says="GPU time of work that may be lost to make room for one job."
    )
    gpu_compute: str = key(
        "gpus", kinds.one_of("hard", "fair", "none"), "fair", says="How jobs share the time of a card."
    )
    cpus: int = key(
        "host",
        kinds.WHOLE,
        0,
        low=1,
        high=65_536,
        default_text="those the controller may run on",
        says="CPUs to give out.",
    )
    cpu_binding: str = key(
        "host", kinds.one_of(*BINDINGS), "near", says="CPUs that jobs with GPUs are bound to."
    )
    memory: int = key(
        "host",
        kinds.SIZE,
        0,
        low=64 * MIB,
        high=1 << 50,
        default_text="all there is",
        says="Host memory to give out.",
    )
    kill_wait: float = key(
        "jobs", kinds.SECONDS, 30, low=5, high=3600, says="From SIGTERM to SIGKILL when a job is ended."
    )
    default_time: int = key(
        "jobs", kinds.DURATION, 0, says="Time limit of jobs that name none; in the form of --time."
    )
    max_script: int = key("jobs", kinds.SIZE, 4 * MIB, low=MIB, high=4 * MIB, says="Longest script taken.")
    max_bytes_per_user: int = key(
        "jobs",
        kinds.SIZE,
        256 * MIB,
        low=0,
        high=1 << 40,
        says="Scripts and environments of one user's jobs that are not over; 0 is no limit.",
    )
    keep_scripts: int = key(
        "jobs", kinds.KEPT, 30 * 86_400, says="Time that scripts and environments are kept after a job's end."
    )
    keep_scripts_size: int = key(
        "jobs",
        kinds.SIZE,
        64 * MIB,
        low=0,
        high=1 << 50,
        says="Bytes of them that are kept of each user; the oldest go first.",
    )
    max_requeue: int = key(
        "jobs", kinds.WHOLE, 5, low=0, high=1000, says="Times the host may fail a job before it is held."
    )
    kill_invalid_depend: bool = key(
        "jobs", kinds.SWITCH, False, says="Whether a job is cancelled when its dependency can never be met."
    )
    allow_root_jobs: bool = key(
        "jobs", kinds.SWITCH, False, says="Whether root and uids below 1000 may own jobs on the host."
    )
    max_processes: int = key(
        "jobs",
        kinds.WHOLE,
        32_768,
        low=0,
        high=4_194_304,
        says="Processes and threads of all jobs of one user of the host; 0: no limit.",
    )
    run_space: int = key(
        "jobs",
        kinds.SIZE,
        256 * MIB,
        low=0,
        high=1 << 50,
        says="Each user's in the host's run directory; 0: no limit.",
    )
    tmp: str = key("jobs", kinds.PATH, "/tmp", says="Where each job's own TMPDIR is made.")
    interval: float = key(
        "sampling", kinds.SECONDS, 5, low=0.25, high=3600, says="Between two looks at the cards."
    )
    deadline: float = key(
        "sampling", kinds.SECONDS, 2, low=1, high=60, says="Time the driver has for an answer."
    )
    clean_timeout: float = key(
        "sampling",
        kinds.SECONDS,
        30,
        low=1,
        high=3600,
        says="Time an ended job's processes have to leave a card before it is suspect.",
    )
    drain_on_xid: tuple[int, ...] = key(
        "sampling",
        kinds.XIDS,
        (48, 64, 79, 95, 119, 120, 140),
        says="The driver's errors for which a card is drained.",
    )
    watchdog: str = key(
        "fence",
        kinds.one_of("kill", "warn"),
        "kill",
        says="What becomes of a job that holds device memory beyond its limit or past the hook.",
    )
    tolerance: int = key(
        "fence", kinds.SIZE, 512 * MIB, low=0, high=64 * GIB, says="Bytes beyond its limit, for each process."
    )
    context_memory: int = key(
        "fence", kinds.SIZE, 256 * MIB, low=0, high=64 * GIB, says="A CUDA context's, until one was seen."
    )
    tiers: tuple[str, ...] = key(
        "fence",
        kinds.some_of(*WORDS),
        tuple(word for word in WORDS if word != "none"),
        says="Tiers that a job may ask for with --tier.",
    )
    preload: str = key(
        "fence",
        kinds.one_of(*PRELOADS),
        "auto",
        says="How jobs come by the hook: by an /etc/ld.so.preload of their own, or by LD_PRELOAD.",
    )
    operators: tuple[str, ...] = key(
        "operators", kinds.USERS, (), name="users", says="Users who may see, hold and end every job."
    )
    weight_partition: int = _weight(
        _STANDARD.partition, "The partition: the first of the file has all of it."
    )
    weight_qos: int = _weight(_STANDARD.qos, "The quality of service: the highest has all of it.")
    weight_fairshare: int = _weight(_STANDARD.fairshare, "The fair share: who used nothing has all of it.")
    weight_age: int = _weight(_STANDARD.age, "The time waited: whoever waited for max_age has all of it.")
    weight_size: int = _weight(_STANDARD.size, "The size: the whole host has all of it.")
    favor_small: bool = key(
        "priority", kinds.SWITCH, False, says="Whether small jobs get what weight_size gives to large ones."
    )
    max_age: int = _span(_STANDARD.max_age, "Waiting longer than this counts no more.")
    half_life: int = _span(_STANDARD.half_life, "After this time GPU time that was used counts half.")
    fairshare_interval: float = key(
        "priority",
        kinds.SECONDS,
        _STANDARD.interval,
        low=1,
        high=3600,
        says="Between two looks at who used how much.",
    )
    named: Sections = field(default_factory=dict)  # tables of which there are several

    @property
    def limits(self) -> HostLimits:
        """The part of it that placement and planning obey."""
        return HostLimits(
            cpus=self.cpus or len(os.sched_getaffinity(0)),
            host_memory=self.memory or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            max_jobs_per_gpu=self.max_jobs_per_gpu,
            max_requeue=self.max_requeue,
            share_step=self.share_step,
            spread=self.placement == "spread",
            defragment=self.defragment,
            kill_wait=self.kill_wait,
        )

    @property
    def policy(self) -> Policy:
        """The part of it that says who may what, and who comes first."""
        weights = Weights(
            partition=self.weight_partition,
            qos=self.weight_qos,
            fairshare=self.weight_fairshare,
            age=self.weight_age,
            size=self.weight_size,
            favor_small=self.favor_small,
            max_age=self.max_age,
            half_life=self.half_life,
            interval=int(self.fairshare_interval),
        )
        return replace(sections.policy(self.named, weights), gpu_compute=self.gpu_compute)

    @property
    def site(self) -> SubmitContext:
        """The part of it that amounts in a request are read with."""
        return SubmitContext(
            shards_per_gpu=self.shards_per_gpu,
            fgpu_per_gpu=self.fgpu_per_gpu,
            share_step=self.share_step,
            host_memory=self.limits.host_memory,
        )


# By the name of the field; the name in the file differs where the table says it already.
KEYS: dict[str, Key] = declared(Config)
_TABLES = {one.table for one in KEYS.values()} | SECTIONS.keys()


def load(places: Paths) -> Config:
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
        if table not in _TABLES or not isinstance(values, dict):
            raise BadUsage(f"{where}: there is no table [{table}].", _nearest_table(table))
        if table in SECTIONS:
            found.setdefault("named", {})[table] = sections.read(str(path), text, table, values)
            continue
        for name, value in values.items():
            where = f"{path}:{kinds.line_of(text, (table, name))}"
            one = _find(where, table, name)
            found[one] = kinds.value_of(where, f"{table}.{name}", KEYS[one], value)
    config = Config(**found)
    check_file(str(path), text, config.policy)
    return config


def _find(where: str, table: str, name: str) -> str:
    """The field that a key of the file sets."""
    names = {(one.table, one.name): declared for declared, one in KEYS.items()}
    if (table, name) in names:
        return names[table, name]
    elsewhere = [one for one in KEYS.values() if one.name == name]
    near = get_close_matches(name, [own for home, own in names if home == table], n=1, cutoff=0.5)
    if elsewhere:
        remedy = f"{name} belongs to [{elsewhere[0].table}]."
    elif near:
        remedy = f"Did you mean {near[0]}?"
    else:
        remedy = f"[{table}] has {', '.join(own for home, own in names if home == table)}."
    raise BadUsage(f"{where}: [{table}] has no key {name}.", remedy)


def _nearest_table(name: str) -> str:
    if near := get_close_matches(name, _TABLES, n=1, cutoff=0.5):
        return f"Did you mean [{near[0]}]?"
    if homes := [one.table for one in KEYS.values() if one.name == name]:
        return f"{name} is a key of [{homes[0]}]."
    return f"Tables are {', '.join(f'[{table}]' for table in sorted(_TABLES))}."
