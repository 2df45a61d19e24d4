"""Run the tasks of one step of a job on this host, with CPUs and GPUs that it shares with the other steps."""

import fcntl
import os
import resource
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Self

from msgspec.structs import replace

from fgsched.domain.jobsteps import SLOT, JobStep, ended, number_in, offset, record, started
from fgsched.gpus import vendors
from fgsched.slurm.step import SrunStep, StepRefused, of_step, of_task
from fgsched.slurm.streams import Inputs, Outputs
from fgsched.system import locks
from fgsched.system.process import CANCEL_STEP, descendants, identify, kill

_KILL_WAIT = 30  # seconds between SIGTERM and SIGKILL


def run(step: SrunStep, environ: Mapping[str, str]) -> int:
    """Run the tasks of a step, and return the highest of their exit codes.

    Raises:
        StepRefused: the job does not have what the step asks for, or the program cannot be executed.
    """
    with ExitStack() as held:
        gpus_of_job = _gpus_of_job(environ)
        chosen = _chosen_gpus(step, environ, len(gpus_of_job), held)
        gpus, number = [gpus_of_job[index] for index in chosen], next_step(environ)
        with Recorded(environ, step, number, chosen) as recorded:
            base = of_step(step, environ, number, gpus)
            if step.terminal:
                from fgsched.slurm.streams import spawn

                recorded.status = spawn(step.program(0), of_task(step, base, 0, gpus), step.directory)
                return code_of(recorded.status)
            running = _RunningTasks(step, base, held)
            with _forwarding(running.abort):
                running.start(gpus)
                code = running.wait()
            recorded.status = running.status
            return code


