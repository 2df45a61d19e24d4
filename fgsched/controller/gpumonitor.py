"""Monitor the GPUs: query them, assign their processes to jobs, and check the jobs' limits."""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fgsched import gpus
from fgsched.config.schema import Config
from fgsched.controller.containment import Faults
from fgsched.controller.enforcementcheck import EnforcementCheck
from fgsched.controller.engine import Engine
from fgsched.controller.turn import WatchdogFinding
from fgsched.domain.job import GpuProcess, Job, Reading
from fgsched.domain.states import JobState
from fgsched.gpus import external
from fgsched.gpus.mig import GONE
from fgsched.launch.launcher import Launcher
from fgsched.launch.regions import HOOK, Slot, charge, charged, set_outside_memory, slots
from fgsched.lifecycle.launchspec import job_dir
from fgsched.lifecycle.watchdog import UNENFORCED, JobOnGpu, LastQuery, ProcessUse, WatchdogPolicy, judge
from fgsched.system.preloading import why_not_preloaded
from fgsched.system.process import (
    Identity,
    ancestry,
    is_alive,
    is_silent,
    maps,
    owner_of,
    parents,
    processes_of_job,
    started_with,
)

log = logging.getLogger(__name__)
_PIDS = 1 << 22  # pids of this host are lower; that of a simulated foreign process is not
_SOON = 0.1  # seconds between two queries while a GPU still lists an ended job
_AGAIN = 0.5  # the same while the watchdog suspects a running job
_PATIENCE = 60.0  # seconds after which an unanswered query is lost

# -- pids that no process here has ------------------------------------------------------------------


