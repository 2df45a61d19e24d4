"""Process beside the controller that runs the programs of the site.

It reads requests from descriptor 0 and writes their outcomes to descriptor 1, one JSON object in each line.
When the controller closes the socket, it kills the programs that still run and ends. A lock makes its
successor wait until then, so that a program is not run twice at the same time for one job.
"""

import ctypes
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from fgsched.domain.errors import Refused
from fgsched.domain.text import storable
from fgsched.hooks.programs import HookRun, Ran, refuse_unsafe_program
from fgsched.system import locks
from fgsched.system.capture import Capture, memory_file
from fgsched.system.safeopen import become

MOST = 64  # programs of jobs at a time, and as many for clients; further ones wait
_RESERVE = MOST // 2  # beyond them, for users who have few
_FEW = 4  # programs that each user may have
_CHUNK = 1 << 20  # bytes
_GRACE = 2.0  # seconds between SIGTERM and SIGKILL
_TAIL = 4096  # bytes of standard error of which the last line is kept
_FILES = 1024  # descriptors of a program
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class WaitingRequests:
    """Requests that wait for a slot, in the order of each user."""

    def __init__(self) -> None:
        self._requests: dict[int, deque[HookRun]] = {}  # owner -> requests, none of them empty
        self._running: Counter[int] = Counter()  # owner -> programs that run

    def add(self, run: HookRun) -> None:
        """Take a request in."""
        self._requests.setdefault(run.owner, deque()).append(run)

    def next(self) -> HookRun | None:
        """Return the request that is to start now, and count it; None: all wait.

        It is of the user with the fewest programs; of users with as many, of the one who came first. A user
        has at most half of the slots, divided by the number of users, and always a few: a user whose programs
        are slow leaves slots for the others, who need not wait for the end of a program.
        """
        owner = min(self._requests, key=lambda user: self._running[user], default=None)
        if owner is None or not self._may_have(self._running[owner]):
            return None
        requests = self._requests[owner]
        run = requests.popleft()
        if not requests:
            del self._requests[owner]
        self._running[owner] += 1
        return run

    def end(self, owner: int) -> None:
        """Note that a program has ended, or was not started."""
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]

    def _may_have(self, count: int) -> bool:
        users = len(self._running.keys() | self._requests.keys())
        total = self._running.total()
        if count < _FEW:
            return total < MOST + _RESERVE
        return total < MOST and count < max(_FEW, MOST // (2 * users))


class _RunningProgram(Struct):
    """A program that runs."""

    run: HookRun
    process: subprocess.Popen[bytes]
    pidfd: int
    output: Capture
    errors: Capture
    kill_at: float  # monotonic seconds
    is_late: bool = False  # SIGTERM was sent


class Runner:
    """Runs programs and reports their outcomes."""

    def __init__(self, source: int, sink: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._source, self._sink, self._clock = source, sink, clock
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, _RunningProgram] = {}  # by pidfd
        self._outputs: dict[int, Capture] = {}  # of running programs, by descriptor
        self._waiting = {True: WaitingRequests(), False: WaitingRequests()}  # with a client, without
        self._unread = b""

    def serve(self) -> None:
        """Run programs until the other end of `source` is closed; then kill the rest."""
        self._selector.register(self._source, selectors.EVENT_READ)
        try:
            while self._round():
                pass
        finally:
            for running_program in self._running.values():
                _signal(running_program, signal.SIGKILL)
                running_program.process.wait()

    def _round(self) -> bool:
        kill_at = min((running_program.kill_at for running_program in self._running.values()), default=None)
        timeout = None if kill_at is None else max(0.0, kill_at - self._clock())
        for key, _ in self._selector.select(timeout):
            if key.fd in self._outputs:
                self._take_in(key.fd)
            elif key.fd in self._running:
                self._ended(self._running.pop(key.fd))
            elif key.fd == self._source and not self._read():
                return False
        for program in self._running.values():
            if program.kill_at <= self._clock():
                self._end_late(program)
        for waiting in self._waiting.values():
            while run := waiting.next():
                self._start(run)
        return True

    def _read(self) -> bool:
        """Take in requests; return False at the end of the stream."""
        data = os.read(self._source, _CHUNK)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            with suppress(msgspec.MsgspecError):  # the rest of a line that was sent to a predecessor
                run = msgspec.json.decode(line, type=HookRun)
                self._waiting[bool(run.keep)].add(run)
        return bool(data)

    def _start(self, run: HookRun) -> None:
        output, errors = Capture(head=run.keep), Capture(tail=_TAIL)
        try:
            refuse_unsafe_program("program of the site", run.path, os.geteuid())
            process = _execute(run, output, errors)
        except (OSError, Refused, subprocess.SubprocessError) as error:
            output.close()
            errors.close()
            self._waiting[bool(run.keep)].end(run.owner)
            why = error.cause if isinstance(error, Refused) else _why(error, run.path)
            self._send_result(Ran(number=run.number, problem="could not be executed", said=storable(why)))
            return
        pidfd = os.pidfd_open(process.pid)
        running_program = _RunningProgram(run, process, pidfd, output, errors, self._clock() + run.seconds)
        self._running[pidfd] = running_program
        self._selector.register(pidfd, selectors.EVENT_READ)
        for one_output in (output, errors):
            one_output.close_writer()
            self._outputs[one_output.fileno()] = one_output
            self._selector.register(one_output, selectors.EVENT_READ)

    def _take_in(self, descriptor: int) -> None:
        """Read from an output, and forget it at its end."""
        if not self._outputs[descriptor].read():
            self._selector.unregister(descriptor)
            del self._outputs[descriptor]

    def _end_late(self, program: _RunningProgram) -> None:
        _signal(program, signal.SIGKILL if program.is_late else signal.SIGTERM)
        program.is_late, program.kill_at = True, self._clock() + _GRACE

    def _ended(self, program: _RunningProgram) -> None:
        self._selector.unregister(program.pidfd)
        self._waiting[bool(program.run.keep)].end(program.run.owner)
        status = program.process.wait()
        if program.is_late:
            _signal(program, signal.SIGKILL)  # what it left in its group
        problem = f"did not end within {program.run.seconds:g} s" if program.is_late else _problem(status)
        for output in (program.output, program.errors):
            if self._outputs.pop(output.fileno(), None) is not None:
                self._selector.unregister(output)
            output.finish()
        lines = program.errors.last.decode(errors="replace").strip().splitlines()
        ran = Ran(
            number=program.run.number,
            problem=problem,
            status=-1 if program.is_late or status < 0 else status,
            output=program.output.first.decode(errors="replace"),
            said=storable(lines[-1]) if lines else "",
        )
        os.close(program.pidfd)
        self._send_result(ran)

    def _send_result(self, ran: Ran) -> None:
        data = msgspec.json.encode(ran) + b"\n"
        with suppress(BrokenPipeError, ConnectionResetError):  # then the stream ends, too
            while data:
                data = data[os.write(self._sink, data) :]


def _why(error: OSError | subprocess.SubprocessError, path: str) -> str:
    """Return why a program was not executed."""
    return f"{path}: {error.strerror} (errno {error.errno})" if isinstance(error, OSError) else str(error)


def _problem(status: int) -> str:
    if status < 0:
        return f"was killed by signal {-status}"
    return f"exited with status {status}" if status else ""


def _execute(run: HookRun, output: Capture, errors: Capture) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, with / as its working directory. Raises OSError."""
    source = memory_file("input", run.input.encode(errors="surrogateescape"))
    try:
        return subprocess.Popen(
            [run.path],
            stdin=source,
            stdout=output.writer,
            stderr=errors.writer,
            env=run.environment,
            cwd="/",
            start_new_session=True,
            umask=0o022,
            preexec_fn=partial(_prepare, run, os.getpid()),
        )
    finally:
        os.close(source)


def _prepare(run: HookRun, parent: int) -> None:
    """Become the program's user; make the kernel kill the program with the runner. Called before exec."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES if most < 0 else min(_FILES, most), most))
    if run.uid >= 0 and os.geteuid() == 0:
        become(run.uid, run.gid, [])
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of the user clears it
    if os.getppid() != parent:
        os._exit(126)


def _signal(program: _RunningProgram, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(program.process.pid, number)


def main() -> None:
    """Run the runner. The argument is the path of its lock."""
    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("0")
    lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    locks.lock(lock, Path(sys.argv[1]), "an earlier runner")
    Runner(0, 1).serve()
