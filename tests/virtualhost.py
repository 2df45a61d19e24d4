"""A host in virtual time: clock, spawners, shepherds and cards that die, answer late, twice or out of order.

`VirtualHost` is the launcher of one controller after another. It knows what really ran, which no controller
does: `runs` is the truth that a world compares the queue and the accounts with.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from builders import a_result
from fgsched.controller.handlers.jobref import name_of
from fgsched.controller.turn import Event, HostShort, JobEnded, JobStarted, StartFailed
from fgsched.domain.job import Job, Reading
from fgsched.launch.launcher import PendingLaunch
from fgsched.lifecycle.transitions import Alive, Result, Seen, Shepherd, ShepherdGone, Unclaimed
from fgsched.store import GpuAllocation

EPOCH = 1_700_000_000.0  # wall time at the begin of a world
_KILL_WAIT = 30.0  # seconds that a job may take to end on order


class Agenda:
    """Things that happen later, and the clocks. `now` is monotonic; the wall clock can be set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.offset = EPOCH
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    @property
    def wall(self) -> float:
        """The wall clock, in seconds since the epoch."""
        return self.now + self.offset

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` after so many seconds; calls of one moment keep their order."""
        self._count += 1
        heappush(self._queue, (self.now + seconds, self._count, act))

    @property
    def next(self) -> float:
        """When the next thing happens; infinity if nothing will."""
        return self._queue[0][0] if self._queue else math.inf

    def run_due(self) -> bool:
        """Do what is due now; return whether anything was."""
        found = False
        while self._queue and self._queue[0][0] <= self.now:
            heappop(self._queue)[2]()
            found = True
        return found


@dataclass
class Run:
    """One execution of a script: the truth."""

    job: int
    attempt: int
    began: float  # wall time
    charged: int  # ten-thousandths of a GPU
    ended: float | None = None
    status: int | None = None  # None: it was killed with its host, or by a controller that had lost it
    cause: str = ""
    is_lost: bool = False  # its result went with a reboot


@dataclass
class Attempt:
    """What the host has of one attempt. The claim and the result outlive the processes."""

    claim: str = ""  # "", "P" of a shepherd, "T" of a controller, "H" of a spawner that inherited the job
    shepherd: int = 0  # its pid; 0: it is dead
    spawner: int = 0  # that started it
    run: Run | None = None  # while its processes are alive
    last: Run | None = None  # the same, also after their end
    result: Result | None = None
    gpus: tuple[tuple[int, int], ...] = ()  # (card, share)
    left: float = 0.0  # seconds of work
    limit: float = math.inf  # seconds until its time limit
    since: float | None = None  # when `left` and `limit` were counted last; None: it stands still
    status: int = 0  # with which it will exit
    plan: int = 0  # number of the last plan of its end
    told: str = ""  # the order to end
    limit_told: int = 0  # the time limit that its supervisor knows, in seconds; 0: none


@dataclass
class Faults:
    """How often things go wrong, as probabilities."""

    late: float = 0.2  # a message takes minutes
    twice: float = 0.05  # a message arrives twice
    unlaunched: float = 0.02  # a launch fails
    short: float = 0.02  # the host lacks something for a launch
    unrun: float = 0.02  # a shepherd is killed before it executes the script
    lingering: float = 0.1  # a card lists an ended job for a while
    dies_ordered: float = 0.3  # a shepherd is killed between an order to end its job and the end


@dataclass
class Lingering:
    """An ended job that a card still lists."""

    job: int
    gpus: frozenset[int]
    life: int  # of the controller that ran when it ended
    until: float


class VirtualHost:
    """The processes and cards of a host. They outlive every controller, not a reboot."""

    def __init__(self, agenda: Agenda, draw: random.Random, faults: Faults) -> None:
        self.agenda, self.draw, self.faults = agenda, draw, faults
        self.boots = 1
        self.attempts: dict[tuple[int, int], Attempt] = {}
        self.runs: list[Run] = []
        self.lingering: list[Lingering] = []
        self.tolerated: Counter[int] = Counter()  # cards that operators are returning to service
        self.sent: dict[tuple[int, int], int] = {}  # launch under way -> life that sent it
        self.launching: Callable[[Job, Sequence[GpuAllocation]], None] = lambda job, given: None
        self.executing: Callable[[tuple[int, int]], None] = lambda key: None
        self.gate: Callable[[PendingLaunch], None] = lambda launching: launching.go()
        self.signals: Counter[int | str] = Counter()  # by name of a job or task: taken
        self.unrun: set[int] = set()  # jobs of which a launch failed for good
        self.lost_gpus: set[int] = set()
        self.strangers: dict[int, int] = {}  # card -> bytes
        self.inbox: list[Event] = []
        self.life = 0  # number of the controller that listens; a message to an earlier one is lost
        self.spawners: set[int] = set()  # living ones
        self.spawner = 0  # that of the present controller
        self.followed: dict[tuple[int, int], int] = {}  # attempt -> life that follows its shepherd
        self.length: Callable[[Job], tuple[float, int]] = lambda job: (60.0, 0)  # seconds, wait status
        self.noted: Callable[[str], None] = lambda what: None
        self.hurt: dict[str, int] = {}
        self._pids = 1000

    @property
    def boot(self) -> str:
        """The id of the present boot."""
        return f"boot-{self.boots}"

    def hit(self, kind: str) -> None:
        """Count a fault."""
        self.hurt[kind] = self.hurt.get(kind, 0) + 1

    def _chance(self, probability: float, kind: str) -> bool:
        if self.draw.random() >= probability:
            return False
        self.hit(kind)
        return True

    def _delay(self) -> float:
        if self._chance(self.faults.late, "message late"):
            return self.draw.uniform(1.0, 200.0)
        return self.draw.uniform(0.001, 0.05)

    # -- messages to the controller -------------------------------------------------------------------

    def post(self, event: Event) -> None:
        """Send the present controller an event, maybe late and maybe twice."""
        life = self.life
        for _ in range(2 if self._chance(self.faults.twice, "message twice") else 1):
            self.agenda.after(self._delay(), lambda: self._arrives(event, life))

    def _tell_end(self, key: tuple[int, int]) -> None:
        """Tell the controller that a shepherd has ended, unless it has forgotten the attempt meanwhile."""
        life = self.life
        for _ in range(2 if self._chance(self.faults.twice, "message twice") else 1):
            self.agenda.after(
                self._delay(), lambda: self._arrives(JobEnded(key[0]), life if key in self.attempts else 0)
            )

    def _arrives(self, event: Event, life: int) -> None:
        if life == self.life:
            self.inbox.append(event)

    def attach(self) -> None:
        """A controller takes its place, with a spawner of its own."""
        self.life += 1
        self.inbox.clear()
        self._pids += 1
        self.spawner = self._pids
        self.spawners.add(self.spawner)

    # -- the Launcher of the controller ---------------------------------------------------------------

    def start(self, job: Job, given: Sequence[GpuAllocation]) -> None:
        self.launching(job, given)
        refuse = lambda why: self.post(StartFailed(job.id, job.attempt, why))  # noqa: E731
        self.gate(PendingLaunch(job, given, go=lambda: self._send(job, given), refuse=refuse))

    def _send(self, job: Job, given: Sequence[GpuAllocation]) -> None:
        if self._chance(self.faults.unlaunched / 2, "launch refused"):
            self.unrun.add(job.id)
            self.post(StartFailed(job.id, job.attempt, "could not be launched: Permission denied"))
        elif self._chance(self.faults.short / 2, "host short"):
            self.post(HostShort(job.id, job.attempt, "could not be started: Cannot allocate memory"))
        else:
            spawner, boots = self.spawner, self.boots
            self.sent[job.id, job.attempt] = self.life
            self.agenda.after(self._delay(), lambda: self._launch(job, given, spawner, boots))

    def follow(self, job: Job, shepherd: Shepherd) -> None:
        found = self.attempts.get((job.id, job.attempt))
        if found is None or found.shepherd != shepherd.pid or shepherd.boot != self.boot:
            self.inbox.append(JobEnded(job.id))
        else:
            self.followed[job.id, job.attempt] = self.life

    def _supervised(self, job: Job) -> Attempt | None:
        """Return the attempt if its shepherd, or the spawner that inherited it, takes orders."""
        found = self.attempts.get((job.id, job.attempt))
        if found is None or found.run is None:
            return None
        return found if found.shepherd or found.spawner in self.spawners else None

    def has_supervisor(self, job: Job) -> bool:
        return self._supervised(job) is not None

    def cancel(self, job: Job) -> bool:
        return self._told(job, "cancel", 0.0)

    def requeue(self, job: Job) -> bool:
        return self._told(job, "cancel", 0.0)

    def preempt(self, job: Job) -> bool:
        return self._told(job, "cancel", float(job.preemption.grace) if job.preemption else 0.0)

    def _told(self, job: Job, cause: str, grace: float) -> bool:
        found = self._supervised(job)
        if found is None:
            return self._has_ended(job)
        if not found.told:
            found.told = cause
            self.noted(f"told {job.id}.{job.attempt} {cause}")
            wait = grace + self.draw.choice([0.0, 0.01, self.draw.uniform(0.0, _KILL_WAIT)])
            key, run = (job.id, job.attempt), found.run
            shepherd = found.shepherd

            def end() -> None:
                if found.shepherd == shepherd:
                    self._end_if(key, run, 15, cause)

            self.agenda.after(wait, end)
            if self._chance(self.faults.dies_ordered, "shepherd killed after an order"):
                self.agenda.after(self.draw.uniform(0.0, wait), lambda: self._kill_ordered(key, shepherd))
        return True

    def _kill_ordered(self, key: tuple[int, int], shepherd: int) -> None:
        found = self.attempts.get(key)
        if found is not None and shepherd and found.shepherd == shepherd:
            self.kill_shepherd(key)

    def _has_ended(self, job: Job) -> bool:
        found = self.attempts.get((job.id, job.attempt))
        return found is not None and found.result is not None

    def suspend(self, job: Job) -> bool:
        found = self._supervised(job)
        if found is not None:
            self._count(found)
            found.since = None
        return found is not None

    def resume(self, job: Job) -> bool:
        found = self._supervised(job)
        if found is not None and found.since is None:
            found.since = self.agenda.now
            self._plan_end((job.id, job.attempt), found)
        return found is not None

    def relimit(self, job: Job) -> bool:
        found = self._supervised(job)
        if found is not None and found.run is not None:
            found.limit_told = job.request.time_limit
            limit = job.request.time_limit or math.inf
            self._count(found)
            found.limit = max(0.0, limit - (self.agenda.wall - found.run.began))
            self._plan_end((job.id, job.attempt), found)
        return found is not None

    def deliver(self, job: Job, signal: int, target: str) -> bool:
        if self._supervised(job) is None:
            return False
        self.signals[name_of(job)] += 1
        return True

    def join(self, job: Job, caller: int) -> bool:
        return self._supervised(job) is not None

    def seize(self, job: Job) -> Seen:
        found = self.attempts.setdefault((job.id, job.attempt), Attempt())
        if found.result is not None:
            return found.result
        if not found.claim:
            is_ours = self.sent.get((job.id, job.attempt)) == self.life
            assert not is_ours, f"a launch under way is given up: {job.id}.{job.attempt}"
            found.claim = "T"
        if found.claim == "T":
            return Unclaimed()
        return Alive(self._identity(found)) if found.shepherd and found.claim == "P" else ShepherdGone()

    def _identity(self, found: Attempt) -> Shepherd:
        return Shepherd(found.shepherd, 1, self.boot)

    def kill_remaining(self, job: Job) -> bool:
        found = self.attempts.get((job.id, job.attempt))
        if found is None or found.run is None:
            return True
        if found.spawner in self.spawners and not found.shepherd:
            return False  # the spawner sees it to its end
        self._over(found, None, "killed")
        return False

    def forget(self, job: Job) -> None:
        found = self.attempts.get((job.id, job.attempt))
        if found is not None and found.claim != "T":
            assert found.run is None, f"the files of a running attempt are removed: {job.id}.{job.attempt}"
            del self.attempts[job.id, job.attempt]

    def sweep(self, keep: Container[tuple[int, int]]) -> None:
        for key in [key for key, one in self.attempts.items() if one.claim != "T" and key not in keep]:
            assert self.attempts[key].run is None, f"a running attempt is swept away: {key}"
            del self.attempts[key]

    # -- spawners and shepherds -----------------------------------------------------------------------

    def _launch(self, job: Job, given: Sequence[GpuAllocation], spawner: int, boots: int) -> None:
        """A spawner that still lives forks a shepherd, which claims the attempt unless somebody has."""
        if spawner not in self.spawners or boots != self.boots:
            return
        key = job.id, job.attempt
        self.sent.pop(key, None)
        found = self.attempts.setdefault(key, Attempt())
        if found.claim:
            self.post(JobEnded(*key))
            return
        self._pids += 1
        found.claim, found.shepherd, found.spawner = "P", self._pids, spawner
        if self._chance(self.faults.unrun, "shepherd killed before it ran"):
            self._leave_unrun(key, found, "launch", lost=True)
        elif self._chance(self.faults.unlaunched, "launch fails"):
            self.unrun.add(job.id)
            self._leave_unrun(key, found, "launch", errno=2, detail="exec failed")
        elif self._chance(self.faults.short, "host short"):
            self._leave_unrun(key, found, "shortage", errno=11, detail="fork failed")
        else:
            self._execute(key, found, job, given)

    def _execute(
        self, key: tuple[int, int], found: Attempt, job: Job, given: Sequence[GpuAllocation]
    ) -> None:
        now = self.agenda.now
        self.executing(key)
        found.run = Run(*key, began=self.agenda.wall, charged=sum(one.charged for one in given))
        found.last = found.run
        self.runs.append(found.run)
        self.noted(f"runs {key[0]}.{key[1]}")
        found.gpus = tuple((one.gpu, one.share) for one in given)
        found.left, found.status = self.length(job)
        found.limit_told = job.request.time_limit
        found.limit, found.since = job.request.time_limit or math.inf, now
        self.post(JobStarted(*key, self._identity(found)))
        self._plan_end(key, found)

    def _count(self, found: Attempt) -> None:
        """Count the work and the time limit up to now."""
        if found.since is not None:
            passed = self.agenda.now - found.since
            found.left, found.limit, found.since = found.left - passed, found.limit - passed, self.agenda.now

    def _plan_end(self, key: tuple[int, int], found: Attempt) -> None:
        found.plan += 1
        if found.since is None:
            return
        self._count(found)
        is_late, run, plan = found.limit <= found.left, found.run, found.plan
        status, cause = (15, "timeout") if is_late else (found.status, "exit")

        def end() -> None:
            if found.plan == plan:
                self._end_if(key, run, status, cause)

        self.agenda.after(max(0.0, min(found.left, found.limit)), end)

    def _end_if(self, key: tuple[int, int], run: Run | None, status: int, cause: str) -> None:
        """End an execution, unless it has ended; its shepherd, or the spawner, leaves the result."""
        found = self.attempts.get(key)
        if run is None or found is None or found.run is not run:
            return
        self._over(found, status, cause)
        if not found.shepherd and found.spawner not in self.spawners:
            run.status = None
            return  # nobody saw it end
        lost = not found.shepherd
        times = {"started_at": run.began, "ended_at": self.agenda.wall, "lost": lost}
        self._leave_result(key, found, a_result(status, cause, **times))

    def _over(self, found: Attempt, status: int | None, cause: str) -> None:
        assert found.run is not None
        found.run.ended, found.run.status, found.run.cause = self.agenda.wall, status, cause
        self.noted(f"over {found.run.job}.{found.run.attempt} {status} {cause}")
        if found.gpus and self._chance(self.faults.lingering, "card lists an ended job"):
            until = self.agenda.now + self.draw.choice([1.0, 600.0]) * self.draw.random()
            gpus = frozenset(gpu for gpu, _ in found.gpus)
            self.lingering.append(Lingering(found.run.job, gpus, self.life, until))
        found.run = None

    def _leave_unrun(self, key: tuple[int, int], found: Attempt, cause: str, **more: object) -> None:
        now = self.agenda.wall
        self._leave_result(key, found, a_result(0, cause, started_at=now, ended_at=now, **more))

    def _leave_result(self, key: tuple[int, int], found: Attempt, result: Result) -> None:
        found.result, found.shepherd = result, 0
        if self.followed.pop(key, 0) == self.life:
            self._tell_end(key)
        elif found.spawner == self.spawner:
            self.post(JobEnded(*key))

    # -- what befalls them ----------------------------------------------------------------------------

    @property
    def alive(self) -> list[tuple[int, int]]:
        """The attempts whose processes are alive."""
        return [key for key, one in self.attempts.items() if one.run is not None]

    def kill_shepherd(self, key: tuple[int, int]) -> None:
        """The spawner that forked the shepherd inherits the job, if it lives."""
        found = self.attempts[key]
        if not found.shepherd:
            return
        self.hit("shepherd killed")
        found.shepherd, found.told = 0, ""  # who inherits the job knows of no order to end it
        if found.spawner in self.spawners:
            found.claim = "H"
        if self.followed.pop(key, 0) == self.life:
            self._tell_end(key)

    def kill_spawner(self) -> None:
        """The controller's spawner is killed; the shepherds go on."""
        self.hit("spawner killed")
        self.spawners.discard(self.spawner)

    def reboot(self) -> None:
        """Everything of the host ends, and the run directory is empty."""
        self.hit("reboot")
        self.boots += 1
        self.life += 1
        for one in self.attempts.values():
            if one.run is not None:
                self._over(one, None, "reboot")
            if one.last is not None:
                one.last.is_lost = True
        for kept in (self.attempts, self.lingering, self.spawners, self.followed, self.sent):
            kept.clear()

    # -- cards ----------------------------------------------------------------------------------------

    def readings(self, gpus: Sequence[int]) -> dict[int, Reading]:
        return {
            index: Reading(
                gpu=index,
                used=0,
                external=self.strangers.get(index, 0),
                error="lost" if index in self.lost_gpus else "",
                is_lost=index in self.lost_gpus,
            )
            for index in gpus
        }

    def on_gpus(self) -> set[int]:
        """The jobs of which a card lists a process."""
        return {one.job for one in self.still_listed()} | {job for job, _ in self.alive}

    def put_up_with(self, gpu: int) -> None:
        """An operator lets jobs start on a card, whatever it lists."""
        for one in self.lingering:
            one.gpus -= {gpu}

    def still_listed(self) -> list[Lingering]:
        """The ended jobs that a card lists now."""
        self.lingering = [one for one in self.lingering if one.until > self.agenda.now]
        return self.lingering
