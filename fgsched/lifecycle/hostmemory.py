"""Describe the part of host memory in the end of a job, for every view of the job."""

from fgsched.domain.job import Ended
from fgsched.domain.states import JobState
from fgsched.domain.units import format_mebibytes

_KILL = 9
_NEAR = 0.9  # of the requested memory: from here on, a SIGKILL of unknown origin may be for memory


def kills_note(kills: int, asked: int) -> str:
    """Return what the kernel did to a job for host memory; "" if it killed none of it. `asked`: bytes."""
    if not kills:
        return ""
    number = "1 process" if kills == 1 else f"{kills} processes"
    of = (
        f"the job requested {format_mebibytes(asked)} (--mem)"
        if asked
        else "the job requested no amount (--mem)"
    )
    return f"the kernel killed {number} of this job for host memory: {of}"


def memory_note(state: JobState, ended: Ended, asked: int) -> str:
    """Return the part of host memory in the end of a job, known or probable; "" if it had none.

    Where jobs have no memory cgroup, kills are not counted. Then the largest process and the signal answer.

    Args:
        asked: bytes of host memory; 0: none were requested.
    """
    used, limit = format_mebibytes(ended.max_rss), format_mebibytes(asked)
    largest = f"its largest process had {used}" if ended.max_rss else "its processes were not measured"
    if ended.oom_kills:
        return f"{kills_note(ended.oom_kills, asked)}, {largest}"
    if not asked or not ended.max_rss:
        return ""
    was_killed = ended.signal == _KILL or ended.exit_code == 128 + _KILL
    if was_killed and state is JobState.FAILED and ended.max_rss >= _NEAR * asked:
        return (
            f"ended by SIGKILL, probably for host memory: {largest} of the {limit} that it requested (--mem),"
            " and no kill was counted"
        )
    if ended.max_rss > asked:
        return f"{largest} of host memory, more than the {limit} that it requested (--mem)"
    return ""
