"""Compare the use of resources by jobs with their requests.

Shares of a GPU are in ten-thousandths, memory in bytes, times in seconds. GPU seconds are seconds of one
whole GPU. A value that was not measured is None, never 0.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TypeVar

from msgspec import Struct

from fgsched.domain.states import JobState
from fgsched.domain.times import HOUR
from fgsched.protocol import JobInfo
from fgsched.reports.numbers import brief_hours
from fgsched.reports.proposal import MeasuredNeeds, Proposal, for_slurm, propose
from fgsched.views import job as view

ASKED = (  # attributes of JobInfo that `run_of` needs
    *("id", "array", "task", "tasks", "user", "uid", "partition", "state", "reason", "attempt", "exit_code"),
    *("signal", "post_mortem", "warning", "submitted_at", "eligible_at", "started_at", "ended_at", "elapsed"),
    *("suspended", "allocated", "tier", "cpu_seconds", "max_rss", "gpu_peak", "usage", "request"),
    *("name", "cpus", "ntasks", "host_memory", "time_limit"),
)
_N = TypeVar("_N", int, float)
_LEAST_RUN = 60.0  # seconds of a run that did not complete


class JobRun(Struct, frozen=True, kw_only=True):
    """One job, and the memory of its smallest GPU in bytes; None: it is unknown."""

    job: JobInfo
    total: int | None


def run_of(job: JobInfo, totals: Mapping[str, int]) -> JobRun:
    """Return the run of a job; `totals` maps UUIDs of GPUs to their memory in bytes."""
    known = [totals[part.uuid] for part in job.allocated if part.uuid in totals]
    return JobRun(job=job, total=min(known, default=None))


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
    ended = [run for run in runs if view.is_measured(run.job)]
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
        return max(one.job.elapsed for one in self.runs)

    @property
    def sm(self) -> float | None:
        """The mean SM share as a part of the charged share, weighted by the charged time."""
        known = [run.job.usage for run in self.runs if run.job.usage]
        return _ratio([(usage.used, usage.charged) for usage in known if usage.used is not None])

    @property
    def idle_part(self) -> float | None:
        """The idle GPU seconds as a part of the charged ones."""
        jobs = [run.job for run in self.runs]
        return _ratio([(view.idle_seconds(job) or 0.0, job.usage.charged) for job in jobs if job.usage])

    @property
    def cpu_part(self) -> float | None:
        """The mean of the parts of the CPUs that were busy."""
        known = [part for run in self.runs if (part := view.cpu_part(run.job)) is not None]
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
        found.setdefault((one.job.user, one.job.name), []).append(one)
    made = [RunGroup(user=user, name=name, runs=tuple(of[-last:])) for (user, name), of in found.items()]
    return sorted(made, key=lambda group: (-group.charged, group.user, group.name))


def hours(seconds: float) -> float:
    """Return GPU seconds as GPU-hours."""
    return seconds / HOUR
