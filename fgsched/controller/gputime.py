"""Tell the arbiter which jobs share GPUs, and how many processes work there without turns.

The arbiter gives jobs their turns without the controller.
"""

import logging
import os
import time
from contextlib import suppress
from typing import NamedTuple

import fgshim.region as region

from fgsched.controller.engine import Engine
from fgsched.domain.job import COMPUTE_NONE, WHOLE, Job
from fgsched.domain.states import JobState
from fgsched.launch.arbiter import Arbiter, JobKey, TurnJob, TurnShare

log = logging.getLogger(__name__)
_OFTEN = 0.025  # seconds between two steps while a job without turns has a neighbour and works
_SELDOM = 0.25  # in which a new job gets its turns, and an arbiter that has ended its successor
_MOST_COUNTED = 4  # processes of a job that takes no turns


class _Paced(NamedTuple):
    """A running job with fractions of GPUs."""

    fd: int  # of its region
    accounts: dict[int, region.Account]  # by the GPU's index
    job: Job


class GpuTime:
    """Call `look` when `due`."""

    def __init__(self, engine: Engine, arbiter: Arbiter, *, run: str) -> None:
        self._engine, self._arbiter, self._run = engine, arbiter, run
        self._jobs: dict[JobKey, _Paced] = {}
        self._looked_at = 0.0

    @property
    def due(self) -> float | None:
        """Return the seconds until the next `look`, or None if no GPU is shared."""
        if not any(_is_shared(job) for job in self._engine.jobtable.holding.values()) and not self._jobs:
            return None
        pause = _OFTEN if self._has_others() else _SELDOM
        return max(0.0, self._looked_at + pause - time.monotonic())

    def look(self) -> None:
        """Tell the arbiter what is new, if a step is due."""
        pause = self.due
        if pause is None or pause > 0.001:
            return
        self._looked_at = time.monotonic()
        self._keep_up()
        for paced in self._jobs.values():
            for account in paced.accounts.values():
                with suppress(OSError):  # the job has cut its region short
                    account.read()
        self._tell_arbiter()

    def mechanism(self, job: Job) -> str:
        """Return the method of pacing: "turns"; "events": the job's budget; "mps:50"; "": none."""
        if job.mps is not None and job.mps.word:
            return job.mps.word
        key = (job.id, job.attempt)
        accounts = self._jobs[key].accounts.values() if key in self._jobs else ()
        if all(account.policy == COMPUTE_NONE for account in accounts):
            return ""
        return "turns" if self._arbiter.is_connected(key) else "events"

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
        unpaced: dict[int, int] = {}
        for key, paced in self._jobs.items():
            counts = {gpu: _counted(account) for gpu, account in paced.accounts.items()}
            for gpu in counts.keys() - self._paced_gpus(paced):
                unpaced[gpu] = unpaced.get(gpu, 0) + counts[gpu]
            if key in jobs:
                self._arbiter.count_flying(key, max(counts.values()))
        for gpu in {share.gpu for job in jobs.values() for share in job.shares}:
            self._arbiter.count_others(gpu, unpaced.get(gpu, 0))

    def _turns_of(self, key: JobKey, paced: _Paced) -> TurnJob:
        """Return the GPUs of a job that it shares and that are paced."""
        paced_gpus = self._paced_gpus(paced)
        shares = tuple(
            TurnShare(position, hold.gpu, paced.accounts[hold.gpu].policy, hold.share)
            for position, hold in enumerate(paced.job.holds)
            if hold.share < WHOLE and hold.gpu in paced_gpus
        )
        uid = paced.job.uid if os.geteuid() == 0 else os.geteuid()
        return TurnJob(uid, f"{self._run}/job/{key[0]}.{key[1]}", shares)

    @staticmethod
    def _paced_gpus(paced: _Paced) -> set[int]:
        return {gpu for gpu, account in paced.accounts.items() if account.policy != COMPUTE_NONE}

    def _has_others(self) -> bool:
        """Return whether a job without turns works, and may have a neighbour that takes turns."""
        return len(self._jobs) > 1 and any(
            _counted(account) and (account.policy == COMPUTE_NONE or not self._arbiter.is_connected(key))
            for key, paced in self._jobs.items()
            for account in paced.accounts.values()
        )

    def _keep_up(self) -> None:
        """Add new running jobs and drop ended ones."""
        running = {
            (job.id, job.attempt): job
            for job in self._engine.jobtable.holding.values()
            if job.state is JobState.RUNNING and _is_shared(job)
        }
        for ended in self._jobs.keys() - running.keys():
            os.close(self._jobs.pop(ended).fd)
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
        return _Paced(fd, {hold.gpu: region.Account(fd, at) for at, hold in enumerate(job.holds)}, job)


def _counted(account: region.Account) -> int:
    """Return how many processes of a job have work; the job can write to this count, so few are believed."""
    return min(int(account.flying(time.monotonic_ns())), _MOST_COUNTED)


def _is_shared(job: Job) -> bool:
    return any(hold.share < WHOLE for hold in job.holds)
