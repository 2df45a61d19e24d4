"""Read the output of a program from a pipe, and keep a bounded part of it.

A file in memory would grow with the output, at the cost of the process that started the program. A pipe holds
64 KiB; it is emptied while the program runs, and only the first and the last bytes are kept.
"""

import fcntl
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

_CHUNK = 1 << 16  # bytes of a read
_AFTER = 1 << 20  # bytes that are read after the end of the program: others may write on
MOST = 1 << 16  # bytes that are kept unless the caller asks for more


class Capture:
    """The reading end of a pipe; the writing end is for the program. Close both."""

    def __init__(self, head: int = 0, tail: int = 0) -> None:
        """Keep the first `head` bytes and the last `tail` bytes."""
        self._head, self._tail = head, tail
        self._first, self._last = bytearray(), bytearray()
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)

    def fileno(self) -> int:
        """Return the reading end."""
        return self._reader

    def close_writer(self) -> None:
        """Close the writing end here, after the program has it."""
        if self.writer >= 0:
            os.close(self.writer)
        self.writer = -1

    def read(self) -> bool:
        """Take in some bytes; return False if there are none now, or there is no writer any more."""
        try:
            data = os.read(self._reader, _CHUNK)
        except BlockingIOError:
            return False
        if room := self._head - len(self._first):
            self._first += data[:room]
        self._last += data
        del self._last[: max(0, len(self._last) - self._tail)]
        return bool(data)

    def finish(self) -> None:
        """Take in the bytes that the ended program has written, and close the pipe.

        Other processes that still write get SIGPIPE.
        """
        for _ in range(_AFTER // _CHUNK):
            if not self.read():
                break
        self.close()

    def close(self) -> None:
        """Close both ends; a second call does nothing."""
        self.close_writer()
        if self._reader >= 0:
            os.close(self._reader)
        self._reader = -1

    @property
    def first(self) -> bytes:
        """The first bytes."""
        return bytes(self._first)

    @property
    def last(self) -> bytes:
        """The last bytes."""
        return bytes(self._last)


class ProgramOutcome(NamedTuple):
    """The end of a program."""

    status: int  # exit status; negative: minus the signal that killed it
    output: bytes  # the first bytes
    errors: bytes  # the last bytes of standard error


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    seconds: float,
    data: bytes = b"",
    environ: Mapping[str, str] | None = None,
    most: int = MOST,
) -> ProgramOutcome:
    """Run a program in a session of its own; its end decides, not that of its outputs.

    If this call is ended early, for example by the time limit, the program and its process group are killed.

    Args:
        seconds: time limit.
        data: standard input.
        environ: its variables; None: those of this process.
        most: bytes of each output that are kept.

    Raises:
        OSError: it cannot be executed.
        subprocess.TimeoutExpired: the time limit has passed.
    """
    output, errors = Capture(head=most), Capture(tail=most)
    try:
        process = _started(command, data, environ, output, errors)
        try:
            _await(process, output, errors, seconds)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        status = process.wait()
        output.finish()
        errors.finish()
        return ProgramOutcome(status, output.first, errors.last)
    finally:
        output.close()
        errors.close()


def _started(
    command: Sequence[str | os.PathLike[str]],
    data: bytes,
    environ: Mapping[str, str] | None,
    output: Capture,
    errors: Capture,
) -> subprocess.Popen[bytes]:
    source = memory_file("input", data)
    try:
        return subprocess.Popen(
            command,
            stdin=source,
            stdout=output.writer,
            stderr=errors.writer,
            env=environ,
            start_new_session=True,
        )
    finally:
        os.close(source)
        output.close_writer()
        errors.close_writer()


def memory_file(name: str, data: bytes) -> int:
    """Return the descriptor of a file in memory with `data`, which is sealed against changes."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    _seal(fd)
    return fd


def _seal(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)


def _await(process: subprocess.Popen[bytes], output: Capture, errors: Capture, seconds: float) -> None:
    pidfd, until = os.pidfd_open(process.pid), time.monotonic() + seconds
    poll = select.poll()
    ends = {end.fileno(): end for end in (output, errors)}
    for fd in (pidfd, *ends):
        poll.register(fd, select.POLLIN)
    try:
        while True:
            remaining = until - time.monotonic()
            if remaining <= 0:
                raise subprocess.TimeoutExpired(process.args, seconds)
            ready = {fd for fd, _ in poll.poll(remaining * 1000)}
            for fd in ready & ends.keys():
                if not ends[fd].read():  # it stays ready after the last writer has closed it
                    poll.unregister(fd)
            if pidfd in ready:
                return
    finally:
        os.close(pidfd)
