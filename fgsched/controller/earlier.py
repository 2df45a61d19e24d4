"""Watch running jobs of an earlier queue; their GPUs are suspect until these jobs have ended."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from fgsched.controller.gpustate import GpuStates
from fgsched.protocol import EarlierJob
from fgsched.system import generations
from fgsched.system.generations import Earlier
from fgsched.system.process import Identity, open_pidfd

log = logging.getLogger(__name__)
Watch = Callable[[int, Callable[[], None]], None]


class EarlierJobs:
    """Watches the processes of earlier jobs. Independent of the jobs of the current queue."""

    def __init__(
        self, run: Path, own: Path, cards: GpuStates, *, watch: Watch, remove: Callable[[Path], None]
    ) -> None:
        """`run` is the run directory, `own` that of the current queue below it."""
        self._run, self._own, self._cards = run, own, cards
        self._watch, self._remove = watch, remove
        self._watched: set[Identity] = set()
        self.jobs: tuple[Earlier, ...] = ()

    def look(self, now: float) -> None:
        """Find jobs of earlier queues; remove files of ended ones, mark GPUs of the others as suspect."""
        before = self.jobs
        self.jobs = self._found()
        while not all([self._follow(one.processes[0]) for one in self.jobs]):
            self.jobs = self._found()  # one ended a moment ago
        generations.link(self._run, self._own)
        self._tell(before)
        self._cards.vacate(now)
        for one in self.jobs:
            self._cards.occupy(one.cards, note_of(one), now)

    def told(self) -> list[EarlierJob]:
        """Return the jobs as `ping` shows them."""
        return [
            EarlierJob(
                queue=one.queue,
                job=one.job,
                pid=one.processes[0].pid,
                gpus=None if one.cards is None else sorted(one.cards),
            )
            for one in self.jobs
        ]

    def _found(self) -> tuple[Earlier, ...]:
        found = list[Earlier]()
        for place in generations.others(self._run, self._own):
            try:
                generations.close(place)
            except OSError as error:
                log.warning("launches of an earlier queue may still begin in %s: %s", place, error)
            alive = generations.living_jobs(place)
            generations.remove_ended(place, {(one.job, one.attempt) for one in alive}, self._remove)
            found += alive
        return tuple(found)

    def _tell(self, before: tuple[Earlier, ...]) -> None:
        known, left = {one[:3] for one in before}, {one[:3] for one in self.jobs}
        for one in self.jobs:
            if one[:3] not in known:
                cards = "any card" if one.cards is None else f"cards {', '.join(sorted(one.cards)) or 'none'}"
                log.warning("%s and may use %s", note_of(one), cards)
        for one in before:
            if one[:3] not in left:
                log.warning("job %d of an earlier queue is over", one.job)

    def _follow(self, process: Identity) -> bool:
        """Call `look` when the process ends; return False if it has already ended."""
        if process in self._watched:
            return True
        pidfd = open_pidfd(process)
        if pidfd is None:
            return False
        self._watched.add(process)
        self._watch(pidfd, lambda: self._over(pidfd, process))
        return True

    def _over(self, pidfd: int, process: Identity) -> None:
        os.close(pidfd)
        self._watched.discard(process)
        self.look(time.time())


def note_of(one: Earlier) -> str:
    """Return the note about an earlier job, for its GPUs."""
    return f"job {one.job} of an earlier queue (pid {one.processes[0].pid}) runs"
