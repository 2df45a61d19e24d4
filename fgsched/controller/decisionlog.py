"""Log each decision as one line of `key=value`, after its commit.

A line has ids, names of users, GPUs, shares, exit codes and reasons. It never has a script, an environment,
an argument, a job's name or a path. Values that users choose are quoted, so that none can forge a line.
"""

import logging
import os
import re
import select
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from fgsched.domain.job import WHOLE, Job, Preemption
from fgsched.domain.states import JobState, Reason
from fgsched.lifecycle.transitions import reason_of

log = logging.getLogger(__name__)
ERROR, WARNING, INFO = 3, 4, 6  # levels as syslog(3) numbers them
LEVELS = {ERROR: "error", WARNING: "warning", INFO: "info"}
_KEPT = 4096  # lines in memory, for fgctl show log
_LONGEST = 200  # characters of a value
_PLAIN = re.compile(r"[A-Za-z0-9_.:@%+,-]+")
_PATHS = re.compile(r"""['"].*$|/.*(?=: )|/.*$""", re.DOTALL)
_NAMED = {'"': '\\"', "\\": "\\\\"}


class DecisionLine(NamedTuple):
    """One line, and the jobs that it is about."""

    at: float  # seconds since the epoch
    level: int
    text: str
    uid: int | None = None  # owner of the jobs; None: the line is about no job
    first: int = 0  # ids of the jobs
    last: int = 0
    array: int = 0

    def is_about(self, job: int) -> bool:
        """Return whether the line is about a job, or about a task of the array with this id."""
        return self.first <= job <= self.last or (job != 0 and job == self.array)


