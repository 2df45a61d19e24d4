"""Compute the paths of a job's files from the job's record."""

import pwd
from functools import lru_cache

from fgsched.lifecycle.filenames import Values
from fgsched.lifecycle.launchspec import Files, files
from fgsched.protocol import JobInfo
from fgsched.views.display import host_name


def files_of(job: JobInfo) -> Files:
    """Return the input, output and error files of a job whose request the caller may see."""
    values = Values(
        job_id=job.id,
        name=job.request.name,
        user=job.user,
        home=_home(job.uid),
        host=host_name(),
        gpus=tuple(given.gpu for given in job.allocated),
        restarts=job.restarts,
        array=job.array or 0,
        task=job.task or 0,
    )
    return files(job.request, values)


@lru_cache(maxsize=1024)
def _home(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return "/"
