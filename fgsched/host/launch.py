"""The run directory and the spawner: claims, results, launches. Every call may be made again."""

import os
import shutil
import signal
import socket
import struct
import subprocess
from contextlib import suppress
from dataclasses import dataclass, replace
from errno import EDQUOT, ENOSPC
from functools import lru_cache
from pathlib import Path

import fgshim.region as region

from fgsched.crash import point
from fgsched.errors import Refused, StorageError
from fgsched.host.process import Identity, is_alive, open_pidfd
from fgsched.jobs.isolation import Launch
from fgsched.jobs.lifecycle import Alive, Gone, Result, Seen, Shepherd, Unclaimed, parse_claim, parse_result
from fgsched.units import parse_indices

_HEADER = struct.Struct("<IIQ12I4q2IQ2I")
_LIMIT = struct.Struct("<iiqq")
_ANSWER = struct.Struct("<IIQiiQ")
_COMMAND = struct.Struct("<IIQIIQ")
_MAGIC, _COMMAND_MAGIC, _RESULT_MAGIC = 0x314C4746, 0x31434746, 0x31524746
_APPEND, _BECOME_USER, _OWN_MOUNTS, _OWN_USERS, _PROVE_FENCE = 1, 2, 8, 16, 32
_OF_OURS = ("not a regular file", "its fence does not hold")  # the system's word for it says nothing
_LONGEST = 8 * 2**20  # of a launch message: at a longer one the spawner hangs up
_MOST_CPUS = 8192  # that the spawner takes
_MOUNTS = {"": 0, "root": _OWN_MOUNTS, "user": _OWN_MOUNTS | _OWN_USERS}
CANCEL, DELIVER, SUSPEND, RESUME, PREEMPT, LIMIT = 1, 2, 3, 4, 5, 6  # verbs of a command
DUE_TO_REQUEUE, DUE_TO_PREEMPTION = 1, 2  # what a cancel says of itself in the job's errors
COMMAND_SIGNAL = signal.SIGRTMIN + 1


@dataclass(frozen=True, slots=True)
class Answer:
    """What spawner or shepherd say of one attempt."""

    job: int
    attempt: int
    pid: int  # of the shepherd; 0: there is none
    errno: int  # 0: claimed
    start: int  # clock ticks since boot; 0: it was killed before it could say
    is_over: bool = False  # a notice: the result of a job whose shepherd was killed is there


