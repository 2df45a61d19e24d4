"""Check whether a request could ever run on this host, and name the nearest request that could."""

from collections.abc import Sequence

from fgsched.domain.errors import BadUsage, Refused
from fgsched.domain.job import WHOLE, Demand, Gpu, HostLimits
from fgsched.domain.text import quoted
from fgsched.domain.units import format_mebibytes, format_share, neighbours
from fgsched.scheduling.placement import cost, is_of_type


def check(demand: Demand, gpus: Sequence[Gpu], limits: HostLimits) -> None:
    """Check that `demand` can run on the host; drained GPUs count as available.

    Raises:
        Refused: the demand can never run; the remedy is the nearest possible request.
    """
    _check_form(demand, limits)
    if demand.cpus > limits.cpus:
        raise Refused(
            f"requested configuration not available: {demand.cpus} CPUs of {limits.cpus}",
            f"Ask for at most --cpus-per-task={limits.cpus}.",
        )
    if demand.host_memory > limits.host_memory:
        raise Refused(
            f"requested configuration not available: {format_mebibytes(demand.host_memory)} of host memory,"
            f" of {format_mebibytes(limits.host_memory)}",
            f"Ask for at most --mem={format_mebibytes(limits.host_memory)}.",
        )
    if demand.gpus:
        _check_cards(demand, gpus, limits)


def _check_form(demand: Demand, limits: HostLimits) -> None:
    """Check what fgsub never sends, but a change of a job can produce."""
    if demand.gpus == 0 and (demand.share or demand.memory or demand.memory_part):
        raise BadUsage("a part of a GPU is asked for, and no GPU", "Ask for GPUs too, such as gpus=1.")
    if demand.gpus and not (demand.share or demand.memory or demand.memory_part):
        raise BadUsage("GPUs are asked for, and no share of them", "Ask with --gpus or --gpu-mem.")
    if demand.gpus > 1 and demand.share not in {0, WHOLE}:
        raise BadUsage(
            "fractions above one GPU are not possible", "Ask for whole GPUs, or for a part of one."
        )
    if demand.share % limits.share_step:
        low, high = neighbours(demand.share, limits.share_step)
        raise BadUsage(
            f"--gpus={format_share(demand.share)} is not a multiple of this site's step"
            f" {format_share(limits.share_step)}",
            f"Use {format_share(low)} or {format_share(high)}.",
        )


def _check_cards(demand: Demand, gpus: Sequence[Gpu], limits: HostLimits) -> None:
    if not gpus:
        raise Refused(
            "no GPU in this host can ever satisfy this: it has none",
            "fgsched status tells what was looked for; without --gpus and --gpu-mem the job can run.",
        )
    able = [gpu for gpu in gpus if is_of_type(gpu, demand.gpu_type)]
    if not able:
        kinds = ", ".join(sorted({gpu.model for gpu in gpus}))
        raise Refused(f"no GPU of type {quoted(demand.gpu_type)} in this host", f"It has: {kinds}.")
    if demand.gpus > len(able):
        what = f"{demand.gpu_type} GPU" if demand.gpu_type else "GPU"
        plural = "" if len(able) == 1 else "s"
        raise Refused(f"this host has {len(able)} {what}{plural}", f"Ask for at most --gpus={len(able)}.")
    fitting = [gpu for gpu in able if _fits_alone(demand, gpu, limits)]
    if len(fitting) < demand.gpus:
        _refuse_memory(demand, able, limits)


def _fits_alone(demand: Demand, gpu: Gpu, limits: HostLimits) -> bool:
    hold = cost(demand, gpu, limits.share_step)
    return hold.share <= WHOLE and hold.memory <= gpu.usable and hold.share > 0


def _refuse_memory(demand: Demand, able: Sequence[Gpu], limits: HostLimits) -> None:
    largest = sorted(able, key=lambda gpu: gpu.usable)[-demand.gpus]
    asked = cost(demand, largest, limits.share_step).memory
    raise Refused(
        f"no GPU in this host can ever satisfy this: {format_mebibytes(asked)} asked of a GPU,"
        f" {format_mebibytes(largest.usable)} on GPU {largest.index} ({largest.model})",
        f"Ask for at most --gpu-mem={format_mebibytes(largest.usable)}.",
    )
