"""Propose a smaller or larger request from what earlier runs of a job used.

A proposal has a reserve above the measured maximum, and is made only if it is below three quarters of the
request. Shares of a GPU are in ten-thousandths.
"""

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.units import format_share

HOUR = 3600
GIB = 1 << 30
WHOLE = 10_000
LADDER = (1000, 2000, 2500, 3500, 5000, 7500, WHOLE)  # the shares that are proposed
ROOM_MEMORY = 1.15  # of the peak
ROOM_COMPUTE = 1.2  # of the mean SM share
ROOM_TIME = 1.2  # of the longest run
ROOM_HOST = 1.2  # of the largest use of host memory and of CPUs
ROOM_REFUSED = 1.05  # of what a refused allocation would have needed
WORTH = 0.75  # the largest part of a request that a proposal may keep
_LEAST_SAMPLED = 60.0  # seconds without a GPU process that prove that a job needs no GPU


class MeasuredNeeds(Struct, frozen=True, kw_only=True):
    """The request of a job, and the maximum use of its runs. None: not measured."""

    gpus: int  # number
    share: int  # of each GPU, in ten-thousandths
    memory: int | None  # bytes of each GPU; None: it differs
    total: int | None = None  # bytes of the smallest GPU
    peak: int | None = None  # bytes on one GPU
    sm: float | None = None  # mean SM share of each GPU, from 0 to 1
    refused: int | None = None  # bytes that the last run would have needed on one GPU; None: none was refused
    sampled: float = 0.0  # seconds
    with_process: float | None = None  # seconds with a GPU process
    cpus: int = 1
    tasks: int = 1  # that share the CPUs
    cpu: float | None = None  # mean number of busy CPUs
    host_memory: int = 0  # bytes; 0: none asked for
    rss: int | None = None  # bytes
    time_limit: int = 0  # seconds; 0: none
    longest: float | None = None  # seconds of the longest complete run; None: none was complete


class Proposal(Struct, frozen=True, kw_only=True):
    """Options for the next run, with the reasons, and the part of the present charge that they keep."""

    tokens: tuple[str, ...]  # such as "--gpus=0.25"
    reasons: tuple[str, ...]  # sentences
    charge: float | None = None  # from 0 to 1; None: the charge stays, or is not known
    mark: str = "#FG"  # of the headers of the script; an #FG line would disable its #SBATCH lines

    @property
    def line(self) -> str:
        """The header line of a job script."""
        return " ".join((self.mark, *self.tokens))


def for_slurm(found: Proposal) -> Proposal:
    """Return a proposal for a script with #SBATCH headers, in the forms that Slurm has for its options."""
    spelled = {token: _of_slurm(token) for token in found.tokens}
    reasons = found.reasons
    for token, of_slurm in spelled.items():
        reasons = tuple(reason.replace(token, of_slurm) for reason in reasons)
    return replace(found, mark="#SBATCH", tokens=tuple(spelled.values()), reasons=reasons)


def _of_slurm(token: str) -> str:
    """Return an option as Slurm spells it; --gpu-mem has no other form."""
    name, _, value = token.partition("=")
    if name == "--gpus":
        return "--gres=none" if value == "0" else f"--gres=gpu:{value}"
    return f"{name}={value.removesuffix('h')}:00:00" if name == "--time" else token


