"""Set the controller's own resources: limits, descriptors, signals, CPU priority and OOM score."""

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from msgspec import Struct

from fgsched.domain.errors import Refused
from fgsched.lifecycle.launchspec import CpuBinding
from fgsched.system import earlysignals

_PRIORITY = 10  # nice steps: with thirty busy jobs on a CPU the controller still gets a quarter of it
_OOM_SCORE_ADJ = -500  # as in the systemd unit
_OOM_SCORE = Path("/proc/self/oom_score_adj")


_STATUS, _CAP_SYS_RESOURCE = Path("/proc/self/status"), 24
_AUTOGROUP = Path("/proc/self/autogroup")  # with autogroups the nice value of the session counts


class _Minimum(Struct, frozen=True):
    """The smallest hard limit with which the controller can run."""

    limit: int
    value: int  # in the kernel's unit: seconds, bytes, files or processes
    text: str


_MINIMUMS = (
    _Minimum(resource.RLIMIT_CPU, 3600, "3600 s"),
    _Minimum(resource.RLIMIT_NOFILE, 256, "256"),
    _Minimum(resource.RLIMIT_AS, 1 << 30, "1 GiB"),
    _Minimum(resource.RLIMIT_DATA, 256 << 20, "256 MiB"),
    _Minimum(resource.RLIMIT_FSIZE, 1 << 30, "1 GiB"),
    _Minimum(resource.RLIMIT_NPROC, 64, "64"),
)
_RAISED = tuple(minimum.limit for minimum in _MINIMUMS)
_KEPT_SIGNALS = {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGPIPE,
    signal.SIGXFSZ,
}  # Python ignores the last two
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30, "ppc64le": 273, "s390x": 282}  # system calls
_IOPRIO_WHO_PROCESS = 1
_STACK = 8 << 20  # bytes: a larger stack changes where the kernel maps libraries


def cpu_binding(setting: str) -> CpuBinding:
    """Return the CPUs to which jobs can be bound: the CPUs of the controller, which its jobs inherit.

    Args:
        setting: `cpu_binding` of the configuration, "near" or "none".
    """
    return CpuBinding(allowed=frozenset(os.sched_getaffinity(0)) if setting == "near" else frozenset())


def leave_bounds_of_command() -> None:
    """Undo what bound the command that starts a controller: `taskset`, `nice`, `chrt`, `ionice`, `choom`.

    All later jobs would inherit it. The kernel keeps the CPUs within the cpuset of the session. Only root can
    lower a nice value, or leave SCHED_IDLE with one; others keep them.
    """
    import ctypes  # commands, which only name limits, start without it

    with suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, min(0, os.getpriority(os.PRIO_PROCESS, 0)))
    if number := _IOPRIO_SET.get(os.uname().machine):
        ctypes.CDLL(None).syscall(
            number, _IOPRIO_WHO_PROCESS, 0, 0
        )  # no class: the I/O follows the nice value
    ctypes.CDLL(None).personality(0)  # setarch -R maps everything at fixed addresses
    _leave_oom_score()


def _leave_oom_score() -> None:
    """Lower a raised OOM score as far as the kernel permits: to that which root gave to the session."""
    for score in range(0, int(_OOM_SCORE.read_text()), 100):
        with suppress(OSError):
            _OOM_SCORE.write_text(str(score))
            return


@cache
def hard_limits() -> tuple[tuple[int, int], ...]:
    """Return (resource, hard limit) of this process where it has one that its children cannot exceed."""
    if _may_raise_limits():
        return ()
    numbers = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
    hard = [(number, resource.getrlimit(number)[1]) for number in numbers]
    return tuple((number, limit) for number, limit in hard if limit != resource.RLIM_INFINITY)


def _may_raise_limits() -> bool:
    """Return whether this process can raise hard limits (CAP_SYS_RESOURCE)."""
    status = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return bool(int(status["CapEff"], 16) >> _CAP_SYS_RESOURCE & 1)


def raise_limits() -> None:
    """Raise the soft limits of this process to the hard limits; jobs get the limits of their submission.

    Raises:
        Refused: a hard limit is too low for the controller.
    """
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
    """Check the hard limits of this process.

    Raises:
        Refused: a hard limit is so low that a controller would be killed or could not work.
    """
    for minimum in _MINIMUMS:
        _, hard = resource.getrlimit(minimum.limit)
        if hard != resource.RLIM_INFINITY and hard < minimum.value:
            raise Refused(
                f"the controller cannot run with the hard limit of {name_of(minimum.limit)} of this shell: "
                f"{hard}, and it needs {minimum.text}",
                "Start it from a shell without that limit: fgsched start",
            )


def hold_low_descriptors() -> None:
    """Open /dev/null as descriptors 0 to 2 where they are closed.

    A file that is opened with such a number would become a standard stream of a child process.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def reset_signals() -> None:
    """Restore the default actions of all signals and unblock them, because a parent may have changed them.

    The signals that a controller obeys once it has started are kept until then.
    """
    for number in signal.valid_signals() - _KEPT_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    earlysignals.keep()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def lower_oom_score() -> None:
    """Make the kernel kill jobs before this process when memory runs out; needs root, else does nothing.

    The spawner and the shepherds inherit the score. Jobs do not.
    """
    with suppress(OSError, ValueError):
        if int(_OOM_SCORE.read_text()) > _OOM_SCORE_ADJ:
            _OOM_SCORE.write_text(str(_OOM_SCORE_ADJ))


@contextmanager
def before_jobs() -> Iterator[None]:
    """Raise the CPU priority above that of jobs, because GPUs idle while the controller waits for a CPU.

    Needs root, else does nothing. Processes that were forked earlier keep their priority: the spawner, and
    therefore all jobs.
    """
    nice, group_nice = os.getpriority(os.PRIO_PROCESS, 0), _autogroup_nice()
    _set_nice(nice - _PRIORITY, group_nice - _PRIORITY)
    try:
        yield
    finally:
        _set_nice(nice, group_nice)


def _autogroup_nice() -> int:
    """Return the nice value of the session, from a text such as "/autogroup-25 nice 0"."""
    try:
        return int(_AUTOGROUP.read_text().rpartition(" ")[2])
    except (OSError, ValueError):
        return 0


def _set_nice(nice: int, group_nice: int) -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    with suppress(OSError):
        _AUTOGROUP.write_text(str(max(-20, group_nice)))


# -- the names of resource limits ----------------------------------------------------------------------


_NAMES = {
    resource.RLIMIT_AS: "virtual memory (ulimit -v)",
    resource.RLIMIT_CORE: "core files (ulimit -c)",
    resource.RLIMIT_CPU: "CPU time (ulimit -t)",
    resource.RLIMIT_DATA: "data (ulimit -d)",
    resource.RLIMIT_FSIZE: "file size (ulimit -f)",
    resource.RLIMIT_MEMLOCK: "locked memory (ulimit -l)",
    resource.RLIMIT_NOFILE: "open files (ulimit -n)",
    resource.RLIMIT_NPROC: "processes of the user (ulimit -u)",
    resource.RLIMIT_STACK: "stack (ulimit -s)",
}


def name_of(limit: int) -> str:
    """Return the name of a resource limit, with the option of ulimit."""
    return _NAMES.get(limit, f"resource limit {limit}")
