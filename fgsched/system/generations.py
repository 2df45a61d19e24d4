"""The directories of this queue and of earlier ones below the run directory, each named by its queue.

An id means one job only within its queue. So claims, results and jobs' directories of one queue are never
used for another, and the jobs that earlier queues left running are found. Directly in the run directory,
`claim`, `result` and `job` are links to those of the present queue; before version 2 of the queue they were
directories.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fgsched.jobs.launchcontext import job_dir
from fgsched.jobs.lifecycle import parse_claim
from fgsched.system.process import Identity, is_alive, may_be_of, started_below, started_with
from fgsched.system.spaces import lying

_NAME = re.compile(r"[0-9a-f]{8}")
_KINDS = ("claim", "result", "job")
_CLOSED = "claimed"  # what `claim` is called in the directory of an earlier queue: nothing can start there
_IDS = 2**48  # no id that a queue gave out is so high
Attempt = tuple[int, int]  # (job, attempt)


class Earlier(NamedTuple):
    """A job of an earlier queue that still runs."""

    queue: str  # its name; "" where it is not known
    job: int
    attempt: int
    processes: tuple[Identity, ...]
    cards: frozenset[str] | None  # UUIDs or indices; None: not known, so it may be any card


def directory_of(run: Path, name: str, under_way: Callable[[], Collection[Attempt]]) -> Path:
    """Make, or find, the directory of the queue `name`.

    Attempts that an older fgsched started keep to its layout, which has no name: then that is used until a
    controller starts that finds none of them.
    """
    own = run / name
    if _is_layout(run) and not _attempts(run).isdisjoint(under_way()):
        _reopen(run)
        return run
    if own.is_symlink() or (own.exists() and not own.is_dir()):
        own.rename(run / f"{name}.{os.urandom(4).hex()}")  # whatever it is, it is not ours
    own.mkdir(mode=0o711, exist_ok=True)
    own.chmod(0o711)
    _reopen(own)
    return own


def link(run: Path, own: Path) -> None:
    """Have the plain names lead to the present queue's, wherever they are not directories."""
    if own == run:
        return
    for kind in _KINDS:
        place, fresh = run / kind, run / f"{kind}.new"
        if place.is_dir() and not place.is_symlink():
            continue
        with suppress(OSError):  # only people and older programs need these names
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(f"{own.name}/{kind}")
            fresh.rename(place)


def is_linked(run: Path, own: Path) -> bool:
    """Whether the plain names are there."""
    return own == run or all(os.path.lexists(run / kind) for kind in _KINDS)


def _is_layout(path: Path) -> bool:
    """Whether claims are kept right here."""
    return any((path / kind).is_dir() and not (path / kind).is_symlink() for kind in (*_KINDS, _CLOSED))


