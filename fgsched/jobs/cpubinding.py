"""Choose the CPUs near a job's GPUs to which the job is bound."""

from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from fgsched.domain.units import format_indices, parse_indices

WORDS = ("near", "none")  # of the setting


class Binding(Struct, frozen=True, kw_only=True, gc=False):
    """How this host binds jobs to CPUs."""

    allowed: frozenset[int] = frozenset()  # the CPUs that jobs may run on at all; empty: none is bound

    def of(self, near: tuple[tuple[int, ...], ...], count: int, bound: Iterable[tuple[str, int]]) -> str:
        """Return the CPUs to which a job that requested `count` CPUs is bound, such as "0-3".

        "" for no binding.

        `near` are the CPUs near each of its GPUs. `bound` are the CPUs and the requested number of each job
        that is already bound. A job may use all CPUs if those near its GPUs are all CPUs, or are used up.
        """
        chosen = _near(near, self.allowed) if near else ""
        if not chosen:
            return ""
        there = _listed(chosen)
        taken = sum(asked for cpus, asked in bound if not there.isdisjoint(_listed(cpus)))
        return chosen if taken + count <= len(there) else ""


@lru_cache(maxsize=256)
def _near(cards: tuple[tuple[int, ...], ...], allowed: frozenset[int]) -> str:
    """Return the CPUs near any of the GPUs; "" if they are unknown for one GPU or are all CPUs."""
    chosen = allowed.intersection(cpu for card in cards for cpu in card) if all(cards) else allowed
    return format_indices(chosen) if chosen != allowed else ""


@lru_cache(maxsize=256)
def _listed(cpus: str) -> frozenset[int]:
    return frozenset(parse_indices(cpus))
