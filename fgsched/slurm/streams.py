"""The standard streams of the tasks of a step: files by pattern, labelled lines, input, a terminal."""

import fcntl
import os
import pty
import re
import selectors
import signal
import sys
import termios
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from threading import Thread
from types import FrameType
from typing import IO

from fgsched.slurm.step import SrunStep
from fgsched.system.process import CANCEL_STEP

_LETTER = re.compile(r"%(\d*)([%AJNTajnstux])")
_CHUNK = 1 << 16  # bytes
_LEFT = 1 << 20  # bytes of a line without an end that are kept


def file_name(pattern: str, environ: Mapping[str, str], task: int) -> str:
    """Return the name of a task's file, with %t, %j, %s, %J, %n, %N, %u, %x, %A and %a replaced."""
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    values = {
        **{"%": "%", "j": job, "s": step, "J": f"{job}.{step}", "t": str(task), "n": "0"},
        "N": environ.get("SLURMD_NODENAME", "").partition(".")[0],
        "u": environ.get("SLURM_JOB_USER", ""),
        "x": environ.get("SLURM_JOB_NAME", ""),
        "A": environ.get("SLURM_ARRAY_JOB_ID", job),
        "a": environ.get("SLURM_ARRAY_TASK_ID", ""),
    }

    def replaced(match: re.Match[str]) -> str:
        value = values.get(match[2], match[0])
        return value.zfill(min(int(match[1]), 10)) if match[1] and value.isdecimal() else value

    return _LETTER.sub(replaced, pattern)


class Outputs:
    """The output streams of the tasks: srun's own streams, files, or pipes whose lines are labelled."""

    def __init__(
        self, step: SrunStep, environ: Mapping[str, str], selector: selectors.BaseSelector, held: ExitStack
    ) -> None:
        self._step, self._environ, self._selector, self._held = step, environ, selector, held
        self._files: dict[str, IO[bytes]] = {}
        self._labels: dict[int, list[int]] = {}  # task -> write ends that the task inherits
        self._width = len(str(step.tasks - 1))
        self._open = 0

    @property
    def is_open(self) -> bool:
        """Tell whether labelled output can still arrive."""
        return self._open > 0

    def of(self, task: int) -> tuple[int | IO[bytes] | None, int | IO[bytes] | None]:
        """Return standard output and error of a task; None: the stream of srun."""
        out = self._one(task, self._step.output, 1)
        if not self._step.error:
            return out, out if self._step.output else self._one(task, "", 2)
        return out, self._one(task, self._step.error, 2)

    def began(self, task: int) -> None:
        """Close the ends that a started task has inherited."""
        for descriptor in self._labels.pop(task, []):
            os.close(descriptor)

    def _one(self, task: int, pattern: str, stream: int) -> int | IO[bytes] | None:
        if pattern == "none":
            return self._file(os.devnull)
        if pattern and not pattern.isdecimal():
            return self._file(file_name(pattern, self._environ, task))
        if pattern.isdecimal() and int(pattern) != task:
            return self._file(os.devnull)
        return self._labelled(task, stream) if self._step.label else None

    def _file(self, name: str) -> IO[bytes]:
        if name not in self._files:
            path = os.path.join(self._step.directory, name)
            mode = "ab" if self._step.append or name == os.devnull else "wb"
            self._files[name] = self._held.enter_context(open(path, mode))  # noqa: SIM115
        return self._files[name]

    def _labelled(self, task: int, stream: int) -> int:
        ours, theirs = os.pipe()
        self._labels.setdefault(task, []).append(theirs)
        target = (sys.stdout if stream == 1 else sys.stderr).buffer
        label = f"{task:>{self._width}}: ".encode()
        pending = bytearray()

        def copy() -> None:
            data = os.read(ours, _CHUNK)
            pending.extend(data)
            end = pending.rfind(b"\n") + 1 if data and len(pending) < _LEFT else len(pending)
            for line in bytes(pending[:end]).splitlines(keepends=True):
                target.write(label + line + (b"" if line.endswith(b"\n") else b"\n"))
            target.flush()
            del pending[:end]
            if not data:
                self._selector.unregister(ours)
                os.close(ours)
                self._open -= 1

        self._open += 1
        self._selector.register(ours, selectors.EVENT_READ, copy)
        return theirs


class Inputs:
    """The input streams of the tasks: srun's input for all tasks or for one, none, or a file for each."""

    def __init__(self, step: SrunStep, environ: Mapping[str, str], held: ExitStack) -> None:
        self._step, self._environ, self._held = step, environ, held
        self._pipes: dict[int, int] = {}  # write end -> the read end of a task

    def of(self, task: int) -> int | IO[bytes] | None:
        """Return the standard input of a task; None: the stream of srun."""
        wanted = self._step.input
        if wanted == "none" or (wanted.isdecimal() and int(wanted) != task):
            return self._held.enter_context(open(os.devnull, "rb"))
        if wanted and wanted != "all" and not wanted.isdecimal():
            path = os.path.join(self._step.directory, file_name(wanted, self._environ, task))
            return self._held.enter_context(open(path, "rb"))
        if self._step.tasks == 1 or wanted.isdecimal():
            return None
        reading, writing = os.pipe()
        self._pipes[writing] = reading
        return reading

    def begin(self) -> None:
        """Copy the input of srun to all tasks, if several share it. The tasks have started."""
        for reading in self._pipes.values():  # so that the end of a task ends the copy to it
            os.close(reading)
        if self._pipes:
            Thread(target=_copy, args=(list(self._pipes),), daemon=True).start()


def _copy(pipes: list[int]) -> None:
    """Copy standard input to the pipes until it ends or no task reads; a slow task delays the others."""
    while pipes:
        data = os.read(0, _CHUNK)
        if not data:
            break
        for pipe in list(pipes):
            try:
                _write_all(pipe, data)
            except BrokenPipeError:
                pipes.remove(pipe)
                os.close(pipe)
    for pipe in pipes:
        os.close(pipe)


def _write_all(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


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
        _copy_terminal(terminal)
    finally:
        if before is not None:
            termios.tcsetattr(0, termios.TCSAFLUSH, before)
        os.close(terminal)
    return os.waitpid(pid, 0)[1]


def _copy_terminal(terminal: int) -> None:
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


def _copy_size(terminal: int) -> None:
    if os.isatty(0):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8))


def _hang_up(pid: int, frame: FrameType | None) -> None:
    os.kill(pid, signal.SIGHUP)
