"""Sum up looks at the GPUs: their minutes, owners, foreign processes and demand, and the use of each job.

A look describes the time since the previous look. If that time is longer than three intervals, it is recorded
as a gap instead. Times are measured with the monotonic clock, so setting the wall clock changes no sum; the
wall clock only selects the minute. This module reads no clock and does no I/O.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from fgsched.accounting.messages import Sample
from fgsched.accounting.records import (
    DRIVER,
    ForeignUse,
    Gap,
    GpuUseRecord,
    HealthEvent,
    JobSample,
    Minute,
    Owner,
    OwnerUse,
    WaitingRecord,
)
from fgsched.domain.job import WHOLE, JobUsage
from fgsched.domain.times import MINUTE


class ProcessLook(Struct, frozen=True, kw_only=True, gc=False):
    """A process on a GPU."""

    pid: int
    memory: int = 0  # bytes
    busy: int | None = None  # ten-thousandths of the GPU's compute time since the last look; None: unknown
    job: int | None = None  # to which it belongs; None: to no job that runs
    user: str = ""  # of a foreign process
    command: str = ""  # of a foreign process
    has_ended: bool = False


class GpuLook(Struct, frozen=True, kw_only=True):
    """A GPU."""

    uuid: str
    size: int  # bytes for jobs
    used: int = 0  # bytes
    foreign: int = 0  # bytes of processes that belong to no job
    processes: tuple[ProcessLook, ...] = ()
    state: str = "ok"  # another one: it is down for new jobs
    why: str = ""  # reason of another state
    utilisation: int | None = None  # percent
    temperature: int | None = None  # degrees Celsius
    energy: int | None = None  # millijoules, of a counter
    throttled: tuple[str, ...] | None = None
    ecc: int | None = None  # errors that could not be corrected
    xids: tuple[int, ...] = ()
    remap: str = ""


class JobLook(Struct, frozen=True, kw_only=True):
    """A job that holds GPUs."""

    id: int
    owner: Owner
    started_at: float  # epoch seconds
    charged: Mapping[str, int]  # UUID -> ten-thousandths of the GPU
    is_ending: bool = False  # its processes have ended


class Waiting(Struct, frozen=True, kw_only=True, gc=False):
    """Pending jobs that wait for the same thing."""

    reason: str
    lacking: str
    model: str
    jobs: int
    share: int  # ten-thousandths of GPUs that they ask for together


class Look(Struct, frozen=True, kw_only=True):
    """Everything that one look shows."""

    wall: float  # epoch seconds
    clock: float  # monotonic seconds
    gpus: tuple[GpuLook, ...] = ()
    jobs: tuple[JobLook, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    error: str = ""  # why there is no look
    driver: str = ""  # version of the driver; "": unknown


COMPUTING = 100  # ten-thousandths of a GPU's compute time above which a process computes
_LOST = 3.0  # intervals between two looks after which the time between them is a gap
_TICK = 0.001  # seconds
_STEP = 120.0  # seconds by which the wall clock may be behind before it counts as set back
_NEIGHBOURS = 64  # of a job, that are kept
_HEALTH = ("heat", "hardware")  # limits of a clock that are events
_LONGEST_REASON = 300  # characters
STOPPED = "the controller did not run"
SILENT = "the driver did not answer"
LATE = "no samples were taken"
FORWARD = "the clock was set forward, or the host was suspended"

# -- one GPU in one look ------------------------------------------------------------------------------


class JobPart(NamedTuple):
    """The use of one GPU by one job since the last look."""

    job: JobLook
    charged: float  # of the GPU
    kind: str  # "active", "held" or "empty"
    used: float | None  # of the GPU's compute time; None: not measured
    memory: int  # bytes
    energy: float | None  # joules
    has_process: bool
    part: float  # of the time in which the job was there


class ForeignPart(NamedTuple):
    """The use of one GPU by one foreign process since the last look."""

    user: str
    command: str
    pid: int
    memory: int  # bytes
    used: float  # of the GPU's compute time


class GpuLookPart(NamedTuple):
    """The use of one GPU since the last look."""

    gpu: GpuLook
    jobs: tuple[JobPart, ...]
    foreign: tuple[ForeignPart, ...]
    energy: float | None  # joules


Group = int | tuple[str, str]  # a job, or user and command of foreign processes


def divided(gpu: GpuLook, jobs: Iterable[tuple[JobLook, float, str]], energy: float | None) -> GpuLookPart:
    """Divide the use of a GPU among its jobs and foreign processes.

    Args:
        jobs: the jobs that hold a part of it, with the part of the time in which each was there, and with
            its class in the look before.
        energy: joules since the last look; None: not measured.
    """
    holders = list(jobs)
    groups = _groups(gpu.processes, [job for job, _, _ in holders])
    shares = _shares(gpu, groups)
    charged = {job.id: job.charged[gpu.uuid] / WHOLE * part for job, part, _ in holders}
    scale = 1 / max(1.0, sum(charged.values()))  # shares and memory of several jobs may exceed the GPU
    weights = shares if any(shares.values()) else _by_charge(gpu, groups, charged)
    parts = []
    for job, part, before in holders:
        process_looks, used = groups.get(job.id, []), shares.get(job.id)
        kind = _kind(process_looks, used, gpu)
        parts.append(
            JobPart(
                job=job,
                charged=charged[job.id] * scale,
                kind=before if job.is_ending and kind == "empty" else kind,
                used=used if process_looks and gpu.utilisation is None else used or 0.0,
                memory=sum(process_look.memory for process_look in process_looks),
                energy=_energy(energy, job.id, weights),
                has_process=any(not process_look.has_ended for process_look in process_looks),
                part=part,
            )
        )
    return GpuLookPart(gpu, tuple(parts), tuple(_foreign(groups, shares)), energy)


def _groups(processes: Iterable[ProcessLook], jobs: list[JobLook]) -> dict[Group, list[ProcessLook]]:
    """Return the processes of each job and of each foreign user and command.

    An ended process of unknown origin belongs to the job of a GPU that has only one.
    """
    groups: dict[Group, list[ProcessLook]] = {}
    for process in processes:
        if process.job is not None:
            groups.setdefault(process.job, []).append(process)
        elif process.user or not process.has_ended:
            groups.setdefault((process.user, process.command), []).append(process)
        elif len(jobs) == 1:
            groups.setdefault(jobs[0].id, []).append(process)
    return groups


def _shares(gpu: GpuLook, groups: Mapping[Group, list[ProcessLook]]) -> dict[Group, float]:
    """Return the part of the compute time of each group; a group whose part is unknown is left out."""
    parts = {
        group: sum(process.busy or 0 for process in processes_of_group) / WHOLE
        for group, processes_of_group in groups.items()
        if any(process.busy is not None for process in processes_of_group)
    }
    if not parts and groups and gpu.utilisation is not None:
        parts = dict.fromkeys(groups, gpu.utilisation / 100 / len(groups))
    total = max(1.0, sum(parts.values()))
    return {group: share / total for group, share in parts.items()}


def _kind(processes: list[ProcessLook], used: float | None, gpu: GpuLook) -> str:
    """Return the class of a job's charged share. A process whose use cannot be measured counts as active."""
    if used is not None and used * WHOLE > COMPUTING:
        return "active"
    if all(process.has_ended for process in processes):
        return "empty"
    return "active" if used is None and gpu.utilisation is None else "held"


