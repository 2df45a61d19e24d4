"""Steps of jobs, with names such as 12.batch and 12_3.0: rows of fgacct, and signals by fgcancel."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from signal import SIGKILL, SIGTERM
from typing import NamedTuple

from msgspec.structs import replace

from fgsched import protocol
from fgsched.client import Client
from fgsched.domain.errors import Exit, FgschedError
from fgsched.domain.jobsteps import JobStep
from fgsched.domain.states import JobState
from fgsched.protocol import JobInfo
from fgsched.system.process import CANCEL_STEP, Identity, boot_id, descendants, kill
from fgsched.views import choices
from fgsched.views import job as view

BATCH = "batch"
FIELDS = view.attributes(  # of a job that its steps need
    view.label, view.allocation_time, "attempt started_at ended_at allocated srun_steps"
)
_RUNNING = [JobState.RUNNING, JobState.SUSPENDED]
_FIELDS = view.attributes(view.label, "state srun_steps")


def split(texts: Iterable[str]) -> tuple[list[str], dict[str, set[str]]]:
    """Return lists of jobs without their steps, and the named steps of jobs: 12.0 is step 0 of job 12."""
    whole: list[str] = []
    steps: dict[str, set[str]] = {}
    plain: set[str] = set()
    for word in (word for text in texts for word in choices.parts(text)):
        job, dot, step = word.partition(".")
        whole.append(job)
        if dot and step:
            steps.setdefault(job, set()).add(step)
        else:
            plain.add(job)
    return whole, {job: named for job, named in steps.items() if job not in plain}


def rows(jobs: Iterable[JobInfo], wanted: dict[str, set[str]], *, all_steps: bool) -> Iterator[JobInfo]:
    """Yield each job followed by its steps; of jobs in `wanted`, the named steps only."""
    for job in jobs:
        named = wanted.get(str(job.id)) or wanted.get(view.label(job))
        if named is None:
            yield job
        if named is not None or all_steps:
            yield from (row for row in of_job(job) if named is None or row.step in named)


def of_job(job: JobInfo) -> Sequence[JobInfo]:
    """Return the rows of the steps of a job: its script, then the steps of srun by number."""
    if not job.attempt or job.started_at is None:
        return []
    batch = replace(job, step=BATCH, name=BATCH, ntasks=1, srun_steps=[])
    return [batch, *(_row(job, step) for step in job.srun_steps)]


def _row(job: JobInfo, step: JobStep) -> JobInfo:
    """Return the job with the values of one of its steps."""
    allocated = [job.allocated[at] for at in step.gpus if at < len(job.allocated)]
    over = job.ended_at if step.ended_at is None and step.state.is_final else step.ended_at
    until = job.elapsed + (job.started_at or 0.0) + job.suspended if over is None else over
    return replace(
        job,
        step=str(step.number),
        name=step.name,
        ntasks=max(1, step.tasks),
        cpus=step.cpus,
        gpus=len(allocated),
        state=step.state,
        started_at=step.started_at,
        ended_at=over,
        elapsed=max(0.0, until - step.started_at),
        suspended=0.0,
        exit_code=step.exit_code,
        signal=step.signal,
        cancelled_by=None,
        cpu_seconds=step.cpu_seconds,
        max_rss=step.max_rss,
        disk_read=step.disk_read,
        disk_written=step.disk_written,
        allocated=allocated,
        usage=None,
        gpu_peak=0,
        charged_before=0.0,
        post_mortem=None,
        oom_kills=0,
        warning="",
        srun_steps=[step],
    )


class UnsignalledStep(NamedTuple):
    """A step that was not signalled, and why."""

    name: str  # "7.0"
    why: str
    code: int  # exit code


def signal_steps(
    client: Client, named: Mapping[str, Set[str]], number: int | None
) -> Iterator[UnsignalledStep]:
    """Signal the named steps, {job: steps}; without a signal, end them. Yield the steps that failed."""
    for name, steps in named.items():
        where = protocol.Where(id=choices.ids([name]), state=_RUNNING)
        jobs = client.call(protocol.ListQueue(fields=_FIELDS, where=where)).jobs
        for step in sorted(steps):
            try:
                done = any([_signal(client, job, step, number) for job in jobs])
            except FgschedError as error:
                yield UnsignalledStep(f"{name}.{step}", error.cause, error.exit_code)
                continue
            except PermissionError:
                yield UnsignalledStep(f"{name}.{step}", "Access/permission denied", Exit.NOT_PERMITTED)
                continue
            if not done:
                yield UnsignalledStep(
                    f"{name}.{step}", "Job/step already completing or completed", Exit.NO_SUCH_JOB
                )


def _signal(client: Client, job: protocol.JobInfo, step: str, number: int | None) -> bool:
    """Signal one step of a job; return whether it runs."""
    if step == BATCH:
        call = protocol.Signal(ids=[job.id], signal=number or SIGTERM, target="shell")
        return all(outcome.error is None for outcome in client.call(call).jobs)
    running = next(
        (job_step for job_step in job.srun_steps if str(job_step.number) == step and _runs(job_step)), None
    )
    # The user of the job wrote the pid: it must be one of the job's processes.
    if running is None or running.pid not in client.call(protocol.ListPids(id=job.id)).pids:
        return False
    if number in (None, SIGTERM):
        return kill(Identity(running.pid, running.start, boot_id()), CANCEL_STEP)
    sent = [kill(descendant, number or SIGKILL) for descendant in descendants(running.pid)]
    return any(sent)


def _runs(step: JobStep) -> bool:
    return step.state is JobState.RUNNING
