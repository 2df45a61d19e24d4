"""Connect commands to the controller. In user mode, start a controller if none is running."""

import errno
import os
import select
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fgsched import codec, protocol
from fgsched.domain.errors import BY_EXIT_CODE, Busy, OurFault, Unreachable
from fgsched.domain.text import clean
from fgsched.protocol import Answer, Call, Progress
from fgsched.system import locks
from fgsched.system.ownhost import refuse_another_host, refuse_without_locks, starting
from fgsched.system.paths import CONFIG_VARIABLES, SOCKET_PATH_MAX, Paths, written

if TYPE_CHECKING:
    import subprocess

TAKE_OVER = "--take-over"  # option of a controller that takes the queue of another host
_PATIENCE = 10.0  # seconds that the controller has for an answer
_START = 600.0  # seconds that a controller has for its start, which reads the whole queue
_STOP = 60.0  # seconds that a controller which accepts no connections has for its end
_SILENT = 1.5  # seconds until a command says for what it waits
_CROWD = 60.0  # seconds for which requests to a busy controller are retried
_LONGEST_PAUSE = 5.0  # seconds between two times
_PAUSE = 0.02  # seconds between two attempts to connect
_OF_CONTROLLER = ("FG_DEVICES", *CONFIG_VARIABLES)  # variables that it reads at its start
_CREDENTIALS = struct.Struct("3i")
_TIME = struct.Struct("@2l")  # seconds and microseconds
_LOG_FLAGS = (
    os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
)  # a FIFO may have no reader
UNCHANGED = "Nothing was changed; it is safe to repeat the command."


class NotRunning(Unreachable):
    """No controller is running."""


class TimedOut(Unreachable):
    """Raised if no answer arrived within the caller's time limit."""


class _Pauses:
    """Yield the pauses before retries of a busy controller: random, increasing and limited.

    After some seconds a message about the wait is printed.
    """

    def __init__(self) -> None:
        self._longest, self._since = 0.0, time.monotonic()
        self._is_told = False

    def next(self, busy: Busy) -> float:
        """Return the seconds to wait before the next try. Raises Unreachable after too many."""
        waited, why = time.monotonic() - self._since, f"the controller is busy: {busy.cause}"
        if waited >= _CROWD:
            raise Unreachable(why, f"{busy.remedy}\n{UNCHANGED}".lstrip())
        if waited >= _SILENT and not self._is_told:
            self._is_told = True
            _say_waiting(why)
        self._longest = min(_LONGEST_PAUSE, max(busy.after, self._longest * 2))
        return self._longest * (0.5 + os.urandom(1)[0] / 255)


