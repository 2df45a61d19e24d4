"""Workloads of a simulation: tasks with a submission time, a demand and a run time, recorded or synthetic."""

import csv
import math
import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.errors import BadUsage, FgschedError
from fgsched.domain.job import WHOLE, Demand, Gpu, HostLimits, Job, Request
from fgsched.domain.policy import Policy
from fgsched.domain.text import quoted, read_json
from fgsched.domain.units import MIB
from fgsched.scheduling.admission import check_demand


class Task(Struct, frozen=True, kw_only=True):
    """One job of a workload."""

    demand: Demand
    submitted: float  # seconds since the epoch
    run: float  # seconds of run time without a time limit
    time_limit: int = 0  # seconds; 0: none
    id: int = 0  # in the trace; 0: none
    name: str = "job"
    user: str = "nobody"
    uid: int = 0
    partition: str = ""  # "": the default one
    account: str = ""
    qos: str = ""
    waited: float | None = None  # seconds of wait recorded in the trace; None: not recorded

    def job(self, number: int) -> Job:
        """Return the task as a pending job with the id `number`."""
        request = Request(
            name=self.name,
            demand=self.demand,
            partition=self.partition,
            account=self.account,
            qos=self.qos,
            time_limit=self.time_limit,
        )
        return Job(
            id=number, uid=self.uid, gid=0, user=self.user, request=request, submitted_at=self.submitted
        )

    @property
    def lasts(self) -> float:
        """Return the seconds from its start to its end."""
        return min(self.run, self.time_limit) if self.time_limit else self.run


class Workload(Struct, frozen=True, kw_only=True):
    """Tasks in the order of their submission."""

    tasks: tuple[Task, ...]
    source: str  # a description of the file or the generator
    left_out: int = 0  # jobs of the trace that never ran

    @staticmethod
    def of(tasks: Iterable[Task], source: str, *, left_out: int = 0) -> "Workload":
        """Create a workload from tasks in any order."""
        ordered = tuple(sorted(tasks, key=lambda task: task.submitted))
        return Workload(tasks=ordered, source=source, left_out=left_out)


