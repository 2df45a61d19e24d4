"""Follow the shepherds of running jobs, and send them commands as signals with a value."""

import os
import signal
from collections.abc import Callable
from functools import partial

import fgshim.region as region

from fgsched.lifecycle.transitions import Shepherd
from fgsched.system.process import Identity, Watch, open_pidfd

# -- commands -----------------------------------------------------------------------------------------

CANCEL, DELIVER, SUSPEND, RESUME, PREEMPT, LIMIT = 1, 2, 3, 4, 5, 6
_START_CONTROLLER = 8  # to a spawner, not about a job
_JOIN = 9
FOR_REQUEUE, FOR_PREEMPTION = 1, 2  # reason of a CANCEL, for the job's standard error
_COMMAND_SIGNAL = signal.SIGRTMIN + 1


def encode(verb: int, *, number: int = 0, target: int = 0, seconds: int = 0) -> int:
    """Return the value of a command.

    Args:
        number: the signal to deliver, or the reason of a CANCEL.
        target: 0 for all processes of the job, 1 for its shell, 2 for the children of the shell.
        seconds: grace period of a PREEMPT, at most 7200 s.
    """
    return verb | number << 8 | target << 16 | seconds << 18


def encode_limit(seconds: int) -> int:
    """Return the value of a LIMIT command with a new time limit in seconds."""
    return LIMIT | seconds >> 24 | (seconds & 0xFF_FFFF) << 8


def encode_join(caller: int) -> int:
    """Return the value of a command that starts an agent; `caller` is in the name of the caller's socket."""
    return _JOIN | caller << 8


def send(pidfd: int, job: int, attempt: int, value: int) -> bool:
    """Send a command to a shepherd; return False if it has exited or its queue of signals is full.

    The value names the attempt, because the shepherd may run another job when it receives the command.
    """
    mark = (job + (attempt << 24)) & 0xFFFF_FFFF
    try:
        region.queue_signal(pidfd, _COMMAND_SIGNAL, mark << 32 | value)
    except (ProcessLookupError, BlockingIOError):
        return False
    return True


def send_to(supervisor: Identity, job: int, attempt: int, value: int) -> bool:
    """Send a command to a supervisor that is not followed; return False if it cannot be delivered."""
    pidfd = open_pidfd(supervisor)
    if pidfd is None:
        return False
    try:
        return send(pidfd, job, attempt, value)
    finally:
        os.close(pidfd)


def ask_for_controller(spawner: Identity) -> bool:
    """Make a spawner start a controller the way its own was started; return False if it cannot be reached."""
    return send_to(spawner, 0, 0, _START_CONTROLLER)


# -- watching -----------------------------------------------------------------------------------------


class Following:
    """The followed shepherds, with one pidfd each: a shepherd runs many short jobs in succession."""

    def __init__(self, watch: Watch, on_exit: Callable[[int], None]) -> None:
        """Create it without shepherds.

        Args:
            watch: called with a pidfd and the function to call when the process has exited.
            on_exit: called with the id of each followed job whose shepherd has exited.
        """
        self._watch, self._on_exit = watch, on_exit
        self._pidfds: dict[Shepherd, int] = {}
        self._shepherds: dict[int, Shepherd] = {}  # by job

    def follow(self, job: int, shepherd: Shepherd) -> None:
        """Follow the shepherd of a job; if it has already exited, `gone` is called at once."""
        if shepherd not in self._pidfds:
            pidfd = open_pidfd(Identity(shepherd.pid, shepherd.start, shepherd.boot))
            if pidfd is None:
                self._on_exit(job)
                return
            self._pidfds[shepherd] = pidfd
            self._watch(pidfd, partial(self._exited, shepherd))
        self._shepherds[job] = shepherd

    def pidfd(self, job: int) -> int | None:
        """Return the pidfd of the shepherd of a job; None if it is not followed."""
        shepherd = self._shepherds.get(job)
        return None if shepherd is None else self._pidfds.get(shepherd)

    def leave(self, job: int) -> None:
        """Stop following for a job: its shepherd may exit or run another job."""
        self._shepherds.pop(job, None)

    def _exited(self, shepherd: Shepherd) -> None:
        os.close(self._pidfds.pop(shepherd))
        for job in [job for job, its in self._shepherds.items() if its == shepherd]:
            self._on_exit(job)
