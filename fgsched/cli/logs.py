"""Print the controller's log: from files or the journal (`fgsched logs`), or from the controller's memory
(`fgctl show log`).
"""

import os
import re
import select
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fgsched.cli.command import output
from fgsched.client import Client
from fgsched.domain.errors import BadUsage, NoSuchJob, NotPermitted, Refused
from fgsched.domain.text import shown
from fgsched.protocol import LogLine, ShowLog
from fgsched.system.paths import Paths
from fgsched.views import display
from fgsched.views.choices import ids
from fgsched.views.display import shown_time

if TYPE_CHECKING:
    from fgsched.system.inotify import Inotify

_UNIT = "fgsched.service"
_PAUSE = 0.5  # seconds between two polls of a file whose directory cannot be watched
_BACK = 10  # lines that --follow begins with
_MODIFY, _CREATE, _MOVED_TO = 0x2, 0x100, 0x80  # inotify(7)
_ABOUT = re.compile(  # time and level, or the journal's prefix; then the job
    r"\S+ (?:info|warning|error|\S+ \S+:) job=(?P<job>\d+)(?: array=(?P<array>\d+) task=\d+)?"
    r' user=(?:"(?:[^"\\]|\\.)*"|\S+)(?: event=submit count=(?P<count>\d+))?'
)


def is_about(line: str, job: int) -> bool:
    """Return whether a line of the log is about a job, or about a task of the array with this id."""
    match = _ABOUT.match(line)
    if match is None:
        return False
    first, count = int(match["job"]), int(match["count"] or 1)
    return first <= job < first + count or match["array"] == str(job)


def show(paths: Paths, *, job: int = 0, lines: int | None = None, follow: bool = False) -> None:
    """Print the log, or its last `lines` lines; `job`: only the lines about it.

    Raises: NotPermitted, if the log is not the caller's to read; Refused, if there is none; NoSuchJob, if it
        has no line about the job.
    """

    def wanted(line: str) -> bool:
        return not job or is_about(line, job)

    if lines is None and follow:
        lines = _BACK
    try:
        if _is_in_the_journal(paths):
            _journal(wanted, lines, follow=follow)
            return
        with paths.log.open(errors="backslashreplace", newline="\n") as file:
            last_line = _print(_last(filter(wanted, _older(paths.log)), filter(wanted, file), lines))
            if job and not last_line and lines != 0 and not follow:
                raise NoSuchJob(f"{paths.log} has no line about job {job}", "It may be too old for the log.")
            if follow:
                _follow(paths.log, file, wanted)
    except PermissionError:
        raise NotPermitted(
            "the controller's log is for operators", "fgctl show log shows the lines about your jobs."
        ) from None
    except FileNotFoundError:
        raise Refused(f"there is no log in {paths.state}", "Start the controller: fgsched start") from None


def _is_in_the_journal(paths: Paths) -> bool:
    """Return whether the host's controller logs to the journal, since its standard error is no log file."""
    if paths.mode == "user":
        return False
    with suppress(OSError, ValueError):
        pid = int(paths.lock.read_text())
        return not os.path.samestat(os.stat(f"/proc/{pid}/fd/2"), paths.log.stat())
    return not paths.log.exists()


def _older(path: Path) -> Iterator[str]:
    with suppress(FileNotFoundError), open(f"{path}.1", errors="backslashreplace", newline="\n") as file:
        yield from file


def _last(older: Iterator[str], newer: Iterator[str], lines: int | None) -> Iterator[str]:
    both = (line for part in (older, newer) for line in part)
    return both if lines is None else iter(deque(both, lines))


def _print(lines: Iterator[str]) -> int:
    """Print lines; return their number."""
    out, count = output(), 0
    for count, line in enumerate(lines, 1):  # noqa: B007  it is used after the loop
        out.write(line)
    out.flush()
    return count


def _follow(path: Path, file: IO[str], wanted: Callable[[str], bool]) -> None:
    """Print new lines of the log, also after its rotation, until the command is interrupted."""
    wait = _waiting(path.parent)
    part = ""
    while True:
        while piece := file.readline():
            part += piece
            if part.endswith("\n"):
                _print(iter([part] if wanted(part) else []))
                part = ""
        with suppress(FileNotFoundError):
            if not os.path.samestat(path.stat(), os.fstat(file.fileno())):
                file.close()
                file = path.open(errors="backslashreplace", newline="\n")
                continue
        wait()


def _waiting(directory: Path) -> Callable[[], object]:
    """Return a function that waits for a change in a directory."""
    from fgsched.system.inotify import Inotify

    with suppress(OSError):
        watch = Inotify()
        if watch.watch(directory, _MODIFY | _CREATE | _MOVED_TO):
            return lambda: _changed(watch)
    return lambda: select.select([], [], [], _PAUSE)


def _changed(watch: "Inotify") -> None:
    select.select([watch], [], [])
    watch.read()


def _journal(wanted: Callable[[str], bool], lines: int | None, *, follow: bool) -> None:
    command = ["journalctl", f"--unit={_UNIT}", "--output=short-iso", "--no-pager", "--quiet"]
    command += ["--follow", "--no-tail"] if follow else []
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as reader:
            assert reader.stdout is not None
            if lines is None or follow:
                for line in filter(wanted, reader.stdout):
                    _print(iter([line]))
            else:
                _print(iter(deque(filter(wanted, reader.stdout), lines)))
    except FileNotFoundError:
        raise Refused("the log is in the journal, but this host has no journalctl") from None


# -- fgctl show log ---------------------------------------------------------------------------------


def asked(client: Client, words: Sequence[str]) -> list[LogLine]:
    """Return the lines in the controller's memory that the caller may see.

    Raises: BadUsage, if `words` are more than one id of a job or an array; NoSuchJob, if there is no line.
    """
    names = ids(words)
    if len(names) > 1 or not all(isinstance(name, int) for name in names):
        raise BadUsage(f"{shown(' '.join(words))} is not the id of one job or array")
    job = next((name for name in names if isinstance(name, int)), 0)
    log_lines = client.call(ShowLog(job=job)).lines
    if job and not log_lines:
        raise NoSuchJob(f"the controller has no line about job {job}", f"fgacct -j {job} shows an ended job.")
    return log_lines


def text(lines: Sequence[LogLine]) -> str:
    """Return lines for a person, with times in the person's time zone."""
    return "".join(f"{shown_time(line.at)} {line.level} {line.text}\n" for line in lines)


def document(lines: Sequence[LogLine]) -> str:
    """Return lines as one JSON object."""
    rows: list[dict[str, Any]] = [
        display.time_fields(log=line.at) | {"level": line.level, "text": line.text} for line in lines
    ]
    return display.document(log=rows)
