"""Workloads: tasks with a submission time, a demand and a run time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fgsched.domain.errors import FgschedError
from fgsched.domain.job import Demand, Gpu, HostLimits, Job, Request
from fgsched.domain.policy import Policy
from fgsched.scheduling.admission import check_demand


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
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
    kept, refused = [], 0
    for task in tasks:
        if task.demand not in fits:
            fits[task.demand] = _could_run(task.demand, gpus, limits)
        if fits[task.demand]:
            kept.append(task)
        else:
            refused += 1
    return kept, refused


def _could_run(demand: Demand, gpus: Sequence[Gpu], limits: HostLimits) -> bool:
    try:
        check_demand(demand, gpus, limits)
    except FgschedError:
        return False
    return True
