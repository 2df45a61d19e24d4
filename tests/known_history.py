"""Histories whose figures can be counted by hand: jobs, processes and GPUs in steps of five minutes.

A history goes into the accounts as on a host: looks at the GPUs are summed by Samples, and ended jobs are
added to the Ledger. The truth about it is counted by report_truth, which uses nothing of accounts or reports.
"""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

import history
from endedjobs import an_ended_job
from fgsched.accounting.ledger import Ledger
from fgsched.accounting.records import Gap, GpuRecord, HealthEvent, JobAccount, JobSample, Minute, Owner
from fgsched.accounting.samples import GpuLook, JobLook, Look, ProcessLook, Samples, Waiting
from fgsched.domain.times import DAY, HOUR

STEP = 300  # seconds
GIB = 1 << 30
WHOLE = 10_000
WATTS = 100  # that each GPU takes
HOST_MEMORY, LARGEST = 16 * GIB, 15 * GIB  # requested by each job, and of its largest process


class Process(Struct, frozen=True):
    """A process of a job on some of its GPUs."""

    gpus: tuple[int, ...]
    since: int  # step
    until: int  # step
    sm: int  # ten-thousandths of each GPU
    memory: int  # GiB on each GPU


class Job(Struct, frozen=True, kw_only=True):
    """A job. Times are in steps."""

    id: int
    user: str
    name: str = "train"
    account: str = "lab"
    partition: str = "gpu"
    tag: str = ""
    gpus: tuple[int, ...] = ()
    share: int = WHOLE
    memory: int = 0  # GiB requested on each GPU; 0: the part of its share
    eligible: int = 0
    start: int | None = None  # of the last attempt; None: it never started
    end: int | None = None  # None: it runs or waits at the end of the history
    earlier: tuple[tuple[int, int], ...] = ()  # attempts that were requeued or preempted
    processes: tuple[Process, ...] = ()
    state: str = "COMPLETED"
    exit: int = 0
    signal: int = 0
    oom: str = ""
    refused: int = 0  # GiB
    limit: int = 24  # hours
    lacking: str = "share"  # what it lacks while it waits
    array: int = 0
    task: int | None = None

    @property
    def attempts(self) -> tuple[tuple[int, int], ...]:
        last = () if self.start is None else ((self.start, 1 << 40 if self.end is None else self.end),)
        return (*self.earlier, *last)

    @property
    def label(self) -> str:
        """Return the id that commands show."""
        return str(self.id) if self.task is None else f"{self.array}_{self.task}"

    @property
    def peak(self) -> int:
        """Return the most GiB that its processes held together on one GPU."""
        return max(
            (
                sum(
                    process.memory
                    for process in self.processes
                    if gpu in process.gpus and process.since <= first.since < process.until
                )
                for gpu in self.gpus
                for first in self.processes
            ),
            default=0,
        )

    @property
    def eligible_again(self) -> int:
        """Return the step since which the last attempt could start: a requeue makes a job wait anew."""
        return max([self.eligible, *(until for _, until in self.earlier)])

    def holds(self, step: int) -> bool:
        return any(since <= step < until for since, until in self.attempts)

    def waits(self, step: int) -> bool:
        until = self.start if self.start is not None else self.end
        return self.eligible <= step and (until is None or step < until) and not self.holds(step)


class Stranger(Struct, frozen=True):
    """A process outside of jobs."""

    gpu: int
    since: int  # step
    until: int  # step
    user: str
    command: str
    pid: int
    memory: int  # GiB
    sm: int = 0  # ten-thousandths of the GPU


class Down(Struct, frozen=True):
    """A time in which a GPU takes no jobs."""

    gpu: int
    since: int
    until: int
    why: str


class Lost(Struct, frozen=True):
    """A time without samples."""

    since: int
    until: int
    stopped: bool = False  # the controller did not run


