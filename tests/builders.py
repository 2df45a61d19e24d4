"""Cases in one line, and a pretend host for the conductor: processes as a table."""

import weakref
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from asking import carried_out, plain
from crashing import CrashingEngine, CrashingStore
from fgsched.controller.caller import Caller
from fgsched.controller.gpustate import GpuStates
from fgsched.controller.handlers.jobs import JobHandlers
from fgsched.controller.handlers.submission import Rules
from fgsched.controller.turn import (
    ClientRequest,
    Effect,
    Event,
    JobEnded,
    JobStarted,
    SendReply,
)
from fgsched.domain.errors import FgschedError, StorageError
from fgsched.domain.job import Demand, Gpu, Hold, HostLimits, Job, Request
from fgsched.domain.states import JobState
from fgsched.lifecycle.transitions import Alive, Result, Seen, Shepherd, ShepherdGone, Unclaimed
from fgsched.store import GpuAllocation, NewJob

GIB = 2**30
LIMITS = HostLimits(cpus=1000, host_memory=2**50)
BOOT = "boot-1"
_MOST_TURNS = 1000  # in which a world must settle
ROOT = Caller(0, 0, "root", is_operator=True)


def a_gpu(index: int, *, memory: int = 16 * GIB, model: str = "Simulated", **more: object) -> Gpu:
    return Gpu(
        index=index, uuid=f"GPU-{index:08d}-0000-0000-0000-000000000000", model=model, total=memory, **more
    )


def a_demand(share: int = 0, memory: int = 0, **more: object) -> Demand:
    gpus = more.pop("gpus", 1 if share or memory else 0)
    return Demand(gpus=gpus, share=share, memory=memory, **more)


def a_job(job_id: int = 1, *, share: int = 2500, state: JobState = JobState.PENDING, **more: object) -> Job:
    holds = (Hold(gpu=0, share=share, memory=share),) if state.holds else ()
    started = {"started_at": 1.0, "attempt": 1, "boot": BOOT} if state.holds else {}
    request = Request(name=f"job{job_id}", demand=a_demand(share))
    base = {"id": job_id, "uid": 1, "gid": 1, "user": "ann", "request": request, "submitted_at": 0.0}
    return Job(**(base | {"state": state, "holds": holds} | started | more))


def a_result(status: int = 0, cause: str = "exit", **more: object) -> Result:
    base = {
        "started_at": 1.0,
        "ended_at": 2.0,
        "cpu_seconds": 0.5,
        "max_rss": 1,
        "gpu_peak": 0,
        "refusals": 0,
    }
    rest = {"oom_kills": 0, "lost": False, "errno": 0, "detail": ""}
    return Result(**(base | rest | {"status": status, "cause": cause} | more))


def new_jobs(demands: Iterable[Demand], **more: object) -> list[NewJob]:
    return [
        NewJob(request=Request(name="t", demand=demand, **more), script=b"#!/bin/sh\n", environment=b"A=1\0")
        for demand in demands
    ]


@dataclass
class Attempt:
    """What the pretend host knows of one attempt."""

    claim: str = ""  # "", "P" or "T"
    shepherd: bool = False  # alive
    ran: bool = False
    alive: bool = False  # processes of the job
    result: Result | None = None
    limit: int = 0  # that the shepherd keeps to


