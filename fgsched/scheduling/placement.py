"""Which cards one request gets, given what is free; and why it gets none."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from fgsched.domain.job import WHOLE, Demand, Gpu, GpuState, Hold, HostLimits, Readings, Reason
from fgsched.domain.waiting import Shortfall as Shortfall
from fgsched.scheduling.links import nearest


class Room(Struct, frozen=True, gc=False):
    """What is left of one card."""

    gpu: Gpu
    share: int  # ten-thousandths
    memory: int  # bytes
    external: int = 0  # bytes that strangers hold, already taken off `memory`
    jobs: int = 0  # that hold a part of it
    cleaning: bool = False  # one of them is over, and the card is not clean yet

    def less(self, hold: Hold) -> "Room":
        """The room once `hold` is taken from it."""
        return Room(
            self.gpu,
            self.share - hold.share,
            self.memory - hold.memory,
            self.external,
            self.jobs + 1,
            self.cleaning,
        )

    def plus(self, hold: Hold) -> "Room":
        """The room once `hold` is given back."""
        return Room(
            self.gpu,
            self.share + hold.share,
            self.memory + hold.memory,
            self.external,
            self.jobs - 1,
            self.cleaning,
        )


class Measure(Protocol):
    """How much of what is left of a host its usual requests could not use, in any unit."""

    def card(self, room: Room) -> int:
        """A number that stands for this room."""

    def beside(self, room: Room, hold: Hold) -> int:
        """The same for what is left of it beside `hold`."""

    def host(self, cpus: int, cards: Iterable[int]) -> int:
        """The measure of a host with so many CPUs and these rooms left."""


class Host(Struct, frozen=True):
    """What is left of the host besides its cards."""

    cpus: int
    memory: int  # bytes
    waste: Measure | None = None  # None: nothing was asked for yet
    resources: Mapping[str, int] = field(default_factory=dict)  # the site's own that are left

    def less(self, demand: Demand) -> "Host":
        """What is left once `demand` has its part."""
        return self._changed(demand, -1)

    def plus(self, demand: Demand) -> "Host":
        """What is left once a job with this demand is over."""
        return self._changed(demand, 1)

    def _changed(self, demand: Demand, sign: int) -> "Host":
        left = self.resources
        if demand.resources:
            left = {**left, **{name: left.get(name, 0) + sign * count for name, count in demand.resources}}
        cpus, memory = self.cpus + sign * demand.cpus, self.memory + sign * demand.host_memory
        return Host(cpus, memory, self.waste, left)

    def fits(self, demand: Demand) -> bool:
        return (
            demand.cpus <= self.cpus
            and demand.host_memory <= self.memory
            and all(count <= self.resources.get(name, 0) for name, count in demand.resources)
        )


def rooms(gpus: Iterable[Gpu], holds: Iterable[tuple[Hold, bool]], readings: Readings) -> list[Room]:
    """What is left of each card after `holds` (each with: is its job cleaning?) and strangers' memory."""
    share: dict[int, int] = {}
    memory: dict[int, int] = {}
    jobs: dict[int, int] = {}
    cleaning: set[int] = set()
    for hold, is_cleaning in holds:
        share[hold.gpu] = share.get(hold.gpu, 0) + hold.share
        memory[hold.gpu] = memory.get(hold.gpu, 0) + hold.memory
        jobs[hold.gpu] = jobs.get(hold.gpu, 0) + 1
        if is_cleaning:
            cleaning.add(hold.gpu)
    return [
        Room(
            gpu,
            WHOLE - share.get(gpu.index, 0),
            gpu.usable - memory.get(gpu.index, 0) - external,
            external,
            jobs.get(gpu.index, 0),
            gpu.index in cleaning,
        )
        for gpu in gpus
        for external in [readings[gpu.index].external if gpu.index in readings else 0]
    ]


