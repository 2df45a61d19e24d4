"""The state of the host's GPUs: readings, marks of operators, and GPUs that ended jobs still occupy."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from fgsched import gpus
from fgsched.domain.job import Gpu, GpuState, Hold, Job, MigInstance, Reading, is_instance
from fgsched.gpus import mig, vendors
from fgsched.gpus.simulated import is_simulated
from fgsched.scheduling.placement import charged
from fgsched.store import GpuAllocation, Store

log = logging.getLogger(__name__)
_NEVER = float("-inf")
_ANSWER = 2.0  # seconds in which an asked driver answers, and the client repeats its request
_LIVES_ON = "could not be ended"  # at the end of a note: an operator must resume the GPU
BY_ITSELF = " [watchdog]"  # at the end of a note: no operator drained it
BY_PROGRAM = " [hook]"  # at the end of a note: a prolog or epilog failed


class GpuStates:
    """The states of all GPUs. Decides nothing about jobs; `ask` requests a reading."""

    def __init__(
        self,
        gpus: Iterable[Gpu],
        *,
        sampled: bool = False,
        ask: Callable[[], None] = lambda: None,
        interval: float = 5.0,
        clean_timeout: float = 30.0,
        fatal: Collection[int] = (),
    ) -> None:
        """`interval` is in seconds; `fatal` are the Xids for which a GPU is drained."""
        self._fatal = fatal
        self.is_unknown = False  # the driver has not answered yet, and the queue file lists no GPUs
        self._gpus = {gpu.index: gpu for gpu in gpus}
        self.readings: dict[int, Reading] = {}
        self.needs_cleaning = sampled
        self._ask = ask
        self._interval = interval
        self._timeout = clean_timeout
        self._seen_at = self._answered_at = _NEVER
        self._cleaning_since: dict[int, float] = {}  # job -> since when
        # (job, attempt) that did not leave its GPUs in time -> the job as it was then
        self._overdue: dict[tuple[int, int], Job] = {}
        # The ended jobs when each of the readings was asked for that are still to come, in their order.
        self._asked_for: deque[frozenset[int]] = deque()
        self._looked_for: frozenset[int] = frozenset()  # the same, of the last reading that came
        self._still_listed: frozenset[int] = frozenset()  # of these, the jobs that the last reading shows
        self._changed_gpus: dict[int, Gpu] = {}
        self._unsaved: dict[int, Gpu] = {}  # the last result of `changed`
        self._unkillable: set[int] = set()  # GPUs on which a process may live on that no KILL ends
        self._occupied_by_earlier_jobs: dict[
            int, str
        ] = {}  # GPUs that jobs of an earlier queue may use -> the note
        self._returned_to_service: set[int] = set()  # occupied GPUs that an operator returned to service
        self._lost: set[int] = set()  # GPUs that fell off the bus
        self._health: dict[int, tuple[int, str]] = {}  # GPU -> (errors, remap) as last seen

    def configure(self, *, interval: float, clean_timeout: float, fatal: Collection[int]) -> None:
        """Use these settings from now on; `interval` and `clean_timeout` are in seconds."""
        self._interval, self._timeout, self._fatal = interval, clean_timeout, fatal

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(self._gpus.values())

    def gpu(self, index: int) -> Gpu:
        return self._gpus[index]

    def allocation(self, hold: Hold) -> GpuAllocation:
        """Return a hold with the data of its GPU, for accounting."""
        gpu = self._gpus[hold.gpu]
        return GpuAllocation(
            hold.gpu, gpu.uuid, gpu.model, hold.share, hold.memory, charged(hold, gpu.usable)
        )

    def __contains__(self, index: int) -> bool:
        return index in self._gpus

    # -- readings -----------------------------------------------------------------------------------

    def is_fresh(self, now: float) -> bool:
        """Tell whether memory of other processes is known well enough for placement."""
        return not self.needs_cleaning or 0 <= now - self._seen_at <= self._interval

    def is_recent(self, now: float) -> bool:
        """Tell whether the readings show the processes of now (epoch seconds), also of an idle host."""
        return 0 <= now - self._answered_at <= 2 * self._interval + _ANSWER

    def expire(self) -> None:
        """Mark the last reading as too old for placement: the next job needs a new one."""
        self._seen_at = _NEVER

    def ask(self) -> None:
        """Request a reading; its result is passed to `saw`."""
        self._asked_for.append(self.watched)
        self._ask()

    def use_readings(
        self, readings: Mapping[int, Reading], *, listed_jobs: Iterable[int], now: float
    ) -> None:
        """Use a reading. `listed_jobs` are the jobs of which a GPU still lists a process."""
        self.readings = dict(readings)
        self._seen_at = self._answered_at = now
        self._looked_for = self._asked_for.popleft() if self._asked_for else frozenset()
        self._still_listed = frozenset(listed_jobs)
        left_jobs = (
            self._looked_for - self._still_listed
        )  # a late reading says nothing of a job that ended after its request
        self._overdue = {key: job for key, job in self._overdue.items() if key[0] not in left_jobs}
        for gpu in self.gpus:
            self._judge(gpu, readings.get(gpu.index), now)

    def _judge(self, gpu: Gpu, reading: Reading | None, now: float) -> None:
        """Update the state of a GPU: suspect while it does not answer; marks of operators remain."""
        is_left = not any(hold.gpu == gpu.index for job in self._overdue.values() for hold in job.holds)
        is_left = (
            is_left and gpu.index not in self._unkillable and gpu.index not in self._occupied_by_earlier_jobs
        )
        worse = self._new_errors(reading) if reading and not reading.error else self._new_fatal_xids(reading)
        if (reading is None or reading.error) and not worse:
            self._mark_bad(gpu, reading, now)
        elif worse and gpu.state is not GpuState.DRAINED:
            note = f"{worse}{BY_ITSELF}"
            self._mark(replace(gpu, state=GpuState.DRAINED, note=note, noted_at=now))
        elif reading and reading.obstacle:
            self._doubt(gpu, reading.obstacle, now)
        elif is_left and (gpu.state is GpuState.SUSPECT or gpu.index in self._lost):
            self._lost.discard(gpu.index)
            self._mark(replace(gpu, state=GpuState.OK, note="", noted_at=now))

    def _mark_bad(self, gpu: Gpu, reading: Reading | None, now: float) -> None:
        """Mark a GPU that did not answer or is lost."""
        error = reading.error if reading else "the driver does not list it"
        if reading and reading.is_lost and gpu.state in (GpuState.OK, GpuState.SUSPECT):
            self._lost.add(gpu.index)
            note = error if gpu.mig else f"it fell off the bus: {error}"
            self._mark(replace(gpu, state=GpuState.DOWN, note=note, noted_at=now))
        elif gpu.state is GpuState.OK:
            self._mark(replace(gpu, state=GpuState.SUSPECT, note=error, noted_at=now))

    def _doubt(self, gpu: Gpu, why: str, now: float) -> None:
        """Mark a GPU that answers as suspect; also one that was lost and is found again."""
        if gpu.state is GpuState.OK or gpu.index in self._lost:
            self._lost.discard(gpu.index)
            self._mark(replace(gpu, state=GpuState.SUSPECT, note=why, noted_at=now))

    def _new_errors(self, reading: Reading) -> str:
        """Return new memory errors since the last reading; an operator's resume acknowledges them."""
        errors, remap = self._health.get(reading.gpu, (reading.ecc or 0, ""))
        self._health[reading.gpu] = (reading.ecc or 0, reading.remap)
        if (reading.ecc or 0) > errors:
            return f"errors in its memory that could not be corrected: {reading.ecc}"
        if report := self._new_fatal_xids(reading):
            return report
        if reading.remap and reading.remap != remap:
            return f"rows of its memory are bad, and their replacement is {reading.remap}"
        return ""

    def _new_fatal_xids(self, reading: Reading | None) -> str:
        """Return the Xids since the last reading for which the GPU is drained."""
        fatal = [xid for xid in reading.xids if xid in self._fatal] if reading and not reading.is_lost else []
        return f"the driver told of Xid {', '.join(map(str, dict.fromkeys(fatal)))}" if fatal else ""

    def failed_since(self, indices: Iterable[int], since: float) -> bool:
        """Tell whether one of these GPUs was lost or drained after `since` (epoch seconds)."""
        for gpu in (self._gpus[index] for index in indices if index in self._gpus):
            is_sick = gpu.state is GpuState.DRAINED and gpu.note.endswith(BY_ITSELF)
            if (is_sick or gpu.index in self._lost) and gpu.noted_at >= since:
                return True
        return False

    def gpus_for_planning(self, now: float) -> tuple[Gpu, ...]:
        """Return the GPUs; none accepts jobs while memory of other processes is unknown."""
        if self.is_fresh(now):
            return self.gpus
        waiting = "waiting for the driver's answer"
        return tuple(replace(gpu, state=GpuState.SUSPECT, note=waiting) for gpu in self.gpus)

    # -- cleaning -------------------------------------------------------------------------------

    def begin_cleaning(self, job_id: int, now: float) -> None:
        """Begin to release a job's GPUs; a later reading must show none of its processes.

        Readings that were asked for after the end of an earlier attempt of the job do not count.
        """
        self._cleaning_since[job_id] = now
        self._looked_for -= {job_id}
        if any(job_id in jobs for jobs in self._asked_for):
            self._asked_for = deque(jobs - {job_id} for jobs in self._asked_for)

    @property
    def is_cleaning(self) -> bool:
        return bool(self._cleaning_since)

    @property
    def watched(self) -> frozenset[int]:
        """Return the ended jobs that still hold GPUs, or left processes on them."""
        return frozenset(self._cleaning_since) | {job for job, _ in self._overdue}

    def cleans(self, job_id: int) -> bool:
        """Tell whether the job's GPUs are not released yet."""
        return job_id in self._cleaning_since

    @property
    def overdue_attempts(self) -> tuple[Job, ...]:
        """Return the attempts that did not leave their GPUs in time; they ended long ago or run elsewhere."""
        return tuple(self._overdue.values())

    def cleaned(self, now: float) -> dict[int, bool]:
        """Return the jobs to release: True if their GPUs are clean, False after the time limit."""
        self._cleaning_since = {
            job: min(since, now) for job, since in self._cleaning_since.items()
        }  # it may be set back
        released = {job: True for job in self._cleaning_since if self._is_off(job)}
        late = {job: False for job, since in self._cleaning_since.items() if now - since > self._timeout}
        for job in (released := late | released):
            del self._cleaning_since[job]
        return released

    def _is_off(self, job: int) -> bool:
        """Tell whether a reading showed no GPU with the job, or there are no readings."""
        return not self.needs_cleaning or (job in self._looked_for and job not in self._still_listed)

    def near(self, holds: Iterable[Hold]) -> tuple[tuple[int, ...], ...]:
        """Return the CPUs near each of the GPUs; () if unknown."""
        return tuple(self._gpus[hold.gpu].cpus for hold in holds)

    def left_dirty(self, job: Job, now: float) -> None:
        """Mark the GPUs of a job whose processes did not leave in time as suspect."""
        self._overdue[job.id, job.attempt] = job
        for index in {hold.gpu for hold in job.holds} & self._gpus.keys():  # a GPU may have been removed
            if self._gpus[index].state is GpuState.OK:
                note = f"processes of job {job.id} have not left it"
                self._mark(replace(self._gpus[index], state=GpuState.SUSPECT, note=note, noted_at=now))

    def left_alive(self, job: Job, pid: int, now: float) -> None:
        """Mark GPUs that an unkillable process may use as suspect, until an operator resumes them."""
        note = f"process {pid} of job {job.id} {_LIVES_ON}"
        for index in {hold.gpu for hold in job.holds} & self._gpus.keys():
            self._unkillable.add(index)
            if self._gpus[index].state in (GpuState.OK, GpuState.SUSPECT):
                self._mark(replace(self._gpus[index], state=GpuState.SUSPECT, note=note, noted_at=now))

    def occupy(self, names: Collection[str] | None, note: str, now: float) -> None:
        """Keep new jobs off these GPUs (UUIDs or indices.

        None: all), because an earlier queue's jobs run there.
        """
        for gpu in self.gpus:
            is_meant = names is None or gpu.uuid in names or str(gpu.index) in names
            if is_meant and gpu.index not in self._returned_to_service:
                self._occupied_by_earlier_jobs[gpu.index] = note
                if gpu.state is GpuState.OK:
                    self._mark(replace(gpu, state=GpuState.SUSPECT, note=note, noted_at=now))

    def vacate(self, now: float) -> None:
        """Release the GPUs of an earlier queue's jobs."""
        occupied, self._occupied_by_earlier_jobs = self._occupied_by_earlier_jobs, {}
        for index, note in occupied.items():
            gpu = self._gpus[index]
            if gpu.state is GpuState.SUSPECT and gpu.note == note:
                self._mark(replace(gpu, state=GpuState.OK, note="", noted_at=now))

    # -- operators ------------------------------------------------------------------------------

    def drain(self, index: int, note: str, now: float) -> None:
        self._mark(replace(self._gpus[index], state=GpuState.DRAINED, note=note, noted_at=now))

    def resume(self, index: int, now: float) -> None:
        self._lost.discard(index)
        self._unkillable.discard(index)
        if self._occupied_by_earlier_jobs.pop(index, None):
            self._returned_to_service.add(index)
        self._mark(replace(self._gpus[index], state=GpuState.OK, note="", noted_at=now))

    def restore(self, marks: Mapping[str, tuple[GpuState, str, float]]) -> None:
        """Restore the marks by UUID that an earlier controller stored."""
        for gpu in self.gpus:
            state, note, at = marks.get(gpu.uuid, (GpuState.OK, "", 0.0))
            is_kept = state is GpuState.SUSPECT and note.endswith(_LIVES_ON)
            if is_kept:
                self._unkillable.add(gpu.index)
            if state is GpuState.DRAINED or is_kept:
                self._mark(replace(gpu, state=state, note=note, noted_at=at))

    def _mark(self, gpu: Gpu) -> None:
        self._gpus[gpu.index] = gpu
        self._changed_gpus[gpu.index] = gpu

    def changed(self) -> list[Gpu]:
        """Return the GPUs whose state has changed since the last call."""
        self._unsaved, self._changed_gpus = self._changed_gpus, {}
        return list(self._unsaved.values())

    def undone(self) -> None:
        """Undo the last call of `changed`, because its result was not stored."""
        self._changed_gpus = self._unsaved | self._changed_gpus


