"""What those need of the conductor who do a part of its turn, so that they need not know it."""

from collections.abc import Iterable
from typing import Protocol

from fgsched.controller.containment import Containment
from fgsched.controller.events import Effect, Launcher
from fgsched.controller.gpustate import GpuStates
from fgsched.controller.jobtable import JobTable
from fgsched.domain.job import Gpu, HostLimits, Job, Readings
from fgsched.domain.policy import Policy
from fgsched.jobs.lifecycle import Finish, Seen
from fgsched.store import Store


class Planned(Protocol):
    """The cards as a plan goes by them."""

    @property
    def readings(self) -> Readings: ...

    def gpus_for_planning(self, now: float) -> Iterable[Gpu]: ...


class Halting(Protocol):
    """Has jobs end, stand still and go on. The launcher is one."""

    def preempt(self, job: Job) -> bool: ...

    def suspend(self, job: Job) -> bool: ...

    def resume(self, job: Job) -> bool: ...


class Telling(Protocol):
    """Keeps in mind which jobs have yet to hear an order."""

    unheard: dict[int, float]  # jobs with an order to be given again -> when it was tried last


class PreemptionHost(Telling, Protocol):
    """A host on which jobs make room for others: that of the conductor, or one that is simulated."""

    @property
    def jobtable(self) -> JobTable: ...

    @property
    def cards(self) -> Planned: ...

    @property
    def launcher(self) -> Halting: ...

    @property
    def limits(self) -> HostLimits: ...

    @property
    def policy(self) -> Policy: ...

    def step(self, before: Job, after: Job, now: float) -> bool: ...

    def change(self, before: Job, now: float, **changes: object) -> Job: ...

    def then(self, effect: Effect) -> None: ...


class EngineContext(Telling, Protocol):
    """The turn as it is made: what there is, and how it is changed. The conductor is one."""

    jobtable: JobTable
    store: Store
    cards: GpuStates
    launcher: Launcher
    limits: HostLimits
    orphans: dict[int, float]
    containment: Containment

    @property
    def policy(self) -> Policy: ...

    def step(self, before: Job, after: Job, now: float) -> bool: ...

    def change(self, before: Job, now: float, **changes: object) -> Job: ...

    def end(self, job: Job, how: Finish, now: float) -> None: ...

    def take_up(self, job: Job, seen: Seen, now: float) -> None: ...

    def then(self, effect: Effect, job: Job | None = None) -> None: ...
