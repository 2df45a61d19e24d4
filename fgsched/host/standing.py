"""How the kernel treats the controller: how many files it may have open, when it gets a processor."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_AHEAD = 10  # steps of nice: beside thirty busy jobs on a processor the controller then has a quarter of it
_SPARED = -500  # oom_score_adj, as in the unit of systemd
_OOM_SCORE = Path("/proc/self/oom_score_adj")
_GROUP = Path("/proc/self/autogroup")  # where each session is a group, what counts is the group's


def raise_descriptor_limit() -> None:
    """A pidfd for each running job; jobs get the limits of their submission."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def spare() -> None:
    """Be killed after all jobs when memory runs out, where this process may decide that.

    The spawner and the shepherds inherit it. Jobs do not.
    """
    with suppress(OSError, ValueError):
        if int(_OOM_SCORE.read_text()) > _SPARED:
            _OOM_SCORE.write_text(str(_SPARED))


@contextmanager
def before_jobs() -> Iterator[None]:
    """Be served before jobs: while the controller waits for its turn among them, cards stand idle.

    Only root may; for anybody else nothing changes. What was forked before, such as the spawner
    and all jobs after it, keeps its own priority.
    """
    usual, of_group = os.getpriority(os.PRIO_PROCESS, 0), _nice_of_group()
    _be(usual - _AHEAD, of_group - _AHEAD)
    try:
        yield
    finally:
        _be(usual, of_group)


def _nice_of_group() -> int:
    """Of the session, which has a value of its own: "/autogroup-25 nice 0"."""
    try:
        return int(_GROUP.read_text().rpartition(" ")[2])
    except (OSError, ValueError):
        return 0


def _be(nice: int, of_group: int) -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    with suppress(OSError):
        _GROUP.write_text(str(max(-20, of_group)))
