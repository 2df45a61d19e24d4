"""Compute the attributes of `protocol.JobInfo`, which clients receive about a job."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from fgsched import protocol
from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.controller.handlers.dependencies import UnmetConditions
from fgsched.controller.jobtable import JobTable, class_of, eligible
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import NOT_ENDED, PUBLIC, WHOLE, Demand, Hold, Job, JobUsage, Request, getter_of
from fgsched.domain.jobsteps import JobStep, read_stored
from fgsched.domain.states import JobState, Reason
from fgsched.domain.waiting import Cause, gate_of, preemption_of, suspension_of
from fgsched.lifecycle.arrays import format_array, split_reference
from fgsched.lifecycle.enforcement import compute_policy_of, is_hooked, others_of, preload_of
from fgsched.lifecycle.transitions import kills_note, suspended_seconds
from fgsched.scheduling.placement import cost, is_suitable
from fgsched.scheduling.queue import JobClass
from fgsched.store import JobRecord

Getter = Callable[["CallerView", Job], Any]


class Live(NamedTuple):
    """What the controller knows of a running job beside its record."""

    mechanism: Callable[[Job], str] = lambda job: ""  # its pacing method
    refusal: Callable[[Job], str] = lambda job: ""  # its last refused allocation of device memory
    unhooked: Callable[[Job], str] = lambda job: ""  # its processes without the hook
    host_wait: Callable[[Job, float], str] = lambda job, now: ""  # for what its start or its end waits
    usage: Callable[[Job], JobUsage | None] = lambda job: None  # sums of samples
    use_now: Callable[[Job], list[protocol.OnGpu]] = lambda job: []  # what the last look showed
    srun_steps: Callable[[Job], list[JobStep]] = lambda job: []  # of a running job
    oom_kills: Callable[[Job], int] = lambda job: 0  # of a running job, by the kernel, for host memory


_NO_LIVE = Live()


class CallerView:
    """A view of jobs for one caller at one time. Equal demands are computed once."""

    def __init__(
        self,
        engine: Engine,
        caller: Caller,
        now: float,
        live: Live = _NO_LIVE,
    ) -> None:
        """Prepare a view at `now`, in seconds since the epoch."""
        self.engine = engine
        self.now = now
        self.live = live
        self.unmet = UnmetConditions(engine, now)
        self._usage: dict[int, JobUsage] = {}
        self._caller = caller
        self._costs: dict[Demand, Hold | None] = {}
        self._standings: dict[tuple[int, str], float] = {}  # (identity of a request, user)
        self._of_class: dict[JobClass, float] = {}
        self._queue_places: dict[str, int] = {}
        self._allocated: dict[int, list[protocol.Allocation]] = {}

    def know(self, record: JobRecord) -> Job:
        """Cache the allocation and the usage of a job for its attributes; return the job."""
        if record.usage is not None:
            self._usage[record.job.id] = record.usage
        allocations = [protocol.Allocation(**gpu_allocation._asdict()) for gpu_allocation in record.allocated]
        self._allocated[record.job.id] = allocations if record.job.attempt else []
        return record.job

    def oom_kills(self, job: Job) -> int:
        """Return how many processes of a job the kernel killed for host memory, also while it runs."""
        return job.ended.oom_kills if job.ended else self.live.oom_kills(job)

    def allocated(self, job: Job) -> list[protocol.Allocation]:
        """Return the parts of GPUs that a job has, or had in its last attempt."""
        if job.id not in self._allocated and job.holds:
            self._allocated[job.id] = self._held(job)
        return self._allocated.get(job.id, [])

    def _held(self, job: Job) -> list[protocol.Allocation]:
        """Return the present allocation of a job; GPUs that are no longer there are left out."""
        states = self.engine.gpu_states
        present = (states.allocation(hold) for hold in job.holds if hold.gpu in states)
        return [protocol.Allocation(**gpu_allocation._asdict()) for gpu_allocation in present]

    def usage(self, job: Job) -> JobUsage | None:
        """Return the sums of samples of a job; None: there are none."""
        return self._usage.get(job.id) or self.live.usage(job)

    def hold(self, job: Job) -> Hold | None:
        """Return the hold on each GPU, present or expected; None if it is not equal on all GPUs."""
        if job.holds:
            return job.holds[0]
        demand = job.request.demand
        if demand not in self._costs:
            self._costs[demand] = self._cost(demand)
        return self._costs[demand]

    def _cost(self, demand: Demand) -> Hold | None:
        engine = self.engine
        able = [gpu for gpu in engine.gpu_states.gpus if is_suitable(gpu, demand)]
        holds = [cost(demand, gpu, engine.limits.share_step) for gpu in able] if demand.gpus else []
        return holds[0] if len({(hold.share, hold.memory) for hold in holds}) == 1 else None

    def share(self, job: Job) -> int | None:
        """Return the ten-thousandths of all the job's GPUs together; None if that depends on the GPU."""
        demand = job.request.demand
        hold = self.hold(job) if demand.gpus else None
        share = hold.share if hold else demand.share
        return share * demand.gpus if share or not demand.gpus else None

    def memory(self, job: Job) -> int | None:
        """Return the bytes of each GPU; None if that depends on the GPU."""
        hold = self.hold(job)
        return hold.memory if hold else job.request.demand.memory or None

    def place(self, job: Job) -> int:
        """Return the position of the job's partition; of several, the first."""
        if not self._queue_places:
            named = enumerate(partition.name for partition in self.engine.policy.partitions)
            self._queue_places = {name: place for place, name in named}
        names = (job.partition or job.request.partition).split(",")
        return min(self._queue_places.get(name, len(self._queue_places)) for name in names)

    def priority(self, job: Job) -> float | None:
        """Return the present priority of a pending job."""
        if job.state is not JobState.PENDING:
            return None
        key = (id(job.request), job.user)  # jobs of one submission share their request
        if key not in self._standings:
            self._standings[key] = self._standing(class_of(job))
        weights = self.engine.jobtable.order.policy.weights
        waited = max(0.0, self.now - max(job.submitted_at, job.request.begin)) / weights.max_age
        return self._standings[key] + weights.age * min(1.0, waited)

    def _standing(self, kind: JobClass) -> float:
        if kind not in self._of_class:
            self._of_class[kind] = self.engine.jobtable.order.standing(kind)
        return self._of_class[kind]

    def tasks(self, job: Job) -> str | None:
        return rest_text(self.engine, job)

    def owned(self, job: Job, value: str) -> str | None:
        """Return `value` if the caller is the job's owner or an operator, else None."""
        return value if self._caller.may_see_secrets(job) else None

    def is_private(self, job: Job) -> bool:
        return not self._caller.may_see_secrets(job)

    def request(self, job: Job) -> Request:
        """Return the request, or for other users its public attributes only."""
        if self._caller.may_see_secrets(job):
            return job.request
        return Request(**{name: getattr(job.request, name) for name in PUBLIC})

    def reason(self, job: Job) -> Reason:
        if self.live.host_wait(job, self.now):
            return Reason.HOST_WAIT
        return self.engine.jobtable.reason(job)

    def refused(self, job: Job) -> str:
        return "" if self.is_private(job) else self.live.refusal(job)

    def unhooked(self, job: Job) -> str:
        return "" if self.is_private(job) else self.live.unhooked(job)

    def preload(self, job: Job) -> str:
        hooked = bool(job.attempt) and is_hooked(job.tier, has_gpus=bool(self.allocated(job)))
        return preload_of(job.mounts, hooked=hooked)

    def oversubscribed(self, job: Job) -> int:
        """Return the largest capacity of the oversubscribed GPUs that a job holds; 0: it holds none."""
        states = self.engine.gpu_states
        capacities = (states.gpu(hold.gpu).capacity for hold in job.holds if hold.gpu in states)
        return max((capacity for capacity in capacities if capacity > WHOLE), default=0)

    def steps(self, job: Job) -> list[protocol.StateChange]:
        return [protocol.StateChange(*step) for step in self.engine.store.steps.of(job.id)]

    def srun_steps(self, job: Job) -> list[JobStep]:
        """Return the steps that srun started in the last attempt of a job."""
        if job.ended is not None:
            return read_stored(job.ended.srun_steps)
        return self.live.srun_steps(job) if job.state.holds else []


