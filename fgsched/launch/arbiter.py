"""The arbiter: the process that gives the jobs of each shared GPU their turns (docs/design/native.md)."""

import logging
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import fgshim.region as region

log = logging.getLogger(__name__)
JobKey = tuple[int, int]  # number and attempt
_BETWEEN_STARTS = 1.0  # seconds: an arbiter may end at once, each time
_BETWEEN_QUESTIONS = 1.0  # whether it is at work
_PATIENCE = 2.0  # for the answer, in steps that are not late themselves
_LATE = 0.5  # a controller whose steps are later than this cannot blame the arbiter


class TurnShare(NamedTuple):
    """What a job has of one GPU."""

    position: int  # of the GPU in the job's region
    gpu: int
    policy: str  # a word of region.POLICIES
    share: int  # ten-thousandths


class TurnJob(NamedTuple):
    """A running job that takes turns on GPUs."""

    uid: int
    directory: str
    shares: tuple[TurnShare, ...]


class _Silence:
    """The time since the arbiter last answered. Late steps of the controller count for little."""

    def __init__(self, now: float) -> None:
        self._since = self._now = now
        self.is_asked = False
        self.asked_for = 0.0  # seconds

    @property
    def is_due(self) -> bool:
        """Return whether to ask the arbiter."""
        return not self.is_asked and self._now - self._since >= _BETWEEN_QUESTIONS

    def pass_to(self, now: float) -> None:
        """Count the time until now."""
        if self.is_asked:
            self.asked_for += min(now - self._now, _LATE)
        self._now = now


class Arbiter:
    """The arbiter's process and the socket to it. The process is started for the first job."""

    def __init__(self, program: Path, lock: Path) -> None:
        """`lock`: a file by which this arbiter ends that of an earlier controller."""
        self._program, self._lock = program, lock
        self._process: subprocess.Popen[bytes] | None = None
        self._may_start_at = 0.0
        self._socket: socket.socket | None = None
        self._jobs: dict[JobKey, TurnJob] = {}
        self._others: dict[int, int] = {}
        self._flying: dict[JobKey, int] = {}
        self._connected: set[JobKey] = set()
        self._silence: _Silence | None = None

    def update(self, jobs: Mapping[JobKey, TurnJob], now: float) -> None:
        """Tell the arbiter which jobs take turns. A new arbiter replaces one that has ended.

        Args:
            jobs: all running jobs that take turns.
            now: seconds of a monotonic clock.
        """
        self._hear(now)
        if self._process is not None and self._process.poll() is not None:
            log.warning("the arbiter of shared GPUs has ended with status %d", self._process.returncode)
            self.close()
        if self._process is None:
            if not jobs or now < self._may_start_at:
                return
            self._may_start_at = now + _BETWEEN_STARTS
            self._start()
        for ended in self._jobs.keys() - jobs.keys():
            if self._send(f"- {ended[0]} {ended[1]}"):
                del self._jobs[ended]
                self._flying.pop(ended, None)
        for key in jobs.keys() - self._jobs.keys():
            if self._send(_introduction(key, jobs[key])):
                self._jobs[key] = jobs[key]

    def is_connected(self, key: JobKey) -> bool:
        """Return whether a process of a job takes turns."""
        return key in self._connected

    def count_others(self, gpu: int, processes: int) -> None:
        """Tell how many processes have work on a GPU and take no turns."""
        if self._others.get(gpu, 0) != processes and self._send(f"o {gpu} {processes}"):
            self._others[gpu] = processes

    def count_flying(self, key: JobKey, processes: int) -> None:
        """Tell how many processes of a job have work. It counts for a job whose hook takes no turns."""
        if self._flying.get(key, 0) != processes and self._send(f"f {key[0]} {key[1]} {processes}"):
            self._flying[key] = processes

    def close(self) -> None:
        """Leave the arbiter alone: it serves the jobs that run, and ends after them."""
        if self._socket is not None:
            self._socket.close()
        self._socket = self._process = None
        self._jobs, self._others, self._flying = {}, {}, {}
        self._connected, self._silence = set(), None

    def end(self) -> None:
        """End the arbiter's process: jobs launch in their windows until there is another one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.close()

    def _hear(self, now: float) -> None:
        """Read what the arbiter has sent. One that does not answer is ended: its jobs would wait for it."""
        while words := self._receive():
            if words[0] == "p":
                self._silence = None
            elif words[0] == "c":
                key = (int(words[1]), int(words[2]))
                (self._connected.add if int(words[3]) else self._connected.discard)(key)
        if self._process is None:
            return
        if self._silence is None:
            self._silence = _Silence(now)
        self._silence.pass_to(now)
        if self._silence.is_due and self._send("p"):
            self._silence.is_asked = True
        if self._silence.asked_for > _PATIENCE:
            log.warning("the arbiter of shared GPUs does not answer: another one is started")
            self.end()

    def _receive(self) -> list[str]:
        """Return the words of the next message; none: there is no message."""
        if self._socket is None:
            return []
        try:
            return self._socket.recv(256).decode("ascii", "replace").split()
        except OSError:
            return []

    def _start(self) -> None:
        own_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own_end.setblocking(False)
        try:
            self._process = subprocess.Popen(
                [str(self._program), "turns", str(child_end.fileno()), str(self._lock)],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
            )
        except OSError as error:
            log.warning("the arbiter of shared GPUs cannot be started: %s", error)
            own_end.close()
        else:
            self._socket = own_end
        finally:
            child_end.close()

    def _send(self, text: str) -> bool:
        """Send a message; False if it must be sent again later."""
        if self._socket is None:
            return False
        try:
            self._socket.send(os.fsencode(text))
        except OSError:  # it is busy or has ended: the next step sends it again
            return False
        return True


def _introduction(key: JobKey, job: TurnJob) -> str:
    shares = (
        f"{share.position} {share.gpu} {region.POLICIES[share.policy]} {share.share}" for share in job.shares
    )
    return f"+ {key[0]} {key[1]} {job.uid} {len(job.shares)} {' '.join(shares)} {job.directory}"
