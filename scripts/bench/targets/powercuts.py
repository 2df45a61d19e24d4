"""T4: power cuts. A load is recorded, and the files that a cut can leave are built and opened.

After each cut every acknowledged job must be in the queue or in the accounts, with its end if a user was
told of it. No job that had begun may be pending, and no file may be refused. After some of the cuts a
controller of the next boot starts on the files, and every job that had not begun must run once.
"""

import json
import os
import random
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bench

from targets.disk import Change, Disk, changes, lay_out
from targets.layer import Layer, layered
from targets.rows import Row

SECONDS_A_CUT = 0.5  # of load
CONTINUES = 2  # one of so many cuts
# Fewer processors than a batch has jobs: at most cuts some jobs have not begun.
CONFIG = '[host]\ncpus = 8\n[accounting]\nmove_after = "{after}"\n'
SCRIPT = "#!/bin/sh\necho j $FG_JOB_ID {code} >>{log}\nexit {code}\n#{padding}\n"
RETRIED = {"Unreachable", "ConnectionError", "StorageError", "TimedOut"}
OPEN = {"PENDING", "RUNNING", "STARTING", "COMPLETING"}
STATES = "SELECT id, state, coalesce(status, 0) >> 8 FROM job"


def run(target: str, seed: int, size: int) -> list[Row]:
    """Record one load; examine `size` cuts of it."""
    luck = random.Random(seed)
    row = Row(target, seed, 0)
    with layered(records=True) as layer:
        after = luck.choice(("0", "30d"))
        with bench.home(config=CONFIG.format(after=after)) as it:
            load(it, layer, luck, max(4.0, size * SECONDS_A_CUT))
            root, environ = str(it.paths.state), dict(os.environ)
        found = list(changes(layer.log))
        row.notes = {"changes recorded": len(found), "bytes recorded": layer.log.stat().st_size}
        cuts = chosen(found, size, luck)
        examine(found, cuts, Place(layer, root, environ), seed, row)
    return [row]


def chosen(found: list[Change], count: int, luck: random.Random) -> list[int]:
    """Return the places of cuts after the first acknowledgement: anywhere, early, and beside rare changes."""
    first = next(place for place, change in enumerate(found) if change.kind == "a") + 1
    rare = [place for place in range(first, len(found)) if found[place].kind in "CRLUTMD"] or [first]
    kinds = (
        lambda: luck.randrange(first, len(found)),
        lambda: luck.randrange(first, min(len(found), first + 500)),
        lambda: min(len(found), luck.choice(rare) + luck.randrange(6)),
    )
    return sorted(luck.choices(kinds, (3, 1, 1))[0]() for _ in range(count))


# -- the load -------------------------------------------------------------------------------------


class Submitter(threading.Thread):
    """Submits jobs, and records each acknowledgement and each end that it learns."""

    def __init__(self, it: bench.Home, layer: Layer, luck: random.Random, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.it, self.layer, self.luck, self.stop = it, layer, luck, stop

    def run(self) -> None:
        while not self.stop.is_set():
            codes = [self.luck.randrange(7) for _ in range(self.luck.choice((1, 1, 3, 20, 60)))]
            answer = self.ask("submit", **self.request(codes))
            ids = range(answer["first"], answer["first"] + answer["count"])
            self.tell("a", ids[0], len(ids))
            if self.luck.random() < 0.5:
                for job in self.ask("wait", ids=list(ids), patience=60)["jobs"]:
                    self.tell("e", job["id"], codes[job["id"] - ids[0]])

    def request(self, codes: list[int]) -> dict[str, Any]:
        request = bench.submission(self.it, "", 1, share=0)
        stays = {
            "chdir": "/",
            "output": "/dev/null",
            "requeue": False,
        }  # the home is gone when cuts are examined
        request["requests"][0] |= stays  # type: ignore[index]
        padding = "x" * self.luck.choice((0, 0, 5000, 50_000))
        scripts = [SCRIPT.format(log=self.layer.log, code=code, padding=padding) for code in codes]
        jobs = [[0, place, 0, False] for place in range(len(codes))]
        return request | {"key": secrets.token_hex(16), "scripts": scripts, "jobs": jobs}

    def ask(self, name: str, **words: Any) -> Any:
        while True:
            try:
                with self.it.client() as client:
                    return client.ask(name, **words)
            except Exception as error:
                if type(error).__name__ not in RETRIED:
                    raise
                time.sleep(0.02)

    def tell(self, kind: str, *numbers: int) -> None:
        line = " ".join([kind, *map(str, numbers)])
        with self.layer.log.open("ab", buffering=0) as log:
            log.write(f"{line}\n".encode())


def load(it: bench.Home, layer: Layer, luck: random.Random, seconds: float) -> None:
    """Submit and run jobs for a time, and kill the controller now and then."""
    stop = threading.Event()
    clients = [Submitter(it, layer, random.Random(luck.random()), stop) for _ in range(3)]
    for client in clients:
        client.start()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(luck.uniform(0.5, 3))
        if luck.random() < 0.3:
            with suppress(OSError, ValueError):
                os.kill(it.pid, 9)
    stop.set()
    for client in clients:
        client.join(60)


# -- after the cut --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where the files of cuts are laid out."""

    layer: Layer
    root: str  # the recorded state directory
    environ: dict[str, str]


@dataclass
class Told:
    """The knowledge of users before a cut."""

    acknowledged: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)
    ended: dict[int, int] = field(default_factory=dict)

    def take(self, change: Change) -> None:
        numbers = [int(word) for word in change.data.split()] if change.kind in "aje" else []
        if change.kind == "a":
            self.acknowledged.update(range(numbers[0], numbers[0] + numbers[1]))
        elif change.kind == "j":
            self.begun.add(numbers[0])
        elif change.kind == "e":
            self.ended[numbers[0]] = numbers[1]


