"""Whether this process runs inside a job, and which spawner can start a controller outside of it.

A controller that a job starts would end with the job, and would see the cards of the job only.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fgsched.system.process import Identity, identify, parents, started_with
from fgsched.system.supervisors import is_ours, is_supervisor

IN_A_JOB = "a controller cannot be started from inside a job: it would end with the job"
_JOB_DIR = "FG_JOB_DIR"


def is_inside_job(environ: Mapping[str, str]) -> bool:
    """Whether a shepherd or spawner, of any user, is above this process, or its job's directory is there."""
    job_dir = environ.get(_JOB_DIR, "")
    return any(map(is_supervisor, _ancestors())) or bool(job_dir and os.path.isdir(job_dir))


def spawner_outside(run: Path) -> Identity | None:
    """The spawner of the controllers of this run directory, if this process runs in a job of theirs."""
    below: list[int] = [os.getpid()]
    for pid in _ancestors():
        if not is_supervisor(pid):
            below.append(pid)
        elif _is_spawner(pid):
            if _is_of(run, below):
                return identify(pid)
            below = []
    return None


def _ancestors() -> Iterator[int]:
    above, pid = parents(), os.getpid()
    while (pid := above.get(pid, 0)) > 1:
        yield pid


def _is_spawner(pid: int) -> bool:
    """Shepherds, which run the same program, are named after their jobs."""
    try:
        return is_ours(pid) and Path(f"/proc/{pid}/comm").read_text() == "fgspawn\n"
    except OSError:
        return False


def _is_of(run: Path, pids: Sequence[int]) -> bool:
    """Whether one of these processes was started in a job of this run directory."""
    return any(started_with(pid, _JOB_DIR).startswith(f"{run}/") for pid in pids)
