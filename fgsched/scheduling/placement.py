"""Choose the GPUs for one request, or find the reason why it does not fit."""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Protocol

from msgspec import Struct, field

from fgsched.domain.job import WHOLE, Demand, Gpu, GpuState, Hold, HostLimits, Readings
from fgsched.domain.states import Reason
from fgsched.domain.waiting import Shortfall


class Room(Struct, frozen=True, gc=False):
    """The free capacity of one GPU."""

    gpu: Gpu
    share: int  # ten-thousandths
    memory: int  # bytes
    external: int = 0  # bytes of processes outside fgsched, not part of `memory`
    jobs: int = 0  # number of jobs that hold a part of the GPU
    cleaning: bool = False  # a job is COMPLETING: the GPU still lists its processes

    def less(self, hold: Hold) -> "Room":
        """Return the capacity without `hold`."""
        return Room(
            self.gpu,
            self.share - hold.share,
            self.memory - hold.memory,
            self.external,
            self.jobs + 1,
            self.cleaning,
        )

    def plus(self, hold: Hold) -> "Room":
        """Return the capacity after `hold` is released."""
        return Room(
            self.gpu,
            self.share + hold.share,
            self.memory + hold.memory,
            self.external,
            self.jobs - 1,
            self.cleaning,
        )


class Measure(Protocol):
    """A measure of free capacity that the usual requests could not use, in any unit."""

    def gpu(self, room: Room) -> int:
        """Return a number that represents this GPU."""

    def beside(self, room: Room, hold: Hold) -> int:
        """Return the number of the GPU with `hold` taken from it."""

    def host(self, cpus: int, gpus: Iterable[int]) -> int:
        """Return the measure of a host with these free CPUs and GPUs."""


class HostRoom(Struct, frozen=True):
    """Free CPUs, host memory and resources of the host."""

    cpus: int
    memory: int  # bytes
    waste: Measure | None = None  # None: no requests so far
    resources: Mapping[str, int] = field(default_factory=dict)  # of the site: name -> free count

    def less(self, demand: Demand) -> "HostRoom":
        """Return the free capacity after `demand` was allocated."""
        return self._changed(demand, -1)

    def plus(self, demand: Demand) -> "HostRoom":
        """Return the free capacity after a job with this demand has ended."""
        return self._changed(demand, 1)

    def _changed(self, demand: Demand, sign: int) -> "HostRoom":
        resources = self.resources
        if demand.resources:
            resources = {
                **resources,
                **{name: resources.get(name, 0) + sign * count for name, count in demand.resources},
            }
        cpus, memory = self.cpus + sign * demand.cpus, self.memory + sign * demand.host_memory
        return HostRoom(cpus, memory, self.waste, resources)

    def fits(self, demand: Demand) -> bool:
        return (
            demand.cpus <= self.cpus
            and demand.host_memory <= self.memory
            and all(count <= self.resources.get(name, 0) for name, count in demand.resources)
        )


def rooms(gpus: Iterable[Gpu], holds: Iterable[tuple[Hold, bool]], readings: Readings) -> list[Room]:
    """Return the free capacity of each GPU.

    `holds` are (hold, whether its job is completing); `readings` show memory of other processes.
    """
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
            gpu.capacity - share.get(gpu.index, 0),
            gpu.logical_memory - memory.get(gpu.index, 0) - external,
            external,
            jobs.get(gpu.index, 0),
            gpu.index in cleaning,
        )
        for gpu in gpus
        for external in [readings[gpu.index].external if gpu.index in readings else 0]
    ]