def cost(demand: Demand, gpu: Gpu, step: int = 1) -> Hold:
    """What `demand` takes of this card: the share follows from the bytes or the bytes from the share."""
    usable = gpu.usable
    memory = demand.memory or usable * demand.memory_part // WHOLE
    share = demand.share
    if not share:
        exact = -(-memory * WHOLE // max(1, usable))
        share = -(-exact // step) * step
    return Hold(gpu=gpu.index, share=share, memory=memory or usable * share // WHOLE)


def charged(hold: Hold, usable: int) -> int:
    """Ten-thousandths that accounting counts: the larger of the share and the share of the bytes."""
    return max(hold.share, -(-hold.memory * WHOLE // max(1, usable)))


def is_of_type(gpu: Gpu, wanted: str) -> bool:
    """Whether the model's name contains `wanted`; case, '-', '_' and blanks do not count."""
    return not wanted or _plain(wanted) in _plain(gpu.model)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


def fits(demand: Demand, room: Room, limits: HostLimits) -> Hold | None:
    """The hold that `demand` would take of this room, if it goes in now."""
    gpu = room.gpu
    if demand.share > room.share or gpu.state is not GpuState.OK or not is_of_type(gpu, demand.gpu_type):
        return None
    hold = cost(demand, gpu, limits.share_step)
    if not 0 < hold.share <= room.share or hold.memory > room.memory:
        return None
    if limits.max_jobs_per_gpu and room.jobs >= limits.max_jobs_per_gpu:
        return None
    return hold


def place(
    demand: Demand, free: Sequence[Room], limits: HostLimits, host: Host | None = None
) -> tuple[Hold, ...] | Shortfall:
    """The holds that `demand` gets, or why it gets none.

    `pack` takes the card that leaves the usual requests most to use, then the one
    on which least is left over, so that whole cards stay free for jobs that need
    one; `spread` takes the emptiest. Several cards are the nearest to each other.
    """
    if demand.gpus == 0:
        return ()
    found = [(room, hold) for room in free if (hold := fits(demand, room, limits))]
    if len(found) < demand.gpus:
        return shortage(demand, free, limits)
    if demand.gpus == 1 and len(found) > 1 and host and host.waste and not limits.spread:
        found = _least_waste(found, free, host.cpus - demand.cpus, host.waste)
    found.sort(key=_by_rest([room for room, _ in found], spread=limits.spread))
    if demand.gpus > 1:
        found = [found[position] for position in nearest([room.gpu for room, _ in found], demand.gpus)]
    return tuple(sorted((hold for _, hold in found[: demand.gpus]), key=lambda hold: hold.gpu))


def _least_waste(
    found: Sequence[tuple[Room, Hold]], free: Sequence[Room], cpus: int, measure: Measure
) -> list[tuple[Room, Hold]]:
    """Those of the places after which most of the host can still be used."""
    before = {room.gpu.index: measure.card(room) for room in free}
    known: dict[int, int] = {}  # cards that are alike leave the same
    waste = []
    for room, hold in found:
        index = room.gpu.index
        if before[index] not in known:
            after = before | {index: measure.beside(room, hold)}
            known[before[index]] = measure.host(cpus, after.values())
        waste.append(known[before[index]])
    least = min(waste)
    return [pair for pair, lost in zip(found, waste, strict=True) if lost == least]


def _by_rest(rooms: Sequence[Room], *, spread: bool) -> Callable[[tuple[Room, Hold]], tuple[int, ...]]:
    """Best fit first, or worst; untouched cards with the fewest ties to others, then the lowest index."""
    sign = -1 if spread else 1
    whole = {room.gpu.index for room in rooms if not room.jobs}

    def rest(pair: tuple[Room, Hold]) -> tuple[int, ...]:
        room, hold = pair
        ties = sum(near for index, near in room.gpu.links if index in whole)
        index = room.gpu.index
        return sign * (room.share - hold.share), sign * (room.memory - hold.memory), ties, index

    return rest


def shortage(demand: Demand, free: Sequence[Room], limits: HostLimits) -> Shortfall:
    """The binding reason why `demand` cannot be placed now, and the card that comes closest."""
    able = [room for room in free if is_of_type(room.gpu, demand.gpu_type)]
    up = [room for room in able if room.gpu.state is GpuState.OK]
    if len(up) < demand.gpus:
        return Shortfall(Reason.GPU_DRAINED, "cards", need=demand.gpus, left=len(up), total=len(able))
    if any(room.cleaning for room in up):
        cleaned = sum(1 for room in up if room.cleaning or fits(demand, room, limits))
        if cleaned >= demand.gpus and demand.is_whole:
            return Shortfall(
                Reason.GPU_CLEANING, "share", gpu=next(room.gpu.index for room in up if room.cleaning)
            )
    if demand.gpus > 1:
        free_now = sum(1 for room in up if fits(demand, room, limits))
        return Shortfall(Reason.RESOURCES, "cards", need=demand.gpus, left=free_now, total=len(up))
    return _single(demand, up, limits)


def _single(demand: Demand, up: Sequence[Room], limits: HostLimits) -> Shortfall:
    """`shortage` for one card or a part of one."""
    closest = max(up, key=lambda room: (room.share, room.memory))
    need = cost(demand, closest.gpu, limits.share_step)
    wide = [room for room in up if room.share >= cost(demand, room.gpu, limits.share_step).share]
    roomy = [room for room in wide if room.memory >= cost(demand, room.gpu, limits.share_step).memory]
    if roomy:
        return Shortfall(
            Reason.GPU_MAX_JOBS, "jobs", gpu=roomy[0].gpu.index, need=1, total=limits.max_jobs_per_gpu
        )
    if not wide and not demand.share:
        closest = max(up, key=lambda room: room.memory)  # may have bytes enough, and no share left for them
        need = cost(demand, closest.gpu, limits.share_step)
    if wide or (not demand.share and need.memory > closest.memory):
        best = max(wide or up, key=lambda room: room.memory)
        need = cost(demand, best.gpu, limits.share_step)
        stranger = best.memory + best.external >= need.memory
        return Shortfall(
            Reason.GPU_EXTERNAL_USE if stranger else Reason.GPU_MEMORY,
            "memory",
            gpu=best.gpu.index,
            need=need.memory,
            left=max(0, best.memory),
            total=best.external if stranger else sum(max(0, room.memory) for room in up),
        )
    total = sum(room.share for room in up)
    scattered = demand.share and total >= need.share and not demand.is_whole and len(up) > 1
    return Shortfall(
        Reason.GPU_FRAGMENTED if scattered else Reason.RESOURCES,
        "share",
        gpu=closest.gpu.index,
        need=need.share,
        left=closest.share,
        total=total,
    )
