"""Compare the use of resources by jobs with their requests.

Shares of a GPU are in ten-thousandths, memory in bytes, times in seconds. GPU seconds are seconds of one
whole GPU. A value that was not measured is None, never 0.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from msgspec import Struct

from fgsched.domain.states import JobState
from fgsched.domain.usage import JobUsage
from fgsched.protocol import JobInfo
from fgsched.reports.numbers import brief_hours
from fgsched.reports.proposal import HOUR, WHOLE, MeasuredNeeds, Proposal, for_slurm, propose

ASKED = (  # attributes of JobInfo that `run_of` needs
    *("id", "array", "task", "tasks", "user", "uid", "partition", "state", "reason", "attempt", "exit_code"),
    *("signal", "post_mortem", "warning", "submitted_at", "eligible_at", "started_at", "ended_at", "elapsed"),
    *("suspended", "allocated", "tier", "cpu_seconds", "max_rss", "gpu_peak", "usage", "request"),
)
_LEAST_RUN = 60.0  # seconds of a run that did not complete


class JobRun(Struct, frozen=True, kw_only=True):
    """The allocation and the use of one job. `job` has its names, state and times."""

    job: JobInfo
    gpus: int  # number that it was given
    share: int  # of each GPU, in ten-thousandths
    memory: int | None  # bytes of each GPU; None: not equal on all, or no GPU
    total: int | None  # bytes of its smallest GPU; None: not known
    peak: int | None  # bytes on one GPU
    usage: JobUsage | None
    charged: float  # GPU seconds since its last start
    cpu_seconds: float | None
    rss: int | None  # bytes

    @property
    def is_over(self) -> bool:
        """Tell whether the job has ended."""
        return self.job.state.is_final

    @property
    def memory_part(self) -> float | None:
        """The peak of GPU memory as a part of the requested memory."""
        return self.peak / self.memory if self.peak is not None and self.memory else None

    @property
    def sm(self) -> float | None:
        """The mean SM share as a part of the charged share; above 1 if it used idle time of other jobs."""
        if self.usage is None or self.usage.used is None or self.usage.charged <= 0:
            return None
        return self.usage.used / self.usage.charged

    @property
    def mean_sm(self) -> float | None:
        """The mean SM share of each GPU, from 0 to 1."""
        usage = self.usage
        if usage is None or usage.used is None or not usage.sampled or not self.gpus:
            return None
        return min(1.0, usage.used / usage.sampled / self.gpus)

    @property
    def idle(self) -> float | None:
        """The GPU seconds in which no process of the job computed."""
        return None if self.usage is None else self.usage.held + self.usage.empty

    @property
    def idle_part(self) -> float | None:
        """The idle GPU seconds as a part of the charged GPU seconds that were sampled."""
        if self.usage is None or self.idle is None or self.usage.charged <= 0:
            return None
        return self.idle / self.usage.charged

    @property
    def cpu(self) -> float | None:
        """The mean number of busy CPUs."""
        if self.cpu_seconds is None or self.job.elapsed <= 0:
            return None
        return self.cpu_seconds / self.job.elapsed

    @property
    def cpu_part(self) -> float | None:
        """The mean number of busy CPUs as a part of the requested CPUs."""
        return None if self.cpu is None else self.cpu / self.job.request.demand.cpus

    @property
    def host_part(self) -> float | None:
        """The peak of host memory as a part of the requested memory."""
        asked = self.job.request.demand.host_memory
        return self.rss / asked if self.rss is not None and asked else None

    @property
    def time_part(self) -> float | None:
        """The run time as a part of the time limit."""
        limit = self.job.request.time_limit
        return self.job.elapsed / limit if limit > 0 else None


def run_of(job: JobInfo, totals: Mapping[str, int]) -> JobRun:
    """Return the allocation and the use of a job; `totals` maps UUIDs of GPUs to their memory in bytes."""
    given = job.allocated
    memories = {one.memory for one in given}
    known = [totals[one.uuid] for one in given if one.uuid in totals]
    has_ended = job.state.is_final
    return JobRun(
        job=job,
        gpus=len(given),
        share=min((one.share for one in given), default=0),
        memory=memories.pop() if len(memories) == 1 else None,
        total=min(known, default=None),
        peak=_peak(job) if given else None,
        usage=job.usage,
        charged=sum(one.charged for one in given) / WHOLE * (job.elapsed + job.suspended),
        cpu_seconds=job.cpu_seconds if has_ended and job.started_at is not None else None,
        rss=(job.max_rss or None) if has_ended else None,
    )


def _peak(job: JobInfo) -> int | None:
    """Return the peak of GPU memory in bytes: as the hook counted it, or as it was sampled.

    None: it was not measured. The hook counts 0 on a simulated GPU, too, so its 0 says nothing.
    """
    sampled = job.usage.peak if job.usage is not None and job.usage.sampled else None
    counted = job.gpu_peak if job.state.is_final and job.tier != "none" else 0
    return max(counted, sampled or 0) if counted or sampled is not None else None


def needs_of(runs: Sequence[JobRun]) -> MeasuredNeeds:
    """Return the request of the last run, and the maximum use of all runs of one job name."""
    last = runs[-1]
    demand, found = last.job.request.demand, [one for one in runs if one.is_over]
    usages = [one.usage for one in found if one.usage is not None]
    complete = [one.job.elapsed for one in found if one.job.state is JobState.COMPLETED]
    return MeasuredNeeds(
        gpus=last.gpus,
        share=last.share,
        memory=last.memory,
        total=last.total,
        peak=max((one.peak for one in found if one.peak is not None), default=None),
        sm=max((one.mean_sm for one in found if one.mean_sm is not None), default=None),
        refused=_refused(last.job),
        sampled=sum(one.sampled for one in usages),
        with_process=sum(one.with_process for one in usages) if usages else None,
        cpus=demand.cpus,
        tasks=last.job.request.tasks,
        cpu=max((one.cpu for one in found if one.cpu is not None), default=None),
        host_memory=demand.host_memory,
        rss=max((one.rss for one in found if one.rss is not None), default=None),
        time_limit=max(0, last.job.request.time_limit),
        longest=max(complete, default=None),
    )


def _refused(job: JobInfo) -> int | None:
    """Return the bytes that a job which ran out of GPU memory would have needed on one GPU."""
    found = job.post_mortem
    if job.state is not JobState.OUT_OF_MEMORY or found is None or not found.asked:
        return None
    return found.held + found.asked


def _shows_needs(run: JobRun) -> bool:
    """Tell whether a run used what its job needs: one that failed may have ended before."""
    if run.job.state is JobState.COMPLETED:
        return True
    return run.job.state is not JobState.FAILED and run.job.elapsed >= _LEAST_RUN


def proposal_of(runs: Sequence[JobRun]) -> Proposal | None:
    """Return options for the next run; None if the request fits, or no run shows what the job needs."""
    ended = [one for one in runs if one.is_over and one.job.started_at is not None]
    found = propose(needs_of(ended)) if any(map(_shows_needs, ended)) else None
    if found is None or not ended[-1].job.request.slurm_env:
        return found
    return for_slurm(found)


def charge_sentences(found: Proposal, charged: float, runs: int = 1) -> list[str]:
    """Return sentences about the change of the charge by a proposal; none if the change is too small.

    `charged` is the GPU seconds of `runs` runs.
    """
    if found.charge is None or charged <= 0 or hours(charged) < 0.05:
        return []
    before, after = brief_hours(charged), brief_hours(charged * found.charge)
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
        return sum(one.charged for one in self.runs)

    @property
    def peak(self) -> int | None:
        """The largest peak of GPU memory, in bytes."""
        return max((one.peak for one in self.runs if one.peak is not None), default=None)

    @property
    def rss(self) -> int | None:
        """The largest peak of host memory, in bytes."""
        return max((one.rss for one in self.runs if one.rss is not None), default=None)

    @property
    def longest(self) -> float:
        """The longest run time, in seconds."""
        return max(one.job.elapsed for one in self.runs)

    @property
    def sm(self) -> float | None:
        """The mean SM share as a part of the charged share, weighted by the charged time."""
        known = [one.usage for one in self.runs if one.usage]
        return _ratio([(usage.used, usage.charged) for usage in known if usage.used is not None])

    @property
    def idle_part(self) -> float | None:
        """The idle GPU seconds as a part of the charged ones."""
        return _ratio([(one.idle or 0.0, one.usage.charged) for one in self.runs if one.usage])

    @property
    def cpu_part(self) -> float | None:
        """The mean of the parts of the CPUs that were busy."""
        known = [one.cpu_part for one in self.runs if one.cpu_part is not None]
        return fmean(known) if known else None

    @property
    def proposal(self) -> Proposal | None:
        """Options for the next run."""
        return proposal_of(self.runs)

    @property
    def returned(self) -> float:
        """The GPU seconds that the runs would not have been charged with these options."""
        found = self.proposal
        return 0.0 if found is None or found.charge is None else self.charged * (1 - found.charge)


def _ratio(parts: Sequence[tuple[float, float]]) -> float | None:
    whole = sum(charged for _, charged in parts)
    return sum(part for part, _ in parts) / whole if whole > 0 else None


def place_of(run: JobRun) -> tuple[int, int]:
    """Return the sort key of a run: by submission, and the tasks of an array by index."""
    job = run.job
    return job.array or job.id, -1 if job.task is None else job.task


def groups(runs: Sequence[JobRun], last: int) -> list[RunGroup]:
    """Return runs by user and name, at most `last` of each, the groups with the largest charge first."""
    found: dict[tuple[str, str], list[JobRun]] = {}
    for one in sorted(runs, key=place_of):
        found.setdefault((one.job.user, one.job.request.name), []).append(one)
    made = [RunGroup(user=user, name=name, runs=tuple(of[-last:])) for (user, name), of in found.items()]
    return sorted(made, key=lambda group: (-group.charged, group.user, group.name))


def hours(seconds: float) -> float:
    """Return GPU seconds as GPU-hours."""
    return seconds / HOUR
