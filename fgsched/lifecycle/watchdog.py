"""Decide what a query of the GPUs requires for one job: charge memory, warn, or end the job.

The driver reports the memory of a process on a GPU; the hook's slots contain the memory that the hook
granted. The difference is contexts, other memory that no call requests, or memory allocated without the
hook.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from fgsched.domain.job import Job, OomReport, Readings, Refusal
from fgsched.domain.states import Reason
from fgsched.domain.units import format_mebibytes

UNENFORCED, BY_HOOK, BY_WATCHDOG = "none", "shim", "watchdog"  # tiers


class ProcessUse(Struct, frozen=True, kw_only=True, gc=False):
    """One process of the job on one GPU."""

    pid: int
    memory: int  # bytes that the driver reports; 0: it reports none
    tracked: int | None  # bytes in the slot of the region; None: the process does not have the hook
    past: int = 0  # further bytes that the slot is charged: reserved for contexts, or observed
    mark: int | None = None  # changes with the contexts of the process; None: it has no slot
    has_context: bool = False  # memory was reserved for a context
    why_bare: str = ""  # why it does not have the hook, if that is known

    @property
    def estimate(self) -> int:
        """Memory of the process outside the hook, in bytes."""
        return max(0, self.memory - (self.tracked or 0))


class JobOnGpu(Struct, frozen=True, kw_only=True, gc=False):
    """A job on one GPU in one query."""

    gpu: int  # index
    limit: int | None  # bytes; None: the GPU is not allocated to the job
    uses: tuple[ProcessUse, ...]
    is_lost: bool = False  # the GPU fell off the bus
    why_lost: str = ""  # if it did not fall off the bus: what happened

    @property
    def held(self) -> int:
        return sum(use.memory for use in self.uses)


class WatchdogPolicy(Struct, frozen=True, kw_only=True):
    """The settings of the watchdog."""

    kills: bool = True  # otherwise it only warns
    tolerance: int = 512 << 20  # bytes by which a job may exceed its limit: contexts, until they are charged


class Fault(Struct, frozen=True, kw_only=True, gc=False):
    """One violation by a job, or one failure of its GPU."""

    reason: Reason
    gpu: int
    held: int = 0
    limit: int = 0
    pid: int = 0
    why_bare: str = ""  # why the process does not have the hook
    why_lost: str = ""  # what happened to the GPU; "": it fell off the bus

    def __str__(self) -> str:
        size = format_mebibytes(self.held)
        match self.reason:
            case Reason.GPU_OVER_LIMIT:
                return f"it holds {size} on GPU {self.gpu}, and its limit is {format_mebibytes(self.limit)}"
            case Reason.GPU_NOT_GIVEN:
                return f"process {self.pid} holds {size} on GPU {self.gpu}, which the job was not given"
            case Reason.GPU_UNHOOKED:
                why = f": {self.why_bare}" if self.why_bare else ""
                return f"process {self.pid} holds {size} on GPU {self.gpu} without the hook{why}"
        return f"GPU {self.gpu}: {self.why_lost}" if self.why_lost else f"GPU {self.gpu} fell off the bus"


_Key = tuple[int, int, int | None]  # gpu, pid, mark


class LastQuery(Struct, frozen=True, gc=False):
    """The findings of a query that the next query needs."""

    faults: frozenset[tuple[Reason, int]] = frozenset()
    estimates: Mapping["_Key", int] = field(default_factory=dict)  # bytes past the hook
    charged: Mapping[int, int] = field(default_factory=dict)  # gpu -> bytes

    def of(self, gpus: Container[int]) -> "LastQuery":
        """Return the findings about these GPUs."""
        return LastQuery(
            frozenset((reason, gpu) for reason, gpu in self.faults if gpu in gpus),
            {key: size for key, size in self.estimates.items() if key[0] in gpus},
            {gpu: size for gpu, size in self.charged.items() if gpu in gpus},
        )


class Verdict(Struct, frozen=True, gc=False):
    """The consequences of a query for one job."""

    memory: LastQuery
    charges: Mapping[int, int]  # gpu -> bytes of processes without a slot; changed ones only
    seen: Mapping[tuple[int, int], int] = field(default_factory=dict)  # (gpu, pid) -> bytes of a slot
    costs: Mapping[int, int] = field(default_factory=dict)  # gpu -> bytes that contexts cost a process
    warn: tuple[Fault, ...] = ()  # found for the first time
    end: Fault | None = None  # found in two consecutive queries, and the policy is to end the job


def judge(
    tier: str,
    on_gpus: Iterable[JobOnGpu],
    before: LastQuery,
    policy: WatchdogPolicy,
    *,
    silent: Container[int] = (),
) -> Verdict:
    """Return the consequences of a query. Only findings of two consecutive queries are charged or end a job.

    GPUs in `silent` did not answer; their findings are kept for the next query that they answer.
    """
    jobs_on_gpus = list(on_gpus)
    uses = {
        (on_gpu.gpu, use.pid, use.mark): use
        for on_gpu in jobs_on_gpus
        if on_gpu.limit is not None and not on_gpu.is_lost
        for use in on_gpu.uses
    }
    estimates = {key: use.estimate for key, use in uses.items()}
    charged = {} if tier == UNENFORCED else _charges(estimates, before, jobs_on_gpus)
    faults = [fault for on_gpu in jobs_on_gpus for fault in _faults(on_gpu, tier, policy, charged)]
    with_slot = {key: use for key, use in uses.items() if use.memory and use.mark is not None}
    in_both = {key: use for key, use in with_slot.items() if key in before.estimates}
    fault_keys, last_query = frozenset((fault.reason, fault.gpu) for fault in faults), before.of(silent)
    memory = LastQuery(
        fault_keys | last_query.faults,
        {**last_query.estimates, **estimates},
        {**last_query.charged, **charged},
    )
    again = [fault for fault in faults if (fault.reason, fault.gpu) in before.faults]
    ends = [fault for fault in again if policy.kills or fault.reason is Reason.GPU_LOST]
    return Verdict(
        memory=memory,
        charges={gpu: size for gpu, size in charged.items() if before.charged.get(gpu, 0) != size},
        seen={key[:2]: size for key, size in _settled(in_both, before).items()},
        costs=_costs(in_both, before),
        warn=tuple(fault for fault in faults if fault not in again),
        end=ends[0] if ends else None,
    )


def _charges(
    estimates: Mapping[_Key, int], before: LastQuery, jobs_on_gpus: Iterable[JobOnGpu]
) -> dict[int, int]:
    """Return the bytes outside the hook by GPU, of processes without a slot: the lower of two estimates.

    Driver and region are not read at the same time. Memory that is freed between the two readings can look
    like memory outside the hook in one query.
    """
    charges = {on_gpu.gpu: 0 for on_gpu in jobs_on_gpus if on_gpu.limit is not None and not on_gpu.is_lost}
    for key, estimate in estimates.items():
        if key[2] is None:
            charges[key[0]] += min(estimate, before.estimates.get(key, 0))
    return charges


def _settled(uses: Mapping[_Key, ProcessUse], before: LastQuery) -> dict[_Key, int]:
    """Return the new charges of slots: they change only as far as both queries agree."""
    settled = {}
    for key, use in uses.items():
        low, high = sorted((use.estimate, before.estimates[key]))
        size = min(max(use.past, low), high)
        if size != use.past:
            settled[key] = size
    return settled


def _costs(uses: Mapping[_Key, ProcessUse], before: LastQuery) -> dict[int, int]:
    """Return the least memory outside the hook of a process with a context that both queries show."""
    costs: dict[int, int] = {}
    for key, use in uses.items():
        if use.has_context and use.estimate == before.estimates[key]:
            costs[key[0]] = min(use.estimate, costs.get(key[0], use.estimate))
    return costs


def _tolerated(gpu: int, tier: str, policy: WatchdogPolicy, charged: Mapping[int, int]) -> int:
    """Return the bytes by which a job may exceed its limit on a GPU.

    The tolerance is for memory that the hook could not count in time. What processes without a slot were
    charged uses it up: nothing refuses their next allocation. At the level watchdog there is no hook, and
    all memory is charged in this way.
    """
    return policy.tolerance if tier == BY_WATCHDOG else max(0, policy.tolerance - charged.get(gpu, 0))


def _faults(on_gpu: JobOnGpu, tier: str, policy: WatchdogPolicy, charged: Mapping[int, int]) -> list[Fault]:
    """Return the violations on one GPU. A job of the level none has no limit on its own GPUs.

    Args:
        charged: {GPU: bytes} of processes without a slot.
    """
    if on_gpu.is_lost:
        fault = Fault(reason=Reason.GPU_LOST, gpu=on_gpu.gpu, why_lost=on_gpu.why_lost)
        return [fault] if on_gpu.limit is not None else []
    if on_gpu.limit is None:
        stray = replace(_largest(on_gpu), reason=Reason.GPU_NOT_GIVEN)
        return [replace(stray, held=on_gpu.held)]
    if tier == UNENFORCED:
        return []
    faults = []
    if on_gpu.held > on_gpu.limit + _tolerated(on_gpu.gpu, tier, policy, charged):
        over = Fault(reason=Reason.GPU_OVER_LIMIT, gpu=on_gpu.gpu, held=on_gpu.held, limit=on_gpu.limit)
        faults.append(over)
    past = replace(on_gpu, uses=tuple(use for use in on_gpu.uses if use.tracked is None and use.memory))
    if tier == BY_HOOK and past.uses:
        faults.append(replace(_largest(past), reason=Reason.GPU_UNHOOKED))
    return faults


def _largest(on_gpu: JobOnGpu) -> Fault:
    """Return the process that holds the most memory, as a fault."""
    largest = max(on_gpu.uses, key=lambda use: use.memory)
    fault = Fault(reason=Reason.NONE, gpu=on_gpu.gpu, held=largest.memory, pid=largest.pid)
    return replace(fault, why_bare=largest.why_bare)


# -- out of memory -------------------------------------------------------------------------------------


def oom_report(job: Job, refusal: Refusal, jobs: Iterable[Job], readings: Readings) -> OomReport:
    """Return the post-mortem of `job`. `jobs` are all jobs with holds; the job itself is ignored."""
    reading = readings.get(refusal.gpu)
    return OomReport(
        gpu=refusal.gpu,
        asked=refusal.asked,
        held=refusal.held,
        limit=sum(hold.memory for hold in job.holds if hold.gpu == refusal.gpu),
        jobs=tuple(
            (other.id, hold.memory)
            for other in jobs
            for hold in other.holds
            if hold.gpu == refusal.gpu and other.id != job.id
        ),
        strangers=reading.external if reading else 0,
    )


def watchdog_changes(
    job: Job, warn: Sequence[Fault], end: Fault | None, jobs: Iterable[Job], *, readings: Readings
) -> dict[str, Any]:
    """Return the changes of a job after findings of the watchdog."""
    sentences = [str(fault) for fault in warn]
    if end is None:
        reason = next((fault.reason for fault in warn), job.reason)
        return {"warning": "; ".join(sentences) or job.warning, "reason": reason}
    changes: dict[str, Any] = {"warning": f"ended by the watchdog: {end}", "condemned": end.reason}
    changes["reason"] = end.reason
    if end.reason is Reason.GPU_OVER_LIMIT:
        refusal = Refusal(gpu=end.gpu, asked=0, held=end.held)
        changes["post_mortem"] = oom_report(job, refusal, jobs, readings)
    return changes
