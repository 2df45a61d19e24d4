"""Capacity that is kept for later: reservations of operators, and backfill reservations of one plan.

A reservation of an operator keeps GPUs, or fractions of them, for users or maintenance during a period.

The capacity for jobs outside a reservation is computed at certain times: now, and each start of a reservation
before the job's limit. Between these times no reservation begins, and running jobs only end.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from fgsched.domain.job import WHOLE, Demand, Hold, HostLimits
from fgsched.domain.policy import Reservation
from fgsched.domain.states import Reason
from fgsched.domain.waiting import Shortfall
from fgsched.scheduling.limits import NO_OWNER, LimitedUser, LimitUsage
from fgsched.scheduling.placement import HostRoom, Room, place

# -- backfill: GPUs and start time of a job that does not fit, and the capacity kept for it --------


class Running(NamedTuple):
    """A job that holds resources, as the planner sees it."""

    demand: Demand
    holds: tuple[Hold, ...]
    until: float = math.inf  # when its time limit ends it, seconds since the epoch
    partition: str = "main"
    owner: LimitedUser = NO_OWNER
    id: int = 0
    reservation: str = ""  # of an operator, that it belongs to


class BackfillReservation(Struct):
    """The reservation of the first job of a partition that does not fit."""

    at: float  # start by the time limits of the running jobs, in seconds since the epoch
    demand: Demand
    holds: tuple[Hold, ...]  # of the job at that time
    spare: dict[int, Room]  # capacity beside the job on its GPUs at that time
    host: HostRoom  # CPUs, host memory and resources beside the job at that time
    job: int = 0  # id
    pool: str = ""  # the operator's reservation of the job
    usage: LimitUsage | None = None  # of limits, reserved as well; None: there are no limits
    max_jobs: int = 0  # jobs on its GPU, including the job itself; 0: no limit

    def is_over(self, until: float) -> bool:
        """Tell whether a job that ends at `until` (epoch seconds) ends before the reservation."""
        return until <= self.at and until != math.inf

    def has_room(self, hold: Hold) -> bool:
        """Tell whether the reserved job still fits on this GPU beside `hold`."""
        spare = self.spare.get(hold.gpu)
        if spare is None:
            return True
        is_full = self.max_jobs and spare.jobs >= self.max_jobs
        return not is_full and hold.share <= spare.share and hold.memory <= spare.memory

    def allows(self, demand: Demand, holds: Sequence[Hold], until: float, pool: str = "") -> bool:
        """Tell whether a job with `holds` until `until` (epoch seconds) does not delay the reserved job."""
        if self.is_over(until):
            return True
        return self.host.fits(demand) and (pool != self.pool or all(self.has_room(hold) for hold in holds))

    def take(self, demand: Demand, holds: Sequence[Hold], until: float, pool: str = "") -> None:
        """Record a backfilled job that may run until `until` (epoch seconds).

        Capacity that it still holds at the reserved time is no longer spare.
        """
        if self.is_over(until):
            return
        self.host = self.host.less(demand)
        for hold in holds if pool == self.pool else ():
            if hold.gpu in self.spare:
                self.spare[hold.gpu] = self.spare[hold.gpu].less(hold)


def attempt(
    demand: Demand, free: Sequence[Room], host: HostRoom, limits: HostLimits
) -> tuple[Hold, ...] | Shortfall:
    """Return the holds for the demand, or the shortfall."""
    if host.fits(demand):
        return place(demand, free, limits, host)
    if demand.cpus > host.cpus:
        return Shortfall(Reason.RESOURCES, "cpus", need=demand.cpus, remaining=host.cpus, total=limits.cpus)
    if demand.host_memory > host.memory:
        need, total = demand.host_memory, limits.host_memory
        return Shortfall(Reason.RESOURCES, "host memory", need=need, remaining=host.memory, total=total)
    shortfall = {name: count for name, count in demand.resources if count > host.resources.get(name, 0)}
    name, need = next(iter(shortfall.items()))
    return Shortfall(Reason.LICENSES, name, need=need, remaining=host.resources.get(name, 0))


def reserve(
    demand: Demand,
    running: Iterable[Running],
    free: Sequence[Room],
    host: HostRoom,
    *,
    limits: HostLimits,
    before: Iterable[BackfillReservation] = (),
) -> BackfillReservation | None:
    """Return the earliest reservation for `demand` if running jobs end at their limits, or None.

    Capacity of earlier reservations (`before`) is not available. The capacity only grows when jobs end, so
    the time is found by bisection.
    """
    later = {room.gpu.index: room for room in free}
    for backfill in before:
        host = host.less(backfill.demand)
        for hold in backfill.holds:
            if hold.gpu in later:
                later[hold.gpu] = later[hold.gpu].less(hold)
    ends = sorted(running, key=lambda job: job.until)
    if not ends or isinstance(attempt(demand, *after_ends(ends, later, host), limits), Shortfall):
        return None  # not even on an empty host: a GPU is drained, or fewer than when it was submitted
    low, high = 0, len(ends)  # it fits after the first `high` of them
    while low < high:
        middle = (low + high) // 2
        attempted = attempt(demand, *after_ends(ends[:middle], later, host), limits)
        low, high = (middle + 1, high) if isinstance(attempted, Shortfall) else (low, middle)
    at = ends[max(0, high - 1)].until
    over = [job for job in ends if job.until <= at] if at < math.inf else ends[: max(1, high)]
    rooms, host = after_ends(over, later, host)
    attempted = attempt(demand, rooms, host, limits)
    assert not isinstance(attempted, Shortfall)
    room_of = {room.gpu.index: room for room in rooms}
    spare = {hold.gpu: room_of[hold.gpu].less(hold) for hold in attempted}
    return BackfillReservation(
        at, demand, attempted, spare, host.less(demand), max_jobs=limits.max_jobs_per_gpu
    )


def after_ends(jobs: Iterable[Running], free: dict[int, Room], host: HostRoom) -> tuple[list[Room], HostRoom]:
    """Return the free capacity after `jobs` have also ended."""
    back: dict[int, list[Hold]] = {}
    cpus, memory, resources = host.cpus, host.memory, dict(host.resources)
    for job in jobs:
        cpus, memory = cpus + job.demand.cpus, memory + job.demand.host_memory
        for name, count in job.demand.resources:
            resources[name] = resources.get(name, 0) + count
        for hold in job.holds:
            back.setdefault(hold.gpu, []).append(hold)
    rooms = [room if index not in back else _with_ended(room, back[index]) for index, room in free.items()]
    return rooms, HostRoom(cpus, memory, host.waste, resources)


def _with_ended(room: Room, holds: Sequence[Hold]) -> Room:
    return replace(
        room,
        share=room.share + sum(hold.share for hold in holds),
        memory=room.memory + sum(hold.memory for hold in holds),
        jobs=room.jobs - len(holds),
    )


# -- reservations of operators ---------------------------------------------------------------------

Amount = tuple[int, int]  # share, memory
_NONE: Amount = (0, 0)


class _Boundary(Struct):
    """The capacity for jobs without a reservation at one time, by GPU."""

    at: float
    rooms: dict[int, Room]


class Calendar(Struct):
    """The reservations during one plan. Capacity only shrinks here."""

    reservations: Sequence[Reservation]
    free: Sequence[Room]  # free capacity now; its owner changes it during the plan
    now: float
    _boundaries: list[_Boundary] = field(default_factory=list)
    _held: dict[str, dict[int, Amount]] = field(default_factory=dict)  # by the jobs of each
    _seen: dict[int, list[Room]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, reservations: Iterable[Reservation], running: Sequence[Running], free: Sequence[Room], now: float
    ) -> "Calendar":
        current = [reservation for reservation in reservations if reservation.end > now]
        calendar = cls(current, free, now)
        for at in sorted({max(now, reservation.start) for reservation in current}):
            calendar._boundaries.append(_Boundary(at, _free_at(current, running, free, at, is_now=at == now)))
        calendar._held = {reservation.name: _members(reservation, running) for reservation in current}
        return calendar

    def relevant(self, until: float) -> int:
        """Return the number of capacity changes before `until` (epoch seconds)."""
        return sum(1 for boundary in self._boundaries if boundary.at < until)

    def rooms(self, name: str, until: float) -> Sequence[Room]:
        """Return the capacity for a job of reservation `name` ("": none) until `until` (epoch seconds)."""
        if name:
            return self._own(name)
        count = self.relevant(until)
        return self._open(count) if count else self.free

    def _open(self, count: int) -> list[Room]:
        if count not in self._seen:
            moments = [boundary.rooms for boundary in self._boundaries[:count]]
            self._seen[count] = [
                _minimum(room, [moment[room.gpu.index] for moment in moments]) for room in self.free
            ]
        return self._seen[count]

    def _own(self, name: str) -> list[Room]:
        reservation = next(
            (reservation for reservation in self.reservations if reservation.name == name), None
        )
        if reservation is None or reservation.start > self.now:
            return []
        reserved = {hold.gpu: (hold.share, hold.memory) for hold in reservation.holds}
        used = self._held[name]
        return [
            _minimum(room, [replace(room, share=share - used_share, memory=memory - used_memory)])
            for room in self.free
            if room.gpu.index in reserved
            for (share, memory), (used_share, used_memory) in [
                (reserved[room.gpu.index], used.get(room.gpu.index, _NONE))  # of this GPU
            ]
        ]

    def blocking_reservation(self, until: float, is_enough: Callable[[Sequence[Room]], bool]) -> Reservation:
        """Return the reservation that leaves too little for a job until `until` (epoch seconds)."""
        for count, boundary in enumerate(self._boundaries, 1):
            if boundary.at >= until or not is_enough(self._open(count)):
                break
        active = [
            reservation
            for reservation in self.reservations
            if reservation.start <= boundary.at < reservation.end
        ]
        return max(active, key=lambda reservation: (reservation.start, reservation.name))

    def take(self, holds: Iterable[Hold], until: float, name: str) -> None:
        """Remove the holds of a job of reservation `name` ("": none) until `until` (epoch seconds)."""
        self._seen.clear()
        own_reservation = {reservation.name: reservation for reservation in self.reservations}.get(name)
        for hold in holds:
            if own_reservation is not None:
                used_share, used_memory = self._held[name].get(hold.gpu, _NONE)
                self._held[name][hold.gpu] = (used_share + hold.share, used_memory + hold.memory)
            for boundary in self._boundaries:
                inside = (
                    own_reservation is not None and own_reservation.start <= boundary.at < own_reservation.end
                )
                if boundary.at < until and not inside:
                    boundary.rooms[hold.gpu] = _reduced(boundary.rooms[hold.gpu], hold.share, hold.memory)


def _reduced(room: Room, share: int, memory: int) -> Room:
    """Return the room without this share and memory; its number of jobs is unchanged."""
    return replace(room, share=room.share - share, memory=room.memory - memory)


def _minimum(room: Room, bounds: Iterable[Room]) -> Room:
    share = min(room.share, *(other.share for other in bounds))
    return replace(room, share=share, memory=min(room.memory, *(other.memory for other in bounds)))


def _members(reservation: Reservation, running: Iterable[Running]) -> dict[int, Amount]:
    """Return the holds of a reservation's jobs on each GPU."""
    held_by_gpu: dict[int, Amount] = {}
    for job in running:
        for hold in job.holds if job.reservation == reservation.name else ():
            share, memory = held_by_gpu.get(hold.gpu, _NONE)
            held_by_gpu[hold.gpu] = (share + hold.share, memory + hold.memory)
    return held_by_gpu


