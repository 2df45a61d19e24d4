"""`fgsched doctor --recover`: create a new queue from the readable rows of a damaged one."""

import json
import shutil
import sqlite3
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fgsched.domain.errors import StorageError
from fgsched.domain.states import JobState
from fgsched.store import files, wal
from fgsched.store.files import PAGE, UNREADABLE, Commit, Marker
from fgsched.store.opening import open_queue, raise_ids
from fgsched.store.schema import SQL as QUERIES
from fgsched.store.schema import named, source
from fgsched.system import disk

# -- rows that can still be read ----------------------------------------------


RECOVER_SQL = named(source("recover.sql"))
_INTERIOR = 5  # the type of a page that refers to others
_NUMBERED = ("blob", "job", "card", "event")  # tables whose rows have numbers
_FAILURES = 1_000_000  # unreadable ranges after which the rest of a table is abandoned
_DEADLINE = 600  # seconds for the program of SQLite's own
Row = dict[str, Any]


class Salvage:
    """A copy of a damaged queue whose tables are read as far as possible."""

    def __init__(self, copy: Path) -> None:
        self._db = _opened(copy)
        self.given_up: list[str] = []  # tables of which a part was abandoned

    def close(self) -> None:
        self._db.close()

    def rows(self, table: str, most: int = 0) -> Iterator[Row]:
        """Yield every readable row of a table; `most` is the highest valid row number, 0 for no limit."""
        if not any(name == table for name, _ in self._db.execute(QUERIES["columns"])):
            return
        if table in _NUMBERED:
            yield from self._numbered(table, max(most, self._last(table)))
        else:
            yield from self._keyed(table)

    def commits(self) -> int | None:
        """Return the number of the last commit, or None if it is unreadable or not counted."""
        with suppress(*UNREADABLE):
            return int(self._db.execute(QUERIES["get_commits"]).fetchone()["count"])
        return None

    def _last(self, table: str) -> int:
        name = {"job": "last_of_jobs", "blob": "last_blob", "event": "last_event"}.get(table, "")
        with suppress(*UNREADABLE):
            return int(self._db.execute(RECOVER_SQL[name]).fetchone()[0] or 0) if name else 1024
        return 1 << 22

    def _numbered(self, table: str, last: int) -> Iterator[Row]:
        """Read rows by number: a range that cannot be read is divided in halves."""
        ranges, failures = [(0, last)], 0
        while ranges:
            low, high = ranges.pop()
            try:
                for row in self._db.execute(RECOVER_SQL[f"read_{table}"], {"low": low, "high": high}):
                    yield dict(row)
                    low = row[0] + 1
            except UNREADABLE:
                failures += 1
                if failures > _FAILURES:
                    self.given_up.append(table)
                    return
                middle = (low + high) // 2
                if low < high:
                    ranges += [(middle + 1, high), (low, middle)]

    def _keyed(self, table: str) -> Iterator[Row]:
        """Read rows by key, from both ends as far as possible."""
        rows: set[tuple[Any, ...]] = set()
        for name in (f"read_{table}", f"read_{table}_backwards"):
            try:
                for row in self._db.execute(RECOVER_SQL[name]):
                    if tuple(row) not in rows:
                        rows.add(tuple(row))
                        yield dict(row)
                return
            except UNREADABLE:
                continue
        self.given_up.append(table)


def _opened(copy: Path) -> sqlite3.Connection:
    """Open the copy; if its schema is damaged, use that of a new queue or sqlite3's .recover."""
    new = copy.with_name("template") / "queue.db"
    open_queue(new).close()
    if not _is_schema_damaged(copy, new):
        with suppress(*UNREADABLE):
            return _connected(copy)
    for attempt in (_with_new_schema, _as_it_is, _looked_through):
        with suppress(*UNREADABLE, OSError):
            return _connected(attempt(copy, new))
    raise sqlite3.DatabaseError("none of its tables can be read")


