"""How the kernel treats the controller: how many files it may have open, when it gets a processor."""

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fgsched.domain.errors import Refused

_AHEAD = 10  # steps of nice: beside thirty busy jobs on a processor the controller then has a quarter of it
_SPARED = -500  # oom_score_adj, as in the unit of systemd
_OOM_SCORE = Path("/proc/self/oom_score_adj")
_GROUP = Path("/proc/self/autogroup")  # where each session is a group, what counts is the group's


@dataclass(frozen=True, slots=True)
class _Least:
    """What the controller needs of a limit that is inherited from the shell that starts it."""

    limit: int
    least: int
    name: str
    shown: str


_LEASTS = (
    _Least(resource.RLIMIT_CPU, 3600, "CPU time (ulimit -t)", "3600 s"),
    _Least(resource.RLIMIT_NOFILE, 256, "open files (ulimit -n)", "256"),
    _Least(resource.RLIMIT_AS, 1 << 30, "virtual memory (ulimit -v)", "1 GiB"),
    _Least(resource.RLIMIT_DATA, 256 << 20, "data (ulimit -d)", "256 MiB"),
    _Least(resource.RLIMIT_FSIZE, 1 << 30, "file size (ulimit -f)", "1 GiB"),
)
_RAISED = (*(one.limit for one in _LEASTS), resource.RLIMIT_NPROC)
_KEPT_SIGNALS = {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGPIPE,
    signal.SIGXFSZ,
}  # Python ignores the last two
_STACK = 8 << 20  # bytes: more changes where the kernel maps what a process loads


def raise_limits() -> None:
    """The controller lives long and serves many; jobs get the limits of their submission."""
    refuse_unfit_limits()
    for limit in _RAISED:
        soft, hard = resource.getrlimit(limit)
        if soft != hard:
            resource.setrlimit(limit, (hard, hard))
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if 0 <= soft < _STACK:
        most = _STACK if hard == resource.RLIM_INFINITY else min(hard, _STACK)
        resource.setrlimit(resource.RLIMIT_STACK, (most, hard))


def refuse_unfit_limits() -> None:
    """Hard limits under which a controller would be killed, or could not do its work."""
    for one in _LEASTS:
        _, hard = resource.getrlimit(one.limit)
        if hard != resource.RLIM_INFINITY and hard < one.least:
            raise Refused(
                f"the controller cannot run with the hard limit of {one.name} of this shell: "
                f"{hard}, and it needs {one.shown}",
                "Start it from a shell without that limit: fgsched start",
            )


def hold_low_descriptors() -> None:
    """Have descriptors 0 to 2: else what is opened next is taken for a standard stream by what is started."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def reset_signals() -> None:
    """Nothing that whoever started this process ignores or blocks is ignored or blocked here."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - _KEPT_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)


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