def _by_charge(
    gpu: GpuLook, groups: Mapping[Group, list[ProcessLook]], charged: Mapping[int, float]
) -> dict[Group, float]:
    """Return weights of the jobs with processes where no compute time is measured."""
    if gpu.utilisation is not None or any(
        process_look.busy is not None for group in groups.values() for process_look in group
    ):
        return {}
    return {job: share for job, share in charged.items() if job in groups}


def _energy(energy: float | None, job: int, weights: Mapping[Group, float]) -> float | None:
    if energy is None:
        return None
    total = sum(weights.values())
    return energy * weights.get(job, 0.0) / total if total else 0.0


def _foreign(
    groups: Mapping[Group, list[ProcessLook]], shares: Mapping[Group, float]
) -> Iterator[ForeignPart]:
    for group, process_looks in groups.items():
        if isinstance(group, tuple):
            whole = sum(process_look.busy or 0 for process_look in process_looks)
            for look in process_looks:
                part = (look.busy or 0) / whole if whole else 1 / len(process_looks)
                yield ForeignPart(*group, look.pid, look.memory, shares.get(group, 0.0) * part)


# -- sums ----------------------------------------------------------------------------------------------


class _Sum(Struct):
    """Sums of a GPU, of a job on a GPU, or of foreign processes; not every field is used by each."""

    seconds: float = 0.0
    classes: dict[str, float] = {}
    packed: float = 0.0
    used: float = 0.0
    memory: float = 0.0
    foreign: float = 0.0
    peak: int = 0
    jobs: int = 0
    temperature: int | None = None
    energy: float | None = None
    throttled: float = 0.0
    since: float = 0.0
    until: float = 0.0

    def count(self, kind: str, seconds: float) -> None:
        self.classes[kind] = self.classes.get(kind, 0.0) + seconds

    def heat(self, energy: float | None) -> None:
        if energy is not None:
            self.energy = (self.energy or 0.0) + energy