class Client:
    """A connection for several requests, to be used in a `with` statement."""

    def __init__(
        self,
        paths: Paths,
        *,
        may_start: bool = True,
        is_prompt: bool = False,
        names_variables: bool = True,
    ) -> None:
        """`may_start`: in user mode, start the controller if none is running.

        `is_prompt`: the time limit of a request includes the start of the controller.
        `names_variables`: before the first request, name on a terminal the variables that the controller does
        not have. False: the command names them itself, also in its output to a file.
        """
        self.paths = paths
        self._may_start, self._is_prompt = may_start, is_prompt
        self._names_variables = names_variables
        self._socket: socket.socket | None = None
        self._in = b""
        self.was_there = False  # a controller has taken a connection of ours

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def open(self) -> None:
        """Connect, and in user mode start the controller if none is running. Raises Unreachable."""
        self._connect(None)

    def call(
        self,
        call: Call[Answer],
        *,
        patience: float | None = _PATIENCE,
        progress: Callable[[Progress], None] | None = None,
        unanswered: str = "",
    ) -> Answer:
        """Send a request and return its answer.

        The request is sent again if the connection is lost before the answer, unless `call.repeats` is false.
        `patience` is in seconds; None: no limit. A controller that is starting has further ten
        minutes. `progress` is called with the progress of awaited jobs.
        `unanswered` is the remedy to show if there is no answer.

        Raises: the controller's refusal; Unreachable, and TimedOut if it does not answer in time.
        """
        if self._names_variables:
            self._name_variables(patience)
        advice = unanswered or _advice(only_reads=call.only_reads, repeat=call.repeats)
        ok = self._insist(codec.encode_call(call), patience, progress, repeat=call.repeats, advice=advice)
        kind: type[Answer] = protocol.answer_of(type(call))
        return codec.decode_answer(ok, kind)

    def _name_variables(self, patience: float | None) -> None:
        """Name variables of this command without effect to a person: a program may read the errors, too."""
        self._names_variables = False
        if sys.stderr is None or not sys.stderr.isatty() or not any(map(os.environ.get, _OF_CONTROLLER)):
            return
        from fgsched.submission.jobwarnings import about_variables

        site = self.call(protocol.Ping(), patience=patience).site
        for text in about_variables(os.environ, site):
            _say_once(f"note: {text}")

    def _insist(
        self,
        message: bytes,
        patience: float | None,
        progress: Callable[[Progress], None] | None,
        *,
        repeat: bool,
        advice: str,
    ) -> bytes:
        """Send a request until the controller accepts it, and return the answer as JSON."""
        pauses = _Pauses()
        while True:
            try:
                return self._ask(message, patience, progress, repeat=repeat, advice=advice)
            except Busy as busy:
                self.__exit__()
                time.sleep(pauses.next(busy))

    def _ask(
        self,
        message: bytes,
        patience: float | None,
        progress: Callable[[Progress], None] | None,
        *,
        repeat: bool,
        advice: str,
    ) -> bytes:
        until = _after(patience)
        for attempt in (1, 2, 3, 4, 5):
            try:
                if self._connect(until) and not self._is_prompt:
                    until = _after(patience)
                return self._exchange(message, until, progress)
            except TimeoutError:
                silent = self._whose()
                self.__exit__()  # its answer would be taken for that of the next request
                raise TimedOut(f"the controller does not answer ({silent})", advice) from None
            except (ConnectionError, EOFError):
                self.__exit__()
                if not repeat or attempt == 5:
                    why = "the controller went away in the middle of the request"
                    raise Unreachable(why, advice) from None
        raise AssertionError("unreachable")

    def watch(self, ids: Sequence[int | str]) -> "Watch":
        """Open a separate connection that reports the end of jobs."""
        return Watch(self.paths, ids, may_start=self._may_start)

    def _whose(self) -> str:
        """Name the controller for a message, with its pid if known."""
        if self._socket is None:
            return str(self.paths.socket)
        return f"pid {_credentials(self._socket)[0]}"

    def _connect(self, until: float | None) -> bool:
        """Connect unless there is a connection; return whether it is new."""
        if self._socket is not None:
            return False
        limit = until if self._is_prompt else None
        self._socket, self._in = connect(self.paths, may_start=self._may_start, until=limit), b""
        self.was_there = True
        return True

    def _exchange(
        self, message: bytes, until: float | None, progress: Callable[[Progress], None] | None
    ) -> bytes:
        self._limit_time(until)
        self._send(message, until)
        while True:
            reply = codec.read_reply(self._line(until))
            if reply.progress is not None and progress is not None:
                progress(reply.progress)
            if reply.ok is not msgspec.UNSET:
                return bytes(reply.ok)

    def _send(self, message: bytes, until: float | None) -> None:
        """Send a request. A busy controller answers and closes the connection before it reads."""
        assert self._socket is not None
        try:
            self._socket.sendall(message)
        except ConnectionError as error:
            with suppress(OSError, EOFError):
                codec.read_reply(self._line(until))
            raise error

    def _limit_time(self, until: float | None) -> None:
        """Limit the next step to the remaining time."""
        assert self._socket is not None
        self._socket.settimeout(None if until is None else max(0.001, until - time.monotonic()))

    def _line(self, until: float | None) -> bytes:
        assert self._socket is not None
        parts = [self._in]
        while b"\n" not in parts[-1]:
            self._limit_time(until)
            data = self._socket.recv(1 << 20)
            if not data:
                raise EOFError
            parts.append(data)
        line, _, self._in = b"".join(parts).partition(b"\n")
        return line


