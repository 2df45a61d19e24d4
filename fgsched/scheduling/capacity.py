"""Track free and reserved capacity during one plan, and find a place for a job class."""

import math
from collections.abc import Mapping, Sequence

from fgsched.domain.job import WHOLE, Demand, GpuState, Hold, HostLimits, Reason
from fgsched.domain.policy import Partition, Policy
from fgsched.scheduling.backfill import BackfillReservation, Running, attempt, once_over, reserve
from fgsched.scheduling.limits import JobUsage, Key, Owner, Scope, UsageCount, against
from fgsched.scheduling.placement import Host, Room, Shortfall, charged, cost
from fgsched.scheduling.priority import JobClass
from fgsched.scheduling.queue import Group
from fgsched.scheduling.reservations import Calendar, closed

Used = Mapping[Key, float]
_LOOKED_AT = 16  # ends of jobs at which a place between operators' reservations is looked for


class Capacity:
    """Free capacity during one plan. It only shrinks: `take` removes from it."""

    def __init__(
        self,
        running: Sequence[Running],
        free: Sequence[Room],
        host: Host,
        *,
        limits: HostLimits,
        policy: Policy,
        now: float,
    ) -> None:
        self._running, self._host, self._now, self._policy = list(running), host, now, policy
        self._free = list(free)
        self._at = {room.gpu.index: position for position, room in enumerate(self._free)}
        self._usable = {room.gpu.index: room.gpu.usable for room in self._free}
        self._limits = {one.name: one.limits(limits) for one in policy.partitions}
        self._full: set[tuple[Demand, str, str | int]] = set()  # what does not fit once never does
        self._calendar = Calendar.of(policy.reservations, self._running, self._free, now)
        self._blocked: set[tuple[str, Owner]] = set()  # as many jobs of these run as may
        self._tally = UsageCount(policy)
        self.shadows: dict[str, BackfillReservation] = {}  # by partition
        self._measure()

    def count(self, used: Used) -> None:
        """Count running jobs against the limits. `used` is charged GPU seconds of accounts and users."""
        self._tally = usage_count = UsageCount(self._policy, used)
        for job in self._running if usage_count.counts else ():
            left = max(0.0, job.until - self._now) if job.until < math.inf else 0.0
            charge = sum(charged(hold, self._usable.get(hold.gpu, 0)) for hold in job.holds)
            share = sum(hold.share for hold in job.holds)
            usage_count.take(job.partition, job.who, share, charge * left / WHOLE)

    def may_fit(self, group: Group) -> bool:
        """Return False if the job class certainly does not fit, from a quick check."""
        gpus = group.gpus
        if gpus and (
            gpus > self._cards or self._shares[gpus - 1] < group.share or group.memory > self._memory
        ):
            return False
        return group.cpus <= self._host.cpus and group.host_memory <= self._host.memory

    def _measure(self) -> None:
        """Prepare the quick check: free shares in descending order, and the most free memory on a GPU."""
        up = [room for room in self._free if room.gpu.state is GpuState.OK]
        self._cards = len(up)
        self._shares = sorted((room.share for room in up), reverse=True)
        self._memory = max((room.memory for room in up), default=0)

    def find(self, kind: JobClass) -> tuple[str, tuple[Hold, ...]] | None:
        """Return the first partition that can start a job of the class, with its holds, or None."""
        for name in kind.partitions:
            if self._full and (kind.demand, name, self._view(kind)) in self._full:
                continue
            if self._blocked and (name, kind.who) in self._blocked:
                continue
            if self.kept_back(kind, name) is not None:
                continue
            found = self._place(kind, name)
            if not isinstance(found, Shortfall):
                return name, found
        return None

    def rule(self, kind: JobClass, name: str) -> Shortfall | None:
        """Return the rule of a partition or reservation that prevents the job class, or None."""
        short = against(self._policy.partition(name), name, kind.time_limit)
        if short is not None or not kind.reservation:
            return short
        reservation = self._policy.reservation(kind.reservation)
        return closed(reservation, kind.reservation, kind.time_limit, self._now)

    def limits_hit(self, kind: JobClass, name: str) -> list[tuple[Scope, Shortfall]]:
        """Return every limit that prevents the job class in a partition."""
        partition = self._policy.partition(name)
        if partition is None:
            return []
        return list(self._tally.all_blocked(*self._least(kind, partition)))

    def kept_back(self, kind: JobClass, name: str) -> Shortfall | None:
        """Return the rule or limit that prevents the job class; None if only capacity is missing."""
        partition = self._policy.partition(name)
        short = self.rule(kind, name)
        if short is not None or partition is None or not self._tally.counts:
            return short
        short = self._tally.blocked(*self._least(kind, partition))
        if short is not None and short.what == "running":
            self._blocked.add((name, kind.who))
        return short

    def _least(self, kind: JobClass, partition: Partition) -> JobUsage:
        """Return the least usage of limits that a job of the class causes."""
        gpus, name = kind.demand.gpus, partition.name
        if not gpus or not self._tally.counts:
            return JobUsage(name, kind.who, 0, 0.0)
        step = self._limits[name].share_step
        costs = [cost(kind.demand, room.gpu, step) for room in self._rooms(partition)]
        share = min((hold.share for hold in costs), default=0)
        charge = min((charged(hold, self._usable[hold.gpu]) for hold in costs), default=0)
        return JobUsage(name, kind.who, share * gpus, charge * gpus * kind.time_limit / WHOLE)

    def _rooms(self, partition: Partition) -> list[Room]:
        cards = partition.cards
        return [room for room in self._free if room.gpu.index in cards] if cards else self._free

    def _until(self, kind: JobClass) -> float:
        return self._now + kind.time_limit if kind.time_limit else math.inf

    def _view(self, kind: JobClass) -> str | int:
        """Return a key for job classes that see the same GPUs, given the reservations of operators."""
        if not self._calendar.reservations:
            return kind.reservation
        return kind.reservation or self._calendar.minded(self._until(kind))

    def open_to(self, kind: JobClass, name: str) -> Sequence[Room]:
        """Return the capacity of a partition that operators' reservations leave to the job class."""
        partition = self._policy.partition(name)
        cards = partition.cards if partition else ()
        rooms = self._calendar.rooms(kind.reservation, self._until(kind))
        return [room for room in rooms if room.gpu.index in cards] if cards else rooms

    def reserved_for_others(self, kind: JobClass, name: str, demand: Demand) -> Shortfall | None:
        """Return the reservation without which the demand would fit, or None."""
        partition = self._policy.partition(name)
        until = self._until(kind)
        if kind.reservation or partition is None or not self._calendar.minded(until):
            return None
        cards, limits = partition.cards, self._limits[name]

        def is_enough(rooms: Sequence[Room]) -> bool:
            rooms = [room for room in rooms if not cards or room.gpu.index in cards]
            return not isinstance(attempt(demand, rooms, self._host, limits), Shortfall)

        if not is_enough(self._free) or is_enough(self.open_to(kind, name)):
            return None
        found = self._calendar.in_the_way(until, is_enough)
        window = {"need": kind.time_limit, "left": found.start, "total": found.end}
        return Shortfall(Reason.RESERVATION, "room", who=found.name, **window)

    def _place(self, kind: JobClass, name: str) -> tuple[Hold, ...] | Shortfall:
        """Return the holds of a job of the class in a partition beside all reservations, or what is short."""
        partition = self._policy.partition(name)
        assert partition is not None
        demand, limits, rooms = kind.demand, self._limits[name], self.open_to(kind, name)
        found = attempt(demand, rooms, self._host, limits)
        if isinstance(found, Shortfall):
            self._full.add((demand, name, self._view(kind)))
            return self.reserved_for_others(kind, name, demand) or found
        if self._tally.counts and demand.gpus and not demand.share:  # what it takes differs from card to card
            rooms, found = self._affordable(kind, name, rooms, found)
        until, pool = self._until(kind), kind.reservation
        minded = [shadow for shadow in self.shadows.values() if not shadow.is_over(until)]
        if not all(shadow.allows(demand, found, until, pool) for shadow in minded):
            found = self._beside(kind, rooms, limits, minded)
        if not isinstance(found, Shortfall) and self._tally.counts:
            part = self._part(kind, name, found)
            if (short := self._tally.blocked(*part)) is not None:
                return short
            if any(self.takes_place(shadow, part) for shadow in self.shadows.values()):
                return Shortfall(Reason.RESERVED_FOR_TOP)
        return found

    def takes_place(self, shadow: BackfillReservation, part: JobUsage) -> bool:
        """Tell whether a job with this usage would use up a limit that a reserved job needs."""
        kept = shadow.part if shadow.at < math.inf else None
        return kept is not None and not self._tally.has_place_beside(kept, part)

    def _affordable(
        self, kind: JobClass, name: str, rooms: Sequence[Room], found: tuple[Hold, ...]
    ) -> tuple[Sequence[Room], tuple[Hold, ...]]:
        """Restrict the GPUs so that the job stays within the limits; unchanged if that leaves none."""
        limits, gpus, left = self._limits[name], kind.demand.gpus, []
        for room in rooms:
            holds = [cost(kind.demand, room.gpu, limits.share_step)] * gpus
            if self._tally.blocked(*self._part(kind, name, holds)) is None:
                left.append(room)
        there = attempt(kind.demand, left, self._host, limits) if len(left) >= gpus else None
        return (rooms, found) if there is None or isinstance(there, Shortfall) else (left, there)

    def _beside(
        self, kind: JobClass, rooms: Sequence[Room], limits: HostLimits, minded: Sequence[BackfillReservation]
    ) -> tuple[Hold, ...] | Shortfall:
        """Return a place that does not delay the backfill reservations."""
        demand, here = kind.demand, [shadow for shadow in minded if shadow.pool == kind.reservation]
        reserved = Shortfall(
            Reason.RESERVED_FOR_TOP, gpu=min((gpu for shadow in here for gpu in shadow.spare), default=None)
        )
        if not all(shadow.host.fits(demand) for shadow in minded):
            return reserved
        step = limits.share_step
        left = [
            room for room in rooms if all(shadow.has_room(cost(demand, room.gpu, step)) for shadow in here)
        ]
        found = attempt(demand, left, self._host, limits) if left else reserved
        return reserved if isinstance(found, Shortfall) else found

    def _part(self, kind: JobClass, name: str, holds: Sequence[Hold]) -> JobUsage:
        """Return the usage of limits by a job with these holds."""
        charge = sum(charged(hold, self._usable[hold.gpu]) for hold in holds)
        return JobUsage(name, kind.who, sum(hold.share for hold in holds), charge * kind.time_limit / WHOLE)

    def take(self, kind: JobClass, partition: str, holds: tuple[Hold, ...]) -> None:
        """Remove the capacity of a job that starts."""
        until, pool = self._until(kind), kind.reservation
        for shadow in self.shadows.values():
            shadow.take(kind.demand, holds, until, pool)
        self._host = self._host.less(kind.demand)
        for hold in holds:
            self._free[self._at[hold.gpu]] = self._free[self._at[hold.gpu]].less(hold)
        self._running.append(Running(kind.demand, holds, until, partition, kind.who, reservation=pool))
        self._calendar.take(holds, until, pool)
        if self._tally.counts:
            self._tally.take(*self._part(kind, partition, holds))
        self._measure()

    def reserve(self, kind: JobClass, name: str) -> BackfillReservation | None:
        partition = self._policy.partition(name)
        assert partition is not None
        rooms, limits, before = self._rooms(partition), self._limits[name], self.shadows.values()
        if self._policy.reservations:
            found = self._soonest(kind, partition)
        else:
            found = reserve(kind.demand, self._running, rooms, self._host, limits=limits, before=before)
        if found is not None and self._tally.counts:
            found.part = self._least(kind, partition)
        return found

    def _soonest(self, kind: JobClass, partition: Partition) -> BackfillReservation | None:
        """Return a backfill reservation beside operators' reservations, where capacity can shrink."""
        free = {room.gpu.index: room for room in self._rooms(partition)}
        host = self._host
        for shadow in self.shadows.values():
            host = host.less(shadow.demand)
            for hold in shadow.holds if shadow.pool == kind.reservation else ():
                if hold.gpu in free:
                    free[hold.gpu] = free[hold.gpu].less(hold)
        limits = self._limits[partition.name]
        ends = sorted({job.until for job in self._running if job.until > self._now})
        tried = 0
        for at in sorted(
            {*ends, *(float(one.end) for one in self._policy.reservations if one.end > self._now)}
        ):
            rooms, left = once_over((job for job in self._running if job.until <= at), free, host)
            if isinstance(attempt(kind.demand, rooms, left, limits), Shortfall):
                continue
            tried += at in ends
            if tried > _LOOKED_AT and at in ends[:-1]:
                continue
            if kind.reservation and closed(
                self._policy.reservation(kind.reservation), kind.reservation, kind.time_limit, at
            ):
                continue
            alive = [job for job in self._running if job.until > at]
            until = at + kind.time_limit if kind.time_limit else math.inf
            rooms = list(
                Calendar.of(self._policy.reservations, alive, rooms, at).rooms(kind.reservation, until)
            )
            found = attempt(kind.demand, rooms, left, limits)
            if not isinstance(found, Shortfall):
                there = {room.gpu.index: room for room in rooms}
                spare = {hold.gpu: there[hold.gpu].less(hold) for hold in found}
                left, most = left.less(kind.demand), limits.max_jobs_per_gpu
                return BackfillReservation(
                    at, kind.demand, found, spare, left, pool=kind.reservation, most=most
                )
        return None

    def why(self, kind: JobClass) -> Shortfall | None:
        """Return what the first partition is short of for a job class that cannot start."""
        first: Shortfall | None = None
        for name in kind.partitions:
            short = self.kept_back(kind, name)
            if short is None:
                found = self._place(kind, name)
                short = found if isinstance(found, Shortfall) else None
            if short is not None:
                first = first or short
        return first
