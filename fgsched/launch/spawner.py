"""The native process that forks shepherds, and what it says."""

import os
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_ANSWER = struct.Struct("<IIQiiQ")
_COMMAND = struct.Struct("<IIQIIQ")
_KEPT = struct.Struct("<IIII")
_COMMAND_MAGIC, _RESULT_MAGIC, _KEPT_MAGIC = 0x31434746, 0x31524746, 0x31534746
_KEPT_MOST = (1 << 20) - 16  # bytes of a message that says how the controller is started


class Answer(NamedTuple):
    """What spawner or shepherd say of one attempt."""

    job: int
    attempt: int
    pid: int  # of the shepherd; 0: there is none
    errno: int  # 0: claimed
    start: int  # clock ticks since boot; 0: it was killed before it could say
    is_over: bool = False  # a notice: the result of a job whose shepherd was killed is there


class Spawner:
    """The native process that forks shepherds, and the socket to it."""

    def __init__(self, program: Path) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._process = subprocess.Popen(
            [str(program), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", **_crash_point()},
        )
        theirs.close()
        self._socket = ours
        self._out = bytearray()
        self._in = bytearray()
        self.pid = self._process.pid

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def wants_to_write(self) -> bool:
        return bool(self._out)

    def send(self, message: bytes) -> None:
        if not self._out:  # mostly it goes at once, whole
            message = message[self._take(message) :]
        self._out += message

    def command(self, job: int, attempt: int, value: int) -> None:
        """For a job whose shepherd was killed: the spawner has inherited it."""
        self.send(_COMMAND.pack(_COMMAND_MAGIC, _COMMAND.size, job, attempt, value, 0))

    def keep(self, log: Path, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        """How a controller is started outside the job that needs one, once this one is gone."""
        variables = [f"{name}={value}" for name, value in environ.items() if name != "FG_CRASH_AT"]
        words = [str(log), *arguments, *variables]
        text = b"".join(os.fsencode(word) + b"\0" for word in words)
        if len(text) > _KEPT_MOST:
            return  # a job is told then that it cannot start a controller
        length = _KEPT.size + len(text)
        self.send(_KEPT.pack(_KEPT_MAGIC, length, len(arguments), len(variables)) + text)

    def flush(self) -> None:
        """Send what the socket takes now."""
        while self._out and (taken := self._take(self._out)):
            del self._out[:taken]

    def _take(self, data: bytes | bytearray) -> int:
        """How many bytes of it the socket takes now."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return 0

    def read(self) -> list[Answer] | None:
        """The answers that are there; None when the spawner is gone."""
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            return None
        if not data:
            return None
        self._in += data
        answers = []
        while len(self._in) >= _ANSWER.size:
            magic, attempt, job, pid, errno, start = _ANSWER.unpack_from(self._in)
            answers.append(Answer(job, attempt, pid, errno, start, magic == _RESULT_MAGIC))
            del self._in[: _ANSWER.size]
        return answers

    def close(self) -> None:
        """Let it go; it ends once the shepherds it has forked have ended."""
        self._socket.close()
        self._process.returncode = 0  # it may outlive us, on purpose


def _crash_point() -> dict[str, str]:
    """The crash that a test asked for; nothing otherwise."""
    point = os.environ.get("FG_CRASH_AT", "")
    return {"FG_CRASH_AT": point} if point.startswith(("shepherd", "spawner")) else {}
