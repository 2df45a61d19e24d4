"""Which CPUs a job with cards is bound to: those near them, where they are enough for it."""

from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from fgsched.domain.units import format_indices, parse_indices

WORDS = ("near", "none")  # of the setting


class Binding(Struct, frozen=True, kw_only=True, gc=False):
    """How this host binds jobs."""

    allowed: frozenset[int] = frozenset()  # the CPUs that jobs may run on at all; empty: none is bound

    def of(self, near: tuple[tuple[int, ...], ...], count: int, bound: Iterable[tuple[str, int]]) -> str:
        """For a job that asked for `count` CPUs: which, such as "0-3"; "": it is not bound.

        `near`: the CPUs near each of its cards; `bound`: those of each job that is bound already, and how
        many it asked for. Where those near its cards are all there are, or are given out, it may use any.
        """
        chosen = _near(near, self.allowed) if near else ""
        if not chosen:
            return ""
        there = _listed(chosen)
        taken = sum(asked for cpus, asked in bound if not there.isdisjoint(_listed(cpus)))
        return chosen if taken + count <= len(there) else ""


@lru_cache(maxsize=256)
def _near(cards: tuple[tuple[int, ...], ...], allowed: frozenset[int]) -> str:
    """Those near any of the cards; "" where one card's are not known, or there are no others."""
    chosen = allowed.intersection(cpu for card in cards for cpu in card) if all(cards) else allowed
    return format_indices(chosen) if chosen != allowed else ""


@lru_cache(maxsize=256)
def _listed(cpus: str) -> frozenset[int]:
    return frozenset(parse_indices(cpus))
