"""Compare the use of resources by jobs with their requests, and propose a better request.

Shares of a GPU are in ten-thousandths, memory in bytes, times in seconds. GPU seconds are seconds of one
whole GPU. A value that was not measured is None, never 0.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.job import WHOLE
from fgsched.domain.states import JobState
from fgsched.domain.times import HOUR
from fgsched.domain.units import GIB, format_share
from fgsched.protocol import JobInfo
from fgsched.reports.numbers import brief_hours
from fgsched.views import job as view

LADDER = (1000, 2000, 2500, 3500, 5000, 7500, WHOLE)  # the shares that are proposed
ROOM_MEMORY = 1.15  # of the peak
ROOM_COMPUTE = 1.2  # of the mean SM share
ROOM_TIME = 1.2  # of the longest run
ROOM_HOST = 1.2  # of the largest use of host memory and of CPUs
ROOM_REFUSED = 1.05  # of what a refused allocation would have needed
WORTH = 0.75  # the largest part of a request that a proposal may keep
_LEAST_SAMPLED = 60.0  # seconds without a GPU process that prove that a job needs no GPU
ASKED = view.attributes(  # of JobInfo, for runs and their sheets
    view.label,
    view.is_measured,
    view.waited,
    view.charged_seconds,
    view.allocated_share,
    view.gpu_memory,
    view.gpu_peak,
    view.host_part,
    view.cpu_part,
    view.time_part,
    view.exit_status,
    "user uid partition reason attempt post_mortem warning submitted_at ended_at usage request name ntasks",
)
_N = TypeVar("_N", int, float)
_LEAST_RUN = 60.0  # seconds of a run that did not complete


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


def for_slurm(proposal: Proposal) -> Proposal:
    """Return a proposal for a script with #SBATCH headers, in the forms that Slurm has for its options."""
    spelled = {token: _slurm_spelling(token) for token in proposal.tokens}
    reasons = proposal.reasons
    for token, slurm_option in spelled.items():
        reasons = tuple(reason.replace(token, slurm_option) for reason in reasons)
    return replace(proposal, mark="#SBATCH", tokens=tuple(spelled.values()), reasons=reasons)


def _slurm_spelling(token: str) -> str:
    """Return an option as Slurm spells it; --gpu-mem has no other form."""
    name, _, option_value = token.partition("=")
    if name == "--gpus":
        return "--gres=none" if option_value == "0" else f"--gres=gpu:{option_value}"
    return f"{name}={option_value.removesuffix('h')}:00:00" if name == "--time" else token


