"""The records of the accounts: ended jobs, and what GPUs did in each minute.

Times are in seconds since the epoch. GPU seconds are seconds of one whole GPU: half a GPU for a minute is 30.
Bytes over time are byte-seconds. Peaks are bytes. Numbers that were not measured are None, never 0.
"""

from typing import Any

import msgspec
from msgspec import Struct

from fgsched.domain.job import JobUsage
from fgsched.domain.text import storable

CLASSES = ("active", "held", "empty", "free", "external", "down")


class Owner(Struct, frozen=True, kw_only=True, gc=False):
    """The user, account, partition and QOS that GPU time is charged to."""

    uid: int
    user: str
    account: str = ""
    partition: str = ""
    qos: str = ""
    tag: str = ""  # of the use, as the user gave it


class GpuRecord(Struct, frozen=True, kw_only=True, gc=False):
    """A GPU that the host has or had."""

    uuid: str
    gpu: int  # index
    model: str
    total: int  # bytes
    since: float  # when it was first seen, in epoch seconds
    until: float  # when it was last seen, in epoch seconds


Row = dict[str, int | float | str | None]


class JobAccount(Struct, frozen=True, kw_only=True):
    """One ended job: its row of the queue, and what reports ask for besides."""

    row: Row  # the columns that differ from their defaults; see store/schema.py
    owner: Owner
    eligible_at: float  # when the last hold or dependency was removed
    time_limit: int = 0  # seconds; 0: none
    share: int = 0  # of each GPU, in ten-thousandths, as given
    memory: int = 0  # bytes of each GPU, as given
    cpus: int = 1  # number asked for
    host_memory: int = 0  # bytes asked for
    model: str = ""  # of its GPUs; "": none
    exit_code: int = 0
    signal: int = 0
    oom: str = ""  # "", "gpu" or "host"
    refused: int = 0  # bytes of the allocation whose refusal ended the job
    charged: float = 0.0  # GPU seconds, in all attempts
    usage: JobUsage | None = None  # sums of the samples; None: there are none
    output: str = ""  # path of its standard output
    steps: tuple[tuple[int, float, str, str, str], ...] = ()  # (attempt, epoch seconds, from, to, reason)
    script: str = ""  # of the queue's blob: id and first digits of its digest

    @property
    def id(self) -> int:
        """The number of the job."""
        return int(self.row["id"] or 0)


class JobSample(Struct, frozen=True, kw_only=True):
    """The sums of a job's samples up to now. The last one becomes the `usage` of its JobAccount."""

    job: int
    usage: JobUsage


class GpuUseRecord(Struct, frozen=True, kw_only=True, gc=False):
    """The use of one GPU in a span. The six classes are GPU seconds and add up to `sampled`."""

    at: int  # begin of the span
    uuid: str  # of the GPU
    sampled: float  # seconds of the span that were sampled
    active: float = 0.0  # charged, and a process of the job computes
    held: float = 0.0  # charged, and a process of the job holds memory, with an SM share of 1 % or less
    empty: float = 0.0  # charged, without a process of the job
    free: float = 0.0
    external: float = 0.0  # not charged, used by foreign processes, by their share of the memory
    down: float = 0.0  # drained, suspect or failed
    packed: float = 0.0  # seconds with at least one job
    used: float = 0.0  # GPU seconds: utilisation x time
    memory: float = 0.0  # byte-seconds of all processes
    foreign: float = 0.0  # byte-seconds of foreign processes
    peak: int = 0  # bytes in use
    jobs: int = 0  # the maximum at once
    temperature: int | None = None  # degrees Celsius, the maximum
    energy: float | None = None  # joules
    throttled: float = 0.0  # seconds with a clock limited by heat or power


class OwnerUse(Struct, frozen=True, kw_only=True, gc=False):
    """The use of one GPU by the jobs of one owner in a span, in GPU seconds."""

    at: int
    owner: Owner
    uuid: str  # of the GPU
    job: int = 0  # of a minute; 0: all jobs, in hours and days
    charged: float = 0.0  # active + held + empty
    active: float = 0.0
    held: float = 0.0
    empty: float = 0.0
    used: float = 0.0
    memory: float = 0.0  # byte-seconds
    peak: int = 0  # bytes
    energy: float | None = None  # joules


class ForeignUse(Struct, frozen=True, kw_only=True, gc=False):
    """The use of one GPU by a process outside of jobs, in the part of a span in which it was seen."""

    at: int
    uuid: str  # of the GPU
    user: str
    command: str
    pid: int  # 0: several processes, in hours and days with very many
    since: float  # epoch seconds
    until: float  # epoch seconds
    seconds: float  # of all its processes
    memory: float = 0.0  # byte-seconds
    peak: int = 0  # bytes
    used: float = 0.0  # GPU seconds


class WaitingRecord(Struct, frozen=True, kw_only=True, gc=False):
    """The pending jobs that waited for the same resource in a span."""

    at: int
    reason: str  # as fgq shows it, such as Resources
    lacking: str  # "share", "memory", "gpus", "type", "cpus", "host_memory", "resource"; "": another reason
    model: str  # asked for; "": any
    seconds: float  # in which at least one job waited for this
    job_seconds: float  # seconds x jobs
    gpu_seconds: float = 0.0  # of the shares that waited
    most: int = 0  # jobs at once


DRIVER = "driver"


class HealthEvent(Struct, frozen=True, kw_only=True, gc=False):
    """A change of a GPU's health, or the version of the driver when a controller began to sample."""

    at: float
    uuid: str  # of the GPU
    kind: str  # "xid", "ecc", "remap", "throttle", "state", DRIVER
    detail: str  # the number of the Xid, the new state and its reason, the version


class Warned(Struct, frozen=True, kw_only=True, gc=False):
    """A warning or an action of a policy about one job."""

    at: float
    job: int
    policy: str  # "idle"
    finding: str  # "no process", "memory without work", "idle later"
    action: str  # "warning 1", "warning 2", "notify", "requeue", "cancel"
    dry: bool = False


class Minute(Struct, frozen=True, kw_only=True):
    """The samples of one minute, or of the part of it since the controller's last report."""

    at: int
    gpus: tuple[GpuUseRecord, ...] = ()
    owners: tuple[OwnerUse, ...] = ()
    foreign: tuple[ForeignUse, ...] = ()
    demand: tuple[WaitingRecord, ...] = ()


class Gap(Struct, frozen=True, kw_only=True, gc=False):
    """A time without samples."""

    since: float  # epoch seconds
    until: float  # epoch seconds
    why: str  # "controller stopped", "driver did not answer"


# -- JSON ----------------------------------------------------------------------------------------------

_encoder = msgspec.json.Encoder()


def to_json(value: Any) -> bytes:
    """Return a record, or a mapping of records, as JSON; bytes outside of UTF-8 are escaped (\\xe9)."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_cleaned(msgspec.to_builtins(value)))


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {name: _cleaned(part) for name, part in value.items()}
    return [_cleaned(part) for part in value] if isinstance(value, (list, tuple)) else value
