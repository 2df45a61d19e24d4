"""The watcher of one fence: make the fence, watch its programs as the controller watches a job, remove it.

fgfence starts it, writes a request to its standard input and reads the reply. The watcher then runs until the
programs of the fence have ended.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import fgshim.region as region
import msgspec

import fgshim
from fgsched import gpus
from fgsched.config.load import load
from fgsched.config.schema import Config
from fgsched.controller.gpumonitor import GpuObservation, Watchdog, watchdog_policy
from fgsched.controller.turn import WatchdogFinding
from fgsched.domain import job as domain
from fgsched.domain.errors import FgschedError, Refused
from fgsched.domain.job import FENCE_DIR, Demand, FenceReply, FenceRequest, Gpu, Hold, Job
from fgsched.domain.states import JobState, Tier
from fgsched.domain.units import format_share
from fgsched.domain.vendor import VendorFacts
from fgsched.gpus.ownership import holder_of
from fgsched.launch.fence import (
    ATTEMPT,
    PODMAN_SETTINGS,
    FenceDirectory,
    choose,
    members,
    remove,
    stored_checksum,
)
from fgsched.lifecycle.containers import variables
from fgsched.lifecycle.jobvariables import WORDS, VisibleDevices, words_of
from fgsched.system.containers import installed, write_podman_settings
from fgsched.system.paths import Paths
from fgsched.system.process import identify, kill

_SOON = (
    0.5  # seconds between two queries while the watchdog suspects the fence, or its first process has ended
)
_WAIT = 10.0  # seconds for the first reading of the GPUs
_NOT_HELD = {
    91: "the hook is not loaded",
    92: "the driver is found ahead of the hook",
    93: "cuGetProcAddress finds the driver ahead of the hook",
    94: "the region cannot be used",
    95: "the region belongs to another fence",
}
_HOLDS = 90  # exit status of fgprove


def main() -> None:
    """Answer the request on standard input, and watch the fence until it ends."""
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=FenceRequest)
    if os.fork():
        os._exit(0)  # the program of the fence must not have a child that it did not start
    os.setsid()
    if not request.follows:  # what the caller reads with --print-env ends with fgfence
        _let_go(2)
    fence = None
    try:
        paths = Paths.find(os.environ, os.geteuid())
        fence = Fence(request, load(paths))
        reply = FenceReply(environment=fence.environment)
    except FgschedError as error:
        reply = FenceReply(cause=error.cause, remedy=error.remedy)
    except (OSError, ValueError) as error:
        reply = FenceReply(cause=f"the fence cannot be made: {error}")
    os.write(1, msgspec.json.encode(reply) + b"\n")
    _let_go(0, 1)
    if fence:
        fence.watch()


def _let_go(*streams: int) -> None:
    """Replace streams of the caller by /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(null, stream)
    os.close(null)


def _opened(pid: int) -> int:
    """Return a pidfd of the process that the fence lasts as long as. Raises Refused or OSError."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise Refused(f"there is no process {pid}", "Name a running process with --pid.") from None


class Fence:
    """One fence and what watches it."""

    def __init__(self, request: FenceRequest, config: Config) -> None:
        """Make the fence. Raises FgschedError, OSError or ValueError if that fails; nothing is left then."""
        self._request, self._config = request, config
        self._process = _opened(request.pid)
        inventory, self._sampler = gpus.attach(config, os.environ, option=request.gpus)
        self._vendor = inventory.vendor.facts
        if not inventory.gpus:
            remedy = f"{self._vendor.listing} lists the GPUs of the driver."
            raise Refused(f"there are no GPUs: {inventory.note}", remedy)
        self._gpus = inventory.gpus
        place = FenceDirectory(Path(request.run))
        with place.locked():
            place.sweep()
            chosen = choose(
                request.demand, self._gpus, self._first_reading(), place.given(), self._vendor.listing
            )
            _refuse_owned(gpu for gpu, _ in chosen)
            self._make(place, chosen)
        self._watchdog = Watchdog(request.run, watchdog_policy(config), self._hear)
        self._asked_at = time.monotonic() - config.interval
        self._ending_at: float | None = None  # monotonic; when the watchdog decided to end the programs

    def _first_reading(self) -> dict[int, domain.Reading]:
        self._sampler.ask(gpus.READING)
        until = time.monotonic() + _WAIT
        while (remaining := until - time.monotonic()) > 0:
            select.select([self._sampler], [], [], remaining)
            for answer in self._sampler.read():
                return answer.readings
        return {}

    def _make(self, place: FenceDirectory, chosen: list[tuple[Gpu, Hold]]) -> None:
        number, request, memory = os.getpid(), self._request, self._config.context_memory
        self._job = _as_job(number, request.demand, tuple(hold for _, hold in chosen))
        limits = [(gpu.index, gpu.uuid, hold.memory) for gpu, hold in chosen]
        pacing = [(request.compute, hold.share) for _, hold in chosen]
        head: bytes = region.pack(number, ATTEMPT, limits, pacing, [(memory, False)] * len(limits))
        self.folder = place.path(number)
        self._is_watched = place.create(number, head, fgshim.library())  # locked until this process ends
        self.environment = _variables(self.folder, chosen, self._config.visible_devices, self._vendor)
        if why := _prove(self.folder, number, head, self.environment):
            remove(self.folder)
            raise Refused(f"the fence does not work: {why}", "Examine LD_PRELOAD and LD_LIBRARY_PATH.")

    # -- watching ---------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Watch the programs until they have ended; then remove the fence."""
        try:
            while self._is_used():
                self._step()
        finally:
            self._report_refusal()
            self._sampler.close()
            remove(self.folder)

    def _is_used(self) -> bool:
        return not _has_ended(self._process) or bool(self._members())

    def _members(self) -> set[int]:
        return members(self.folder, self._request.pid if self._request.follows else 0)

    def _step(self) -> None:
        """Wait for the end of the first process, an answer of the driver, or the time of the next query."""
        pause = max(0.0, self._asked_at + self._pause() - time.monotonic())
        waits_for = [self._sampler.fileno(), *([] if _has_ended(self._process) else [self._process])]
        ready = select.select(waits_for, [], [], pause)[0]
        if self._sampler.fileno() in ready:
            for answer in self._sampler.read():
                self._look(answer)
        if time.monotonic() - self._asked_at >= self._pause():
            self._asked_at = time.monotonic()
            self._sampler.ask(gpus.READING)
            self._end_late()

    def _pause(self) -> float:
        is_soon = self._watchdog.is_suspicious or _has_ended(self._process) or self._ending_at is not None
        return min(_SOON, self._config.interval) if is_soon else self._config.interval

    def _look(self, answer: gpus.GpuAnswer) -> None:
        """Judge the programs by one reading. A reading without processes shows none of the fence."""
        listed = {process.pid for reading in answer.readings.values() for process in reading.processes}
        owners = dict.fromkeys(listed & self._members() if listed else (), self._job.id)
        self._watchdog.judge_jobs(GpuObservation(answer.readings, set(), owners), {self._job.id: self._job})

    def _hear(self, finding: WatchdogFinding) -> None:
        for fault in finding.warn:
            _say(f"warning: {fault}")
        if finding.end and self._ending_at is None:
            _say(f"the programs are ended by the watchdog: {finding.end}")
            self._ending_at = time.monotonic()
            self._signal(signal.SIGTERM)

    def _end_late(self) -> None:
        """Kill the programs that the watchdog asked to end, after `kill_wait`."""
        if self._ending_at is not None and time.monotonic() - self._ending_at >= self._config.kill_wait:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for pid in self._members():
            if identity := identify(pid):
                kill(identity, number)

    def _report_refusal(self) -> None:
        try:
            refusal = region.read(self.folder / "region").refusal
        except (OSError, ValueError):
            return
        if refusal:
            _say(refusal)