class KnownHost(Struct, frozen=True, kw_only=True):
    """A host and all that happens on it."""

    models: tuple[tuple[str, int], ...]  # name and GiB of each GPU
    begin: float  # epoch seconds
    steps: int
    jobs: tuple[Job, ...]
    strangers: tuple[Stranger, ...] = ()
    downs: tuple[Down, ...] = ()
    lost: tuple[Lost, ...] = ()
    xids: tuple[tuple[int, int, int], ...] = ()  # (GPU, step, number)
    hot: tuple[tuple[int, int, int], ...] = ()  # (GPU, since, until): clocks lowered by heat

    def at(self, step: int) -> float:
        return self.begin + step * STEP

    def charge(self, job: Job, gpu: int) -> int:
        """Return the charge of a job on a GPU in ten-thousandths."""
        return max(job.share, -(-job.memory * WHOLE // self.models[gpu][1]))

    def memory(self, job: Job) -> int:
        """Return the bytes that a job gets on each GPU."""
        size = min((self.models[gpu][1] for gpu in job.gpus), default=0)
        return job.memory * GIB or size * GIB * job.share // WHOLE

    def is_lost(self, step: int) -> bool:
        return any(gap.since <= step < gap.until for gap in self.lost)


AccountOf = Callable[[KnownHost, Job, Owner], JobAccount]


def uuid(gpu: int) -> str:
    return f"GPU-{gpu:04d}"


def owner(job: Job, users: list[str]) -> Owner:
    return Owner(
        uid=1000 + users.index(job.user),
        user=job.user,
        account=job.account,
        partition=job.partition,
        tag=job.tag,
    )


# -- what the controller sees --------------------------------------------------------------------------


def look(world: KnownHost, step: int, owners: dict[int, Owner]) -> Look:
    """Return the look at the end of a step, which shows what was there in the step."""
    holding = [job for job in world.jobs if job.gpus and job.holds(step)]
    return Look(
        wall=world.at(step + 1),
        clock=world.at(step + 1),
        gpus=tuple(_gpu(world, gpu, step, holding) for gpu in range(len(world.models))),
        jobs=tuple(_job(world, job, step, owners[job.id]) for job in holding),
        waiting=tuple(_waiting(world, step)),
        driver="550.1",
    )


def _job(world: KnownHost, job: Job, step: int, owner: Owner) -> JobLook:
    started = next(since for since, until in job.attempts if since <= step < until)
    charged = {uuid(gpu): world.charge(job, gpu) for gpu in job.gpus}
    return JobLook(id=job.id, owner=owner, started_at=world.at(started), charged=charged)


def _gpu(world: KnownHost, gpu: int, step: int, holding: list[Job]) -> GpuLook:
    own = [
        ProcessLook(pid=job.id * 100 + at, memory=process.memory * GIB, busy=process.sm, job=job.id)
        for job in holding
        for at, process in enumerate(job.processes)
        if gpu in process.gpus and process.since <= step < process.until
    ]
    foreign = [
        ProcessLook(
            pid=stranger.pid,
            memory=stranger.memory * GIB,
            busy=stranger.sm,
            user=stranger.user,
            command=stranger.command,
        )
        for stranger in world.strangers
        if stranger.gpu == gpu and stranger.since <= step < stranger.until
    ]
    downs = (down for down in world.downs if down.gpu == gpu and down.since <= step < down.until)
    down = next(downs, None)
    is_hot = any(hot == gpu and since <= step < until for hot, since, until in world.hot)
    return GpuLook(
        uuid=uuid(gpu),
        size=world.models[gpu][1] * GIB,
        used=sum(process.memory for process in (*own, *foreign)),
        foreign=sum(process.memory for process in foreign),
        processes=(*own, *foreign),
        state="drained" if down else "ok",
        why=down.why if down else "",
        utilisation=min(100, sum(process.busy or 0 for process in (*own, *foreign)) // 100),
        temperature=50 + gpu,
        energy=(step + 1) * STEP * WATTS * 1000,
        throttled=("heat",) if is_hot else (),
        xids=tuple(number for faulty, at, number in world.xids if faulty == gpu and at == step),
    )


def _waiting(world: KnownHost, step: int) -> list[Waiting]:
    sums: dict[str, list[int]] = {}
    for job in world.jobs:
        if job.waits(step):
            demand = sums.setdefault(job.lacking, [0, 0])
            demand[0] += 1
            demand[1] += max(1, len(job.gpus)) * job.share
    return [
        Waiting(reason="Resources", lacking=lacking, model="", jobs=jobs, share=share)
        for lacking, (jobs, share) in sums.items()
    ]


# -- the accounts --------------------------------------------------------------------------------------


def write(world: KnownHost, path: Path, account: AccountOf | None = None) -> None:
    """Write the accounts of a history; the zone is that of this process. `account`: of an ended job."""
    users = sorted({job.user for job in world.jobs})
    owners = {job.id: owner(job, users) for job in world.jobs}
    ledger = Ledger(path)
    end = int(world.at(world.steps))
    with ledger.write():
        ledger.add_gpus(
            GpuRecord(
                uuid=uuid(gpu), gpu=gpu, model=model, total=size * GIB, since=world.begin, until=float(end)
            )
            for gpu, (model, size) in enumerate(world.models)
        )
        _sample(world, ledger, owners, account or account_of)
        for begin in range(int(world.begin), end, HOUR):
            ledger.roll(HOUR, begin, begin + HOUR)
        for begin in range(int(world.begin), end, DAY):
            ledger.roll(DAY, begin, begin + DAY)
    ledger.close()


def _sample(world: KnownHost, ledger: Ledger, owners: dict[int, Owner], account: AccountOf) -> None:
    samples = Samples(interval=STEP)
    _store(ledger, samples.look(before(world, owners)))
    for step in range(world.steps):
        _ended(world, ledger, samples, step, owners, account)
        lost = next((one for one in world.lost if one.since <= step < one.until), None)
        if lost is None:
            _store(ledger, samples.look(look(world, step, owners)))
        elif lost.stopped and step == lost.since:
            _store(ledger, samples.finish())
            known = {job.id: usage for job in world.jobs if (usage := samples.usage(job.id)) is not None}
            samples = Samples(interval=STEP, since=world.at(step))
            for job, usage in known.items():
                samples.restore(job, usage)
        if lost is not None and step == lost.until - 1:
            _store(ledger, samples.look(look(world, step, owners)))
    _ended(world, ledger, samples, world.steps, owners, account)
    _store(ledger, samples.finish())


def before(world: KnownHost, owners: dict[int, Owner]) -> Look:
    """Return a look at the begin of the history: what follows is counted from there."""
    first = look(world, 0, owners)
    fields = {name: getattr(first, name) for name in Look.__struct_fields__}
    gpus = tuple(
        GpuLook(
            uuid=gpu.uuid,
            size=gpu.size,
            energy=0,
            temperature=gpu.temperature,
            state=gpu.state,
            why=gpu.why,
            throttled=(),
        )
        for gpu in first.gpus
    )
    return Look(**fields | {"wall": world.begin, "clock": world.begin, "gpus": gpus, "jobs": ()})


def _ended(
    world: KnownHost,
    ledger: Ledger,
    samples: Samples,
    step: int,
    owners: dict[int, Owner],
    account: AccountOf,
) -> None:
    for job in world.jobs:
        if job.end == step:
            ledger.add_samples(samples.end(job.id))
            ledger.add_jobs([account(world, job, owners[job.id])])


def _store(ledger: Ledger, samples: list) -> None:
    for sample in samples:
        if isinstance(sample, Minute):
            ledger.add_minute(sample)
        elif isinstance(sample, Gap):
            ledger.add_gap(sample)
        elif isinstance(sample, HealthEvent):
            ledger.add_health([sample])
        elif isinstance(sample, JobSample):
            ledger.add_samples([sample])


def account_of(world: KnownHost, job: Job, owner: Owner) -> JobAccount:
    """Return what the controller hands to the accounts at the end of a job."""
    seconds = sum(until - since for since, until in job.attempts) * STEP
    return an_ended_job(
        id=job.id,
        owner=owner,
        name=job.name,
        state=job.state,
        reason="None",
        submitted_at=world.at(job.eligible),
        eligible_at=world.at(job.eligible_again),
        started_at=None if job.start is None else world.at(job.start),
        ended_at=world.at(job.end or 0),
        time_limit=job.limit * HOUR,
        gpus=len(job.gpus),
        share=job.share if job.gpus else 0,
        memory=world.memory(job),
        cpus=4,
        host_memory=HOST_MEMORY,
        model=world.models[job.gpus[0]][0] if job.gpus else "",
        array_job=job.array or None,
        array_task=job.task,
        exit_code=job.exit,
        signal=job.signal,
        restarts=len(job.earlier),
        oom=job.oom,
        refusals=1 if job.refused else 0,
        refused=job.refused * GIB,
        charged=seconds * sum(world.charge(job, gpu) for gpu in job.gpus) / WHOLE,
        cpu_seconds=1.0 * ((job.end or 0) - (job.start or 0)) * STEP,
        max_rss=LARGEST,
        gpu_peak=job.peak * GIB,
        output=f"/home/{job.user}/{job.name}-{job.id}.out",
    )


# -- the history of the tests --------------------------------------------------------------------------

with history.zone():
    BEGIN = history.ts(history.at(2026, 11, 5))  # a Thursday
DAYS_BEFORE = 4  # the Monday of the week is step 4 x 288


def t(day: int, hour: float = 0) -> int:
    """Return the step of an hour of the week from Monday 9 November on."""
    return round((DAYS_BEFORE + day) * 288 + hour * 12)


def _busy(gpus: tuple[int, ...], since: int, until: int, sm: int, memory: int) -> tuple[Process, ...]:
    return (Process(gpus, since, until, sm, memory),)


def a_job(
    id: int,
    user: str,
    name: str,
    gpus: tuple[int, ...],
    since: int | None,
    until: int | None,
    *,
    use: tuple[int, int] | None = None,
    **more: object,
) -> Job:
    """A job that ran between two steps, and could start at the first of them.

    `use`: the SM share and the memory of a process that was there all the time, on all GPUs of the job.
    """
    fields = {"id": id, "user": user, "name": name, "gpus": gpus}
    fields |= {"eligible": since, "start": since, "end": until}
    fields |= {"processes": _busy(gpus, since, until, *use)} if use else {}
    return Job(**fields | more)


def _sweep(first: int, since: int, state: str = "COMPLETED") -> tuple[Job, ...]:
    """Four tasks of an array on quarters of GPU 1, for half an hour."""
    return tuple(
        a_job(
            first + at,
            "ben",
            "sweep",
            (1,),
            since,
            since + 6,
            use=(2000, 9),
            eligible=t(0, 9),
            share=2500,
            memory=20,
            state=state,
            exit=int(state == "FAILED"),
            account="nlp",
            tag="paper",
            array=first - first % 10,
            task=first % 10 + at,
        )
        for at in range(4)
    )


JOBS = (
    # Begins before the week: 4 of 14 hours are in it.
    a_job(1, "ann", "vit", (0,), t(-1, 20), t(0, 10), eligible=t(-1, 19), use=(9000, 70), memory=76),
    a_job(2, "ann", "vit", (0,), t(0, 11), t(1, 11), eligible=t(0, 10), use=(9000, 72), memory=76),
    *_sweep(10, t(0, 9)),
    *_sweep(14, t(0, 9.5), "FAILED"),
    # Two GPUs, and a process on the first one only.
    a_job(
        20,
        "mei",
        "pair",
        (2, 3),
        t(0, 12),
        t(0, 18),
        processes=_busy((2,), t(0, 12), t(0, 18), 8000, 30),
        lacking="gpus",
    ),
    # Two GPUs, and processes on both, but only after half of the time.
    a_job(
        21,
        "mei",
        "late-pair",
        (2, 3),
        t(1, 6),
        t(1, 14),
        eligible=t(1, 0),
        processes=_busy((2, 3), t(1, 10), t(1, 14), 9000, 40),
        lacking="gpus",
    ),
    # The first process comes after four of eight hours.
    *(
        a_job(
            22 + at,
            "ines",
            "prep",
            (1,),
            t(1 + at, 8),
            t(1 + at, 16),
            share=5000,
            processes=_busy((1,), t(1 + at, 12), t(1 + at, 16), 4500, 30),
        )
        for at in range(2)
    ),
    # Holds the memory of a whole GPU and computes nothing.
    a_job(24, "jonas", "hold", (0,), t(1, 12), t(1, 22), use=(50, 78), memory=80, state="TIMEOUT", limit=10),
    a_job(
        25,
        "grace",
        "seg",
        (0,),
        t(2, 9),
        t(2, 10),
        eligible=t(2, 8),
        use=(2000, 20),
        share=2500,
        memory=20,
        state="OUT_OF_MEMORY",
        oom="gpu",
        refused=4,
        exit=1,
    ),
    a_job(
        26,
        "hiro",
        "load",
        (0,),
        t(2, 9),
        t(2, 9.5),
        eligible=t(2, 8),
        use=(2000, 5),
        share=2500,
        memory=20,
        state="OUT_OF_MEMORY",
        oom="host",
        exit=0,
        signal=125,
    ),
    a_job(27, "kim", "convert", (), t(2, 11), t(2, 14), eligible=t(2, 10), lacking="cpus"),
    a_job(28, "lee", "never", (0,), None, t(2, 12), eligible=t(2, 10), state="CANCELLED"),
    a_job(29, "lee", "too-late", (0,), None, t(3, 10), eligible=t(2, 10), state="DEADLINE"),
    # Preempted and requeued once.
    a_job(
        30,
        "nora",
        "low",
        (0,),
        t(2, 16),
        t(2, 19),
        eligible=t(2, 12),
        earlier=((t(2, 12), t(2, 14)),),
        processes=(*_busy((0,), t(2, 13.5), t(2, 14), 9500, 60), *_busy((0,), t(2, 17), t(2, 19), 9500, 60)),
        memory=70,
    ),
    a_job(
        31,
        "nora",
        "lower",
        (1,),
        t(3, 9),
        t(3, 10),
        eligible=t(3, 8),
        use=(5000, 20),
        share=5000,
        state="PREEMPTED",
    ),
    a_job(32, "omar", "md", (3,), t(3, 8), t(3, 14), use=(9900, 12), state="NODE_FAIL", limit=48),
    # Without a process; and a card larger than its peak needs.
    a_job(33, "pia", "empty", (2,), t(3, 9), t(3, 11), share=5000),
    a_job(34, "pia", "small", (1,), t(4, 0), t(4, 6), use=(4000, 6), share=5000, limit=72),
    # Over both times without samples.
    a_job(35, "quentin", "long", (2,), t(2, 20), t(3, 8), use=(4000, 20), share=5000),
    a_job(36, "quentin", "long", (2,), t(5, 0), t(5, 12), use=(4000, 20), share=5000),
    # Runs on a GPU that is drained meanwhile.
    a_job(37, "ann", "vit", (0,), t(4, 8), t(4, 20), use=(9000, 72), memory=76),
    # Ends after the week, and does not end at all.
    a_job(38, "ann", "vit", (0,), t(6, 13), t(7, 9), eligible=t(6, 12), use=(9000, 72), memory=76),
    a_job(
        39,
        "rosa",
        "endless",
        (1,),
        t(6, 18),
        None,
        share=5000,
        processes=_busy((1,), t(6, 18), t(20), 4000, 30),
    ),
    a_job(40, "rosa", "waiting", (0,), None, None, eligible=t(9, 6), lacking="gpus"),
    # The week before.
    a_job(41, "ann", "vit", (0,), t(-3, 10), t(-3, 20), eligible=t(-3, 8), use=(9000, 72), memory=76),
    a_job(
        42,
        "ben",
        "sweep",
        (1,),
        t(-3, 8),
        t(-3, 9),
        use=(2000, 9),
        share=2500,
        memory=20,
        state="FAILED",
        exit=1,
    ),
    # Two processes on one GPU beside a job of another user.
    a_job(
        43,
        "sven",
        "gnn",
        (3,),
        t(5, 14),
        t(5, 18),
        share=5000,
        processes=(*_busy((3,), t(5, 14), t(5, 18), 60, 10), *_busy((3,), t(5, 15), t(5, 16), 3000, 4)),
    ),
)
STRANGERS = (
    Stranger(3, t(0, 9), t(0, 10), "viz", "paraview", 501, 2),
    Stranger(3, t(5, 15), t(5, 16), "viz", "paraview", 777, 2),
    Stranger(2, t(2, 20), t(3, 6), "root", "python -m server", 900, 12, 500),
    Stranger(2, t(2, 22), t(3, 1), "root", "python -m server", 901, 4),
    Stranger(1, t(-1, 22), t(0, 2), "viz", "blender", 510, 8),
    *(Stranger(2, t(1, 3) + at // 2, t(1, 3) + at // 2 + 1, "eve", "loop", 2000 + at, 1) for at in range(24)),
)
HISTORY = KnownHost(
    models=(
        ("NVIDIA A100 80GB", 80),
        ("NVIDIA A100 80GB", 80),
        ("NVIDIA RTX A6000", 48),
        ("NVIDIA RTX A6000", 48),
    ),
    begin=BEGIN,
    steps=t(9, 12),
    jobs=JOBS,
    strangers=STRANGERS,
    downs=(
        Down(3, t(3, 14), t(4, 10), "Xid 79"),
        Down(0, t(4, 12), t(4, 22), "fan"),
        Down(2, t(4, 20), t(5, 4), "ECC"),  # comes back while no controller runs
        Down(1, t(9, 9), t(20), "cable"),  # not back
    ),
    lost=(Lost(t(2, 23), t(3, 2)), Lost(t(5, 3), t(5, 5.5), stopped=True)),
    xids=((3, t(3, 14), 79),),
    hot=((1, t(4, 1), t(4, 3)),),
)
