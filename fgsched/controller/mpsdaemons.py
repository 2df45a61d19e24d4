"""The MPS daemons of users: their steps in a turn, and their processes, which are started, asked and ended.

A daemon has a shepherd, as a job has: it runs as the user, is adopted by the next controller, and ends with
all its processes. Its directory, in which clients find its sockets, is that of a job; only the user and root
can enter it. Commands are run by a helper process with a time limit, as the same user.
"""

import logging
import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from fgsched.config.schema import Config
from fgsched.controller.turn import (
    ClientsEnded,
    EngineContext,
    Event,
    HostShort,
    JobEnded,
    JobStarted,
    LaunchAttempt,
    MpsDaemonAnswered,
    MpsHost,
    ResendOrders,
    RunningDaemon,
    StartFailed,
)
from fgsched.domain.job import Job, MpsUse, Request
from fgsched.domain.policy import Policy
from fgsched.domain.states import JobState
from fgsched.gpus.inventory import Inventory
from fgsched.hooks.process import HookRunner
from fgsched.hooks.programs import HookRun, Ran
from fgsched.launch.launcher import Launcher
from fgsched.lifecycle import mps
from fgsched.lifecycle.enforcement import compute_policy_of
from fgsched.lifecycle.launchspec import job_dir
from fgsched.lifecycle.mps import MpsDaemon, MpsSettings, Name, Phase
from fgsched.lifecycle.transitions import Alive, Result, Shepherd, Unclaimed
from fgsched.store import GpuAllocation
from fgsched.system.process import Watch

_PASSES = 4  # over the plan in one turn: each one can make further steps due


# -- the daemons in the turn -----------------------------------------------------------------------
#
# Which daemon a job uses is stored with the job; the rest is found again in the run directory, so a
# controller that starts after a crash adopts each daemon or ends it. The rules are in `lifecycle/mps.py`.


class NoMps:
    """A host without MPS."""

    settings = mps.OFF

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

    def __init__(self, host: MpsHost) -> None:
        """`host`: the processes of the daemons, and their settings."""
        self.host = host
        self._servers: dict[Name, MpsDaemon] = {}
        self._before_turn: dict[Name, MpsDaemon] = {}  # before the turn
        self._is_checked = True  # no job has a daemon that is not known
        self._number = 0  # of the last daemon

    @property
    def servers(self) -> Sequence[MpsDaemon]:
        """The daemons that run, will run, or have failed a short time ago."""
        return [*self._servers.values()]

    def begin(self) -> None:
        """Begin a turn."""
        self._before_turn = dict(self._servers)

    def undo(self) -> None:
        """Forget the changes of the turn."""
        self._servers, self._is_checked = dict(self._before_turn), False

    def due(self, now: float) -> float | None:
        """Return the seconds until a turn is needed; None: it is not. `now`: seconds since the epoch."""
        times = (min(server.until or server.asks_at, server.asks_at) for server in self._servers.values())
        turn_at = min(times, default=float("inf"))
        return None if turn_at == float("inf") else max(0.0, turn_at - now)

    # -- jobs -----------------------------------------------------------------------------------

    def use_of(
        self, job: Job, allocations: Sequence[GpuAllocation], policy: Policy, now: float
    ) -> MpsUse | None:
        """Return how a job that starts uses MPS; None: its GPUs have none."""
        if not self.host.settings.gpus or len(allocations) != 1:
            return None
        percent = mps.percent_of(job, compute_policy_of(job, policy), self.host.settings)
        if not percent:
            return None
        gpu = allocations[0]
        server = mps.usable(self._servers, (job.uid, gpu.gpu)) or self._new(job, gpu, now)
        why = server.why
        if server.phase is Phase.DUE and server.name not in self._servers:
            why = mps.refusal(self.host.settings, self.host.directory(server.id, server.number))
        if why and server.phase is not Phase.STARTING:
            return MpsUse(server=0, percent=percent, state="refused", why=why)
        self._servers[server.name] = server
        return MpsUse(server=server.number, percent=percent)

    def _new(self, job: Job, gpu: GpuAllocation, now: float) -> MpsDaemon:
        self._number = number = max(self._number + 1, mps.number_at(now))
        until = now + mps.DUE_TIME
        daemon = MpsDaemon(uid=job.uid, gid=job.gid, user=job.user, gpu=gpu.gpu, uuid=gpu.uuid, number=number)
        return replace(daemon, until=until)

    # -- the turn -------------------------------------------------------------------------------

    def take_event(self, engine: EngineContext, event: Event, now: float) -> None:
        """Take in an event about a daemon."""
        match event:
            case JobStarted(job=server, attempt=number, shepherd=shepherd):
                if daemon := self._servers.get((*mps.key_of(server), number)):
                    self._started(engine, daemon, shepherd, now)
            case MpsDaemonAnswered(job=server, attempt=number):
                if daemon := self._servers.get((*mps.key_of(server), number)):
                    self._servers[daemon.name] = _answered(daemon, event, now)
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
            engine.then(ResendOrders(job))

    def settle(self, engine: EngineContext, now: float) -> None:
        """Make the steps that are due."""
        if not self._servers and self._is_checked:
            return
        self._is_checked = True
        self._servers = {name: mps.at(daemon, now) for name, daemon in self._servers.items()}
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
        engine.then(LaunchAttempt(after, engine.jobtable.allocations[job.id]))

    def _forget_over(self, jobs: Sequence[Job]) -> None:
        over = [name for name, daemon in self._servers.items() if mps.is_over(daemon, jobs)]
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


