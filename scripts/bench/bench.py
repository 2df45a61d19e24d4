"""Shared parts of the benchmarks: a temporary home with a controller, and tables of results."""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))


def in_the_environment() -> None:
    """Restart with the interpreter of .venv, if there is one; end if it lacks the tools of the tests."""
    python = ROOT / ".venv" / "bin" / "python"
    if python.exists() and Path(sys.prefix) != ROOT / ".venv":
        os.execv(python, [str(python), *sys.argv])
    if find_spec("pytest") is None:  # as after scripts/quickstart alone
        sys.exit("the tools of the tests, which benchmarks need, are missing: run scripts/check once")


@dataclass
class Home:
    """A temporary home with a controller on simulated GPUs."""

    path: Path

    def command(self, name: str, *words: str) -> list[str]:
        """Return the words that run a command in Python, as its native program does."""
        return [sys.executable, "-I", str(Path(sys.executable).with_name("fgsched-python")), name, "", *words]

    @property
    def paths(self):
        from fgsched.system.paths import Paths

        return Paths.find(os.environ, os.geteuid())

    def client(self):
        """Return a client that takes requests by name, as the tests have it."""
        from asking import AskingClient

        return AskingClient(self.paths)

    @property
    def pid(self) -> int:
        return int(self.paths.lock.read_text())


def refuse_on_a_host_with_a_controller() -> None:
    """Refuse to run beside a controller of the host, which all commands would use."""
    from fgsched.system.paths import SYSTEM_RUN

    if (SYSTEM_RUN / "socket").exists():
        sys.exit(f"{SYSTEM_RUN}/socket: this host has a controller; measure where there is none")


@contextmanager
def home(
    *,
    devices: str = "sim:8x16G",
    config: str = "[host]\ncpus = 64\n",
    patience: float = 60,
    is_whole: bool = False,
) -> Iterator[Home]:
    """A home as a login has it, gone afterwards: state on a disk, where commits cost what they cost, and the
    run directory in memory, where the host has such a place. `is_whole`: FG_HOME names the place on the disk.
    """
    from leftovers import remove_outside

    refuse_on_a_host_with_a_controller()
    path = Path(tempfile.mkdtemp(prefix="fgbench-", dir=os.environ.get("FG_BENCH_DIR")))
    memory = Path("/dev/shm")
    run = Path(tempfile.mkdtemp(prefix="fgbench-", dir=memory if os.access(memory, os.W_OK) else path))
    (path / "fgsched.toml").write_text(config)
    (path / "out").mkdir()
    os.environ.pop("FG_HOME", None)
    os.environ |= {
        "FG_DEVICES": devices,
        "FGSCHED_CONFIG": str(path / "fgsched.toml"),
        "FG_HOME" if is_whole else "XDG_STATE_HOME": str(path),
        "XDG_RUNTIME_DIR": str(run),
    }
    it = Home(path)
    try:
        with it.client() as client:
            client.ask("ping")
        yield it
    finally:
        stop(it, patience)
        kill_what_is_left(path, run)
        remove_outside(it.paths)
        os.environ.pop("FG_HOME", None)
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(run, ignore_errors=True)


def stop(it: Home, patience: float = 60) -> None:
    from fgsched import protocol
    from fgsched.domain.errors import FgschedError

    try:
        with it.client() as client:
            ids = [job.id for job in client.call(protocol.ListQueue(fields=("id",))).jobs]
            if ids:
                client.ask("cancel", ids=ids, patience=patience)
                client.ask("wait", ids=ids, patience=patience)
            client.ask("stop")
    except FgschedError as error:
        print(f"stopping: {error}", file=sys.stderr)


def kill_what_is_left(state: Path, run: Path) -> None:
    """Kill the remaining controllers and job processes of this home."""
    homes = (f"XDG_STATE_HOME={state}".encode(), f"FG_HOME={state}".encode())
    marks = (*homes, f"FG_JOB_DIR={run}/".encode())
    for _ in range(50):
        found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_marked(pid, marks)]
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return
        time.sleep(0.1)


def _is_marked(pid: int, marks: tuple[bytes, bytes, bytes]) -> bool:
    """Tell whether another process was started with the variables of a home."""
    try:
        entries = {*Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}
    except OSError:
        return False
    return pid != os.getpid() and (
        not entries.isdisjoint(marks[:2]) or any(entry.startswith(marks[2]) for entry in entries)
    )


def exported() -> dict[str, str]:
    """Return the submitted variables: the environment of a login with a locale."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return kept | {"LANG": os.environ.get("LANG", "C.UTF-8")}


def submission(
    it: Home, script: str, count: int, *, share: int = 1250, hold: bool = False
) -> dict[str, object]:
    """Return the arguments of a request that submits `count` jobs of one script."""
    from fgsched.system.unanswered import new_key

    demand = {"gpus": 1, "share": share} if share else {}
    request = {"name": "bench", "chdir": str(it.path / "out"), "demand": demand}
    return {
        "key": new_key(time.time()),
        "requests": [request],
        "scripts": [script],
        "environments": [exported()],
        "jobs": [[0, 0, 0, hold]] * count,
    }


def native(source: str, directory: Path) -> Path:
    """Build a small C program beside this file."""
    target = directory / Path(source).stem
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-o", target, Path(__file__).parent / source], check=True)
    return target


@dataclass
class Table:
    """Rows of (name, figure, unit, note), printed at once, or as JSON at the end."""

    as_json: bool
    rows: list[dict[str, object]] = field(default_factory=list)

    def add(self, what: str, figure: float, unit: str, note: str = "") -> None:
        self.rows.append({"what": what, "figure": round(figure, 3), "unit": unit, "note": note})
        if not self.as_json:
            print(f"{what:<58} {figure:>10.1f} {unit:<8} {note}", flush=True)

    def end(self) -> None:
        if self.as_json:
            print(json.dumps({"rows": self.rows}, indent=1))


def median(measure: Callable[[], float], times: int) -> tuple[float, str]:
    """Return (median, 'min-max') of several measurements."""
    figures = sorted(measure() for _ in range(times))
    return statistics.median(figures), f"[{figures[0]:.1f}-{figures[-1]:.1f}] of {times}"


def timed(act: Callable[[], object]) -> float:
    """Return the milliseconds of a call."""
    begun = time.perf_counter()
    act()
    return (time.perf_counter() - begun) * 1000


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_kib(pid: int) -> int:
    """Return the memory of a process: private pages and its part of shared pages."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0
