"""The MPS daemons of users as processes: start them, ask them, end their clients, end them.

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

from fgsched.config.load import Config
from fgsched.controller.mpsservers import MpsServers
from fgsched.controller.turn import ClientsEnded, Event, RunningDaemon, ServerAnswered
from fgsched.domain.job import Job, Request
from fgsched.domain.states import JobState
from fgsched.gpus.inventory import Inventory
from fgsched.hooks.process import HookRunner
from fgsched.hooks.programs import HookRun, Ran
from fgsched.launch.launcher import Launcher
from fgsched.lifecycle import mps
from fgsched.lifecycle.launchspec import job_dir
from fgsched.lifecycle.mps import MpsDaemon
from fgsched.lifecycle.transitions import Alive, Result, Shepherd, Unclaimed
from fgsched.system.helper import Watch

log = logging.getLogger(__name__)
_ANSWER = 5.0  # seconds in which a daemon must answer
_END_CLIENT = 2.0  # seconds for each command that ends work of clients
_QUIT = 5  # seconds for the clients of a daemon that is ended
_KEEP = 16_384  # bytes of an answer
Report = Callable[[Event], None]


class MpsDesk:
    """The engine's interface to the daemons."""

    def __init__(self, lock: Path, watch: Watch, report: Report) -> None:
        """`lock`: path of the lock of the helper process; `report` takes events of the turn."""
        self._runner, self._report = HookRunner(lock, watch), report
        self._launcher: Launcher | None = None
        self._servers = MpsServers()
        self._clients: dict[tuple[int, int], float] = {}  # (job, attempt) -> until when its clients are ended

    # -- the edges ------------------------------------------------------------------------------

    def attach(self, servers: MpsServers, launcher: Launcher) -> None:
        """Be the host of `servers`, with the processes of `launcher`."""
        self._servers, self._launcher, servers.host = servers, launcher, self

    def obey(self, config: Config, inventory: Inventory) -> None:
        """Use these settings for jobs that start from now on."""
        whole = [gpu.index for gpu in inventory.gpus if gpu.mig is None]
        self._servers.settings = config.mps_on(whole, inventory.vendor.facts.service)

    @property
    def launcher(self) -> Launcher:
        """The launcher of jobs and daemons."""
        assert self._launcher is not None, "attach() comes first"
        return self._launcher

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

    def close(self, jobs: Sequence[Job]) -> None:
        """End the daemons that no job uses, and the helper process. Other daemons are adopted later."""
        used = {mps.name_of(job) for job in jobs}
        for server in self._servers.servers:
            if server.lives and server.name not in used:
                self._cancel(server.id, server.number)
        self._runner.close()

    # -- daemons --------------------------------------------------------------------------------

    def directory(self, server: int, number: int) -> str:
        """Return the directory of a daemon: its pipes and its log."""
        return job_dir(str(self.launcher.run.path), server, number)

    def start(self, step: mps.StartDaemon) -> None:
        """Launch a daemon. JobStarted or Failed follows."""
        server, place = step.server, self.directory(step.server.id, step.server.number)
        script = f"#!/bin/sh\nexec {shlex.quote(self._servers.settings.program)} -f\n"
        environment = mps.daemon_variables(place, server.uuid, self._servers.settings.service) | {
            "HOME": "/",
            "FG_JOB_DIR": place,
        }
        self.launcher.start_daemon(_pseudo(server, place), script.encode(), environment)

    def follow(self, server: MpsDaemon, shepherd: Shepherd) -> None:
        """Watch the shepherd of a daemon. JobEnded follows, immediately if it has ended."""
        self.launcher.follow(_pseudo(server), shepherd)

    def ask(self, step: mps.AskDaemon) -> None:
        """Make a daemon start its server, and ask for it. ServerAnswered follows."""
        server = step.server
        start = "" if server.was_reached else f"start_server -uid {server.uid}\n"
        words = f"get_server_list\n{start}get_server_list\n"
        self._command(server.id, server.number, words, partial(self._answered, server.id, server.number))

    def _answered(self, server: int, number: int, ran: Ran) -> None:
        pids = mps.pids_of(ran.output) if not ran.problem else ()
        why = "" if pids else ran.said or _first(ran.output) or ran.problem or "it starts no server"
        self._report(ServerAnswered(server, number, pids, not ran.problem, why))

    def stop(self, step: mps.StopDaemon) -> None:
        """End a daemon: by its own command, and then by signals. JobEnded follows."""
        server, number = step.server.id, step.server.number
        self._command(server, number, f"quit -t {_QUIT}\n", lambda ran: self._cancel(server, number))

    def _cancel(self, server: int, number: int) -> None:
        self.launcher.cancel(_named(server, number))

    def why_ended(self, server: int, number: int) -> str:
        """Return why a daemon has ended, and remove what it left; "": it runs."""
        job = _named(server, number)
        seen = self.launcher.seize(job)
        if isinstance(seen, Alive):
            return ""
        self.launcher.kill_remaining(job)
        self.launcher.forget(job)
        self.launcher.run.clear(server, number)
        if not isinstance(seen, Result):
            return "it was killed"
        return seen.detail or (
            f"exit status {os.waitstatus_to_exitcode(seen.status)}" if seen.status else "it quit"
        )

    def find(self, names: Iterable[tuple[int, int]]) -> list[RunningDaemon]:
        """Return the daemons that run, `names` (id, number) among them. Remove the files of ended ones."""
        running_daemons = []
        for server, number in sorted({*self._left(), *names}):
            seen = self.launcher.seize(_named(server, number))
            if isinstance(seen, Alive):
                running_daemons.append(RunningDaemon(server, number, seen.shepherd))
            elif not isinstance(seen, Unclaimed):
                self.why_ended(server, number)
        return running_daemons

    def _left(self) -> Iterator[tuple[int, int]]:
        """Yield (id, number) of the daemons that have a claim, a result or a directory."""
        for kind in ("claim", "result", "job"):
            with suppress(OSError):
                for name in os.listdir(self.launcher.run.path / kind):
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
        pids = set(self.launcher.pids(job))
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
        own = sorted(pids.intersection(mps.pids_of(ran.output)))
        if not own:
            self._ended(*key)
            return
        words = "".join(f"terminate_client {server} {pid}\n" for server in servers for pid in own)
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
        self, server: int, number: int, words: str, done: Callable[[Ran], None], seconds: float = _ANSWER
    ) -> None:
        """Give a daemon commands, one in each line; `done` is called with its answer."""
        place = self.directory(server, number)
        uid, gid = mps.key_of(server)[0], -1
        try:
            gid = os.stat(place).st_gid
        except OSError:
            done(Ran(number=0, problem="its directory is gone"))
            return
        run = HookRun(
            path=self._servers.settings.program,
            seconds=seconds,
            environment=mps.daemon_variables(place, "", self._servers.settings.service),
            input=words,
            keep=_KEEP,
            uid=uid,
            gid=gid,
            owner=uid,
        )
        self._runner.run(run, done)


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