def rest_text(engine: Engine, job: Job) -> str | None:
    """Return the pending tasks of an array's row in Slurm's form, 3-15:4%2; None for a single job."""
    if not job.is_rest:
        return None
    array = engine.jobtable.arrays.get(job.array)
    waiting = array.pending_bits if array and not job.state.is_final else engine.store.tasks.rest(job)
    most = f"%{job.request.throttle}" if job.request.throttle else ""
    return (format_array(waiting) if waiting else "") + most


def cause(jobtable: JobTable, job: Job) -> Cause | None:
    """Return the cause for which a job is not running; None for a running job or one that ended by itself."""
    if (short := jobtable.shortfall(job)) is not None:
        return short
    if job.state is JobState.SUSPENDED:
        return suspension_of(job)
    if job.state.holds or job.state.is_final:
        return preemption_of(job)
    return gate_of(job, jobtable.reason(job)) if job.state is JobState.PENDING else None


def elapsed(job: Job, now: float) -> float:
    """Return the seconds that a job has run, without suspensions."""
    if job.started_at is None:
        return 0.0
    return max(0.0, (job.ended_at or now) - job.started_at - suspended_seconds(job, now))


_CLIENTS_OWN = ("starts_at", "likely", "known", "step")  # attributes that the client fills in
_COMPUTED: dict[str, Getter] = {
    "state": lambda look, job: shown_state(job),
    "array": lambda look, job: job.array or None,
    "tasks": lambda look, job: look.tasks(job),
    "partition": lambda look, job: job.partition or job.request.partition,
    "partition_place": lambda look, job: look.place(job),
    "priority": lambda look, job: look.priority(job),
    "reason": lambda look, job: look.reason(job),
    "cause": lambda look, job: cause(look.engine.jobtable, job),
    "dependency": lambda look, job: job.depends,
    "unmet": lambda look, job: look.unmet.text(job),
    "note": lambda look, job: look.owned(job, job.note) or "",
    "detail": lambda look, job: look.owned(job, (job.ended or NOT_ENDED).detail) or "",  # it names paths
    "refused": lambda look, job: look.refused(job),
    "unhooked": lambda look, job: look.unhooked(job),
    "lost": lambda look, job: job.supervisor_lost,
    "oom_kills": lambda look, job: look.oom_kills(job),
    "warning": lambda look, job: (
        job.warning
        or look.owned(job, job.request.warnings)
        or look.live.host_wait(job, look.now)
        or kills_note(look.oom_kills(job), job.request.demand.host_memory)
    ),
    "eligible_at": lambda look, job: eligible(job),
    "deadline": lambda look, job: job.request.deadline or None,
    "elapsed": lambda look, job: elapsed(job, look.now),
    "suspended": lambda look, job: suspended_seconds(job, look.now),
    "share": lambda look, job: look.share(job),
    "memory": lambda look, job: look.memory(job),
    "cpus": lambda look, job: job.request.demand.cpus,
    "ntasks": lambda look, job: job.request.tasks,
    "task_cpus": lambda look, job: job.request.task_cpus,
    "requeue": lambda look, job: job.request.requeue,
    "gpu_compute": lambda look, job: compute_policy_of(job, look.engine.policy),
    "indices": lambda look, job: [hold.gpu for hold in job.holds],
    "allocated": lambda look, job: look.allocated(job),
    "bound_cpus": lambda look, job: job.cpus,
    "resources": lambda look, job: [(name, list(indices)) for name, indices in job.resources],
    "pacing": lambda look, job: look.live.mechanism(job),
    "oversubscribed": lambda look, job: look.oversubscribed(job),
    "preload": lambda look, job: look.preload(job),
    "other_gpus": lambda look, job: others_of(job.mounts),
    "is_private": lambda look, job: look.is_private(job),
    "comment": lambda look, job: look.owned(job, job.request.comment),
    "chdir": lambda look, job: look.owned(job, job.request.chdir),
    "command": lambda look, job: look.owned(job, job.request.submit_line),
    "request": lambda look, job: look.request(job),
    "steps": lambda look, job: look.steps(job),
    "srun_steps": lambda look, job: look.srun_steps(job),
    "usage": lambda look, job: look.usage(job),
    "now": lambda look, job: look.live.use_now(job),
}


