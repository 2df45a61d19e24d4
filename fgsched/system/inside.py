"""Detect that this process runs inside a job, and find the spawner that can start a controller outside it.

A controller started inside a job would end with the job and see only the GPUs of the job.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fgsched.system.process import Identity, identify, parents, started_with
from fgsched.system.supervisors import is_ours, is_supervisor

IN_A_JOB = "a controller cannot be started from inside a job: it would end with the job"
_JOB_DIR = "FG_JOB_DIR"


def is_inside_job(environ: Mapping[str, str]) -> bool:
    """Return whether this process runs inside a job.

    True if an ancestor is a shepherd or spawner of any user, or if the directory FG_JOB_DIR exists.
    """
    job_dir = environ.get(_JOB_DIR, "")
    return any(map(is_supervisor, _ancestors())) or bool(job_dir and os.path.isdir(job_dir))


def spawner_outside(run: Path) -> Identity | None:
    """Return the spawner of the controllers of a run directory if this process runs in one of their jobs."""
    job_pids: list[int] = [os.getpid()]
    for pid in _ancestors():
        if not is_supervisor(pid):
            job_pids.append(pid)
        elif _is_spawner(pid):
            if _are_of(run, job_pids):
                return identify(pid)
            job_pids = []
    return None


def _ancestors() -> Iterator[int]:
    parent_of, pid = parents(), os.getpid()
    while (pid := parent_of.get(pid, 0)) > 1:
        yield pid


def _is_spawner(pid: int) -> bool:
    """Return whether a process is a spawner; shepherds have the name of their job."""
    try:
        return is_ours(pid) and Path(f"/proc/{pid}/comm").read_text() == "fgspawn\n"
    except OSError:
        return False


def _are_of(run: Path, pids: Sequence[int]) -> bool:
    """Return whether one of the processes was started in a job of the run directory."""
    return any(started_with(pid, _JOB_DIR).startswith(f"{run}/") for pid in pids)
