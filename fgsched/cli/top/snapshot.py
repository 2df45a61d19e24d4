"""What fgtop shows: GPUs and jobs at one time, what jobs did since the last look, and their history.

Times are in seconds since the epoch, memory in bytes, SM shares from 0 to 1 of one whole GPU. A value that
was not measured is None.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from fgsched.domain.job import JobUsage
from fgsched.domain.states import JobState
from fgsched.protocol import GpuInfo, JobInfo, OnGpu
from fgsched.views import job as view
from fgsched.views.gpu import charged_gpus, memory_in_use, parts_of, sm_share

FIELDS = view.attributes(
    view.label,
    view.waited,
    view.time_left,
    "name user uid partition partition_place account priority state reason submitted_at gpus share memory",
    "gpu_type indices allocated usage now",
)
CLASSES = ("active", "held-idle", "reserved-empty", "charged", "free", "external", "down")
KEPT = 3600.0  # seconds of history
_COMPUTING = 100  # ten-thousandths of a GPU's compute time above which a job computes
_MEASURED = ("active", "held-idle", "reserved-empty")


class RecentUse(Struct, frozen=True):
    """The use of a job since the last look, or since its start if it was not seen before."""

    sm: float | None = None  # of all its GPUs together
    memory: float | None = None  # bytes, the mean on all its GPUs together
    parts: tuple[float, float, float] | None = None  # of its charge: active, held-idle, reserved-empty
    waited: float | None = None  # seconds that a pending job has waited since it was eligible

    @property
    def kind(self) -> str:
        """The class with the largest part; "charged" if nothing was measured."""
        if self.parts is None or not any(self.parts):
            return "charged"
        return _MEASURED[self.parts.index(max(self.parts))]


class Frame(Struct, frozen=True, kw_only=True):
    """The GPUs and jobs of one look."""

    at: float  # seconds since the epoch
    host: str
    gpus: Sequence[GpuInfo] = ()
    jobs: Sequence[JobInfo] = ()
    now: Mapping[int, RecentUse] = {}

    def of(self, job: JobInfo) -> RecentUse:
        """Return the use of a job since the last look."""
        return self.now.get(job.id, _NOTHING)

    def kind(self, job: JobInfo, gpu: int) -> str:
        """Return the class of a job on one of its GPUs."""
        return kinds(job).get(gpu) or self.of(job).kind

    def classes(self) -> dict[str, float]:
        """Return the number of GPUs in each time class; the sum is the number of GPUs."""
        sums = dict.fromkeys(CLASSES, 0.0)
        for info in self.gpus:
            for name, part in gpu_classes(self, info).items():
                sums[name] += part
        return sums

    @property
    def charged(self) -> float:
        """The number of charged GPUs, with the parts of jobs that the reader may not see."""
        return charged_gpus(self.gpus, self.jobs)


_NOTHING = RecentUse()


def kinds(job: JobInfo) -> dict[int, str]:
    """Return the classes of a job of several GPUs in the last look, by GPU.

    Empty for a job of one GPU, whose samples say more, and for a job without a process on any of its GPUs.
    """
    if len(job.allocated) < 2 or not any(look.memory or look.busy for look in job.now):
        return {}
    return {look.gpu: _kind(look) for look in job.now}


def _kind(look: OnGpu) -> str:
    if look.busy is not None and look.busy > _COMPUTING:
        return "active"
    if look.busy is None and look.memory:
        return "active"
    return "held-idle" if look.memory else "reserved-empty"


def gpu_classes(frame: Frame, info: GpuInfo) -> dict[str, float]:
    """Return the parts of one GPU by time class; they add up to 1."""
    parts = dict.fromkeys(CLASSES, 0.0)
    gpu_parts = parts_of(info, frame.jobs)
    for job, share in gpu_parts.jobs:
        now = frame.of(job)
        if kind := kinds(job).get(info.gpu.index):
            parts[kind] += share
        elif now.parts is None or not any(now.parts):
            parts["charged"] += share
        else:
            for name, part in zip(_MEASURED, now.parts, strict=True):
                parts[name] += part * share
    parts["charged"] += gpu_parts.hidden
    classes = max(0.0, 1.0 - sum(parts.values()))
    outside = min(classes, info.external / info.gpu.total) if info.gpu.total else 0.0
    if info.is_down:
        return parts | {"down": classes}
    return parts | {"external": outside, "free": classes - outside}


# -- history -------------------------------------------------------------------------------------------


class Point(NamedTuple):
    """One value of a history."""

    at: float  # seconds since the epoch
    sm: float | None
    memory: float | None  # bytes


class LookHistory:
    """The looks of the last hour."""

    def __init__(self) -> None:
        self.gpus: dict[int, deque[Point]] = {}  # by index
        self.jobs: dict[int, deque[Point]] = {}  # by id
        self._usages: dict[int, JobUsage] = {}
        self._now: dict[int, RecentUse] = {}

    def frame(self, gpus: Sequence[GpuInfo], jobs: Sequence[JobInfo], at: float, host: str) -> Frame:
        """Add a look, and return it with the use of each job since the previous look."""
        held = [job for job in jobs if job.state.holds]
        self._now = {job.id: self._since(job) for job in held}
        self._usages = {job.id: job.usage for job in held if job.usage is not None}
        for info in gpus:
            self._add(self.gpus, info.gpu.index, Point(at, sm_share(info, held), memory_in_use(info)))
        for job in held:
            self._add(self.jobs, job.id, Point(at, self._now[job.id].sm, self._now[job.id].memory))
        self.jobs = {job.id: self.jobs[job.id] for job in held}
        waiting = {job.id: _waiting(job, at) for job in jobs if job.state is JobState.PENDING}
        return Frame(at=at, host=host, gpus=gpus, jobs=jobs, now=waiting | self._now)

    def _since(self, job: JobInfo) -> RecentUse:
        usage = job.usage
        if usage is None:
            return _NOTHING
        before = self._usages.get(job.id)
        if before is not None and before.sampled == usage.sampled:
            return self._now.get(job.id, _NOTHING)
        return use_between(usage, before)

    def _add(self, where: dict[int, deque[Point]], key: int, point: Point) -> None:
        points = where.setdefault(key, deque())
        points.append(point)
        while points[0].at < point.at - KEPT:
            points.popleft()


def _waiting(job: JobInfo, at: float) -> RecentUse:
    since = job.eligible_at
    return RecentUse(waited=None if since is None else max(0.0, at - since))


def use_between(usage: JobUsage, before: JobUsage | None) -> RecentUse:
    """Return the use of a job between two sums; `before` None: since its start."""

    def since(name: str) -> float:
        return float(getattr(usage, name) - ((getattr(before, name) or 0.0) if before is not None else 0.0))

    seconds, charged = since("sampled"), since("charged")
    if seconds <= 0:
        return _NOTHING
    parts = tuple(
        max(0.0, since(name)) / charged if charged > 0 else 0.0 for name in ("active", "held", "empty")
    )
    sm = None if usage.used is None else since("used") / seconds
    return RecentUse(sm, since("memory") / seconds, (parts[0], parts[1], parts[2]))


def means(points: Iterable[Point], since: float, until: float, cells: int, name: str) -> list[float | None]:
    """Return the mean of `name` ("sm" or "memory") in each of `cells` equal spans; None: no value.

    `since` and `until` are in epoch seconds.
    """
    sums = [[0.0, 0] for _ in range(cells)]
    for point in points:
        value = getattr(point, name)
        if value is not None and since < point.at <= until:
            cell = sums[min(cells - 1, int((point.at - since) / (until - since) * cells))]
            cell[0] += value
            cell[1] += 1
    return [total / count if count else None for total, count in sums]
