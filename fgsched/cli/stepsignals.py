"""Signal or cancel running steps of jobs: `fgcancel 7.0`."""

from collections.abc import Iterator, Mapping, Set
from signal import SIGKILL, SIGTERM
from typing import NamedTuple

from fgsched import protocol
from fgsched.cli.steps import BATCH
from fgsched.client import Client
from fgsched.domain.errors import Exit, FgschedError
from fgsched.domain.jobsteps import JobStep
from fgsched.domain.states import JobState
from fgsched.system.process import CANCEL_STEP, Identity, boot_id, descendants, kill
from fgsched.views import choices

_RUNNING = [JobState.RUNNING, JobState.SUSPENDED]
_FIELDS = ("id", "array", "task", "tasks", "state", "srun_steps")


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
        return all(one.error is None for one in client.call(call).jobs)
    found = next((one for one in job.srun_steps if str(one.number) == step and _runs(one)), None)
    # The user of the job wrote the pid: it must be one of the job's processes.
    if found is None or found.pid not in client.call(protocol.ListPids(id=job.id)).pids:
        return False
    if number in (None, SIGTERM):
        return kill(Identity(found.pid, found.start, boot_id()), CANCEL_STEP)
    sent = [kill(one, number or SIGKILL) for one in descendants(found.pid)]
    return any(sent)


def _runs(step: JobStep) -> bool:
    return step.state is JobState.RUNNING
