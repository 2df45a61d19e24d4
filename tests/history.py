"""Made histories for the tests and pictures of reports: jobs on simulated GPUs, written through the Ledger.

FORTNIGHT is one host over two weeks, with failures, wastes, a GPU that is down, processes from outside, and
two hours without samples. All is drawn from a fixed seed. Times are in the zone of ZONE.
"""

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from msgspec import Struct
from msgspec.structs import replace

from endedjobs import an_ended_job
from fgsched.accounting.ledger import Ledger
from fgsched.accounting.records import (
    ForeignUse,
    Gap,
    GpuRecord,
    GpuUseRecord,
    HealthEvent,
    JobAccount,
    Minute,
    Owner,
    OwnerUse,
    WaitingRecord,
    Warned,
)
from fgsched.domain.job import JobUsage
from fgsched.domain.times import DAY, HOUR

ZONE = "Europe/Berlin"
GIB = 1 << 30
FINE = 300  # seconds: the step of the last day
WHOLE = 10_000


class Habit(Struct, frozen=True, kw_only=True):
    """What one user runs under one name."""

    user: str
    name: str
    a_week: int
    hours: float  # median run
    gpus: int = 1
    share: int = WHOLE  # ten-thousandths of each GPU
    memory: float = 0.0  # GiB asked for on each GPU
    peak: float = 4.0  # GiB
    limit: float = 24.0  # hours
    model: str = ""
    sm: float = 0.9  # of the share, while it computes
    busy: float = 0.98  # part of the time after the setup
    setup: float = 0.02  # hours before the first GPU process
    idle_gpus: int = 0  # on which it starts no process
    burst: int = 1  # jobs submitted together
    account: str = "lab"
    partition: str = "gpu"
    tag: str = ""
    ends: tuple[tuple[str, float], ...] = ()  # state and its probability; "oom-gpu", "oom-host"
    cpus: int = 4
    cpus_used: float = 0.4


class Foreign(Struct, frozen=True):
    """A process outside of jobs."""

    gpu: int
    since: datetime
    until: datetime
    user: str
    command: str
    memory: float  # GiB
    pid: int


class Plan(Struct, frozen=True, kw_only=True):
    """A host and what happens on it."""

    models: tuple[tuple[str, int], ...]  # name, GiB
    habits: tuple[Habit, ...]
    since: datetime
    weeks: int = 2
    seed: int = 46
    down: tuple[tuple[int, datetime, datetime], ...] = ()
    foreign: tuple[Foreign, ...] = ()
    gaps: tuple[tuple[datetime, datetime], ...] = ()
    health: tuple[tuple[int, datetime, str, str], ...] = ()
    quiet: float = 0.8  # activity of the first week, of the last


class Run(Struct):
    """One job of the simulation. Times are in epoch seconds."""

    id: int
    habit: Habit
    submitted: float
    length: float  # seconds
    state: str
    peak: int  # bytes
    started: float | None = None
    ended: float = 0.0
    gpus: tuple[int, ...] = ()


def at(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, tzinfo=ZoneInfo(ZONE))