def _connected(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    db.row_factory = sqlite3.Row
    db.text_factory = lambda data: data.decode(errors="backslashreplace")
    try:
        db.execute(QUERIES["columns"]).fetchall()
    except UNREADABLE:
        db.close()
        raise
    return db


def _as_it_is(copy: Path, _new: Path) -> Path:
    return copy


def _with_new_schema(copy: Path, new: Path) -> Path:
    """Replace the pages that describe the tables; they are equal in all queues that this version made.

    Raises:
        DatabaseError: another version made the queue, and its tables may differ.
    """
    again = copy.with_name("again.db")
    if _is_of_other_version(copy, new):
        raise sqlite3.DatabaseError("the queue was made by another version")
    shutil.copyfile(copy, again)
    with suppress(FileNotFoundError):
        shutil.copyfile(f"{copy}-wal", f"{again}-wal")
    new_bytes = new.read_bytes()
    with again.open("r+b") as file:
        for page in (1, *_schema_pages(new_bytes)):
            file.seek((page - 1) * PAGE)
            file.write(new_bytes[(page - 1) * PAGE : page * PAGE])
        size = file.seek(0, 2) // PAGE
        file.seek(28)
        file.write(struct.pack(">3I", size, 0, 0))  # pages, and no list of free ones
    return again


def _schema_pages(data: bytes) -> list[int]:
    """Return the pages to which the first page refers, if the schema needs more (file format, 1.6)."""
    first = data[100:PAGE]
    if first[0] != _INTERIOR:
        return []
    (count,) = struct.unpack_from(">H", first, 3)
    cells = struct.unpack_from(f">{count}H", first, 12)
    pages = [struct.unpack_from(">I", data, cell)[0] for cell in cells]
    return [*pages, struct.unpack_from(">I", first, 8)[0]]


def _is_schema_damaged(copy: Path, new: Path) -> bool:
    """Tell whether a table is missing, or the definition of one has other bytes than that of a new queue."""
    new_texts, damaged_texts = _texts(new), _texts(copy)
    tables = [name.encode() for name in _TABLES]
    return any(
        name not in damaged_texts or _is_damaged(damaged_texts[name], new_texts[name]) for name in tables
    )


def _is_damaged(text: bytes, good: bytes) -> bool:
    return text != good and len(text) == len(good)


def _is_of_other_version(copy: Path, new: Path) -> bool:
    """Tell whether the definition of a table has another length than that of a new queue."""
    new_texts, damaged_texts = _texts(new), _texts(copy)
    return any(len(text) != len(new_texts[name]) for name, text in damaged_texts.items() if name in new_texts)


def _texts(path: Path) -> dict[bytes, bytes]:
    """Return the definitions of the tables and indexes that can be read, by name."""
    texts: dict[bytes, bytes] = {}
    with closing(sqlite3.connect(path)) as db, suppress(*UNREADABLE):
        db.text_factory = bytes
        db.execute("PRAGMA writable_schema = ON")  # a definition that is wrong is no error
        for name, text in db.execute(RECOVER_SQL["definitions"]):
            texts[name] = text
    return texts


def _looked_through(copy: Path, _new: Path) -> Path:
    again = copy.with_name("looked-through.db")
    if not _recovered(copy, again):
        raise sqlite3.DatabaseError("nothing was found")
    return again


def _recovered(copy: Path, again: Path) -> bool:
    """Run sqlite3's .recover on all pages; return whether it succeeded."""
    program = shutil.which("sqlite3", path="/usr/local/bin:/usr/bin:/bin")
    if program is None:
        return False
    with (
        subprocess.Popen(
            [program, copy, ".recover"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as reads,
        subprocess.Popen([program, again], stdin=reads.stdout, stderr=subprocess.DEVNULL) as writes,
    ):
        writes.wait(_DEADLINE)
    return again.exists() and again.stat().st_size > 0


# -- the new queue ------------------------------------------------------------


_TABLES = ("blob", "job", "card", "meta", "submission", "usage", "event")  # each after the tables it names
_BESIDE = (files.COMMITS_FILE, files.SUMS_FILE)
_UNFINISHED = "unfinished.json"  # in the directory of a recovery: the files that it replaces
_HELD = "it may have run in commits that the damaged queue lost: see that it did not before you release it"
_RAN = (
    "it was started in commits that the damaged queue lost, attempt {}: see what it did before you release it"
)
_LOST = "status unknown: the queue was recovered while it ran"
_UNDER_WAY = {state.value for state in JobState if state.holds}


@dataclass
class Recovered:
    """The outcome of a recovery."""

    damaged_files: Path  # where the damaged files are; each has the same ending
    name: str = ""  # of the new queue
    rows: dict[str, int] = field(default_factory=dict)  # table -> rows that were saved
    refused: dict[str, int] = field(default_factory=dict)  # table -> rows that were read and make no sense
    given_up: list[str] = field(default_factory=list)
    doubtful: tuple[int, ...] = ()  # pages of the log that were damaged, and are used
    commits: int | None = None  # how many are missing; None: not known
    held: list[int] = field(default_factory=list)  # jobs that wait, held
    under_way: list[int] = field(default_factory=list)  # jobs that ran
    without_script: list[int] = field(default_factory=list)  # pending jobs whose scripts are lost
    missing_jobs: list[tuple[int, int]] = field(default_factory=list)  # first and last id of each gap
    last_job: int = 0


def recover(path: Path, *, started: Mapping[int, int], beyond: int, ending: str, now: float) -> Recovered:
    """Replace the queue at `path` by a new one with all readable rows.

    `started` maps each job with traces in the run directory to its last attempt. `beyond` is the highest job
    id known to have been assigned. The damaged files are kept with the suffix `ending`. `now` is in epoch
    seconds. Until the last step is done the queue is refused, so the recovery can be repeated. No other
    process may have the queue open.

    Raises:
        StorageError: the files cannot be read or replaced.
    """
    place = path.with_name(f"{path.name}.recovering")
    _take_back(path, place)
    if not path.exists():
        raise StorageError(f"{path} is missing", "There is nothing to recover; bring a copy of it back.")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700)
    try:
        recovered = _rebuilt(path, place, started=started, beyond=beyond, now=now)
        recovered.damaged_files = path.with_name(f"{path.name}.{ending}")
        _exchange(path, place / "queue.db", ending)
    except (OSError, *UNREADABLE) as error:
        raise StorageError(f"{path} cannot be recovered: {error}", "Bring a backup of it back.") from error
    finally:
        if not (place / _UNFINISHED).exists():
            shutil.rmtree(place, ignore_errors=True)
    return recovered


def _rebuilt(path: Path, place: Path, *, started: Mapping[int, int], beyond: int, now: float) -> Recovered:
    damaged = place / "damaged.db"
    shutil.copyfile(path, damaged)
    disk.restore_name(path.with_name(f"{path.name}-wal"))
    doubtful = wal.copy_mended(path.with_name(f"{path.name}-wal"), place / "damaged.db-wal")
    beside = _beside(path)
    with closing(Salvage(damaged)) as salvage:
        recovered = Recovered(damaged_files=path, last_job=max(beyond, beside.last_job if beside else 0))
        _fill(place / "queue.db", salvage, recovered, started=started, now=now)
        recovered.given_up, recovered.doubtful = salvage.given_up, doubtful
        recovered.commits = _missing(salvage, beside)
    return recovered


def _beside(path: Path) -> Commit | None:
    with suppress(files.Damaged):
        return files.read_commit(path.with_name(files.COMMITS_FILE))
    return None


def _missing(salvage: Salvage, beside: Commit | None) -> int | None:
    """Return the number of commits that the queue lacks compared with the commit file, or None if unknown."""
    number = salvage.commits()
    return max(0, beside.number - number) if beside and number is not None else None


def _fill(
    queue: Path, salvage: Salvage, recovered: Recovered, *, started: Mapping[int, int], now: float
) -> None:
    """Write all rows into a new queue, in one transaction."""
    opened = open_queue(queue)
    opened.db.execute("BEGIN IMMEDIATE")
    rows = _Rows(opened.db, recovered, started, now)
    for table in _TABLES:
        for row in salvage.rows(table, recovered.last_job if table == "job" else 0):
            rows.keep(table, row)
    rows.finish()
    opened.db.execute(QUERIES["count_commit"], {"number": 1})
    opened.db.execute("COMMIT")
    opened.record.note(1, recovered.last_job)
    recovered.name = opened.record.last.queue
    opened.close()
    wal.refuse_leftover(queue)


class _Rows:
    """The rows of the new queue."""

    def __init__(
        self, db: sqlite3.Connection, recovered: Recovered, started: Mapping[int, int], now: float
    ) -> None:
        self._db, self._found, self._started, self._now = db, recovered, started, now
        self._blobs: set[int] = set()
        self._jobs: set[int] = set()
        self._defaults = {
            row["name"]: _value(row["dflt_value"]) for row in db.execute(RECOVER_SQL["default_of"])
        }

    def keep(self, table: str, row: Row) -> None:
        """Write a row, unless it is inconsistent."""
        if table == "job":
            row = self._job(self._defaults | row)
        try:
            count = self._db.execute(RECOVER_SQL[f"keep_{table}"], row).rowcount
        except (sqlite3.Error, UnicodeDecodeError):  # a value that its column does not take
            count = 0
        counts = self._found.rows if count > 0 else self._found.refused
        if count > 0 or table not in {"meta", "event"}:
            counts[table] = counts.get(table, 0) + 1
        if count > 0 and table in {"job", "blob"}:
            (self._jobs if table == "job" else self._blobs).add(row["id"])
            if table == "job":
                self._note(row)

    def _job(self, row: Row) -> Row:
        """Convert a job's row for the new queue: pending jobs are held, running jobs have ended."""
        row = row | {"slot": 0, "relimited": 0}
        if row["array_job"] not in self._jobs | {None, row["id"]}:
            row |= {"array_job": None, "array_task": None}
        is_scripted = row["script"] in self._blobs and row["environment"] in self._blobs
        for blob in {row["script"], row["environment"]} - self._blobs:
            self._replace(blob)
        if row["state"] in _UNDER_WAY:
            outcome = row["outcome"] if row["state"] == "COMPLETING" and row["outcome"] else ""
            over = {"state": outcome or "FAILED", "ended_at": self._now, "suspended_at": None, "held": ""}
            return row | over | ({} if outcome else {"reason": "SystemFailure", "lost": 1, "detail": _LOST})
        if row["state"] != "PENDING":
            return row
        if not is_scripted:
            over = {"state": "CANCELLED", "held": "", "ended_at": self._now}
            return row | over | {"warning": "its script was lost with the damaged queue"}
        attempt = self._started.get(row["id"], 0)
        job = _RAN.format(attempt) if attempt > (row["attempt"] or 0) else _HELD
        return row | {"held": "admin", "reason": "JobHeldAdmin", "warning": job}

    def _replace(self, blob: object) -> None:
        """Insert an empty blob for a lost script or environment."""
        if isinstance(blob, int):
            empty_blob = {"id": blob, "digest": b"lost %d" % blob, "data": b""}
            self._db.execute(RECOVER_SQL["keep_blob"], empty_blob)

    def _note(self, row: Row) -> None:
        recovered = self._found
        if row["detail"] == _LOST or (row["ended_at"] == self._now and row["state"] != "CANCELLED"):
            recovered.under_way.append(row["id"])
        elif row["held"] == "admin":
            recovered.held.append(row["id"])
        elif row["ended_at"] == self._now:
            recovered.without_script.append(row["id"])

    def finish(self) -> None:
        """Note the ended jobs, continue ids after the highest one, and determine which jobs are lost."""
        self._db.execute(RECOVER_SQL["note_ended"])
        recovered = self._found
        recovered.last_job = max(recovered.last_job, max(self._jobs, default=0))
        raise_ids(self._db, recovered.last_job)
        before = 0
        for number in (*sorted(self._jobs), recovered.last_job + 1):
            if number > before + 1:
                recovered.missing_jobs.append((before + 1, number - 1))
            before = number


def _value(default: str | None) -> object:
    """Parse a default value of the schema: a number, a quoted text, or none."""
    if default is None or default == "NULL":
        return None
    return (
        default.strip("'") if default.startswith("'") else float(default) if "." in default else int(default)
    )


def _exchange(path: Path, fresh: Path, ending: str) -> None:
    """Rename the damaged files and put the new files in their places.

    `_UNFINISHED` names the damaged files until all new files are durable. A recovery that was interrupted
    before that is reverted by the next one. Meanwhile the queue is refused because of its marker.
    """
    created = files.read_marker(fresh)
    names = [name for name in (path.name, *_beside_names(path)) if path.with_name(name).exists()]
    for name in names:
        disk.link(path.with_name(name), path.with_name(f"{name}.{ending}"))
    for name in (*_BESIDE, path.name):
        disk.sync_file(fresh.with_name(name))
    disk.sync_directory(path.parent)
    unfinished = fresh.with_name(_UNFINISHED)
    disk.replace_file(unfinished, json.dumps({"ending": ending, "names": names}).encode())
    disk.remove(path.with_name(f"{path.name}-wal"), missing_ok=True)
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    for name in (*_BESIDE, path.name):
        with suppress(FileNotFoundError):
            disk.rename(fresh.with_name(name), path.with_name(name))
    files.forget_damage(path)
    disk.sync_directory(path.parent)
    disk.remove(unfinished)
    disk.sync_directory(unfinished.parent)
    if created is not None:
        files.write_marker(path, Marker(created.queue, created.created))


def _beside_names(path: Path) -> tuple[str, ...]:
    return (f"{path.name}-wal", *_BESIDE)


def _take_back(path: Path, place: Path) -> None:
    """Restore the damaged files that an interrupted recovery replaced. It can be repeated."""
    unfinished = place / _UNFINISHED
    try:
        exchange = json.loads(unfinished.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in (path.name, *_beside_names(path)):
        with_name = path.with_name(f"{name}.{exchange['ending']}")
        if name not in exchange["names"]:
            disk.remove(path.with_name(name), missing_ok=True)
        elif with_name.exists():
            disk.rename(with_name, path.with_name(name))
    disk.sync_directory(path.parent)
    disk.remove(unfinished)