@dataclass
class PretendHost:
    """Processes as a table. Outlives every controller, as the real ones do."""

    attempts: dict[tuple[int, int], Attempt] = field(default_factory=dict)
    boot: str = BOOT
    runs: list[int] = field(default_factory=list)  # job ids, once for each time one really ran
    signals: list[int] = field(default_factory=list)
    stopped: set[tuple[int, int]] = field(default_factory=set)
    inbox: list[Event] = field(default_factory=list)  # of the controller that is up
    now: float = 0.0  # epoch seconds, of the last turn

    def attempt(self, job: Job) -> Attempt:
        return self.attempts.setdefault((job.id, job.attempt), Attempt())

    # -- the Launcher that the conductor sees -----------------------------------------------------

    def start(self, job: Job, given: Sequence[GpuAllocation]) -> None:
        """Spawner and shepherd at once: the claim is taken, and the job runs, unless somebody was first."""
        attempt = self.attempt(job)
        if attempt.claim:
            return
        attempt.claim, attempt.shepherd, attempt.ran, attempt.alive = "P", True, True, True
        attempt.limit = job.request.time_limit
        self.runs.append(job.id)
        self.inbox.append(JobStarted(job.id, job.attempt, Shepherd(job.id, job.attempt, self.boot)))

    def follow(self, job: Job, shepherd: Shepherd) -> None:
        if not self.attempt(job).shepherd:
            self.inbox.append(JobEnded(job.id))

    def has_supervisor(self, job: Job) -> bool:
        return self.attempt(job).shepherd

    def cancel(self, job: Job) -> bool:
        attempt = self.attempt(job)
        self.signals.append(job.id)
        if attempt.shepherd and attempt.result is None:
            self.finish(job.id, job.attempt, a_result(15, "cancel"))
            return True
        return attempt.shepherd

    def requeue(self, job: Job) -> bool:
        return self.cancel(job)

    def preempt(self, job: Job) -> bool:
        return self.cancel(job)

    def suspend(self, job: Job) -> bool:
        self.stopped.add((job.id, job.attempt))
        return self.attempt(job).shepherd

    def resume(self, job: Job) -> bool:
        self.stopped.discard((job.id, job.attempt))
        return self.attempt(job).shepherd

    def relimit(self, job: Job) -> bool:
        attempt = self.attempt(job)
        if attempt.shepherd:
            attempt.limit = job.request.time_limit
        return attempt.shepherd

    def deliver(self, job: Job, signal: int, target: str) -> bool:
        self.signals.append(job.id)
        return self.attempt(job).shepherd

    def join(self, job: Job, caller: int) -> bool:
        return self.attempt(job).shepherd

    def seize(self, job: Job) -> Seen:
        attempt = self.attempt(job)
        if attempt.result is not None:
            return attempt.result
        if not attempt.claim:
            attempt.claim = "T"
        if attempt.claim == "T":
            return Unclaimed()
        return Alive(Shepherd(job.id, job.attempt, self.boot)) if attempt.shepherd else ShepherdGone()

    def kill_remaining(self, job: Job) -> bool:
        attempt = self.attempt(job)
        was_alive, attempt.alive = attempt.alive, False
        return not was_alive

    def forget(self, job: Job) -> None:
        if self.attempt(job).claim != "T":
            del self.attempts[job.id, job.attempt]

    def sweep(self, keep: Container[tuple[int, int]]) -> None:
        for key in [
            key for key, attempt in self.attempts.items() if attempt.claim == "P" and key not in keep
        ]:
            del self.attempts[key]

    # -- what happens on the host -----------------------------------------------------------------

    def finish(self, job: int, number: int, result: Result) -> None:
        """A job ends, and its shepherd with it."""
        attempt = self.attempts[job, number]
        attempt.result, attempt.alive, attempt.shepherd = result, False, False
        self.inbox.append(JobEnded(job))

    def lose_shepherd(self, job: int, number: int) -> None:
        attempt = self.attempts[job, number]
        attempt.shepherd = False
        self.inbox.append(JobEnded(job))

    @property
    def running(self) -> list[tuple[int, int]]:
        return [key for key, attempt in self.attempts.items() if attempt.alive]


class Part:
    """Something that a host has besides its jobs. `World` calls the methods; each has a default."""

    world: "World"

    def gpu_states(self) -> GpuStates | None:
        """Return the states of the GPUs for the next controller; None: those of GPUs that nobody looks at."""
        return None

    def furnish(self) -> None:
        """Give the new controller what it must have before it recovers."""

    def started(self) -> None:
        """Act after a controller has recovered."""

    def handlers(self) -> Sequence[Any]:
        """Return further handlers of requests."""
        return ()

    def act(self) -> bool:
        """Act when the controller has nothing left to do; return whether it needs another turn."""
        return False