def code_of(status: int) -> int:
    """Return the exit code of a wait status: 128 + N after signal N."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def _gpus_of_job(environ: Mapping[str, str]) -> list[str]:
    selection = vendors.of_job(environ).facts.selection
    return [name for name in environ.get(selection, "").split(",") if name]


def _chosen_gpus(step: SrunStep, environ: Mapping[str, str], gpus_of_job: int, held: ExitStack) -> list[int]:
    """Lock the CPUs and GPUs of a step, and wait while other steps use them.

    Returns the positions of its GPUs among the `gpus_of_job` of the job.
    """
    cpus = int(environ.get("FG_CPUS_ON_NODE") or 1)
    if step.tasks * step.cpus > cpus:
        raise StepRefused(_too_much("More processors requested than permitted", environ), 1)
    wanted = gpus_of_job if step.gpus is None else step.gpus
    if wanted > gpus_of_job or not step.binds_within(wanted):
        raise StepRefused(_too_much("Invalid generic resource (gres) specification", environ), 1)
    if step.overlaps or "SLURM_STEP_ID" in environ:  # a step inside a step shares what that one has
        return list(range(wanted))
    waits = _SlotPatience(step, environ["FG_JOB_ID"])
    try:
        take(environ, "cpu", cpus, step.tasks * step.cpus, held, waits=waits)
        if not step.gpus:
            return list(range(wanted))
        return take(environ, "gpu", gpus_of_job, wanted, held, waits=waits)
    except SlotsBusy:
        raise StepRefused(_too_much("Requested nodes are busy", environ), 1) from None


class _SlotPatience:
    """Report the wait for other steps once, and limit it with --immediate."""

    def __init__(self, step: SrunStep, job: str) -> None:
        self._until = time.monotonic() + step.patience if step.patience else None
        self._line = (
            f"srun: Job {job} step creation temporarily disabled, retrying (Requested nodes are busy)"
        )
        self._is_quiet = step.quiet or bool(step.patience)

    def __call__(self) -> float | None:
        """Return the seconds that are left; None: any number."""
        if not self._is_quiet:
            print(self._line, file=sys.stderr, flush=True)
            self._is_quiet = True
        return None if self._until is None else self._until - time.monotonic()


def _too_much(why: str, environ: Mapping[str, str]) -> str:
    return f"srun: error: Unable to create step for job {environ['FG_JOB_ID']}: {why}"


class _RunningTasks:
    """The tasks of a step while they run."""

    def __init__(self, step: SrunStep, base: Mapping[str, str], held: ExitStack) -> None:
        self._step, self._base, self._host = step, base, base["SLURMD_NODENAME"]
        self._selector = held.enter_context(selectors.DefaultSelector())
        self._outputs = Outputs(step, base, self._selector, held)
        self._inputs = Inputs(step, base, held)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._worst = 0
        self.status = 0  # the highest wait status of its tasks
        self._is_aborted = self._is_waiting = False
        self._step_name = f"{base['SLURM_JOB_ID']}.{base['SLURM_STEP_ID']}"

    def start(self, gpus: list[str]) -> None:
        """Start the tasks with these GPUs."""
        for task in range(self._step.tasks):
            self._start(task, of_task(self._step, self._base, task, gpus))
        if self._is_aborted:
            self._terminate()
        self._inputs.begin()

    def _start(self, task: int, environ: Mapping[str, str]) -> None:
        words = self._step.program(task)
        out, error = self._outputs.of(task)
        mask = self._bind(task)
        try:
            process = subprocess.Popen(
                words,
                stdin=self._inputs.of(task),
                stdout=out,
                stderr=error,
                env=dict(environ),
                cwd=self._step.directory or None,
            )
        except OSError as failure:
            status = 2 if failure.errno == 2 else 13
            self._say(f"slurmstepd: error: execve(): {words[0]}: {failure.strerror}")
            self._say(f"srun: error: {self._host}: task {task}: Exited with exit code {status}")
            self._worst = max(self._worst, status)
            self.status = max(self.status, status << 8)
            self._outputs.began(task)
            return
        finally:
            if mask:
                os.sched_setaffinity(0, mask)
        self._processes[task] = process
        self._outputs.began(task)
        descriptor = os.pidfd_open(process.pid)
        self._selector.register(descriptor, selectors.EVENT_READ, lambda: self._ended(task, descriptor))

    def wait(self) -> int:
        """Serve streams and signals until every task has ended; return the highest exit code."""
        while self._processes or self._outputs.is_open:
            for key, _ in self._selector.select():
                key.data()
        return self._worst

    def _bind(self, task: int) -> set[int]:
        """Bind this process, from which a task inherits that; return the CPUs to restore, if any."""
        binding = self._step.binding
        if not binding.masks:
            return set()
        cpus, mask = os.sched_getaffinity(0), binding.masks[task]
        wanted = {cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1} & cpus
        if not wanted:
            raise StepRefused(f"srun: error: Unable to satisfy cpu bind request: task {task}: {mask:#x}", 1)
        os.sched_setaffinity(0, wanted)
        if binding.verbose:
            self._say(f"cpu-bind=MASK - {self._host}, task {task:2} {task:2}: mask {mask:#x} set")
        return cpus

    def abort(self, number: int) -> None:
        """End the tasks because srun received a signal.

        SIGTERM can be a part of the end of the job, which has its own time before SIGKILL.
        """
        if not self._is_aborted:
            self._say("srun: forcing job termination")
            self._abort()
        if number == CANCEL_STEP:
            self._kill_later()

    def _abort(self) -> None:
        """End the tasks by SIGTERM."""
        self._is_aborted = True
        self._say(f"srun: Job step aborted: Waiting up to {_KILL_WAIT + 2} seconds for job step to finish.")
        at = time.strftime("%Y-%m-%dT%H:%M:%S")
        self._say(f"slurmstepd: error: *** STEP {self._step_name} ON {self._host} CANCELLED AT {at} ***")
        self._terminate()

    def _terminate(self) -> None:
        for number in (signal.SIGCONT, signal.SIGTERM):
            self._send(number)

    def _kill_later(self) -> None:
        """Send SIGKILL to the tasks after the usual time."""
        signal.signal(signal.SIGALRM, lambda number, frame: self._send(signal.SIGKILL))
        signal.alarm(_KILL_WAIT)

    def _send(self, number: int) -> None:
        """Send a signal to all processes of the tasks."""
        for process in descendants(os.getpid()):
            kill(process, number)

    def _ended(self, task: int, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        status = self._processes.pop(task).wait()
        code = 128 - status if status < 0 else status
        if code:
            name = signal.strsignal(-status) if status < 0 else f"Exited with exit code {status}"
            self._say(f"srun: error: {self._host}: task {task}: {name}")
        self._worst = max(self._worst, code)
        self.status = max(self.status, -status if status < 0 else status << 8)
        if not self._processes or self._is_aborted:
            return
        if code and self._step.kill_on_bad_exit:
            self._say(f"srun: Terminating StepId={self._step_name}")
            self._abort()
            self._kill_later()
        elif self._step.wait and not self._is_waiting:
            self._is_waiting = True
            signal.signal(signal.SIGALRM, lambda number, frame: self._waited())
            signal.alarm(self._step.wait)

    def _waited(self) -> None:
        """End the tasks that still run some time after the first one."""
        self._say(f"srun: First task exited {self._step.wait}s ago")
        for task in range(self._step.tasks):
            state = "running" if task in self._processes else "exited"
            self._say(f"srun: StepId={self._step_name} task {task}: {state}")
        self._say(f"srun: Terminating StepId={self._step_name}")
        self._abort()
        self._kill_later()

    def _say(self, text: str) -> None:
        if not self._step.quiet or "error" in text:
            print(text, file=sys.stderr, flush=True)


@contextmanager
def _forwarding(send: Callable[[int], None]) -> Iterator[None]:
    """Pass the signals that end a step to `send`. SIGINT comes from the terminal, the others from fgsched."""

    def forward(number: int, frame: FrameType | None) -> None:
        send(number)

    def ignore(number: int, frame: FrameType | None) -> None:
        """Do nothing: an ignored signal would be ignored by the tasks too."""

    handlers: dict[int, Callable[[int, FrameType | None], None]] = {
        **dict.fromkeys((signal.SIGTERM, signal.SIGHUP, CANCEL_STEP), forward),
        **dict.fromkeys((signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2), ignore),
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- the CPUs and GPUs of a step, and its record -------------------------------------------------------


_DIGITS = 10  # of the number of the next step in its file


def next_step(environ: Mapping[str, str]) -> int:
    """Return the number of the next step of this job, from 0 on."""
    folder = steps_folder(environ)
    if not folder:
        return 0
    place = Path(folder, "next")
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        locks.lock(descriptor, place, "the number of the step")
        digits = os.pread(descriptor, _DIGITS, 0).strip()
        number = int(digits) if digits.isdigit() else 0
        os.pwrite(descriptor, f"{number + 1:0{_DIGITS}}".encode(), 0)  # all at once: srun may be killed
    finally:
        os.close(descriptor)
    return number


class SlotsBusy(Exception):
    """Raised if too few units became free in time."""


def take(
    environ: Mapping[str, str],
    kind: str,
    total: int,
    wanted: int,
    held: ExitStack,
    *,
    waits: Callable[[], float | None] = lambda: None,
) -> list[int]:
    """Lock `wanted` of `total` units of a kind, and wait until that many are free; return their numbers.

    They are released when `held` closes. Without a directory of the job nothing is locked.

    Args:
        waits: called before each wait; returns for how many seconds to wait (None: any).

    Raises:
        SlotsBusy: `waits` returned less than 0.
    """
    folder = steps_folder(environ)
    if not folder:
        return list(range(wanted))
    door = os.open(f"{folder}/{kind}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with ExitStack() as opened:
        opened.callback(os.close, door)
        _enter(door, waits)
        locked: dict[int, int] = {}
        while True:
            holders = _lock(folder, kind, range(total), wanted, locked)
            if len(locked) == wanted:
                break
            _await_any(holders, waits)
    for descriptor in locked.values():
        held.callback(os.close, descriptor)
    return sorted(locked)


def _enter(door: int, waits: Callable[[], float | None]) -> None:
    """Lock the door of a kind of units, at which the step before this one may wait. Raises SlotsBusy."""
    with suppress(BlockingIOError):
        fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    if waits() is not None:
        raise SlotsBusy
    fcntl.flock(door, fcntl.LOCK_EX)


def _lock(folder: str, kind: str, units: Iterable[int], wanted: int, locked: dict[int, int]) -> list[int]:
    """Lock free units until `locked` has enough; return the pids of the holders of the others."""
    holders = []
    for unit in units:
        if len(locked) == wanted:
            break
        if unit in locked:
            continue
        descriptor = os.open(f"{folder}/{kind}.{unit}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holders.append(int(os.pread(descriptor, 20, 0) or 0))
            os.close(descriptor)
            continue
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        locked[unit] = descriptor
    return holders


def _await_any(holders: Iterable[int], waits: Callable[[], float | None]) -> None:
    """Wait until one of these processes has exited; return at once if one is unknown. Raises SlotsBusy."""
    remaining = waits()
    if remaining is not None and remaining < 0:
        raise SlotsBusy
    with ExitStack() as opened:
        descriptors = []
        for pid in holders:
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:  # gone, or it has not written its pid yet
                return
            opened.callback(os.close, descriptor)
            descriptors.append(descriptor)
        select.select(descriptors, [], [], remaining)


def steps_folder(environ: Mapping[str, str]) -> str:
    """Return the directory of the job's steps; "" if it cannot be made."""
    path = environ.get("FG_JOB_DIR", "")
    folder = f"{path}/steps" if path else ""
    with suppress(OSError):
        if folder:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            return folder
    return ""


