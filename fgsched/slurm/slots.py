"""The steps of a job: each shares its CPUs and GPUs with the others, and reaches the accounts.

Each unit is a file that a step locks while it runs.
"""

import fcntl
import os
import resource
import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from fgsched.domain.jobsteps import SLOT, JobStep, ended, number_in, offset, record, started
from fgsched.slurm.step import SrunStep
from fgsched.system import locks
from fgsched.system.process import identify

_DIGITS = 10  # of the number of the next step in its file


def next_step(environ: Mapping[str, str]) -> int:
    """Return the number of the next step of this job, from 0 on."""
    folder = steps_folder(environ)
    if not folder:
        return 0
    place = Path(folder, "next")
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        locks.lock(descriptor, place, "the number of the step")
        digits = os.pread(descriptor, _DIGITS, 0).strip()
        number = int(digits) if digits.isdigit() else 0
        os.pwrite(descriptor, f"{number + 1:0{_DIGITS}}".encode(), 0)  # all at once: srun may be killed
    finally:
        os.close(descriptor)
    return number


class SlotsBusy(Exception):
    """Raised if too few units became free in time."""


def take(
    environ: Mapping[str, str],
    kind: str,
    total: int,
    wanted: int,
    held: ExitStack,
    *,
    waits: Callable[[], float | None] = lambda: None,
) -> list[int]:
    """Lock `wanted` of `total` units of a kind, and wait until that many are free; return their numbers.

    They are released when `held` closes. Without a directory of the job nothing is locked.

    Args:
        waits: called before each wait; returns for how many seconds to wait (None: any).

    Raises:
        SlotsBusy: `waits` returned less than 0.
    """
    folder = steps_folder(environ)
    if not folder:
        return list(range(wanted))
    door = os.open(f"{folder}/{kind}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with ExitStack() as opened:
        opened.callback(os.close, door)
        _enter(door, waits)
        found: dict[int, int] = {}
        while True:
            holders = _lock(folder, kind, range(total), wanted, found)
            if len(found) == wanted:
                break
            _await_any(holders, waits)
    for descriptor in found.values():
        held.callback(os.close, descriptor)
    return sorted(found)


def _enter(door: int, waits: Callable[[], float | None]) -> None:
    """Lock the door of a kind of units, at which the step before this one may wait. Raises SlotsBusy."""
    with suppress(BlockingIOError):
        fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    if waits() is not None:
        raise SlotsBusy
    fcntl.flock(door, fcntl.LOCK_EX)


def _lock(folder: str, kind: str, units: Iterable[int], wanted: int, found: dict[int, int]) -> list[int]:
    """Lock free units until `found` has enough; return the pids of the holders of the others."""
    holders = []
    for unit in units:
        if len(found) == wanted:
            break
        if unit in found:
            continue
        descriptor = os.open(f"{folder}/{kind}.{unit}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holders.append(int(os.pread(descriptor, 20, 0) or 0))
            os.close(descriptor)
            continue
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        found[unit] = descriptor
    return holders


def _await_any(holders: Iterable[int], waits: Callable[[], float | None]) -> None:
    """Wait until one of these processes has exited; return at once if one is unknown. Raises SlotsBusy."""
    remaining = waits()
    if remaining is not None and remaining < 0:
        raise SlotsBusy
    with ExitStack() as opened:
        descriptors = []
        for pid in holders:
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:  # gone, or it has not written its pid yet
                return
            opened.callback(os.close, descriptor)
            descriptors.append(descriptor)
        select.select(descriptors, [], [], remaining)


def steps_folder(environ: Mapping[str, str]) -> str:
    """Return the directory of the job's steps; "" if it cannot be made."""
    path = environ.get("FG_JOB_DIR", "")
    folder = f"{path}/steps" if path else ""
    with suppress(OSError):
        if folder:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            return folder
    return ""


class Recorded:
    """The record of a running step. A record that cannot be written does not fail the step.

    At the exit of its context the step has ended, with `status`, the highest wait status of its tasks.
    """

    def __init__(self, environ: Mapping[str, str], step: SrunStep, number: int, gpus: Sequence[int]) -> None:
        """Record that a step begins; `gpus` are positions among the GPUs of the job."""
        folder = steps_folder(environ)
        self._file = f"{folder}/table" if folder else ""
        identity = identify(os.getpid())
        self._step = started(
            JobStep(
                number=number,
                name=step.name,
                tasks=step.tasks,
                cpus=step.tasks * step.cpus,
                gpus=tuple(gpus),
                started_at=time.time(),
                pid=os.getpid(),
                start=identity.start if identity else 0,
            )
        )
        self.status = 1 << 8  # of a step that could not be started
        self._write(self._step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Record that the step has ended."""
        self._write(_with_use(ended(self._step, self.status, time.time())), is_first=False)

    def _write(self, step: JobStep, *, is_first: bool = True) -> None:
        if not self._file:
            return
        at = offset(step.number)
        with suppress(OSError):
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # A step can outlive the 200 that follow it: the last one has the slot.
                if is_first or number_in(os.pread(descriptor, SLOT, at)) == step.number:
                    os.pwrite(descriptor, record(step), at)  # all at once: srun may be killed
            finally:
                os.close(descriptor)


def _with_use(step: JobStep) -> JobStep:
    """Return the step with what its ended tasks used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return replace(
        step,
        cpu_seconds=used.ru_utime + used.ru_stime,
        max_rss=used.ru_maxrss * 1024,
        disk_read=used.ru_inblock * 512,
        disk_written=used.ru_oublock * 512,
    )
