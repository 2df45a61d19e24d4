"""Work between turns: check and prune the queue, repair the run directory, watch jobs of an earlier queue."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fgsched.controller.gpustate import GpuStates
from fgsched.domain.errors import FgschedError, StorageError
from fgsched.domain.times import FOREVER
from fgsched.launch.rundir import RunDir
from fgsched.protocol import JobOfEarlierQueue
from fgsched.store import StorageBroken, Store
from fgsched.store.blobs import Unused
from fgsched.system import generations
from fgsched.system.generations import Earlier
from fgsched.system.inotify import Inotify
from fgsched.system.paths import Paths
from fgsched.system.process import Identity, Watch, open_pidfd

# -- pages of the queue that were not checked at the start -----------------------------------------


_CHECK_PAUSE = 0.02  # seconds between two steps


class FileCheck:
    """The remaining check. A step takes about 1 ms if the file is cached."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0.0

    def due(self, now: float) -> float | None:
        """Return the seconds until the next step, or None if all pages are checked."""
        return max(0.0, self._next - now) if self._store.is_checking else None

    def step(self, now: float) -> None:
        """Check some pages, if a step is due.

        Raises:
            StorageError: a page is damaged.
        """
        if self._store.is_checking and now >= self._next:
            self._store.check_some()
            self._next = now + _CHECK_PAUSE


# -- the run directory -----------------------------------------------------------------------------


log = logging.getLogger("fgsched.controller")
_REPAIR_PAUSE = 0.2  # seconds, so that a program which removes a whole tree meets no new entries
_LONGEST_REPAIR_PAUSE = 60.0  # seconds between two attempts where nothing can be made


class Presence:
    """Watches the run directory and creates missing entries again a moment later."""

    def __init__(self, paths: Paths, run: RunDir, listen: Callable[[], None]) -> None:
        """`listen()` accepts requests on a new socket if there is none."""
        self._paths, self._run, self._listen = paths, run, listen
        self._due: float | None = None
        self._pause = _REPAIR_PAUSE
        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify()
        except OSError as error:  # the user has as many instances as one may have
            log.warning("removals from %s are not detected: %s", run.path, error)
            self._due = _LONGEST_REPAIR_PAUSE
        self._watch()

    @property
    def source(self) -> Inotify | None:
        """Return the descriptor that becomes readable when an entry is removed."""
        return self._inotify

    def _watch(self) -> None:
        if self._inotify is not None:
            self._inotify.watch(self._paths.run)
            self._inotify.watch(self._run.path)
            if self._paths.run_link is not None:
                self._inotify.watch(self._paths.run_link.parent)

    def heard(self, now: float) -> None:
        """Note that an entry was removed."""
        if self._inotify is not None:
            self._inotify.read()
        if self._due is None:
            self._due = now + self._pause

    def due(self, now: float) -> float | None:
        """Return the seconds until the next check of the run directory; None if none is planned."""
        return None if self._due is None else max(0.0, self._due - now)

    def look(self, now: float) -> None:
        """Create missing entries, if a check is due."""
        if self._due is None or now < self._due:
            return
        self._due = None if self._inotify is not None else now + _LONGEST_REPAIR_PAUSE
        if not self._paths.queue.exists():
            log.error("%s is gone: the run directory is left as it is", self._paths.queue)
            return
        try:
            created = self._made()
            self._watch()
            while more := self._made():  # that was removed before it was watched
                created += more
                self._watch()
        except (OSError, FgschedError) as error:
            log.error("%s cannot be used: %s", self._run.path, error)
            self._pause = min(2 * self._pause, _LONGEST_REPAIR_PAUSE)
            self._due = now + self._pause
            return
        self._pause = _REPAIR_PAUSE
        if created:
            log.warning("%s: made again after they were removed: %s", self._run.path, ", ".join(created))

    def _made(self) -> list[str]:
        self._paths.prepare(os.geteuid())
        created = self._run.mend()
        if not generations.is_linked(self._paths.run):
            generations.link(self._paths.run, self._run.path)  # by renaming, which is heard here
        if not self._paths.socket.is_socket():
            self._listen()
            created.append(self._paths.socket.name)
        return created


