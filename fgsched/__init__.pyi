from fgsched.domain.errors import FgschedError
from fgsched.python import calls
from fgsched.python.arrays import JobArray, as_completed, map
from fgsched.python.errors import (
    CallFailed,
    GpuOutOfMemory,
    HostFailed,
    HostOutOfMemory,
    JobCancelled,
    JobDied,
    JobError,
    NotPicklable,
    RemoteTraceback,
    ResultGone,
    ResultNotPicklable,
    SubmissionWarning,
    TimeLimitReached,
)
from fgsched.python.job import JobHandle as Job
from fgsched.python.job import Why, forget, job, jobs, submit
from fgsched.python.submission import options

__all__ = [
    "PROTOCOL",
    "CallFailed",
    "FgschedError",
    "GpuOutOfMemory",
    "HostFailed",
    "HostOutOfMemory",
    "Job",
    "JobArray",
    "JobCancelled",
    "JobDied",
    "JobError",
    "NotPicklable",
    "RemoteTraceback",
    "ResultGone",
    "ResultNotPicklable",
    "SubmissionWarning",
    "TimeLimitReached",
    "Why",
    "__version__",
    "as_completed",
    "calls",
    "forget",
    "job",
    "jobs",
    "map",
    "options",
    "submit",
]
__version__: str
PROTOCOL: int
