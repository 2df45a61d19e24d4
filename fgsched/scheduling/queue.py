"""The eligible pending jobs, grouped into job classes, in order."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush, merge
from itertools import islice
from typing import TypeVar

from msgspec import Struct

from fgsched.domain.job import Demand
from fgsched.scheduling.limits import NO_OWNER, LimitedUser
from fgsched.scheduling.priority import JobClass, PriorityBasis


class QueuedJob(Struct, frozen=True, gc=False):
    """A pending job as the planner sees it."""

    id: int
    demand: Demand
    time_limit: int = 0  # seconds; 0: none
    count: int = 1  # tasks of an array that may start; each is a Start with this id
    partitions: tuple[str, ...] = ("main",)
    who: LimitedUser = NO_OWNER
    nice: int = 0
    since: float = 0.0  # begin of the wait, in seconds since the epoch
    reservation: str = ""  # the operator's reservation of the job

    @property
    def kind(self) -> JobClass:
        return JobClass(self.demand, self.time_limit, self.partitions, self.who, self.nice, self.reservation)


Value = TypeVar("Value")


def joined(first: dict[int, Value], other: dict[int, Value]) -> dict[int, Value]:
    """Return one of the dicts with all entries. Nothing is copied if the first one is empty."""
    if not first:
        return other
    first.update(other)
    return first


class _Run:
    """Jobs that were added at once, in order. It takes a fifth of the memory of entries in a heap."""

    __slots__ = ("_at", "_ids", "_times")

    def __init__(self, waits: Mapping[int, float]) -> None:
        """Take {id: begin of the wait}."""
        self._ids, self._times, self._at = [*waits], [*waits.values()], 0
        if self._times != sorted(self._times):
            entries = sorted(zip(self._times, self._ids, strict=True))
            self._times, self._ids = [when for when, _ in entries], [job_id for _, job_id in entries]

    @property
    def first(self) -> tuple[float, int] | None:
        """The first entry; None if there is none."""
        return (self._times[self._at], self._ids[self._at]) if self._at < len(self._ids) else None

    def drop_first(self) -> None:
        self._at += 1

    def copy(self) -> "_Run":
        """Return an independent run. The lists do not change, and are shared."""
        if self._at >= len(self._ids):
            return _EMPTY
        copied = _Run.__new__(_Run)
        copied._ids, copied._times, copied._at = self._ids, self._times, self._at
        return copied

    def __iter__(self) -> Iterator[tuple[float, int]]:
        """Yield the present entries; what is dropped meanwhile is included."""
        for at in range(self._at, len(self._ids)):
            yield self._times[at], self._ids[at]


_EMPTY = _Run({})  # it is never changed: a run has all its jobs from the start


class ClassQueue:
    """The jobs of one class. Its first job is kept up to date, so that a plan only examines that."""

    __slots__ = (
        *("_heap", "_run", "_since", "cpus", "first", "gpus", "host_memory", "kind", "memory", "share"),
        "standing",
    )

    def __init__(self, kind: JobClass, standing: float) -> None:
        self.kind = kind
        self.standing = standing  # priority without the part of the age
        self.first: tuple[float, int] = (0.0, 0)  # (begin of the wait, id) of the first job in order
        self._heap: list[tuple[float, int]] = []  # may contain jobs that are no longer pending
        self._run = _EMPTY  # the same, of further jobs
        self._since: dict[int, float] = {}  # of the pending entries
        demand = kind.demand
        self.gpus = demand.gpus
        self.share = demand.share or 1  # ten-thousandths of each GPU; at least 1
        self.memory = demand.memory
        self.cpus, self.host_memory = demand.cpus, demand.host_memory

    def __len__(self) -> int:
        return len(self._since)

    def copy(self) -> "ClassQueue":
        copied = ClassQueue.__new__(ClassQueue)  # a queue may have thousands, which are copied at once
        copied.kind, copied.standing, copied.first = self.kind, self.standing, self.first
        copied.gpus, copied.share, copied.memory = self.gpus, self.share, self.memory
        copied.cpus, copied.host_memory = self.cpus, self.host_memory
        copied._heap, copied._run, copied._since = self._heap.copy(), self._run.copy(), self._since.copy()
        return copied

    @property
    def ids(self) -> Iterable[int]:
        return self._since.keys()

    def add(self, job_id: int, since: float) -> None:
        """Add a job that waits since `since`, in seconds since the epoch."""
        if self._since.get(job_id) != since:
            self._since[job_id] = since
            heappush(self._heap, (since, job_id))
            self._tidy()  # the job may have another entry

    def extend(self, waits: dict[int, float]) -> None:
        """Add new jobs: {id: begin of the wait}. The dict is not used by the caller any more."""
        if self._run.first is None:
            self._run = _Run(waits)
        else:
            self._heap += zip(waits.values(), waits.keys(), strict=True)
            self._heap.sort()  # a sorted list is a heap, and new jobs are mostly in order
        self._since = joined(self._since, waits)
        self._tidy()

    def remove(self, job_id: int) -> None:
        del self._since[job_id]
        self._tidy()

    def _tidy(self) -> None:
        """Ensure that the first entries are pending, and most entries of the heap too."""
        heap = self._heap
        while heap and not self._has(heap[0]):
            heappop(heap)
        while (head := self._run.first) is not None and not self._has(head):
            self._run.drop_first()
        if len(heap) > 2 * len(self._since) + 16:
            self._heap = heap = sorted((when, job_id) for job_id, when in self._since.items())
        if heap:
            self.first = heap[0] if head is None else min(head, heap[0])
        elif head is not None:
            self.first = head

    def _has(self, entry: tuple[float, int]) -> bool:
        when, job_id = entry
        return self._since.get(job_id) == when

    def since(self, job_id: int) -> float:
        return self._since[job_id]

    def in_order(self) -> Iterator[tuple[float, int]]:
        """Yield (eligible since, id) of each job in order. Works on a copy."""
        last: tuple[float, int] | None = None
        for entry in merge(self._run, _popped(self._heap.copy())):
            if entry != last and self._has(entry):
                yield entry
            last = entry


def _popped(heap: list[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    """Yield the entries of a heap in order, and remove them."""
    while heap:
        yield heappop(heap)


class Queue:
    """Every eligible pending job, by class."""

    def __init__(self, jobs: Iterable[QueuedJob] = (), order: PriorityBasis | None = None) -> None:
        self.order = order or PriorityBasis()
        self._groups: dict[JobClass, ClassQueue] = {}
        self._group_of: dict[int, ClassQueue] = {}
        self.claims: Counter[JobClass] = Counter()  # room claims of each class, in order
        self._counts: dict[int, int] = {}  # of entries that represent several jobs
        for job in jobs:
            self.add(job)

    def copy(self) -> "Queue":
        """Return an independent queue with the present jobs."""
        copied = Queue(order=self.order)
        copied._groups = {kind: group.copy() for kind, group in self._groups.items()}
        for group in copied._groups.values():
            copied._group_of.update(dict.fromkeys(group.ids, group))
        copied.claims, copied._counts = self.claims.copy(), self._counts.copy()
        return copied

    def __len__(self) -> int:
        return len(self._group_of)

    def __contains__(self, job_id: int) -> bool:
        return job_id in self._group_of

    @property
    def kinds(self) -> int:
        return len(self._groups)

    @property
    def groups(self) -> Iterable[ClassQueue]:
        return self._groups.values()

    def counts(self, most: int) -> list[tuple[JobClass, int]]:
        """Return at most `most` classes with the number of their jobs."""
        more: Counter[JobClass] = Counter()
        for job_id, count in self._counts.items():
            more[self._group_of[job_id].kind] += count - 1
        return [(kind, len(group) + more[kind]) for kind, group in islice(self._groups.items(), most)]

    def reorder(self, order: PriorityBasis) -> None:
        """Use another order from now on."""
        self.order = order
        for group in self._groups.values():
            group.standing = order.standing(group.kind)

    def add(self, job: QueuedJob) -> None:
        """Add a job, or update its request."""
        kind = job.kind
        before = self._group_of.get(job.id)
        if before is not None and before.kind != kind:
            self._take_out(job.id, before)
        group = self._group(kind)
        group.add(job.id, job.since)
        self._group_of[job.id] = group
        if job.count > 1:
            self._counts[job.id] = job.count
        else:
            self._counts.pop(job.id, None)

    def extend(self, kind: JobClass, waits: dict[int, float]) -> None:
        """Add new jobs of one class: {id: begin of the wait}. The dict is not used by the caller any more."""
        group = self._group(kind)
        self._group_of = joined(self._group_of, dict.fromkeys(waits, group))
        group.extend(waits)

    def _group(self, kind: JobClass) -> ClassQueue:
        group = self._groups.get(kind)
        if group is None:
            group = self._groups[kind] = ClassQueue(kind, self.order.standing(kind))
        return group

    def remove(self, job_id: int) -> None:
        group = self._group_of.pop(job_id, None)
        if group is not None:
            self._take_out(job_id, group)
        self._counts.pop(job_id, None)

    def _take_out(self, job_id: int, group: ClassQueue) -> None:
        group.remove(job_id)
        if not group:
            del self._groups[group.kind]

    def count(self, job_id: int) -> int:
        """Return how many jobs an entry represents."""
        return self._counts.get(job_id, 1)

    def entry(self, job_id: int) -> QueuedJob | None:
        """Return a pending job as it was added, or None."""
        group = self._group_of.get(job_id)
        if group is None:
            return None
        demand, time_limit, partitions, who, nice, reservation = group.kind
        return QueuedJob(
            job_id,
            demand,
            time_limit,
            self.count(job_id),
            partitions=partitions,
            who=who,
            nice=nice,
            since=group.since(job_id),
            reservation=reservation,
        )

    def kind(self, job_id: int) -> JobClass | None:
        group = self._group_of.get(job_id)
        return group.kind if group else None
