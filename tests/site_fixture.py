"""A whole site in one process: all desks, cards that are looked at, jobs that take their time to end.

The time is the test's: it passes from one thing that is due to the next, and the controller has a turn only
where the real one would have been woken.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from asking import carried_out, plain
from builders import PretendHost, World, a_result
from fgsched.config.load import Config
from fgsched.controller.caller import Caller
from fgsched.controller.gpustate import GpuStates
from fgsched.controller.handlers.explain import ExplainHandlers
from fgsched.controller.handlers.jobs import JobHandlers
from fgsched.controller.handlers.partitions import ConfigActions, PartitionHandlers
from fgsched.controller.handlers.reservations import ReservationHandlers
from fgsched.controller.handlers.submission import Rules
from fgsched.controller.turn import ClientRequest, Event, SendReply, WatchdogFinding
from fgsched.domain.errors import FgschedError
from fgsched.domain.job import Gpu, Job, Reading
from fgsched.domain.states import JobState, Reason
from fgsched.lifecycle.watchdog import Fault

ROOT = Caller(0, 0, "root", is_operator=True)
_CLEAN = 30.0  # seconds after which a card is called dirty


@dataclass
class SlowHost(PretendHost):
    """Whoever is told to end does so later: after a grace, and after so many seconds more."""

    now: float = 0.0
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


class Yard(World):
    """`yard.ask("submit", ANN, …)`, `yard.advance(60)`; `watched` is called when nothing is left to do."""

    host: SlowHost

    def __init__(self, gpus: list[Gpu], config: Config, *, sampled: bool, dawdle: float = 0.0) -> None:
        self.config, self.sampled = config, sampled
        self.asked = 0  # questions to the sampler that are out
        self.strangers: dict[int, int] = {}  # card -> bytes
        self.lost: set[int] = set()  # cards
        self.lingering: set[int] = set()  # jobs that are over, and still on a card
        self.is_calm = False  # nothing but time and ends since somebody last looked
        self.watched: Callable[[], None] = lambda: None
        super().__init__(gpus, limits=config.limits, host=SlowHost(dawdle=dawdle))

    def new_gpu_states(self) -> GpuStates:
        self.asked = 0
        return GpuStates(self.gpus, sampled=self.sampled, ask=self._question, clean_timeout=_CLEAN)

    def _question(self) -> None:
        self.asked += 1

    def furnish(self) -> None:
        """As a controller does at its start."""
        engine = self.engine
        with self.store.write():
            marks = self.store.gpu_marks()
            self.store.put_gpus(self.gpus)
            engine.gpu_states.restore(marks)
            for gpu in engine.gpu_states.changed():
                self.store.mark_gpu(gpu)
        engine.site.configure(self.config)
        site = PartitionHandlers(engine, ConfigActions(lambda: self.config, lambda config: None))
        self.reservations = ReservationHandlers(engine)
        handlers = JobHandlers(engine, Rules(max_script=1000, default_time=0))
        self.prospects = ExplainHandlers(engine, handlers.tried)
        self.handlers = [handlers, site, self.reservations]

    # -- turns ----------------------------------------------------------------------------------

    def turn(self, *events: Event) -> None:
        self.host.now = self.now
        happened, self.host.inbox = self.host.inbox, []
        self.engine.turn([*happened, *events], self.now)
        self.engine.tidy()

    def settle(self) -> None:
        """Turns until nothing more happens by itself at this moment."""
        self.turn()
        for _ in range(100):
            self.look()
            if not (self.host.inbox or self._answered):
                break
            self.turn()
        else:
            raise AssertionError("it never comes to rest")
        self.watched()

    def look(self) -> None:
        """The sampler answers what was asked, and what the lookout asks while ended jobs are on the cards."""
        states = self.engine.gpu_states
        if self.sampled and states.watched - self.lingering:
            states.ask()
        self._answered = bool(self.asked)
        while self.asked:
            self.asked -= 1
            states.saw(self._readings(), there=self.lingering, now=self.now)

    def _readings(self) -> dict[int, Reading]:
        return {
            gpu.index: Reading(
                gpu=gpu.index,
                used=0,
                external=self.strangers.get(gpu.index, 0),
                error="lost" if gpu.index in self.lost else "",
                is_lost=gpu.index in self.lost,
            )
            for gpu in self.gpus
        }

    def ask(self, operation: str, caller: Caller = ROOT, /, **arguments: Any) -> Any:
        """The answer, or the refusal."""
        said: list[Any] = []

        def act(now: float) -> SendReply:
            answer: Any
            try:
                answer = carried_out(self.handlers, operation, caller, arguments, now)
            except FgschedError as error:
                answer = error
            return SendReply(said.append, answer)

        self.is_calm = False
        self.turn(ClientRequest(act, said.append))
        self.settle()
        return plain(said[0])

    # -- time -----------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass, and the controller have its turns when something is due."""
        until = self.now + seconds
        while (due := min(self._moments(), default=math.inf)) <= until:
            self.now = max(self.now, due)
            self.host.now = self.now
            self.host.let_go()
            self._end_late()
            self.settle()
        self.now = self.host.now = until

    def _moments(self) -> Iterator[float]:
        """When something happens on the host, or the controller wakes."""
        engine = self.engine
        dated = (engine.jobtable.wait_index.next_due, engine.site.next_due(self.now))
        yield from (due for due in dated if due is not None)
        yield from self.host.leaving.values()
        yield from (at for _, at in self._limits())
        if engine.orphans:
            yield self.now + 1
        if engine.gpu_states.is_cleaning:
            yield self.now + _CLEAN + 1
        if engine.policy.has_quotas and engine.jobtable.waiting:
            yield self.now + engine.policy.weights.interval

    def _limits(self) -> Iterator[tuple[Job, float]]:
        """When the shepherd of each job ends it for its time limit."""
        for job in self.engine.jobtable.holding.values():
            if job.state is JobState.RUNNING and job.deadline is not None and self.host.attempt(job).shepherd:
                yield job, max(self.now, job.deadline + self.host.dawdle)

    def _end_late(self) -> None:
        for job, at in list(self._limits()):
            if at <= self.now:
                self.host.over(job.id, job.attempt, status=15, cause="timeout")

    # -- what happens ---------------------------------------------------------------------------

    def end(self, job: int, attempt: int, status: int) -> None:
        self.host.now = self.now
        self.host.over(job, attempt, status=status)
        self.settle()

    def lose_shepherd(self, job: int, attempt: int) -> None:
        self.is_calm = False
        self.host.lose_shepherd(job, attempt)
        self.settle()

    def lose_gpu(self, index: int) -> None:
        """It falls off the bus, and the watchdog ends who was on it."""
        self.is_calm = False
        self.lost.add(index)
        self.engine.gpu_states.ask()
        self.look()
        fault = Fault(reason=Reason.GPU_LOST, gpu=index)
        there = [
            WatchdogFinding(job.id, job.attempt, warn=(), end=fault)
            for job in self.engine.jobtable.holding.values()
            if any(hold.gpu == index for hold in job.holds) and job.state is JobState.RUNNING
        ]
        self.turn(*there)
        self.settle()

    def seen_otherwise(self, change: Callable[[], None]) -> None:
        """Something changes on the cards, and a look shows it."""
        self.is_calm = False
        change()
        if self.sampled:
            self.engine.gpu_states.ask()
        self.settle()

    def start_anew(self) -> None:
        self.is_calm = False
        self.start()
        self.settle()