# -- scripts, environments and accounting that are too old -----------------------------------------
#
# It runs in small transactions while the controller is idle, and completely after some time on a host that
# is never idle.


_NOTED = 100  # ended jobs of a step
_PRUNED = 50  # scripts and environments of a step
_BYTES = 4 << 20  # of a step
_PAGES = 128  # that a step gives back
_SUBMISSIONS = 500  # keys that a step examines
_KEYS = 86_400.0  # seconds that the key of a submission is known: longer than any command repeats it
_STEP = 0.05  # seconds between two steps
_ROUND = 60.0  # seconds between two rounds
_SOON = 1.0  # seconds from an end to the next round
_LONGEST_SLEEP = 86_400.0  # seconds until the next check if nothing is due, because clocks can be set


class JobRetention(NamedTuple):
    """The retention of data of ended jobs."""

    seconds: int  # since the end; FOREVER
    size: int  # bytes of each user


class Pruner:
    """`revision()` changes with each change of the queue; other work then has priority."""

    def __init__(self, store: Store, keep: JobRetention, revision: Callable[[], int]) -> None:
        self.keep = keep
        self._store, self._revision = store, revision
        self._seen = -1
        self._due: float | None = 0.0
        self._since = 0.0  # when the round began
        self._whole_at = 0.0  # time of the next round that also examines quotas and keys, which takes longer
        self._place: tuple[int, str] | None = (-1, "")  # in the keys of submissions; None: at their end
        self._removed: list[Unused] = []

    def due(self, now: float) -> float | None:
        """Return the seconds until the next step."""
        return None if self._due is None else max(0.0, self._due - now)

    def ended(self, now: float) -> None:
        """Note that a job has ended."""
        soon_at = now + _SOON
        if self._due is None or self._due > soon_at:
            self._due = soon_at

    def configure(self, keep: JobRetention, now: float) -> None:
        """Use changed settings."""
        self.keep = keep
        self.ended(now)

    def step(self, now: float, wall: float) -> None:
        """Do a step of the work if one is due. `now` is in monotonic seconds, `wall` in epoch seconds."""
        if self._due is None or now < self._due:
            return
        self._since = self._since or now
        is_put_off = self._is_busy() and now - self._since < _ROUND
        self._due = now + _ROUND  # where this fails
        try:
            with self._store.unenforced(), self._store.write():
                if is_put_off:
                    has_more = self._work_while_busy()
                else:
                    has_more = self._work(wall, is_whole=now >= self._whole_at)
        except StorageBroken:
            raise
        except StorageError as error:  # a full disk is reported to jobs and requests
            log.warning("nothing can be removed from the queue now: %s", error.cause)
            return
        if has_more:
            self._due = now + _STEP
        elif is_put_off:
            self._due = now + _SOON
        else:
            self._end_round(now, wall)

    def _work_while_busy(self) -> bool:
        """Delete some data beyond the quotas, so that no user fills the file; return whether more remains."""
        idle = self._store.idle
        if idle.note(_NOTED):
            return True
        if idle.noted < _BYTES:
            return False
        unused = idle.beyond(self.keep.size, _PRUNED)
        removed = idle.prune(unused, _BYTES)
        self._removed += removed
        idle.noted = _BYTES if unused else 0  # the next step looks again
        return bool(unused)

    def _is_busy(self) -> bool:
        before, self._seen = self._seen, self._revision()
        return before != self._seen

    def _work(self, wall: float, *, is_whole: bool) -> bool:
        """Do one step; return whether more remains."""
        idle = self._store.idle
        if idle.note(_NOTED):
            return True
        unused = idle.since(wall - self.keep.seconds, _PRUNED) if self.keep.seconds != FOREVER else []
        if is_whole and not unused:
            unused = idle.beyond(self.keep.size, _PRUNED)
        if unused:
            self._removed += idle.prune(unused, _BYTES)
            return True
        if is_whole and self._place is not None:
            forget = self._store.submissions.forget_old
            self._place = forget(self._place, wall - _KEYS, _SUBMISSIONS)
            return True
        return idle.shrink(_PAGES)

    def _end_round(self, now: float, wall: float) -> None:
        if self._removed:
            size = sum(unused.size for unused in self._removed) / (1 << 20)
            log.info("removed scripts and environments of ended jobs: %d, %.1f MiB", len(self._removed), size)
        self._removed, self._place, self._since = [], (-1, ""), 0.0
        if now < self._whole_at:
            self._due = self._whole_at
            return
        self._whole_at = now + _ROUND
        first = None if self.keep.seconds == FOREVER else self._store.idle.first()
        pause = _LONGEST_SLEEP if first is None else first + self.keep.seconds - wall
        self._due = now + min(_LONGEST_SLEEP, max(_ROUND, pause))


