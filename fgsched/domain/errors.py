"""Errors that a person can act on: cause, remedy and exit code."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every fgsched command."""

    DONE = 0
    REFUSED = 1  # by the scheduler: limits, policy, an impossible request
    USAGE = 2  # wrong usage, or a script that cannot be accepted
    NO_SUCH_JOB = 3
    NOT_PERMITTED = 4
    UNREACHABLE = 5  # the controller is not reachable, or is running already
    STORAGE = 6  # full or broken
    INTERNAL = 7  # our own bug


class FgschedError(Exception):
    """An error that the user or the administrator can act on: a cause, and a remedy if there is one."""

    exit_code = Exit.REFUSED

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(f"{cause}\n{remedy}" if remedy else cause)
        self.cause = cause
        self.remedy = remedy
        self.job: int | None = None  # index in a submission; None: the error is about no single job


class Refused(FgschedError):
    """The request is well formed, but the scheduler refuses it."""


class BadUsage(FgschedError):
    """An option, a value or a script is malformed."""

    exit_code = Exit.USAGE


class NoSuchJob(FgschedError):
    """No job has this id."""

    exit_code = Exit.NO_SUCH_JOB


class NotPermitted(FgschedError):
    """The caller has no permission for this."""

    exit_code = Exit.NOT_PERMITTED


class Unreachable(FgschedError):
    """The controller does not answer, cannot be reached, or cannot start in this place."""

    exit_code = Exit.UNREACHABLE


class AlreadyRunning(Unreachable):
    """Another controller is running in this place: commands wait for its answer."""


class Busy(Unreachable):
    """The controller accepts no more requests of this user now.

    Nothing was changed; retry in `after` seconds.
    """

    def __init__(self, cause: str, remedy: str = "", *, after: float = 0.5) -> None:
        super().__init__(cause, remedy)
        self.after = after


class StorageError(FgschedError):
    """The queue file is unusable or cannot be written."""

    exit_code = Exit.STORAGE


class OurFault(FgschedError):
    """An internal error of fgsched, as reported by the other end of the socket."""

    exit_code = Exit.INTERNAL


_KINDS = (Refused, BadUsage, NoSuchJob, NotPermitted, Unreachable, StorageError, OurFault)
BY_EXIT_CODE: dict[int, type[FgschedError]] = {kind.exit_code: kind for kind in _KINDS}