class Watch:
    """A watch on the end of jobs that survives a restart of the controller."""

    def __init__(
        self, paths: Paths, ids: Sequence[int | str], *, may_start: bool, any_will_do: bool = False
    ) -> None:
        """`any_will_do`: the first end ends it; then it sends no progress."""
        self._paths, self._may_start = paths, may_start
        self._request = codec.encode_call(
            protocol.Wait(ids=list(ids), any=any_will_do, progress=not any_will_do)
        )
        self._socket: socket.socket | None = None
        self._in = b""
        self._is_over = False
        self._pauses = _Pauses()
        self.progress: Progress | None = None  # the last news of the jobs
        self.ends: list[protocol.JobEnd] = []  # of the awaited jobs, at its end

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def fileno(self) -> int:
        """Return the descriptor that news make readable; -1 while there is no connection."""
        return -1 if self._socket is None else self._socket.fileno()

    def is_over(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for news; return whether all jobs have ended."""
        if self._is_over:
            return True
        if self._socket is None and not self._connect(timeout):
            return False
        assert self._socket is not None
        if not select.select([self._socket], [], [], timeout)[0]:
            return False
        try:
            data = self._socket.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            self.__exit__()
            return False
        *lines, self._in = (self._in + data).split(b"\n")
        try:
            self._is_over = any(self._is_answer(line) for line in lines)
        except Busy as busy:
            self.__exit__()
            time.sleep(min(timeout, self._pauses.next(busy)))
        return self._is_over

    def _connect(self, timeout: float) -> bool:
        """Connect and send the request; return False if the controller is starting for so many seconds."""
        try:
            sock = connect(self._paths, may_start=self._may_start, until=time.monotonic() + timeout)
        except TimedOut:
            return False
        self._socket, self._in = sock, b""
        with suppress(ConnectionError):  # its answer, sent before it closed the connection, is read later
            self._socket.sendall(self._request)
        return True

    def _is_answer(self, line: bytes) -> bool:
        reply = codec.read_reply(line)
        self.progress = reply.progress or self.progress
        if reply.ok is msgspec.UNSET:
            return False
        self._pauses = _Pauses()
        self.ends = codec.decode_answer(bytes(reply.ok), protocol.JobEnds).jobs
        return True


def _advice(*, only_reads: bool, repeat: bool) -> str:
    """Return the remedy for a request without an answer."""
    if only_reads:
        return UNCHANGED
    if repeat:
        return "It may have been carried out all the same; it is safe to repeat the command."
    return "It may have been carried out all the same: look with fgq before you repeat it."


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Return (pid, uid, gid) of the process behind a connection."""
    pid, uid, gid = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid, gid


def find_paths() -> Paths:
    return Paths.find(os.environ, os.geteuid())


def _after(seconds: float | None) -> float | None:
    """Return the time on the monotonic clock after so many seconds from now; None: never."""
    return None if seconds is None else time.monotonic() + seconds


def connect(paths: Paths, *, may_start: bool = True, until: float | None = None) -> socket.socket:
    """Connect to the controller; in user mode start it first, unless `may_start` is false.

    A controller that is starting is awaited: `until` a time on the monotonic clock, or for ten minutes.

    Raises:
        NotRunning: no controller is running.
        TimedOut: the controller is still starting.
        Unreachable: it accepts no connections, or something else is in the place of its socket.
    """
    paths.check(os.geteuid())
    if paths.mode == "user":
        refuse_another_host(paths.state, only_other_boots=True)
    patience = _StartPatience(paths, until)
    patience.wait_while_starting()
    try:
        return _dial(paths)
    except PermissionError:
        raise Unreachable(
            f"no permission on the controller's socket {paths.socket}",
            "The socket belongs to another user. Set FG_HOME to the home of your own controller.",
        ) from None
    except (FileNotFoundError, ConnectionRefusedError):
        if paths.mode == "system":
            raise _absent(paths, _start_of_the_host()) from None
        if not may_start:
            raise _absent(paths, "fgsched start") from None
    except OSError as error:
        if error.errno != errno.ELOOP:  # a lost connection is another matter
            raise
        raise _absent(paths, "fgsched start") from None
    _refuse_by_sudo(paths)
    _start_if_absent(paths, (), patience)
    try:
        return _dial(paths)
    except OSError as error:
        raise Unreachable(f"the controller has just started and does not answer: {error.strerror}") from None


def _refuse_by_sudo(paths: Paths) -> None:
    """Refuse to start a controller of root's for a command that a user typed with sudo. Raises NotRunning."""
    user = os.environ.get("SUDO_USER", "")
    if os.geteuid() == 0 and user not in ("", "root") and not paths.is_named:
        raise NotRunning(
            "root has no controller, and this host has none for all users",
            f"Without sudo the command asks the controller of {clean(user)}. For all users: fgsched init. "
            "For root alone: fgsched start",
        )


class _StartPatience:
    """The patience with a controller that is starting.

    After some seconds a message about the wait is printed, unless the caller has limited it.
    """

    def __init__(self, paths: Paths, until: float | None = None) -> None:
        self._paths, self._until = paths, until
        self._since = time.monotonic()
        self._is_told = False
        self.why = ""  # the command waits, if no controller shows that it is starting

    @property
    def seconds_left(self) -> float:
        """Seconds until the wait ends; 0 if it has ended."""
        end = self._since + _START if self._until is None else self._until
        return max(0.0, end - time.monotonic())

    def wait_while_starting(self) -> None:
        """Wait until no controller is starting. Raises TimedOut."""
        while pid := starting(self._paths.refreshed(os.geteuid()).socket):
            self.spend(pid)

    def spend(self, pid: int) -> None:
        """Wait a moment for the controller `pid`; 0: it does not show itself. Raises TimedOut."""
        self.look(pid)
        time.sleep(min(_PAUSE, self.seconds_left))

    def look(self, pid: int) -> None:
        """Tell the user of a long wait for the controller `pid`. Raises TimedOut at its end."""
        label = f"the controller (pid {pid})" if pid else "the controller"
        if not self.seconds_left:
            raise TimedOut(f"{label} is still starting", f"Its log tells more: {_logs(self._paths)}")
        if self._until is None and not self._is_told and time.monotonic() - self._since >= _SILENT:
            self._is_told = True
            _say_waiting(self.why if self.why and not pid else f"{label} is starting")


def _say_waiting(why: str) -> None:
    """Print why the command waits to standard error."""
    _say(f"waiting: {why}")


def _say(text: str) -> None:
    name = os.path.basename(sys.argv[0]).removesuffix(".py")
    with suppress(OSError, AttributeError):  # standard error is closed
        print(f"{name}: {text}", file=sys.stderr, flush=True)


@cache
def _say_once(text: str) -> None:
    """Print a text once in a command, which may connect several times."""
    _say(text)


def _logs(paths: Paths) -> str:
    """Return the command that shows the controller's log."""
    return "fgsched logs --system (as root)" if paths.mode == "system" else "fgsched logs"


def _start_of_the_host() -> str:
    """Return the command that starts the host's controller; a container often has no systemd."""
    return "systemctl start fgsched" if os.path.isdir("/run/systemd/system") else "fgsched start --system"


def _absent(paths: Paths, start: str) -> Unreachable:
    """Return why nothing answers at the socket. `start`: the command that starts a controller."""
    with suppress(OSError):
        if not stat.S_ISSOCK(os.lstat(paths.socket).st_mode):
            return Unreachable(
                f"{paths.socket} is not a socket: it has replaced that of the controller",
                "Remove it, end the controller with kill if one is running, and start it again.",
            )
    return NotRunning("the controller is not running", f"Start it: {start}")


def _dial(paths: Paths) -> socket.socket:
    paths = paths.refreshed(os.geteuid())
    if paths.is_lost or len(os.fsencode(paths.socket)) > SOCKET_PATH_MAX:  # a controller moves it
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(paths.run))
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        _knock(sock, paths)
        _trust(sock, paths)
    except BaseException:
        sock.close()
        raise
    return sock


