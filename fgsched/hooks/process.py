"""The controller's end of the runner of the site's programs, and of the relay of events. It never blocks."""

import logging
import os
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fgsched.gpus.supervisor import helper_command
from fgsched.hooks.settings import HookRun, HookSettings, Ran

log = logging.getLogger(__name__)
_CHUNK = 1 << 16  # bytes
_PAUSE = 1.0  # seconds between two starts
_SOON = 0.02  # seconds until a full socket is written to again
Watch = Callable[[int, Callable[[], None]], None]
Done = Callable[[Ran], None]


class HookRunner:
    """The process that runs the programs of the site, from the first request on.

    If it is killed, the next one runs its unfinished programs again.
    """

    def __init__(self, lock: Path, watch: Watch) -> None:
        """Create it without a process. `watch` calls back once when the process of a pidfd has ended."""
        self._lock, self._watch = lock, watch
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._process: subprocess.Popen[bytes] | None = None
        self._unread, self._unsent, self._number = b"", bytearray(), 0
        self._asked: dict[int, tuple[HookRun, Done]] = {}  # requests without an answer
        self._heard: deque[bytes] = deque()  # outcomes that have arrived and are not passed on
        self._not_before = 0.0

    def run(self, run: HookRun, done: Done) -> None:
        """Run a program; `done` is called with its outcome."""
        self._number += 1
        run = replace(run, number=self._number)
        self._asked[run.number] = run, done
        if self._process is None:
            self.look(time.monotonic())
        else:
            self._send(run)

    def due(self, now: float) -> float | None:
        """Return the seconds until `look` is due; None: it is not. `now`: monotonic."""
        if self._heard:
            return 0.0
        if self._process is None:
            return max(0.0, self._not_before - now) if self._asked else None
        return _SOON if self._unsent else None

    def look(self, now: float) -> None:
        """Start the process if it is needed, and send what the socket did not take. `now`: monotonic."""
        self._pass_on()
        if self._process is None and self._asked and now >= self._not_before:
            self._not_before = now + _PAUSE
            self._start()
        elif self._process is not None and self._unsent:
            self._flush()

    def _start(self) -> None:
        end = self._theirs.fileno()
        command = helper_command("fgsched.hooks.runner", str(self._lock))
        process = None
        try:
            process = subprocess.Popen(command, stdin=end, stdout=end, cwd="/", start_new_session=True)
            pidfd = os.pidfd_open(process.pid)
        except OSError as error:
            log.error("the programs of the site cannot be run: %s", error)
            if process is not None:  # no descriptor is left to watch it
                process.kill()
                process.wait()
            return
        self._process = process
        self._watch(pidfd, lambda: self._ended(pidfd))
        for run, _ in list(self._asked.values()):
            self._send(run)

    def _send(self, run: HookRun) -> None:
        self._unsent += msgspec.json.encode(run) + b"\n"
        self._flush()

    def _flush(self) -> None:
        with suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self._ours.send(self._unsent)]  # without a copy of the rest

    def _ended(self, pidfd: int) -> None:
        """Drop what the process did not read; its unfinished programs are run again by the next one."""
        os.close(pidfd)
        self.receive()
        if self._process is not None:
            self._process.wait()
        self._process, self._unread, self._unsent = None, b"", bytearray()
        with suppress(BlockingIOError):
            while self._theirs.recv(_CHUNK, socket.MSG_DONTWAIT):
                pass
        if self._asked:
            log.warning(
                "the runner of the site's programs has ended; %d programs are repeated", len(self._asked)
            )

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has outcomes."""
        return self._ours.fileno()

    def receive(self) -> None:
        """Pass on the outcomes that have arrived; never blocks."""
        with suppress(BlockingIOError):
            while data := self._ours.recv(_CHUNK):
                self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        self._heard += lines
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass on outcomes. If this raises an exception for one, `look` passes on the rest."""
        while self._heard:
            with suppress(msgspec.MsgspecError):
                ran = msgspec.json.decode(self._heard.popleft(), type=Ran)
                _, done = self._asked.pop(ran.number, (None, None))
                if done is not None:
                    done(ran)

    def close(self) -> None:
        """Close the socket, at which the process kills its programs and ends."""
        self._ours.close()
        self._theirs.close()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            self._process.kill()
            self._process.wait()


class RelayProcess:
    """The process that passes events on to a command or a socket of the site, if it has one."""

    def __init__(self, mode: str, watch: Watch) -> None:
        """`mode`: user or system; `watch` calls back once when the process of a pidfd has ended."""
        self._mode, self._watch = mode, watch
        self._target = "", ""  # command, socket
        self._process: subprocess.Popen[bytes] | None = None
        self._not_before = 0.0

    def obey(self, settings: HookSettings) -> None:
        """Use these settings from the next `look` on."""
        target = settings.events_command, "" if settings.events_command else settings.events_socket
        if target != self._target:
            self._target = target
            self._let_go()
            self._not_before = 0.0

    def due(self, now: float) -> float | None:
        """Return the seconds until `look` is due; None: it is not. `now`: monotonic."""
        is_needed = any(self._target) and self._process is None
        return max(0.0, self._not_before - now) if is_needed else None

    def look(self, now: float) -> None:
        """Start the process if it is needed. `now`: monotonic."""
        if self.due(now) != 0.0:
            return
        self._not_before = now + _PAUSE
        command = helper_command("fgsched.hooks.relay", self._mode, *self._target)
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd="/", start_new_session=True
            )
            pidfd = os.pidfd_open(process.pid)
        except OSError as error:
            log.error("no events are passed on: %s", error)
            return
        self._process = process
        self._watch(pidfd, lambda: self._ended(pidfd, process))

    def _ended(self, pidfd: int, process: subprocess.Popen[bytes]) -> None:
        os.close(pidfd)
        process.wait()
        if self._process is process:
            self._let_go()

    def _let_go(self) -> None:
        """Close the pipe, at which the process ends."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None

    def close(self) -> None:
        """End the process; kill it after a second."""
        process = self._process
        self._let_go()
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            process.kill()
            process.wait()