def counted(number: int, what: str) -> str:
    """Return a number with its noun: "1 job", "2 jobs"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def known(tasks: Iterable[Task], policy: Policy) -> list[Task]:
    """Replace partitions and QOS that the site does not have by the defaults."""
    return [
        replace(
            task,
            partition=task.partition if policy.partition(task.partition) else policy.default.name,
            qos=task.qos if policy.quality(task.qos) else "",
        )
        for task in tasks
    ]


def runnable(tasks: Iterable[Task], gpus: Sequence[Gpu], limits: HostLimits) -> tuple[list[Task], int]:
    """Return the tasks that can run on an idle host, and the number of the others."""
    fits: dict[Demand, bool] = {}
    runnable_tasks, refused = [], 0
    for task in tasks:
        if task.demand not in fits:
            fits[task.demand] = _could_run(task.demand, gpus, limits)
        if fits[task.demand]:
            runnable_tasks.append(task)
        else:
            refused += 1
    return runnable_tasks, refused


def _could_run(demand: Demand, gpus: Sequence[Gpu], limits: HostLimits) -> bool:
    try:
        check_demand(demand, gpus, limits)
    except FgschedError:
        return False
    return True


# -- recorded workloads -------------------------------------------------------


_OPENB = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "name")


def read(file: str, text: str) -> Workload:
    """Parse the workload in the text of a file.

    Raises:
        BadUsage: the text has neither format, or a malformed value.
    """
    text = text.removeprefix("\ufeff")  # of a spreadsheet
    start = text.lstrip()[:1]
    return _accounts(file, text) if start == "{" else _openb(file, text)


# -- fgacct --json --------------------------------------------------------------------------------


def _accounts(file: str, text: str) -> Workload:
    try:
        jobs = read_json(text)["jobs"]
        accounts = [_job(job) for job in jobs]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BadUsage(
            f"{file}: this is not the output of fgacct --json: {error!r}", "Use fgacct --json -a -S …"
        ) from error
    tasks = [task for task in accounts if task]
    return Workload.of(
        tasks, f"{counted(len(tasks), 'job')} of {Path(file).name}", left_out=len(accounts) - len(tasks)
    )


def _job(job: dict[str, Any]) -> Task | None:
    """Return the task of one record; None for a job that never started, whose run time is unknown."""
    if job["start_time"] is None or job["req_gpu"] is None:
        return None
    submitted = float(job.get("eligible_time") or job["submit_time"])
    return Task(
        demand=_demand(job),
        submitted=submitted,
        waited=max(0.0, float(job["start_time"]) - submitted),
        run=float(job["elapsed"]),
        time_limit=int(job["time_limit"] or 0),
        id=int(job["job_id"]),
        name=str(job["name"]),
        user=str(job["user"]),
        uid=int(job["uid"]),
        partition=str(job["partition"]),
        account=str(job.get("account") or ""),
        qos=str(job.get("qos") or ""),
    )


def _demand(job: dict[str, Any]) -> Demand:
    """Return a demand for the share and the memory that were allocated to the job."""
    units = round(float(job["req_gpu"]) * WHOLE)
    cpus, memory = int(job["req_cpus"]), int(job["req_mem"] or 0)
    if not units:
        return Demand(cpus=cpus, host_memory=memory)
    gpus = max(1, units // WHOLE)
    is_part = units < WHOLE
    return Demand(
        gpus=gpus,
        share=units // gpus,
        memory=int(job["req_gpu_mem"] or 0) if is_part else 0,
        cpus=cpus,
        host_memory=memory,
    )


# -- the openb trace ------------------------------------------------------------------------------


def _openb(file: str, text: str) -> Workload:
    rows = list(csv.DictReader(text.splitlines()))
    missing = [name for name in _OPENB if not rows or name not in rows[0]]
    if missing:
        raise BadUsage(
            f"{file}: neither the output of fgacct --json nor a list of tasks in the openb format "
            f"(no column {missing[0]})",
            "Name such a file, or none for a generated workload.",
        )
    try:
        tasks, left_out = _tasks(rows)
    except (ValueError, TypeError) as error:
        raise BadUsage(f"{file}: {error}") from error
    return Workload.of(tasks, f"{counted(len(tasks), 'task')} of {Path(file).name}", left_out=left_out)


def _tasks(rows: Iterable[dict[str, str]]) -> tuple[list[Task], int]:
    tasks, left_out = [], 0
    for line, row in enumerate(rows, 2):
        try:
            task = _task_of(row)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            what = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"line {line}: {what}") from None
        left_out += task is None
        tasks += [task] if task else []
    return tasks, left_out


def _task_of(row: dict[str, str]) -> Task | None:
    """Return the task of one row; None for one that never ran. Raises ValueError, TypeError, KeyError."""
    started, ended = row.get("scheduled_time") or row["creation_time"], row["deletion_time"]
    if not started or not ended:
        return None
    gpus = _whole(row, "num_gpu")
    demand = Demand(
        gpus=gpus,
        share=(WHOLE if gpus > 1 else _whole(row, "gpu_milli") * WHOLE // 1000) if gpus else 0,
        # Any GPU model is accepted, also if the trace requested a model.
        cpus=max(1, -(-_whole(row, "cpu_milli") // 1000)),
        host_memory=_whole(row, "memory_mib") * MIB,
    )
    run = max(1.0, _finite(ended, "deletion_time") - _finite(started, "scheduled_time"))
    submitted = _finite(row["creation_time"], "creation_time")
    return Task(demand=demand, submitted=submitted, run=run, name=row["name"])


def _whole(row: dict[str, str], column: str) -> int:
    text = row[column]
    try:
        return int(text)
    except (ValueError, TypeError):
        raise ValueError(f"{column} is {quoted(text or '')}, which is no whole number") from None


def _finite(text: str, column: str) -> float:
    with suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    raise ValueError(f"{column} is {quoted(text)}, which is no number")


# -- synthetic workloads ------------------------------------------------------


# Weights of the requests: most are small, as in traces of shared hosts.
_SHARES = {1250: 18, 2500: 28, 5000: 24, 7500: 6, WHOLE: 18}
_GPU_COUNTS = {2: 3, 4: 2, 8: 1}
_MEDIAN, _SIGMA = 15 * 60, 1.3  # seconds of run time, and the standard deviation of its logarithm
_LONGEST = 12 * 3600  # seconds
_USERS = 12
_NO_LIMIT = 0.1  # fraction of the jobs that request no time limit and get a day
_DAY = 24 * 3600  # seconds


def generate(*, seed: int, hours: float, load: float, gpus: int, began: float = 0.0) -> Workload:
    """Generate jobs that are submitted within a number of hours, more of them by day than by night.

    Args:
        load: GPU time of all jobs, relative to that of the GPUs in these hours.
        gpus: number of GPUs.
        began: seconds since the epoch of the first hour, which is midnight.
    """
    chance = random.Random(seed)
    length, target = hours * 3600, load * gpus * hours * 3600
    tasks: list[Task] = []
    total = 0.0  # GPU seconds
    while total < target:
        task = _task(chance, gpus, began + _submission(chance, length))
        tasks.append(task)
        total += task.lasts * task.demand.gpus * task.demand.share / WHOLE
    return Workload.of(tasks, f"{counted(len(tasks), 'generated job')} (seed {seed})")


def _task(chance: random.Random, gpus: int, submitted: float) -> Task:
    run = min(_LONGEST, math.ceil(_MEDIAN * math.exp(chance.gauss(0, _SIGMA))))
    limit = math.ceil(run * chance.uniform(1.1, 4) / 900) * 900
    user = min(chance.randrange(_USERS), chance.randrange(_USERS))  # few users submit most jobs
    return Task(
        demand=_random_demand(chance, gpus),
        submitted=submitted,
        run=run,
        time_limit=_DAY if chance.random() < _NO_LIMIT else limit,
        user=f"user{user}",
        uid=1000 + user,
    )


def _random_demand(chance: random.Random, most: int) -> Demand:
    several = {number: weight for number, weight in _GPU_COUNTS.items() if number <= most}
    kinds = [(1, share) for share in _SHARES] + [(number, WHOLE) for number in several]
    gpus, share = chance.choices(kinds, [*_SHARES.values(), *several.values()])[0]
    return Demand(gpus=gpus, share=share)


def _submission(chance: random.Random, length: float) -> float:
    """Return the seconds from the start, which is midnight, to a submission."""
    while True:
        at = chance.uniform(0, length)
        busy = 0.6 - 0.4 * math.cos(2 * math.pi * at / _DAY)
        if chance.random() < busy:
            return at