class _MinuteSums:
    """The sums of one minute."""

    def __init__(self, at: int) -> None:
        self.at = at  # epoch seconds
        self._gpus: dict[str, _Sum] = {}
        self._owners: dict[tuple[str, int, Owner], _Sum] = {}
        self._foreign: dict[tuple[str, str, str, int], list[_Sum]] = {}  # the times of each process
        self._demand: dict[tuple[str, str, str], list[float]] = {}  # seconds, jobs x s, GPUs x s, most

    def add(
        self,
        parts: Iterable[GpuLookPart],
        waiting: Iterable[Waiting],
        since: float,
        seconds: float,
        part: float,
    ) -> None:
        """Add `seconds` of this minute from `since`, in epoch seconds.

        `part`: their share of the time since the last look.
        """
        for look_part in parts:
            self._add_gpu(look_part, seconds, part)
            for job in look_part.jobs:
                self._add_job(look_part.gpu.uuid, job, seconds, part)
            for foreign in look_part.foreign:
                self._add_foreign(look_part.gpu.uuid, foreign, since, seconds)
        for kind in waiting:
            sums = self._demand.setdefault((kind.reason, kind.lacking, kind.model), [0.0, 0.0, 0.0, 0])
            sums[0] += seconds
            sums[1] += seconds * kind.jobs
            sums[2] += seconds * kind.share / WHOLE
            sums[3] = max(sums[3], kind.jobs)

    def _add_gpu(self, look: GpuLookPart, seconds: float, part: float) -> None:
        gpu, sums = look.gpu, self._gpus.setdefault(look.gpu.uuid, _Sum())
        sums.seconds += seconds
        for job in look.jobs:
            sums.count(job.kind, seconds * job.charged)
            sums.used += seconds * (job.used or 0.0)
        uncharged = max(0.0, 1.0 - sum(job.charged for job in look.jobs))
        external = min(uncharged, gpu.foreign / max(1, gpu.size)) if gpu.state == "ok" else 0.0
        sums.count("external", seconds * external)
        sums.count("free" if gpu.state == "ok" else "down", seconds * (uncharged - external))
        sums.packed += seconds * max((job.part for job in look.jobs), default=0.0)
        sums.used += seconds * sum(foreign.used for foreign in look.foreign)
        sums.memory += seconds * gpu.used
        sums.foreign += seconds * gpu.foreign
        sums.peak = max(sums.peak, gpu.used)
        sums.jobs = max(sums.jobs, len(look.jobs))
        if gpu.temperature is not None:
            sums.temperature = max(gpu.temperature, sums.temperature or gpu.temperature)
        sums.heat(None if look.energy is None else look.energy * part)
        sums.throttled += seconds if gpu.throttled else 0.0

    def _add_job(self, uuid: str, job: JobPart, seconds: float, part: float) -> None:
        sums = self._owners.setdefault((uuid, job.job.id, job.job.owner), _Sum())
        sums.count(job.kind, seconds * job.charged)
        sums.used += seconds * (job.used or 0.0)
        sums.memory += seconds * job.memory * job.part
        sums.peak = max(sums.peak, job.memory)
        sums.heat(None if job.energy is None else job.energy * part)

    def _add_foreign(self, uuid: str, foreign: ForeignPart, since: float, seconds: float) -> None:
        times = self._foreign.setdefault((uuid, foreign.user, foreign.command, foreign.pid), [])
        if not times or since > times[-1].until + _TICK:
            times.append(_Sum(since=since))
        sums = times[-1]
        sums.until = since + seconds
        sums.seconds += seconds
        sums.memory += seconds * foreign.memory
        sums.peak = max(sums.peak, foreign.memory)
        sums.used += seconds * foreign.used

    def record(self) -> Minute:
        """Return the minute for the accounts."""
        return Minute(
            at=self.at,
            gpus=tuple(self._gpu(uuid, sums) for uuid, sums in self._gpus.items()),
            owners=tuple(self._owner(*key, sums) for key, sums in self._owners.items()),
            foreign=tuple(
                ForeignUse(
                    at=self.at,
                    uuid=uuid,
                    user=user,
                    command=command,
                    pid=pid,
                    since=sums.since,
                    until=sums.until,
                    seconds=sums.seconds,
                    memory=sums.memory,
                    peak=sums.peak,
                    used=sums.used,
                )
                for (uuid, user, command, pid), times in self._foreign.items()
                for sums in times
            ),
            demand=tuple(
                WaitingRecord(
                    at=self.at,
                    reason=reason,
                    lacking=lacking,
                    model=model,
                    seconds=seconds,
                    job_seconds=jobs,
                    gpu_seconds=gpus,
                    most=int(most),
                )
                for (reason, lacking, model), (seconds, jobs, gpus, most) in self._demand.items()
            ),
        )

    def _gpu(self, uuid: str, sums: _Sum) -> GpuUseRecord:
        return GpuUseRecord(
            at=self.at,
            uuid=uuid,
            sampled=sums.seconds,
            packed=sums.packed,
            used=sums.used,
            memory=sums.memory,
            foreign=sums.foreign,
            peak=sums.peak,
            jobs=sums.jobs,
            temperature=sums.temperature,
            energy=sums.energy,
            throttled=sums.throttled,
            **sums.classes,
        )

    def _owner(self, uuid: str, job: int, owner: Owner, sums: _Sum) -> OwnerUse:
        return OwnerUse(
            at=self.at,
            owner=owner,
            uuid=uuid,
            job=job,
            charged=sum(sums.classes.values()),
            used=sums.used,
            memory=sums.memory,
            peak=sums.peak,
            energy=sums.energy,
            **sums.classes,
        )


