"""Start the spawner, the native process that forks shepherds, and exchange messages with it."""

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
_KEPT_MAX = (1 << 20) - 16  # bytes of the message that tells how the controller is started


class Answer(NamedTuple):
    """A report of the spawner or a shepherd about one attempt."""

    job: int
    attempt: int
    pid: int  # of the shepherd; 0: there is none
    errno: int  # 0: the attempt was claimed
    start: int  # clock ticks since boot; 0: the shepherd was killed before it could report
    is_over: bool = False  # the job of a killed shepherd has ended and has a result


class Spawner:
    """The spawner process and the socket to it."""

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
        """Return the descriptor of the socket, for the event loop."""
        return self._socket.fileno()

    @property
    def wants_to_write(self) -> bool:
        """Return whether messages wait for room in the socket."""
        return bool(self._out)

    def send(self, message: bytes) -> None:
        """Send a message, or keep the part that the socket does not accept for `flush`; never blocks."""
        if not self._out:  # usually the whole message is sent at once
            message = message[self._send_some(message) :]
        self._out += message

    def command(self, job: int, attempt: int, value: int) -> None:
        """Send a command about a job that the spawner inherited from a killed shepherd."""
        self.send(_COMMAND.pack(_COMMAND_MAGIC, _COMMAND.size, job, attempt, value, 0))

    def keep(self, log: Path, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        """Tell the spawner how to start a controller, for a job that needs one after this one has stopped."""
        variables = [f"{name}={value}" for name, value in environ.items() if name != "FG_CRASH_AT"]
        words = [str(log), *arguments, *variables]
        text = b"".join(os.fsencode(word) + b"\0" for word in words)
        if len(text) > _KEPT_MAX:
            return  # a job then reports that it cannot start a controller
        length = _KEPT.size + len(text)
        self.send(_KEPT.pack(_KEPT_MAGIC, length, len(arguments), len(variables)) + text)

    def flush(self) -> None:
        """Send what the socket accepts now; never blocks."""
        while self._out and (sent := self._send_some(self._out)):
            del self._out[:sent]

    def _send_some(self, data: bytes | bytearray) -> int:
        """Return the number of bytes that were sent without blocking."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return 0

    def read(self) -> list[Answer] | None:
        """Return the answers that have arrived; None if the spawner has exited."""
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
        """Close the socket; the spawner exits after the shepherds that it forked."""
        self._socket.close()
        self._process.returncode = 0  # suppresses a warning: the process outlives the controller


def _crash_point() -> dict[str, str]:
    """Return the variable with which a test makes the process crash."""
    point = os.environ.get("FG_CRASH_AT", "")
    return {"FG_CRASH_AT": point} if point.startswith(("shepherd", "spawner")) else {}