class UnresolvedPids:
    """Record listed pids that do not exist in this PID namespace (container), and warn about them once."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self.pids: tuple[int, ...] = ()  # pids that were listed for a whole interval
        self._is_logged = False

    def record_query(self, pids: Iterable[int], *, now: float, interval: float) -> None:
        """Record the pids of one query.

        `interval`: seconds for which an ended process may still be listed.
        """
        self._since = {pid: self._since.get(pid, now) for pid in pids}
        self.pids = tuple(sorted(pid for pid, since in self._since.items() if now - since >= interval))
        if self.pids and not self._is_logged:
            self._is_logged = True
            listed = ", ".join(map(str, self.pids))
            log.warning(
                "the driver lists processes that do not exist in this PID namespace: %s; in a container, "
                "run the controller in the host's, or every job that ends leaves its card suspect",
                listed,
            )


# -- which job each process belongs to --------------------------------------------------------------


class GpuObservation(Struct, frozen=True):
    """The last readings of the GPUs, with the jobs of the listed processes."""

    readings: dict[int, Reading]  # with the bytes of foreign processes
    still_listed: set[int]  # ended jobs that a GPU still lists
    owners: dict[int, int]  # pid -> running job
    unresolved: frozenset[int] = frozenset()  # pids that a GPU lists and no process here has
    shepherds: frozenset[int] = frozenset()  # pids under which simulated GPUs show the loads of jobs


def interpreted(
    readings: Mapping[int, Reading],
    *,
    shepherds: Mapping[int, int],
    ended: Iterable[Job],
    run: str,
    stayed: Iterable[Job] = (),
    running: Mapping[int, Job] | None = None,
) -> GpuObservation:
    """Find the job of each process on the GPUs.

    `shepherds`: {pid: job} of the running jobs, and of adopted processes. `ended`: jobs that hold their
    shares until their processes have ended. `stayed`: jobs whose clean-up timed out; they hold no shares.

    A process belongs to a job if the job's shepherd or an adopted process is its ancestor, or if it is the
    owner's and was started with the job's environment. The driver may still list a process that has ended
    and whose pid no longer exists on the host.
    """
    listed = {process.pid for reading in readings.values() for process in reading.processes}
    above = parents() if listed else {}
    owners = _owners(listed, shepherds, above, _by_directory(run, running or {}))
    job_pids = set(owners)
    foreign_pids = {pid for pid in listed if pid not in above and pid < _PIDS}
    listed_jobs: set[int] = set()
    for job, is_held in [*((job, True) for job in ended), *((job, False) for job in stayed)]:
        own_pids = _left_by(run, job, listed - owners.keys()) if listed else set()
        job_pids |= own_pids if is_held else set()
        if any(_is_on(readings.get(hold.gpu), own_pids | foreign_pids) for hold in job.holds):
            listed_jobs.add(job.id)
    counted_pids = job_pids | foreign_pids if listed_jobs else job_pids
    return GpuObservation(
        {
            index: replace(reading, external=external(reading, counted_pids))
            for index, reading in readings.items()
        },
        listed_jobs,
        owners,
        frozenset(foreign_pids),
        frozenset(shepherds),
    )


def _left_by(run: str, job: Job, unowned: set[int]) -> set[int]:
    """Return the processes of a job that has ended; of a user who is silent, each one on a GPU may be."""
    pids = {identity.pid for identity in processes_of_job(job_dir(run, job.id, job.attempt), job.uid)}
    return pids | {pid for pid in unowned if owner_of(pid) == job.uid} if is_silent(job.uid) else pids


def adopted_pids(jobs: Iterable[Job]) -> dict[int, int]:
    """Return {pid: job} of the adopted processes that still run."""
    return {
        adopted.pid: job.id
        for job in jobs
        if (adopted := job.adopted) is not None and is_alive(Identity(adopted.pid, adopted.start, job.boot))
    }


def without_jobs(readings: Mapping[int, Reading]) -> GpuObservation:
    """Return the readings where there is no job: all processes are foreign, and none is examined."""
    return GpuObservation(
        {index: replace(reading, external=external(reading, ())) for index, reading in readings.items()},
        set(),
        {},
    )


def _is_on(reading: Reading | None, pids: set[int]) -> bool:
    """Tell whether a GPU may have one of these processes; True if the GPU did not answer."""
    if reading is None or reading.is_lost:
        return False
    return bool(reading.error) or any(process.pid in pids for process in reading.processes)


def _owners(
    listed: Iterable[int],
    shepherds: Mapping[int, int],
    above: Mapping[int, int],
    directories: Mapping[str, Job],
) -> dict[int, int]:
    """Return {pid: job} of the processes that belong to a running job."""
    job_of = {}
    for pid in listed:
        job = _shepherded(pid, shepherds, above)
        if job is None and pid in above:
            job = _of_environment(pid, directories)
        if job is not None:
            job_of[pid] = job
    return job_of


def _shepherded(pid: int, shepherds: Mapping[int, int], above: Mapping[int, int]) -> int | None:
    while pid > 1:
        if pid in shepherds:
            return shepherds[pid]
        pid = above.get(pid, 0)
    return None


def _by_directory(run: str, running: Mapping[int, Job]) -> dict[str, Job]:
    return {job_dir(run, job.id, job.attempt): job for job in running.values()}


def _of_environment(pid: int, directories: Mapping[str, Job]) -> int | None:
    """Return the job that FG_JOB_DIR of a process names, if the process runs as the job's user.

    The owner is asked for again after the variables: the pid may have been reused by another user's process.
    """
    uid = owner_of(pid)
    if all(job.uid != uid for job in directories.values()):
        return None
    job = directories.get(started_with(pid, "FG_JOB_DIR"))
    return job.id if job and job.uid == owner_of(pid) else None


# -- the watchdog -----------------------------------------------------------------------------------


class Watchdog:
    """Compare the running jobs with each reading of the GPUs, and report findings to the engine."""

    def __init__(
        self,
        run: str,
        policy: WatchdogPolicy,
        tell: Callable[[WatchdogFinding], None],
        learn: Callable[[int, int], None] = lambda gpu, size: None,
        faults: Faults | None = None,
    ) -> None:
        """`learn` is called with a GPU and the bytes that the contexts of a process took there."""
        self._run = run
        self._learn = learn
        self.policy = policy
        self._report_finding = tell
        self._faults = faults or Faults()
        self._last_queries: dict[
            tuple[int, int], LastQuery
        ] = {}  # (job, attempt) -> result of the last query

    @property
    def is_suspicious(self) -> bool:
        """Whether the last query raised a suspicion, which the next one confirms or clears."""
        return any(memory.faults for memory in self._last_queries.values())

    def judge_jobs(self, gpu_view: GpuObservation, holding: Mapping[int, Job]) -> None:
        """Judge every running job. A GPU that did not answer is no evidence."""
        before, self._last_queries = self._last_queries, {}
        silent = {gpu for gpu, reading in gpu_view.readings.items() if reading.error and not reading.is_lost}
        for job in holding.values():
            if job.state is not JobState.RUNNING or not job.holds or job.is_to_end:
                continue
            if job.adopted is not None:  # it was started without limits
                continue
            was = before.get((job.id, job.attempt))
            with self._faults.contained(f"the watchdog of job {job.id}"):
                self._judge(job, gpu_view, was, silent)

    def _judge(
        self, job: Job, gpu_view: GpuObservation, was: LastQuery | None, silent: Collection[int]
    ) -> None:
        """Charge one job, and report findings. `was`: the result of the last query, if any."""
        key = job.id, job.attempt
        self._last_queries[key] = was or LastQuery()
        counted = self._counted(job, gpu_view)
        on_gpus = _on_gpus(job, gpu_view, counted)
        verdict = judge(job.tier, on_gpus, was or LastQuery(), self.policy, silent=silent)
        self._last_queries[key] = verdict.memory
        if was is None:  # one query shows no charge; keep that of an earlier controller
            self._last_queries[key] = replace(verdict.memory, charged=charged(self._run, job))
        elif verdict.charges:
            charge(self._run, job, verdict.charges)
        for (gpu, pid), size in verdict.seen.items():
            set_outside_memory(self._run, job, counted[gpu][pid], size)
        for gpu, size in verdict.costs.items():
            self._learn(gpu, size)
        if verdict.warn or verdict.end:
            self._report_finding(WatchdogFinding(job.id, job.attempt, verdict.warn, verdict.end))

    def _counted(self, job: Job, gpu_view: GpuObservation) -> Mapping[int, Mapping[int, Slot]]:
        """Return {gpu: {pid: slot}} if a process of the job was seen."""
        is_there = job.tier != UNENFORCED and job.id in gpu_view.owners.values()
        return slots(self._run, job) if is_there else {}


def watchdog_policy(config: Config) -> WatchdogPolicy:
    """Return the watchdog's settings."""
    return WatchdogPolicy(kills=config.watchdog == "kill", tolerance=config.tolerance)