def with_known_gpus(inventory: gpus.Inventory, store: Store, sampler: gpus.AnySampler) -> gpus.Inventory:
    """Return the inventory; if the driver does not answer, that of the GPUs in the queue file, as suspect.

    The jobs on them continue, and pending jobs get the reason. The driver does not answer during its upgrade.
    """
    if not inventory.failed:
        return _with_known_indices(inventory, store, sampler)
    earlier = [remembered(gpu) for gpu in store.known_gpus() if gpu.uuid and not is_simulated(gpu.uuid)]
    known_gpus = tuple(
        _silent(gpu, inventory.note) for gpu in sampler.chosen(earlier) if gpu.total or inventory.gpus
    )
    if not any(gpu.total for gpu in known_gpus):
        return inventory
    sampler.watch(known_gpus)
    return replace(inventory, gpus=known_gpus, source=vendors.of_host().facts.source, is_sampled=True)


def _silent(gpu: Gpu, note: str) -> Gpu:
    """Return a known GPU as suspect. One that is only named stays down."""
    if not gpu.total:
        return replace(gpu, note=note)
    return replace(gpu, total=gpu.total + gpu.headroom, state=GpuState.SUSPECT, note=note)


def _with_known_indices(inventory: gpus.Inventory, store: Store, sampler: gpus.AnySampler) -> gpus.Inventory:
    """Return the inventory with the indices of MIG instances that the queue file names."""
    known_indices = settled(inventory.gpus, store.known_gpus(), store.held_gpus())
    if known_indices == inventory.gpus:
        return inventory
    sampler.watch(known_indices)
    return replace(inventory, gpus=known_indices)