class Recorded:
    """The record of a running step. A record that cannot be written does not fail the step.

    At the exit of its context the step has ended, with `status`, the highest wait status of its tasks.
    """

    def __init__(self, environ: Mapping[str, str], step: SrunStep, number: int, gpus: Sequence[int]) -> None:
        """Record that a step begins; `gpus` are positions among the GPUs of the job."""
        folder = steps_folder(environ)
        self._file = f"{folder}/table" if folder else ""
        identity = identify(os.getpid())
        self._step = started(
            JobStep(
                number=number,
                name=step.name,
                tasks=step.tasks,
                cpus=step.tasks * step.cpus,
                gpus=tuple(gpus),
                started_at=time.time(),
                pid=os.getpid(),
                start=identity.start if identity else 0,
            )
        )
        self.status = 1 << 8  # of a step that could not be started
        self._write(self._step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Record that the step has ended."""
        self._write(_with_use(ended(self._step, self.status, time.time())), is_first=False)

    def _write(self, step: JobStep, *, is_first: bool = True) -> None:
        if not self._file:
            return
        at = offset(step.number)
        with suppress(OSError):
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # A step can outlive the 200 that follow it: the last one has the slot.
                if is_first or number_in(os.pread(descriptor, SLOT, at)) == step.number:
                    os.pwrite(descriptor, record(step), at)  # all at once: srun may be killed
            finally:
                os.close(descriptor)


def _with_use(step: JobStep) -> JobStep:
    """Return the step with what its ended tasks used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return replace(
        step,
        cpu_seconds=used.ru_utime + used.ru_stime,
        max_rss=used.ru_maxrss * 1024,
        disk_read=used.ru_inblock * 512,
        disk_written=used.ru_oublock * 512,
    )