# -- jobs of an earlier queue ----------------------------------------------------------------------


class EarlierJobs:
    """Watches the processes of earlier jobs. Independent of the jobs of the current queue."""

    def __init__(
        self,
        run: Path,
        own_directory: Path,
        gpu_states: GpuStates,
        *,
        watch: Watch,
        remove: Callable[[Path], None],
    ) -> None:
        """`run` is the run directory, `own_directory` that of the current queue below it."""
        self._run, self._own_directory, self._gpu_states = run, own_directory, gpu_states
        self._watch, self._remove = watch, remove
        self._watched: set[Identity] = set()
        self.jobs: tuple[Earlier, ...] = ()

    def look(self, now: float) -> None:
        """Find jobs of earlier queues; remove files of ended ones, mark GPUs of the others as suspect."""
        before = self.jobs
        self.jobs = self._found()
        while not all([self._follow(job.processes[0]) for job in self.jobs]):
            self.jobs = self._found()  # one ended a moment ago
        generations.link(self._run, self._own_directory)
        self._log_changes(before)
        self._gpu_states.vacate(now)
        for earlier_job in self.jobs:
            self._gpu_states.occupy(earlier_job.gpus, note_of(earlier_job), now)

    def summary(self) -> list[JobOfEarlierQueue]:
        """Return the jobs as `ping` shows them."""
        return [
            JobOfEarlierQueue(
                queue=job.queue,
                job=job.job,
                pid=job.processes[0].pid,
                gpus=None if job.gpus is None else sorted(job.gpus),
            )
            for job in self.jobs
        ]

    def _found(self) -> tuple[Earlier, ...]:
        living = list[Earlier]()
        for place in generations.others(self._run, self._own_directory):
            try:
                generations.close(place)
            except OSError as error:
                log.warning("launches of an earlier queue may still begin in %s: %s", place, error)
            alive = generations.living_jobs(place)
            generations.remove_ended(
                place, {(earlier_job.job, earlier_job.attempt) for earlier_job in alive}, self._remove
            )
            living += alive
        return tuple(living)

    def _log_changes(self, before: tuple[Earlier, ...]) -> None:
        known_keys, present_keys = {earlier_job[:3] for earlier_job in before}, {job[:3] for job in self.jobs}
        for earlier_job in self.jobs:
            if earlier_job[:3] not in known_keys:
                gpus = (
                    "any card"
                    if earlier_job.gpus is None
                    else f"cards {', '.join(sorted(earlier_job.gpus)) or 'none'}"
                )
                log.warning("%s and may use %s", note_of(earlier_job), gpus)
        for earlier_job in before:
            if earlier_job[:3] not in present_keys:
                log.warning("job %d of an earlier queue has ended", earlier_job.job)

    def _follow(self, process: Identity) -> bool:
        """Call `look` when the process ends; return False if it has already ended."""
        if process in self._watched:
            return True
        pidfd = open_pidfd(process)
        if pidfd is None:
            return False
        self._watched.add(process)
        self._watch(pidfd, lambda: self._process_ended(pidfd, process))
        return True

    def _process_ended(self, pidfd: int, process: Identity) -> None:
        os.close(pidfd)
        self._watched.discard(process)
        self.look(time.time())


def note_of(job: Earlier) -> str:
    """Return the note about an earlier job, for its GPUs."""
    return f"job {job.job} of an earlier queue (pid {job.processes[0].pid}) runs"
