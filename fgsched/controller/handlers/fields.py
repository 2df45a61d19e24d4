"""What can be asked of each job in the queue, by name."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import to_builtins

from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.controller.handlers.references import split_reference
from fgsched.controller.jobtable import JobTable, pending
from fgsched.controller.waitindex import eligible
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import Demand, Hold, Job, JobState
from fgsched.domain.waiting import Cause
from fgsched.jobs.arrays import format_array
from fgsched.jobs.lifecycle import suspended_seconds
from fgsched.jobs.pacing import policy_of
from fgsched.scheduling.explain.causes import gate, preemption, suspension
from fgsched.scheduling.placement import cost, is_of_type


class Look:
    """One look at the queue: for whom, when, and what equal demands come to."""

    def __init__(self, engine: Engine, caller: Caller, now: float) -> None:
        self.engine = engine
        self.now = now
        self._caller = caller
        self._costs: dict[Demand, Hold | None] = {}
        self._standings: dict[tuple[int, str], float] = {}
        self._places: dict[str, int] = {}

    def hold(self, job: Job) -> Hold | None:
        """What the job has of each card, or would get; None where that differs from card to card."""
        if job.holds:
            return job.holds[0]
        demand = job.request.demand
        if demand not in self._costs:
            self._costs[demand] = self._cost(demand)
        return self._costs[demand]

    def _cost(self, demand: Demand) -> Hold | None:
        engine = self.engine
        able = [gpu for gpu in engine.cards.gpus if is_of_type(gpu, demand.gpu_type)]
        holds = [cost(demand, gpu, engine.limits.share_step) for gpu in able] if demand.gpus else []
        return holds[0] if len({(hold.share, hold.memory) for hold in holds}) == 1 else None

    def share(self, job: Job) -> int | None:
        """Ten-thousandths of all the job's cards together; None where it depends on the card."""
        demand = job.request.demand
        hold = self.hold(job) if demand.gpus else None
        share = hold.share if hold else demand.share
        return share * demand.gpus if share or not demand.gpus else None

    def memory(self, job: Job) -> int | None:
        """Bytes of each card; None where it depends on the card."""
        hold = self.hold(job)
        return hold.memory if hold else job.request.demand.memory or None

    def place(self, job: Job) -> int:
        """Where its partition stands in their order; of several, the first."""
        if not self._places:
            named = enumerate(one.name for one in self.engine.policy.partitions)
            self._places = {name: place for place, name in named}
        names = (job.partition or job.request.partition).split(",")
        return min(self._places.get(name, len(self._places)) for name in names)

    def priority(self, job: Job) -> float | None:
        """Of a job that waits, as it stands now."""
        if job.state is not JobState.PENDING:
            return None
        key = (id(job.request), job.user)  # jobs of one submission share their request
        if key not in self._standings:
            self._standings[key] = self.engine.jobtable.order.standing(pending(job).kind)
        weights = self.engine.jobtable.order.policy.weights
        waited = max(0.0, self.now - max(job.submitted_at, job.request.begin)) / weights.max_age
        return self._standings[key] + weights.age * min(1.0, waited)

    def cause(self, job: Job) -> Any:
        found = cause(self.engine.jobtable, job)
        return None if found is None else to_builtins(found)

    def tasks(self, job: Job) -> str | None:
        return rest_text(self.engine, job)

    def owned(self, job: Job, value: str) -> str | None:
        """What only the owner and operators are told."""
        return value if self._caller.may_see_secrets(job) else None


def rest_text(engine: Engine, job: Job) -> str | None:
    """The tasks that a row stands for, as Slurm writes them: 3-15:4%2; None where it is one job."""
    if not job.is_rest:
        return None
    array = engine.jobtable.arrays.get(job.array)
    waiting = array.rest if array and not job.state.is_final else engine.store.tasks.rest(job)
    most = f"%{job.request.throttle}" if job.request.throttle else ""
    return (format_array(waiting) if waiting else "") + most


def cause(jobtable: JobTable, job: Job) -> Cause | None:
    """Return why a job does not run; None if it does, or has ended by itself."""
    if (short := jobtable.short(job)) is not None:
        return short
    if job.state is JobState.SUSPENDED:
        return suspension(job)
    if job.state.holds or job.state.is_final:
        return preemption(job)
    return gate(job, jobtable.reason(job)) if job.state is JobState.PENDING else None


def elapsed(job: Job, now: float) -> float:
    """Seconds that a job has run, so far or in all; not those for which it was suspended."""
    if job.started_at is None:
        return 0.0
    return max(0.0, (job.ended_at or now) - job.started_at - suspended_seconds(job, now))


