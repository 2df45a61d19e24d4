"""Choose GPUs that are connected most closely for one job."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from fgsched.domain.job import Gpu


def nearest(cards: Sequence[Gpu], number: int) -> list[int]:
    """Return the positions of the `number` GPUs that are connected most closely.

    The slowest connection counts first, because it limits the job's communication; then the sum of
    connections; then how few connections to other GPUs are cut; then the position.
    """
    near = {card.index: dict(card.links) for card in cards}
    if len(cards) <= number or not any(near.values()):
        return list(range(min(number, len(cards))))
    indices = [card.index for card in cards]
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
    inside = [near[one].get(other, 0) for one, other in combinations(sorted(group), 2)]
    cut = sum(near[one].get(other, 0) for one in group for other in indices if other not in group)
    return min(inside, default=0), sum(inside), -cut
