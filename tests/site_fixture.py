"""A whole site in one process: all handlers, GPUs that are sampled, jobs that take their time to end.

The time is the test's: it passes from one thing that is due to the next, and the controller has a turn only
where the real one would have been woken.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from builders import Part, PretendHost, World, a_result
from fgsched.config.load import Config
from fgsched.controller.caller import Caller
from fgsched.controller.gpustate import GpuStates
from fgsched.controller.handlers.explain import ExplainHandlers
from fgsched.controller.handlers.partitions import ConfigActions, PartitionHandlers
from fgsched.controller.handlers.reservations import ReservationHandlers
from fgsched.controller.turn import WatchdogFinding
from fgsched.domain.errors import FgschedError
from fgsched.domain.job import Gpu, Job, Reading
from fgsched.domain.states import JobState, Reason
from fgsched.lifecycle.watchdog import Fault

ROOT = Caller(0, 0, "root", is_operator=True)
_CLEAN = 30.0  # seconds after which a card is called dirty


@dataclass
class SlowHost(PretendHost):
    """Whoever is told to end does so later: after a grace, and after so many seconds more."""

    dawdle: float = 0.0
    begun: dict[tuple[int, int], float] = field(default_factory=dict)
    leaving: dict[tuple[int, int], float] = field(default_factory=dict)  # when they will have ended

    def start(self, job: Job, given: Any) -> None:
        self.begun.setdefault((job.id, job.attempt), self.now)
        super().start(job, given)

    def cancel(self, job: Job) -> bool:
        return self._told(job, 0.0)

    def preempt(self, job: Job) -> bool:
        return self._told(job, float(job.preemption.grace) if job.preemption else 0.0)

    def _told(self, job: Job, grace: float) -> bool:
        key = job.id, job.attempt
        self.signals.append(job.id)
        if self.attempt(job).shepherd and self.attempt(job).result is None:
            self.leaving[key] = min(self.leaving.get(key, math.inf), self.now + grace + self.dawdle)
            self.let_go()
        return self.attempt(job).shepherd or self.attempt(job).result is not None

    def let_go(self) -> None:
        """Those end whose time has come."""
        for key, at in list(self.leaving.items()):
            if at <= self.now:
                self.over(*key, status=15, cause="cancel")

    def over(self, job: int, attempt: int, *, status: int = 0, cause: str = "exit") -> None:
        key = job, attempt
        self.leaving.pop(key, None)
        self.stopped.discard(key)
        found = self.attempts.get(key)
        if found is not None and found.shepherd:
            self.finish(
                *key, a_result(status, cause, started_at=self.begun.get(key, self.now), ended_at=self.now)
            )


class Site(Part):
    """`site.ask("submit", ANN, …)`, `site.advance(60)`; `settled` is called when nothing is left to do."""

    def __init__(self, gpus: list[Gpu], config: Config, *, sampled: bool, dawdle: float = 0.0) -> None:
        self.config, self.sampled = config, sampled
        self.unanswered = 0  # questions to the sampler
        self.strangers: dict[int, int] = {}  # GPU -> bytes
        self.lost: set[int] = set()  # GPUs
        self.lingering: set[int] = set()  # jobs that are over, and still on a GPU
        self.is_calm = False  # nothing but time and ends since the state was last checked
        self.settled: Callable[[], None] = lambda: None
        self.host = SlowHost(dawdle=dawdle)
        World(gpus, limits=config.limits, host=self.host, tick=0.0, site=self)

    def gpu_states(self) -> GpuStates:
        self.unanswered = 0
        return GpuStates(self.world.gpus, sampled=self.sampled, ask=self._question, clean_timeout=_CLEAN)

    def _question(self) -> None:
        self.unanswered += 1

    def furnish(self) -> None:
        """As a controller does at its start."""
        engine, store = self.world.engine, self.world.store
        with store.write():
            marks = store.gpu_marks()
            store.put_gpus(self.world.gpus)
            engine.gpu_states.restore(marks)
            for gpu in engine.gpu_states.changed():
                store.mark_gpu(gpu)
        engine.site.configure(self.config)
        self.partitions = PartitionHandlers(engine, ConfigActions(lambda: self.config, lambda config: None))
        self.reservations = ReservationHandlers(engine)
        self.prospects = ExplainHandlers(engine, self.world.job_handlers.tried)

    def handlers(self) -> Sequence[Any]:
        return [self.partitions, self.reservations]

    # -- turns ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Turns until nothing more happens by itself at this moment."""
        self.world.settle()
        self.settled()

    def act(self) -> bool:
        """The sampler answers what was asked, and what the watch asks while ended jobs are on the GPUs."""
        states = self.world.engine.gpu_states
        if self.sampled and states.watched - self.lingering:
            states.ask()
        has_answered, before = bool(self.unanswered), [gpu.state for gpu in states.gpus]
        while self.unanswered:
            self.unanswered -= 1
            states.use_readings(self._readings(), listed_jobs=self.lingering, now=self.world.now)
        if [gpu.state for gpu in states.gpus] != before:
            self.is_calm = False  # such as a lost GPU that an operator resumed, and that is seen to be lost
        return has_answered

    def _readings(self) -> dict[int, Reading]:
        return {
            gpu.index: Reading(
                gpu=gpu.index,
                used=0,
                external=self.strangers.get(gpu.index, 0),
                error="lost" if gpu.index in self.lost else "",
                is_lost=gpu.index in self.lost,
            )
            for gpu in self.world.gpus
        }

    def ask(self, operation: str, caller: Caller = ROOT, /, **arguments: Any) -> Any:
        """Return the answer, or the refusal, once nothing more happens by itself."""
        self.is_calm = False
        try:
            answer = self.world.ask(caller, operation, **arguments)
        except FgschedError as refusal:
            answer = refusal
        self.settle()
        return answer

    # -- time -----------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass, and the controller have its turns when something is due."""
        until = self.world.now + seconds
        while (due := min(self._moments(), default=math.inf)) <= until:
            self.world.now = max(self.world.now, due)
            self.host.now = self.world.now
            self.host.let_go()
            self._end_late()
            self.settle()
        self.world.now = self.host.now = until

    def _moments(self) -> Iterator[float]:
        """When something happens on the host, or the controller wakes."""
        engine = self.world.engine
        dated = (engine.jobtable.wait_index.next_due, engine.site.next_due(self.world.now))
        yield from (due for due in dated if due is not None)
        yield from self.host.leaving.values()
        yield from (at for _, at in self._limits())
        if engine.orphans:
            yield self.world.now + 1
        if engine.gpu_states.is_cleaning:
            yield self.world.now + _CLEAN + 1
        if engine.policy.has_quotas and engine.jobtable.waiting:
            yield self.world.now + engine.policy.weights.interval

    def _limits(self) -> Iterator[tuple[Job, float]]:
        """When the shepherd of each job ends it for its time limit."""
        for job in self.world.engine.jobtable.holding.values():
            if job.state is JobState.RUNNING and job.deadline is not None and self.host.attempt(job).shepherd:
                yield job, max(self.world.now, job.deadline + self.host.dawdle)

    def _end_late(self) -> None:
        for job, at in list(self._limits()):
            if at <= self.world.now:
                self.host.over(job.id, job.attempt, status=15, cause="timeout")

    # -- what happens ---------------------------------------------------------------------------

    def end(self, job: int, attempt: int, status: int) -> None:
        self.host.now = self.world.now
        self.host.over(job, attempt, status=status)
        self.settle()

    def lose_shepherd(self, job: int, attempt: int) -> None:
        self.is_calm = False
        self.host.lose_shepherd(job, attempt)
        self.settle()

    def lose_gpu(self, index: int) -> None:
        """It falls off the bus, and the watchdog ends the jobs on it."""
        self.is_calm = False
        self.lost.add(index)
        self.world.engine.gpu_states.ask()
        self.act()
        fault = Fault(reason=Reason.GPU_LOST, gpu=index)
        there = [
            WatchdogFinding(job.id, job.attempt, warn=(), end=fault)
            for job in self.world.engine.jobtable.holding.values()
            if any(hold.gpu == index for hold in job.holds) and job.state is JobState.RUNNING
        ]
        self.world.turn(*there)
        self.settle()

    def seen_otherwise(self, change: Callable[[], None]) -> None:
        """Something changes on the cards, and a look shows it."""
        self.is_calm = False
        change()
        if self.sampled:
            self.world.engine.gpu_states.ask()
        self.settle()

    def start_anew(self) -> None:
        self.is_calm = False
        self.world.start()
        self.settle()
