"""T7: jobs that try to survive their end, in each containment: cgroups of version 2 and 1, and none.

Each job has a uid of its own, so that a survivor is any process with this uid after the result. A job
ends by its own exit, which leaves its other processes behind, or by an order to cancel it.
"""

import os
import random
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from targets.rows import Row

FIRST_UID = 1_900_000_000 + os.getpid() % 50_000 * 1000  # a killed round may have left processes
KINDS = {"T7 v2": "v2", "T7 v1": "v1", "T7 none": ""}
READY, PATIENCE = 0.3, 30.0  # seconds until a job has begun its tricks, and for its end
V1 = Path("/sys/fs/cgroup")


def missing(target: str) -> str:
    """Return why the target cannot run here; "": it can."""
    if os.geteuid():
        return "jobs of other users need root"
    if KINDS[target] == "v1" and not (V1 / "memory" / "cgroup.procs").exists():
        return "no cgroups of version 1"
    return ""


def run(target: str, seed: int, size: int) -> list[Row]:
    from spawner_driver import Spawner

    row = Row(target, seed, 0)
    if why := missing(target):
        row.findings.append(f"not run: {why}")
        return [row]
    luck, times = random.Random(seed), []
    with tempfile.TemporaryDirectory(prefix="fgescape-") as name, hierarchy(KINDS[target]) as groups:
        place = Path(name)
        place.chmod(0o755)
        program = built(place)
        spawner = Spawner(place / "run")
        for number in range(1, size + 1):
            times.append(escape(spawner, program, number, luck, groups, row))
            row.done += 1
        complaints = spawner.close()
        if complaints:
            row.findings.append(f"the spawner said: {complaints.decode(errors='replace')[:500]}")
    times.sort()
    row.jobs, row.worst = size, times[-1]
    row.notes |= {"max p99 ms": times[int(len(times) * 0.99) - 1], "max median ms": times[len(times) // 2]}
    return [row]


def built(place: Path) -> Path:
    program = place / "adversary"
    source = Path(__file__).with_name("adversary.c")
    subprocess.run([os.environ.get("CC", "cc"), "-O1", "-static", "-o", program, source], check=True)
    program.chmod(0o755)
    return program


@contextmanager
def hierarchy(kind: str) -> Iterator[tuple[Path, ...]]:
    """Yield the directories in which the jobs' groups are made."""
    if kind == "v1":
        yield tuple(V1 / name for name in ("memory", "pids", "cpu") if (V1 / name / "cgroup.procs").exists())
    elif kind == "v2":
        with mounted_v2() as root:
            yield (root,)
    else:
        yield ()


@contextmanager
def mounted_v2() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="fgcgroup2-"))
    subprocess.run(["mount", "-t", "cgroup2", "none", root], check=True)
    try:
        yield root
    finally:
        subprocess.run(["umount", root], check=False)
        root.rmdir()


def escape(
    spawner, program: Path, number: int, luck: random.Random, groups: tuple[Path, ...], row: Row
) -> float:
    """Run one job; return the milliseconds from its end, or the order to end, to its result."""
    uid, place = FIRST_UID + number, program.parent / f"home{number}"
    names = [f"{group}/fg-escape-{os.getpid()}-{number}" for group in groups]
    seed = luck.randrange(1, 2**31)
    with own_directory(place, uid) as ready:
        job = begin(spawner, f"#!{program} {seed}\n", uid, place, names, luck)
        select.select([ready], [], [], READY)  # a job that stopped itself says nothing
        time.sleep(luck.choice((0, 0, 0.01, 0.1)))
        begun = time.monotonic()
        problem = end(job, luck)
        took = (time.monotonic() - begun) * 1000
    survivors, left = processes(uid), [one for one in names if Path(one).exists()]
    row.orphaned += len(survivors)
    row.left += len(left)
    problems = [*([problem] if problem else []), *(f"left {one}" for one in left)]
    problems += [f"survivors {survivors[:5]}"] if survivors else []
    row.findings += [f"job {number} (adversary {seed}): {text}" for text in problems]
    clean(uid, left)
    return took


@contextmanager
def own_directory(place: Path, uid: int) -> Iterator[int]:
    """Make the working directory of a job; yield the descriptor of a FIFO in it."""
    place.mkdir()
    os.chown(place, uid, uid)
    os.mkfifo(place / "ready", 0o666)
    os.chown(place / "ready", uid, uid)
    ready = os.open(place / "ready", os.O_RDWR)
    try:
        yield ready
    finally:
        os.close(ready)
        place.chmod(0o700)
        shutil.rmtree(place, ignore_errors=True)


def begin(spawner, script: str, uid: int, place: Path, groups: list[str], luck: random.Random):
    from spawner_driver import BECOME_USER

    return spawner.launch(
        script,
        job=uid - FIRST_UID,
        uid=uid,
        gid=uid,
        flags=BECOME_USER,
        cwd=str(place),
        grace=luck.choice((0, 1, 50)),
        leftover_grace=1,
        cgroups=tuple((one, ()) for one in groups),
        rlimits=((6, 400, 400),),  # RLIMIT_NPROC
    )


def end(job, luck: random.Random) -> str:
    """Order a job to end until it has a result; return the fault."""
    from spawner_driver import CANCEL, DELIVER, Result

    until = time.monotonic() + PATIENCE
    order = (CANCEL,) if luck.random() < 0.7 else (DELIVER, signal.SIGKILL)
    while not job.link.is_symlink():
        if time.monotonic() > until:
            return f"no result after {PATIENCE:.0f} s"
        with suppress(OSError):
            job.order(*order)
        pause = time.monotonic() + 0.5
        while time.monotonic() < pause and not job.link.is_symlink():
            time.sleep(0.001)
    result = Result.read(job.link)
    return str(result) if result.cause == "launch" else ""


def processes(uid: int) -> list[tuple[int, str]]:
    """Return the processes of a uid that are not zombies."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if os.stat(f"/proc/{entry}").st_uid != uid and str(uid) not in owners(entry):
                continue
            state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":
                found.append((int(entry), state))
    return found


def owners(pid: str) -> list[str]:
    """Return the uids of a process, which /proc shows as root's if it cannot be dumped."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith("Uid:")).split()[1:]


def clean(uid: int, groups: list[str]) -> None:
    """Remove what a failure left, so that it does not disturb the next job."""
    for pid, _ in processes(uid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for group in groups:
        with suppress(OSError):
            Path(group).rmdir()