def value(text: str) -> str:
    """Format `text` as a value of a line: a plain word unchanged, any other text quoted and escaped."""
    return _quoted(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")


@lru_cache(maxsize=1024)
def _quoted(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    return f'"{"".join(_NAMED.get(char) or _shown(char) for char in text)}"'


def _shown(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def without_paths(text: str) -> str:
    """Return the text of an error without the paths and quoted values that it names."""
    return _PATHS.sub("…", text)


def fields(**values: object) -> str:
    """Format values as `key=value`, separated by blanks; None is omitted."""
    return " ".join(
        f"{key}={value(str(field_value))}" for key, field_value in values.items() if field_value is not None
    )


Decision = tuple[Job, Job, str] | tuple[Job, int, str] | tuple[str, Mapping[str, object], str]
Feed = Callable[[Sequence[Decision], float], None]


class DecisionLog:
    """Collects the decisions of a turn, and writes them once it is committed."""

    def __init__(self, write: Callable[[Sequence[DecisionLine]], None] = lambda lines: None) -> None:
        self._write = write
        self._unwritten: list[DecisionLine | tuple[Job, Job, str]] = []
        self.recent_lines: deque[DecisionLine] = deque(maxlen=_KEPT)
        self.requester = ""  # the user whose request is being carried out
        self.feed: Feed | None = None  # takes the decisions of each committed turn, if there are readers
        self._fed: list[Decision] = []

    def step(self, before: Job, after: Job) -> None:
        """Record a change of a job; `line_of` selects the changes that are logged."""
        self._unwritten.append((before, after, self.requester))
        if self.feed is not None:
            self._fed.append((before, after, self.requester))

    def note(self, event: str, *, level: int = INFO, **values: object) -> None:
        """Record a decision that is about no job."""
        self._unwritten.append(
            DecisionLine(0.0, level, fields(event=event, by=self.requester or None, **values))
        )
        if self.feed is not None:
            self._fed.append((event, values, self.requester))

    def submitted(self, first: Job, count: int) -> None:
        """Record the submission of jobs with consecutive ids, from that of `first`."""
        if self.feed is not None:
            self._fed.append((first, count, self.requester))
        text = f"{_subject(first)} event=submit" + (f" count={count}" if count > 1 else "")
        text += _by(self.requester if self.requester != first.user else "")
        self._unwritten.append(
            DecisionLine(0.0, INFO, text, first.uid, first.id, first.id + count - 1, first.array)
        )

    def drop(self) -> None:
        """Discard the recorded decisions, because the turn was rolled back."""
        self._unwritten.clear()
        self._fed.clear()

    def flush(self, now: float) -> None:
        """Write the recorded decisions after the commit of the turn. `now`: seconds since the epoch."""
        decisions, self._unwritten = self._unwritten, []
        if self.feed is not None:
            fed, self._fed = self._fed, []
            self.feed(fed, now)
        lines = [line for decision in decisions if (line := _line(decision, now)) is not None]
        if lines:
            self.recent_lines.extend(lines)
            self._write(lines)

    def lines(self, *, uid: int | None = None, job: int = 0) -> list[DecisionLine]:
        """Return the lines in memory: all, or those about the jobs of a user, or about one job or array."""
        return [
            line
            for line in self.recent_lines
            if (uid is None or line.uid == uid) and (not job or line.is_about(job))
        ]


def _line(decision: DecisionLine | tuple[Job, Job, str], now: float) -> DecisionLine | None:
    if isinstance(decision, DecisionLine):
        return DecisionLine(now, *decision[1:])
    try:
        return line_of(*decision, now)
    except Exception:
        log.exception("job %d: a decision cannot be logged", decision[1].id)
        return None


def line_of(before: Job, after: Job, by: str, now: float) -> DecisionLine | None:
    """Return the line about a job that changed; None if the change is no decision."""
    change = _changed(before, after)
    if change is None:
        return None
    level, text = change
    return DecisionLine(
        now, level, f"{_subject(after)} {text}{_by(by)}", after.uid, after.id, after.id, after.array
    )


def _subject(job: Job) -> str:
    task = "" if job.task is None else f" array={job.array} task={job.task}"
    return f"job={job.id}{task} user={value(job.user)}"


def _by(by: str) -> str:
    return f" by={value(by)}" if by else ""


def change_of(before: Job, after: Job) -> str:
    """Return what changed: "state" if that did, else the decision, such as "hold"; "" if it is none."""
    if after.state is not before.state:
        return "state"
    changes = (
        (after.held != before.held, "hold" if after.held else "release"),
        (after.cancelled_by is not None and before.cancelled_by is None, "cancel"),
        (bool(after.wish) and not before.wish, after.wish),
        (after.is_being_preempted and not before.is_being_preempted, "preempt"),
        (after.condemned is not before.condemned, "condemn"),
        (after.reason is Reason.DEPENDENCY_NEVER is not before.reason, "wait"),
        (bool(after.warning) and after.warning != before.warning, "warn"),
    )
    return next((change for is_so, change in changes if is_so), "")


def _changed(before: Job, after: Job) -> tuple[int, str] | None:
    """Return level and text of a change."""
    change = change_of(before, after)
    match change:
        case "":
            return None
        case "state":
            return _moved(before, after)
        case "hold":
            return INFO, f"event=hold held={after.held}"
        case "preempt":
            return INFO, _preempted(after.ending_preemption)
        case "condemn":
            return WARNING, f"event=condemn reason={after.condemned.value}"
        case "wait":
            return INFO, f"event=wait reason={after.reason.value}"
        case "warn":
            return WARNING, f"event=warn why={value(without_paths(after.warning))}"
    return INFO, f"event={change}"


def _moved(before: Job, after: Job) -> tuple[int, str] | None:
    """Return level and text of a change of state."""
    match before.state, after.state:
        case _, JobState.STARTING:
            return INFO, _started(after)
        case _, JobState.PENDING:
            return _returned(after)
        case _, JobState.SUSPENDED:
            return INFO, _preempted(after.suspending_preemption) or "event=suspend"
        case JobState.SUSPENDED, JobState.RUNNING:
            return INFO, "event=resume"
        case _, JobState.RUNNING:
            return None  # it was started
        case JobState.PENDING, _:
            return INFO, f"event=cancel{_because(after)}"
        case JobState.COMPLETING, state if state is before.outcome:
            return None  # its end has a line
    return _ended(after)


def _because(job: Job) -> str:
    """Return the reason of an end; a job whose GPUs are not clean yet has that of its end."""
    reason = reason_of(job) if job.reason is Reason.GPU_CLEANING else job.reason
    return "" if reason is Reason.NONE else f" reason={reason.value}"


def _started(job: Job) -> str:
    text = f"event=start attempt={job.attempt}"
    if not job.holds:
        return f"{text} cpus={job.request.demand.cpus}"
    gpus = ",".join([str(hold.gpu) for hold in job.holds])
    return f"{text} gpu={gpus} share={job.holds[0].share / WHOLE:g}"


def _ended(job: Job) -> tuple[int, str]:
    if job.reason is Reason.LAUNCH_FAILURE:
        why = without_paths(job.ended.detail if job.ended else "")
        return WARNING, f"event=refuse-launch attempt={job.attempt} why={value(why)}"
    outcome = job.outcome or job.state
    result = "requeue=yes" if outcome is JobState.PENDING else f"state={outcome.value}"
    text = f"event=end {result} attempt={job.attempt}"
    if (ended := job.ended) is not None:
        text += f" signal={ended.signal}" if ended.signal else f" exit={ended.exit_code}"
        text += f" cpu={ended.cpu_seconds:.2f} max_rss={ended.max_rss} gpu_peak={ended.gpu_peak}"
    if job.started_at is not None and job.ended_at is not None:
        text += f" elapsed={job.ended_at - job.started_at:.2f}"
    return (WARNING if job.reason is Reason.INTERNAL_ERROR else INFO), text + _because(job)


def _returned(job: Job) -> tuple[int, str]:
    """Describe a job that is back in the queue."""
    if job.reason is Reason.HOST_SHORTAGE:
        why = value(without_paths(job.warning))
        return WARNING, f"event=refuse-launch attempt={job.attempt} retry=yes why={why}"
    return INFO, f"event=requeued attempt={job.attempt}{_because(job)}"


def _preempted(preemption: Preemption | None) -> str:
    if preemption is None:
        return ""
    return f"event=preempt for={preemption.by} mode={preemption.mode} grace={preemption.grace}"


def text_of(lines: Iterable[DecisionLine]) -> str:
    """Return lines as a log file has them, without their times. For tests and tools."""
    return "".join(f"{LEVELS[line.level]} {line.text}\n" for line in lines)


# -- where the log goes ----------------------------------------------------------------------------
#
# A file line is `2026-11-22T15:30:01.123+01:00 info job=12 …`. The journal gets `<6>job=12 …`: the level in
# the form of sd-daemon(3), without a time. Errors of this module never stop the controller.


MOST = 8 << 20  # bytes of the file; the one before is kept as well
_OPEN = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_OWN = os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
Prefix = Callable[[float, int], str]  # (seconds since the epoch, level) -> prefix of a line


def dated(at: float, level: int) -> str:
    """Return time and level of a line, in the time zone of the host."""
    text, zone = _second(int(at))
    return f"{text}.{int(at % 1 * 1000):03d}{zone} {LEVELS[level]} "


@lru_cache(maxsize=2)  # most lines have the second of the line before
def _second(at: int) -> tuple[str, str]:
    now = time.localtime(at)
    zone = time.strftime("%z", now)
    return time.strftime("%Y-%m-%dT%H:%M:%S", now), f"{zone[:3]}:{zone[3:]}"


def leveled(at: float, level: int) -> str:
    """Return the level of a line as the journal reads it."""
    return f"<{level}>"


class LineFormatter(logging.Formatter):
    """Formats messages of `logging` as lines.

    The lines of a traceback are indented to distinguish them from decisions.
    """

    def __init__(self, prefix: Prefix) -> None:
        super().__init__()
        self.prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        level = next((name for name in (ERROR, WARNING) if record.levelno >= _NUMBERS[name]), INFO)
        prefix = self.prefix(record.created, level)
        first, *more_lines = super().format(record).split("\n")
        return "\n".join([prefix + _safe(first), *(f"{prefix}  | {_safe(line)}" for line in more_lines)])


_NUMBERS = {ERROR: logging.ERROR, WARNING: logging.WARNING}


def _safe(text: str) -> str:
    return "".join(char if char.isprintable() or char == "\t" else repr(char)[1:-1] for char in text)


class LogHandler(logging.Handler):
    """Write records to a descriptor without blocking; drop lines that a full pipe or terminal refuses."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._is_torn = False  # the last write ended within a line
        self._dropped = 0  # dropped lines that were not reported yet

    def emit(self, record: logging.LogRecord) -> None:
        self.put(self.format(record))

    def put(self, text: str) -> None:
        """Write lines. Lines that cannot be written are lost, so that the log never stops the controller."""
        with suppress(OSError):
            self.append(text)

    def append(self, text: str) -> None:
        """Write lines. Raises OSError if they cannot be written."""
        self._check_descriptor()
        data = text.encode(errors="backslashreplace") + b"\n"
        if stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            self._write(data)
        else:
            self._offer(data)

    def _write(self, data: bytes) -> None:
        if self._is_torn:
            data = b"\n" + data
        while data:
            count = os.write(self._descriptor, data)
            self._is_torn = not data[:count].endswith(b"\n")
            data = data[count:]

    def _offer(self, data: bytes) -> None:
        """Write lines without blocking; count the lines that do not fit."""
        with _unblocked(self._descriptor) as descriptor:
            if self._dropped:
                lines = "line of the log was" if self._dropped == 1 else "lines of the log were"
                note = f"{_prefix_of(self)(time.time(), WARNING)}{self._dropped} {lines} dropped\n"
                if self._write_whole_lines(descriptor, note.encode()):
                    self._dropped += data.count(b"\n")
                    return
                self._dropped = 0
            self._dropped = self._write_whole_lines(descriptor, data)

    def _write_whole_lines(self, descriptor: int, data: bytes) -> int:
        """Write whole lines without blocking. Return the number of lines that were not written."""
        if self._is_torn:
            data = b"\n" + data
        at = 0
        with suppress(BlockingIOError):
            while at < len(data) and _is_writable(descriptor):
                end = data.rfind(b"\n", at, at + select.PIPE_BUF) + 1 or at + select.PIPE_BUF
                at += os.write(descriptor, data[at:end])
                self._is_torn = data[at - 1 : at] != b"\n"
        return data.count(b"\n", at) - data.startswith(b"\n", at)  # only the end of a line is no line

    def _check_descriptor(self) -> None:
        """Make sure of the descriptor before each write."""


class LogFile(LogHandler):
    """Write to the log file, and reopen it if it was moved or removed."""

    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__(descriptor)
        self._path = path

    def _check_descriptor(self) -> None:
        opened = os.fstat(self._descriptor)
        try:
            status = self._path.lstat()
        except OSError:
            self._reopen()
            return
        if not os.path.samestat(opened, status):
            self._reopen()
        elif status.st_size >= MOST:
            with suppress(OSError):  # if it cannot be moved, it grows
                os.rename(self._path, f"{self._path}.1")
                self._reopen()

    def _reopen(self) -> None:
        """Reopen the file; keep the old descriptor if that fails."""
        with suppress(OSError):
            fresh = os.open(self._path, _OPEN, 0o600)
            if stat.S_ISREG(os.fstat(fresh).st_mode):
                os.dup2(fresh, self._descriptor)
                self._is_torn = False
            os.close(fresh)


@contextmanager
def _unblocked(descriptor: int) -> Iterator[int]:
    """Return a non-blocking descriptor of the same pipe or terminal; the same one if that fails.

    The present descriptor is shared with other processes, which do not expect O_NONBLOCK. Without it, a
    terminal may block although it was writable.
    """
    unblocked = None
    with suppress(OSError):
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode) or os.isatty(descriptor):
            unblocked = os.open(f"/proc/self/fd/{descriptor}", _OWN)
    try:
        yield descriptor if unblocked is None else unblocked
    finally:
        if unblocked is not None:
            os.close(unblocked)


def _is_writable(descriptor: int) -> bool:
    """Return whether a write of PIPE_BUF bytes does not block, or fails."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


def handler(path: Path, environ: Mapping[str, str], descriptor: int = 2) -> LogHandler:
    """Return the handler for a descriptor: for the journal, for the log file, or for any other file."""
    with suppress(OSError):
        status = os.fstat(descriptor)
        if environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}":
            return _formatting(LogHandler(descriptor), leveled)
        if os.path.samestat(status, path.lstat()):
            return _formatting(LogFile(path, descriptor), dated)
    return _formatting(LogHandler(descriptor), dated)


def _formatting(handler: LogHandler, prefix: Prefix) -> LogHandler:
    handler.setFormatter(LineFormatter(prefix))
    return handler


def writer(handlers: Sequence[logging.Handler]) -> Callable[[Sequence[DecisionLine]], None]:
    """Return the function that writes the lines of a turn, in one write, to each handler of the log."""
    writers = [(handler, _prefix_of(handler)) for handler in handlers if isinstance(handler, LogHandler)]

    def write(lines: Sequence[DecisionLine]) -> None:
        for log_handler, prefix in writers:
            log_handler.put("\n".join([prefix(line.at, line.level) + line.text for line in lines]))

    return write


def _prefix_of(handler: LogHandler) -> Prefix:
    return handler.formatter.prefix if isinstance(handler.formatter, LineFormatter) else dated


def decision_log() -> DecisionLog:
    """Return a log of decisions that is written where `logging` writes."""
    return DecisionLog(writer(logging.getLogger().handlers))
