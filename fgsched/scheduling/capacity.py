"""Track free and reserved capacity during one plan, and find a place for a job class."""

import math
from collections.abc import Mapping, Sequence

from fgsched.domain.job import WHOLE, Demand, GpuState, Hold, HostLimits
from fgsched.domain.policy import Partition, Policy
from fgsched.domain.states import Reason
from fgsched.domain.waiting import Shortfall
from fgsched.scheduling.limits import Key, LimitedUser, LimitUsage, Scope, UsageCount, partition_rule
from fgsched.scheduling.placement import HostRoom, Room, charged, cost, fits
from fgsched.scheduling.queue import ClassQueue, JobClass
from fgsched.scheduling.reservations import (
    BackfillReservation,
    Calendar,
    Running,
    after_ends,
    attempt,
    reservation_rule,
    reserve,
)

Used = Mapping[Key, float]
_MAX_ENDS = 16  # ends of jobs at which a place between operators' reservations is sought


class Capacity:
    """Free capacity during one plan. It only shrinks: `take` removes from it."""

    def __init__(
        self,
        running: Sequence[Running],
        free: Sequence[Room],
        host: HostRoom,
        *,
        limits: HostLimits,
        policy: Policy,
        now: float,
    ) -> None:
        self._running, self._host, self._now, self._policy = list(running), host, now, policy
        self._free = list(free)
        self._at = {room.gpu.index: position for position, room in enumerate(self._free)}
        self._usable = {room.gpu.index: room.gpu.usable for room in self._free}
        self._limits = {partition.name: partition.limits(limits) for partition in policy.partitions}
        self._full: set[tuple[Demand, str, str | int]] = set()  # demands that did not fit
        self._calendar = Calendar.of(policy.reservations, self._running, self._free, now)
        self._blocked: set[tuple[str, LimitedUser]] = set()  # (partition, owner) at a limit of running jobs
        self._usage = UsageCount(policy)
        self.backfills: dict[str, BackfillReservation] = {}  # by partition
        self._measure()

    def count(self, used: Used) -> None:
        """Count running jobs against the limits. `used` is charged GPU seconds of accounts and users."""
        self._usage = usage_count = UsageCount(self._policy, used)
        for job in self._running if usage_count.has_limits else ():
            seconds = max(0.0, job.until - self._now) if job.until < math.inf else 0.0
            charge = sum(charged(hold, self._usable.get(hold.gpu, 0)) for hold in job.holds)
            share = sum(hold.share for hold in job.holds)
            usage_count.take(job.partition, job.owner, share, charge * seconds / WHOLE)

    def may_fit(self, group: ClassQueue) -> bool:
        """Return False if the job class certainly does not fit, from a quick check."""
        gpus = group.gpus
        if gpus and (
            gpus > self._gpus or self._shares[gpus - 1] < group.share or group.memory > self._memory
        ):
            return False
        return group.cpus <= self._host.cpus and group.host_memory <= self._host.memory

    def _measure(self) -> None:
        """Prepare the quick check: free shares in descending order, and the most free memory on a GPU."""
        up = [room for room in self._free if room.gpu.state is GpuState.OK]
        self._gpus = len(up)
        self._shares = sorted((room.share for room in up), reverse=True)
        self._memory = max((room.memory for room in up), default=0)

    def find(self, kind: JobClass) -> tuple[str, tuple[Hold, ...]] | None:
        """Return the first partition that can start a job of the class, with its holds, or None."""
        for name in kind.partitions:
            if self._full and (kind.demand, name, self._visibility(kind)) in self._full:
                continue
            if self._blocked and (name, kind.owner) in self._blocked:
                continue
            if self.blocking_rule(kind, name) is not None:
                continue
            place = self._place(kind, name)
            if not isinstance(place, Shortfall):
                return name, place
        return None

    def rule(self, kind: JobClass, name: str) -> Shortfall | None:
        """Return the rule of a partition or reservation that prevents the job class, or None."""
        shortfall = partition_rule(self._policy.partition(name), name, kind.time_limit)
        if shortfall is not None or not kind.reservation:
            return shortfall
        reservation = self._policy.reservation(kind.reservation)
        return reservation_rule(reservation, kind.reservation, kind.time_limit, self._now)

    def limits_reached(self, kind: JobClass, name: str) -> list[tuple[Scope, Shortfall]]:
        """Return every limit that prevents the job class in a partition."""
        partition = self._policy.partition(name)
        if partition is None:
            return []
        return list(self._usage.blocking_limits(*self._least_usage(kind, partition)))

    def blocking_rule(self, kind: JobClass, name: str) -> Shortfall | None:
        """Return the rule or limit that prevents the job class; None if only capacity is missing."""
        partition = self._policy.partition(name)
        shortfall = self.rule(kind, name)
        if shortfall is not None or partition is None or not self._usage.has_limits:
            return shortfall
        shortfall = self._usage.blocking_limit(*self._least_usage(kind, partition))
        if shortfall is not None and shortfall.what == "running":
            self._blocked.add((name, kind.owner))
        return shortfall

    def _least_usage(self, kind: JobClass, partition: Partition) -> LimitUsage:
        """Return the least usage of limits that a job of the class causes."""
        gpus, name = kind.demand.gpus, partition.name
        if not gpus or not self._usage.has_limits:
            return LimitUsage(name, kind.owner, 0, 0.0)
        step = self._limits[name].share_step
        costs = [cost(kind.demand, room.gpu, step) for room in self._rooms(partition)]
        share = min((hold.share for hold in costs), default=0)
        charge = min((charged(hold, self._usable[hold.gpu]) for hold in costs), default=0)
        return LimitUsage(name, kind.owner, share * gpus, charge * gpus * kind.time_limit / WHOLE)

    def _rooms(self, partition: Partition) -> list[Room]:
        gpus = partition.gpus
        return [room for room in self._free if room.gpu.index in gpus] if gpus else self._free

    def _until(self, kind: JobClass) -> float:
        return self._now + kind.time_limit if kind.time_limit else math.inf

    def _visibility(self, kind: JobClass) -> str | int:
        """Return a key for job classes that see the same GPUs, given the reservations of operators."""
        if not self._calendar.reservations:
            return kind.reservation
        return kind.reservation or self._calendar.relevant(self._until(kind))

    def rooms_for(self, kind: JobClass, name: str) -> Sequence[Room]:
        """Return the capacity of a partition for the job class, without the reservations of operators."""
        partition = self._policy.partition(name)
        gpus = partition.gpus if partition else ()
        rooms = self._calendar.rooms(kind.reservation, self._until(kind))
        return [room for room in rooms if room.gpu.index in gpus] if gpus else rooms

    def reserved_for_others(self, kind: JobClass, name: str, demand: Demand) -> Shortfall | None:
        """Return the reservation that prevents the demand from fitting; None if no reservation does."""
        partition = self._policy.partition(name)
        until = self._until(kind)
        if kind.reservation or partition is None or not self._calendar.relevant(until):
            return None
        gpus, limits = partition.gpus, self._limits[name]

        def is_enough(rooms: Sequence[Room]) -> bool:
            rooms = [room for room in rooms if not gpus or room.gpu.index in gpus]
            return not isinstance(attempt(demand, rooms, self._host, limits), Shortfall)

        if not is_enough(self._free) or is_enough(self.rooms_for(kind, name)):
            return None
        blocking_reservation = self._calendar.blocking_reservation(until, is_enough)
        return Shortfall(
            Reason.RESERVATION,
            "room",
            need=kind.time_limit,
            remaining=blocking_reservation.start,
            total=blocking_reservation.end,
            scope=blocking_reservation.name,
        )

    def _place(self, kind: JobClass, name: str) -> tuple[Hold, ...] | Shortfall:
        """Return the holds of a job of the class in a partition beside all reservations, or the shortfall."""
        partition = self._policy.partition(name)
        assert partition is not None
        demand, limits, rooms = kind.demand, self._limits[name], self.rooms_for(kind, name)
        place = attempt(demand, rooms, self._host, limits)
        if isinstance(place, Shortfall):
            self._full.add((demand, name, self._visibility(kind)))
            return self.reserved_for_others(kind, name, demand) or place
        relevant = self._relevant(kind)
        if not all(
            backfill.allows(demand, place, self._until(kind), kind.reservation) for backfill in relevant
        ):
            place = self._place_beside(kind, rooms, limits, relevant)
        if isinstance(place, Shortfall) or not self._usage.has_limits:
            return place
        shortfall = self._limit_shortfall(kind, name, place)
        return place if shortfall is None else self._cheaper(kind, name, rooms) or shortfall

    def _relevant(self, kind: JobClass) -> list[BackfillReservation]:
        """Return the backfill reservations that begin before a job of the class ends."""
        until = self._until(kind)
        return [backfill for backfill in self.backfills.values() if not backfill.is_over(until)]

    def _limit_shortfall(self, kind: JobClass, name: str, holds: Sequence[Hold]) -> Shortfall | None:
        """Return the limit that prevents a job of the class with these holds, or None."""
        usage = self._usage_of(kind, name, holds)
        if (shortfall := self._usage.blocking_limit(*usage)) is not None:
            return shortfall
        if any(self.uses_up_limit_of(backfill, usage) for backfill in self.backfills.values()):
            return Shortfall(Reason.RESERVED_FOR_TOP)
        return None

    def uses_up_limit_of(self, backfill: BackfillReservation, usage: LimitUsage) -> bool:
        """Tell whether a job with this usage would use up a limit that a reserved job needs."""
        limit_usage = backfill.usage if backfill.at < math.inf else None
        return limit_usage is not None and not self._usage.has_room_beside(limit_usage, usage)

    def _cheaper(self, kind: JobClass, name: str, rooms: Sequence[Room]) -> tuple[Hold, ...] | None:
        """Return holds within the limits on GPUs that cost less than the preferred ones, or None.

        The most expensive GPUs are left out first. The last attempt is the cheapest GPUs: if these exceed a
        limit, so do all others, now and after later jobs of the plan have taken some of them.
        """
        demand, limits = kind.demand, self._limits[name]
        backfills = [backfill for backfill in self._relevant(kind) if backfill.pool == kind.reservation]
        costs = sorted(
            (hold.share, charged(hold, room.gpu.usable), position)
            for position, room in enumerate(rooms)
            if (hold := fits(demand, room, limits)) and all(backfill.has_room(hold) for backfill in backfills)
        )
        for count in range(len(costs) - 1, demand.gpus - 1, -1):
            if count > demand.gpus and costs[count - 1][:2] == costs[count][:2]:
                continue
            place = attempt(demand, [rooms[position] for *_, position in costs[:count]], self._host, limits)
            if not isinstance(place, Shortfall) and self._limit_shortfall(kind, name, place) is None:
                return place
        return None

    def _place_beside(
        self,
        kind: JobClass,
        rooms: Sequence[Room],
        limits: HostLimits,
        relevant: Sequence[BackfillReservation],
    ) -> tuple[Hold, ...] | Shortfall:
        """Return a place that does not delay the backfill reservations."""
        demand, pool_backfills = (
            kind.demand,
            [backfill for backfill in relevant if backfill.pool == kind.reservation],
        )
        reserved = Shortfall(
            Reason.RESERVED_FOR_TOP,
            gpu=min((gpu for backfill in pool_backfills for gpu in backfill.spare), default=None),
        )
        if not all(backfill.host.fits(demand) for backfill in relevant):
            return reserved
        step = limits.share_step
        rooms_left = [
            room
            for room in rooms
            if all(backfill.has_room(cost(demand, room.gpu, step)) for backfill in pool_backfills)
        ]
        place = attempt(demand, rooms_left, self._host, limits) if rooms_left else reserved
        return reserved if isinstance(place, Shortfall) else place

    def _usage_of(self, kind: JobClass, name: str, holds: Sequence[Hold]) -> LimitUsage:
        """Return the usage of limits by a job with these holds."""
        charge = sum(charged(hold, self._usable[hold.gpu]) for hold in holds)
        return LimitUsage(
            name, kind.owner, sum(hold.share for hold in holds), charge * kind.time_limit / WHOLE
        )

    def take(self, kind: JobClass, partition: str, holds: tuple[Hold, ...]) -> None:
        """Remove the capacity of a job that starts."""
        until, pool = self._until(kind), kind.reservation
        for backfill in self.backfills.values():
            backfill.take(kind.demand, holds, until, pool)
        self._host = self._host.less(kind.demand)
        for hold in holds:
            self._free[self._at[hold.gpu]] = self._free[self._at[hold.gpu]].less(hold)
        self._running.append(Running(kind.demand, holds, until, partition, kind.owner, reservation=pool))
        self._calendar.take(holds, until, pool)
        if self._usage.has_limits:
            self._usage.take(*self._usage_of(kind, partition, holds))
        self._measure()

    def reserve(self, kind: JobClass, name: str) -> BackfillReservation | None:
        partition = self._policy.partition(name)
        assert partition is not None
        rooms, limits, before = self._rooms(partition), self._limits[name], self.backfills.values()
        if self._policy.reservations:
            backfill_reservation = self._earliest(kind, partition)
        else:
            backfill_reservation = reserve(
                kind.demand, self._running, rooms, self._host, limits=limits, before=before
            )
        if backfill_reservation is not None and self._usage.has_limits:
            backfill_reservation.usage = self._least_usage(kind, partition)
        return backfill_reservation

    def _earliest(self, kind: JobClass, partition: Partition) -> BackfillReservation | None:
        """Return the earliest backfill reservation beside operators' reservations; capacity can shrink."""
        free = {room.gpu.index: room for room in self._rooms(partition)}
        host = self._host
        for backfill in self.backfills.values():
            host = host.less(backfill.demand)
            for hold in backfill.holds if backfill.pool == kind.reservation else ():
                if hold.gpu in free:
                    free[hold.gpu] = free[hold.gpu].less(hold)
        limits = self._limits[partition.name]
        ends = sorted({job.until for job in self._running if job.until > self._now})
        reservations = self._policy.reservations
        later = {float(reservation.end) for reservation in reservations if reservation.end > self._now}
        tried = 0
        for at in sorted(later.union(ends)):
            rooms, host_room = after_ends((job for job in self._running if job.until <= at), free, host)
            if isinstance(attempt(kind.demand, rooms, host_room, limits), Shortfall):
                continue
            tried += at in ends
            if tried > _MAX_ENDS and at in ends[:-1]:
                continue
            if kind.reservation and reservation_rule(
                self._policy.reservation(kind.reservation), kind.reservation, kind.time_limit, at
            ):
                continue
            alive = [job for job in self._running if job.until > at]
            until = at + kind.time_limit if kind.time_limit else math.inf
            rooms = list(Calendar.of(reservations, alive, rooms, at).rooms(kind.reservation, until))
            holds = attempt(kind.demand, rooms, host_room, limits)
            if not isinstance(holds, Shortfall):
                room_of = {room.gpu.index: room for room in rooms}
                spare = {hold.gpu: room_of[hold.gpu].less(hold) for hold in holds}
                host_room, max_jobs = host_room.less(kind.demand), limits.max_jobs_per_gpu
                return BackfillReservation(
                    at, kind.demand, holds, spare, host_room, pool=kind.reservation, max_jobs=max_jobs
                )
        return None

    def shortfall_of(self, kind: JobClass) -> Shortfall | None:
        """Return the shortfall of the first partition for a job class that cannot start."""
        first: Shortfall | None = None
        for name in kind.partitions:
            shortfall = self.blocking_rule(kind, name)
            if shortfall is None:
                place = self._place(kind, name)
                shortfall = place if isinstance(place, Shortfall) else None
            if shortfall is not None:
                first = first or shortfall
        return first