def _free_at(
    reservations: Iterable[Reservation],
    running: Sequence[Running],
    free: Iterable[Room],
    at: float,
    *,
    is_now: bool,
) -> dict[int, Room]:
    """Return the free capacity at `at`, after the ends of jobs and without the reservations active then."""
    rooms = {room.gpu.index: room for room in free}
    alive = [job for job in running if is_now or job.until > at]
    for job in running if not is_now else ():
        for hold in job.holds if job.until <= at else ():
            if hold.gpu in rooms:
                rooms[hold.gpu] = _reduced(rooms[hold.gpu], -hold.share, -hold.memory)
    for reservation in reservations:
        if reservation.start <= at < reservation.end:
            used = _members(reservation, alive)
            for hold in reservation.holds:
                share, memory = used.get(hold.gpu, _NONE)
                if hold.gpu in rooms:
                    unused = max(0, hold.share - share), max(0, hold.memory - memory)
                    rooms[hold.gpu] = _reduced(rooms[hold.gpu], *unused)
    return rooms


def reservation_rule(
    reservation: Reservation | None, name: str, time_limit: int, now: float
) -> Shortfall | None:
    """Return why a reservation cannot start a job with this time limit (seconds) now, or None."""
    if reservation is None or reservation.end <= now:
        return Shortfall(Reason.RESERVATION, "gone", scope=name)
    if now < reservation.start:
        against = "begin"
    elif not time_limit or now + time_limit > reservation.end:
        against = "end"
    else:
        return None
    return Shortfall(
        Reason.RESERVATION,
        against,
        scope=name,
        need=time_limit,
        remaining=reservation.start,
        total=reservation.end,
    )