def _answered(server: MpsDaemon, answer: MpsDaemonAnswered, now: float) -> MpsDaemon:
    if server.phase is not Phase.STARTING:
        return server
    reached = server.was_reached or answer.has_answered
    if answer.pids and set(server.pids).isdisjoint(answer.pids):
        again = now + mps.CONFIRM_PAUSE
        return replace(server, asks_at=again, was_reached=reached, pids=answer.pids, why="its server ended")
    if answer.pids:
        return replace(server, phase=Phase.READY, until=float("inf"), asks_at=float("inf"), why="")
    return replace(server, asks_at=now + mps.ASK_PAUSE, was_reached=reached, why=answer.why)


log = logging.getLogger(__name__)
_ANSWER = 5.0  # seconds in which a daemon must answer
_END_CLIENT = 2.0  # seconds for each command that ends work of clients
_QUIT = 5  # seconds for the clients of a daemon that is ended
_KEEP = 16_384  # bytes of an answer
Report = Callable[[Event], None]


# -- the daemons as processes ----------------------------------------------------------------------


class MpsControl:
    """The engine's interface to the daemons."""

    def __init__(self, lock: Path, watch: Watch, report: Report, launcher: Launcher) -> None:
        """Start no daemon yet.

        Args:
            lock: path of the lock of the helper process.
            report: takes events of the turn.
            launcher: of jobs and daemons.
        """
        self._runner, self._report, self._launcher = HookRunner(lock, watch), report, launcher
        self.settings: MpsSettings = mps.OFF
        self._clients: dict[tuple[int, int], float] = {}  # (job, attempt) -> until when its clients are ended

    # -- the edges ------------------------------------------------------------------------------

    def configure(self, config: Config, inventory: Inventory) -> None:
        """Use these settings for jobs that start from now on."""
        whole = [gpu.index for gpu in inventory.gpus if gpu.mig is None]
        self.settings = config.mps_on(whole, inventory.vendor.facts.service)

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has answers."""
        return self._runner.fileno()

    def receive(self) -> None:
        """Take in the answers that have arrived."""
        self._runner.receive()

    def look(self) -> None:
        """Start the helper process if it is needed; let jobs end whose clients take too long."""
        now = time.monotonic()
        self._runner.look(now)
        for (job, attempt), until in list(self._clients.items()):
            if now >= until > 0:
                log.warning("job %d: its clients of MPS were not ended in time", job)
                self._ended(job, attempt)

    @property
    def due(self) -> float | None:
        """The seconds until `look` is due; None: it is not."""
        now = time.monotonic()
        dues = [max(0.0, until - now) for until in self._clients.values() if until > 0]
        runner = self._runner.due(now)
        return min([*dues, *([] if runner is None else [runner])], default=None)

    def close(self, daemons: Iterable[MpsDaemon], jobs: Sequence[Job]) -> None:
        """End those of the daemons that no job uses, and the helper process. The others are adopted later."""
        used = {mps.name_of(job) for job in jobs}
        for server in daemons:
            if server.lives and server.name not in used:
                self._cancel(server.id, server.number)
        self._runner.close()

    # -- daemons --------------------------------------------------------------------------------

    def directory(self, server: int, number: int) -> str:
        """Return the directory of a daemon: its pipes and its log."""
        return job_dir(str(self._launcher.run.path), server, number)

    def start(self, step: mps.StartDaemon) -> None:
        """Launch a daemon. JobStarted or Failed follows."""
        server, place = step.server, self.directory(step.server.id, step.server.number)
        script = f"#!/bin/sh\nexec {shlex.quote(self.settings.program)} -f\n"
        environment = mps.daemon_variables(place, server.uuid, self.settings.service) | {
            "HOME": "/",
            "FG_JOB_DIR": place,
        }
        self._launcher.start_daemon(_pseudo(server, place), script.encode(), environment)

    def follow(self, server: MpsDaemon, shepherd: Shepherd) -> None:
        """Watch the shepherd of a daemon. JobEnded follows, immediately if it has ended."""
        self._launcher.follow(_pseudo(server), shepherd)

    def ask(self, step: mps.AskDaemon) -> None:
        """Make a daemon start its server, and ask for it. MpsDaemonAnswered follows."""
        server = step.server
        start = "" if server.was_reached else f"start_server -uid {server.uid}\n"
        words = f"get_server_list\n{start}get_server_list\n"
        self._command(server.id, server.number, words, partial(self._answered, server.id, server.number))

    def _answered(self, server: int, number: int, ran: Ran) -> None:
        pids = mps.pids_of(ran.output) if not ran.problem else ()
        why = "" if pids else ran.said or _first(ran.output) or ran.problem or "it starts no server"
        self._report(MpsDaemonAnswered(server, number, pids, not ran.problem, why))

    def stop(self, step: mps.StopDaemon) -> None:
        """End a daemon: by its own command, and then by signals. JobEnded follows."""
        server, number = step.server.id, step.server.number
        self._command(server, number, f"quit -t {_QUIT}\n", lambda ran: self._cancel(server, number))

    def _cancel(self, server: int, number: int) -> None:
        self._launcher.cancel(_named(server, number))

    def why_ended(self, server: int, number: int) -> str:
        """Return why a daemon has ended, and remove what it left; "": it runs."""
        job = _named(server, number)
        status = self._launcher.seize(job)
        if isinstance(status, Alive):
            return ""
        self._launcher.kill_remaining(job)
        self._launcher.forget(job)
        self._launcher.run.clear(server, number)
        if not isinstance(status, Result):
            return "it was killed"
        return status.detail or (
            f"exit status {os.waitstatus_to_exitcode(status.status)}" if status.status else "it quit"
        )

    def find(self, names: Iterable[tuple[int, int]]) -> list[RunningDaemon]:
        """Return the daemons that run, `names` (id, number) among them. Remove the files of ended ones."""
        running_daemons = []
        for server, number in sorted({*self._with_traces(), *names}):
            status = self._launcher.seize(_named(server, number))
            if isinstance(status, Alive):
                running_daemons.append(RunningDaemon(server, number, status.shepherd))
            elif not isinstance(status, Unclaimed):
                self.why_ended(server, number)
        return running_daemons

    def _with_traces(self) -> Iterator[tuple[int, int]]:
        """Yield (id, number) of the daemons that have a claim, a result or a directory."""
        for kind in ("claim", "result", "job"):
            with suppress(OSError):
                for name in os.listdir(self._launcher.run.path / kind):
                    server, _, number = name.partition(".")
                    if server.isdecimal() and number.isdecimal() and mps.is_server(int(server)):
                        yield int(server), int(number)

    # -- the clients of a job -------------------------------------------------------------------

    def end_clients(self, job: Job) -> bool:
        """Begin to end the work of a job on its GPU; False: that was done. ClientsEnded follows."""
        key = job.id, job.attempt
        until = self._clients.get(key)
        if until is not None:
            return until > 0
        pids = set(self._launcher.pids(job))
        name = mps.name_of(job)
        if name is None or not pids:
            return False
        self._clients[key] = time.monotonic() + mps.END_TIME
        server = mps.id_of(name[0], name[1])
        listed = partial(self._servers_listed, key, (server, name[2]), pids)
        self._command(server, name[2], "get_server_list\n", listed, _END_CLIENT)
        return True

    def _servers_listed(self, key: tuple[int, int], name: tuple[int, int], pids: set[int], ran: Ran) -> None:
        servers = mps.pids_of(ran.output)
        if not servers:
            self._ended(*key)
            return
        words = "".join(f"get_client_list {server}\n" for server in servers)
        listed = partial(self._clients_listed, key, name, servers, pids)
        self._command(*name, words, listed, _END_CLIENT)

    def _clients_listed(
        self,
        key: tuple[int, int],
        name: tuple[int, int],
        servers: Sequence[int],
        pids: set[int],
        ran: Ran,
    ) -> None:
        client_pids = sorted(pids.intersection(mps.pids_of(ran.output)))
        if not client_pids:
            self._ended(*key)
            return
        words = "".join(f"terminate_client {server} {pid}\n" for server in servers for pid in client_pids)
        self._command(*name, words, lambda ran: self._ended(*key), _END_CLIENT)

    def _ended(self, job: int, attempt: int) -> None:
        if self._clients.get((job, attempt), 0.0) > 0:
            self._clients[job, attempt] = 0.0
            self._report(ClientsEnded(job, attempt))

    def forget(self, jobs: Iterable[Job]) -> None:
        """Forget the clients of ended jobs."""
        for job in jobs if self._clients else ():
            self._clients.pop((job.id, job.attempt), None)

    # -- commands -------------------------------------------------------------------------------

    def _command(
        self, server: int, number: int, words: str, callback: Callable[[Ran], None], seconds: float = _ANSWER
    ) -> None:
        """Give a daemon commands, one in each line; `callback` is called with its answer."""
        place = self.directory(server, number)
        uid, gid = mps.key_of(server)[0], -1
        try:
            gid = os.stat(place).st_gid
        except OSError:
            callback(Ran(number=0, problem="its directory is gone"))
            return
        run = HookRun(
            path=self.settings.program,
            seconds=seconds,
            environment=mps.daemon_variables(place, "", self.settings.service),
            input=words,
            keep=_KEEP,
            uid=uid,
            gid=gid,
            owner=uid,
        )
        self._runner.request(run, callback)


def _named(server: int, number: int) -> Job:
    """Return a record with which the launcher finds a daemon."""
    uid, gpu = mps.key_of(server)
    return _pseudo(MpsDaemon(uid=uid, gid=0, user="", gpu=gpu, uuid="", number=number))


def _pseudo(server: MpsDaemon, place: str = "/") -> Job:
    """Return a record with which the launcher starts a daemon; it is in no queue."""
    return Job(
        id=server.id,
        uid=server.uid,
        gid=server.gid,
        user=server.user,
        request=Request(name="mps", chdir="/", output=f"{place}/control.log", umask=0o077),
        submitted_at=0.0,
        state=JobState.STARTING,
        attempt=server.number,
        started_at=0.0,
    )


def _first(output: str) -> str:
    return output.strip().partition("\n")[0]
