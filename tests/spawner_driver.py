"""A controller in small: packs launch messages for a real fgspawn and waits for what comes of them."""

import ctypes
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from awaiting import PATIENCE
from fgshim import spawner

HEAD = struct.Struct("<2IQ5I5I2I5q2IQ2I")
ANSWER = struct.Struct("<2IQ2iQ")
COMMAND = struct.Struct("<2IQ2IQ")
LAUNCH_MAGIC, ANSWER_MAGIC, RESULT_MAGIC, COMMAND_MAGIC = 0x314C4746, 0x31414746, 0x31524746, 0x31434746
APPEND, BECOME_USER, NO_NEW_PRIVILEGES, OWN_MOUNTS, OWN_USERS = 1, 2, 4, 8, 16
PROVE_FENCE = 32
ALL, SHELL, CHILDREN = 0, 1, 2
CANCEL, DELIVER, SUSPEND, RESUME, LIMIT, JOIN = 1, 2, 3, 4, 6, 9


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a message says; times in milliseconds."""

    run: Path
    script: bytes
    job: int = 1
    attempt: int = 1
    flags: int = 0
    uid: int = 0
    gid: int = 0
    umask: int = 0o022
    groups: tuple[int, ...] = ()
    rlimits: tuple[tuple[int, int, int], ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    cgroups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    warn: tuple[int, int, int] = (0, 0, 0)  # signal, target, before the limit
    time_limit: int = 0
    grace: int = 30_000
    leftover_grace: int = 2_000
    last_wait: int = 30_000
    region: bytes = b""
    region_size: int = 0
    space: str = ""
    cwd: str = ""
    stdin: str = "/dev/null"
    stdout: str = "out"
    stderr: str = ""
    tmpdir: str = ""
    hook: str = ""
    shared: str = ""
    closed: tuple[str, ...] = ()
    cpus: bytes = b""  # 64-bit words

    @property
    def name(self) -> str:
        return f"{self.job}.{self.attempt}"

    @property
    def directory(self) -> Path:
        return self.run / "job" / self.name

    def pack(self) -> bytes:
        tail = b"".join((self._numbers(), self._strings(), self.script, self.region))
        number, target, before = self.warn
        head = HEAD.pack(
            LAUNCH_MAGIC, HEAD.size + len(tail), self.job,
            self.attempt, self.flags, self.uid, self.gid, self.umask,
            len(self.groups), len(self.rlimits), len(self.args), len(self.env), len(self.cgroups),
            number, target,
            self.time_limit, before, self.grace, self.leftover_grace, self.last_wait,
            len(self.script), len(self.region),
            self.region_size, len(self.closed), len(self.cpus) // 8,
        )  # fmt: skip
        return head + tail

    def _numbers(self) -> bytes:
        rlimits = [struct.pack("<2i2q", what, 0, soft, hard) for what, soft, hard in self.rlimits]
        return struct.pack(f"<{len(self.groups)}I", *self.groups) + b"".join(rlimits) + self.cpus

    def _strings(self) -> bytes:
        words = [str(self.run), self.space, self.cwd or str(self.run.parent)]
        words += [self.stdin, self.stdout, self.stderr, self.tmpdir, self.hook, self.shared, *self.args]
        words += [f"{name}={value}" for name, value in self.env.items()]
        words += self.closed
        for directory, settings in self.cgroups:
            words += [directory, str(len(settings)), *settings]
        return b"".join(os.fsencode(word) + b"\0" for word in words)


def result_text(path: Path) -> bytes:
    """Return the text of a result: a file, or the link that is made where no file can be."""
    return os.readlink(os.fsencode(path)) if path.is_symlink() else path.read_bytes().rstrip(b"\0")


@dataclass(frozen=True)
class Answer:
    magic: int
    attempt: int
    job: int
    pid: int
    errno: int
    ticks: int


@dataclass(frozen=True)
class Result:
    """One result, read."""

    status: int
    cause: str
    start: int
    end: int
    user: int
    system: int
    max_rss: int
    peak: int
    refusals: int
    refusing: int
    asked: int
    held: int
    oom_kills: int
    lost: int
    survivor: int
    errno: int
    disk_read: int
    disk_written: int
    detail: str

    @classmethod
    def read(cls, path: Path) -> "Result":
        version, status, cause, *rest = result_text(path).decode().split(" ", 19)
        assert version == "R4"
        return cls(int(status), cause, *map(int, rest[:16]), rest[16])

    @property
    def exit_code(self) -> int:
        return os.waitstatus_to_exitcode(self.status)


class Spawner:
    """A running fgspawn with a run directory of its own."""

    expected = b""  # what it will complain of
    expected_end = 0

    def __init__(
        self, run: Path, *, owner: int = -1, before: Sequence[str] = (), room: int = 0, **env: str
    ) -> None:
        self.run = run
        for name in ("claim", "result", "job", "spare"):
            (run / name).mkdir(parents=True, exist_ok=True)
            os.chown(run / name, owner, owner)
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(PATIENCE)
        os.set_inheritable(theirs.fileno(), True)
        if room:  # for words that we have not read
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        # The checkout may be in a home that others cannot enter.
        program = spawner() if owner < 0 else shutil.copy(spawner(), run)
        self.process = subprocess.Popen(
            [*before, str(program), str(theirs.fileno())],
            pass_fds=[theirs.fileno()], env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
            **({"user": owner, "group": owner, "extra_groups": []} if owner >= 0 else {}),
        )  # fmt: skip
        theirs.close()
        self.notices: list[Answer] = []

    def launch(self, script: str | bytes, **fields) -> "Started":
        text = script.encode() if isinstance(script, str) else script
        wish = replace(Launch(run=self.run, script=text), **fields)
        self.socket.sendall(wish.pack())
        return Started(wish, self.answer(), self)

    def answer(self) -> Answer:
        """The next answer; notices on the way to it are kept."""
        while (word := self._word()).magic != ANSWER_MAGIC:
            self.notices.append(word)
        return word

    def notice(self) -> Answer:
        """The next notice of a result that is there."""
        while not self.notices:
            self.notices.append(self._word())
        return self.notices.pop(0)

    def is_over(self, job: int, attempt: int) -> bool:
        """Whether a notice of this attempt has come."""
        while select.select([self.socket], [], [], 0)[0] and not self.has_hung_up:
            self.notices.append(self._word())
        return any((word.job, word.attempt) == (job, attempt) for word in self.notices)

    @property
    def has_hung_up(self) -> bool:
        return not self.socket.recv(1, socket.MSG_PEEK)

    def _word(self) -> Answer:
        data = b""
        while len(data) < ANSWER.size:
            more = self.socket.recv(ANSWER.size - len(data))
            assert more, "the spawner hung up"
            data += more
        return Answer(*ANSWER.unpack(data))

    def command(self, job: int, value: int) -> None:
        self.socket.sendall(COMMAND.pack(COMMAND_MAGIC, COMMAND.size, job, 1, value, 0))

    def close(self) -> bytes:
        """Hang up, and wait until it has seen its last job to the end; what it complained of."""
        self.socket.close()
        _, complaints = self.process.communicate(timeout=PATIENCE)
        return complaints


class Started:
    """A job whose launch was answered."""

    def __init__(self, wish: Launch, answer: Answer, spawner: Spawner) -> None:
        self.wish = wish
        self.spawner = spawner
        self.answer = answer
        self.link = wish.run / "result" / wish.name
        try:
            self.shepherd = os.pidfd_open(answer.pid) if answer.pid else -1
        except ProcessLookupError:
            self.shepherd = -1  # over already

    def order(self, verb: int, number: int = 0, target: int = ALL) -> None:
        """Queue a command for the shepherd, as the controller does."""
        mark = (self.wish.job + (self.wish.attempt << 24)) & 0xFFFF_FFFF
        queue_command(self.answer.pid, mark << 32 | verb | number << 8 | target << 16)

    def limit(self, seconds: int) -> None:
        """Have the shepherd keep to another time limit."""
        mark = (self.wish.job + (self.wish.attempt << 24)) & 0xFFFF_FFFF
        queue_command(self.answer.pid, mark << 32 | limit_value(seconds))

    def over(self) -> None:
        """Wait until its shepherd has told so, or is gone."""
        if self.shepherd >= 0:
            awaited = [self.shepherd, self.spawner.socket]
            while not self.spawner.is_over(self.wish.job, self.wish.attempt):
                ready = select.select(awaited, [], [], PATIENCE)[0]
                assert ready, "the job does not end"
                if self.shepherd in ready:
                    break
                if self.spawner.has_hung_up:
                    awaited = [self.shepherd]
            os.close(self.shepherd)
            self.shepherd = -1

    def result(self) -> Result:
        self.over()
        return Result.read(self.link)

    def output(self) -> str:
        return (self.wish.run.parent / "out").read_text()


def limit_value(seconds: int) -> int:
    return (seconds % 2**24) << 8 | LIMIT | seconds // 2**24


def queue_command(pid: int, value: int) -> None:
    """sigqueue(3), which Python does not have."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.sigqueue(pid, signal.SIGRTMIN + 1, ctypes.c_void_p(value)) < 0:
        raise OSError(ctypes.get_errno(), "sigqueue")


@contextmanager
def spawning(
    place: Path, *, owner: int = -1, before: Sequence[str] = (), room: int = 0, **env: str
) -> Iterator[Spawner]:
    """A spawner that leaves nothing behind; `place` becomes a directory that any user can pass through."""
    place.chmod(0o755)
    one = Spawner(place / "run", owner=owner, before=before, room=room, **env)
    try:
        yield one
    finally:
        assert one.close() in (b"", one.expected)
        assert one.process.returncode == one.expected_end


class Gate:
    """A FIFO by which a job tells how far it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        path.chmod(0o666)
        self.fd = os.open(path, os.O_RDWR)

    def line(self) -> str:
        """The next line that a job writes."""
        text = b""
        while not text.endswith(b"\n"):
            assert select.select([self.fd], [], [], PATIENCE)[0], f"nobody writes; so far {text!r}"
            text += os.read(self.fd, 1)
        return text.decode().strip()

    def number(self) -> int:
        return int(self.line())


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie that nobody reaped yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def await_end(pid: int) -> None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with open(fd, "rb", buffering=0):
        assert select.select([fd], [], [], PATIENCE)[0], f"process {pid} does not end"