def _has_ended(process: int) -> bool:
    return bool(select.select([process], [], [], 0)[0])


def _say(text: str) -> None:
    os.write(2, f"fgfence: {text}\n".encode(errors="replace"))


def _refuse_owned(chosen: Iterable[Gpu]) -> None:
    """Refuse GPUs that a controller allocates to jobs. Raises Refused."""
    for gpu in chosen:
        if holder := holder_of(gpu.uuid):
            raise Refused(
                f"GPU {gpu.index} is allocated by the controller of {holder.words}",
                "fgrun runs a command as a job of that controller; --gpu-list chooses other GPUs.",
            )


def _as_job(number: int, demand: Demand, holds: tuple[Hold, ...]) -> Job:
    """Return a fence as the watchdog knows it: like a running job."""
    return Job(
        id=number,
        attempt=ATTEMPT,
        uid=os.geteuid(),
        gid=os.getegid(),
        user="",
        request=domain.Request(name="fence", demand=demand),
        submitted_at=0,
        state=JobState.RUNNING,
        holds=holds,
        tier=Tier.SHIM.value,
    )


def _variables(
    folder: Path, chosen: list[tuple[Gpu, Hold]], setting: VisibleDevices, vendor: VendorFacts
) -> dict[str, str]:
    """Return the variables of the programs in a fence."""
    preloads = [f"{folder}/libfgshim.so", *filter(None, [os.environ.get("LD_PRELOAD")])]
    hook = str(fgshim.library())
    gpus = [(gpu.index, gpu.uuid) for gpu, _ in chosen]
    words = ",".join(words_of(gpus, setting, hooked=True, other_nodes="open"))
    return {
        "LD_PRELOAD": ":".join(preloads),
        FENCE_DIR: str(folder),
        **dict(vendor.constant),
        vendor.selection: words,
        "FG_GPU_FRACTION": format_share(sum(hold.share for _, hold in chosen)),
        "FG_GPU_MEM_MB": str(chosen[0][1].memory >> 20),
        "FG_GPU_UUIDS": ",".join(uuid for _, uuid in gpus),
        WORDS: words,
        **variables(str(folder), hook, installed(), preload=False),
        **_podman(folder, hook, vendor),
    }


def _podman(folder: Path, hook: str, vendor: VendorFacts) -> dict[str, str]:
    """Return the variable with the settings of podman for a fence, unless the user has named settings."""
    settings = write_podman_settings(
        folder / PODMAN_SETTINGS, [str(folder)], hook, vendor.selecting, preload=False
    )
    return {name: path for name, path in settings.items() if not os.environ.get(name)}


def _prove(folder: Path, number: int, head: bytes, environment: dict[str, str]) -> str:
    """Return why the hook would not limit a program with these variables; "" if it would."""
    prover = fgshim.library().with_name("fgprove")
    words = [str(prover), f"{folder}/libfgshim.so", str(number), str(ATTEMPT), f"{stored_checksum(head):x}"]
    with open(os.devnull, "r+b") as null:
        process = subprocess.run(
            words,
            env={**os.environ, **environment},
            stdin=null,
            stdout=null,
            stderr=null,
            timeout=30,
            check=False,
        )
    return "" if process.returncode == _HOLDS else _NOT_HELD.get(process.returncode, "fgprove gave no answer")
