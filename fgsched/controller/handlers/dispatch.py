"""Who asks, and to whom each request goes: the desk that writes, the answers that look, or here."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import to_builtins

from fgsched import PROTOCOL, __version__, gpus
from fgsched.config.keys import document
from fgsched.config.load import Config
from fgsched.controller.caller import Caller, operators
from fgsched.controller.earlier import EarlierJobs
from fgsched.controller.enforcementcheck import EnforcementGate
from fgsched.controller.eventloop import EventLoop, Operation
from fgsched.controller.handlers.explain import ExplainHandlers
from fgsched.controller.handlers.jobs import JobHandlers
from fgsched.controller.handlers.partitions import PartitionHandlers
from fgsched.controller.handlers.priority import PriorityHandlers
from fgsched.controller.handlers.query import QueryHandlers
from fgsched.controller.handlers.reservations import ReservationHandlers
from fgsched.controller.handlers.wait import WaitHandlers
from fgsched.controller.unresolved import Unresolved
from fgsched.jobs.private import MountPlan
from fgsched.server import Connection
from fgsched.system.accounts import Account, Accounts
from fgsched.system.cgroups import MemoryCgroup, PidsCgroups
from fgsched.system.paths import Paths
from fgsched.system.spaces import Spaces

Special = Callable[[Connection, Caller, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class ControllerInfo:
    """What this controller is."""

    places: Paths
    config: Config
    inventory: gpus.Inventory
    memory: MemoryCgroup
    accounts: Accounts
    tier: str  # how jobs are held to their share, if they do not say
    gate: EnforcementGate
    mounts: MountPlan
    unresolved: Unresolved
    earlier: EarlierJobs
    spaces: Spaces | None = None  # of the users, in the run directory of a host's controller
    pids: PidsCgroups | None = None  # of the users, where a host's controller can make them


@dataclass(frozen=True, slots=True)
class Handlers:
    """Whoever knows the requests that change something."""

    jobs: JobHandlers
    site: PartitionHandlers
    standings: PriorityHandlers
    prospects: ExplainHandlers
    reservations: ReservationHandlers


class Dispatcher:
    """Knows every request by its name."""

    def __init__(
        self,
        handlers: Handlers,
        answers: QueryHandlers,
        waiters: WaitHandlers,
        loop: EventLoop,
        about: ControllerInfo,
    ) -> None:
        self._answers, self._waiters, self._loop = answers, waiters, loop
        self._writing = handlers.jobs.operations | handlers.site.operations | handlers.standings.writing
        self._writing |= handlers.reservations.operations
        self._reading = answers.operations | handlers.standings.operations | handlers.prospects.operations
        self._reading |= handlers.reservations.reading
        self.about = about
        self._started_at = time.time()
        self._specials: dict[str, Special] = {"ping": self._ping, "wait": self._wait, "stop": self._stop}

    def caller(self, connection: Connection) -> Caller:
        """Whoever the kernel says is at the other end."""
        uid, account = connection.uid, self._account(connection.uid)
        name, gid = (account.name, account.gid) if account else (str(uid), connection.gid)
        may = operators(self.about.config.operators, uid, name, own=os.geteuid())
        named = account.named if account and self._answers.policy.goes_by_groups else ()
        return Caller(uid, gid, name, may, named)

    def knows(self, connection: Connection) -> bool:
        """Whether the caller's account has been looked up. Root's requests do not wait for that."""
        return self.about.accounts.is_known(connection.uid) or connection.uid in {0, os.geteuid()}

    def _account(self, uid: int) -> Account | None:
        """Busy for a user of whom the name service says nothing."""
        if uid == 0 or uid == os.geteuid():
            return self.about.accounts.found(uid)
        return self.about.accounts.of(uid)

    def writing(self, name: str) -> Operation | None:
        return self._writing.get(name)

    def reading(self, name: str) -> Operation | None:
        return self._reading.get(name)

    def special(self, name: str) -> Special | None:
        return self._specials.get(name)

    def _ping(self, connection: Connection, caller: Caller, arguments: dict[str, Any]) -> None:
        """Who is there, and what a client has to know in order to read amounts."""
        places, config, inventory = self.about.places, self.about.config, self.about.inventory
        memory = self.about.memory
        about = {
            "version": __version__,
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "mode": places.mode,
            "state": str(places.state),
            "run": str(places.run),
            "source": inventory.source,
            "note": inventory.note,
            "enforce": self.about.tier,
            "fence": self.about.gate.verdict,
            "unresolved_pids": self.about.unresolved.pids,
            "earlier_jobs": self.about.earlier.told(),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "started_at": self._started_at,
            "host": socket.gethostname(),
            "gpus": len(inventory.gpus),
            "host_memory_held_by": f"cgroup {memory.kind}" if memory.kind else "",
            "host_memory_note": memory.note,
            "pids_held": bool(self.about.pids and self.about.pids.kind),
            "pids_note": self.about.pids.note if self.about.pids else "",
            "run_space_note": self.about.spaces.note if self.about.spaces else "",
            "preload": self.about.mounts.word,
            "preload_note": self.about.mounts.note,
            "other_gpus": self.about.mounts.others,
            "internal_errors": self._loop.faults.told(),
            "operator": caller.is_operator,
            "site": to_builtins(self._answers.policy.told(config.site)),
            "config": document(config),
        }
        self._loop.finish(connection, lambda: connection.succeed(about))

    def _wait(self, connection: Connection, caller: Caller, arguments: dict[str, Any]) -> None:
        self._loop.refuse_to_wait(connection)
        self._loop.begin_work(connection, self._look_for(connection, arguments))

    def _look_for(self, connection: Connection, arguments: dict[str, Any]) -> Iterator[None]:
        over, keys = yield from self._answers.waited(arguments.get("ids"))
        self._loop.finish(connection, partial(self._waiters.add, connection, over, keys, arguments))

    def _stop(self, connection: Connection, caller: Caller, arguments: dict[str, Any]) -> None:
        caller.must_operate("stop the controller")
        running = self._answers.running
        self._loop.finish(connection, lambda: connection.succeed({"pid": os.getpid(), "running": running}))
        self._loop.stopping = "asked by a command"