def _on_gpus(job: Job, gpu_view: GpuObservation, counted: Mapping[int, Mapping[int, Slot]]) -> list[JobOnGpu]:
    limits = {hold.gpu: hold.memory for hold in job.holds}
    pids = {pid for pid, owner in gpu_view.owners.items() if owner == job.id} - gpu_view.shepherds
    on_gpus = []
    for index, reading in gpu_view.readings.items():
        uses = _uses(reading, pids, counted.get(index, {}))
        is_ours = index in limits and (reading.is_lost or not reading.error)
        if uses or is_ours:
            limit = limits.get(index)
            why = reading.error if reading.error == GONE else ""
            job_on_gpu = JobOnGpu(gpu=index, limit=limit, uses=uses, is_lost=reading.is_lost, why_lost=why)
            on_gpus.append(job_on_gpu)
    return on_gpus


def _uses(reading: Reading, pids: set[int], counted: Mapping[int, Slot]) -> tuple[ProcessUse, ...]:
    return tuple(
        _use(process, counted.get(process.pid)) for process in reading.processes if process.pid in pids
    )


def _use(process: GpuProcess, slot: Slot | None) -> ProcessUse:
    """Return the use of a process; one without a slot may still have the hook, before it allocates."""
    if slot is None:
        if maps(process.pid, HOOK) is not False:
            return ProcessUse(pid=process.pid, memory=process.memory, tracked=0)
        why = why_not_preloaded(process.pid) if process.memory else ""
        return ProcessUse(pid=process.pid, memory=process.memory, tracked=None, why_bare=why)
    use = ProcessUse(pid=process.pid, memory=process.memory, tracked=slot.tracked, past=slot.past)
    return replace(use, mark=slot.mark, has_context=slot.has_context)


LookReader = Callable[[GpuObservation, gpus.GpuAnswer], None]
AnswerReader = Callable[[gpus.GpuAnswer], None]

# -- queries ----------------------------------------------------------------------------------------


