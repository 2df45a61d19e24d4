"""The shepherds of the jobs that run: one pidfd each, however many jobs it has one after the other."""

import os
from collections.abc import Callable
from functools import partial

from fgsched.jobs.lifecycle import Shepherd
from fgsched.launch import commands

Watch = Callable[[int, Callable[[], None]], None]  # (pidfd, what to do once its process has ended)


class Following:
    """Short jobs begin by the thousand, mostly with shepherds that are watched already."""

    def __init__(self, watch: Watch, gone: Callable[[int], None]) -> None:
        """`gone(job)`: its shepherd has ended."""
        self._watch, self._gone = watch, gone
        self._pidfds: dict[Shepherd, int] = {}
        self._of: dict[int, Shepherd] = {}  # of the jobs that are followed

    def follow(self, job: int, shepherd: Shepherd) -> None:
        """Tell when the shepherd of a job ends; at once if it has."""
        if shepherd not in self._pidfds:
            pidfd = commands.watch(shepherd)
            if pidfd is None:
                self._gone(job)
                return
            self._pidfds[shepherd] = pidfd
            self._watch(pidfd, partial(self._ended, shepherd))
        self._of[job] = shepherd

    def pidfd(self, job: int) -> int | None:
        """What means the shepherd of a job; None where it is not followed."""
        shepherd = self._of.get(job)
        return None if shepherd is None else self._pidfds.get(shepherd)

    def leave(self, job: int) -> None:
        """Its shepherd may end now, or have another job."""
        self._of.pop(job, None)

    def _ended(self, shepherd: Shepherd) -> None:
        os.close(self._pidfds.pop(shepherd))
        for job in [job for job, its in self._of.items() if its == shepherd]:
            self._gone(job)
