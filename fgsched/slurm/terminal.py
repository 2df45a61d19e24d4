"""Run a program on a terminal of its own, joined to that of the user: srun --pty."""

import fcntl
import os
import pty
import signal
import sys
import termios
from collections.abc import Mapping, Sequence
from types import FrameType

from fgsched.system.process import CANCEL_STEP


def spawn(words: Sequence[str], environ: Mapping[str, str], directory: str) -> int:
    """Run a program on a new terminal; return its wait status."""
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.chdir(directory or ".")
            os.execvpe(words[0], list(words), dict(environ))
        except OSError as error:
            print(f"srun: error: {words[0]}: {error.strerror}", file=sys.stderr)
            os._exit(2)
    _copy_size(terminal)
    signal.signal(signal.SIGWINCH, lambda number, frame: _copy_size(terminal))
    for number in (signal.SIGTERM, CANCEL_STEP):
        signal.signal(number, lambda number, frame: _hang_up(pid, frame))
    return _joined(pid, terminal)


def _joined(pid: int, terminal: int) -> int:
    """Copy between the user's terminal and the program's until the program ends; return its wait status."""
    before = termios.tcgetattr(0) if os.isatty(0) else None
    try:
        if before is not None:
            import tty

            tty.setraw(0, termios.TCSADRAIN)  # what was typed before remains
        _copy(terminal)
    finally:
        if before is not None:
            termios.tcsetattr(0, termios.TCSAFLUSH, before)
        os.close(terminal)
    return os.waitpid(pid, 0)[1]


def _copy(terminal: int) -> None:
    import select

    sources, has_input = [0, terminal], False
    while True:
        for source in select.select(sources, [], [])[0]:
            try:
                data = os.read(source, 1 << 16)
            except OSError:  # the program has closed its terminal
                data = b""
            if not data and source == terminal:
                return
            if not data:
                sources.remove(0)
                os.write(terminal, b"\x04" if has_input else b"")  # Ctrl-D: end of input
            else:
                has_input = has_input or source == 0
                _write_all(1 if source == terminal else terminal, data)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _copy_size(terminal: int) -> None:
    if os.isatty(0):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8))


def _hang_up(pid: int, frame: FrameType | None) -> None:
    os.kill(pid, signal.SIGHUP)
