"""Group the jobs that ended in a period, by how they ended and by name, in one pass over them.

SQLite would sort the rows to group them, which takes longer than all the rest of a report on a year.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from fgsched.reports.grouping import Group, Grouping, Numbers

MOST_NAMES = 200_000  # groups by name that are kept in memory: about 80 MiB
_MOST = 2_000  # groups by name that reports look at


Values = Mapping[str, float | str]  # of the parameters of a statement


class EndedJobsReader(Protocol):
    """A reader of the accounts that adds the rows of an answer to groupings."""

    def group(self, statement: str, *groupings: Grouping, **values: float | str) -> None: ...


class Ending(Struct, frozen=True, kw_only=True):
    """Jobs of one owner and size that ended in one way."""

    owner: int
    gpus: int
    share: int  # ten-thousandths of each GPU
    model: str
    state: str
    oom: str
    jobs: int
    charged: float  # GPU seconds
    waits: Numbers  # seconds, of the jobs that started


class Repeated(Struct, frozen=True, kw_only=True):
    """Jobs of a user with the same name and request."""

    owner: int  # number of the owner of the last job
    user: str
    name: str
    gpus: int
    share: int  # ten-thousandths of each GPU
    memory: int  # bytes of each GPU, the largest
    model: str
    jobs: int
    charged: float  # GPU seconds
    used: float | None  # GPU seconds; None: not measured
    idle: float | None  # GPU seconds
    peak: int  # bytes
    longest: float  # seconds of the longest run
    elapsed: float  # seconds, of all runs
    time_limit: int  # seconds; 0: none
    first: float  # epoch seconds: the end of the owner's first job
    last: float  # epoch seconds: the end of the last job
    completed: float = 0.0  # seconds of the longest run that completed; 0: none did


class Named(Struct, frozen=True):
    """The jobs of a period by how they ended, and by name."""

    endings: list[Ending]
    groups: list[Group]  # by name, model and size


def endings(source: EndedJobsReader, values: Values) -> list[Ending]:
    """Return jobs by owner, size, model, state and kind of OOM."""
    grouping = _by_ending(0)
    source.group("endings", grouping, **values)
    return _endings(grouping)


def named(source: EndedJobsReader, values: Values, most: int) -> Named | None:
    """Return jobs by ending and by name; None if there are more than `most` groups by name."""
    by_ending = _by_ending(1)
    results = [("sum", at) for at in (5, 7, 8, 9)] + [("max", at) for at in (7, 10, 11, 12, 13)]
    results += [("min", 13), ("max", 14)]
    by_name = Grouping((0, 3), results, required=7, most=most)
    source.group("named_endings", by_ending, by_name, **values)
    return None if by_name.is_full else Named(_endings(by_ending), by_name.groups())


def most_charged(groups: Iterable[Group], users: dict[int, str]) -> list[Repeated]:
    """Return the groups that were charged most, at most 2,000. `users` maps numbers of owners to users."""
    return [_repeated(group, users) for group in sorted(groups, key=_by_charge)[:_MOST]]


def waits(source: EndedJobsReader, values: Values) -> Numbers:
    """Return the waits of the jobs that started, in seconds."""
    grouping = Grouping((0, 0), (), collected=0, least=0.0)
    source.group("waits", grouping, **values)
    groups = grouping.groups()
    return groups[0].values if groups else Numbers()


def _by_ending(first: int) -> Grouping:
    """Return an empty grouping; `first` is the position of the column of the model."""
    return Grouping((first, first + 4), (("sum", first + 4),), collected=first + 5, least=0.0)


def _sizes(packed: int) -> tuple[int, int, int]:
    """Return the owner, the GPUs and the share that one number has in the statements."""
    return packed >> 34, packed >> 14 & (1 << 20) - 1, packed & (1 << 14) - 1


def _endings(grouping: Grouping) -> list[Ending]:
    return [_ending(group) for group in grouping.groups()]


def _ending(group: Group) -> Ending:
    model, size, state, oom = group.key
    owner, gpus, share = _sizes(size)
    return Ending(
        owner=owner,
        gpus=gpus,
        share=share,
        model=model,
        state=state,
        oom=oom,
        jobs=group.rows,
        charged=group[0] or 0.0,
        waits=group.values,
    )


def _by_charge(group: Group) -> tuple[Any, ...]:
    name, model, size = group.key
    owner, gpus, share = _sizes(size)
    return -(group[0] or 0.0), owner, name, gpus, share, model


def _repeated(group: Group, users: dict[int, str]) -> Repeated:
    name, model, size = group.key
    owner, gpus, share = _sizes(size)
    charged, elapsed, used, idle, longest, memory, peak, limit, last, first, completed = (
        group[at] for at in range(11)
    )
    return Repeated(
        owner=owner,
        user=users[owner],
        name=name,
        gpus=gpus,
        share=share,
        memory=int(memory or 0),
        model=model,
        jobs=group.rows,
        charged=charged or 0.0,
        used=used,
        idle=idle,
        peak=int(peak or 0),
        longest=longest or 0.0,
        elapsed=elapsed or 0.0,
        time_limit=int(limit or 0),
        first=first or 0.0,
        last=last or 0.0,
        completed=completed or 0.0,
    )
