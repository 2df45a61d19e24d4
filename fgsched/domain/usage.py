"""The record of what the samples of a job showed.

GPU seconds are seconds of one whole GPU: half a GPU for a minute is 30. Numbers that were not measured are
None, never 0.
"""

from msgspec import Struct


class JobUsage(Struct, frozen=True, kw_only=True):
    """What the samples of a job's GPUs showed, summed over its GPUs and attempts."""

    sampled: float  # seconds in which the job was running and was sampled
    charged: float  # GPU seconds in these: active + held + empty
    active: float
    held: float
    empty: float
    used: float | None  # GPU seconds: SM share x time; None: the driver measures none, as on MIG
    memory: float  # byte-seconds
    peak: int  # bytes, the maximum on one GPU
    with_process: float  # seconds with a process on a GPU
    busy: float  # seconds with an SM share above 1 %
    longest_idle: float  # seconds without
    first_process: float | None = None  # seconds from the start to the first GPU process
    energy: float | None = None  # joules
    read: int = 0  # bytes of input
    written: int = 0  # bytes of output
    neighbours: tuple[tuple[int, float], ...] = ()  # (job, seconds on the same GPU)
