"""What the parts of a turn need of the engine, so that they need not import it."""

from collections.abc import Iterable
from typing import Protocol

from fgsched.controller.containment import Containment
from fgsched.controller.effects import Effect
from fgsched.controller.events import Launcher
from fgsched.controller.gpustate import GpuStates
from fgsched.controller.jobtable import JobTable
from fgsched.domain.job import Gpu, HostLimits, Job, Readings
from fgsched.domain.policy import Policy
from fgsched.jobs.lifecycle import Finish, Seen
from fgsched.store import Store


class PlannedGpus(Protocol):
    """The GPUs as a plan sees them."""

    @property
    def readings(self) -> Readings: ...

    def gpus_for_planning(self, now: float) -> Iterable[Gpu]: ...


class PreemptionHost(Protocol):
    """A host on which jobs are preempted: the engine's, or a simulated one."""

    @property
    def jobtable(self) -> JobTable: ...

    @property
    def cards(self) -> PlannedGpus: ...

    @property
    def limits(self) -> HostLimits: ...

    @property
    def policy(self) -> Policy: ...

    def step(self, before: Job, after: Job, now: float) -> bool: ...

    def change(self, before: Job, now: float, **changes: object) -> Job: ...

    def then(self, effect: Effect) -> None: ...


class EngineContext(Protocol):
    """The turn as it is made: its state, and how that is changed. The engine is one."""

    jobtable: JobTable
    store: Store
    cards: GpuStates
    launcher: Launcher
    orphans: dict[int, float]
    undelivered: dict[int, float]
    containment: Containment

    @property
    def policy(self) -> Policy: ...

    @property
    def limits(self) -> HostLimits: ...

    def step(self, before: Job, after: Job, now: float) -> bool: ...

    def change(self, before: Job, now: float, **changes: object) -> Job: ...

    def end(self, job: Job, how: Finish, now: float) -> None: ...

    def take_up(self, job: Job, seen: Seen, now: float) -> None: ...

    def then(self, effect: Effect) -> None: ...
