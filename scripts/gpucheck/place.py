"""The first GPU, shares of it without a controller, and programs inside a share or without one."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucheck.sheet import NotHere

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
_CPUS = "[host]\ncpus = 64\n"  # so that the jobs of a check run at once on any host
_LATEST = 90.0  # seconds that a program may take
PROGRAMS = Path(__file__).with_name("programs.py")
_TORCH_PROGRAMS = Path(__file__).with_name("torch_programs.py")
_TORCH = "import torch, sys; sys.exit(not torch.cuda.is_available())"


def near(a: int, b: int) -> bool:
    """Tell whether two views of a limit differ by at most 1 % or 2 MiB."""
    return abs(a - b) <= max(2 * MIB, b // 100)


@dataclass
class Live:
    """A running program."""

    process: "subprocess.Popen[str]"
    first: str  # line that it said
    patience: float  # seconds that it may take to its end

    @property
    def pid(self) -> int:
        return self.process.pid

    def go(self) -> None:
        """Let a program that waits begin."""
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def again(self) -> str:
        """Let a program that waits go on; return the line that it prints."""
        self.go()
        assert self.process.stdout
        return self.process.stdout.readline()

    def end(self, last: str = "") -> str:
        """Send a line to the program, or close its input, and wait; return its remaining output."""
        return self.process.communicate(last, timeout=self.patience)[0]


@dataclass
class Share:
    """A share of the GPU: a region with the link to the hook beside it, as a shepherd creates them."""

    place: "Place"
    folder: Path
    limit: int
    pacing: Sequence[tuple[str, int]] = ()

    @property
    def preload(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.folder / "libfgshim.so")}

    def run(self, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
        return self.place.run(*words, **self.preload, **env)

    def ask(self, verb: str, *words: object, **env: str) -> dict[str, Any]:
        return said(self.run(*self.place.program(verb, *words), **env))

    def start(self, verb: str, *words: object) -> AbstractContextManager["Live"]:
        return self.place.start(*self.place.program(verb, *words), **self.preload)


@dataclass
class Place:
    """The GPU under test. `python` is the interpreter with the frameworks."""

    python: str
    uuid: str = ""
    total: int = 0
    count: int = 1  # GPUs of the host
    name: str = ""  # model, memory and driver
    kept: dict[str, bool] = field(default_factory=dict)
    log: Path | None = None  # receives what every program printed
    each: float = 3.0  # seconds of a mix of jobs
    longer: float = 0.0  # seconds added to what may be waited for, on a slow host
    turns: str = ""  # of the kernel of `probe` in a microsecond; "": not measured yet

    @property
    def patience(self) -> float:
        """Return the seconds that a program may take."""
        return _LATEST + self.longer

    def program(self, verb: str, *words: object) -> list[str]:
        return [self.python, str(PROGRAMS), str(ROOT), verb, *map(str, words)]

    def torch_program(self, verb: str, *words: object) -> list[str]:
        return [self.python, str(_TORCH_PROGRAMS), verb, *map(str, words)]

    def run(self, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
        """Run a program without a share to its end."""
        done = subprocess.run(
            words, env=self.env | env, capture_output=True, text=True, timeout=self.patience, check=False
        )
        self.record(words, env, done.returncode, done.stdout + done.stderr)
        return done

    def record(self, words: Sequence[str], env: dict[str, str], status: int | None, printed: str) -> None:
        """Append a program and its output to the log."""
        if self.log is None:
            return
        given = " ".join([*(f"{name}={value}" for name, value in env.items()), *map(shlex.quote, words)])
        with self.log.open("a") as log:
            log.write(f"{time.strftime('%H:%M:%S')} {given}\nstatus {status}\n{printed}\n")

    @contextmanager
    def start(self, *words: str, **env: str) -> Iterator["Live"]:
        """Start a program and wait for its first line; end it with the block."""
        with self.begin(*words, **env) as live:
            assert live.process.stdout
            live.first = live.process.stdout.readline()
            yield live

    @contextmanager
    def begin(self, *words: str, **env: str) -> Iterator["Live"]:
        """Start a program; end it with the block."""
        pipe = subprocess.PIPE
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                words, env=self.env | env, stdin=pipe, stdout=pipe, stderr=errors, text=True
            ) as process,
        ):
            try:
                yield Live(process, "", self.patience)
            finally:
                process.kill()
                errors.seek(0)
                self.record(words, env, process.wait(), errors.read())

    def ask(self, verb: str, *words: object) -> dict[str, Any]:
        """Return the output of a test program without a share."""
        return said(self.run(*self.program(verb, *words)))

    @property
    def env(self) -> dict[str, str]:
        """Return the environment in which CUDA shows only this GPU."""
        own = {"CUDA_VISIBLE_DEVICES": self.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"} | own

    @contextmanager
    def share(
        self,
        part: float,
        *,
        pacing: Sequence[tuple[str, int]] = (),
        contexts: Sequence[tuple[int, bool]] = (),
    ) -> Iterator[Share]:
        """Create a share of the GPU for the block. `pacing`, `contexts`: as of region.pack."""
        from fgshim import library, region

        limit = int(self.total * part) // (2 * MIB) * 2 * MIB
        with tempfile.TemporaryDirectory(prefix="fgcheck-") as name:
            head = region.pack(1, 1, [(0, self.uuid, limit)], pacing, contexts)
            Path(name, "region").write_bytes(head + bytes(region.SIZE - len(head)))
            Path(name, "libfgshim.so").symlink_to(library())
            yield Share(self, Path(name), limit, pacing)

    @contextmanager
    def controller(self, settings: str = "") -> Iterator[tuple[Any, Path]]:
        """Run a controller of its own for the block; yield a client of it and its directory."""
        with tempfile.TemporaryDirectory(prefix="fgcheck-") as home:
            Path(home, "fgsched.toml").write_text(_CPUS + settings)
            os.environ |= {"FG_HOME": home}
            os.environ.pop("FG_DEVICES", None)
            from fgsched import protocol
            from fgsched.cli.stopping import stop
            from fgsched.client import Client, find_paths

            try:
                with Client(find_paths()) as client:
                    client.call(protocol.Ping())
                    try:
                        yield client, Path(home)
                    finally:
                        stop(find_paths(), is_kill=True)
            finally:
                log = Path(home, "fgsched.log")
                self.record(["controller"], {}, None, log.read_text() if log.exists() else "")

    def has(self, module: str) -> bool:
        """Tell whether the programs' Python has a package."""
        if module not in self.kept:
            self.kept[module] = not self.run(self.python, "-c", f"import {module}").returncode
        return self.kept[module]


