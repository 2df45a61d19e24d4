"""What `result()` raises, and what refuses a call at its submission. All of them can be pickled."""

from concurrent.futures import CancelledError
from typing import Any


class JobError(RuntimeError):
    """A job ended without a result. `job` is its id, `state` and `reason` are those of fgacct."""

    job: str = ""
    state: str = ""
    reason: str = ""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.__dict__.update(facts)


class CallFailed(JobError):
    """The function raised an error that cannot be read here, or a command ended with an exit code."""


class JobCancelled(JobError, CancelledError):
    """The job was cancelled; `by` is the uid of the user who cancelled it."""

    by: int | None = None


class TimeLimitReached(JobError):
    """The job reached its time limit: `limit` and `used` are in seconds."""

    limit: int = 0
    used: float = 0.0


class GpuOutOfMemory(JobError):
    """The job's share of GPU memory did not suffice: `asked`, `held` and `limit` are in bytes.

    `others` lists what else was on the GPU as (name, bytes).
    """

    asked: int = 0
    held: int = 0
    limit: int = 0
    others: tuple[tuple[str, int], ...] = ()


class HostOutOfMemory(JobError):
    """The job needed more host memory than its limit or the host has."""


class JobDied(JobError):
    """The process of the job ended before it wrote a result: by `signal`, or with `exit_code`."""

    signal: int = 0
    exit_code: int = 0


class HostFailed(JobError):
    """The host restarted while the job ran, and the job may not run again."""


class ResultNotPicklable(JobError):
    """The function returned a value that cannot be pickled."""


class ResultGone(JobError):
    """The result was removed: it was forgotten, or older than it was to be kept."""


class RemoteTraceback(Exception):
    """The traceback of an exception in the job, as the cause of the exception."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class NotPicklable(TypeError):
    """A part of a call cannot be sent to a job; the message has the path to it."""


class SubmissionWarning(UserWarning):
    """A warning about a submission, such as fgsub prints."""
