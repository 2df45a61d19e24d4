"""Read the files of /proc that show the memory of a process, without waiting for the process.

A process that maps a file of a user's own file system (FUSE) can wait for this file system with its memory
map locked, and its program can be a file there. A reader of `environ`, `cmdline`, `maps` or `exe` then waits
for the user, and not even SIGKILL ends the wait. While another process with the same memory executes a
program, a reader of its `stat`, `io`, `auxv` and links waits, too. Therefore root reads these files of other
users in a process beside it, which is abandoned when it does not answer. This file is also the program of
that process.
"""

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import subprocess

T = TypeVar("T")

MOST = 8 << 20  # bytes that are read of a file; the kernel gives a new process at most 6 MiB of variables
_REQUESTS = 256  # files that are asked for at a time: their names fit into a pipe
_PATIENCE = 1.0  # seconds without an answer of a helper that waits
_BUSY = 10.0  # seconds without an answer of a helper that runs, on a host that is overloaded
_PAUSE = 60.0  # seconds for which nothing of a user is read after a process of the user did not answer
_CHUNK = 1 << 16
LINK = "link:"  # before the name of a link, whose text is read


def read_bounded(path: str, offset: int = 0, size: int = MOST) -> bytes:
    """Return at most `size` bytes of a file from an offset in bytes.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    data = bytearray()
    try:
        while len(data) < size:
            piece = os.pread(descriptor, min(_CHUNK, size - len(data)), offset + len(data))
            if not piece:
                break
            data += piece
    finally:
        os.close(descriptor)
    return bytes(data)


def read_of(pid: int, name: str, offset: int, size: int) -> bytes:
    """Return a part of a file in /proc/PID, or the text of the link whose name comes after LINK.

    Args:
        offset, size: bytes.

    Raises:
        OSError: it cannot be read.
    """
    if name.startswith(LINK):
        return os.fsencode(os.readlink(f"/proc/{pid}/{name.removeprefix(LINK)}"))
    return read_bounded(f"/proc/{pid}/{name}", offset, size)


class ProcessFiles:
    """Reads the files of processes of other users in a helper process, which is abandoned if it hangs.

    After that, nothing of this user is read for a minute, nor while the helper has not exited. So each user
    has one hanging helper at most.
    """

    def __init__(self, command: list[str] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._command = command or [sys.executable, "-I", "-S", __file__]
        self._clock = clock
        self._lock = threading.Lock()
        self._helper: subprocess.Popen[bytes] | None = None
        self._dropped: list[subprocess.Popen[bytes]] = []  # until they have exited
        self._hanging: dict[int, tuple[subprocess.Popen[bytes], float]] = {}  # uid -> helper, since when

    def read(
        self,
        owners: Mapping[int, int],
        name: str,
        part: Callable[[bytes], T],
        offset: int = 0,
        size: int = MOST,
    ) -> dict[int, T]:
        """Return {pid: part of its file} of the processes whose file can be read.

        Args:
            owners: {pid: real uid}.
            name: of the file in /proc/PID, or of a link after LINK.
            part: what is kept of a file: the files of all processes of a user may be larger than the memory.
            offset, size: bytes.
        """
        with self._lock:
            try:
                return self._read(owners, name, part, offset, size)
            except BaseException:
                if helper := self._drop():  # answers that were not read would be those to the next question
                    self._dropped.append(helper)
                raise

    def _read(
        self, owners: Mapping[int, int], name: str, part: Callable[[bytes], T], offset: int, size: int
    ) -> dict[int, T]:
        contents: dict[int, T] = {}
        left = [pid for pid, uid in owners.items() if not self.is_hanging(uid)]
        while left:
            asked, left = left[:_REQUESTS], left[_REQUESTS:]
            try:
                helper = self._running()
            except OSError:  # no descriptor, process or memory is left for another helper
                break
            answers = self._ask(helper, [f"{pid} {name} {offset} {size}\n" for pid in asked])
            for pid in asked:
                answer = next(answers, None)
                if answer is None:
                    self._abandon(owners[pid])
                    unread = [*asked[asked.index(pid) + 1 :], *left]
                    left = [each for each in unread if owners[each] != owners[pid]]
                    break
                if answer is not _NONE:
                    contents[pid] = part(answer)
        return contents

    def is_hanging(self, uid: int) -> bool:
        """Tell whether a process of a user did not answer lately."""
        if uid not in self._hanging:
            return False
        helper, since = self._hanging[uid]
        if helper.poll() is None or self._clock() - since < _PAUSE:
            return True
        del self._hanging[uid]
        return False

    def close(self) -> None:
        """End the helper; the next question starts another one."""
        self._hanging = {uid: each for uid, each in self._hanging.items() if each[0].poll() is None}
        self._dropped = [helper for helper in self._dropped if helper.poll() is None]
        self._end()

    def _end(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.kill()
            helper.wait()
            self._close_pipes(helper)

    def _ask(self, helper: "subprocess.Popen[bytes]", requests: list[str]) -> Iterator[bytes]:
        """Yield the answers of the helper; end early if it does not answer."""
        assert helper.stdin is not None
        assert helper.stdout is not None
        with suppress(BrokenPipeError):
            helper.stdin.write("".join(requests).encode())
        source, unread = helper.stdout.fileno(), bytearray()
        for _ in requests:
            while (answer := _taken(unread)) is None:
                if not self._is_readable(source) or not (data := os.read(source, _CHUNK)):
                    return
                unread += data
            yield answer

    def _running(self) -> "subprocess.Popen[bytes]":
        """Return the helper; a new one has started to read its questions."""
        import atexit  # most commands ask about no process of another user
        import subprocess

        if self._helper is None or self._helper.poll() is not None:
            self._dropped = [helper for helper in self._dropped if helper.poll() is None]
            self._end()
            self._helper = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", env={}, bufsize=0
            )
            atexit.unregister(self.close)
            atexit.register(self.close)
            assert self._helper.stdout is not None
            self._helper.stdout.read(1)
        return self._helper

    def _is_readable(self, source: int) -> bool:
        """Wait until the helper has answered; False if it hangs."""
        began, poll = self._clock(), select.poll()  # select() takes no descriptor above 1023
        poll.register(source, select.POLLIN)
        while not poll.poll(_PATIENCE * 1000):
            if self._clock() - began >= _BUSY or not self._runs():
                return False
        return True

    def _runs(self) -> bool:
        """Tell whether the helper needs a processor, and does not wait for something."""
        assert self._helper is not None
        try:
            return read_bounded(f"/proc/{self._helper.pid}/stat").rpartition(b") ")[2].startswith(b"R")
        except OSError:
            return False

    def _abandon(self, uid: int) -> None:
        if helper := self._drop():
            self._hanging[uid] = helper, self._clock()

    def _drop(self) -> "subprocess.Popen[bytes] | None":
        """Kill the helper without waiting for its exit, which a hanging file system prevents."""
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.kill()
            self._close_pipes(helper)
        return helper

    def _close_pipes(self, helper: "subprocess.Popen[bytes]") -> None:
        for pipe in (helper.stdin, helper.stdout):
            if pipe is not None:
                pipe.close()


_NONE = b"\0none"  # the file of a process that could not be read
_LENGTH = 32  # bytes; the line with the length of an answer is shorter


def _taken(unread: bytearray) -> bytes | None:
    """Take an answer off the front: a line with its length (-1: the file cannot be read), and the bytes."""
    begin = unread.find(b"\n", 0, _LENGTH) + 1
    if not begin:
        return None
    length = int(unread[:begin])
    if length < 0:
        del unread[:begin]
        return _NONE
    stop = begin + length
    if len(unread) < stop:
        return None
    answer = bytes(unread[begin:stop])
    del unread[:stop]
    return answer


def main() -> None:
    """Answer the questions of standard input until its end."""
    _send(b"\n")
    for line in sys.stdin.buffer:
        pid, name, offset, size = line.decode().split()
        try:
            data = read_of(int(pid), name, int(offset), int(size))
        except OSError:
            _send(b"-1\n")
        else:
            _send(b"%d\n" % len(data) + data)


def _send(answer: bytes) -> None:
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
