"""Handle the requests about the order of jobs: partitions, priorities, shares; and `top`."""

import math
from collections import Counter, defaultdict

from msgspec.structs import asdict, replace

from fgsched import protocol
from fgsched.controller.caller import Caller, no_such_job
from fgsched.controller.engine import Engine
from fgsched.controller.handlers.fields import count_rows
from fgsched.controller.handlers.registration import reads, writes
from fgsched.controller.jobtable import owner_of, pending
from fgsched.domain.errors import Refused
from fgsched.domain.job import NICEST, Job
from fgsched.domain.policy import Partition
from fgsched.domain.states import JobState
from fgsched.scheduling.queue import Factors
from fgsched.server import LongAnswer, cut


class PriorityHandlers:
    """The handlers of partitions, priorities and shares (`calls`), and of `top` (`writing`)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # -- partitions -----------------------------------------------------------------------------

    @reads(protocol.ListPartitions)
    def partitions(self, caller: Caller, call: protocol.ListPartitions, now: float) -> protocol.Partitions:
        """Return every partition in order, with its GPUs and the number of its rows of fgq in each state."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for (partitions, state), count in count_rows(self._engine.jobtable, caller).items():
            for name in partitions.split(","):
                counts[name][state] += count
        return protocol.Partitions(
            partitions=[
                protocol.PartitionInfo(
                    partition=partition, gpus=self._gpus(partition), jobs=dict(counts[partition.name])
                )
                for partition in self._engine.policy.partitions
            ]
        )

    def _gpus(self, partition: Partition) -> list[int]:
        """Return the indices of the GPUs of this host that a partition may use."""
        gpus = [gpu.index for gpu in self._engine.gpu_states.gpus]
        return [index for index in gpus if not partition.gpus or index in partition.gpus]

    # -- priorities -----------------------------------------------------------------------------

    @reads(protocol.ListPriorities)
    def priorities(
        self, caller: Caller, call: protocol.ListPriorities, now: float
    ) -> LongAnswer[protocol.Priorities]:
        """Return the priority of each pending job with its factors, and the weights."""
        self._bring_up_to_date(now)
        weights = self._engine.policy.weights
        rows = (
            [self._info(job, now) for job in piece if job.state is JobState.PENDING and caller.may_see(job)]
            for piece in cut(self._engine.jobtable.in_order())
        )
        return LongAnswer("jobs", rows, lambda: protocol.Priorities(weights=weights, jobs=[]))

    def _info(self, job: Job, now: float) -> protocol.PriorityInfo:
        factors = self._factors(job, now)
        return protocol.PriorityInfo(
            id=job.id,
            user=job.user,
            account=job.request.account,
            partitions=job.request.partition,
            qos_name=job.request.qos,
            priority=factors.priority,
            age=factors.age,
            fairshare=factors.fairshare,
            size=factors.size,
            partition=factors.partition,
            qos=factors.qos,
            nice=factors.nice,
        )

    def _factors(self, job: Job, now: float) -> Factors:
        entry = pending(job)
        return self._engine.jobtable.order.factors(entry.kind, entry.since, now)

    def _bring_up_to_date(self, now: float) -> None:
        engine = self._engine
        engine.charges.bring_up_to_date(
            engine.jobtable, engine.policy, engine.gpu_states.gpus, engine.limits, now
        )

    @reads(protocol.ListShares)
    def shares(self, caller: Caller, call: protocol.ListShares, now: float) -> protocol.Shares:
        """Return the shares, the usage and the fair-share factor of accounts and users."""
        engine = self._engine
        rows = engine.charges.standings(engine.jobtable, engine.policy, now)
        visible = [row for row in rows if not caller.is_confined or row.user in ("", caller.name)]
        return protocol.Shares(
            shares=[protocol.ShareInfo(**asdict(row)) for row in visible],
            half_life=engine.policy.weights.half_life,
        )

    @reads(protocol.ListAssociations)
    def associations(
        self, caller: Caller, call: protocol.ListAssociations, now: float
    ) -> protocol.Associations:
        """Return the declared accounts, qualities of service and users."""
        policy = self._engine.policy
        return protocol.Associations(
            accounts=list(policy.accounts), qos=list(policy.qos), users=list(policy.users)
        )

    # -- top ------------------------------------------------------------------------------------

    @writes(protocol.PutFirst)
    def put_first(self, caller: Caller, call: protocol.PutFirst, now: float) -> protocol.Lowered:
        """Put a pending job before its owner's other jobs of the same partition, account and QOS.

        The jobs ahead of it are lowered by one amount, so that they keep their order. It overtakes no job
        of another user.

        Raises: NoSuchJob; NotPermitted for a job of another user; Refused if it is not pending.
        """
        job = self._engine.jobtable.jobs.get(call.id)
        if job is None:
            raise no_such_job(call.id)
        caller.must_own(job)
        if job.state is not JobState.PENDING:
            raise Refused(f"job {job.id} is no longer pending", "Only pending jobs can be put first.")
        self._bring_up_to_date(now)
        ahead = self._ahead(job, now)
        if ahead:
            lowest = self._factors(job, now).priority
            highest = max(self._factors(other, now).priority for other in ahead)
            for other in ahead:
                self._lower(other, math.ceil(highest - lowest) + 1)
        return protocol.Lowered(id=job.id, lowered=len(ahead))

    def _ahead(self, job: Job, now: float) -> list[Job]:
        """Return the owner's jobs that are considered before this one."""

        def place(other: Job) -> tuple[float, float, int]:
            return -self._factors(other, now).priority, other.submitted_at, other.id

        own_place = place(job)
        return [
            other
            for other in self._engine.jobtable.jobs.values()
            if other.state is JobState.PENDING
            and other.uid == job.uid
            and owner_of(other) == owner_of(job)
            and other.request.partition == job.request.partition
            and place(other) < own_place
        ]

    def _lower(self, job: Job, by: int) -> None:
        request = replace(job.request, nice=min(NICEST, job.request.nice + by))
        self._engine.store.change_request(job.id, request)
        self._engine.jobtable.put(replace(job, request=request))
