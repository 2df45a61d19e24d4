"""Backfill reservations: GPUs and start time of a job that does not fit, and the capacity kept for it."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.job import Demand, Hold, HostLimits
from fgsched.domain.states import Reason
from fgsched.domain.waiting import Shortfall
from fgsched.scheduling.limits import NO_OWNER, LimitedUser, LimitUsage
from fgsched.scheduling.placement import HostRoom, Room, place


class Running(NamedTuple):
    """A job that holds resources, as the planner sees it."""

    demand: Demand
    holds: tuple[Hold, ...]
    until: float = math.inf  # when its time limit ends it, seconds since the epoch
    partition: str = "main"
    who: LimitedUser = NO_OWNER
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
        return Shortfall(Reason.RESOURCES, "cpus", need=demand.cpus, left=host.cpus, total=limits.cpus)
    if demand.host_memory > host.memory:
        need, total = demand.host_memory, limits.host_memory
        return Shortfall(Reason.RESOURCES, "host memory", need=need, left=host.memory, total=total)
    shortfall = {name: count for name, count in demand.resources if count > host.resources.get(name, 0)}
    name, need = next(iter(shortfall.items()))
    return Shortfall(Reason.LICENSES, name, need=need, left=host.resources.get(name, 0))


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
        return None  # not even on an empty host: a card is drained, or fewer than when it was submitted
    low, high = 0, len(ends)  # it fits after the first `high` of them
    while low < high:
        middle = (low + high) // 2
        found = attempt(demand, *after_ends(ends[:middle], later, host), limits)
        low, high = (middle + 1, high) if isinstance(found, Shortfall) else (low, middle)
    at = ends[max(0, high - 1)].until
    over = [job for job in ends if job.until <= at] if at < math.inf else ends[: max(1, high)]
    rooms, host = after_ends(over, later, host)
    found = attempt(demand, rooms, host, limits)
    assert not isinstance(found, Shortfall)
    there = {room.gpu.index: room for room in rooms}
    spare = {hold.gpu: there[hold.gpu].less(hold) for hold in found}
    return BackfillReservation(at, demand, found, spare, host.less(demand), max_jobs=limits.max_jobs_per_gpu)


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