@contextmanager
def zone(name: str = ZONE) -> Iterator[None]:
    """Set the zone of this process, and set it back at the end."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ")
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()


# -- the plans -----------------------------------------------------------------------------------------

FAILS = (("FAILED", 0.05),)
HABITS = (
    Habit(
        user="ann",
        name="vit-large",
        a_week=17,
        hours=15,
        memory=72,
        peak=70,
        model="A100",
        sm=0.93,
        account="vision",
    ),
    Habit(
        user="mei",
        name="diffusion-2gpu",
        a_week=9,
        hours=4.8,
        gpus=2,
        memory=40,
        peak=33,
        idle_gpus=1,
        account="vision",
    ),
    Habit(user="mei", name="sample", a_week=13, hours=5, share=5000, peak=12, account="vision"),
    Habit(
        user="farid",
        name="md-membrane-300K",
        a_week=11,
        hours=20,
        share=5000,
        memory=48,
        peak=11.9,
        limit=48,
        model="A100",
        sm=0.95,
        account="chem",
    ),
    Habit(
        user="dmitri",
        name="llm-ft",
        a_week=7,
        hours=9,
        gpus=2,
        memory=46,
        peak=44,
        model="A6000",
        account="nlp",
    ),
    Habit(
        user="jonas",
        name="clip-embed",
        a_week=14,
        hours=6,
        memory=0,
        peak=6.4,
        model="A100",
        sm=0.2,
        account="vision",
    ),
    Habit(
        user="lucia",
        name="cryosparc",
        a_week=12,
        hours=8.5,
        share=7500,
        peak=30,
        limit=72,
        sm=0.7,
        account="bio",
    ),
    Habit(
        user="ines",
        name="prep-and-train",
        a_week=16,
        hours=7.2,
        share=5000,
        peak=18,
        setup=4.0,
        sm=0.7,
        account="bio",
    ),
    Habit(
        user="ben",
        name="sweep",
        a_week=260,
        hours=0.6,
        share=2500,
        memory=12,
        peak=9,
        limit=4,
        burst=52,
        sm=0.85,
        ends=FAILS,
        account="nlp",
        tag="paper",
    ),
    Habit(
        user="nadia",
        name="rl-atari",
        a_week=12,
        hours=10,
        share=3000,
        memory=14,
        peak=4.2,
        limit=36,
        sm=0.13,
        cpus=4,
        cpus_used=3.95,
        account="rl",
    ),
    Habit(
        user="chloe",
        name="notebook",
        a_week=9,
        hours=8,
        share=5000,
        memory=24,
        peak=8.7,
        limit=10,
        busy=0.5,
        sm=0.6,
        account="nlp",
        partition="interactive",
        ends=(("CANCELLED", 0.1),),
    ),
    Habit(
        user="hiro",
        name="debug",
        a_week=41,
        hours=0.3,
        share=2500,
        peak=3,
        limit=2,
        busy=0.7,
        setup=0.05,
        account="rl",
        partition="interactive",
        ends=(("FAILED", 0.3), ("CANCELLED", 0.15)),
    ),
    Habit(
        user="grace",
        name="seg-3d-unet",
        a_week=14,
        hours=2.5,
        share=2500,
        memory=20,
        peak=20,
        sm=0.85,
        ends=(("oom-gpu", 0.35),),
        account="bio",
    ),
    Habit(
        user="kemal",
        name="asr-decode",
        a_week=16,
        hours=3.4,
        share=2500,
        peak=6,
        limit=4,
        ends=(("TIMEOUT", 0.3),),
        account="nlp",
    ),
    Habit(
        user="elif",
        name="tabular",
        a_week=40,
        hours=0.4,
        share=1000,
        memory=3,
        peak=2,
        limit=2,
        ends=(("FAILED", 0.03),),
        account="rl",
    ),
    Habit(
        user="sven", name="gnn", a_week=36, hours=0.8, share=2500, memory=8, peak=6, limit=4, account="chem"
    ),
)
A100, A6000 = ("NVIDIA A100 80GB", 80), ("NVIDIA RTX A6000", 48)

FORTNIGHT = Plan(
    models=(A100,) * 4 + (A6000,) * 4,
    habits=HABITS,
    since=at(2026, 11, 2),
    down=(
        (5, at(2026, 11, 11, 14, 10), at(2026, 11, 12, 18, 40)),
        (2, at(2026, 11, 4, 8, 0), at(2026, 11, 4, 11, 30)),
    ),
    foreign=(
        Foreign(6, at(2026, 11, 9, 20, 0), at(2026, 11, 11, 9, 30), "viz", "paraview --server", 19.0, 48211),
        Foreign(
            3,
            at(2026, 11, 12, 11, 5),
            at(2026, 11, 12, 15, 20),
            "root",
            "python -m vllm.entrypoints.api_server",
            22.0,
            90177,
        ),
    ),
    gaps=((at(2026, 11, 14, 3), at(2026, 11, 14, 5)),),
    health=(
        (5, at(2026, 11, 11, 14, 10), "xid", "94"),
        (5, at(2026, 11, 11, 14, 10), "state", "drained"),
        (5, at(2026, 11, 12, 18, 40), "state", "ok"),
        (2, at(2026, 11, 13, 2, 15), "throttle", "heat"),
    ),
)

ONE_CARD = Plan(
    models=(("NVIDIA GeForce RTX 4090", 24),),
    habits=(
        Habit(user="wolfeschlegelsteinhausenbergerdorff", name="train", a_week=3, hours=4, peak=14.4, sm=0.5),
        Habit(user="مها", name="تجربة-التدريب-٣", a_week=6, hours=4, share=2500, memory=6, peak=3.6, sm=0.7),
        Habit(user="r2d2", name="🚀-sweep-🔥🔥", a_week=4, hours=2.5, share=2500, memory=5, peak=3.0, sm=0.7),
        Habit(
            user="žofia",
            name="resnet50-imagenet-ablation-warmup5-cosine-lr0.1-wd5e-5-seed00042",
            a_week=1,
            hours=2.8,
            share=5000,
            memory=12,
            peak=7.2,
            sm=0.6,
        ),
    ),
    since=at(2026, 11, 9),
    weeks=1,
)

SIXTEEN = Plan(
    models=(("NVIDIA H100 80GB", 80),) * 16,
    habits=tuple(replace(habit, a_week=habit.a_week * 2, model="") for habit in HABITS),
    since=at(2026, 11, 2),
    down=((11, at(2026, 11, 2), at(2026, 11, 16)),),
    health=((11, at(2026, 11, 2, 0, 1), "state", "down"),),
)

EMPTY = Plan(models=(A100,) * 4, habits=(), since=at(2026, 11, 12, 9), weeks=1)


# -- the simulation ------------------------------------------------------------------------------------


class Cards:
    """What is free on each GPU, in parts of the charge."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.free = [1.0] * len(plan.models)

    def place(self, habit: Habit, now: float) -> tuple[int, ...]:
        """Return the GPUs for a job, the fullest first; () if it does not fit."""
        fits = [
            gpu
            for gpu, (model, size) in enumerate(self.plan.models)
            if habit.model in model
            and self.free[gpu] >= charge(habit, size) - 1e-9
            and not any(down == gpu and ts(since) <= now < ts(until) for down, since, until in self.plan.down)
        ]
        fits.sort(key=lambda gpu: (self.free[gpu], gpu))
        return tuple(fits[: habit.gpus]) if len(fits) >= habit.gpus else ()

    def take(self, run: Run, sign: int) -> None:
        for gpu in run.gpus:
            self.free[gpu] -= sign * charge(run.habit, self.plan.models[gpu][1])