def boundaries(reservations: Iterable[Reservation], now: float) -> list[float]:
    """Return the times at which reservations begin or end, in order."""
    return sorted(
        {float(at) for reservation in reservations for at in (reservation.start, reservation.end) if at > now}
    )


def find_overbooking(
    reservation: Reservation, others: Iterable[Reservation], usable: Mapping[int, int]
) -> tuple[int, str] | None:
    """Return (GPU, other reservation) if both together exceed a GPU at some time, or None."""
    beside = [other for other in others if other.name != reservation.name and _overlap(other, reservation)]
    for at in sorted({max(reservation.start, other.start) for other in beside}):
        active = [other for other in beside if other.start <= at < other.end]
        for hold in reservation.holds:
            holds_by_name = {
                other.name: [held for held in other.holds if held.gpu == hold.gpu] for other in active
            }
            holds = [held for gpu_holds in holds_by_name.values() for held in gpu_holds]
            share = sum(held.share for held in holds) + hold.share
            memory = sum(held.memory for held in holds) + hold.memory
            if holds and (share > WHOLE or memory > usable.get(hold.gpu, math.inf)):
                return hold.gpu, next(name for name, gpu_holds in holds_by_name.items() if gpu_holds)
    return None


def _overlap(reservation: Reservation, other: Reservation) -> bool:
    return reservation.start < other.end and other.start < reservation.end


