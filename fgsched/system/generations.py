"""Directories of the current queue and of earlier queues below the run directory.

A job id is unique only within its queue, so each queue has a directory, named after it, for its claims,
results and job directories. Running jobs of earlier queues are found there. In the run directory itself,
`claim`, `result` and `job` are links to those of the current queue.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fgsched.lifecycle.launchspec import job_dir
from fgsched.lifecycle.transitions import parse_claim
from fgsched.system.process import Identity, is_alive, may_be_of, started_below, started_with
from fgsched.system.safeopen import open_beneath
from fgsched.system.spaces import attempt_dirs, remove_scratch, spread_below

_NAME = re.compile(r"[0-9a-f]{8}")
KINDS = ("claim", "result", "job")  # directories of a run directory, with an entry for each attempt
SPARE_NAME = re.compile(r"\.([0-9]{1,9})\.[0-9]{1,9}", re.ASCII)  # .SPAWNER.SLOT in `job`, for further jobs
_CLOSED = "claimed"  # name of `claim` in the directory of an earlier queue: no job can start there
_MAX_ID = 2**48  # higher ids were not assigned by a queue
Attempt = tuple[int, int]  # (job, attempt)


class Earlier(NamedTuple):
    """A job of an earlier queue that still runs."""

    queue: str  # its name
    job: int
    attempt: int
    processes: tuple[Identity, ...]
    gpus: frozenset[str] | None  # UUIDs or indices of its GPUs; None: unknown, so any GPU


def directory_of(run: Path, name: str) -> Path:
    """Create or find the directory of the queue `name`.

    Raises:
        OSError: the directory cannot be created.
    """
    own_directory = run / name
    if own_directory.is_symlink() or (own_directory.exists() and not own_directory.is_dir()):
        own_directory.rename(run / f"{name}.{os.urandom(4).hex()}")  # not created by a controller
    if not own_directory.exists():
        _spread_below(run)
        own_directory.mkdir(mode=0o711)
    own_directory.chmod(0o711)
    _reopen(own_directory)
    return own_directory


def _spread_below(run: Path) -> None:
    """Let the directory of each queue have its own part of the disk; its first mkdir decides that."""
    directory = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    spread_below(directory)
    os.close(directory)


def link(run: Path, own_directory: Path) -> None:
    """Point the links in the run directory to the current queue."""
    for kind in KINDS:
        fresh = run / f"{kind}.new"
        with suppress(OSError):  # only for people
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(f"{own_directory.name}/{kind}")
            fresh.rename(run / kind)


def is_linked(run: Path) -> bool:
    """Return whether the links in the run directory exist."""
    return all(os.path.lexists(run / kind) for kind in KINDS)


def others(run: Path, own_directory: Path) -> list[Path]:
    """Return the directories of earlier queues."""
    named = [path for path in run.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return [path for path in sorted(named) if path != own_directory]


def highest_id(run: Path, own_directory: Path) -> int:
    """Return the highest job id of which an earlier queue has left files; 0 if there are none."""
    jobs = (job for queue_dir in others(run, own_directory) for job, _ in _attempts(queue_dir))
    return max((job for job in jobs if job < _MAX_ID), default=0)


def last_attempts(queue_dir: Path) -> dict[int, int]:
    """Return {job: last attempt} of the jobs of a queue that left more than a tombstone."""
    attempt_of: dict[int, int] = {}
    for job, attempt in _attempts(queue_dir):
        if job >= _MAX_ID:
            continue  # an MPS daemon
        name = f"{job}.{attempt}"
        if any(os.path.lexists(queue_dir / kind / name) for kind in ("result", "job")) or _shepherd(
            queue_dir, job, attempt
        ):
            attempt_of[job] = max(attempt, attempt_of.get(job, 0))
    return attempt_of


def _attempts(queue_dir: Path) -> set[Attempt]:
    """Return the attempts that have a claim, a tombstone, a result or a job directory."""
    return set().union(*(_attempts_in(queue_dir / kind) for kind in (*KINDS, _CLOSED)))


def _attempts_in(folder: Path) -> Iterator[Attempt]:
    with suppress(OSError):
        for name in os.listdir(folder):
            job, _, attempt = name.partition(".")
            if job.isdecimal() and attempt.isdecimal():
                yield int(job), int(attempt)


# -- earlier queues ----------------------------------------------------------------------------------


def close(queue_dir: Path) -> None:
    """Prevent pending launches of an earlier queue: its spawner can no longer claim attempts.

    Raises:
        OSError: the directory of claims cannot be renamed.
    """
    if (queue_dir / "claim").is_dir():
        if not (queue_dir / _CLOSED).exists():
            (queue_dir / "claim").rename(queue_dir / _CLOSED)
        else:
            _move(queue_dir / "claim", queue_dir / _CLOSED)


def _reopen(queue_dir: Path) -> None:
    """Undo `close` for a queue that is in use again."""
    if (queue_dir / _CLOSED).is_dir():
        (queue_dir / "claim").mkdir(mode=0o711, exist_ok=True)
        _move(queue_dir / _CLOSED, queue_dir / "claim")


def _move(source: Path, target: Path) -> None:
    for name in os.listdir(source):
        os.rename(source / name, target / name)
    source.rmdir()


def living_jobs(queue_dir: Path) -> list[Earlier]:
    """Return the jobs of an earlier queue, or of one without a controller, that have living processes."""
    owners = {attempt: _owner(job_dir(str(queue_dir), *attempt)) for attempt in sorted(_attempts(queue_dir))}
    uids = None if None in owners.values() else {owner for owner in owners.values() if owner is not None}
    below = started_below(f"{queue_dir}/job/", uids) if owners else {}
    earliers = [_earlier(queue_dir, attempt, owner, below) for attempt, owner in owners.items()]
    return [one for one in earliers if one.processes]


def _earlier(
    queue_dir: Path, attempt: Attempt, owner: int | None, below: Mapping[str, Sequence[Identity]]
) -> Earlier:
    directory = job_dir(str(queue_dir), *attempt)
    identities = [
        identity for identity in below.get(directory, ()) if owner is None or may_be_of(identity.pid, owner)
    ]
    return Earlier(
        queue_dir.name, *attempt, (*_shepherd(queue_dir, *attempt), *identities), _gpus_of(identities)
    )


def _owner(directory: str) -> int | None:
    """Return the uid that owns the script in a job directory; None if there is none, or a mount hides it."""
    with suppress(OSError):
        parent, name = os.path.split(os.path.join(os.path.dirname(directory), _target(directory)))
        above = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            script = open_beneath(f"{name}/script", above, os.O_PATH)
        finally:
            os.close(above)
        try:
            return os.fstat(script).st_uid
        finally:
            os.close(script)
    return None


def _target(path: str) -> str:
    """Return the target of a link, or the path itself if it is not a link."""
    try:
        return os.readlink(path)
    except OSError:
        return path


def _shepherd(queue_dir: Path, job: int, attempt: int) -> list[Identity]:
    """Return the process that claimed an attempt, if it lives and there is no result yet."""
    if os.path.lexists(queue_dir / "result" / f"{job}.{attempt}"):
        return []  # the process may be running another job
    for kind in (_CLOSED, "claim"):
        with suppress(OSError, ValueError):
            claim = parse_claim(os.readlink(queue_dir / kind / f"{job}.{attempt}"))
            if claim and is_alive(identity := Identity(claim.pid, claim.start, claim.boot)):
                return [identity]
    return []


def _gpus_of(processes: Iterable[Identity]) -> frozenset[str] | None:
    """Return the GPUs with which the processes of a job were started; None if unknown."""
    for process in processes:
        if started_with(process.pid, "FG_JOB_DIR"):
            names = started_with(process.pid, "FG_GPU_UUIDS") or started_with(process.pid, "FG_JOB_GPUS")
            return frozenset(filter(None, names.split(",")))
    return None


def remove_ended(queue_dir: Path, keep: Collection[Attempt], remove: Callable[[Path], None]) -> None:
    """Remove the files of ended attempts of an earlier queue, and its directory after the last one.

    Args:
        keep: attempts that still run.
        remove: removes a directory that a user could write to.
    """
    for job, attempt in _attempts(queue_dir) - set(keep):
        for kind in ("result", _CLOSED):
            with suppress(OSError):
                os.unlink(queue_dir / kind / f"{job}.{attempt}")
        for attempt_dir in attempt_dirs(queue_dir, job, attempt):
            remove(attempt_dir)
        if (directory := queue_dir / "job" / f"{job}.{attempt}").is_dir() or directory.is_symlink():
            remove(directory)
    if keep:
        return  # their shepherds use the directories
    with suppress(OSError):
        for directory in list((queue_dir / "job").iterdir()):
            if SPARE_NAME.fullmatch(directory.name):
                remove(directory)
    for kind in (*KINDS, _CLOSED):
        with suppress(OSError):
            os.rmdir(queue_dir / kind)
    for name in ("quarantine", "spare"):
        if (queue_dir / name).is_dir():
            remove(queue_dir / name)
    with suppress(OSError):
        remove_scratch(queue_dir)
        (queue_dir / "containers.conf").unlink(missing_ok=True)
        os.rmdir(queue_dir)
