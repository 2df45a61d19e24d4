"""A fake CUDA driver and NVML, in C: many processes, one card state, the real linker, the real pynvml.

    driver = fakecuda.build(folder)    # or the fixture `driver`, which skips where there is no compiler
    driver.cards(Card("H100", 8 << 30), Card("H100", 8 << 30, context=256 << 20))
    subprocess.run([driver.program, "alloc 1G", "info"], env={**os.environ, **driver.env})

`driver.env` names the card state and puts the libraries on LD_LIBRARY_PATH: `import pynvml` works under it,
and so does any program of the CUDA driver API. A job is a process with the hook preloaded beside its region
(`fakecuda.job.make_job` makes one without a controller); a `driver.program` without it is a stranger.

`driver.program` (fakejob) does its arguments one by one, or lines from stdin after "-", and prints for each
`<verb> <status of the driver> [figures]`. Sizes take K, M, G; things are numbered from 0 as they are made.

    alloc SIZE, managed SIZE, pitch WIDTH HEIGHT, async SIZE, create SIZE [location type], map I, retain I
    free I, afree I, release I, unmap I, free-address N
    info (free, total), total, info-free, info-null, alloc-null SIZE, errno SIZE, device N
    stream, capture, end-capture, sync, sync-all, sync-event, threshold SIZE, trim SIZE
    pool [location type [allocation type]], default-pool, managed-pool LOCATION-TYPE
    from POOL SIZE, set-pool POOL, pool-threshold POOL SIZE, pool-trim POOL SIZE, pool-destroy POOL
    array WIDTH HEIGHT DEPTH FORMAT CHANNELS FLAGS, mipmap (the same) LEVELS, array-end I, mipmap-end I,
    map-part ARRAY PART HANDLE, unmap-part ARRAY PART
    ipc-give I (a key), ipc-open KEY, ipc-close I, export I (a key), import KEY SIZE, external SIZE, multicast
    limit NUMBER SIZE (cuCtxSetLimit), get-limit NUMBER, checkpoint, restore
    module CALL SIZE [LOCAL] (CALL: data, ex, fat, file), module-end I, function I, global I
    library CALL SIZE [LOCAL] (CALL: data, file), library-end I, library-module I, library-global I,
    kernel I, kernels I (enumerated), kernel-function I, load-function I, run I [CALL: ex, cooperative]
    context [ABI] (5, 6: cuGLCtxCreate; 7, 8: cuVDPAUCtxCreate)
    context-end I, green, green-end I, primary, release-primary, reset-primary
    graph (ends a capture), within GRAPH, instantiate GRAPH, instantiate-with GRAPH FLAGS, launch I, upload I,
    exec-end I, trim-graphs
    cancelled COMMAND (in a thread that is to end at a cancellation point: status -1 if that is within)
    tool CALL COMMAND (done once, by a tool that the next such call of the driver calls back)
    meanwhile CALL COMMAND (the same, by a thread)
    hold (waits for a line), pid, kill N, exit N, _exit N, exec SHELL-COMMAND, shell COMMAND,
    fork COMMAND, forget COMMAND
    race-hold THREADS SIZE (each takes one thing), race-async (as race)
    race THREADS ROUNDS SIZE (status: calls that went wrong; figures: refusals, allocations that were tried)

FAKEJOB_VIA=lookup resolves through cuGetProcAddress, FAKEJOB_TWINS=1 takes the per-thread twins, and
FAKEJOB_BARE=1 enters no context by itself,
`driver.linked` is the same program linked against the driver. `driver.used()` and `driver.high()` are the
driver's own count of bytes per card, by processes that live, and the most that ever was: an oracle beside
the hook's. FAKE_CUDA_POOL_STEP sets by how many bytes a pool grows; with FAKE_CUDA_NO_PROC=1, cuMemGetInfo
makes no system call and counts ended processes, too.
"""

