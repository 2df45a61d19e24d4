"""A foreground command on a terminal of its own, or on pipes, as a person or a script would use it."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios

import live_host
from live_host import PATIENCE


def module(command):
    """The words that run one of our commands; Slurm's names too."""
    return [sys.executable, "-m", *live_host.module(command)]


def last(home):
    """All about the newest job."""
    return max(home.history(), key=lambda job: job["id"])


class Typist:
    """A command on a terminal: `type` writes as a keyboard does, `until` reads the screen."""

    def __init__(self, home, command, *words, env=None, rows=30, columns=100):
        self.screen = ""
        assert home.client  # a controller runs: the command says nothing of its start
        environ = home.environ | {"TERM": "xterm", "PS1": "$ "} | dict(env or {})
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
            os.chdir(home.path)
            os.execve(sys.executable, [*module(command), *words], environ)
        self._watched = os.pidfd_open(self.pid)

    def resize(self, rows, columns):
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, text):
        os.write(self._terminal, text.encode())

    def until(self, text):
        """Read until the screen shows a text; it is then cleared up to there."""
        while text not in self.screen:
            assert self._read(), f"ended without {text!r}: {self.screen!r}"
        before, _, self.screen = self.screen.partition(text)
        return before

    def _read(self):
        assert select.select([self._terminal], [], [], PATIENCE)[0], f"silent: {self.screen!r}"
        try:
            data = os.read(self._terminal, 65536).decode(errors="replace")
        except OSError:
            return False
        self.screen += data
        return bool(data)

    def signal(self, number):
        signal.pidfd_send_signal(self._watched, number)

    def hang_up(self):
        """Close the terminal, as a window does."""
        os.close(self._terminal)
        self._terminal = -1

    def end(self):
        """The exit status, after all output has been read; that of a signal is negative."""
        while self._terminal >= 0 and self._read():
            pass
        if self._terminal >= 0:
            os.close(self._terminal)
        assert select.select([self._watched], [], [], PATIENCE)[0]
        os.close(self._watched)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def start(home, command, *words, **more):
    """A foreground command on pipes. A controller runs: the command says nothing of its start."""
    assert home.client
    pipe = subprocess.PIPE
    given = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe, "text": True} | more
    return subprocess.Popen([*module(command), *words], env=home.environ, cwd=home.path, **given)


def finish(process, text=None):
    """(status, out, err) of a foreground command."""
    out, err = process.communicate(text, timeout=PATIENCE)
    return process.returncode, out, err


def call(home, command, *words, text=None, **more):
    if text is not None:
        more["stdin"] = subprocess.PIPE
    return finish(start(home, command, *words, **more), text)
