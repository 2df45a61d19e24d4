"""Commands to the shepherd of a job that runs: signals with a value."""

import os
import signal

import fgshim.region as region

from fgsched.jobs.lifecycle import Shepherd
from fgsched.system.process import Identity, open_pidfd

CANCEL, DELIVER, SUSPEND, RESUME, PREEMPT, LIMIT = 1, 2, 3, 4, 5, 6  # verbs of a command
_CONTROLLER = 8  # to a spawner, about no job
DUE_TO_REQUEUE, DUE_TO_PREEMPTION = 1, 2  # what a cancel says of itself in the job's errors
COMMAND_SIGNAL = signal.SIGRTMIN + 1


def value_of(verb: int, *, number: int = 0, target: int = 0, seconds: int = 0) -> int:
    """What a command carries: cancel, or deliver a signal to all processes, the shell or its children."""
    return verb | number << 8 | target << 16 | seconds << 18


def give(pidfd: int, job: int, attempt: int, value: int) -> bool:
    """Tell a shepherd; False when it is gone, or its user has as many signals waiting as the kernel allows.

    The attempt is marked, because the shepherd may have another job by the time it hears of this one.
    """
    mark = (job + (attempt << 24)) & 0xFFFF_FFFF
    try:
        region.queue_signal(pidfd, COMMAND_SIGNAL, mark << 32 | value)
    except (ProcessLookupError, BlockingIOError):
        return False
    return True


def give_to(supervisor: Identity, job: int, attempt: int, value: int) -> bool:
    """The same to a process that is not followed."""
    pidfd = open_pidfd(supervisor)
    if pidfd is None:
        return False
    try:
        return give(pidfd, job, attempt, value)
    finally:
        os.close(pidfd)


def ask_for_controller(spawner: Identity) -> bool:
    """Have a spawner start a controller as its own was started; False when it is gone or cannot hear."""
    return give_to(spawner, 0, 0, _CONTROLLER)


def watch(shepherd: Shepherd) -> int | None:
    """A pidfd of a shepherd; None if it is gone."""
    return open_pidfd(Identity(shepherd.pid, shepherd.start, shepherd.boot))
