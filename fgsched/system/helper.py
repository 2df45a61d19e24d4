"""Processes beside this one: started, sent lines, read, and started again after their end."""

import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from fgsched.crash import of_successor
from fgsched.system.process import Watch

_CHUNK = 1 << 16  # bytes
_LONGEST_PAUSE = 300.0  # seconds
_STEADY = 60.0  # seconds of a run that counts as a success
_MAIN = Path(__file__).with_name("helpermain.py")


def helper_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `main` of a module of this installation, isolated from the environment.

    The arguments start at sys.argv[1]. Every user of the host can read them: settings do not belong there.
    """
    # Without `-I` a PYTHONPATH or a file in the working directory could replace our modules.
    return [sys.executable, "-I", str(_MAIN), module, *arguments]


class Helper:
    """A process beside this one, and the socket over which both exchange lines.

    Each successor of an ended process inherits the socket, so `fileno` stays the same. A successor reads only
    what arrives after its start: the owner repeats unanswered requests (the accountant and the runner of
    programs), answers them with an error (the reporter), or keeps the work on disk (the mailer). No method
    blocks except for `stop` and `close`.
    """

    def __init__(
        self,
        module: str,
        *,
        pause: float = 0.0,
        patience: float = 1.0,
        environ: Mapping[str, str] | None = None,
        is_single: bool = False,
    ) -> None:
        """Create it without a process.

        Args:
            module: its `main` is run, with this socket as descriptors 0 and 1.
            pause: seconds between two starts; it doubles with each process that ends early without a line.
            patience: seconds in which the process ends after `close`; it is killed then.
            environ: its environment; None: that of this process.
            is_single: it has no successor, so its end closes the socket.
        """
        self._module, self._pause, self._patience = module, pause, patience
        self._environ, self._is_single = environ, is_single
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: Watch | None = None
        self._ended: Callable[[], None] = lambda: None
        self._unsent, self._unread = bytearray(), b""
        self._lines: deque[bytes] = deque()  # that have arrived, and `lines` has not returned
        self._not_before, self._started_at = 0.0, float("-inf")
        self._failures, self._has_answered = 0, False
        self.is_closed = False  # by the process, if it is single

    def begin(self, watch: Watch, ended: Callable[[], None]) -> None:
        """Call `ended` after each end of the process; `watch` calls back once when that of a pidfd has ended.

        Without this, `is_running` looks whether the process has ended.
        """
        self._watch, self._ended = watch, ended
        if self._process is not None:
            self._follow(self._process, watch)

    # -- the process ----------------------------------------------------------------------------

    def pause_left(self, now: float) -> float:
        """Return the seconds until `launch` is due after the last start. `now`: monotonic."""
        return max(0.0, self._not_before - now)

    def launch(self, *arguments: str, now: float, pass_fds: tuple[int, ...] = ()) -> None:
        """Start the process, unless it runs. Lines for the process before are discarded. `now`: monotonic.

        Raises:
            OSError: the process cannot be started.
        """
        if self.is_running:
            return
        self._discard()
        self._count_start(now)
        end = self._theirs.fileno()
        self._process = process = subprocess.Popen(
            helper_command(self._module, *arguments),
            stdin=end,
            stdout=end,
            pass_fds=pass_fds,
            cwd="/",
            env=self._environ,
            start_new_session=True,
        )
        self._environ = of_successor(os.environ if self._environ is None else self._environ)
        if self._is_single:
            self._theirs.close()
        if self._watch is not None:
            self._follow(process, self._watch)

    def _count_start(self, now: float) -> None:
        is_success = self._has_answered or now - self._started_at >= _STEADY
        self._failures = 0 if is_success else min(self._failures + 1, 20)
        self._started_at, self._has_answered = now, False
        self._not_before = now + min(_LONGEST_PAUSE, self._pause * 2**self._failures)

    def _follow(self, process: subprocess.Popen[bytes], watch: Watch) -> None:
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:  # no descriptor is left: it could not be watched
            self._kill()
            self._process = None
            raise
        watch(pidfd, partial(self._note_end, process, pidfd))

    def _note_end(self, process: subprocess.Popen[bytes], pidfd: int) -> None:
        os.close(pidfd)
        process.wait()
        if process is self._process:
            self._forget()
            self._ended()

    def notice_end(self) -> None:
        """Notice now whether the process has ended: `watch` may call back later than a request arrives."""
        if self._process is not None and self._process.poll() is not None:
            self._forget()
            self._ended()

    def _forget(self) -> None:
        """Keep the lines of an ended process, except for one that it did not finish."""
        self._process = None
        if self._ours.fileno() >= 0:
            self._read()
        self._unsent, self._unread = bytearray(), b""

    @property
    def is_running(self) -> bool:
        """Whether the process has been started, and its end has not been noticed."""
        if self._watch is None and self._process is not None and self._process.poll() is not None:
            self._forget()
        return self._process is not None

    @property
    def pid(self) -> int:
        """The process; 0 if none runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    # -- the socket -----------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor that is readable when `lines` has something."""
        return self._ours.fileno()

    def send(self, text: bytes) -> None:
        """Send lines; `flush` sends the part that does not fit into the socket.

        Raises:
            BrokenPipeError: the process has ended, and is single.
        """
        self._unsent += text
        self.flush()

    def flush(self) -> bool:
        """Send the unsent part; return whether all of it was sent."""
        with suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self._ours.send(self._unsent)]  # without a copy of the rest
        return not self._unsent

    @property
    def has_unsent(self) -> bool:
        """Tell whether `flush` has something to send."""
        return bool(self._unsent)

    def lines(self) -> list[bytes]:
        """Return the lines that have arrived."""
        self._read()
        lines = list(self._lines)
        self._lines.clear()
        return lines

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while data := self._ours.recv(_CHUNK):
                self._unread += data
            self.is_closed = True
        *lines, self._unread = self._unread.split(b"\n")
        self._lines += lines
        self._has_answered = self._has_answered or bool(lines)

    def _discard(self) -> None:
        """Discard unread data in both directions: it may end within a line."""
        self._unsent, self._unread = bytearray(), b""
        for end in (self._ours, self._theirs):
            with suppress(BlockingIOError):
                while end.recv(_CHUNK, socket.MSG_DONTWAIT):
                    pass

    # -- the end --------------------------------------------------------------------------------

    def stop(self) -> None:
        """Kill the process; the next one may be started at once."""
        self._kill()
        self._forget()
        self._not_before, self._started_at = 0.0, float("-inf")

    def release(self) -> None:
        """Close the socket, at which the process ends; there is no other one."""
        self._ours.close()
        self._theirs.close()

    def abandon(self) -> None:
        """Kill the process without waiting for its exit; there is no other one."""
        self.release()
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Let the process end; kill it after `patience` seconds."""
        self.release()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self._patience)
            self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
