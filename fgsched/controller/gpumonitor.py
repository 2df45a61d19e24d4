"""Looking at the cards: when it is due, and what a look means for the conductor."""

import time
from collections.abc import Callable

from fgsched import gpus
from fgsched.controller.enforcementcheck import EnforcementGate
from fgsched.controller.engine import Engine
from fgsched.controller.seeing import understood
from fgsched.controller.unresolved import Unresolved
from fgsched.controller.watching import Watching
from fgsched.launch.launcher import Launcher

_SOON = 0.1  # seconds between two looks while an ended job is not off its cards
_AGAIN = 0.5  # while something is wrong with a running one
_PATIENCE = 60.0  # seconds after which an answer was lost with the process that was asked


class GpuMonitor:
    """Looks at intervals while there are jobs, sooner while a card is not clean, never on an idle host."""

    def __init__(
        self,
        engine: Engine,
        shepherds: Launcher,
        sampler: gpus.AnySampler,
        watching: Watching,
        gate: EnforcementGate,
        *,
        interval: float,
    ) -> None:
        self._engine, self._shepherds, self._sampler = engine, shepherds, sampler
        self.watching, self._gate = watching, gate
        self._cards = engine.cards
        self.interval = interval
        self.unresolved = Unresolved()
        self._looked_at = -interval  # by a clock that nobody sets
        self._asked_at: float | None = None  # by the same: the question that is out
        self.measured: Callable[[gpus.Answer], None] = lambda answer: None  # who is told of USE

    @property
    def due(self) -> float | None:
        """Seconds until the next look; None: there is nothing to look for."""
        if not self._cards.needs_cleaning or not self._engine.jobtable.jobs:
            return None
        pause = min(_AGAIN, self.interval) if self.watching.is_suspicious else self.interval
        pause = _SOON if self._cards.is_cleaning else pause
        return max(0.0, self._looked_at + pause - time.monotonic())

    def look(self) -> None:
        """Ask for a reading if one is due, and none is out: they would pile up at a driver that hangs."""
        due = self.due
        if due is not None and due <= 0.001:
            self._looked_at = now = time.monotonic()
            if self._asked_at is None or now - self._asked_at >= _PATIENCE:
                self._asked_at = now
                self._cards.ask()
            self._gate.remind()

    def see(self) -> None:
        """Readings have come."""
        for answer in self._sampler.read():
            if answer.want == gpus.READING:
                self._asked_at = None
                self._understand(answer)
            elif answer.want == gpus.USE:
                self.measured(answer)
            elif answer.want != gpus.INVENTORY:
                self._gate.hear(answer)

    def _understand(self, answer: gpus.Answer) -> None:
        jobtable = self._engine.jobtable
        shepherds: dict[int, int] = {}
        for job in jobtable.holding.values() if answer.readings else ():
            with self._engine.faults.contained(f"the supervisor of job {job.id}"):
                if job.holds and (shepherd := self._shepherds.shepherd(job)):
                    shepherds[shepherd.pid] = job.id
        seen = understood(
            answer.readings,
            shepherds=shepherds,
            ended=[job for job in jobtable.holding.values() if self._cards.cleans(job.id)],
            stayed=self._cards.stayed,
            run=str(self._shepherds.run.path),
            running=jobtable.holding,
        )
        self._cards.saw(seen.readings, there=seen.there, now=time.time())
        self.watching.look(seen, jobtable.holding)
        self.unresolved.saw(seen.unresolved, now=time.monotonic(), interval=self.interval)
