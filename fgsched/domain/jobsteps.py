"""The steps of a job, one for each call of srun in it: their records, and which of them are kept.

srun writes the record of a step at its start and again at its end, into a table of slots of equal size. The
table belongs to the user of the job, so its content is checked when it is read.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from fgsched.domain.states import JobState
from fgsched.domain.text import clean

FIRST = 300  # steps of a job that are always kept
LAST = 200  # further steps that are kept: the last ones
SLOT = 512  # bytes of a record in the table
TABLE = (FIRST + LAST) * SLOT  # bytes
STORED = 64 << 10  # bytes of the steps of an ended job
_LONGEST_NAME = 48  # characters
_MOST_GPUS = 32
_KILL = 9
_ENDS = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)

_Time = Annotated[float, Meta(ge=0, le=1e11)]  # seconds since the epoch
_Count = Annotated[int, Meta(ge=0, le=2**50)]
_Small = Annotated[int, Meta(ge=0, le=2**31)]


class JobStep(Struct, frozen=True, array_like=True, gc=False):
    """One step of a job."""

    number: _Small  # from 0 on
    name: Annotated[str, Meta(max_length=_LONGEST_NAME)]
    tasks: _Small
    cpus: _Small  # of all tasks together
    gpus: Annotated[tuple[_Small, ...], Meta(max_length=_MOST_GPUS)]  # positions among the job's GPUs
    started_at: _Time
    ended_at: _Time | None = None  # None: it runs, or its end is unknown
    state: JobState = JobState.RUNNING
    exit_code: Annotated[int, Meta(ge=0, le=255)] = 0  # the highest of its tasks
    signal: Annotated[int, Meta(ge=0, le=127)] = 0  # that ended a task; 0: none
    cpu_seconds: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    max_rss: _Count = 0  # bytes
    disk_read: _Count = 0  # bytes
    disk_written: _Count = 0  # bytes
    pid: _Small = 0  # of srun; 0: the step has ended
    start: _Count = 0  # start time of srun, in clock ticks since boot


_encode = msgspec.json.Encoder().encode
_record = msgspec.json.Decoder(JobStep)
_records = msgspec.json.Decoder(list[JobStep])


def started(step: JobStep) -> JobStep:
    """Return the step with a name and GPUs that fit into its record."""
    return replace(step, name=clean(step.name)[:_LONGEST_NAME], gpus=step.gpus[:_MOST_GPUS])


def ended(step: JobStep, status: int, at: float) -> JobStep:
    """Return a step that has ended.

    Args:
        status: the highest wait status of its tasks.
        at: seconds since the epoch.
    """
    number, code = status & 0x7F, status >> 8 & 0xFF
    state = JobState.CANCELLED if number else JobState.FAILED if code else JobState.COMPLETED
    code = 0 if number else code
    return replace(step, ended_at=at, state=state, exit_code=code, signal=number, pid=0, start=0)


# -- the table ----------------------------------------------------------------


def offset(number: int) -> int:
    """Return where the record of a step begins in the table, in bytes; later steps replace earlier ones."""
    return (number if number < FIRST else FIRST + (number - FIRST) % LAST) * SLOT


def record(step: JobStep) -> bytes:
    """Return the record of a step, which fills its slot."""
    return _encode(step).ljust(SLOT - 1)[: SLOT - 1] + b"\n"


def number_in(slot: bytes) -> int | None:
    """Return the number of the step in a slot; None if it has none."""
    job_step = _parsed(slot)
    return job_step.number if job_step else None


def read_table(table: bytes) -> list[JobStep]:
    """Return the steps of a table by number; slots without a valid record are left out."""
    job_steps = []
    for at in range(0, min(len(table), TABLE), SLOT):
        step = _parsed(table[at : at + SLOT])
        if step is not None and offset(step.number) == at:
            job_steps.append(step)
    return sorted(job_steps, key=lambda step: step.number)


def _parsed(slot: bytes) -> JobStep | None:
    try:
        job_step = _record.decode(slot.strip(b" \n\0"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    is_consistent = (job_step.ended_at is None) is (job_step.state is JobState.RUNNING)
    is_known = job_step.state is JobState.RUNNING or job_step.state in _ENDS
    return replace(job_step, name=clean(job_step.name)) if is_consistent and is_known else None


# -- the steps of an ended job ------------------------------------------------


def stored(steps: Sequence[JobStep], ended_at: float | None) -> str:
    """Return the steps of an ended job as text of at most 64 KiB; "" if there are none.

    Of steps that need more, the middle ones are left out: 500 usual steps need 48 KiB. A step without an end
    was killed with the job at `ended_at` (seconds since the epoch; None: unknown).
    """
    job_steps = [closed(step, ended_at) for step in steps]
    size = len(_encode(job_steps))
    if size > STORED:
        half = len(job_steps) * STORED // (size * 2) * 3 // 4
        job_steps = [*job_steps[:half], *job_steps[-half:]]
    return _encode(job_steps).decode() if job_steps else ""


def closed(step: JobStep, at: float | None) -> JobStep:
    """Return a step without an end as killed at `at` (seconds since the epoch; None: unknown)."""
    if step.state is not JobState.RUNNING:
        return step
    until = None if at is None else max(at, step.started_at)
    return replace(step, state=JobState.CANCELLED, signal=_KILL, ended_at=until, pid=0, start=0)


def read_stored(text: str) -> list[JobStep]:
    """Return the steps in the text of `stored`; [] if it is damaged."""
    if not text:
        return []
    try:
        return _records.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return []


def highest(steps: Iterable[JobStep]) -> tuple[int, int]:
    """Return (exit code, signal) of the step that ended with the highest exit code."""
    return max(((step.exit_code, step.signal) for step in steps), default=(0, 0))
