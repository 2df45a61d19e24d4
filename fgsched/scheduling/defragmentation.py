"""Choose running jobs to requeue so that a pending job fits on one GPU.

A moved job is ended and started elsewhere, so its work is lost. As few jobs as possible are moved, those that
lose least, and only if all of them and the pending job are certain to fit.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct

from fgsched.domain.job import Demand, GpuState, Hold, HostLimits
from fgsched.scheduling.backfill import attempt
from fgsched.scheduling.placement import Host, Room, Shortfall, fits, is_of_type


class Movable(Struct, frozen=True, gc=False):
    """A running job that may be requeued."""

    id: int
    demand: Demand
    holds: tuple[Hold, ...]
    loss: float  # GPU seconds of work that would be lost


class Place(Struct, frozen=True, gc=False):
    """Free capacity for the jobs of one partition."""

    rooms: tuple[Room, ...]
    host: Host
    limits: HostLimits

    def start(self, demand: Demand) -> "Place | None":
        """Return the capacity after such a job was placed by the planner; None if it does not fit."""
        holds = attempt(demand, self.rooms, self.host, self.limits)
        if isinstance(holds, Shortfall):
            return None
        taken = {hold.gpu: hold for hold in holds}
        rooms = (room.less(taken[room.gpu.index]) if room.gpu.index in taken else room for room in self.rooms)
        return Place(tuple(rooms), self.host.less(demand), self.limits)

    def without(self, jobs: Iterable[Movable]) -> "Place":
        """Return the free capacity of the partition after these jobs have ended."""
        rooms, host = {room.gpu.index: room for room in self.rooms}, self.host
        for job in jobs:
            host = host.plus(job.demand)
            for hold in job.holds:
                rooms[hold.gpu] = rooms[hold.gpu].plus(hold)
        return Place(tuple(rooms.values()), host, self.limits)


def moves(demand: Demand, movable: Sequence[Movable], place: Place, *, most: float) -> tuple[Movable, ...]:
    """Return the jobs to move so that `demand` can start; none if it fits anyway or cannot fit.

    Together they lose at most `most` GPU seconds.
    """
    if not demand.gpus or place.start(demand) is not None:
        return ()
    for chosen in _choices(demand, movable, place):
        if sum(job.loss for job in chosen) > most:
            return ()
        if _all_start(demand, chosen, place.without(chosen)):
            return chosen
    return ()


def _choices(demand: Demand, movable: Sequence[Movable], place: Place) -> Iterator[tuple[Movable, ...]]:
    """Yield sets of jobs whose end frees enough GPUs, cheapest first."""
    single = [job for job in movable if len(job.holds) == 1]
    cleared = [
        jobs for room in place.rooms if (jobs := _clearing(demand, room, single, place.limits)) is not None
    ]
    cleared.sort(key=_loss)
    for first in range(len(cleared) - demand.gpus + 1):
        if found := tuple(job for jobs in islice(cleared, first, first + demand.gpus) for job in jobs):
            yield found


def _clearing(
    demand: Demand, room: Room, movable: Iterable[Movable], limits: HostLimits
) -> tuple[Movable, ...] | None:
    """Return the jobs to remove from a GPU so that `demand` fits on it; None if that is impossible."""
    if room.gpu.state is not GpuState.OK or not is_of_type(room.gpu, demand.gpu_type):
        return None
    here = sorted((job for job in movable if job.holds[0].gpu == room.gpu.index), key=lambda job: job.loss)
    taken: list[Movable] = []
    while fits(demand, _freed(room, taken), limits) is None:
        if not here:
            return None
        taken.append(here.pop(0))
    for job in reversed(taken):  # the dearest first: is it needed, now that cheaper ones go too?
        rest = [one for one in taken if one is not job]
        if fits(demand, _freed(room, rest), limits):
            taken = rest
    return tuple(taken)


def _freed(room: Room, jobs: Iterable[Movable]) -> Room:
    for job in jobs:
        room = room.plus(job.holds[0])
    return room


def _loss(jobs: Iterable[Movable]) -> float:
    return sum(job.loss for job in jobs)


def _all_start(demand: Demand, moved: Sequence[Movable], place: Place) -> bool:
    """Tell whether all of them fit, in any order of the queue."""
    demands = [job.demand for job in moved]
    return all(_in_order(order, place) for order in ([demand, *demands], [*demands, demand]))


def _in_order(demands: Iterable[Demand], place: Place) -> bool:
    left: Place | None = place
    for demand in demands:
        left = left and left.start(demand)
        if left is None:
            return False
    return True