def said(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """Return the JSON in the last line of a program's output."""
    return decoded(
        done.stdout, (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
    )


def decoded(output: str, without: str = "it printed nothing") -> dict[str, Any]:
    """Return the JSON in the last line of an output. Raises ValueError with `without` if there is none."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise ValueError(without[-160:])
    found: dict[str, Any] = json.loads(lines[-1])
    if "not here" in found:
        raise NotHere(found["not here"])
    return found


def torch_or_not(place: Place) -> None:
    if not place.has("torch"):
        raise NotHere(f"PyTorch is not installed here ({place.python}; see --python)")
    if place.run(place.python, "-c", _TORCH).returncode:
        raise NotHere(f"{place.python} has a PyTorch that cannot use the GPU")


def find(python: str, log: Path | None = None, each: float = 3.0, longer: float = 0.0) -> Place:
    """Return the first GPU. Raises NotHere, with the reason, if there is none or it cannot be shared."""
    try:
        import pynvml
    except ImportError as error:
        raise NotHere(f"nvidia-ml-py is not installed ({sys.executable})") from error
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        uuid, total = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetMemoryInfo(handle).total
        name, count = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        raise NotHere(f"this host has no NVIDIA GPU that can be used: {error}") from error
    about = f"{name}, {total // MIB} MiB, driver {pynvml.nvmlSystemGetDriverVersion()}"
    print(f"GPU 0: {about}")
    return Place(python, uuid, total, count, about, log=log, each=each, longer=longer)