def others(run: Path, own: Path) -> list[Path]:
    """The directories of earlier queues."""
    named = [path for path in run.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return [path for path in (*sorted(named), *([run] if _is_layout(run) else [])) if path != own]


def highest_id(run: Path, own: Path) -> int:
    """The highest id of a job of an earlier queue of which anything is left."""
    found = (job for place in others(run, own) for job, _ in _attempts(place))
    return max((job for job in found if job < _IDS), default=0)


def last_attempts(place: Path) -> dict[int, int]:
    """The last attempt of each job of a queue of which anything but a tombstone is left."""
    found: dict[int, int] = {}
    for job, attempt in _attempts(place):
        name = f"{job}.{attempt}"
        if any(os.path.lexists(place / kind / name) for kind in ("result", "job")) or _shepherd(
            place, job, attempt
        ):
            found[job] = max(attempt, found.get(job, 0))
    return found


def _attempts(place: Path) -> set[Attempt]:
    """All of which there is a claim, a tombstone, a result or a directory."""
    return set().union(*(_named(place / kind) for kind in (*_KINDS, _CLOSED)))


def _named(folder: Path) -> Iterator[Attempt]:
    with suppress(OSError):
        for name in os.listdir(folder):
            job, _, attempt = name.partition(".")
            if job.isdecimal() and attempt.isdecimal():
                yield int(job), int(attempt)


# -- earlier queues ----------------------------------------------------------------------------------


def close(place: Path) -> None:
    """Let no launch that is still on its way to an earlier queue's spawner begin."""
    if (place / "claim").is_dir() and not (place / "claim").is_symlink():
        if not (place / _CLOSED).exists():
            (place / "claim").rename(place / _CLOSED)
        else:
            _move(place / "claim", place / _CLOSED)


def _reopen(place: Path) -> None:
    """The queue is back: its claims count again."""
    if (place / _CLOSED).is_dir():
        (place / "claim").mkdir(mode=0o711, exist_ok=True)
        _move(place / _CLOSED, place / "claim")


def _move(source: Path, target: Path) -> None:
    for name in os.listdir(source):
        os.rename(source / name, target / name)
    source.rmdir()


def living(place: Path) -> list[Earlier]:
    """The jobs of an earlier queue of which a process lives."""
    attempts = _attempts(place)
    below = started_below(f"{place}/job/") if attempts else {}
    found = [_earlier(place, attempt, below) for attempt in sorted(attempts)]
    return [one for one in found if one.processes]


def _earlier(place: Path, attempt: Attempt, below: Mapping[str, Sequence[Identity]]) -> Earlier:
    directory = job_dir(str(place), *attempt)
    owner = _owner(directory)
    own = [one for one in below.get(directory, ()) if owner is None or may_be_of(one.pid, owner)]
    queue = place.name if _NAME.fullmatch(place.name) else ""
    return Earlier(queue, *attempt, (*_shepherd(place, *attempt), *own), _cards(own))


def _owner(directory: str) -> int | None:
    """The user whose script lies in a job's directory; None if it is gone."""
    with suppress(OSError):
        return os.lstat(f"{directory}/script").st_uid
    return None


def _shepherd(place: Path, job: int, attempt: int) -> list[Identity]:
    """The process that claimed an attempt and has left no result yet, if it lives."""
    if os.path.lexists(place / "result" / f"{job}.{attempt}"):
        return []  # it may live on with another job
    with suppress(OSError, ValueError):
        claim = parse_claim(os.readlink(place / _CLOSED / f"{job}.{attempt}"))
        if claim and is_alive(identity := Identity(claim.pid, claim.start, claim.boot)):
            return [identity]
    return []


def _cards(processes: Iterable[Identity]) -> frozenset[str] | None:
    """The cards that the job's processes were started with."""
    for process in processes:
        if started_with(process.pid, "FG_JOB_DIR"):
            names = started_with(process.pid, "FG_GPU_UUIDS") or started_with(process.pid, "FG_JOB_GPUS")
            return frozenset(filter(None, names.split(",")))
    return None


def remove_ended(place: Path, keep: Collection[Attempt], remove: Callable[[Path], None]) -> None:
    """Remove what is left of the attempts of an earlier queue that are over, and its directory with the last.

    `remove`: removes a directory that a user could write to.
    """
    for job, attempt in _attempts(place) - set(keep):
        for kind in ("result", _CLOSED):
            with suppress(OSError):
                os.unlink(place / kind / f"{job}.{attempt}")
        for lies in lying(place, job, attempt):
            remove(lies)
        if (directory := place / "job" / f"{job}.{attempt}").is_dir() or directory.is_symlink():
            remove(directory)
    if keep:
        return  # their shepherds still need the directories
    for kind in (*_KINDS, _CLOSED):
        with suppress(OSError):
            os.rmdir(place / kind)
    if _NAME.fullmatch(place.name):
        if (place / "quarantine").is_dir():
            remove(place / "quarantine")
        with suppress(OSError):
            os.rmdir(place)
