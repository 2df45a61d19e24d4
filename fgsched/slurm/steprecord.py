"""Record a step of the job in the table of its steps, from which it reaches the accounts."""

import os
import resource
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Self

from msgspec.structs import replace

from fgsched.domain.jobsteps import SLOT, JobStep, ended, number_in, offset, record, started
from fgsched.slurm.slots import steps_folder
from fgsched.slurm.step import SrunStep
from fgsched.system.process import identify


class Recorded:
    """The record of a running step. A record that cannot be written does not fail the step.

    At the exit of its context the step has ended, with `status`, the highest wait status of its tasks.
    """

    def __init__(self, environ: Mapping[str, str], step: SrunStep, number: int, gpus: Sequence[int]) -> None:
        """Record that a step begins; `gpus` are positions among the GPUs of the job."""
        folder = steps_folder(environ)
        self._file = f"{folder}/table" if folder else ""
        own = identify(os.getpid())
        self._step = started(
            JobStep(
                number=number,
                name=step.name,
                tasks=step.tasks,
                cpus=step.tasks * step.cpus,
                gpus=tuple(gpus),
                started_at=time.time(),
                pid=os.getpid(),
                start=own.start if own else 0,
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