def hours_up(seconds: float) -> int:
    """Return seconds as whole hours, rounded up, at least one."""
    return max(1, -int(-seconds // HOUR))


def gibibytes_up(size: float) -> int:
    """Return bytes as whole GiB, rounded up, at least one."""
    return max(1, -int(-size // GIB))


def share_for(sm: float) -> int:
    """Return the smallest proposed share, in ten-thousandths, for a mean SM share from 0 to 1."""
    return next((one for one in LADDER if one / WHOLE >= min(1.0, sm * ROOM_COMPUTE)), WHOLE)


def propose(needs: MeasuredNeeds) -> Proposal | None:
    """Return options for the next run; None if the request fits, or too little was measured."""
    gpu = _gpu(needs)
    rest = [part for part in (_host_memory(needs), _cpus(needs), _time(needs)) if part is not None]
    parts = [*([gpu] if gpu is not None else []), *rest]
    if not parts:
        return None
    return Proposal(
        tokens=tuple(token for part in parts for token in part.tokens),
        reasons=tuple(reason for part in parts for reason in part.reasons),
        charge=gpu.charge if gpu is not None else None,
    )


def _gpu(needs: MeasuredNeeds) -> Proposal | None:
    if not needs.gpus:
        return None
    if needs.refused is not None:
        fits = gibibytes_up(needs.refused * ROOM_REFUSED)
        return Proposal(
            tokens=(f"--gpu-mem={fits}G",),
            reasons=(f"GPU memory ran out; the refused allocation would have fitted in {fits} GiB.",),
        )
    if needs.with_process == 0 and needs.sampled >= _LEAST_SAMPLED:
        return Proposal(tokens=("--gpus=0",), reasons=("No process used a GPU.",), charge=0.0)
    return _smaller(needs) if needs.gpus == 1 else None


def _smaller(needs: MeasuredNeeds) -> Proposal | None:
    """Return a smaller part of one GPU."""
    if not needs.peak or not needs.memory:
        return None
    size = gibibytes_up(needs.peak * ROOM_MEMORY)
    asked = needs.share or WHOLE
    share = asked if needs.sm is None else min(asked, share_for(needs.sm))
    before, after = _charge(asked, needs.memory, needs.total), _charge(share, size * GIB, needs.total)
    is_less = after < WORTH * before or (needs.sm is None and size * GIB < WORTH * needs.memory)
    if not is_less or size * GIB > needs.memory:
        return None
    tokens = (f"--gpus={format_share(share)}", f"--gpu-mem={size}G")
    peak = f"The peak of GPU memory fits in {size} GiB."
    if needs.sm is None:
        kept = f"The SM share was not measured, so the line keeps {tokens[0]}."
        charge = after / before if after < before else None
        return Proposal(tokens=tokens, reasons=(peak, kept), charge=charge)
    compute = f"The SM share fits in {format_share(share)} of a GPU."
    return Proposal(tokens=tokens, reasons=(peak, compute), charge=after / before)


def _charge(share: int, memory: int, total: int | None) -> float:
    """Return the charged part of a GPU: the larger of the shares of compute time and of memory."""
    return max(share / WHOLE, min(1.0, memory / total) if total else 0.0)


def _host_memory(needs: MeasuredNeeds) -> Proposal | None:
    if not needs.rss or not needs.host_memory:
        return None
    size = gibibytes_up(needs.rss * ROOM_HOST)
    if size * GIB >= WORTH * needs.host_memory:
        return None
    return Proposal(tokens=(f"--mem={size}G",), reasons=(f"Host memory fits in {size} GiB.",))


def _cpus(needs: MeasuredNeeds) -> Proposal | None:
    if needs.cpu is None:
        return None
    tasks = max(1, needs.tasks)
    count = max(1, -int(-needs.cpu * ROOM_HOST / tasks // 1))
    if count * tasks >= WORTH * needs.cpus:
        return None
    noun = "CPU is" if count == 1 else "CPUs are"
    each = " for each task" if tasks > 1 else ""
    return Proposal(tokens=(f"--cpus-per-task={count}",), reasons=(f"{count} {noun} enough{each}.",))


def _time(needs: MeasuredNeeds) -> Proposal | None:
    if needs.longest is None or not needs.time_limit:
        return None
    limit = hours_up(needs.longest * ROOM_TIME)
    if limit * HOUR >= WORTH * needs.time_limit:
        return None
    return Proposal(tokens=(f"--time={limit}h",), reasons=(f"A time limit of {limit} h is enough.",))
