"""The controller as a process: it takes its place, opens its edges in their order, recovers, and serves."""

import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

from filelock import FileLock, Timeout

from fgsched import PROTOCOL, __version__, cgroups, gpus
from fgsched.config import Config
from fgsched.controller.answers import Answers
from fgsched.controller.caller import Caller, no_such_job, operators
from fgsched.controller.cards import Cards
from fgsched.controller.conductor import Conductor, Died
from fgsched.controller.desk import Desk, Rules
from fgsched.controller.loop import Loop, Operation
from fgsched.controller.seeing import understood
from fgsched.controller.waiters import Waiters
from fgsched.errors import Unreachable
from fgsched.isolation import Site
from fgsched.launch import RunDir, Spawner
from fgsched.places import Places
from fgsched.process import boot_id
from fgsched.server import Connection, listen
from fgsched.shepherds import Ports, Shepherds, primary_group, user_name
from fgsched.store import Store
from fgshim import library, spawner

log = logging.getLogger("fgsched.controller")
_SOON = 0.1  # seconds between two looks while something ended is not clean yet


def serve(
    places: Places,
    config: Config,
    environ: Mapping[str, str],
    *,
    option: str = "",
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Be the controller until told to stop; `ready` is called once requests are taken.

    When the spawner is lost the process executes itself anew: it must not fork
    with the queue open, and starting is what it can do from any state.
    """
    places.prepare(os.geteuid())
    os.umask(0o077)
    _raise_descriptor_limit()
    with taken(places):
        child = Spawner(spawner())
        inventory, sampler = gpus.attach(config, environ, option=option)
        store = Store(places.queue)
        try:
            again = _Controller(places, config, store, child, inventory, sampler).run(ready)
        finally:
            store.close()
            child.close()
            sampler.close()
    if again:
        log.warning("the spawner is gone: starting anew")
        kept = [*(("--gpus", option) if option else ()), *(["--system"] if places.mode == "system" else [])]
        os.execv(sys.executable, [sys.executable, "-I", "-m", "fgsched.controller", *kept])


@contextmanager
def taken(places: Places) -> Iterator[None]:
    """The controller's place, held for life by a lock that the kernel gives up when we die."""
    lock = FileLock(places.lock, timeout=0)
    try:
        with lock:
            places.lock.write_text(f"{os.getpid()}\n")
            yield
    except Timeout:
        holder = places.lock.read_text().strip() or "?"
        raise Unreachable(
            f"another controller is running (pid {holder})", "Stop it first: fgsched stop"
        ) from None


class _Controller:
    """Edges and conductor, wired together."""

    def __init__(
        self,
        places: Places,
        config: Config,
        store: Store,
        child: Spawner,
        inventory: gpus.Inventory,
        sampler: gpus.AnySampler,
    ) -> None:
        self._places, self._config, self._store = places, config, store
        self._inventory, self._sampler = inventory, sampler
        self._listener = listen(places.socket, for_all=places.mode == "system")
        self._loop = Loop(self._listener, child)
        site = Site(
            host=socket.gethostname(),
            run=str(places.run),
            hook=str(library()),
            tmp=f"{config.tmp}/fg-{store.name}-",
            kill_wait=config.kill_wait,
            become_user=places.mode == "system",
        )
        ports = Ports(
            material=store.material,
            failed=self._loop.failed,
            watch=self._loop.watch_once,
            gone=lambda job: self._loop.happened(Died(job)),
        )
        self._memory = cgroups.find()
        self._shepherds = Shepherds(RunDir(places.run, boot_id()), child, site, ports, self._memory)
        self._cards = Cards(
            inventory.gpus,
            sampled=inventory.source == "nvml",
            ask=lambda: sampler.ask(gpus.READING),
            interval=config.interval,
            clean_timeout=config.clean_timeout,
        )
        self._conductor = Conductor(store, self._shepherds, self._cards, limits=config.limits, tier="shim")
        self._desk = Desk(self._conductor, Rules(config.max_script, config.default_time))
        self._answers = Answers(self._conductor, self._shepherds.pids)
        self._waiters = Waiters()
        self._started_at = time.time()
        self._sampled_at = 0.0
        self._specials = {"ping": self._ping, "wait": self._wait, "stop": self._stop}

    # -- life -----------------------------------------------------------------------------------

    def run(self, ready: Callable[[], None]) -> bool:
        """Serve until stopped; True if it is to be started anew."""
        self._recover()
        self._loop.begin(self._conductor, self)
        self._loop.watch(self._sampler, self._see)
        with self._signals():
            ready()
            log.info("ready: %d GPU (%s)", len(self._inventory.gpus), self._inventory.source)
            while not self._loop.stopping:
                self._loop.run_once(self._timeout())
                self._tell_waiters()
                self._sample()
        return self._loop.stopping == "the spawner is gone"

    def _recover(self) -> None:
        with self._store.write():
            self._store.put_cards(self._inventory.gpus)
        self._cards.restore(self._store.card_marks())
        self._conductor.recover(time.time())
        self._conductor.turn([], time.time())

    def _timeout(self) -> float | None:
        """Seconds until something is due by itself; None: nothing is."""
        due, told = self._due(), self._waiters.delay
        return told if due is None else due if told is None else min(due, told)

    def _due(self) -> float | None:
        conductor = self._conductor
        if conductor.unsaved:
            return 1.0
        if conductor.orphans or self._cards.is_cleaning:
            return _SOON
        if self._inventory.source == "nvml" and conductor.book.jobs:
            return max(0.0, self._sampled_at + self._config.interval - time.time())
        return None

    def _sample(self) -> None:
        """Look at the cards when it is time, and sooner while an ended job is not off them."""
        if self._inventory.source != "nvml" or not self._conductor.book.jobs:
            return
        pause = _SOON if self._cards.is_cleaning else self._config.interval
        if time.time() - self._sampled_at >= pause * 0.99:
            self._sampled_at = time.time()
            self._cards.ask()

    def _see(self) -> None:
        now = time.time()
        for answer in self._sampler.read():
            if answer.want != gpus.READING:
                continue
            book = self._conductor.book
            shepherds = {
                shepherd.pid: job.id
                for job in book.holding.values()
                if job.holds and (shepherd := self._shepherds.shepherd(job))
            }
            watched = [job for one in self._cards.watched if (job := book.jobs.get(one))]
            readings, there = understood(
                answer.readings, shepherds=shepherds, ended=watched, run=str(self._places.run)
            )
            self._cards.saw(readings, there=there, now=now)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop the loop by way of a descriptor."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ours.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

        def heard() -> None:
            if set(ours.recv(64)) & {signal.SIGTERM, signal.SIGINT}:
                self._loop.stopping = "asked by a signal"

        self._loop.watch(ours, heard)
        yield
        signal.set_wakeup_fd(-1)

    # -- requests -------------------------------------------------------------------------------

    def caller(self, connection: Connection) -> Caller:
        uid = connection.uid
        name = user_name(uid)
        may = operators((), uid, os.geteuid()) or name in self._config.operators
        return Caller(uid, primary_group(uid, connection.gid), name, may)

    def writing(self, name: str) -> Operation | None:
        return self._desk.operations.get(name)

    def reading(self, name: str) -> Operation | None:
        return self._answers.operations.get(name)

    def special(self, name: str) -> Callable[[Connection, Caller, dict[str, Any]], None] | None:
        return self._specials.get(name)

    def _ping(self, connection: Connection, caller: Caller, arguments: dict[str, Any]) -> None:
        """Who is there, and what a client has to know in order to read amounts."""
        about = {
            "version": __version__,
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "mode": self._places.mode,
            "state": str(self._places.state),
            "run": str(self._places.run),
            "source": self._inventory.source,
            "note": self._inventory.note,
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "started_at": self._started_at,
            "host": socket.gethostname(),
            "gpus": len(self._inventory.gpus),
            "host_memory_held_by": f"cgroup {self._memory.kind}" if self._memory.kind else "",
            "host_memory_note": self._memory.note,
            "operator": caller.is_operator,
            "site": asdict(self._config.site),
            "config": {key: value for key, value in asdict(self._config).items()},
        }
        self._loop.finish(connection, lambda: connection.succeed(about))

    def _wait(self, connection: Connection, caller: Caller, arguments: dict[str, Any]) -> None:
        jobs = []
        for job_id in arguments.get("ids", ()):
            known = self._conductor.book.jobs.get(job_id) if type(job_id) is int else None
            past = None if known else self._store.past(job_id) if type(job_id) is int else None
            if known is None and past is None:
                error = no_such_job(job_id)
                self._loop.finish(connection, partial(connection.fail, error))
                return
            jobs.append(known or past.job)  # type: ignore[union-attr]
        self._loop.finish(connection, lambda: self._waiters.add(connection, jobs, arguments))

    def _tell_waiters(self) -> None:
        ended, self._conductor.ended = self._conductor.ended, []
        self._waiters.over(ended)
        self._waiters.tell(self._conductor.book, time.time())

    def _stop(self, connection: Connection, caller: Caller, arguments: dict[str, Any]) -> None:
        caller.must_operate("stop the controller")
        running = len(self._conductor.book.holding)
        self._loop.finish(connection, lambda: connection.succeed({"pid": os.getpid(), "running": running}))
        self._loop.stopping = "asked by a command"


def _raise_descriptor_limit() -> None:
    """A pidfd for each running job; jobs get the limits of their submission."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
