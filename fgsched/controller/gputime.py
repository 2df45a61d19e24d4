"""Tell the arbiter which jobs share GPUs, lend idle time, and write measurements into the regions.

The arbiter gives jobs their turns without the controller. A hook that takes no turns, because it is of an
earlier release or no arbiter runs, is paced by the budget in its region. Loans there expire: if no
controller runs, or it is late, nothing is lent and each job has its share.
"""

import logging
import os
import time
from contextlib import suppress
from typing import NamedTuple

import fgshim.region as region

from fgsched import gpus
from fgsched.controller.engine import Engine
from fgsched.domain.job import WHOLE, Job
from fgsched.domain.states import JobState
from fgsched.launch.arbiter import Arbiter, JobKey, TurnJob, TurnShare
from fgsched.lifecycle.enforcement import COMPUTE_NONE

log = logging.getLogger(__name__)
_OFTEN = 0.025  # seconds between two steps while jobs of one GPU are active: loans return within 0.1 s
_SELDOM = 0.25  # while they do not
_ALONE = 1.0  # where no card has two
_MEASURE = 0.3  # between two questions to the driver
_MOST_COUNTED = 4  # processes of a job that takes no turns


class _Paced(NamedTuple):
    """A running job with fractions of GPUs."""

    fd: int  # of its region
    borrowers: dict[int, region.Borrower]  # by the card's index
    job: Job


