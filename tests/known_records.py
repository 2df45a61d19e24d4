"""The jobs of a known history as the queue stores them: the accounts then have all columns of fgacct."""

from msgspec.structs import replace

from fgsched.accounting.records import JobAccount, Owner
from fgsched.controller.moving import account_of
from fgsched.domain.job import Demand, Ended, Job, Request
from fgsched.domain.states import JobState, Reason
from fgsched.store import JobRecord
from fgsched.store.rows import GpuAllocation
from known_history import LARGEST, STEP, KnownHost, uuid
from known_history import Job as KnownJob
from known_history import account_of as known_account

_REASONS = {"gpu": Reason.GPU_OUT_OF_MEMORY, "host": Reason.OUT_OF_MEMORY, "": Reason.NONE}


def record(world: KnownHost, job: KnownJob, owner: Owner) -> JobRecord:
    """Return the record of an ended job."""
    allocations = tuple(
        GpuAllocation(
            gpu, uuid(gpu), world.models[gpu][0], job.share, world.memory(job), world.charge(job, gpu)
        )
        for gpu in job.gpus
        if job.start is not None
    )
    earlier = sum(until - since for since, until in job.earlier) * STEP
    charge = sum(allocation.charged for allocation in allocations) / 10_000
    demand = Demand(gpus=len(job.gpus), share=job.share if job.gpus else 0, memory=job.memory << 30, cpus=4)
    request = Request(
        name=job.name,
        demand=demand,
        partition=job.partition,
        account=job.account,
        wckey=job.tag,
        array="0-7" if job.array else "",
        time_limit=job.limit * 3600,
        output=f"/home/{job.user}/{job.name}-{job.id}.out",
    )
    stored = Job(
        id=job.id,
        uid=owner.uid,
        gid=owner.uid,
        user=job.user,
        request=request,
        submitted_at=world.at(job.eligible),
        state=JobState[job.state],
        reason=_REASONS[job.oom],
        attempt=len(job.attempts),
        partition=job.partition if job.attempts else "",
        slot=1,
        started_at=None if job.start is None else world.at(job.start),
        ended_at=world.at(job.end or 0),
        ended=Ended(
            status=job.exit << 8 | job.signal & 0x7F,
            cpu_seconds=1.0 * ((job.end or 0) - (job.start or 0)) * STEP,
            max_rss=LARGEST,
            gpu_peak=job.peak << 30,
            refusals=1 if job.refused else 0,
        ),
        restarts=len(job.earlier),
        charged_before=earlier * charge,
        array=job.array,
        task=job.task,
    )
    return JobRecord(stored, allocations)


def whole_account(world: KnownHost, job: KnownJob, owner: Owner) -> JobAccount:
    """Return the account of an ended job with all columns of its row in the queue."""
    account = known_account(world, job, owner)
    stored = account_of(record(world, job, owner), ())
    return replace(account, row=stored.row | account.row)
