"""Charge GPU time to accounts and users, and order the queue by it."""

from collections.abc import Iterable
from typing import Protocol

from msgspec.structs import replace

from fgsched.controller.jobtable import JobTable
from fgsched.domain.job import WHOLE, Gpu, HostLimits, Job
from fgsched.domain.policy import Policy
from fgsched.lifecycle.transitions import charged_period
from fgsched.scheduling.queue import (
    AccountUser,
    PriorityBasis,
    ShareStanding,
    Usage,
    accrued,
    by_scope,
    factors,
    standings,
)
from fgsched.store import GpuAllocation

MOST_ACCOUNTS = 256  # of one user that the site does not define, with recorded usage


def owner_of(job: Job) -> AccountUser:
    return job.request.account, job.user


def _owners(jobtable: JobTable) -> set[AccountUser]:
    return {(limited_user.account, limited_user.user) for limited_user in jobtable.owners()}


class UsageLedger(Protocol):
    """The interface to recorded usage: the store, or its replacement in a simulation."""

    def usage(self) -> dict[AccountUser, Usage]: ...

    def put_usage(self, owner: AccountUser, usage: Usage) -> None: ...


class UsageCharges:
    """The recorded usage of ended jobs, plus the present usage of running jobs."""

    def __init__(self, store: UsageLedger) -> None:
        self._store = store
        self._usage: dict[AccountUser, Usage] = {}
        self._unwritten: set[AccountUser] = set()
        self._order = PriorityBasis()
        self._ordered_at = float("-inf")

    def read(self) -> None:
        """Read the recorded usage, at the start and after a rollback."""
        self._usage = self._store.usage()
        self._unwritten.clear()

    def charge(self, job: Job, allocations: Iterable[GpuAllocation], now: float, policy: Policy) -> None:
        """Charge the holds of an attempt that has ended. Needs a transaction."""
        gpus, period = charged_gpus(allocations), charged_period(job, now)
        if not gpus or period is None:  # the row may be damaged
            return
        half_life = policy.weights.half_life
        more = accrued(gpus, *period, now=now, half_life=half_life)
        owner = self.payer(owner_of(job), policy)
        self._usage[owner] = self._usage.get(owner, Usage()).plus(more, now, half_life)
        self._unwritten.add(owner)

    def payer(self, owner: AccountUser, policy: Policy) -> AccountUser:
        """Return the account that is charged: the one without a name, if a user has invented too many.

        Where the site defines no accounts, a user can name any, and each of them is a row.
        """
        account, user = owner
        if owner in self._usage or any(charge_account.name == account for charge_account in policy.accounts):
            return owner
        invented = sum(1 for _, name in self._usage if name == user)
        return owner if invented < MOST_ACCOUNTS else ("", user)

    def write(self) -> None:
        """Write the usage of each changed owner, at the end of the transaction."""
        for owner in self._unwritten:
            self._store.put_usage(owner, self._usage[owner])
        self._unwritten.clear()

    def used(self, jobtable: JobTable, policy: Policy, now: float) -> dict[AccountUser, float]:
        """Return the charged GPU seconds of each owner, decayed to `now`, including running jobs."""
        half_life = policy.weights.half_life
        seconds_of = {owner: usage.now(now, half_life) for owner, usage in self._usage.items()}
        for job_id, gpu_allocations in jobtable.allocations.items():
            job = jobtable.holding[job_id]
            gpus, period = charged_gpus(gpu_allocations), charged_period(job, now)
            if gpus and period is not None:
                more = accrued(gpus, *period, now=now, half_life=half_life)
                seconds_of[owner_of(job)] = seconds_of.get(owner_of(job), 0.0) + more
        return seconds_of

    def standings(self, jobtable: JobTable, policy: Policy, now: float) -> list[ShareStanding]:
        return standings(self.used(jobtable, policy, now), _owners(jobtable), policy)

    def bring_up_to_date(
        self, jobtable: JobTable, policy: Policy, gpus: Iterable[Gpu], limits: HostLimits, now: float
    ) -> None:
        """Reorder the queue if it is due: after an interval, a policy change, or a reload."""
        is_old = not 0 <= now - self._ordered_at < policy.weights.interval
        if is_old or self._order.policy is not policy:
            used = self.used(jobtable, policy, now)
            rows = standings(used, _owners(jobtable), policy)
            self._order = PriorityBasis(
                policy=policy,
                shares=factors(rows),
                used=by_scope(used),
                gpus=WHOLE * len(list(gpus)),
                cpus=limits.cpus,
            )
            self._ordered_at = now
        elif policy.has_quotas:
            self._order = replace(self._order, used=by_scope(self.used(jobtable, policy, now)))
            jobtable.count_again(self._order)
        if jobtable.order is not self._order:
            jobtable.reorder(self._order)


def charged_gpus(allocations: Iterable[GpuAllocation]) -> float:
    """Return the charged number of GPUs of an allocation: 0.5 is half of one GPU."""
    return sum(gpu_allocation.charged for gpu_allocation in allocations) / WHOLE


def charged_seconds(job: Job, allocations: Iterable[GpuAllocation], now: float) -> float:
    """Return the GPU seconds that the current attempt of a job is charged for, until `now` if it runs."""
    begin, end = charged_period(job, now) or (now, now)
    return (end - begin) * charged_gpus(allocations)
