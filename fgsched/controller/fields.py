"""What can be asked of each job in the queue, by name."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fgsched.controller.caller import Caller
from fgsched.controller.conductor import Conductor
from fgsched.errors import BadUsage
from fgsched.explain import sentence
from fgsched.model import Demand, Hold, Job
from fgsched.placement import cost, is_of_type


class Look:
    """One look at the queue: for whom, when, and what equal demands come to."""

    def __init__(self, conductor: Conductor, caller: Caller, now: float) -> None:
        self.conductor = conductor
        self.now = now
        self._caller = caller
        self._costs: dict[Demand, Hold | None] = {}

    def hold(self, job: Job) -> Hold | None:
        """What the job has of each card, or would get; None where that differs from card to card."""
        if job.holds:
            return job.holds[0]
        demand = job.request.demand
        if demand not in self._costs:
            self._costs[demand] = self._cost(demand)
        return self._costs[demand]

    def _cost(self, demand: Demand) -> Hold | None:
        conductor = self.conductor
        able = [gpu for gpu in conductor.cards.gpus if is_of_type(gpu, demand.gpu_type)]
        holds = [cost(demand, gpu, conductor.limits.share_step) for gpu in able] if demand.gpus else []
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

    def why(self, job: Job) -> str:
        short = self.conductor.book.short(job)
        return sentence(short) if short else ""

    def owned(self, job: Job, value: str) -> str | None:
        """What only the owner and operators are told."""
        return value if self._caller.may_see_secrets(job) else None


def elapsed(job: Job, now: float) -> float:
    """Seconds that a job has run, so far or in all."""
    if job.started_at is None:
        return 0.0
    return max(0.0, (job.ended_at or now) - job.started_at)


FIELDS: dict[str, Callable[[Look, Job], Any]] = {
    "id": lambda look, job: job.id,
    "name": lambda look, job: job.request.name,
    "partition": lambda look, job: job.partition or job.request.partition,
    "account": lambda look, job: job.request.account,
    "qos": lambda look, job: job.request.qos,
    "nice": lambda look, job: job.request.nice,
    "user": lambda look, job: job.user,
    "uid": lambda look, job: job.uid,
    "state": lambda look, job: job.state.value,
    "reason": lambda look, job: look.conductor.book.reason(job).value,
    "why": lambda look, job: look.why(job),
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
    "comment": lambda look, job: look.owned(job, job.request.comment),
    "chdir": lambda look, job: look.owned(job, job.request.chdir),
    "command": lambda look, job: look.owned(job, job.request.submit_line),
}


def getters(names: Any) -> list[Callable[[Look, Job], Any]]:
    """Those of the fields asked for."""
    if not isinstance(names, list) or any(type(name) is not str or name not in FIELDS for name in names):
        raise BadUsage("queue: fields are some of " + ", ".join(FIELDS))
    return [FIELDS[name] for name in names]


def chosen(jobs: Iterable[Job], where: Any, look: Look) -> list[Job]:
    """The jobs whose fields have one of the values that `where` allows: {"user": ["ann"], "id": [7, 8]}."""
    if not isinstance(where, Mapping) or not all(isinstance(allowed, list) for allowed in where.values()):
        raise BadUsage('queue: where is not an object of lists, such as {"user": ["ann"]}')
    found = list(jobs)
    for get, allowed in zip(getters(list(where)), where.values(), strict=True):
        try:
            wanted = set(allowed)
            found = [job for job in found if get(look, job) in wanted]
        except TypeError:
            raise BadUsage("queue: where holds something that is neither a text nor a number") from None
    return found