def cost(demand: Demand, gpu: Gpu, step: int = 1) -> Hold:
    """Return the hold of `demand` on this GPU: share follows from bytes, or bytes from share."""
    usable = gpu.usable
    if gpu.is_unit:
        return Hold(gpu=gpu.index, share=WHOLE, memory=usable)
    memory = demand.memory or usable * demand.memory_part // WHOLE
    share = demand.share
    if not share:
        exact = -(-memory * WHOLE // max(1, usable))
        share = -(-exact // step) * step
    return Hold(gpu=gpu.index, share=share, memory=memory or usable * share // WHOLE)


def charged(hold: Hold, usable: int) -> int:
    """Return the charged ten-thousandths: the larger of the share and the part of the memory."""
    return max(hold.share, -(-hold.memory * WHOLE // max(1, usable)))


def is_suitable(gpu: Gpu, demand: Demand) -> bool:
    """Tell whether a request is for such a GPU.

    A MIG instance is allocated as a whole, unless the site shares instances. Beside whole GPUs, a request
    that neither names an instance nor asks for the memory of one GPU alone means a whole GPU.
    """
    if not gpu.is_named and not gpu.is_unit:
        return is_of_type(gpu, demand.gpu_type)
    has_memory_alone = bool(demand.memory) and not demand.share
    if gpu.is_named and not (demand.gpu_type or (has_memory_alone and demand.gpus == 1)):
        return False
    if gpu.is_unit and not ((demand.is_whole or has_memory_alone) and demand.memory <= gpu.usable):
        return False
    return is_of_type(gpu, demand.gpu_type)


def is_of_type(gpu: Gpu, gpu_type: str) -> bool:
    """Tell whether a GPU has the requested features: terms joined by & and |; & binds closer.

    A term is a feature of the GPU or part of its model's name; case, '-', '_' and blanks are ignored. Beside
    whole GPUs, one term must name a MIG instance: by a feature, its profile, the part of that before the dot,
    "mig", or one of these after a part of the model's name.
    """
    return not gpu_type or _has(gpu.model, gpu.features, gpu.profile, gpu.is_named, gpu_type)


@lru_cache(maxsize=1024)
def _has(model: str, features: tuple[str, ...], profile: str, is_named: bool, gpu_type: str) -> bool:
    name, own_features = _plain(model), {_plain(feature) for feature in features}

    def names_instance(term: str) -> bool:
        return term in own_features or bool(profile and _names_profile(term, name, profile.lower()))

    def has(term: str) -> bool:
        return names_instance(term) or term in name

    clauses = [[_plain(term) for term in clause.split("&")] for clause in gpu_type.split("|")]
    return any(
        all(map(has, clause)) and (not is_named or any(map(names_instance, clause))) for clause in clauses
    )


def _names_profile(term: str, model: str, profile: str) -> bool:
    """Tell whether a term is "mig", a profile or the part of it before the dot, after a part of the model."""
    shape = re.split(r"[+-]", profile)[0]  # without engines, as in 1g.10gb+me
    names = ("mig", shape, shape.rpartition(".")[0])
    ends = (term.removesuffix(name).removesuffix("mig") for name in names if name and term.endswith(name))
    return any(end in model for end in ends)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


def fits(demand: Demand, room: Room, limits: HostLimits) -> Hold | None:
    """Return the hold of `demand` on this GPU if it fits now, otherwise None."""
    gpu = room.gpu
    if demand.share > room.share or gpu.state is not GpuState.OK or not is_suitable(gpu, demand):
        return None
    hold = cost(demand, gpu, limits.share_step)
    if not 0 < hold.share <= room.share or hold.memory > room.memory:
        return None
    if limits.max_jobs_per_gpu and room.jobs >= limits.max_jobs_per_gpu:
        return None
    return hold


def place(
    demand: Demand, free: Sequence[Room], limits: HostLimits, host: HostRoom | None = None
) -> tuple[Hold, ...] | Shortfall:
    """Return the holds of `demand`, or the reason why it does not fit.

    `pack` uses the GPU after which the most capacity is usable for the usual requests, and among equal GPUs
    the one with the least free capacity. `spread` uses the emptiest GPU. For several GPUs, the most closely
    connected ones are used.
    """
    if demand.gpus == 0:
        return ()
    places = [(room, hold) for room in free if (hold := fits(demand, room, limits))]
    if any(room.gpu.mig for room, _ in places):
        places = _alike(places, demand.gpus)
    if len(places) < demand.gpus:
        return shortage(demand, free, limits)
    if demand.gpus == 1 and len(places) > 1 and host and host.waste and not limits.spread:
        places = _least_waste(places, free, host.cpus - demand.cpus, host.waste)
    places.sort(key=_by_rest([room for room, _ in places], spread=limits.spread))
    if demand.gpus > 1:
        places = [places[position] for position in nearest([room.gpu for room, _ in places], demand.gpus)]
    return tuple(sorted((hold for _, hold in places[: demand.gpus]), key=lambda hold: hold.gpu))


def _alike(places: Sequence[tuple[Room, Hold]], number: int) -> list[tuple[Room, Hold]]:
    """Return the smallest MIG instances if there are enough of them, otherwise the whole GPUs.

    The driver shows a process either whole GPUs or a MIG instance.
    """
    instances = sorted((room.gpu.usable, at) for at, (room, _) in enumerate(places) if room.gpu.mig)
    if len(instances) < number:
        return [pair for pair in places if not pair[0].gpu.mig]
    largest = instances[number - 1][0]
    return [places[at] for usable, at in instances if usable <= largest]


def _least_waste(
    places: Sequence[tuple[Room, Hold]], free: Sequence[Room], cpus: int, measure: Measure
) -> list[tuple[Room, Hold]]:
    """Return the places after which the most capacity of the host is usable."""
    before = {room.gpu.index: measure.gpu(room) for room in free}
    waste_of: dict[int, int] = {}  # equal GPUs give equal results
    waste = []
    for room, hold in places:
        index = room.gpu.index
        if before[index] not in waste_of:
            after = before | {index: measure.beside(room, hold)}
            waste_of[before[index]] = measure.host(cpus, after.values())
        waste.append(waste_of[before[index]])
    least = min(waste)
    return [pair for pair, wasted in zip(places, waste, strict=True) if wasted == least]


def _by_rest(rooms: Sequence[Room], *, spread: bool) -> Callable[[tuple[Room, Hold]], tuple[int, ...]]:
    """Return the sort key: best or worst fit; then free GPUs with few connections; then the index."""
    sign = -1 if spread else 1
    whole = {room.gpu.index for room in rooms if not room.jobs}

    def rest(pair: tuple[Room, Hold]) -> tuple[int, ...]:
        room, hold = pair
        ties = sum(near for index, near in room.gpu.links if index in whole)
        index = room.gpu.index
        return sign * (room.share - hold.share), sign * (room.memory - hold.memory), ties, index

    return rest


def shortage(demand: Demand, free: Sequence[Room], limits: HostLimits) -> Shortfall:
    """Return the binding reason why `demand` does not fit now, and the GPU that comes closest."""
    able = [room for room in free if is_suitable(room.gpu, demand)]
    up = [room for room in able if room.gpu.state is GpuState.OK]
    if len(up) < demand.gpus:
        return Shortfall(Reason.GPU_DRAINED, "cards", need=demand.gpus, remaining=len(up), total=len(able))
    if any(room.cleaning for room in up):
        cleaned = sum(1 for room in up if room.cleaning or fits(demand, room, limits))
        if cleaned >= demand.gpus and demand.is_whole:
            return Shortfall(
                Reason.GPU_CLEANING, "share", gpu=next(room.gpu.index for room in up if room.cleaning)
            )
    if demand.gpus > 1:
        free_now = sum(1 for room in up if fits(demand, room, limits))
        return Shortfall(Reason.RESOURCES, "cards", need=demand.gpus, remaining=free_now, total=len(up))
    return _single(demand, up, limits)


def _single(demand: Demand, up: Sequence[Room], limits: HostLimits) -> Shortfall:
    """Return the shortage of a request for one GPU or a fraction."""
    closest = max(up, key=lambda room: (room.share, room.memory))
    need = cost(demand, closest.gpu, limits.share_step)
    wide = [room for room in up if room.share >= cost(demand, room.gpu, limits.share_step).share]
    roomy = [room for room in wide if room.memory >= cost(demand, room.gpu, limits.share_step).memory]
    if roomy:
        return Shortfall(
            Reason.GPU_MAX_JOBS, "jobs", gpu=roomy[0].gpu.index, need=1, total=limits.max_jobs_per_gpu
        )
    if not wide and not demand.share:
        closest = max(up, key=lambda room: room.memory)  # may have enough memory but no share
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
            remaining=max(0, best.memory),
            capacity=best.gpu.capacity if best.gpu.is_oversubscribed else 0,
            total=best.external if stranger else sum(max(0, room.memory) for room in up),
        )
    total = sum(room.share for room in up)
    scattered = demand.share and total >= need.share and not demand.is_whole and len(up) > 1
    return Shortfall(
        Reason.GPU_FRAGMENTED if scattered else Reason.RESOURCES,
        "share",
        gpu=closest.gpu.index,
        need=need.share,
        remaining=closest.share,
        total=total,
        capacity=closest.gpu.capacity if closest.gpu.is_oversubscribed else 0,
    )


# -- GPUs that are near to each other ------------------------------------------------------------------


def nearest(gpus: Sequence[Gpu], number: int) -> list[int]:
    """Return the positions of the `number` GPUs that are connected most closely.

    The slowest connection counts first, because it limits the job's communication; then the sum of
    connections; then how few connections to other GPUs are cut; then the position.
    """
    near = {gpu.index: dict(gpu.links) for gpu in gpus}
    if len(gpus) <= number or not any(near.values()):
        return list(range(min(number, len(gpus))))
    indices = [gpu.index for gpu in gpus]
    groups = dict.fromkeys(_around(first, indices, near, number) for first in indices)
    best = max(groups, key=lambda group: _closeness(group, indices, near))
    return [position for position, index in enumerate(indices) if index in best]


def _around(
    first: int, indices: Sequence[int], near: Mapping[int, Mapping[int, int]], number: int
) -> frozenset[int]:
    """Grow a group from GPU `first` by adding the GPU that is closest to all members."""
    sums = {index: near[first].get(index, 0) for index in indices if index != first}
    group = {first}
    while len(group) < number:
        closest = max(sums, key=sums.__getitem__)
        group.add(closest)
        del sums[closest]
        for index in sums:
            sums[index] += near[closest].get(index, 0)
    return frozenset(group)


def _closeness(
    group: frozenset[int], indices: Sequence[int], near: Mapping[int, Mapping[int, int]]
) -> tuple[int, int, int]:
    """Return a sort key of a group; larger is closer."""
    inside = [near[gpu].get(other, 0) for gpu, other in combinations(sorted(group), 2)]
    cut = sum(near[gpu].get(other, 0) for gpu in group for other in indices if other not in group)
    return min(inside, default=0), sum(inside), -cut


# -- fragmentation ---------------------------------------------------------------------------------
#
# Two measures, in ten-thousandths of a GPU, are added over the usual requests, weighted by their frequency:
#
#   unreachable  free capacity of GPUs on which no further such request fits
#   remaining    free capacity if such requests filled the host, as far as its CPUs permit
#
# The first is FGD ("Beware of Fragmentation", USENIX ATC 2023), which looks one request ahead. The second
# looks ahead until the host is full. Together they pack better than either: docs/design/packing.md.


_CACHE_SIZE = 20_000  # GPUs and hosts in different states
RECENT = 1000  # requests that make the mix of a host
_SHAPES = 32  # different ones that it is made of, the most frequent
_WHOLE_CARD = Demand(gpus=1, share=WHOLE)
_EXPECTED = 8  # one request in so many is thought to want a whole GPU even if none did lately


class _Shape(Struct, frozen=True):
    """A usual request for GPUs."""

    demand: Demand
    weight: int


class _GpuProfile(Struct, frozen=True):
    """The free capacity of one GPU for each shape, in ten-thousandths."""

    idle: int
    lost: tuple[int, ...]  # all that is idle, where the shape does not fit
    copies: tuple[int, ...]  # of the shape that fit on it; of one that needs several GPUs, one at most
    used: tuple[int, ...]  # ten-thousandths that these copies use
    waste: int  # both measures, of the shapes that need one GPU, as long as there are CPUs enough


class Fragmentation:
    """The measure for one mix of requests, with a cache of GPUs and hosts."""

    def __init__(
        self, mix: Iterable[tuple[Demand, int]], *, step: int = 1, reach: int = 1, fill: int = 1
    ) -> None:
        """`mix` is (request, frequency). `reach` and `fill` are the weights of the two measures."""
        self._shapes = [_Shape(demand, count) for demand, count in mix if demand.gpus]
        self._step = step
        self._reach, self._fill = reach, fill
        self._ids: dict[tuple[object, ...], int] = {}
        self._gpus: list[_GpuProfile] = []
        self._last: dict[int, tuple[Room, int]] = {}  # of each GPU, the room of the last request
        self._hosts: dict[tuple[int, ...], int] = {}
        self._cached_limits: tuple[int, list[int]] = (-1, [])  # the last result of `_caps`

    @property
    def is_full(self) -> bool:
        """Whether the cache is so large that a new instance should replace this one."""
        return len(self._gpus) + len(self._hosts) > _CACHE_SIZE

    def gpu(self, room: Room) -> int:
        """Return a number that is equal for equal GPUs; -1 for a GPU that accepts no jobs."""
        last_room, number = self._last.get(room.gpu.index, (None, 0))
        if last_room is not room:  # the last start has changed only this GPU
            number = self._number(room.gpu, room.share, room.memory)
            self._last[room.gpu.index] = room, number
        return number

    def beside(self, room: Room, hold: Hold) -> int:
        """Return the number of the GPU with `hold` taken from it."""
        return self._number(room.gpu, room.share - hold.share, room.memory - hold.memory)

    def _number(self, gpu: Gpu, share: int, memory: int) -> int:
        if gpu.state is not GpuState.OK:
            return -1
        key = (gpu.model, gpu.usable, share, memory)
        number = self._ids.get(key)
        if number is None:
            number = self._ids[key] = len(self._gpus)
            self._gpus.append(self._profile(gpu, share, memory))
        return number

    def host(self, cpus: int, gpus: Iterable[int]) -> int:
        """Return the fragmentation of a host with these free CPUs and GPUs."""
        key = (cpus, *sorted(gpus))
        host = self._hosts.get(key)
        if host is None:
            gpu_profiles = [self._gpus[gpu] for gpu in key[1:] if gpu >= 0]
            host = self._hosts[key] = (
                self._measure(cpus, gpu_profiles) if gpu_profiles and self._shapes else 0
            )
        return host

    def _profile(self, gpu: Gpu, share: int, memory: int) -> _GpuProfile:
        idle = max(0, min(share, memory * WHOLE // max(1, gpu.usable)))
        copies, used = [], []
        for shape in self._shapes:
            hold = cost(shape.demand, gpu, self._step)
            count = 0
            if hold.share > 0 and is_suitable(gpu, shape.demand):
                count = max(0, min(share // hold.share, memory // max(1, hold.memory)))
            if shape.demand.gpus > 1:
                count = min(count, 1)
            copies.append(count)
            used.append(min(idle, count * hold.share))
        idle_shares = tuple(0 if count else idle for count in copies)
        waste = sum(
            shape.weight * (self._reach * out + self._fill * (idle - used_share))
            for shape, out, used_share in zip(self._shapes, idle_shares, used, strict=True)
            if shape.demand.gpus == 1
        )
        return _GpuProfile(idle, idle_shares, tuple(copies), tuple(used), waste)

    def _measure(self, cpus: int, gpus: Sequence[_GpuProfile]) -> int:
        """Return the waste of the GPUs, and that caused by CPUs and requests for several GPUs."""
        total = sum(gpu.waste for gpu in gpus)
        copies = map(sum, zip(*(gpu.copies for gpu in gpus), strict=True))
        for position, (count, most) in enumerate(zip(copies, self._caps(cpus), strict=True)):
            if count > most:
                total += self._added(position, cpus, gpus, count)
        return total

    def _caps(self, cpus: int) -> list[int]:
        """Return how many requests of each shape the CPUs permit; -1 for a shape with several GPUs."""
        if self._cached_limits[0] != cpus:
            limits = [
                cpus // max(1, shape.demand.cpus) if shape.demand.gpus == 1 else -1 for shape in self._shapes
            ]
            self._cached_limits = (cpus, limits)
        return self._cached_limits[1]

    def _added(self, position: int, cpus: int, gpus: Sequence[_GpuProfile], count: int) -> int:
        shape = self._shapes[position]
        demand = shape.demand
        idle = sum(gpu.idle for gpu in gpus)
        idle_share = sum(gpu.lost[position] for gpu in gpus)
        used = sum(gpu.used[position] for gpu in gpus)
        go = min(count // demand.gpus, cpus // max(1, demand.cpus))
        filled = used * go * demand.gpus // count if count else 0
        waste = self._reach * (idle_share if go else idle) + self._fill * (idle - filled)
        if demand.gpus == 1:  # counted with the GPUs as if CPUs did not matter
            waste -= self._reach * idle_share + self._fill * (idle - used)
        return shape.weight * waste


class Recent:
    """The last requests on a host, and the measure for their mix.

    Whole GPUs are always part of the mix. Otherwise, with only small requests, jobs would be spread over all
    GPUs, so that less capacity remains on each.
    """

    def __init__(self) -> None:
        self._requests: deque[Demand] = deque(maxlen=RECENT)
        self._new = 0  # since the measure was made
        self._measures: dict[int, Fragmentation] = {}  # by the step of shares

    def add(self, demand: Demand) -> None:
        """Record a request."""
        if demand.gpus:
            self._requests.append(demand)
            self._new += 1

    def measure(self, step: int) -> Fragmentation:
        """Return the measure, which is recomputed when an eighth of the requests is new."""
        measure = self._measures.get(step)
        if measure is None or measure.is_full or self._new > len(self._requests) // 8:
            mix = Counter(self._requests)
            mix[_WHOLE_CARD] += 1 + len(self._requests) // _EXPECTED
            self._measures = {step: Fragmentation(mix.most_common(_SHAPES), step=step)}
            self._new = 0
        return self._measures[step]