# -- indices of MIG instances after a change of the layout -----------------------------------------


def settled(gpus: Sequence[Gpu], earlier: Iterable[Gpu], held_indices: Collection[int]) -> tuple[Gpu, ...]:
    """Return the GPUs with the indices by which the queue knows them.

    A MIG instance keeps its index, although the driver renumbers instances after a change. An instance that
    has jobs and no longer exists is included as DOWN, so that its jobs are ended.

    Args:
        earlier: the GPUs of the last controller.
        held_indices: indices of GPUs that jobs hold.
    """
    uuids = {gpu.uuid for gpu in gpus}
    before = [gpu for gpu in earlier if is_instance(gpu.uuid)]
    missing = [_gone(gpu) for gpu in before if gpu.uuid not in uuids and gpu.index in held_indices]
    index_of = {gpu.uuid: gpu.index for gpu in before if gpu.uuid in uuids}
    indices = (
        {gpu.index for gpu in gpus if not gpu.mig} | {gpu.index for gpu in missing} | set(index_of.values())
    )
    settled_gpus = []
    for gpu in gpus:
        index = index_of.get(gpu.uuid, gpu.index)
        while gpu.mig and gpu.uuid not in index_of and index in indices:
            index += 1
        indices.add(index)
        settled_gpus.append(replace(gpu, index=index))
    return tuple(sorted([*settled_gpus, *missing], key=lambda gpu: gpu.index))