import os
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
CARD = ("card.c",)
LIBRARIES = {
    "libcuda.so.1": (
        *CARD,
        "cuda.c",
        "memory.c",
        "pools.c",
        "graphs.c",
        "arrays.c",
        "imports.c",
        "launch.c",
        "limits.c",
        "code.c",
        "lookup.c",
    ),
    "libnvidia-ml.so.1": (*CARD, "nvml.c", "nvml_lists.c"),
}
FLAGS = ("-O1", "-g", "-Wall", "-D_GNU_SOURCE", "-fvisibility=hidden")


@dataclass(frozen=True, slots=True)
class Card:
    """One card: bytes of memory, of the driver's reserve, and of a process's context.

    `processors`, `threads`: its multiprocessors, and the threads of each; 0: the driver does not tell.
    A MIG instance names the index of its card as `parent`; instances come after all cards.
    """

    name: str = "FAKE H100"
    memory: int = 8 << 30
    reserved: int = 0
    context: int = 0
    processors: int = 0
    threads: int = 0
    uuid: str = field(default_factory=lambda: f"GPU-{uuid.uuid4()}")
    parent: int | None = None
    gi: int = 0
    ci: int = 0


def instance(parent: int, profile: str, memory: int, gi: int, ci: int = 0, **more: int) -> Card:
    """A MIG instance of a card."""
    name, own = f"FAKE A100 MIG {profile}", f"MIG-{uuid.uuid4()}"
    return Card(name, memory, uuid=own, parent=parent, gi=gi, ci=ci, **more)


def compiler() -> str | None:
    """The host's C compiler."""
    return shutil.which("cc") or shutil.which("gcc")


def compile_c(sources: list[Path], target: Path, *flags: str) -> Path:
    """Make a program or a library of C sources."""
    subprocess.run([compiler(), *FLAGS, *sources, "-o", target, *flags], check=True)
    return target


@dataclass(frozen=True, slots=True)
class FakeDriver:
    """The built driver; its card state is the file `state`, made by `cards`."""

    folder: Path
    state: Path

    @property
    def program(self) -> Path:
        return self.folder / "fakejob"

    @property
    def linked(self) -> Path:
        return self.folder / "fakejob-linked"

    @property
    def launcher(self) -> Path:
        return self.folder / "launcher"

    @property
    def turnsim(self) -> Path:
        return self.folder / "turnsim"

    @property
    def stepkill(self) -> Path:
        return self.folder / "stepkill"

    @property
    def env(self) -> dict[str, str]:
        """What a process needs, beside its own environment, to meet this driver."""
        return {"LD_LIBRARY_PATH": str(self.folder), "FAKE_CUDA_STATE": str(self.state)}

    def at(self, state: Path) -> "FakeDriver":
        """The same libraries, over another card state."""
        return FakeDriver(self.folder, state)

    def gpus(self, *gpus: Card) -> tuple[Card, ...]:
        """Put these cards into the host, empty."""
        words = []
        for gpu in gpus:
            place = (0 if gpu.parent is None else gpu.parent + 1, gpu.gi, gpu.ci)
            numbers = (gpu.memory, gpu.reserved, gpu.context, gpu.processors, gpu.threads, *place)
            words += [gpu.name, gpu.uuid[4:].replace("-", ""), *map(str, numbers)]
        subprocess.run([self.folder / "fakecards", self.state, *words], check=True)
        return gpus

    def set(self, gpu: int, **fields: int) -> None:
        """Let something happen to a card: ecc, lost, power, sm and the other fields of fakecards.c."""
        for name, value in fields.items():
            words = [self.folder / "fakecards", "set", str(gpu), name, str(value)]
            subprocess.run(words, env={**os.environ, **self.env}, check=True)

    def show_only(self, count: int) -> None:
        """The driver knows no more than so many of its cards: its calls about the others fail."""
        words = [self.folder / "fakecards", "only", str(count)]
        subprocess.run(words, env={**os.environ, **self.env}, check=True)

    def used(self) -> list[int]:
        """Bytes in use on each card, by processes that live."""
        return [used for used, _ in self._count()]

    def high(self) -> list[int]:
        """The most bytes that were ever in use on each card at once."""
        return [high for _, high in self._count()]

    def _count(self) -> list[tuple[int, int]]:
        run, env = [self.folder / "fakecards"], {**os.environ, **self.env}
        said = subprocess.run(run, env=env, check=True, capture_output=True, text=True).stdout
        return [tuple(map(int, line.split())) for line in said.splitlines()]


