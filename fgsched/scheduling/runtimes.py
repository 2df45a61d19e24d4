"""Estimate run times from earlier jobs with the same user and name."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

KEPT = 30  # runs of each name
Name = tuple[int, str]  # uid, job name


class Run(Struct, frozen=True):
    """One completed run."""

    uid: int
    name: str
    elapsed: float  # seconds
    time_limit: int  # seconds; 0: none


class History:
    """The latest runs of each name, newest first."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._runs: dict[Name, list[Run]] = {}
        for run in runs:
            kept = self._runs.setdefault((run.uid, run.name), [])
            if len(kept) < KEPT:
                kept.append(run)

    def runs(self, name: Name) -> int:
        return len(self._runs.get(name, ()))

    def likely(self, name: Name, time_limit: int, part: float = 0.5) -> float | None:
        """Return the seconds that `part` of the runs did not exceed, or None without earlier runs.

        With a time limit (seconds) the fraction of the limit that was used is scaled to this limit.
        """
        runs = self._runs.get(name, [])
        ratios = [run.elapsed / run.time_limit for run in runs if run.time_limit]
        if time_limit and ratios:
            return min(1.0, _quantile(ratios, part)) * time_limit
        elapsed = [run.elapsed for run in runs]
        if not elapsed:
            return None
        found = _quantile(elapsed, part)
        return min(found, time_limit) if time_limit else found


def _quantile(values: Sequence[float], part: float) -> float:
    """Return the value that `part` of the values do not exceed; of two middle values the upper."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]