def hours_up(seconds: float) -> int:
    """Return seconds as whole hours, rounded up, at least one."""
    return max(1, -int(-seconds // HOUR))


def gibibytes_up(size: float) -> int:
    """Return bytes as whole GiB, rounded up, at least one."""
    return max(1, -int(-size // GIB))


def share_for(sm: float) -> int:
    """Return the smallest proposed share, in ten-thousandths, for a mean SM share from 0 to 1."""
    return next((share for share in LADDER if share / WHOLE >= min(1.0, sm * ROOM_COMPUTE)), WHOLE)


def propose(needs: MeasuredNeeds) -> Proposal | None:
    """Return options for the next run; None if the request fits, or too little was measured."""
    gpu = _gpu(needs)
    proposals = [part for part in (_host_memory(needs), _cpus(needs), _time(needs)) if part is not None]
    parts = [*([gpu] if gpu is not None else []), *proposals]
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
    requested = needs.share or WHOLE
    share = requested if needs.sm is None else min(requested, share_for(needs.sm))
    before, after = _charge(requested, needs.memory, needs.total), _charge(share, size * GIB, needs.total)
    is_less = after < WORTH * before or (needs.sm is None and size * GIB < WORTH * needs.memory)
    if not is_less or size * GIB > needs.memory:
        return None
    tokens = (f"--gpus={format_share(share)}", f"--gpu-mem={size}G")
    peak = f"The peak of GPU memory fits in {size} GiB."
    if needs.sm is None:
        unmeasured = f"The SM share was not measured, so the line keeps {tokens[0]}."
        charge = after / before if after < before else None
        return Proposal(tokens=tokens, reasons=(peak, unmeasured), charge=charge)
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
    of_each = " for each task" if tasks > 1 else ""
    return Proposal(tokens=(f"--cpus-per-task={count}",), reasons=(f"{count} {noun} enough{of_each}.",))


def _time(needs: MeasuredNeeds) -> Proposal | None:
    if needs.longest is None or not needs.time_limit:
        return None
    limit = hours_up(needs.longest * ROOM_TIME)
    if limit * HOUR >= WORTH * needs.time_limit:
        return None
    return Proposal(tokens=(f"--time={limit}h",), reasons=(f"A time limit of {limit} h is enough.",))


class JobRun(Struct, frozen=True, kw_only=True):
    """One job, and the memory of its smallest GPU in bytes; None: it is unknown."""

    job: JobInfo
    total: int | None


def run_of(job: JobInfo, totals: Mapping[str, int]) -> JobRun:
    """Return the run of a job; `totals` maps UUIDs of GPUs to their memory in bytes."""
    sizes = [totals[part.uuid] for part in job.allocated if part.uuid in totals]
    return JobRun(job=job, total=min(sizes, default=None))


def needs_of(runs: Sequence[JobRun]) -> MeasuredNeeds:
    """Return the request of the last run, and the maximum use of all runs of one job name."""
    last, total = runs[-1].job, runs[-1].total
    ended = [run.job for run in runs if run.job.state.is_final]
    usages = [job.usage for job in ended if job.usage is not None]
    complete = [job.elapsed for job in ended if job.state is JobState.COMPLETED]
    return MeasuredNeeds(
        gpus=len(last.allocated),
        share=view.gpu_share(last),
        memory=view.gpu_memory(last),
        total=total,
        peak=_largest(map(view.gpu_peak, ended)),
        sm=_largest(map(view.mean_sm, ended)),
        refused=_refused(last),
        sampled=sum(usage.sampled for usage in usages),
        with_process=sum(usage.with_process for usage in usages) if usages else None,
        cpus=last.cpus,
        tasks=last.ntasks,
        cpu=_largest(map(view.busy_cpus, ended)),
        host_memory=last.host_memory,
        rss=_largest(map(view.host_peak, ended)),
        time_limit=max(0, last.time_limit),
        longest=max(complete, default=None),
    )


def _largest(values: Iterable[_N | None]) -> _N | None:
    """Return the largest known value; None: none is known."""
    return max((value for value in values if value is not None), default=None)


def _refused(job: JobInfo) -> int | None:
    """Return the bytes that a job which ran out of GPU memory would have needed on one GPU."""
    oom_report = job.post_mortem
    if job.state is not JobState.OUT_OF_MEMORY or oom_report is None or not oom_report.asked:
        return None
    return oom_report.held + oom_report.asked


def _shows_needs(run: JobRun) -> bool:
    """Tell whether a run used what its job needs: one that failed may have ended before."""
    if run.job.state is JobState.COMPLETED:
        return True
    return run.job.state is not JobState.FAILED and run.job.elapsed >= _LEAST_RUN


def proposal_of(runs: Sequence[JobRun]) -> Proposal | None:
    """Return options for the next run; None if the request fits, or no run shows what the job needs."""
    ended = [run for run in runs if view.is_measured(run.job)]
    proposal = propose(needs_of(ended)) if any(map(_shows_needs, ended)) else None
    if proposal is None or not ended[-1].job.request.slurm_env:
        return proposal
    return for_slurm(proposal)


def charge_sentences(proposal: Proposal, charged: float, runs: int = 1) -> list[str]:
    """Return sentences about the change of the charge by a proposal; none if the change is too small.

    `charged` is the GPU seconds of `runs` runs.
    """
    if proposal.charge is None or charged <= 0 or hours(charged) < 0.05:
        return []
    before, after = brief_hours(charged), brief_hours(charged * proposal.charge)
    what = "The job" if runs == 1 else f"The {runs} runs"
    return [f"{what} would have been charged {after} instead of {before} GPU-hours."]


# -- several runs --------------------------------------------------------------------------------------


class RunGroup(Struct, frozen=True, kw_only=True):
    """Runs of one user under one name, the earliest first."""

    user: str
    name: str
    runs: tuple[JobRun, ...]

    @property
    def charged(self) -> float:
        """The GPU seconds of all runs."""
        return sum(view.charged_seconds(run.job) for run in self.runs)

    @property
    def peak(self) -> int | None:
        """The largest peak of GPU memory, in bytes."""
        return _largest(view.gpu_peak(run.job) for run in self.runs)

    @property
    def rss(self) -> int | None:
        """The largest peak of host memory, in bytes."""
        return _largest(view.host_peak(run.job) for run in self.runs)

    @property
    def longest(self) -> float:
        """The longest run time, in seconds."""
        return max(run.job.elapsed for run in self.runs)

    @property
    def sm(self) -> float | None:
        """The mean SM share as a part of the charged share, weighted by the charged time."""
        job_usages = [run.job.usage for run in self.runs if run.job.usage]
        return _ratio([(usage.used, usage.charged) for usage in job_usages if usage.used is not None])

    @property
    def idle_part(self) -> float | None:
        """The idle GPU seconds as a part of the charged ones."""
        jobs = [run.job for run in self.runs]
        return _ratio([(view.idle_seconds(job) or 0.0, job.usage.charged) for job in jobs if job.usage])

    @property
    def cpu_part(self) -> float | None:
        """The mean of the parts of the CPUs that were busy."""
        parts = [part for run in self.runs if (part := view.cpu_part(run.job)) is not None]
        return fmean(parts) if parts else None

    @property
    def proposal(self) -> Proposal | None:
        """Options for the next run."""
        return proposal_of(self.runs)

    @property
    def returned(self) -> float:
        """The GPU seconds that the runs would not have been charged with these options."""
        proposal = self.proposal
        return 0.0 if proposal is None or proposal.charge is None else self.charged * (1 - proposal.charge)


def _ratio(parts: Sequence[tuple[float, float]]) -> float | None:
    whole = sum(charged for _, charged in parts)
    return sum(part for part, _ in parts) / whole if whole > 0 else None


def place_of(run: JobRun) -> tuple[int, int]:
    """Return the sort key of a run: by submission, and the tasks of an array by index."""
    job = run.job
    return job.array or job.id, -1 if job.task is None else job.task


def groups(runs: Sequence[JobRun], last: int) -> list[RunGroup]:
    """Return runs by user and name, at most `last` of each, the groups with the largest charge first."""
    grouped_job_runs: dict[tuple[str, str], list[JobRun]] = {}
    for job_run in sorted(runs, key=place_of):
        grouped_job_runs.setdefault((job_run.job.user, job_run.job.name), []).append(job_run)
    run_groups = [
        RunGroup(user=user, name=name, runs=tuple(of[-last:]))
        for (user, name), of in grouped_job_runs.items()
    ]
    return sorted(run_groups, key=lambda group: (-group.charged, group.user, group.name))


def hours(seconds: float) -> float:
    """Return GPU seconds as GPU-hours."""
    return seconds / HOUR