def examine(found: list[Change], cuts: list[int], place: Place, seed: int, row: Row) -> None:
    """Replay the record once on disks of both kinds; build and open the files of each cut."""
    disks, told, at = (Disk(loose=False), Disk(loose=True)), Told(), 0
    for number, cut in enumerate(cuts):
        for change in found[at:cut]:
            told.take(change)
            for disk in disks:
                disk.take(change)
        at = cut
        luck = random.Random(f"{seed}.{number}")
        into = place.layer.place / f"cut{number}" / "fgsched"
        into.mkdir(parents=True)
        lay_out(luck.choice(disks).survivor(luck), place.root, into)
        shutil.copytree(into, keep := place.layer.place / "kept")
        problems = judge(into, told, row)
        if not problems and number % CONTINUES == 0:
            problems = go_on(keep, told, place, row)
        row.findings += [f"cut {number} at {cut} of {len(found)}: {text}" for text in problems]
        row.done += 1
        shutil.rmtree(keep)
        shutil.rmtree(into.parent)
    row.jobs = len(told.acknowledged)


def judge(state: Path, told: Told, row: Row) -> list[str]:
    """Open the files as a controller does, and compare them with the knowledge of users."""
    from fgsched.domain.errors import StorageError
    from fgsched.store import Store

    try:
        store = Store(state / "queue.db")
        while store.is_checking:
            store.check_some()
        whole = store.check()
        jobs = {row[0]: (row[1], row[2]) for row in store._db.execute(STATES)}
        store.close()
        moved = accounts(state)
    except StorageError as error:
        return [f"refused: {error.cause}"]
    problems = [] if whole == "ok" else [f"integrity: {whole}"]
    everywhere = {**moved, **jobs}
    lost = told.acknowledged - everywhere.keys()
    twice = [job for job in told.begun if jobs.get(job, ("",))[0] == "PENDING"]
    wrong = [job for job, code in told.ended.items() if not is_end(everywhere.get(job, ("", 0)), code)]
    row.lost, row.twice, row.wrong = row.lost + len(lost), row.twice + len(twice), row.wrong + len(wrong)
    for what, ids in (("lost", lost), ("would run twice", twice), ("ends forgotten", wrong)):
        problems += [f"{what}: {sorted(ids)[:10]}"] if ids else []
    return problems


def is_end(found: tuple[str, int], code: int) -> bool:
    """Compare the end of a job; a lost job (no state) is counted elsewhere."""
    return not found[0] or found == ("FAILED" if code else "COMPLETED", code)


