"""The folders that hold calls and their results: `$XDG_STATE_HOME/fgsched/calls/call-…`, of mode 700.

A folder holds the function with its arguments, facts about the Python that submitted it, the id of its job,
and for each task the value or the error, and its output. It outlives the process that submitted it.
"""

import os
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec
from msgspec import Struct

from fgsched.client import find_paths
from fgsched.domain.errors import BadUsage, StorageError
from fgsched.domain.text import shown
from fgsched.domain.units import GIBIBYTE
from fgsched.python.task import CALL, ERROR, FACTS, FORMAT, VALUE
from fgsched.system import disk, places

PREFIX = "call-"
KEEP = 30 * 86400  # seconds for which results are kept
LIMIT = 10 * GIBIBYTE  # bytes of all calls of a user
_PRIVATE = 0o700  # mode of what is made; it is made only in directories of this user or of root
_JOB = "job"  # file with the id
_BETWEEN = 600.0  # seconds between two looks at the sizes
_measured: dict[Path, tuple[float, int]] = {}  # folder -> (monotonic time of the look, bytes)


class CallsUsage(Struct, frozen=True):
    """The number of kept calls, and the bytes of their files."""

    calls: int
    bytes: int


class CallFacts(Struct, frozen=True, kw_only=True):
    """What the runner and later handles need to know of a call."""

    format: int = FORMAT
    name: str  # of the function, or of the program
    python: str  # path of the interpreter; "": the call is a command
    version: str
    path: list[str]  # sys.path
    keep: int  # seconds
    module: str = ""  # file of a function that is sent by reference
    module_digest: str = ""


def root_of(folder: str | None = None) -> Path:
    """Return the directory of all calls of this user. Raises BadUsage for a relative one."""
    if folder is None:
        return find_paths().own(os.environ, os.geteuid()).state / "calls"
    if not os.path.isabs(folder):
        raise BadUsage(f"folder={shown(folder)} is not an absolute path")
    return Path(folder)


def create(root: Path, name: str, facts: CallFacts, files: Mapping[str, bytes | memoryview]) -> Path:
    """Write the folder of a call to the disk, and return it.

    Raises:
        FileExistsError: there is one of this name.
        StorageError: it cannot be written.
    """
    folder = root / name
    try:
        with places.pinned(folder, make=True, mode=_PRIVATE) as pinned_folder:
            pinned_folder.mkdir(mode=_PRIVATE)
            try:
                for file, content in {FACTS: msgspec.json.encode(facts), **files}.items():
                    disk.create_file(pinned_folder / file, cast(bytes, content))
                disk.sync_directory(pinned_folder)
                disk.sync_directory(pinned_folder.parent)
            except OSError:
                shutil.rmtree(pinned_folder, ignore_errors=True)
                raise
    except FileExistsError:
        raise
    except OSError as error:
        raise _unwritable(folder, error) from None
    return folder


def _unwritable(folder: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{folder}: {error.strerror}",
        "The call was not submitted. Name another folder=, such as a directory of yours.",
    )


def remove(folder: Path) -> None:
    """Remove the folder of a call with its results, if it is there and this user's."""
    with suppress(OSError), places.pinned(folder, mode=_PRIVATE) as pinned_folder:
        shutil.rmtree(pinned_folder, ignore_errors=True)


def note_job(folder: Path, job: int) -> None:
    """Keep the id of the job of a call."""
    with places.pinned(folder / _JOB, mode=_PRIVATE) as file:
        disk.create_file(file, str(job).encode(), syncs=False)


def job_of(folder: Path) -> int | None:
    """Return the id of the job of a call; None: it is not known."""
    try:
        return int((folder / _JOB).read_text())
    except (OSError, ValueError):
        return None


def facts_of(folder: Path) -> CallFacts | None:
    """Return the facts of a call; None: it is gone."""
    try:
        return msgspec.json.decode((folder / FACTS).read_bytes(), type=CallFacts)
    except (OSError, msgspec.MsgspecError):
        return None


def folder_of(arguments: Iterable[str]) -> Path | None:
    """Return the folder that is the argument of a job's script; None: the job is not from Python."""
    words = list(arguments)
    if len(words) != 1 or not os.path.basename(words[0]).startswith(PREFIX):
        return None
    return Path(words[0])


def has_call(folder: Path) -> bool:
    """Tell whether the call is still there."""
    return (folder / CALL).exists() or (folder / FACTS).exists()


def clear_result(folder: Path, index: int) -> None:
    """Remove the result of a task, so that another attempt runs it."""
    for ending in (VALUE, ERROR):
        with suppress(FileNotFoundError), places.pinned(folder / f"{index}{ending}", mode=_PRIVATE) as file:
            file.unlink()


def usage(folder: str | None = None) -> CallsUsage:
    """Return how many calls are kept, and the bytes of their files."""
    root = root_of(folder)
    folders = _folders(root)
    return CallsUsage(len(folders), sum(map(_size, folders)))


def refuse_full(root: Path, limit: int) -> None:
    """Refuse a call if the files of all calls have reached the limit, in bytes. Raises StorageError."""
    measured_at, size = _measured.get(root, (0.0, -1))
    now = time.monotonic()
    if size < 0 or size >= limit or now - measured_at > _BETWEEN:
        size = sum(map(_size, _folders(root)))
        _measured[root] = now, size
    if size >= limit:
        raise StorageError(
            f"{root} has {size / GIBIBYTE:.1f} GiB of calls and results; the limit is {limit / GIBIBYTE:.1f}",
            "Remove results with fgsched.forget(job), or set calls_limit=.",
        )


def add_size(root: Path, size: int) -> None:
    """Count the bytes of a new call, until the files are measured again."""
    measured_at, before = _measured.get(root, (0.0, 0))
    _measured[root] = measured_at, before + size


def expired(root: Path, now: float) -> dict[Path, int | None]:
    """Return the calls that have not changed for longer than they are kept, with their jobs.

    `now` is in seconds since the epoch.
    """
    old: dict[Path, int | None] = {}
    for folder in _folders(root):
        facts = facts_of(folder)
        keep = KEEP if facts is None else facts.keep
        with suppress(OSError):
            if now - folder.stat().st_mtime > keep:
                old[folder] = job_of(folder)
    return old


def _folders(root: Path) -> list[Path]:
    """Return the folders of calls of this user; none below the directory of another one."""
    try:
        with places.pinned(root / PREFIX, mode=_PRIVATE) as prefix, os.scandir(prefix.parent) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(PREFIX)]
    except OSError:
        return []
    return [root / name for name in names]


def _size(folder: Path) -> int:
    total = 0
    with suppress(OSError):
        for entry in os.scandir(folder):
            with suppress(OSError):
                total += entry.stat(follow_symlinks=False).st_size
    return total