class World:
    """A store and a host that last, and one controller after another.

    `World([a_gpu(0)], epilogs=Epilogs())` has a part of the host, as `world.epilogs`. Each turn takes `tick`
    seconds.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        *,
        limits: HostLimits = LIMITS,
        host: PretendHost | None = None,
        tick: float = 1.0,
        **parts: Part,
    ) -> None:
        self.gpus, self.limits, self.tick = gpus, limits, tick
        self.store = CrashingStore(":memory:")
        weakref.finalize(self.store, self.store._db.close)  # hundreds of tests do not close it
        self.host = host or PretendHost()
        self.now = 1000.0
        self.acknowledged: list[int] = []
        self.parts = tuple(parts.values())
        for name, part in parts.items():
            setattr(self, name, part)
            part.world = self
        with self.store.write():
            self.store.put_gpus(gpus)
        self.start()

    def start(self) -> None:
        """A controller takes its place."""
        self.store.engine = None
        self.host.inbox.clear()
        states = next(filter(None, (part.gpu_states() for part in self.parts)), None)
        self.engine = CrashingEngine(
            self.store, self.host, states or GpuStates(self.gpus), limits=self.limits, tier="shim"
        )
        self.job_handlers = JobHandlers(self.engine, Rules(max_script=1000, default_time=0))
        for part in self.parts:
            part.furnish()
        self.engine.recover(self.now)
        self.store.engine = self.engine
        for part in self.parts:
            part.started()

    def handlers(self) -> Sequence[Any]:
        """Return the handlers that `ask` can reach."""
        return [self.job_handlers, *(handlers for part in self.parts for handlers in part.handlers())]

    def ask(self, caller: Caller, name: str, /, **arguments: Any) -> Any:
        """Return the plain answer to a request; raise its refusal. Both come after the commit of its turn."""
        answers: list[Any] = []

        def act(now: float) -> Effect:
            try:
                answer = carried_out(self.handlers(), name, caller, arguments, now)
            except FgschedError as error:
                answer = error
            return SendReply(answers.append, answer)

        self.turn(ClientRequest(act, answers.append, by=caller.name))
        if isinstance(answers[0], Exception):
            raise answers[0]
        return plain(answers[0])

    def outcome(self, caller: Caller, name: str, job: int = 1, **more: Any) -> str:
        """Return what a request about one job did, or why not."""
        (outcome,) = self.ask(caller, name, ids=[job], **more)["jobs"]
        return outcome["error"]["cause"] if "error" in outcome else outcome["outcome"]

    def turn(self, *events: Event) -> None:
        self.now += self.tick
        self.host.now = self.now
        happened, self.host.inbox = self.host.inbox, []
        self.engine.turn([*happened, *events], self.now)
        self.engine.tidy()

    def settle(self) -> None:
        """Turns until nothing more happens by itself; without a tick, at this moment."""
        self.turn()
        for _ in range(_MOST_TURNS):
            acted = [part.act() for part in self.parts]
            if not (self.host.inbox or any(acted) or (self.engine.orphans and self.tick)):
                return
            self.turn()
        raise AssertionError("the world does not settle")

    def submit(self, demands: Iterable[Demand], *, key: str = "", user: str = "ann", **more: object) -> None:
        jobs = new_jobs(demands, **more)
        key = key or f"key-{self.now}-{len(self.acknowledged)}"

        def act(now: float) -> Effect:
            known = self.store.submitted(1, key)
            if known is None:
                made = self.store.submit(jobs, key=key, submitter=(1, 1, user), now=now)
                for job in made:
                    self.engine.jobtable.put(job)
                known = range(made[0].id, made[-1].id + 1)
            return SendReply(self.acknowledge, list(known))

        self.turn(ClientRequest(act, lambda error: None))

    def acknowledge(self, ids: Iterable[int]) -> None:
        self.acknowledged.extend(job_id for job_id in ids if job_id not in self.acknowledged)

    def job(self, job_id: int) -> Job:
        past = self.store.past(job_id)
        assert past is not None
        return past.job

    def holds(self) -> list[Hold]:
        return [hold for job in self.store.open_jobs() for hold in job.holds]


@contextmanager
def full_disk(world: World) -> Iterator[None]:
    """Nothing can be committed meanwhile."""
    real = world.store.write

    @contextmanager
    def write() -> Iterator[None]:
        with suppress(ZeroDivisionError), real():
            yield
            raise ZeroDivisionError
        raise StorageError("the queue cannot be written: database or disk is full")

    world.engine.store.write = write
    yield
    world.engine.store.write = real
