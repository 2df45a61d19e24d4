"""Watch the command of a foreground job: pass on signals, hold its terminal, hang up after the caller.

The watcher is a process beside the command. It holds the terminal too, so that another caller can attach.
"""

import os
import select
import signal
import socket
from contextlib import suppress
from pathlib import Path

from fgsched.interactive import link, terminal

_PATIENCE = 10.0  # seconds that the command has after SIGHUP, and again after SIGTERM
_HELD = 1 << 16  # bytes of output that are kept while no caller reads
_HANDOVER = 3.0  # seconds that a caller has to leave the terminal, which another one has taken


def signal_group(command: int, number: int) -> None:
    """Send a signal to the process group of a command, which leads its session."""
    with suppress(OSError, ValueError):
        os.killpg(command, number)


class HeldTerminal:
    """The caller's side of a job's terminal, and a socket at which the next caller asks for it."""

    def __init__(self, name: str, master: int, directory: Path | None = None) -> None:
        """Listen for the next caller.

        Args:
            name: of the job's first caller.
            master: the descriptor of the terminal.
            directory: that of the job.
        """
        self.master = master
        self._output = b""  # that no caller has read
        self._is_in_use = True  # a program has it open
        try:
            self.listener: link.Listener | None = link.listen(link.attach_name(name), directory)
        except OSError:  # the job runs without it
            self.listener = None

    def reads(self, *, is_watched: bool) -> list[int | link.Listener]:
        """Return what to wait for; the output is read here unless a caller reads it."""
        asked: list[int | link.Listener] = [] if self.listener is None else [self.listener]
        return asked if is_watched or not self._is_in_use else [*asked, self.master]

    def keep_output(self) -> None:
        """Read once, so that the command does not wait; the last 64 KiB are kept."""
        data = terminal.read(self.master)
        self._is_in_use = data != b""
        self._output = (self._output + (data or b""))[-_HELD:]

    def accept(self) -> socket.socket | None:
        """Accept another caller; return None if it has gone."""
        return None if self.listener is None else self.listener.accept()

    def give(self, caller: socket.socket) -> bool:
        """Send a caller the terminal and the output that was kept; return False if it has gone."""
        try:
            link.send_terminal(caller, self.master, self._output)
        except OSError:
            caller.close()
            return False
        self._output = b""
        return True

    def close(self) -> None:
        """Close the terminal: the kernel hangs up its programs."""
        os.close(self.master)
        if self.listener is not None:
            self.listener.close()

    def leave(self) -> None:
        """Close the terminal in this process, because the watcher has it."""
        os.close(self.master)
        if self.listener is not None:
            self.listener.leave()


def _termination() -> int:
    """Return a descriptor that is readable after a SIGTERM, which all processes of an ending job get."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    return reading


def _dismiss(caller: socket.socket) -> None:
    """Make a caller end, so that it reads no output that is for its successor."""
    with caller, suppress(OSError):  # it has gone, or it is stopped
        caller.send(link.TAKEN)
        caller.settimeout(_HANDOVER)
        while caller.recv(64):  # signals that it has sent meanwhile
            pass


class Watcher:
    """Serves the callers of a command until it has ended. Call `run` once."""

    def __init__(
        self,
        caller: socket.socket,
        command: int,
        watched: int,
        *,
        stays: bool = False,
        held: HeldTerminal | None = None,
    ) -> None:
        """`watched` is a pidfd of the command; `stays`: the command survives the loss of its caller."""
        self._caller: socket.socket | None = caller
        self._command, self._watched = command, watched
        self._stays, self._held = stays, held
        self._ending = _termination() if held is not None else -1

    def run(self) -> None:
        """Deliver signals until the command has ended; hang up at the end of the caller, unless it stays."""
        while True:
            ready = select.select(self._sources(), [], [])[0]
            if self._watched in ready:
                return
            if self._ending in ready:  # a shell on a terminal ignores SIGTERM
                os.read(self._ending, 64)
                signal_group(self._command, signal.SIGHUP)
            elif self._held is not None and self._held.listener in ready:
                if not self._change_caller(self._held):
                    self._hang_up()
                    return
            elif self._held is not None and self._held.master in ready:
                self._held.keep_output()
            elif not self._hear():
                self._hang_up()
                return

    def _sources(self) -> list[int | socket.socket | link.Listener]:
        callers = [] if self._caller is None else [self._caller]
        held = [] if self._held is None else self._held.reads(is_watched=self._caller is not None)
        return [self._watched, *([self._ending] if self._ending >= 0 else []), *callers, *held]

    def _change_caller(self, held: HeldTerminal) -> bool:
        """Give the terminal to another caller; return whether the command may run on."""
        caller = held.accept()
        if caller is None:
            return True
        if self._caller is not None:
            _dismiss(self._caller)
        self._caller = caller if held.give(caller) else None
        return self._caller is not None or self._stays

    def _hear(self) -> bool:
        """Read from the caller; return whether the command may run on."""
        caller = self._caller
        if caller is None:
            return True
        try:
            message = caller.recv(64)
        except OSError:
            message = b""
        if message and message != link.DETACH:
            signal_group(self._command, message[0])
            return True
        caller.close()
        self._caller = None
        return bool(message) or self._stays

    def _hang_up(self) -> None:
        """End the command: SIGHUP, then SIGTERM, then SIGKILL. The shepherd ends what it leaves."""
        if self._held is not None:
            self._held.close()
        signal_group(self._command, signal.SIGHUP)
        signal_group(self._command, signal.SIGCONT)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if select.select([self._watched], [], [], _PATIENCE)[0]:
                return
            signal_group(self._command, number)
