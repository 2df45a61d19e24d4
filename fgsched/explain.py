"""Why a job waits, in words with figures."""

from collections.abc import Callable

from fgsched.model import Reason
from fgsched.placement import Short
from fgsched.units import format_mebibytes, format_share

_SHORT_OF: dict[str, Callable[[Short], str]] = {
    "share": lambda s: f"needs {format_share(s.need)} of one GPU, {format_share(s.left)} left on GPU {s.gpu}",
    "cards": lambda s: f"needs {s.need} whole GPUs, {s.left} of {s.total} are free",
    "cpus": lambda s: f"needs {s.need} CPUs, {s.left} of {s.total} are free",
    "host memory": lambda s: (
        f"needs {format_mebibytes(s.need)} of host memory, {format_mebibytes(s.left)} of"
        f" {format_mebibytes(s.total)} is free"
    ),
}


def sentence(short: Short) -> str:
    """One sentence that tells the binding blocker of a waiting job."""
    card = f"GPU {short.gpu}"
    match short.reason:
        case Reason.GPU_MEMORY:
            return f"needs {format_mebibytes(short.need)}, {format_mebibytes(short.left)} left on {card}"
        case Reason.GPU_EXTERNAL_USE:
            return (
                f"needs {format_mebibytes(short.need)}, {format_mebibytes(short.left)} left on {card}, where"
                f" processes of no job hold {format_mebibytes(short.total)}"
            )
        case Reason.GPU_FRAGMENTED:
            return (
                f"needs {format_share(short.need)} of one GPU; {format_share(short.total)} is free in total,"
                f" at most {format_share(short.left)} on one card"
            )
        case Reason.GPU_DRAINED:
            return f"needs {short.need} GPU, {short.left} of {short.total} take jobs (fginfo -R tells why)"
        case Reason.GPU_MAX_JOBS:
            return f"{card} has room, and its {short.total} jobs are the most it may have"
        case Reason.GPU_CLEANING:
            return f"{card} still lists processes of a job that has ended"
        case Reason.RESERVED_FOR_TOP:
            return "would fit, and would delay the first job that does not"
        case Reason.RESOURCES if short.what in _SHORT_OF:
            return _SHORT_OF[short.what](short)
        case _:
            return short.reason.value
