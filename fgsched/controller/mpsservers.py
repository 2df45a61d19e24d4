"""The MPS daemons of a controller: what the engine knows of them, and the steps of each turn.

The rules are in `lifecycle/mps.py`. Which daemon a job uses is stored with the job; the rest is found again
in the run directory, so a controller that starts after a crash adopts each daemon or ends it.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from fgsched.controller.turn import (
    ClientsEnded,
    EngineContext,
    Event,
    HostShort,
    JobEnded,
    JobStarted,
    LaunchAttempt,
    MpsHost,
    Remind,
    RunningDaemon,
    ServerAnswered,
    StartFailed,
)
from fgsched.domain.job import Job, MpsUse
from fgsched.domain.policy import Policy
from fgsched.lifecycle import mps
from fgsched.lifecycle.enforcement import compute_policy_of
from fgsched.lifecycle.mps import MpsDaemon, MpsSettings, Name, Phase
from fgsched.lifecycle.transitions import Shepherd
from fgsched.store import GpuAllocation

_PASSES = 4  # over the plan in one turn: each one can make further steps due


class NoMps:
    """A host without MPS."""

    def directory(self, server: int, number: int) -> str:
        """Return no directory."""
        return ""

    def start(self, step: mps.StartDaemon) -> None:
        """Never called."""

    def ask(self, step: mps.AskDaemon) -> None:
        """Never called."""

    def stop(self, step: mps.StopDaemon) -> None:
        """Never called."""

    def follow(self, server: MpsDaemon, shepherd: Shepherd) -> None:
        """Never called."""

    def end_clients(self, job: Job) -> bool:
        """Return False."""
        return False

    def why_ended(self, server: int, number: int) -> str:
        """Never called."""
        return ""

    def find(self, names: Iterable[tuple[int, int]]) -> list[RunningDaemon]:
        """Return no daemons."""
        return []


class MpsServers:
    """The daemons, as of the current turn. `begin` and `undo` keep them equal to the queue."""

    def __init__(self) -> None:
        self.settings: MpsSettings = mps.OFF
        self.host: MpsHost = NoMps()
        self._servers: dict[Name, MpsDaemon] = {}
        self._before: dict[Name, MpsDaemon] = {}  # before the turn
        self._is_checked = True  # no job has a daemon that is not known
        self._number = 0  # of the last daemon

    @property
    def servers(self) -> Sequence[MpsDaemon]:
        """The daemons that run, will run, or have failed a short time ago."""
        return [*self._servers.values()]

    def begin(self) -> None:
        """Begin a turn."""
        self._before = dict(self._servers)

    def undo(self) -> None:
        """Forget the changes of the turn."""
        self._servers, self._is_checked = dict(self._before), False

    def due(self, now: float) -> float | None:
        """Return the seconds until a turn is needed; None: it is not. `now`: seconds since the epoch."""
        times = (min(server.until or server.asks_at, server.asks_at) for server in self._servers.values())
        due = min(times, default=float("inf"))
        return None if due == float("inf") else max(0.0, due - now)

    # -- jobs -----------------------------------------------------------------------------------

    def wish(self, job: Job, given: Sequence[GpuAllocation], policy: Policy, now: float) -> MpsUse | None:
        """Return how a job that starts uses MPS; None: its GPUs have none."""
        if not self.settings.gpus or len(given) != 1:
            return None
        percent = mps.percent_of(job, compute_policy_of(job, policy), self.settings)
        if not percent:
            return None
        gpu = given[0]
        server = mps.usable(self._servers, (job.uid, gpu.gpu)) or self._new(job, gpu, now)
        why = server.why
        if server.phase is Phase.DUE and server.name not in self._servers:
            why = mps.refusal(self.settings, self.host.directory(server.id, server.number))
        if why and server.phase is not Phase.STARTING:
            return MpsUse(server=0, percent=percent, state="refused", why=why)
        self._servers[server.name] = server
        return MpsUse(server=server.number, percent=percent)

    def _new(self, job: Job, gpu: GpuAllocation, now: float) -> MpsDaemon:
        self._number = number = max(self._number + 1, mps.number_at(now))
        until = now + mps.DUE_TIME
        who = MpsDaemon(uid=job.uid, gid=job.gid, user=job.user, gpu=gpu.gpu, uuid=gpu.uuid, number=number)
        return replace(who, until=until)

    # -- the turn -------------------------------------------------------------------------------

    def take(self, engine: EngineContext, event: Event, now: float) -> None:
        """Take in an event about a daemon."""
        match event:
            case JobStarted(job=server, attempt=number, shepherd=shepherd):
                if known := self._servers.get((*mps.key_of(server), number)):
                    self._started(engine, known, shepherd, now)
            case ServerAnswered(job=server, attempt=number):
                if known := self._servers.get((*mps.key_of(server), number)):
                    self._servers[known.name] = _answered(known, event, now)
            case (
                StartFailed(job=server, attempt=number, why=why)
                | HostShort(job=server, attempt=number, why=why)
            ):
                self._ended(server, number, why, now)
            case JobEnded(job=server):
                for mps_daemon in self._of(server):
                    if why := self.host.why_ended(server, mps_daemon.number):
                        self._ended(server, mps_daemon.number, why, now)

    def _of(self, server: int) -> list[MpsDaemon]:
        key = mps.key_of(server)
        return [
            mps_daemon for mps_daemon in self._servers.values() if mps_daemon.key == key and mps_daemon.lives
        ]

    def _started(self, engine: EngineContext, server: MpsDaemon, shepherd: Shepherd, now: float) -> None:
        self.host.follow(server, shepherd)
        if server.phase is Phase.STARTING:
            self._servers[server.name] = replace(server, asks_at=now)
        elif server.was_stopped:  # it had no supervisor then
            engine.then(mps.StopDaemon(server))

    def _ended(self, server: int, number: int, why: str, now: float) -> None:
        name = (*mps.key_of(server), number)
        mps_daemon = self._servers.pop(name, None)
        after = mps.ended(mps_daemon, f"its daemon has ended: {why}", now) if mps_daemon else None
        if after is not None:
            self._servers[name] = after

    def clients_ended(self, engine: EngineContext, event: ClientsEnded, job: Job) -> None:
        """Give a job its order to end, now that its work on the GPU has ended."""
        if job.attempt == event.attempt:
            engine.then(Remind(job))

    def settle(self, engine: EngineContext, now: float) -> None:
        """Make the steps that are due."""
        if not self._servers and self._is_checked:
            return
        self._is_checked = True
        self._servers = {name: mps.at(one, now) for name, one in self._servers.items()}
        for _ in range(_PASSES):
            jobs = mps.uses(engine.jobtable.holding.values())
            cancelled = [job for job in jobs if mps.is_asking(job) and job.is_to_end]
            jobs = [job for job in jobs if job not in cancelled]
            steps: list[tuple[MpsDaemon | None, mps.Step]] = [(None, mps.Withdraw(job)) for job in cancelled]
            steps += [*mps.plan(self._servers, jobs, now), *self._strays(jobs)]
            for server, step in steps:
                if server is not None:
                    self._servers[server.name] = server
                if isinstance(step, mps.StartDaemon | mps.AskDaemon | mps.StopDaemon):
                    engine.then(step)
                else:
                    engine.containment.run(step.job.id, partial(self._make, engine, step, now))
            if not steps:
                break
        self._forget_over(mps.uses(engine.jobtable.holding.values()))

    def _strays(self, jobs: Iterable[Job]) -> Iterable[tuple[None, mps.Step]]:
        """Yield the steps for jobs whose daemon is not known."""
        for job in jobs:
            if mps.name_of(job) in self._servers:
                continue
            if mps.is_asking(job):
                yield None, mps.Refuse(job, "its daemon is gone")
            elif mps.is_client(job):
                yield None, mps.Lose(job, "its daemon is gone")

    def _make(self, engine: EngineContext, step: mps.JobStep, now: float) -> None:
        """Make a step of a job."""
        match step:
            case mps.Grant(job=job):
                self._launch(engine, job, now, state="used")
            case mps.Refuse(job=job, why=why):
                self._launch(engine, job, now, state="refused", why=why, server=0)
            case mps.Lose(job=job, why=why):
                assert job.mps is not None
                use = replace(job.mps, state="lost", why=why)
                engine.change(job, now, mps=use, warning=f"MPS failed on GPU {job.holds[0].gpu}: {why}")
            case mps.Withdraw(job=job):
                engine.take_up(job, engine.launcher.seize(job), now)

    def _launch(self, engine: EngineContext, job: Job, now: float, **use: object) -> None:
        assert job.mps is not None
        after = engine.change(job, now, mps=replace(job.mps, **use))
        engine.then(LaunchAttempt(after, engine.jobtable.given[job.id]))

    def _forget_over(self, jobs: Sequence[Job]) -> None:
        over = [name for name, one in self._servers.items() if mps.is_over(one, jobs)]
        for name in over:
            del self._servers[name]

    # -- after a crash --------------------------------------------------------------------------

    def restore(self, jobs: Iterable[Job], now: float) -> None:
        """Find the daemons that an earlier controller started."""
        self._number = mps.number_at(now)  # an earlier controller may have used it in this second
        names = {name for job in mps.uses(jobs) if (name := mps.name_of(job)) is not None}
        for running_daemon in self.host.find((mps.id_of(uid, gpu), number) for uid, gpu, number in names):
            uid, gpu = mps.key_of(running_daemon.id)
            server = replace(
                MpsDaemon(uid=uid, gid=0, user="", gpu=gpu, uuid="", number=running_daemon.number),
                phase=Phase.STARTING,
                lives=True,
                until=now + mps.START_TIME,
                asks_at=now,
            )
            self._servers[server.name] = server
            self._number = max(self._number, running_daemon.number)
            self.host.follow(server, running_daemon.shepherd)
        self._is_checked = False


def _answered(server: MpsDaemon, answer: ServerAnswered, now: float) -> MpsDaemon:
    if server.phase is not Phase.STARTING:
        return server
    if answer.pids and set(server.pids).isdisjoint(answer.pids):
        again = now + mps.CONFIRM_PAUSE
        return replace(server, asks_at=again, was_reached=True, pids=answer.pids, why="its server ended")
    if answer.pids:
        return replace(server, phase=Phase.READY, until=float("inf"), asks_at=float("inf"), why="")
    reached = server.was_reached or answer.was_reached
    return replace(server, asks_at=now + mps.ASK_PAUSE, was_reached=reached, why=answer.why)
