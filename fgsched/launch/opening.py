"""Tell what a job waits for whose script is not executed yet: a file system that does not answer."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fgsched.domain.job import Job
from fgsched.domain.states import JobState
from fgsched.lifecycle.transitions import Shepherd
from fgsched.system.process import children

_PATIENCE = 5.0  # seconds after the start for which nothing is said
_MOST_KNOWN = 10_000
_STEPS = {  # names that the child of a shepherd has one after the other (fgshim/spawner/child.pxi)
    "fg:tmpdir": "its TMPDIR",
    "fg:chdir": "its working directory",
    "fg:stdin": "its standard input",
    "fg:stderr": "its standard error",
    "fg:stdout": "its standard output",
    "fg:execute": "the interpreter of its script",
}


class Opening:
    """Finds jobs whose script is not executed yet. A job that was seen to execute is not examined again."""

    def __init__(self, shepherd: Callable[[Job], Shepherd | None]) -> None:
        self._shepherd = shepherd
        self._executed: set[tuple[int, int]] = set()  # (job, attempt)

    def of(self, job: Job, now: float) -> str:
        """Return what a running job waits for; "" if it executes its script, or has just started.

        `now`: seconds since the epoch.
        """
        key = (job.id, job.attempt)
        is_new = job.started_at is None or now - job.started_at < _PATIENCE
        if job.state is not JobState.RUNNING or is_new or key in self._executed:
            return ""
        step = self._step(job)
        if step:
            return f"not executed yet: it waits for the file system of {step}, which does not answer"
        if len(self._executed) >= _MOST_KNOWN:
            self._executed.clear()
        self._executed.add(key)
        return ""

    def _step(self, job: Job) -> str:
        shepherd = self._shepherd(job)
        names = map(_name, children(shepherd.pid)) if shepherd else iter(())
        return next((_STEPS[name] for name in names if name in _STEPS), "")


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return ""