class _JobSums:
    """The sums of one job over its GPUs and attempts."""

    def __init__(self, usage: JobUsage | None) -> None:
        """Begin with the sums that an earlier controller stored; None: there are none."""
        self._before = usage
        self._sums = _Sum()
        self._is_measured = usage is None or usage.used is not None
        self._with_process = self._busy = self._idle = self._longest = 0.0
        self._first: float | None = usage.first_process if usage else None
        self._neighbours: dict[int, float] = dict(usage.neighbours) if usage else {}
        self._attempt: float | None = None  # its begin, in epoch seconds

    def add(self, parts: list[JobPart], others: Iterable[int], seconds: float, wall: float) -> None:
        """Add the job's use of its GPUs in the last `seconds` of real time. `wall` in epoch seconds."""
        active_seconds = seconds * max(part.part for part in parts)
        sums = self._sums
        if parts[0].job.started_at != self._attempt:  # a stretch without work ends with an attempt
            self._attempt, self._idle = parts[0].job.started_at, 0.0
        sums.seconds += active_seconds
        for part in parts:
            sums.count(part.kind, seconds * part.charged)
            sums.used += seconds * (part.used or 0.0)
            self._is_measured &= part.used is not None
            sums.memory += seconds * part.memory * part.part
            sums.peak = max(sums.peak, part.memory)
            sums.heat(part.energy)
        if any(part.has_process for part in parts):
            self._with_process += active_seconds
            if self._first is None:
                self._first = max(0.0, wall - parts[0].job.started_at)
        if any(part.kind == "active" for part in parts):
            self._busy, self._idle = self._busy + active_seconds, 0.0
        else:
            self._idle += active_seconds
            self._longest = max(self._longest, self._idle)
        for other in others:
            self._neighbours[other] = self._neighbours.get(other, 0.0) + active_seconds

    def interrupt(self) -> None:
        """End the stretch without work at a time without samples: it is not known to continue over it."""
        self._idle = 0.0

    def usage(self, read: int = 0, written: int = 0) -> JobUsage:
        """Return the sums; `read` and `written` in bytes."""
        sums, old = self._sums, self._before or _NOTHING
        kinds = {
            kind: sums.classes.get(kind, 0.0) + getattr(old, kind) for kind in ("active", "held", "empty")
        }
        energies = [item for item in (sums.energy, old.energy) if item is not None]
        longest = sorted(self._neighbours.items(), key=lambda item: -item[1])[:_NEIGHBOURS]
        return JobUsage(
            sampled=sums.seconds + old.sampled,
            charged=sum(kinds.values()),
            used=sums.used + (old.used or 0.0) if self._is_measured else None,
            memory=sums.memory + old.memory,
            peak=max(sums.peak, old.peak),
            with_process=self._with_process + old.with_process,
            busy=self._busy + old.busy,
            longest_idle=max(self._longest, old.longest_idle),
            first_process=self._first,
            energy=sum(energies) if energies else None,
            read=read,
            written=written,
            neighbours=tuple(sorted(longest)),
            **kinds,
        )