def ts(moment: datetime) -> float:
    return moment.timestamp()


def asked_bytes(habit: Habit, size: int) -> int:
    """Return the bytes that a job gets on a GPU of `size` GiB."""
    return int(min(habit.memory or size * habit.share / WHOLE, size) * GIB)


def charge(habit: Habit, size: int) -> float:
    """Return the part of a GPU of `size` GiB that a job is charged."""
    return max(habit.share / WHOLE, asked_bytes(habit, size) / (size * GIB))


def submissions(plan: Plan) -> list[Run]:
    draw = random.Random(plan.seed)
    runs: list[Run] = []
    for week in range(plan.weeks):
        for habit in plan.habits:
            last = week == plan.weeks - 1
            number = habit.a_week if last else max(1, round(habit.a_week * plan.quiet))
            for _ in range(0, number, habit.burst):
                day = draw.choices(range(7), (5, 5, 5, 5, 5, 2, 1))[0]
                clock = min(max(draw.gauss(14, 4), 0.2), 23.5)
                begin = plan.since + timedelta(days=7 * week + day, hours=clock)
                runs += [
                    _submitted(habit, ts(begin) + 2 * at, draw) for at in range(min(habit.burst, number))
                ]
    runs.sort(key=lambda run: run.submitted)
    for number, run in enumerate(runs, 40_001):
        run.id = number
    return runs


