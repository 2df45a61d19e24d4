"""The eligible pending jobs, grouped into job classes, in order."""

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice

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


class ClassQueue:
    """The jobs of one class. Its first job is kept up to date, so that a plan only examines that."""

    __slots__ = (
        *("_heap", "_since", "cpus", "first", "gpus", "host_memory", "kind", "memory", "share"),
        "standing",
    )

    def __init__(self, kind: JobClass, standing: float) -> None:
        self.kind = kind
        self.standing = standing  # priority without the part of the age
        self.first: tuple[float, int] = (0.0, 0)  # (begin of the wait, id) of the first job in order
        self._heap: list[tuple[float, int]] = []  # may contain jobs that are no longer pending
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
        copied._heap, copied._since = self._heap.copy(), self._since.copy()
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

    def remove(self, job_id: int) -> None:
        del self._since[job_id]
        self._tidy()

    def _tidy(self) -> None:
        """Ensure that the first entries are pending, and most entries of the heap too."""
        heap = self._heap
        while heap and not self._has(heap[0]):
            heappop(heap)
        if len(heap) > 2 * len(self._since) + 16:
            self._heap = heap = sorted((when, job_id) for job_id, when in self._since.items())
        if heap:
            self.first = heap[0]

    def _has(self, entry: tuple[float, int]) -> bool:
        when, job_id = entry
        return self._since.get(job_id) == when

    def since(self, job_id: int) -> float:
        return self._since[job_id]

    def in_order(self) -> Iterator[tuple[float, int]]:
        """Yield (eligible since, id) of each job in order. Works on a copy."""
        last: tuple[float, int] | None = None
        for entry in _popped(self._heap.copy()):
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