def shown_state(job: Job) -> JobState:
    """Return the state of a job: COMPLETING if it is cancelled, requeued or condemned, and still runs."""
    is_ending = job.state is JobState.RUNNING and (job.is_to_end or bool(job.wish))
    return JobState.COMPLETING if is_ending else job.state


def count_rows(jobtable: JobTable, caller: Caller) -> Counter[tuple[str, str]]:
    """Return the number of rows of fgq by partitions, joined by commas, and state, as the caller sees them.

    Only running jobs are examined. A queue may have many pending ones, and these questions are asked often.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for owner, count in jobtable.pending_rows.items():
        if count and caller.may_see(owner):
            counts[owner.partitions, JobState.PENDING.value] += count
    for job in filter(caller.may_see, jobtable.holding.values()):
        counts[job.partition or job.request.partition, shown_state(job).value] += 1
    return counts


def _plain(name: str) -> Getter:
    """Return the getter of an attribute that is stored under its name; of the request only a public one."""
    get = getter_of(name, PUBLIC)
    return lambda look, job: get(job)


FIELDS: dict[str, Getter] = {
    name: _COMPUTED.get(name) or _plain(name)
    for name in protocol.JobInfo.__struct_fields__
    if name not in _CLIENTS_OWN
}


def getters(names: Sequence[str]) -> dict[str, Getter]:
    """Return the getters of these attributes. Raises BadUsage for a name that there is not."""
    if not all(name in FIELDS for name in names):
        raise BadUsage("fields are some of " + ", ".join(FIELDS))
    return {name: FIELDS[name] for name in names}


class _ReferencedJobs:
    """The jobs of some references."""

    def __init__(self, names: Sequence[protocol.Reference]) -> None:
        self._whole = {name for name in names if isinstance(name, int)}
        self._parts: dict[int, int] = {}
        for name in names:
            if not isinstance(name, int):
                number, bits = split_reference(name)
                self._parts[number] = self._parts.get(number, 0) | (bits or 0)

    def of(self, jobs: Iterable[Job]) -> list[Job]:
        whole, parts = self._whole, self._parts
        return [job for job in jobs if job.id in whole or job.array in whole or _is_part(job, parts)]


def _is_part(job: Job, parts: dict[int, int]) -> bool:
    bits = parts.get(job.array, 0) if job.array else 0
    return bool(bits and (job.task is None or bits >> job.task & 1))


class AttributeFilter:
    """A filter on attributes: jobs with one of the values in `where`."""

    def __init__(self, attributes: protocol.Where, look: CallerView) -> None:
        self._view = look
        self._named = None if attributes.id is None else _ReferencedJobs(attributes.id)
        allowed = {
            name: values for name, values in msgspec.structs.asdict(attributes).items() if name != "id"
        }
        self._wanted = [
            (FIELDS[name], frozenset(values)) for name, values in allowed.items() if values is not None
        ]

    def of(self, jobs: Iterable[Job]) -> list[Job]:
        """Return the jobs that match the filter."""
        matching = self._named.of(jobs) if self._named else list(jobs)
        for get, values in self._wanted:
            matching = [job for job in matching if get(self._view, job) in values]
        return matching