_NOTHING = JobUsage(
    sampled=0.0,
    charged=0.0,
    active=0.0,
    held=0.0,
    empty=0.0,
    used=0.0,
    memory=0.0,
    peak=0,
    with_process=0.0,
    busy=0.0,
    longest_idle=0.0,
)

# -- looks in their order ------------------------------------------------------------------------------


class Samples:
    """The sums of all looks. `look` adds one look after the other, and returns completed records."""

    def __init__(self, interval: float, since: float | None = None) -> None:
        """Begin without a look.

        Args:
            interval: seconds between two looks.
            since: epoch seconds until which the accounts have samples; None: there are none.
        """
        self.interval = interval
        self._last: Look | None = None
        self._lost = False  # the driver did not answer since the last look
        self._until = since or 0.0  # epoch seconds up to which time was counted
        self._stored = int((since - _TICK) // MINUTE) * MINUTE if since else -MINUTE  # last minute
        self._begun = since is None
        self._minute: _MinuteSums | None = None
        self._jobs: dict[int, _JobSums] = {}
        self._known: dict[int, JobUsage] = {}
        self._kinds: dict[tuple[int, str], str] = {}  # (job, GPU) -> class in the last look
        self._pids: dict[int, ProcessLook] = {}  # processes of the last look

    def restore(self, job: int, usage: JobUsage) -> None:
        """Continue the sums of a job that an earlier controller has begun."""
        self._known[job] = usage

    def usage(self, job: int) -> JobUsage | None:
        """Return the sums of a job's samples up to now; None: there are none."""
        job_sums = self._jobs.get(job)
        return job_sums.usage() if job_sums else self._known.get(job)

    def end(self, job: int, *, read: int = 0, written: int = 0) -> list[JobSample]:
        """Return the sums of a job that has ended, and forget it; `read` and `written` in bytes."""
        job_usage, job_sums = self._known.pop(job, None), self._jobs.pop(job, None)
        if job_sums is None and job_usage is None:
            return []
        return [JobSample(job=job, usage=(job_sums or _JobSums(job_usage)).usage(read, written))]

    def look(self, look: Look) -> list[Sample]:
        """Add a look; return the records that it completes."""
        if look.error:
            self._lost = True
            return []
        last, self._last = self._last, look
        samples: list[Sample] = []
        if last is None:
            samples += [*self._first(look), *_first_events(look, is_continued=not self._begun)]
        else:
            samples += _events(last, look)
            samples += self._counted(last, look)
        self._lost = False
        self._pids = {
            process.pid: process for gpu in look.gpus for process in gpu.processes if not process.has_ended
        }
        return samples

    def finish(self) -> list[Sample]:
        """Return the records of the incomplete minute. For the end of the controller."""
        return [*self._flush(), *self._samples(self._jobs)]

    def _first(self, look: Look) -> list[Sample]:
        since, self._until = self._until, look.wall
        if self._begun or look.wall - since <= _LOST * self.interval:
            return []
        return [Gap(since=since, until=look.wall, why=STOPPED)]

    def _counted(self, last: Look, look: Look) -> list[Sample]:
        """Count the time since the last look, or record it as a gap."""
        seconds = look.clock - last.clock
        if seconds <= 0:
            return []
        if seconds > _LOST * self.interval:
            since, self._until = self._until, look.wall
            for sums in self._jobs.values():
                sums.interrupt()
            return [Gap(since=min(since, look.wall), until=look.wall, why=SILENT if self._lost else LATE)]
        parts = [self._part(gpu, last, look, seconds) for gpu in look.gpus]
        self._add_jobs(parts, seconds, look.wall)
        return self._add_minutes(parts, look, seconds)

    def _part(self, gpu: GpuLook, last: Look, look: Look, seconds: float) -> GpuLookPart:
        processes = tuple(self._recognised(process) for process in gpu.processes)
        jobs = [
            (job, _part_of(job, look.wall, seconds), self._kinds.get((job.id, gpu.uuid), "empty"))
            for job in look.jobs
            if gpu.uuid in job.charged
        ]
        before = next((gpu_look.energy for gpu_look in last.gpus if gpu_look.uuid == gpu.uuid), None)
        gpu_part = divided(_with(gpu, processes), jobs, _consumed(before, gpu.energy))
        for part in gpu_part.jobs:
            self._kinds[part.job.id, gpu.uuid] = part.kind
        return gpu_part

    def _recognised(self, process: ProcessLook) -> ProcessLook:
        """Return an ended process with the job or the user that it had in the last look."""
        before = self._pids.get(process.pid) if process.has_ended and process.job is None else None
        if before is None:
            return process
        return ProcessLook(
            pid=process.pid,
            busy=process.busy,
            job=before.job,
            user=before.user,
            command=before.command,
            has_ended=True,
        )

    def _add_jobs(self, parts: Iterable[GpuLookPart], seconds: float, wall: float) -> None:
        parts_of_job: dict[int, list[JobPart]] = {}
        others: dict[int, set[int]] = {}
        for gpu in parts:
            ids = {part.job.id for part in gpu.jobs}
            for part in gpu.jobs:
                parts_of_job.setdefault(part.job.id, []).append(part)
                others.setdefault(part.job.id, set()).update(ids)
        for job, job_parts in parts_of_job.items():
            if job not in self._jobs:
                self._jobs[job] = _JobSums(self._known.pop(job, None))
            self._jobs[job].add(job_parts, others[job] - {job}, seconds, wall)
        self._kinds = {key: kind for key, kind in self._kinds.items() if key[0] in parts_of_job}

    def _add_minutes(self, parts: list[GpuLookPart], look: Look, seconds: float) -> list[Sample]:
        samples: list[Sample] = []
        begin = look.wall - seconds
        if look.wall < self._until - _STEP:  # the clock was set back
            self._until = begin
        elif begin > self._until + _STEP and self._until:
            samples.append(Gap(since=self._until, until=begin, why=FORWARD))
        begin = max(begin, self._until)
        for at, length in _pieces(begin, look.wall):
            if at <= self._stored:
                continue  # the accounts have this minute
            if self._minute is None or self._minute.at != at:
                samples += self._flush()
                self._minute = _MinuteSums(at)
            self._minute.add(parts, look.waiting, max(begin, float(at)), length, length / seconds)
        self._until = max(self._until, look.wall)
        return samples

    def _flush(self) -> list[Sample]:
        """Return the minute that was summed, with the sums of the jobs so far."""
        minute, self._minute = self._minute, None
        if minute is None:
            return []
        return [minute.record(), *self._samples(self._jobs)]

    def _samples(self, jobs: Iterable[int]) -> list[Sample]:
        return [JobSample(job=job, usage=self._jobs[job].usage()) for job in jobs]


def _with(gpu: GpuLook, processes: tuple[ProcessLook, ...]) -> GpuLook:
    if processes == gpu.processes:
        return gpu
    fields = {name: getattr(gpu, name) for name in gpu.__struct_fields__}
    return GpuLook(**fields | {"processes": processes})


def _part_of(job: JobLook, wall: float, seconds: float) -> float:
    """Return the part (0 to 1) of the time since the last look in which a job held its GPUs."""
    age = wall - job.started_at
    return age / seconds if 0 <= age < seconds else 1.0


def _consumed(before: int | None, now: int | None) -> float | None:
    """Return the joules between two values of a counter; None if it was reset or is missing."""
    return (now - before) / 1000 if before is not None and now is not None and now >= before else None


def _pieces(begin: float, end: float) -> Iterator[tuple[int, float]]:
    """Yield (begin of a minute, seconds of it) of the time from `begin` to `end`, in epoch seconds."""
    while begin < end:
        at = int(begin // MINUTE) * MINUTE
        until = min(end, at + MINUTE)
        yield at, until - begin
        begin = until


def _first_events(look: Look, *, is_continued: bool) -> Iterator[HealthEvent]:
    """Yield the states of GPUs, and the version of the driver, in a first look.

    A GPU that was down when the last controller ended may be up again. So with earlier samples, a state
    "ok" is an event as well.
    """
    for gpu in look.gpus:
        if gpu.state != "ok" or is_continued:
            yield HealthEvent(at=look.wall, uuid=gpu.uuid, kind="state", detail=_state(gpu))
    if look.driver and look.gpus:
        yield HealthEvent(at=look.wall, uuid=look.gpus[0].uuid, kind=DRIVER, detail=look.driver)


def _state(gpu: GpuLook) -> str:
    return f"{gpu.state}: {gpu.why[:_LONGEST_REASON]}" if gpu.why else gpu.state


def _events(last: Look, look: Look) -> Iterator[HealthEvent]:
    """Yield the changes of the GPUs' health, and of the driver, between two looks."""
    if look.driver not in ("", last.driver) and look.gpus:
        yield HealthEvent(at=look.wall, uuid=look.gpus[0].uuid, kind=DRIVER, detail=look.driver)
    before = {gpu.uuid: gpu for gpu in last.gpus}
    for gpu in look.gpus:
        if (was := before.get(gpu.uuid)) is not None:
            for kind, detail in _changes(was, gpu):
                yield HealthEvent(at=look.wall, uuid=gpu.uuid, kind=kind, detail=detail)


def _changes(was: GpuLook, gpu: GpuLook) -> Iterator[tuple[str, str]]:
    if gpu.state != was.state:
        yield "state", _state(gpu)
    if (gpu.ecc or 0) > (was.ecc or 0):
        yield "ecc", str(gpu.ecc)
    if gpu.remap and gpu.remap != was.remap:
        yield "remap", gpu.remap
    for xid in dict.fromkeys(gpu.xids):
        yield "xid", str(xid)
    for limit in gpu.throttled or ():
        if limit in _HEALTH and limit not in (was.throttled or ()):
            yield "throttle", limit