class GpuTime:
    """Call `look` when `due`, and `measured` when the driver has answered."""

    def __init__(
        self, engine: Engine, sampler: gpus.AnySampler, arbiter: Arbiter, *, run: str, is_real: bool
    ) -> None:
        self._engine, self._sampler, self._arbiter = engine, sampler, arbiter
        self._run, self._is_real = run, is_real
        self._jobs: dict[tuple[int, int], _Paced] = {}
        self._looked_at = self._asked_at = 0.0

    @property
    def due(self) -> float | None:
        """Return the seconds until the next `look`, or None if no GPU is shared."""
        if not any(_is_shared(job) for job in self._engine.jobtable.holding.values()) and not self._jobs:
            return None
        return max(0.0, self._looked_at + self._pause() - time.monotonic())

    def look(self) -> None:
        """Lend idle time, if a step is due."""
        due = self.due
        if due is None or due > 0.001:
            return
        self._looked_at = time.monotonic()
        self._keep_up()
        for borrowers in self._by_gpu().values():
            region.lend(self._looked(borrowers), time.monotonic_ns())
        self._tell_arbiter()
        if self._is_real and self._is_busy() and self._looked_at - self._asked_at >= _MEASURE:
            self._asked_at = self._looked_at
            self._sampler.ask(gpus.USE)

    def measured(self, answer: gpus.GpuAnswer) -> None:
        """Use the driver's utilisation of processes; a job's processes have slots in its region."""
        indices = {gpu.uuid: gpu.index for gpu in self._engine.gpu_states.gpus}
        ahead = time.monotonic_ns() - time.time_ns()
        for paced in self._jobs.values():
            pids = set(region.pids(paced.fd))
            for uuid, rows in answer.uses.items():
                if borrower := paced.borrowers.get(indices.get(uuid, -1)):
                    measure(borrower, rows, pids, ahead)

    def mechanism(self, job: Job) -> str:
        """Return the method of pacing: "turns"; "mps:50"; "": none.

        A job without turns is paced by a budget: by which measurement, such as "events".
        """
        if job.mps is not None and job.mps.word:
            return job.mps.word
        paced = self._jobs.get((job.id, job.attempt))
        found = (
            [borrower for borrower in paced.borrowers.values() if borrower.policy != COMPUTE_NONE]
            if paced
            else []
        )
        if found and self._arbiter.is_connected((job.id, job.attempt)):
            return "turns"
        return found[0].mechanism if found else ""

    def close(self) -> None:
        for paced in self._jobs.values():
            os.close(paced.fd)
        self._jobs = {}
        self._arbiter.close()

    def _tell_arbiter(self) -> None:
        """Tell the arbiter which jobs take turns, and what works on their GPUs without turns."""
        jobs = {
            key: turns for key, paced in self._jobs.items() if (turns := self._turns_of(key, paced)).shares
        }
        self._arbiter.update(jobs, self._looked_at)
        others: dict[int, int] = {}
        for key, paced in self._jobs.items():
            for gpu, borrower in paced.borrowers.items():
                if borrower.policy == COMPUTE_NONE:
                    others[gpu] = others.get(gpu, 0) + _counted(borrower)
            if key in jobs:
                self._arbiter.count_flying(key, max(map(_counted, paced.borrowers.values())))
        for gpu in {share.gpu for job in jobs.values() for share in job.shares}:
            self._arbiter.count_others(gpu, others.get(gpu, 0))

    def _turns_of(self, key: JobKey, paced: _Paced) -> TurnJob:
        """Return the GPUs of a job that it shares and that are paced."""
        policies = {gpu: borrower.policy for gpu, borrower in paced.borrowers.items()}
        shares = tuple(
            TurnShare(position, hold.gpu, policies[hold.gpu], hold.share)
            for position, hold in enumerate(paced.job.holds)
            if hold.share < WHOLE and policies[hold.gpu] != COMPUTE_NONE
        )
        uid = paced.job.uid if os.geteuid() == 0 else os.geteuid()
        return TurnJob(uid, f"{self._run}/job/{key[0]}.{key[1]}", shares)

    def _pause(self) -> float:
        gpus = self._by_gpu().values()
        if not any(len(borrowers) > 1 for borrowers in gpus):
            return _ALONE
        return _OFTEN if self._is_busy() else _SELDOM

    def _is_busy(self) -> bool:
        return any(
            not borrower.is_quiet for paced in self._jobs.values() for borrower in paced.borrowers.values()
        )

    def _by_gpu(self) -> dict[int, list[region.Borrower]]:
        by_gpu: dict[int, list[region.Borrower]] = {}
        for paced in self._jobs.values():
            for index, borrower in paced.borrowers.items():
                by_gpu.setdefault(index, []).append(borrower)
        return by_gpu

    def _looked(self, borrowers: list[region.Borrower]) -> list[region.Borrower]:
        """Return the borrowers whose regions are readable."""
        found = []
        for borrower in borrowers:
            with suppress(OSError):
                borrower.look(time.monotonic_ns())
                found.append(borrower)
        return found

    def _keep_up(self) -> None:
        """Add new running jobs and drop ended ones."""
        running = {
            (job.id, job.attempt): job
            for job in self._engine.jobtable.holding.values()
            if job.state is JobState.RUNNING and _is_shared(job)
        }
        for gone in self._jobs.keys() - running.keys():
            os.close(self._jobs.pop(gone).fd)
        for key in running.keys() - self._jobs.keys():
            with self._engine.faults.contained(f"the pacing of job {key[0]}"):
                if paced := self._open(running[key]):
                    self._jobs[key] = paced

    def _open(self, job: Job) -> _Paced | None:
        owner = job.uid if os.geteuid() == 0 else os.geteuid()
        try:
            fd = region.open_region(f"{self._run}/job/{job.id}.{job.attempt}/region", owner)
        except (OSError, ValueError):  # the job has ended, or has no region
            return None
        return _Paced(fd, {hold.gpu: region.Borrower(fd, at) for at, hold in enumerate(job.holds)}, job)


def _counted(borrower: region.Borrower) -> int:
    """Return how many processes of a job have work; the job can write to this count, so few are believed."""
    return min(int(borrower.flying), _MOST_COUNTED)


def measure(borrower: region.Borrower, told: list[list[int]], own: set[int], ahead: int) -> None:
    """Use the driver's measurements of the processes on a GPU.

    Args:
        told: [pid, percent, from, to] of each process, times in microseconds.
        own: pids of the job.
        ahead: nanoseconds by which the controller's clock is ahead of the driver's.
    """
    rows = [row for row in told if row[0] in own]
    if len(rows) < len(told):
        borrower.shared(time.monotonic_ns())
    if rows:  # no data: the driver may use other pids
        part = min(100, sum(percent for _, percent, _, _ in rows)) * WHOLE // 100
        start, end = rows[0][2] * 1000 + ahead, rows[0][3] * 1000 + ahead
        borrower.measured(part, max(0, start), max(0, end))


def _is_shared(job: Job) -> bool:
    return any(hold.share < WHOLE for hold in job.holds)
