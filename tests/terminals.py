"""Run a command on a pseudo-terminal of a given size."""

import fcntl
import os
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping

from live_host import PATIENCE, Home

DROPPED = ("COLUMNS", "LINES", "NO_COLOR")


def on_terminal(
    home: Home, command: str, *words: str, columns: int = 80, env: Mapping[str, str] | None = None
) -> list[str]:
    """The lines that a command prints on a terminal with so many columns, with their control sequences."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    given = {name: text for name, text in home.environ.items() if name not in DROPPED}
    given |= {"TERM": "xterm-256color"} | dict(env or {})
    process = subprocess.Popen(
        [sys.executable, "-m", f"fgsched.cli.{command}", *words],
        env=given,
        cwd=home.path,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    process.wait(PATIENCE)
    return shown.decode().replace("\r\n", "\n").splitlines()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the last process has closed it
        return b""
