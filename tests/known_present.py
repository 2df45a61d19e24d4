"""A known history as the controller shows it at one of its steps: GPUs, jobs and partitions."""

from collections.abc import Collection, Iterator

from msgspec import Struct

import known_history as known
from fgsched import protocol
from fgsched.accounting.samples import Samples
from fgsched.domain.job import WHOLE, Gpu, GpuProcess, GpuState, JobUsage, Reading
from fgsched.domain.policy import Partition
from fgsched.domain.states import JobState, Reason
from known_history import GIB, STEP, KnownHost
from report_truth import Sum, Truth

Usages = dict[int, JobUsage]  # by job


class Present(Struct, frozen=True):
    """What clients receive at the end of a step."""

    world: KnownHost
    step: int
    infos: list[protocol.GpuInfo]
    jobs: list[protocol.JobInfo]

    @property
    def now(self) -> float:
        return self.world.at(self.step + 1)

    @property
    def truth(self) -> Truth:
        return Truth(self.world, self.step, self.step + 1)

    @property
    def host(self) -> protocol.Gpus:
        amount = protocol.ResourceAmount(free=1, total=1)
        return protocol.Gpus(
            gpus=self.infos,
            enforce="shim",
            preload="",
            preload_note="",
            other_gpus="",
            cpus=amount,
            memory=amount,
            jobs={},
        )

    @property
    def partition(self) -> protocol.PartitionInfo:
        counts: dict[str, int] = {}
        for job in self.jobs:
            counts[job.state.value] = counts.get(job.state.value, 0) + 1
        gpus = [info.gpu.index for info in self.infos]
        return protocol.PartitionInfo(partition=Partition(name="gpu"), gpus=gpus, jobs=counts)

    def cell(self, gpu: int) -> Sum:
        return self.truth.cells[self.step, gpu]


def sampled(world: KnownHost, steps: Collection[int]) -> Iterator[tuple[int, Usages]]:
    """Yield the sums of the samples of all jobs at the ends of these steps, in order."""
    users = sorted({job.user for job in world.jobs})
    owners = {job.id: known.owner(job, users) for job in world.jobs}
    samples = Samples(interval=STEP)
    samples.look(known.before(world, owners))
    for step in range(max(steps) + 1):
        for job in world.jobs:
            if job.end == step:
                samples.end(job.id)
        if not world.is_lost(step):
            samples.look(known.look(world, step, owners))
        if step in steps:
            yield step, {job.id: usage for job in world.jobs if (usage := samples.usage(job.id)) is not None}


def present(world: KnownHost, step: int, usages: Usages) -> Present:
    """Return what clients receive at the end of a step, which has samples."""
    truth = Truth(world, step, step + 1)
    jobs = [
        _job(world, job, step, truth, usages.get(job.id))
        for job in world.jobs
        if job.holds(step) or job.waits(step)
    ]
    return Present(world, step, [_gpu(world, gpu, step, truth) for gpu in truth.gpus], jobs)


def _gpu(world: KnownHost, gpu: int, step: int, truth: Truth) -> protocol.GpuInfo:
    model, size = world.models[gpu]
    down = next((down for down in world.downs if down.gpu == gpu and down.since <= step < down.until), None)
    parts = truth.measured[step, gpu]
    strangers = truth.strangers_at(gpu, step)
    external = sum(stranger.memory for stranger in strangers) * GIB
    used = sum(memory for *_, memory in parts) * GIB + external
    busy = sum(share for *_, share, _ in parts) * 100 + sum(stranger.sm for stranger in strangers) / 100
    held = [job for job, *_ in parts]
    return protocol.GpuInfo(
        gpu=Gpu(
            index=gpu,
            uuid=known.uuid(gpu),
            model=model,
            total=size * GIB,
            state=GpuState.DRAINED if down else GpuState.OK,
            note=f"{down.why} [root]" if down else "",
        ),
        usable=size * GIB,
        free_share=WHOLE - sum(job.share for job in held),
        free_memory=max(0, size * GIB - sum(world.memory(job) for job in held) - external),
        external=external,
        allocated_memory=sum(world.memory(job) for job in held),
        jobs=[job.id for job in held],
        seen=Reading(
            gpu=gpu,
            used=used,
            external=external,
            utilisation=min(100, int(busy)),
            processes=tuple(
                GpuProcess(pid=job.id, memory=memory * GIB) for job, *_, memory in parts if memory
            ),
        ),
        kept_as="",
    )


def _job(
    world: KnownHost, job: known.Job, step: int, truth: Truth, usage: JobUsage | None
) -> protocol.JobInfo:
    holds = job.holds(step)
    begin = next((since for since, until in job.attempts if since <= step < until), None)
    allocated = [
        protocol.Allocation(
            gpu=gpu,
            uuid=known.uuid(gpu),
            model=world.models[gpu][0],
            share=job.share,
            memory=world.memory(job),
            charged=world.charge(job, gpu),
        )
        for gpu in job.gpus
        if holds
    ]
    seen = [(gpu, part) for gpu in job.gpus for part in truth.measured[step, gpu] if part[0].id == job.id]
    return protocol.JobInfo(
        id=job.id,
        name=job.name,
        user=job.user,
        uid=1,
        account=job.account,
        partition=job.partition,
        state=JobState.RUNNING if holds else JobState.PENDING,
        reason=Reason.NONE if holds else Reason.RESOURCES,
        priority=None if holds else 1.0,
        submitted_at=world.at(job.eligible),
        eligible_at=world.at(job.eligible_again),
        started_at=None if begin is None else world.at(begin),
        elapsed=0.0 if begin is None else (step + 1 - begin) * STEP,
        time_limit=job.limit * 3600,
        gpus=len(job.gpus),
        share=job.share * len(job.gpus),
        memory=world.memory(job),
        indices=list(job.gpus) if holds else [],
        allocated=allocated,
        usage=usage if holds else None,
        now=[
            protocol.OnGpu(gpu=gpu, memory=memory * GIB, busy=int(share * WHOLE))
            for gpu, (_, _, _, share, memory) in seen
        ],
    )