class GpuMonitor:
    """Query the GPUs at intervals while there are jobs, and more often while one is being cleaned."""

    def __init__(  # noqa: PLR0913  all that it needs
        self,
        engine: Engine,
        shepherds: Launcher,
        read: Callable[[], list[gpus.GpuAnswer]],
        watchdog: Watchdog,
        gate: EnforcementCheck,
        *,
        interval: float,  # seconds
        looks: Sequence[LookReader],  # each takes every look
        record: LookReader | None,  # the samples of the accounts; None: nothing is recorded
        answers: Mapping[str, AnswerReader],  # by question: take the answers that are no looks
    ) -> None:
        """`read` returns the answers that have arrived; those without a reader are for the gate."""
        self._engine, self._shepherds, self._read = engine, shepherds, read
        self.watchdog, self._gate = watchdog, gate
        self._looks, self._record, self._answers = looks, record, answers
        self._gpu_states = engine.gpu_states
        self.interval = interval
        self.unresolved = UnresolvedPids()
        self._looked_at = -interval  # by the monotonic clock
        self._asked_at: float | None = None  # by the same: when the unanswered query was made

    @property
    def due(self) -> float | None:
        """Seconds until the next query; None: none is needed."""
        is_needed = self._engine.jobtable.jobs or self._record is not None
        if not self._gpu_states.needs_cleaning or not is_needed:
            return None
        pause = min(_AGAIN, self.interval) if self.watchdog.is_suspicious else self.interval
        pause = _SOON if self._gpu_states.is_cleaning else pause
        return max(0.0, self._looked_at + pause - time.monotonic())

    def look(self) -> None:
        """Make a query if one is due and the previous one was answered."""
        pause = self.due
        if pause is not None and pause <= 0.001:
            self._looked_at = now = time.monotonic()
            if self._asked_at is None or now - self._asked_at >= _PATIENCE:
                self._asked_at = now
                self._gpu_states.ask()
            self._gate.remind()

    def process_answers(self) -> None:
        """Process the received answers."""
        for answer in self._read():
            if answer.want == gpus.READING:
                self._asked_at = None
                self._understand(answer)
            else:
                self._answers.get(answer.want, self._gate.hear)(answer)

    def _understand(self, answer: gpus.GpuAnswer) -> None:
        jobtable = self._engine.jobtable
        is_idle = not jobtable.jobs and not self._gpu_states.watched
        gpu_view = without_jobs(answer.readings) if is_idle else self._interpreted(answer)
        self._gpu_states.use_readings(gpu_view.readings, listed_jobs=gpu_view.still_listed, now=time.time())
        if is_idle:
            self._gpu_states.expire()
        self.watchdog.judge_jobs(gpu_view, jobtable.holding)
        self.unresolved.record_query(gpu_view.unresolved, now=time.monotonic(), interval=self.interval)
        for take in self._looks:
            take(gpu_view, answer)
        if self._record is not None:
            with self._engine.faults.contained("the samples of the accounts"):
                self._record(gpu_view, answer)

    def job_of(self, pid: int) -> int | None:
        """Return the running job of a process; None: it belongs to none, or there is no such process."""
        running = self._engine.jobtable.holding
        directories = _by_directory(str(self._shepherds.run.path), running)
        roots = self._supervisors(running.values())
        return _owners([pid], roots, ancestry(pid), directories).get(pid)

    def _supervisors(self, jobs: Iterable[Job]) -> dict[int, int]:
        """Return {pid: job} of the shepherds and of the adopted processes that run."""
        jobs = list(jobs)
        supervisors = adopted_pids(jobs)
        for job in jobs:
            with self._engine.faults.contained(f"the supervisor of job {job.id}"):
                if shepherd := self._shepherds.shepherd(job):
                    supervisors[shepherd.pid] = job.id
        return supervisors

    def _interpreted(self, answer: gpus.GpuAnswer) -> GpuObservation:
        jobtable = self._engine.jobtable
        with_gpus = [job for job in jobtable.holding.values() if job.holds] if answer.readings else []
        return interpreted(
            answer.readings,
            shepherds=self._supervisors(with_gpus),
            ended=[job for job in jobtable.holding.values() if self._gpu_states.cleans(job.id)],
            stayed=self._gpu_states.overdue_attempts,
            run=str(self._shepherds.run.path),
            running=jobtable.holding,
        )


# -- a driver that did not answer at the start of the controller -----------------------------------


_LONGEST = 60.0  # seconds between an answer and the next question
_DOUBLINGS = 6  # after which the pause is the longest
_LOST = 600.0  # seconds after which a question has no answer any more: the supervisor was killed


def pause(failures: int) -> float:
    """Return the seconds until the next question, after this many further ones without success."""
    return min(_LONGEST, 2.0 ** min(failures, _DOUBLINGS))


def is_needed(inventory: gpus.Inventory) -> bool:
    """Tell whether a later inventory may have more: GPUs, or the driver's limits on known GPUs."""
    return inventory.is_late or (inventory.failed and inventory.is_real)


class InventoryRetry:
    """The questions of one start. Times are in seconds of a clock that is never set."""

    def __init__(
        self, *, needed: bool, ask: Callable[[], None], answered: Callable[[], None], now: float
    ) -> None:
        """`answered` is called once the driver answers."""
        self._ask, self._answered = ask, answered
        self._failures = 0
        self._next = now + pause(0) if needed else math.inf

    def due(self, now: float) -> float | None:
        """Return the seconds until the next question; None: none is needed."""
        return max(0.0, self._next - now) if self._next < math.inf else None

    def look(self, now: float) -> None:
        """Ask if a question is due."""
        if now >= self._next:
            self._next = now + _LOST
            self._ask()

    def hear(self, answer: gpus.GpuAnswer, now: float) -> None:
        """Use the answer to a question."""
        if answer.error and self._next < math.inf:
            self._failures += 1
            self._next = now + pause(self._failures)
        elif self._next < math.inf:
            self._next = math.inf
            self._answered()