def _gone(gpu: Gpu) -> Gpu:
    return replace(remembered(gpu), state=GpuState.DOWN, note=mig.GONE)


def remembered(gpu: Gpu) -> Gpu:
    """Return a GPU of the queue file; a MIG instance is known by its UUID and its name."""
    if not is_instance(gpu.uuid):
        return gpu
    return replace(gpu, mig=MigInstance(profile=mig.profile_of(gpu.model)), is_unit=True)


# -- the size of contexts -------------------------------------------------------------------------

_LEAST = 8 << 20  # bytes: a smaller context was queried while it was being made
_FAR = 4  # times the configured size: a larger one is no bare context, and would exclude small jobs for good


class ContextCosts:
    """Record the smallest measured size of a context on each GPU model.

    Larger measurements are ignored, because they can include other memory outside the hook, such as code.
    """

    def __init__(self, default: int) -> None:
        self.default = default  # bytes; 0: reserve nothing for contexts
        self._measured: dict[str, int] = {}  # model -> bytes

    def of(self, model: str) -> tuple[int, bool]:
        """Return the bytes to reserve for the contexts of a process on a GPU of this model.

        The second value tells whether they were measured. If not, the hook adds the stacks of threads.
        """
        measured = self._measured.get(model)
        return (self.default, False) if measured is None else (min(measured, _FAR * self.default), True)

    def smallest(self, models: Iterable[str]) -> int:
        """Return the bytes of the smallest of these models' contexts; 0: there are no models."""
        return min((self.of(model)[0] for model in models), default=0)

    def learn(self, model: str, size: int) -> None:
        """Take in that an idle process had `size` bytes that no call of it allocated."""
        if _LEAST <= size < self._measured.get(model, size + 1):
            self._measured[model] = size
            log.info("%s: a context costs %d bytes", model, size)