def accounts(state: Path) -> dict[int, tuple[str, int]]:
    """Return the moved jobs; the accounts are made when the first job moves."""
    from fgsched.accounting.ledger import Ledger, LedgerReader

    path = state / "accounts.db"
    if not path.exists() or not path.stat().st_size:
        return {}
    ledger = Ledger(path)
    whole = ledger._db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    ledger.close()
    reader = LedgerReader(path)
    found = {job.id: (str(job.row["state"]), job.exit_code) for job in reader.jobs(0, 1e12)}
    reader.close()
    return found if whole == "ok" else {0: (f"accounts: {whole}", 0)}


NEXT_BOOT = 'mount --bind "$1" /proc/sys/kernel/random/boot_id && shift && exec "$@"'


def go_on(state: Path, told: Told, place: Place, row: Row) -> list[str]:
    """Start a controller of the next boot on the files, and wait until all jobs have ended."""
    boot = place.layer.place / "boot"
    boot.write_text("00000000-0000-4000-8000-000000000000\n")
    home = place.layer.place / "home"
    run = Path(f"/dev/shm/fgcut-{secrets.token_hex(4)}")
    shutil.copytree(state, home / "fgsched")
    (home / "fgsched").chmod(0o700)
    (settings := place.layer.place / "fgsched.toml").write_text(CONFIG.format(after="30d"))
    run.mkdir(0o700)
    before = place.layer.log.read_bytes()
    place.layer.log.write_bytes(b"")
    variables = {"XDG_STATE_HOME": str(home), "XDG_RUNTIME_DIR": str(run), "FGSCHED_CONFIG": str(settings)}
    environ = place.environ | variables
    for name in ("LD_PRELOAD", "FGDISK_LOG", "FGDISK_UNDER"):
        environ.pop(name, None)
    words = ["unshare", "-m", "sh", "-c", NEXT_BOOT, "sh", str(boot)]
    program = "import sys; from targets.powercuts import finish; finish()"
    environ["PYTHONPATH"] = f"{Path(bench.__file__).parent}:{bench.ROOT}:{bench.ROOT / 'tests'}"
    try:
        done = subprocess.run(
            [*words, sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return [f"no controller continues: {done.stderr[-1500:]}"]
        return compare(json.loads(done.stdout), told, place, row)
    finally:
        place.layer.log.write_bytes(before)
        bench.kill_what_is_left(home, run)
        shutil.rmtree(home)
        shutil.rmtree(run)


def finish() -> None:
    """Wait until no job is open; print {id: (state, exit code)}."""
    it = bench.Home(Path(os.environ["XDG_STATE_HOME"]))
    until = time.monotonic() + 120
    while time.monotonic() < until:
        with it.client() as client:
            ids = [job["id"] for job in client.ask("queue", fields=["id"])["jobs"]]
            if not ids:
                break
        time.sleep(0.2)
    found: dict[int, Any] = {}
    after: int | None = 0
    with it.client() as client:
        while after is not None:
            page = client.ask("history", since=0, after=after, fields=["id", "state", "exit_code"])
            found |= {
                job["id"]: (job.get("state", "PENDING"), job.get("exit_code", 0)) for job in page["jobs"]
            }
            after = page.get("next")
        client.ask("stop")
    print(json.dumps(found))


def compare(found: dict[str, tuple[str, int]], told: Told, place: Place, row: Row) -> list[str]:
    """Compare the queue after the cut with the jobs that began before and after it."""
    after = [tuple(map(int, line.split()[1:])) for line in place.layer.log.read_text().splitlines()]
    ran = Counter([job for job, _ in after] + list(told.begun))
    ends = {int(job): (state, code) for job, (state, code) in found.items()}
    twice = {job for job, count in ran.items() if count > 1}
    never = {job for job in told.acknowledged - ran.keys() if ends.get(job, ("",))[0] != "NODE_FAIL"}
    wrong = {job for job, code in after if not is_end(ends.get(job, ("no end", 0)), code)}
    still = {job for job, (state, _) in ends.items() if state in OPEN}
    for name, count in (("cuts with a controller of the next boot", 1), ("jobs that it ran", len(after))):
        row.notes[name] = row.notes.get(name, 0) + count
    row.twice, row.never, row.wrong = row.twice + len(twice), row.never + len(never), row.wrong + len(wrong)
    kinds = (("run twice", twice), ("never run", never), ("wrong end", wrong), ("still open", still))
    return [
        f"{what} after the cut: {[(job, ends.get(job)) for job in sorted(ids)[:10]]}"
        for what, ids in kinds
        if ids
    ]