def conflicting_jobs(
    reservation: Reservation,
    others: Iterable[Reservation],
    running: Iterable[Running],
    rooms: Iterable[Room],
    now: float,
) -> list[int]:
    """Return the jobs outside the reservation that may still hold its GPUs while it lasts."""
    free = {room.gpu.index: room for room in rooms}
    outside = []
    for job in running:
        if job.reservation != reservation.name:
            outside.append(job)
            continue
        for hold in job.holds:
            if hold.gpu in free:
                free[hold.gpu] = _reduced(free[hold.gpu], -hold.share, -hold.memory)
    beside = [other for other in others if other.name != reservation.name and _overlap(other, reservation)]
    starts = {max(now, reservation.start, other.start) for other in beside} | {max(now, reservation.start)}
    jobs: set[int] = set()
    for at in starts:
        rooms_left = _free_at(beside, outside, free.values(), at, is_now=at == now)
        shortfall = {hold.gpu for hold in reservation.holds if _lacks(rooms_left.get(hold.gpu), hold)}
        stay = [job for job in outside if at == now or job.until > at]
        jobs |= {job.id for job in stay if shortfall & {hold.gpu for hold in job.holds}}
    return sorted(jobs)


def _lacks(room: Room | None, hold: Hold) -> bool:
    """Tell whether a hold does not fit, ignoring memory of processes that belong to no job."""
    return room is not None and (hold.share > room.share or hold.memory > room.memory + room.external)