def _submitted(habit: Habit, moment: float, draw: random.Random) -> Run:
    state, chance = "COMPLETED", draw.random()
    for name, probability in habit.ends:
        if chance < probability:
            state = name
            break
        chance -= probability
    length = habit.hours * HOUR * draw.lognormvariate(0, 0.35)
    if state != "COMPLETED":
        length *= draw.uniform(0.05, 0.9)
    length = min(length, habit.limit * HOUR * 0.9)
    if state == "TIMEOUT":
        length = habit.limit * HOUR
    peak = int(habit.peak * GIB * draw.uniform(0.85, 1.0))
    moment = moment // 60 * 60
    return Run(0, habit, moment, max(60.0, length // 60 * 60), state, peak)


def simulate(plan: Plan) -> tuple[list[Run], dict[int, Counter[str]]]:
    """Return the ended jobs, and the minutes that jobs waited for each lack, by hour."""
    gpus, waiting, running, done = Cards(plan), [], [], []
    ahead, demand = submissions(plan)[::-1], defaultdict(Counter)
    end = ts(plan.since + timedelta(weeks=plan.weeks))
    downs = {(gpu, ts(since)) for gpu, since, _ in plan.down}
    now = ts(plan.since)
    while now < end:
        while ahead and ahead[-1].submitted <= now:
            waiting.append(ahead.pop())
        broken = {gpu for gpu, since in downs if since == now}
        for run in list(running):
            if set(run.gpus) & broken:
                run.state, run.length = "NODE_FAIL", now - run.started
            if run.started + run.length <= now:
                running.remove(run)
                gpus.take(run, -1)
                run.ended = now
                done.append(run)
        for run in list(waiting):
            places = gpus.place(run.habit, now)
            if places:
                run.started, run.gpus = now, places
                gpus.take(run, 1)
                waiting.remove(run)
                running.append(run)
            elif now - run.submitted > 30 * HOUR:
                break
        for run in waiting:
            demand[int(now // HOUR * HOUR)][_lack(run, gpus)] += 1
        now += 60
    for run in running:  # still run: charged so far, and not ended
        run.ended = 0.0
    return done + running, demand


def _lack(run: Run, gpus: Cards) -> str:
    if run.habit.gpus > 1:
        return "gpus"
    if run.habit.model:
        return "type"
    return "memory" if run.habit.memory else "share"


# -- the records ---------------------------------------------------------------------------------------


def overlap(since: float, until: float, begin: float, end: float) -> float:
    """Return the seconds that two spans have in common."""
    return max(0.0, min(until, end) - max(since, begin))


class Writer:
    """Turns runs into the records of the accounts."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.runs, self.demand = simulate(plan)
        self.end = ts(plan.since + timedelta(days=7 - plan.since.weekday(), weeks=plan.weeks - 1))
        self.gpus = [
            GpuRecord(
                uuid=f"GPU-{gpu:04d}",
                gpu=gpu,
                model=model,
                total=size * GIB,
                since=ts(plan.since),
                until=self.end,
            )
            for gpu, (model, size) in enumerate(plan.models)
        ]
        self.users = {
            name: number for number, name in enumerate(sorted({one.user for one in plan.habits}), 1001)
        }

    def owner(self, habit: Habit) -> Owner:
        return Owner(
            uid=self.users[habit.user],
            user=habit.user,
            account=habit.account,
            partition=habit.partition,
            tag=habit.tag,
        )

    def charge(self, run: Run, gpu: int) -> float:
        return charge(run.habit, self.plan.models[gpu][1])

    def seconds(self, run: Run, gpu: int, since: float, until: float) -> tuple[float, float, float]:
        """Return the seconds of a run on a GPU in a span: active, held, empty."""
        if run.started is None:
            return 0.0, 0.0, 0.0
        end = run.ended or self.end
        first = run.started + run.habit.setup * HOUR
        whole = overlap(since, until, run.started, end) - self.lost(max(since, run.started), min(until, end))
        working = min(whole, overlap(since, until, first, end))
        if run.gpus.index(gpu) >= run.habit.gpus - run.habit.idle_gpus:
            working = 0.0
        return working * run.habit.busy, working * (1 - run.habit.busy), whole - working

    def lost(self, since: float, until: float) -> float:
        return sum(overlap(since, until, ts(begin), ts(end)) for begin, end in self.plan.gaps)

    def job(self, run: Run) -> JobAccount:
        habit, state = run.habit, run.state
        oom = state.removeprefix("oom-") if state.startswith("oom-") else ""
        total = min(self.plan.models[gpu][1] for gpu in run.gpus)
        limit = asked_bytes(habit, total)
        usage = self.usage(run)
        return an_ended_job(
            id=run.id,
            owner=self.owner(habit),
            name=habit.name,
            state="OUT_OF_MEMORY" if oom else state,
            reason="None",
            submitted_at=run.submitted,
            eligible_at=run.submitted,
            started_at=run.started,
            ended_at=run.ended,
            time_limit=int(habit.limit * HOUR),
            gpus=habit.gpus,
            share=habit.share,
            memory=limit,
            cpus=habit.cpus,
            host_memory=16 * GIB,
            model=self.plan.models[run.gpus[0]][0],
            exit_code=1 if state == "FAILED" else 0,
            oom=oom,
            refusals=1 if oom == "gpu" else 0,
            refused=int((1 + run.id % 5) * 0.9 * GIB) if oom == "gpu" else 0,
            charged=sum(self.charge(run, gpu) for gpu in run.gpus) * (run.ended - run.started),
            cpu_seconds=habit.cpus_used * (run.ended - run.started),
            max_rss=6 * GIB,
            gpu_peak=min(limit, run.peak),
            usage=usage,
            request=f'{{"demand":{{"gpu_type":"{habit.model}"}}}}' if habit.model else "{}",
            output=f"/home/{habit.user}/{habit.name}-{run.id}.out",
        )

    def usage(self, run: Run) -> JobUsage:
        parts = {gpu: self.seconds(run, gpu, run.started, run.ended) for gpu in run.gpus}
        charge = {gpu: self.charge(run, gpu) for gpu in run.gpus}
        active, held, empty = (sum(charge[gpu] * parts[gpu][one] for gpu in run.gpus) for one in (0, 1, 2))
        length = run.ended - run.started
        first = min(run.habit.setup * HOUR, length)
        return JobUsage(
            sampled=length - self.lost(run.started, run.ended),
            charged=active + held + empty,
            active=active,
            held=held,
            empty=empty,
            used=active * run.habit.sm,
            memory=float(run.peak) * length * len(run.gpus),
            peak=run.peak,
            with_process=length - first,
            busy=(length - first) * run.habit.busy,
            longest_idle=max(first, (length - first) * (1 - run.habit.busy) / 3),
            first_process=first if length > first else None,
            energy=active * 300,
        )

    def span(self, since: float, length: int) -> Minute:
        """Return the record of one span, of any length, as that of a minute."""
        until, owners, uses = since + length, {}, []
        near = [
            run
            for run in self.runs
            if run.started is not None and run.started < until and (run.ended or until) > since
        ]
        foreign = [one for one in self.plan.foreign if overlap(since, until, ts(one.since), ts(one.until))]
        for gpu in self.gpus:
            uses += self._gpu(gpu, near, foreign, since, until, owners)
        return Minute(
            at=int(since),
            gpus=tuple(uses),
            owners=tuple(owners.values()),
            foreign=tuple(
                ForeignUse(
                    at=int(since),
                    uuid=self.gpus[one.gpu].uuid,
                    user=one.user,
                    command=one.command,
                    pid=one.pid,
                    since=max(since, ts(one.since)),
                    until=min(until, ts(one.until)),
                    seconds=overlap(since, until, ts(one.since), ts(one.until)),
                    memory=one.memory * GIB * overlap(since, until, ts(one.since), ts(one.until)),
                    peak=int(one.memory * GIB),
                )
                for one in foreign
            ),
            demand=self._demand(since, length),
        )

    def _demand(self, since: float, length: int) -> tuple[WaitingRecord, ...]:
        part = length / HOUR
        return tuple(
            WaitingRecord(
                at=int(since),
                reason="Resources",
                lacking=lack,
                model="A100" if lack == "type" else "",
                seconds=min(60.0 * minutes, HOUR) * part,
                job_seconds=60.0 * minutes * part,
                gpu_seconds=30.0 * minutes * part,
                most=1 + minutes // 60,
            )
            for lack, minutes in sorted(self.demand.get(int(since // HOUR * HOUR), {}).items())
        )

    def _gpu(self, gpu, near, foreign, since, until, owners) -> list[GpuUseRecord]:
        sampled = until - since - self.lost(since, until)
        if sampled <= 0:
            return []
        down = sum(
            overlap(since, until, ts(begin), ts(end))
            for index, begin, end in self.plan.down
            if index == gpu.gpu
        )
        sums, jobs, packed = [0.0, 0.0, 0.0], 0, 0.0
        used = memory = 0.0
        peak = 0
        for run in near:
            if gpu.gpu not in run.gpus:
                continue
            parts = self.seconds(run, gpu.gpu, since, until)
            if not sum(parts):
                continue
            charge = self.charge(run, gpu.gpu)
            charged = [charge * part for part in parts]
            sums = [one + more for one, more in zip(sums, charged, strict=True)]
            jobs, packed = jobs + 1, min(sampled, packed + sum(parts))
            held = run.peak * (parts[0] + parts[1])
            used, memory = used + charged[0] * run.habit.sm, memory + held
            peak += run.peak if held else 0
            _add(
                owners,
                OwnerUse(
                    at=int(since),
                    owner=self.owner(run.habit),
                    uuid=gpu.uuid,
                    job=run.id,
                    charged=sum(charged),
                    active=charged[0],
                    held=charged[1],
                    empty=charged[2],
                    used=charged[0] * run.habit.sm,
                    memory=held,
                    peak=run.peak,
                    energy=charged[0] * 300,
                ),
            )
        outside = sum(
            one.memory / (gpu.total / GIB) * overlap(since, until, ts(one.since), ts(one.until))
            for one in foreign
            if one.gpu == gpu.gpu
        )
        free = max(0.0, sampled - sum(sums) - down)
        external = min(free, outside)
        return [
            GpuUseRecord(
                at=int(since),
                uuid=gpu.uuid,
                sampled=sampled,
                active=sums[0],
                held=sums[1],
                empty=sums[2],
                free=free - external,
                external=external,
                down=sampled - sum(sums) - free,
                packed=packed,
                used=used,
                memory=memory,
                peak=min(gpu.total, peak),
                jobs=jobs,
                temperature=40 + int(40 * used / sampled),
                energy=60 * sampled + 240 * used,
            )
        ]


def _add(owners: dict, use: OwnerUse) -> None:
    owners[use.owner.user, use.uuid, use.job] = use


_WRITTEN: dict[int, tuple[Plan, bytes, list[JobAccount]]] = {}  # by id of the plan, which is kept


def write(plan: Plan, path: Path) -> list[JobAccount]:
    """Write a history to a file of accounts, and return its ended jobs. A second file is a copy."""
    if id(plan) not in _WRITTEN:
        jobs = _written(plan, path)
        _WRITTEN[id(plan)] = plan, path.read_bytes(), jobs
    else:
        path.write_bytes(_WRITTEN[id(plan)][1])
    return list(_WRITTEN[id(plan)][2])


def _written(plan: Plan, path: Path) -> list[JobAccount]:
    with zone():
        writer, ledger = Writer(plan), Ledger(path)
        jobs = [writer.job(run) for run in writer.runs if run.ended]
        begin, fine = ts(plan.since), writer.end - DAY
        with ledger.write():
            ledger.add_gpus(writer.gpus)
            ledger.add_jobs(jobs)
            now = begin
            while now < writer.end:
                step = FINE if now >= fine else HOUR
                ledger.add_minute(writer.span(now, step))
                now += step
            for since in range(int(begin), int(writer.end), HOUR):
                ledger.roll(HOUR, since, since + HOUR)
            day = plan.since
            while ts(day) < writer.end:
                until = day.replace(hour=0) + timedelta(days=1)
                ledger.roll(DAY, int(ts(day.replace(hour=0))), int(ts(until)))
                day = until
            _events(plan, writer, ledger, jobs)
        ledger.close()
    return jobs


def _events(plan: Plan, writer: Writer, ledger: Ledger, jobs: list[JobAccount]) -> None:
    ledger.add_health(
        HealthEvent(at=ts(moment), uuid=writer.gpus[gpu].uuid, kind=kind, detail=detail)
        for gpu, moment, kind, detail in plan.health
    )
    for since, until in plan.gaps:
        ledger.add_gap(Gap(since=ts(since), until=ts(until), why="driver did not answer"))
    warned = [job for job in jobs if job.row["name"] in ("diffusion-2gpu", "prep-and-train")][-4:]
    ledger.add_warned(
        Warned(at=at + HOUR, job=job.id, policy="idle", finding="no process", action="warning 1")
        for job in warned
        for at in (job.row["started_at"],)
    )
