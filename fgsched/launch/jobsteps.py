"""Read the steps of a job from its directory, which belongs to the user of the job."""

import os
import stat
from pathlib import Path

from fgsched.domain.job import Job
from fgsched.domain.jobsteps import TABLE, JobStep, closed, read_table
from fgsched.system.process import Identity, is_alive
from fgsched.system.safeopen import open_beneath

NAME = "steps/table"  # in the directory of a job


def is_left(run: Path, job: Job) -> bool:
    """Return whether the directory of a job still exists; its shepherd leaves one that has steps."""
    return os.path.lexists(f"{run}/job/{job.id}.{job.attempt}")


def read(run: Path, job: Job) -> list[JobStep]:
    """Return the steps of a job by number; [] if there are none or they cannot be read.

    Links and mounts of the user are not followed, and a file that would block is not opened.
    """
    try:
        return read_table(_table(f"{run}/job/{job.id}.{job.attempt}", job.uid))
    except OSError:
        return []


def read_running(run: Path, job: Job, boot: str) -> list[JobStep]:
    """Return the steps of a running job by number; a step whose srun was killed has ended.

    Args:
        boot: id of the current boot.
    """
    return [
        step if not step.pid or is_alive(Identity(step.pid, step.start, boot)) else closed(step, None)
        for step in read(run, job)
    ]


def _table(directory: str, owner: int) -> bytes:
    """Return the table of a job's steps. Raises OSError."""
    if os.path.islink(directory):  # in system mode, into the space of the user
        directory = os.readlink(directory)
    above, name = os.path.split(directory)
    place = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        descriptor = open_beneath(f"{name}/{NAME}", place, os.O_RDONLY)
    finally:
        os.close(place)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != owner:
            return b""
        return os.pread(descriptor, TABLE, 0)
    finally:
        os.close(descriptor)
