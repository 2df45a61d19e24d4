"""Make the accounts of a year: a trace replayed in virtual time, and samples that go with its jobs."""

import json
import os
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fgsched.accounting.ledger import Ledger, LedgerReader
from fgsched.accounting.records import (
    ForeignUse,
    GpuRecord,
    GpuUseRecord,
    JobAccount,
    Minute,
    Owner,
    OwnerUse,
    WaitingRecord,
)
from fgsched.controller.moving import account_of
from fgsched.domain.job import WHOLE, Ended, HostLimits, Job, JobUsage, Request
from fgsched.domain.states import JobState, Reason
from fgsched.domain.times import DAY, HOUR, MINUTE
from fgsched.gpus.simulated import parse
from fgsched.simulate import SimHost, replay
from fgsched.simulate.metrics import TaskOutcome
from fgsched.simulate.workload import Task, generate, read
from fgsched.store import GpuAllocation, JobRecord

YEAR = 365 * DAY
_CARDS, _GIB = 16, 1 << 30
_ENDS = (
    (0.88, JobState.COMPLETED, Reason.NONE, 0),
    (0.94, JobState.FAILED, Reason.EXIT_CODE, 256),
    (0.97, JobState.CANCELLED, Reason.NONE, 15),
    (0.99, JobState.TIMEOUT, Reason.TIME_LIMIT, 15),
    (1.01, JobState.OUT_OF_MEMORY, Reason.GPU_OUT_OF_MEMORY, 256),
)
_RLIMITS = tuple((number, -1, -1) for number in range(16))
_BATCH = 2000  # jobs of a transaction
Used = dict[tuple[int, int, Owner], float]  # (hour, card, owner) -> GPU seconds


class Year(Struct, frozen=True, kw_only=True):
    """What was made."""

    source: str
    jobs: int
    began: float  # epoch seconds
    job_bytes: int  # size of the file when it had the jobs only
    size: int  # bytes


def make(path: Path, *, jobs: int, users: int, until: float, seed: int = 1, minutes: int = 14) -> Year:
    """Make accounts at `path`, of a year that ends at `until` (epoch seconds).

    Args:
        minutes: days at the end of the year with samples of each minute.
    """
    chance = random.Random(seed)
    source, outcomes = _replayed()
    owners = _owners(users)
    began = until // DAY * DAY - YEAR
    ledger = Ledger(path)
    used: Used = defaultdict(float)
    waited: dict[int, float] = defaultdict(float)  # hour -> job seconds
    with ledger.write():
        ledger.add_gpus(_gpus(began, until))
    batch: list[JobAccount] = []
    for account in _accounts(outcomes, jobs, owners, began, chance):
        batch.append(account)
        _count(account, used, waited)
        if len(batch) == _BATCH:
            _add(ledger, batch)
            batch = []
    _add(ledger, batch)
    job_bytes = ledger.size
    _add_samples(ledger, used, waited, began, until, minutes)
    size = ledger.size
    ledger.close()
    return Year(source=source, jobs=jobs, began=began, job_bytes=job_bytes, size=size)


def kept(path: Path, until: float) -> Year:
    """Return the year of a file that an earlier run made."""
    reader = LedgerReader(path)
    jobs = reader.last_id()
    reader.close()
    began = until // DAY * DAY - YEAR
    return Year(source="an earlier run", jobs=jobs, began=began, job_bytes=0, size=path.stat().st_size)


def _replayed() -> tuple[str, Sequence[TaskOutcome]]:
    """Return what a host of 16 GPUs made of the openb trace, or of generated jobs where it is missing."""
    site = SimHost(gpus=parse(f"sim:{_CARDS}x80G:A100"), limits=HostLimits(cpus=1 << 12, host_memory=1 << 50))
    folder = os.environ.get("FG_OPENB")
    if not folder:
        tasks = generate(seed=1, hours=72, load=0.9, gpus=_CARDS).tasks
        return "generated jobs", replay(tasks, site).outcomes
    file = Path(folder) / "openb_pod_list_default.csv"
    kept = [one for one in read(str(file), file.read_text()).tasks if one.demand.gpus and one.run <= DAY]
    tasks = _in_time([one for one in kept if one.demand.gpus <= 8], 0.9)
    return "the openb trace", replay(tasks, site).outcomes