FIELDS: dict[str, Callable[[Look, Job], Any]] = {
    "id": lambda look, job: job.id,
    "array": lambda look, job: job.array or None,
    "task": lambda look, job: job.task,
    "tasks": lambda look, job: look.tasks(job),
    "dependency": lambda look, job: job.depends,
    "eligible_at": lambda look, job: eligible(job),
    "deadline": lambda look, job: job.request.deadline or None,
    "name": lambda look, job: job.request.name,
    "partition": lambda look, job: job.partition or job.request.partition,
    "partition_place": lambda look, job: look.place(job),
    "account": lambda look, job: job.request.account,
    "qos": lambda look, job: job.request.qos,
    "reservation": lambda look, job: job.request.reservation,
    "nice": lambda look, job: job.request.nice,
    "priority": lambda look, job: look.priority(job),
    "user": lambda look, job: job.user,
    "uid": lambda look, job: job.uid,
    "state": lambda look, job: job.state.value,
    "reason": lambda look, job: look.engine.jobtable.reason(job).value,
    "cause": lambda look, job: look.cause(job),
    "elapsed": lambda look, job: elapsed(job, look.now),
    "submitted_at": lambda look, job: job.submitted_at,
    "started_at": lambda look, job: job.started_at,
    "ended_at": lambda look, job: job.ended_at,
    "time_limit": lambda look, job: job.request.time_limit,
    "share": lambda look, job: look.share(job),
    "gpus": lambda look, job: job.request.demand.gpus,
    "memory": lambda look, job: look.memory(job),
    "memory_part": lambda look, job: job.request.demand.memory_part,
    "cpus": lambda look, job: job.request.demand.cpus,
    "host_memory": lambda look, job: job.request.demand.host_memory,
    "gpu_type": lambda look, job: job.request.demand.gpu_type,
    "indices": lambda look, job: [hold.gpu for hold in job.holds],
    "tier": lambda look, job: job.tier,
    "gpu_compute": lambda look, job: policy_of(job, look.engine.policy),
    "comment": lambda look, job: look.owned(job, job.request.comment),
    "chdir": lambda look, job: look.owned(job, job.request.chdir),
    "command": lambda look, job: look.owned(job, job.request.submit_line),
}


def getters(names: Any) -> list[Callable[[Look, Job], Any]]:
    """Those of the fields asked for."""
    if not isinstance(names, list) or any(type(name) is not str or name not in FIELDS for name in names):
        raise BadUsage("queue: fields are some of " + ", ".join(FIELDS))
    return [FIELDS[name] for name in names]


class _Named:
    """The jobs that are meant by one of some names."""

    def __init__(self, names: list[Any]) -> None:
        self._whole = {name for name in names if type(name) is int}
        self._parts: dict[int, int] = {}
        for name in names:
            if type(name) is not int:
                number, bits = split_reference(name)
                self._parts[number] = self._parts.get(number, 0) | (bits or 0)

    def of(self, jobs: Iterable[Job]) -> list[Job]:
        whole, parts = self._whole, self._parts
        return [job for job in jobs if job.id in whole or job.array in whole or _is_part(job, parts)]


def _is_part(job: Job, parts: dict[int, int]) -> bool:
    bits = parts.get(job.array, 0) if job.array else 0
    return bool(bits and (job.task is None or bits >> job.task & 1))


class Choice:
    """The jobs whose fields have one of the values that `where` allows: {"user": ["ann"], "id": [7, 8]}."""

    def __init__(self, where: Any, look: Look) -> None:
        if not isinstance(where, Mapping) or not all(isinstance(allowed, list) for allowed in where.values()):
            raise BadUsage('queue: where is not an object of lists, such as {"user": ["ann"]}')
        self._look = look
        self._named = _Named(where["id"]) if "id" in where else None
        others = {name: allowed for name, allowed in where.items() if name != "id"}
        if "indices" in others:
            raise BadUsage("queue: where cannot go by the cards of a job")
        try:
            wanted = [frozenset(allowed) for allowed in others.values()]
        except TypeError:
            raise BadUsage("queue: where holds something that is neither a text nor a number") from None
        self._wanted = list(zip(getters(list(others)), wanted, strict=True))

    def of(self, jobs: Iterable[Job]) -> list[Job]:
        """Those of the jobs."""
        found = self._named.of(jobs) if self._named else list(jobs)
        for get, wanted in self._wanted:
            found = [job for job in found if get(self._look, job) in wanted]
        return found
