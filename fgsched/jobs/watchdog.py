"""Decide what a query of the GPUs requires for one job: charge memory, warn, or end the job.

The driver reports what a process holds on a GPU; the hook's slots show what it was granted. The difference is
CUDA contexts, other memory that no call requests, or memory allocated without the hook.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from fgsched.domain.job import Job, OomReport, Readings, Reason, Refusal
from fgsched.domain.units import format_mebibytes

UNFENCED, BY_HOOK = "none", "shim"  # tiers


class Use(Struct, frozen=True, kw_only=True, gc=False):
    """One process of the job on one GPU."""

    pid: int
    memory: int  # bytes, as the driver says; 0 where it does not
    tracked: int | None  # bytes in its slot of the region; None: the hook is not in it
    past: int = 0  # bytes beside these that its slot is charged: for contexts, or as seen
    mark: int | None = None  # of what it has past the hook: changes with its contexts; None: it has no slot
    has_context: bool = False  # that something was reserved for

    @property
    def guess(self) -> int:
        """Memory of the process outside the hook, in bytes."""
        return max(0, self.memory - (self.tracked or 0))


class Sight(Struct, frozen=True, kw_only=True, gc=False):
    """A job on one GPU in one query."""

    gpu: int  # index
    limit: int | None  # bytes; None: the card was not given to it
    uses: tuple[Use, ...]
    is_lost: bool = False  # the card is

    @property
    def held(self) -> int:
        return sum(use.memory for use in self.uses)


class Policy(Struct, frozen=True, kw_only=True):
    """The settings of the watchdog."""

    kills: bool = True  # otherwise it only warns
    tolerance: int = 512 << 20  # bytes beyond the limit for each process: contexts, until they are charged


class Fault(Struct, frozen=True, kw_only=True, gc=False):
    """One violation by a job, or one failure of its GPU."""

    reason: Reason
    gpu: int
    held: int = 0
    limit: int = 0
    pid: int = 0

    def __str__(self) -> str:
        held = format_mebibytes(self.held)
        match self.reason:
            case Reason.GPU_OVER_LIMIT:
                return f"it holds {held} on GPU {self.gpu}, and its limit is {format_mebibytes(self.limit)}"
            case Reason.GPU_NOT_GIVEN:
                return f"process {self.pid} holds {held} on GPU {self.gpu}, which the job was not given"
            case Reason.GPU_UNHOOKED:
                return f"process {self.pid} holds {held} on GPU {self.gpu} without the hook"
        return f"GPU {self.gpu} fell off the bus"


_Key = tuple[int, int, int | None]  # gpu, pid, mark


class Memory(Struct, frozen=True, gc=False):
    """The findings of a query that the next query needs."""

    faults: frozenset[tuple[Reason, int]] = frozenset()
    guesses: Mapping["_Key", int] = field(default_factory=dict)  # bytes past the hook
    charged: Mapping[int, int] = field(default_factory=dict)  # gpu -> bytes

    def of(self, gpus: Container[int]) -> "Memory":
        """Return the findings about these GPUs."""
        return Memory(
            frozenset((reason, gpu) for reason, gpu in self.faults if gpu in gpus),
            {key: size for key, size in self.guesses.items() if key[0] in gpus},
            {gpu: size for gpu, size in self.charged.items() if gpu in gpus},
        )


class Verdict(Struct, frozen=True, gc=False):
    """The consequences of a query for one job."""

    memory: Memory
    charges: Mapping[int, int]  # gpu -> bytes of processes without a slot; changed ones only
    seen: Mapping[tuple[int, int], int] = field(default_factory=dict)  # (gpu, pid) -> the same, of a slot
    costs: Mapping[int, int] = field(
        default_factory=dict
    )  # gpu -> what a process that held still showed of contexts
    warn: tuple[Fault, ...] = ()  # seen for the first time
    end: Fault | None = None  # seen twice in a row, and the policy is to end it


def judge(
    tier: str, sights: Iterable[Sight], before: Memory, policy: Policy, *, silent: Container[int] = ()
) -> Verdict:
    """Return the consequences of a query. Only what two consecutive queries show is charged, or ends a job.

    GPUs in `silent` did not answer; their findings are kept for the next query that they answer.
    """
    seen = list(sights)
    found = [fault for sight in seen for fault in _faults(sight, tier, policy)]
    uses = {
        (sight.gpu, use.pid, use.mark): use
        for sight in seen
        if sight.limit is not None and not sight.is_lost
        for use in sight.uses
    }
    guesses = {key: use.guess for key, use in uses.items()}
    charged = {} if tier == UNFENCED else _charges(guesses, before, seen)
    told = {key: use for key, use in uses.items() if use.memory and use.mark is not None}
    again_there = {key: use for key, use in told.items() if key in before.guesses}
    faults, kept = frozenset((fault.reason, fault.gpu) for fault in found), before.of(silent)
    memory = Memory(faults | kept.faults, {**kept.guesses, **guesses}, {**kept.charged, **charged})
    again = [fault for fault in found if (fault.reason, fault.gpu) in before.faults]
    ends = [fault for fault in again if policy.kills or fault.reason is Reason.GPU_LOST]
    return Verdict(
        memory=memory,
        charges={gpu: size for gpu, size in charged.items() if before.charged.get(gpu, 0) != size},
        seen={key[:2]: size for key, size in _settled(again_there, before).items()},
        costs=_costs(again_there, before),
        warn=tuple(fault for fault in found if fault not in again),
        end=ends[0] if ends else None,
    )


def _charges(guesses: Mapping[_Key, int], before: Memory, seen: Iterable[Sight]) -> dict[int, int]:
    """Return the bytes outside the hook by GPU, of processes without a slot: the lower of two estimates.

    Driver and region are not read at the same time. Memory that is freed in between looks once like memory
    outside the hook.
    """
    charges = {sight.gpu: 0 for sight in seen if sight.limit is not None and not sight.is_lost}
    for key, guess in guesses.items():
        if key[2] is None:
            charges[key[0]] += min(guess, before.guesses.get(key, 0))
    return charges


def _settled(uses: Mapping[_Key, Use], before: Memory) -> dict[_Key, int]:
    """Return the new charges of slots: they change only as far as both queries agree."""
    settled = {}
    for key, use in uses.items():
        least, most = sorted((use.guess, before.guesses[key]))
        size = min(max(use.past, least), most)
        if size != use.past:
            settled[key] = size
    return settled


def _costs(uses: Mapping[_Key, Use], before: Memory) -> dict[int, int]:
    """Return the least memory outside the hook of a process with a context that both queries show."""
    costs: dict[int, int] = {}
    for key, use in uses.items():
        if use.has_context and use.guess == before.guesses[key]:
            costs[key[0]] = min(use.guess, costs.get(key[0], use.guess))
    return costs


def _faults(sight: Sight, tier: str, policy: Policy) -> list[Fault]:
    """Return the violations on one GPU. A job of the level none has no limit on its own GPUs."""
    if sight.is_lost:
        return [Fault(reason=Reason.GPU_LOST, gpu=sight.gpu)] if sight.limit is not None else []
    if sight.limit is None:
        stray = replace(_largest(sight), reason=Reason.GPU_NOT_GIVEN)
        return [replace(stray, held=sight.held)]
    if tier == UNFENCED:
        return []
    faults = []
    if sight.held > sight.limit + policy.tolerance * len(sight.uses):
        held = {"held": sight.held, "limit": sight.limit}
        faults.append(Fault(reason=Reason.GPU_OVER_LIMIT, gpu=sight.gpu, **held))
    past = replace(sight, uses=tuple(use for use in sight.uses if use.tracked is None and use.memory))
    if tier == BY_HOOK and past.uses:
        faults.append(replace(_largest(past), reason=Reason.GPU_UNHOOKED))
    return faults


def _largest(sight: Sight) -> Fault:
    """Return the process that holds the most memory, as a fault."""
    most = max(sight.uses, key=lambda use: use.memory)
    return Fault(reason=Reason.NONE, gpu=sight.gpu, held=most.memory, pid=most.pid)


# -- out of memory -------------------------------------------------------------------------------------


def oom_report(job: Job, refusal: Refusal, others: Iterable[Job], readings: Readings) -> OomReport:
    """Return the post-mortem of `job`. `others` are all jobs with holds; the job itself is ignored."""
    reading = readings.get(refusal.gpu)
    return OomReport(
        gpu=refusal.gpu,
        asked=refusal.asked,
        held=refusal.held,
        limit=sum(hold.memory for hold in job.holds if hold.gpu == refusal.gpu),
        jobs=tuple(
            (other.id, hold.memory)
            for other in others
            for hold in other.holds
            if hold.gpu == refusal.gpu and other.id != job.id
        ),
        strangers=reading.external if reading else 0,
    )


def watchdog_changes(
    job: Job, warn: Sequence[Fault], end: Fault | None, others: Iterable[Job], *, readings: Readings
) -> dict[str, Any]:
    """Return the changes of a job after findings of the watchdog."""
    said = [str(fault) for fault in warn]
    if end is None:
        reason = next((fault.reason for fault in warn), job.reason)
        return {"warning": "; ".join(said) or job.warning, "reason": reason}
    changes: dict[str, Any] = {"warning": f"ended by the watchdog: {end}", "condemned": end.reason}
    changes["reason"] = end.reason
    if end.reason is Reason.GPU_OVER_LIMIT:
        refusal = Refusal(gpu=end.gpu, asked=0, held=end.held)
        changes["post_mortem"] = oom_report(job, refusal, others, readings)
    return changes