def _in_time(tasks: Sequence[Task], load: float) -> list[Task]:
    """Return the tasks with times compressed to this load of the GPUs."""
    work = sum(one.run * one.demand.gpus * (one.demand.share or WHOLE) for one in tasks) / WHOLE
    first, last = tasks[0].submitted, tasks[-1].submitted
    factor = work / (load * _CARDS) / (last - first)
    return [
        replace(one, submitted=(one.submitted - first) * factor, time_limit=-(-int(2 * one.run) // 60) * 60)
        for one in tasks
    ]


def _owners(users: int) -> list[Owner]:
    return [
        Owner(
            uid=2000 + one, user=f"user{one:02d}", account=f"group{one % 7}", partition="main", qos="normal"
        )
        for one in range(users)
    ]


def _gpus(began: float, until: float) -> list[GpuRecord]:
    return [
        GpuRecord(uuid=f"GPU-{one}", gpu=one, model="A100", total=80 * _GIB, since=began, until=until)
        for one in range(_CARDS)
    ]


def _accounts(
    outcomes: Sequence[TaskOutcome], jobs: int, owners: Sequence[Owner], began: float, chance: random.Random
) -> Iterator[JobAccount]:
    """Yield jobs: the replayed trace again and again, so fast that all of them fill the year."""
    last = max(one.ended for one in outcomes)
    rounds = jobs / len(outcomes)
    factor = YEAR / rounds / last
    weights = [1 / (place + 1) for place in range(len(owners))]
    ordered = sorted(outcomes, key=lambda one: one.task.submitted)
    for number in range(jobs):
        turn, place = divmod(number, len(ordered))
        (owner,) = chance.choices(owners, weights)
        yield _account(ordered[place], number + 1, owner, began + turn * YEAR / rounds, factor, chance)


def _account(
    outcome: TaskOutcome, number: int, owner: Owner, began: float, factor: float, chance: random.Random
) -> JobAccount:
    """Return the account of a job; `factor` multiplies the times of the trace."""
    times = [
        began + at * factor for at in (outcome.task.submitted, outcome.runs[-1].began, outcome.runs[-1].ended)
    ]
    luck = chance.random()
    _, state, reason, status = next(one for one in _ENDS if luck < one[0])
    job = Job(
        id=number,
        uid=owner.uid,
        gid=owner.uid,
        user=owner.user,
        request=_request(outcome.task, number, owner, factor),
        submitted_at=times[0],
        state=state,
        reason=reason,
        attempt=1,
        partition="main",
        slot=number % 40 + 1,
        started_at=times[1],
        ended_at=times[2],
        boot="0b0c9d0e-2f3a-4b5c-8d6e-7f8091a2b3c4",
        tier="shim",
        ended=Ended(status=status, cpu_seconds=times[2] - times[1], max_rss=3 * _GIB, gpu_peak=9 * _GIB),
    )
    steps = (
        (1, times[1], "PENDING", "CONFIGURING", "None"),
        (1, times[1], "CONFIGURING", "RUNNING", "None"),
        (1, times[2], "RUNNING", state.value, reason.value),
    )
    material = (f"{number % 5000}:0123456789abcdef", f"{number % 900}:fedcba9876543210")
    account = account_of(JobRecord(job, _given(outcome, number)), steps, material=material, host="host")
    return replace(account, usage=_usage(account))


def _request(task: Task, number: int, owner: Owner, factor: float) -> Request:
    name = f"train{number % 13}"
    return Request(
        name=name,
        demand=task.demand,
        partition="main",
        account=owner.account,
        qos=owner.qos,
        time_limit=int(task.time_limit * factor),
        chdir=f"/home/{owner.user}/project",
        submit_dir=f"/home/{owner.user}/project",
        output="logs/%x-%j.out",
        rlimits=_RLIMITS,
        submit_line=f"fgsub --gpus={task.demand.share / WHOLE:g} {name}.sh --seed {number}",
    )


def _given(outcome: TaskOutcome, number: int) -> tuple[GpuAllocation, ...]:
    """Return an allocation on cards that follow from the number of the job."""
    demand = outcome.task.demand
    share = demand.share or WHOLE
    return tuple(
        GpuAllocation(gpu, f"GPU-{gpu}", "A100", share, 80 * _GIB * share // WHOLE, share)
        for gpu in {(number + place) % _CARDS for place in range(max(1, demand.gpus))}
    )


def _usage(account: JobAccount) -> JobUsage:
    seconds, charged = account.row["ended_at"] - account.row["started_at"], account.charged
    return JobUsage(
        sampled=seconds,
        charged=charged,
        active=charged * 0.75,
        held=charged * 0.15,
        empty=charged * 0.1,
        used=charged * 0.5,
        memory=seconds * account.row["gpu_peak"],
        peak=account.row["gpu_peak"],
        with_process=seconds * 0.9,
        busy=seconds * 0.75,
        longest_idle=seconds * 0.1,
        energy=charged * 250.0,
        neighbours=((account.id + 1, seconds / 2),),
    )


def _count(account: JobAccount, used: Used, waited: dict[int, float]) -> None:
    """Add a job to the GPU seconds of its owner in each hour, and its wait to the demand."""
    begin, end = account.row["started_at"], account.row["ended_at"]
    gpus = [allocation[0] for allocation in json.loads(account.row["allocated"])]
    part = account.charged / max(1e-9, end - begin) / len(gpus)
    hour = int(begin // HOUR) * HOUR
    while hour < end:
        seconds = min(end, hour + HOUR) - max(begin, hour)
        for gpu in gpus:
            used[hour, gpu, account.owner] += seconds * part
        hour += HOUR
    submitted = account.row["submitted_at"]
    waited[int(submitted // HOUR) * HOUR] += begin - submitted


def _add(ledger: Ledger, jobs: Sequence[JobAccount]) -> None:
    with ledger.write():
        ledger.add_jobs(jobs)


# -- samples -------------------------------------------------------------------------------------------


def _add_samples(
    ledger: Ledger, used: Used, waited: dict[int, float], began: float, until: float, minutes: int
) -> None:
    """Add one record of each hour, and of each minute of the last days; sum them to hours and days."""
    by_hour: dict[int, list[tuple[int, Owner, float]]] = defaultdict(list)
    for (hour, gpu, owner), seconds in used.items():
        by_hour[hour].append((gpu, owner, seconds))
    fine = until - minutes * DAY
    for day in range(int(began), int(until), DAY):
        with ledger.write():
            for hour in range(day, min(day + DAY, int(until)), HOUR):
                pieces = HOUR // MINUTE if hour >= fine else 1
                for place in range(pieces):
                    at = hour + place * MINUTE
                    ledger.add_minute(_minute(at, by_hour.get(hour, []), waited.get(hour, 0.0), pieces))
                ledger.roll(HOUR, hour, hour + HOUR)
            ledger.roll(DAY, day, day + DAY)
            while day < fine and ledger.prune(MINUTE, day + DAY):
                pass


def _minute(at: int, owners: list[tuple[int, Owner, float]], waited: float, pieces: int) -> Minute:
    """Return what happened in an hour, or in one of its equal pieces."""
    length = HOUR / pieces
    busy: dict[int, float] = defaultdict(float)
    for gpu, _, seconds in owners:
        busy[gpu] += seconds / pieces
    return Minute(
        at=at,
        gpus=tuple(_gpu_use(at, gpu, min(busy[gpu], length), length) for gpu in range(_CARDS)),
        owners=tuple(_owner_use(at, gpu, owner, seconds / pieces) for gpu, owner, seconds in owners),
        foreign=(
            ForeignUse(
                at=at,
                uuid="GPU-0",
                user="eve",
                command="python",
                pid=1,
                since=at,
                until=at + length,
                seconds=length,
                memory=1e9,
            ),
        ),
        demand=(
            WaitingRecord(
                at=at,
                reason="Resources",
                lacking="share",
                model="",
                seconds=min(length, waited / pieces),
                job_seconds=waited / pieces,
                most=3,
            ),
        ),
    )


def _gpu_use(at: int, gpu: int, charged: float, length: float) -> GpuUseRecord:
    return GpuUseRecord(
        at=at,
        uuid=f"GPU-{gpu}",
        sampled=length,
        active=charged * 0.75,
        held=charged * 0.15,
        empty=charged * 0.1,
        free=length - charged,
        packed=min(length, 2 * charged),
        used=charged * 0.5,
        memory=charged * 9e9,
        peak=40 * _GIB,
        jobs=2,
        temperature=60,
        energy=250.0 * length,
    )


def _owner_use(at: int, gpu: int, owner: Owner, charged: float) -> OwnerUse:
    return OwnerUse(
        at=at,
        owner=owner,
        uuid=f"GPU-{gpu}",
        job=0,
        charged=charged,
        active=charged * 0.75,
        held=charged * 0.15,
        empty=charged * 0.1,
        used=charged * 0.5,
        memory=charged * 9e9,
        peak=9 * _GIB,
        energy=charged * 250.0,
    )
