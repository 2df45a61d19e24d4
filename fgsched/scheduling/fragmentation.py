"""Measure the free capacity that fragmentation makes useless.

Two measures, in ten-thousandths of a GPU, are added over the usual requests, weighted by their frequency:

  unreachable  free capacity of GPUs on which no further such request fits
  remaining    free capacity if such requests filled the host, as far as its CPUs permit

The first is FGD ("Beware of Fragmentation", USENIX ATC 2023), which looks one request ahead. The second looks
ahead until the host is full. Together they pack better than either: docs/design/packing.md.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from msgspec import Struct

from fgsched.domain.job import WHOLE, Demand, Gpu, GpuState, Hold
from fgsched.scheduling.placement import Room, cost, is_suitable

_CACHE_SIZE = 20_000  # cards and hosts in different states
RECENT = 1000  # requests that make the mix of a host
_SHAPES = 32  # different ones that it is made of, the most frequent
_WHOLE_CARD = Demand(gpus=1, share=WHOLE)
_EXPECTED = 8  # one request in so many is thought to want a whole card even if none did lately


class _Shape(Struct, frozen=True):
    """A usual request for GPUs."""

    demand: Demand
    weight: int


class _GpuProfile(Struct, frozen=True):
    """The free capacity of one GPU for each shape, in ten-thousandths."""

    idle: int
    lost: tuple[int, ...]  # all that is idle, where the shape does not fit
    copies: tuple[int, ...]  # of the shape that fit on it; of one that needs several cards, one at most
    used: tuple[int, ...]  # ten-thousandths that these copies use
    waste: int  # both measures, of the shapes that need one card, as long as there are CPUs enough


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
        self._last: dict[int, tuple[Room, int]] = {}  # of each card, the room of the last request
        self._hosts: dict[tuple[int, ...], int] = {}
        self._cached_limits: tuple[int, list[int]] = (-1, [])  # the last result of `_caps`

    @property
    def is_full(self) -> bool:
        """Whether the cache is so large that a new instance should replace this one."""
        return len(self._gpus) + len(self._hosts) > _CACHE_SIZE

    def gpu(self, room: Room) -> int:
        """Return a number that is equal for equal GPUs; -1 for a GPU that accepts no jobs."""
        seen, known = self._last.get(room.gpu.index, (None, 0))
        if seen is not room:  # the last start has changed only this card
            known = self._number(room.gpu, room.share, room.memory)
            self._last[room.gpu.index] = room, known
        return known

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
        lost = tuple(0 if count else idle for count in copies)
        waste = sum(
            shape.weight * (self._reach * out + self._fill * (idle - taken))
            for shape, out, taken in zip(self._shapes, lost, used, strict=True)
            if shape.demand.gpus == 1
        )
        return _GpuProfile(idle, lost, tuple(copies), tuple(used), waste)

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
        lost = sum(gpu.lost[position] for gpu in gpus)
        used = sum(gpu.used[position] for gpu in gpus)
        go = min(count // demand.gpus, cpus // max(1, demand.cpus))
        filled = used * go * demand.gpus // count if count else 0
        waste = self._reach * (lost if go else idle) + self._fill * (idle - filled)
        if demand.gpus == 1:  # counted with the cards as if CPUs did not matter
            waste -= self._reach * lost + self._fill * (idle - used)
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
