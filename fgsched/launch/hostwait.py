"""Tell what a job waits for at its start or at its end: a file system or a device that does not answer."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fgsched.domain.job import Job
from fgsched.domain.states import JobState
from fgsched.domain.text import shown
from fgsched.lifecycle.transitions import Shepherd
from fgsched.system.process import children

_PATIENCE = 5.0  # seconds after the start for which nothing is said
_MOST_KNOWN = 10_000
_STARTS = {  # names that the child of a shepherd has one after the other (fgshim/spawner/child.pxi)
    "fg:tmpdir": "its TMPDIR",
    "fg:chdir": "its working directory",
    "fg:stdin": "its standard input",
    "fg:stderr": "its standard error",
    "fg:stdout": "its standard output",
    "fg:execute": "the interpreter of its script",
}
_KILLED = "fg:kill "  # name of a shepherd, before the pid of a process that SIGKILL has not ended
_EMPTIES = "fg:empty"  # name of a shepherd that waits until TMPDIR and the job's directory are empty


class HostWaits:
    """Finds running jobs that wait for the host. A script that was seen to execute is not examined again."""

    def __init__(self, shepherd: Callable[[Job], Shepherd | None]) -> None:
        self._shepherd = shepherd
        self._executed: set[tuple[int, int]] = set()  # (job, attempt)

    def of(self, job: Job, now: float) -> str:
        """Return what a job waits for; "" if its script runs, or has just started.

        `now`: seconds since the epoch.
        """
        if job.state not in (JobState.RUNNING, JobState.SUSPENDED):
            return ""
        shepherd = self._shepherd(job)
        return (_end(shepherd.pid) or self._start(job, shepherd.pid, now)) if shepherd else ""

    def _start(self, job: Job, shepherd: int, now: float) -> str:
        key = (job.id, job.attempt)
        is_new = job.started_at is None or now - job.started_at < _PATIENCE
        if is_new or key in self._executed:
            return ""
        for name in map(_name, children(shepherd)):
            if name in _STARTS:
                place = f"the file system of {_STARTS[name]}"
                return f"not executed yet: it waits for {place}, which does not answer"
        if len(self._executed) >= _MOST_KNOWN:
            self._executed.clear()
        self._executed.add(key)
        return ""


def _end(shepherd: int) -> str:
    name = _name(shepherd)
    if name.startswith(_KILLED):
        pid = int(name.removeprefix(_KILLED))
        return (
            f"its end waits for process {pid} ({shown(_name(pid))}), which SIGKILL has not ended: "
            "it waits for a file system or a device that does not answer"
        )
    return "its end waits until its TMPDIR and its job directory are empty" if name == _EMPTIES else ""


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return ""