def build_library(name: str, folder: Path, *more: Path, flags: Sequence[str] = ()) -> Path:
    """One of the two libraries; `more`: sources of what it shall know beyond its own."""
    shared = ("-shared", "-fPIC", "-Wl,-Bsymbolic", f"-Wl,-soname,{name}", "-pthread")
    return compile_c([*(HERE / source for source in LIBRARIES[name]), *more], folder / name, *shared, *flags)


def build_front(folder: Path) -> Path:
    """A libcuda.so.1 as some stand-ins have it: a front, behind which another library is the driver."""
    folder.mkdir()
    flags = ("-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libdriver.so", "-pthread")
    real = compile_c([HERE / name for name in LIBRARIES["libcuda.so.1"]], folder / "libdriver.so", *flags)
    linked = ("-shared", "-fPIC", "-Wl,--no-as-needed", str(real), f"-Wl,-rpath,{folder}")
    compile_c([HERE / "odd.c"], folder / "libcuda.so.1", *linked, "-Wl,-soname,libcuda.so.1")
    return folder


def sources() -> list[Path]:
    """All that the driver, NVML, the programs and the driver for frameworks are made of."""
    files = [*HERE.rglob("*.[ch]"), *HERE.rglob("*.py"), *(HERE.parents[1] / "fgshim/include").glob("*.h")]
    return [path for path in files if path.is_file()]


def build(folder: Path) -> FakeDriver:
    """Compile driver, NVML and programs into `folder`; the card state is `folder / "cards"`."""
    for name in LIBRARIES:
        build_library(name, folder)
    driver = folder / "libcuda.so.1"
    compile_c([HERE / "fakecards.c", HERE / "card.c"], folder / "fakecards", "-pthread")
    compile_c([HERE / "fakejob.c"], folder / "fakejob", "-pthread", "-ldl")
    compile_c([HERE / "fakejob.c"], folder / "fakejob-linked", "-DLINKED", str(driver), "-pthread")
    compile_c([HERE / "stepkill.c"], folder / "stepkill")
    compile_c([HERE / "procs.c"], folder / "procs", "-ldl")
    include = f"-I{HERE.parents[1] / 'fgshim/include'}"
    compile_c([HERE / "launcher.c"], folder / "launcher", "-pthread", "-ldl", include)
    compile_c([HERE / "turnsim.c"], folder / "turnsim", "-O2", include, "-lm")
    _build_askers(folder)
    return FakeDriver(folder, folder / "cards")


def _build_askers(folder: Path) -> None:
    """The program that looks names up, and the libraries that do so for it."""
    submitter = ("-DASKER", "-shared", "-fPIC", "-fvisibility=default")
    plugins = folder / "plugins"
    plugins.mkdir(exist_ok=True)
    compile_c([HERE / "lookups.c"], plugins / "libplugin.so", *submitter)
    compile_c([HERE / "lookups.c"], folder / "libasker.so", *submitter, "-Wl,-rpath,$ORIGIN/plugins")
    compile_c([HERE / "lookups.c"], folder / "libdeep.so", *submitter, "-DDEEP", str(folder / "libcuda.so.1"))
    compile_c([HERE / "lookups.c"], folder / "lookups", "-rdynamic", "-ldl")
    recorder = ("-shared", "-fPIC", "-fvisibility=default", "-ldl")
    compile_c([HERE / "recorder.c"], folder / "librecorder.so", *recorder)