def _knock(sock: socket.socket, paths: Paths) -> None:
    """Connect to the socket. If its queue is full, only a time limit of the kernel ends the wait."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(int(_CROWD), int(_CROWD % 1 * 1e6)))
    try:
        sock.connect(str(paths.socket))
    except BlockingIOError:
        raise Unreachable(f"the controller does not answer ({paths.socket})", UNCHANGED) from None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(0, 0))
    sock.settimeout(_PATIENCE)


def _trust(sock: socket.socket, paths: Paths) -> None:
    """Refuse a controller of another user, which would receive scripts and environments."""
    owner = 0 if paths.mode == "system" else os.geteuid()
    _, uid, _ = _credentials(sock)
    if uid != owner:
        owner_label = "yours" if owner else "root's"
        raise Unreachable(
            f"the controller at {paths.socket} is not {owner_label}: it belongs to uid {uid}",
            "Nothing was sent to it. Tell the administrator, or set FG_HOME to a directory of yours.",
        )


def start(paths: Paths, *options: str) -> bool:
    """Start the user's controller, once for concurrent callers; return False if one is running.

    Raises: TimedOut, if it is still starting after ten minutes; Unreachable, or the reason of the controller.
    """
    return _start_if_absent(paths, options, _StartPatience(paths))


def _start_if_absent(paths: Paths, options: tuple[str, ...], patience: _StartPatience) -> bool:
    if TAKE_OVER not in options:
        refuse_another_host(paths.state)
    paths.prepare(os.geteuid())
    with written(paths.state):
        refuse_without_locks(paths.state)
    with _starting(paths, patience):
        try:
            _dial(paths).close()
        except OSError:
            _start(paths, options, patience)
            return True
        return False


@contextmanager
def _starting(paths: Paths, patience: _StartPatience) -> Iterator[None]:
    """Hold the lock under which one command at a time starts a controller."""
    from filelock import FileLock, Timeout  # only the command that finds no controller pays for it

    lock = FileLock(paths.state / "starting.lock", timeout=0, mode=0o600)
    while True:
        try:
            with written(Path(lock.lock_file)):
                lock.acquire()
            break
        except Timeout:
            holder = locks.holder(Path(lock.lock_file))
            patience.why = f"another command ({holder or 'unknown'}) is starting the controller"
            patience.spend(starting(paths.refreshed(os.geteuid()).socket))
    try:
        yield
    finally:
        lock.release()


def _start(paths: Paths, options: tuple[str, ...], patience: _StartPatience) -> None:
    """Start a controller, or wait for another one that has the lock, until it accepts requests."""
    from fgsched.system.nice import refuse_unfit_limits
    from fgsched.system.process import is_inside_job

    if is_inside_job(os.environ):
        _start_outside(paths, options, patience)
        return
    refuse_unfit_limits()
    end = time.monotonic() + _STOP
    while (other := _start_own(paths, options, patience)) is not None:
        patience.why = f"{other.cause}, and accepts no connections"
        refused = _absent(paths, "fgsched start")
        if not isinstance(refused, NotRunning):  # a file has replaced its socket
            raise refused
        if _accepts_soon(paths, patience):  # a command that was killed had started it
            return
        if time.monotonic() > end:
            raise Unreachable(other.cause, f"It accepts no connections. Its log tells why: {paths.log}")


def _start_own(paths: Paths, options: tuple[str, ...], patience: _StartPatience) -> Unreachable | None:
    """Start a controller with its log in the state directory. Return an error if another one has the lock."""
    from fgsched.system.nice import hold_low_descriptors

    with written(paths.log):
        descriptor = os.open(paths.log, _LOG_FLAGS, 0o600)
    try:
        hold_low_descriptors()
        read_end, write_end = os.pipe()
        child = _execute(write_end, descriptor, options)
    except OSError as error:
        cause = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        raise Unreachable(f"the controller cannot be started: {cause}") from None
    os.close(write_end)
    os.close(descriptor)
    with open(read_end, "rb") as pipe:
        try:
            _await_word(pipe.fileno(), paths, patience)
        except TimedOut:
            child.returncode = 0  # it continues to start
            raise
        line = pipe.readline()
    if not line:
        raise Unreachable(
            f"the controller did not start (exit {child.wait()})", f"Its log tells why: {paths.log}"
        )
    message = msgspec.json.decode(line)
    if "ready" in message:
        child.returncode = 0  # it outlives us
        return None
    child.wait()
    if message.get("already"):
        return Unreachable(message["cause"])
    raise BY_EXIT_CODE.get(message["exit"], OurFault)(message["cause"], message["remedy"])


def _await_word(pipe: int, paths: Paths, patience: _StartPatience) -> None:
    """Wait for the word of a controller that was started.

    It is left alone only after it has shown that it is starting: the next command would start another one.
    """
    while not select.select([pipe], [], [], _PAUSE)[0]:
        pid = starting(paths.refreshed(os.geteuid()).socket)
        if pid or patience.seconds_left:
            patience.look(pid)


def _execute(ready: int, log: int, options: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    """Execute a controller in its own session, so that no terminal interrupts it."""
    import subprocess  # only the command that starts a controller needs it

    from fgsched.system.preloading import put_aside

    return subprocess.Popen(
        [sys.executable, "-I", "-m", "fgsched.controller", str(ready), *options],
        pass_fds=[ready],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        env=put_aside(os.environ),
        start_new_session=True,
    )


def _start_outside(paths: Paths, options: tuple[str, ...], patience: _StartPatience) -> None:
    """Make the spawner start a controller that survives the job in which this process runs.

    It gets the variables, GPUs and limits of the last controller; nothing is inherited from the job.
    """
    from fgsched.launch.shepherds import ask_for_controller
    from fgsched.system.process import IN_A_JOB, spawner_outside

    spawner = spawner_outside(paths.run)
    if spawner is None or options or not ask_for_controller(spawner):
        raise Unreachable(IN_A_JOB, f"Start it from a login: {' '.join(('fgsched', 'start', *options))}")
    end = time.monotonic() + _STOP
    while not _accepts_soon(paths, patience):
        if time.monotonic() > end:
            why = f"the controller did not start within {_STOP:.0f} s"
            raise Unreachable(why, f"Its log tells why: {paths.log}")
        ask_for_controller(spawner)


def _accepts_soon(paths: Paths, patience: _StartPatience) -> bool:
    """Return whether a controller accepts requests within a second, or after its start if one is starting."""
    end = time.monotonic() + 1
    while time.monotonic() < end:
        patience.wait_while_starting()
        try:
            _dial(paths).close()
            return True
        except OSError:
            patience.spend(0)
    return False
