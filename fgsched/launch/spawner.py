"""The spawner: the launch message that it reads (docs/design/native.md), and the connection to it."""

import os
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import fgshim.region as region

from fgsched.domain.errors import Refused
from fgsched.domain.units import parse_indices
from fgsched.lifecycle.launchspec import LaunchMessage

# -- the launch message -------------------------------------------------------


_HEADER = struct.Struct("<IIQ12I5q2IQ2I")
_LIMIT = struct.Struct("<iiqq")
_MAGIC = 0x314C4746
_APPEND, _BECOME_USER, _NO_NEW_PRIVILEGES, _OWN_MOUNTS, _OWN_USERS = 1, 2, 4, 8, 16
_VERIFY_ENFORCEMENT, _MAKE_DIRECTORIES, _TASK_PROLOG = 32, 64, 128
_MAX_BYTES = 8 * 2**20  # the spawner closes the connection at a longer message
_MAX_CPUS = 8192  # highest number of a CPU that the spawner accepts
_MOUNTS = {"": 0, "root": _OWN_MOUNTS, "user": _OWN_MOUNTS | _OWN_USERS}


def pack(launch: LaunchMessage, script: bytes, region_head: bytes) -> bytes:
    """Encode a launch message in the layout of docs/design/native.md.

    Args:
        script: the job script; empty if the command is in `launch.args`.
        region_head: the header of the region of the hook; empty for a job without the hook.

    Raises:
        Refused: the message is larger than 8 MiB.
    """
    streams = (launch.files.stdin, launch.files.stdout, launch.files.errors)
    texts = (
        launch.run,
        launch.directory_prefix,
        launch.chdir,
        *streams,
        launch.tmpdir,
        launch.hook,
        launch.shared,
    )
    words = [text.encode(errors="surrogateescape") for text in (*texts, *launch.args)]
    cpus = cpu_words(launch.cpus)
    parts = (
        struct.pack(f"<{len(launch.groups)}I", *launch.groups),
        *(_LIMIT.pack(resource, 0, soft, hard) for resource, soft, hard in launch.rlimits),
        cpus,
        b"\0".join(words),
        b"\0",
        launch.environment,
        *(f"{node}\0".encode() for node in launch.closed),
        *(_cgroup(directory, settings) for directory, settings in launch.cgroups),
        script,
        region_head,
    )
    length = _HEADER.size + sum(map(len, parts))
    if length > _MAX_BYTES:
        raise Refused("script, arguments and environment together are larger than 8 MiB")
    sizes = (len(script), len(region_head), region.SIZE if region_head else 0)
    return b"".join((_header(launch, length, sizes, len(cpus) // 8), *parts))


def _header(launch: LaunchMessage, length: int, sizes: tuple[int, int, int], cpu_words: int) -> bytes:
    """Encode the fixed part; `sizes` are the bytes of the script, the region's header and the region."""
    number, target, before = launch.early_signal
    flags = _APPEND * launch.append | _BECOME_USER * launch.become_user | _MOUNTS[launch.mounts]
    flags |= _NO_NEW_PRIVILEGES * launch.no_new_privileges
    flags |= _VERIFY_ENFORCEMENT * launch.proves | _MAKE_DIRECTORIES * launch.files.makes
    flags |= _TASK_PROLOG * launch.task_prolog
    return _HEADER.pack(
        *(_MAGIC, length, launch.job, launch.attempt, flags, launch.uid, launch.gid, launch.umask),
        *(len(launch.groups), len(launch.rlimits), len(launch.args), launch.environment.count(b"\0")),
        *(len(launch.cgroups), number, target),
        *(launch.time_limit, before, launch.grace, launch.leftover_grace, launch.last_wait),
        *sizes,
        *(len(launch.closed), cpu_words),
    )


@lru_cache(maxsize=256)
def cpu_words(listed: str) -> bytes:
    """Encode a CPU list such as '0,65' as 64-bit words, lowest CPU first; CPUs from 8192 on are omitted."""
    mask = sum(1 << cpu for cpu in parse_indices(listed) if cpu < _MAX_CPUS) if listed else 0
    return mask.to_bytes((mask.bit_length() + 63) // 64 * 8, "little")


def _cgroup(directory: str, settings: tuple[str, ...]) -> bytes:
    return "".join(f"{text}\0" for text in (directory, str(len(settings)), *settings)).encode()


# -- the spawner --------------------------------------------------------------


_ANSWER = struct.Struct("<IIQiiQ")
_COMMAND = struct.Struct("<IIQIIQ")
_KEPT = struct.Struct("<IIII")
_COMMAND_MAGIC, _RESULT_MAGIC, _KEPT_MAGIC = 0x31434746, 0x31524746, 0x31534746
_KEPT_MAX = (1 << 20) - 16  # bytes of the message with the controller's start command


class SpawnerReport(NamedTuple):
    """A report of the spawner or a shepherd about one attempt."""

    job: int
    attempt: int
    pid: int  # of the shepherd; 0: there is none
    errno: int  # 0: the attempt was claimed
    start: int  # clock ticks since boot; 0: the shepherd was killed before it could report
    is_over: bool = False  # the job of a killed shepherd has ended and has a result


class Spawner:
    """The spawner process and the socket to it."""

    def __init__(self, program: Path, locks: Sequence[int] = ()) -> None:
        """Start the spawner, which holds `locks` until its last shepherd has ended."""
        own_end, child_end = socket.socketpair()
        own_end.setblocking(False)
        self._process = subprocess.Popen(
            [str(program), str(child_end.fileno())],
            pass_fds=[child_end.fileno(), *locks],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", **_crash_point()},
        )
        child_end.close()
        self._socket = own_end
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
        """Send the spawner the command that starts another controller after the end of this one."""
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

    def read(self) -> list[SpawnerReport] | None:
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
            answers.append(SpawnerReport(job, attempt, pid, errno, start, magic == _RESULT_MAGIC))
            del self._in[: _ANSWER.size]
        return answers

    def close(self) -> None:
        """Close the socket; the spawner exits after the shepherds that it forked."""
        self._socket.close()
        self._process.returncode = 0  # suppresses a warning: the process outlives the controller


def _crash_point() -> dict[str, str]:
    """Return the environment variable of a crash point, for tests."""
    point = os.environ.get("FG_CRASH_AT", "")
    return {"FG_CRASH_AT": point} if point.startswith(("shepherd", "spawner")) else {}