def pack(launch: Launch, script: bytes, region_head: bytes) -> bytes:
    """One launch message, as docs/native.md lays it out."""
    its, (number, target, before) = launch.files, launch.early
    texts = (launch.run, launch.chdir, its.stdin, its.stdout, its.errors, launch.tmpdir, launch.hook)
    words = [text.encode(errors="surrogateescape") for text in (*texts, *launch.args)]
    cpus = cpu_words(launch.cpus)
    tail = b"".join(
        (
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
    )
    if _HEADER.size + len(tail) > _LONGEST:
        raise Refused("script, arguments and environment together are larger than 8 MiB")
    flags = _APPEND * launch.append | _BECOME_USER * launch.become_user | _MOUNTS[launch.mounts]
    flags |= _PROVE_FENCE * launch.proves
    head = _HEADER.pack(
        *(_MAGIC, _HEADER.size + len(tail), launch.job, launch.attempt, flags, launch.uid, launch.gid),
        *(
            launch.umask,
            len(launch.groups),
            len(launch.rlimits),
            len(launch.args),
            launch.environment.count(b"\0"),
            len(launch.cgroups),
        ),
        *(number, target, launch.time_limit, before, launch.grace, launch.leftover_grace),
        *(len(script), len(region_head), region.SIZE if region_head else 0),
        *(len(launch.closed), len(cpus) // 8),
    )
    return head + tail


@lru_cache(maxsize=256)
def cpu_words(listed: str) -> bytes:
    """'0,65' as the bits of 64-bit words, the lowest CPU first; without those that no kernel has."""
    mask = sum(1 << cpu for cpu in parse_indices(listed) if cpu < _MOST_CPUS) if listed else 0
    return mask.to_bytes((mask.bit_length() + 63) // 64 * 8, "little")


def _cgroup(directory: str, settings: tuple[str, ...]) -> bytes:
    return "".join(f"{text}\0" for text in (directory, str(len(settings)), *settings)).encode()


def _in_words(result: Result) -> Result:
    """With the system's word for why a step of the launch failed."""
    if not result.errno or any(words in result.detail for words in _OF_OURS):
        return result
    return replace(result, detail=f"{result.detail}: {os.strerror(result.errno)}")


class RunDir:
    """Claims and results, as files that outlive every process."""

    def __init__(self, path: Path, boot: str) -> None:
        self.path = path
        self.boot = boot
        for name in ("claim", "result", "job"):
            (path / name).mkdir(parents=True, exist_ok=True)
            (path / name).chmod(0o711)  # whatever the mask: jobs of every user reach what is theirs below it
        self._claims, self._results = f"{path}/claim/", f"{path}/result/"

    def result(self, job: int, attempt: int) -> Result | None:
        """The result of an attempt, once there is one."""
        try:
            return _in_words(parse_result(os.readlink(f"{self._results}{job}.{attempt}")))
        except (OSError, ValueError):
            return None

    def seize(self, job: int, attempt: int) -> Seen:
        """What became of an attempt; if nobody claimed it yet, nobody can after this call."""
        try:
            os.symlink("T", f"{self._claims}{job}.{attempt}")
        except FileExistsError:
            return self.look(job, attempt)
        except OSError as error:
            if error.errno not in {ENOSPC, EDQUOT}:
                raise
            cause = f"no claim can be made in {self.path}: {error.strerror}"
            raise StorageError(cause, "Free some space there.") from error
        return Unclaimed()

    def look(self, job: int, attempt: int) -> Seen:
        """What became of an attempt."""
        result = self.result(job, attempt)
        if result is not None:
            return result
        try:
            shepherd = parse_claim(os.readlink(f"{self._claims}{job}.{attempt}"))
        except (OSError, ValueError):
            return Gone()
        if shepherd is None:
            return Unclaimed()
        if is_alive(Identity(shepherd.pid, shepherd.start, shepherd.boot)):
            return Alive(shepherd)
        return self.result(job, attempt) or Gone()  # it may have ended between the two looks

    def forget(self, job: int, attempt: int) -> None:
        """Remove result, then claim, of an attempt whose end is committed.

        A tombstone stays: the launch of an attempt that was given up may still come.
        """
        result, claim = f"{self._results}{job}.{attempt}", f"{self._claims}{job}.{attempt}"
        try:
            os.unlink(result)
            is_claimed = True  # by whoever left the result
        except FileNotFoundError:
            is_claimed = False
        point("controller_between_result_and_claim")
        with suppress(FileNotFoundError):
            if is_claimed or os.readlink(claim) != "T":
                os.unlink(claim)

    def clear(self, job: int, attempt: int) -> None:
        """Remove the directory of a job whose shepherd could not."""
        shutil.rmtree(self.path / "job" / f"{job}.{attempt}", ignore_errors=True)

    def leftovers(self) -> list[tuple[int, int]]:
        """(job, attempt) of all that has a claim, a result or a directory; tombstones stay with the boot."""
        found = set()
        for name in ("claim", "result", "job"):
            for entry in os.scandir(self.path / name):
                job, _, attempt = entry.name.partition(".")
                is_tombstone = entry.is_symlink() and os.readlink(entry.path) == "T"
                if job.isdigit() and attempt.isdigit() and not is_tombstone:
                    found.add((int(job), int(attempt)))
        return sorted(found)


def secret(run: Path) -> bytes:
    """What nobody but the controllers of this boot know; made by the first of them."""
    file = run / "secret"
    if not file.exists():
        fresh = run / "secret.new"
        fresh.touch(0o600)
        fresh.write_bytes(os.urandom(32))
        fresh.rename(file)
    return file.read_bytes()


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
        _spare_no_more(self.pid)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def wants_to_write(self) -> bool:
        return bool(self._out)

    def send(self, message: bytes) -> None:
        self._out += message
        self.flush()

    def command(self, job: int, attempt: int, value: int) -> None:
        """For a job whose shepherd was killed: the spawner has inherited it."""
        self.send(_COMMAND.pack(_COMMAND_MAGIC, _COMMAND.size, job, attempt, value, 0))

    def flush(self) -> None:
        """Send what the socket takes now."""
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return

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


def _spare_no_more(pid: int) -> None:
    """Jobs are not spared when memory runs out because their controller is."""
    with suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "r+") as score:
        if int(score.read()) < 0:
            score.write("0")


def _crash_point() -> dict[str, str]:
    """The crash that a test asked for; nothing otherwise."""
    point = os.environ.get("FG_CRASH_AT", "")
    return {"FG_CRASH_AT": point} if point.startswith(("shepherd", "spawner")) else {}


def command_value(verb: int, *, number: int = 0, target: int = 0, seconds: int = 0) -> int:
    """What a command carries: cancel, or deliver a signal to all processes, the shell or its children."""
    return verb | number << 8 | target << 16 | seconds << 18


def command(pidfd: int, job: int, attempt: int, value: int) -> bool:
    """Tell a shepherd; False when it is gone, or its user has as many signals waiting as he may.

    The attempt is marked, because the shepherd may have another job by the time it hears of this one.
    """
    mark = (job + (attempt << 24)) & 0xFFFF_FFFF
    try:
        region.queue_signal(pidfd, COMMAND_SIGNAL, mark << 32 | value)
    except (ProcessLookupError, BlockingIOError):
        return False
    return True


def watch(shepherd: Shepherd) -> int | None:
    """A pidfd of a shepherd; None if it is gone."""
    return open_pidfd(Identity(shepherd.pid, shepherd.start, shepherd.boot))
