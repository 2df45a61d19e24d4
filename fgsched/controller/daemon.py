"""The controller as a process: it takes its place, opens its edges in their order, recovers, and serves."""

import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec.structs
from filelock import FileLock, Timeout

from fgsched import __version__, gpus
from fgsched.config.load import Config, load
from fgsched.controller.decisionlog import DecisionLog
from fgsched.controller.earlier import EarlierJobs
from fgsched.controller.effects import RETRY
from fgsched.controller.enforcementcheck import EnforcementGate
from fgsched.controller.engine import Engine
from fgsched.controller.eventloop import EventLoop
from fgsched.controller.events import ClientRequest, JobEnded
from fgsched.controller.filecheck import FileCheck
from fgsched.controller.gpumonitor import ContextCosts, GpuMonitor, Watchdog
from fgsched.controller.gpustate import GpuStates, with_known_gpus
from fgsched.controller.gputime import GpuTime
from fgsched.controller.handlers.dispatch import ControllerInfo, Dispatcher, Handlers
from fgsched.controller.handlers.explain import ExplainHandlers
from fgsched.controller.handlers.jobs import FIRST_USER, JobHandlers, Rules
from fgsched.controller.handlers.partitions import ConfigActions, PartitionHandlers
from fgsched.controller.handlers.priority import PriorityHandlers
from fgsched.controller.handlers.query import QueryHandlers
from fgsched.controller.handlers.reservations import ReservationHandlers
from fgsched.controller.handlers.wait import WaitHandlers
from fgsched.controller.logfile import writer
from fgsched.controller.presence import Presence
from fgsched.controller.pruner import Keep, Pruner
from fgsched.domain.errors import StorageError, Unreachable
from fgsched.domain.states import Tier
from fgsched.jobs.enforcement import MountPlan
from fgsched.jobs.launchcontext import LaunchContext
from fgsched.jobs.pacing import policy_of
from fgsched.jobs.watchdog import Policy
from fgsched.launch import regions
from fgsched.launch.launcher import Cgroups, Launcher, Ports
from fgsched.launch.rundir import RunDir
from fgsched.launch.spawner import Spawner
from fgsched.server import listen
from fgsched.store import Store
from fgsched.system import cgroups, generations, nice
from fgsched.system.accounts import Accounts, of_host, of_user
from fgsched.system.mounts import find as find_mounts
from fgsched.system.paths import Paths, written
from fgsched.system.process import boot_id
from fgsched.system.sdnotify import ServiceManager
from fgsched.system.spaces import Scratch, Spaces
from fgshim import library, spawner

log = logging.getLogger("fgsched.controller")
_LONGEST = 300.0  # seconds until the clock is looked at again while a job waits for a time: it may be set
_LONGEST_FAULTY = 1.0  # seconds until all is looked at again where what is due could not be told
_SOON = 0.1  # seconds between two looks while something ended is not clean yet


def serve(
    places: Paths,
    config: Config,
    environ: Mapping[str, str],
    *,
    option: str = "",
    is_service: bool = False,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Be the controller until told to stop; `ready` is called once requests are taken.

    When the spawner is lost the process executes itself anew: it must not fork
    with the queue open, and starting is what it can do from any state.
    """
    places.prepare(os.geteuid())
    os.umask(0o077)
    nice.raise_limits()
    if places.mode == "system":
        nice.lower_oom_score()
    with taken(places):
        child = Spawner(spawner())
        arguments = _arguments(places, option, is_service=is_service)
        if places.mode == "user":
            child.keep(places.log, arguments, environ)
        inventory, sampler = gpus.attach(config, environ, option=option)
        accounts = of_host() if places.mode == "system" else of_user(os.geteuid())
        store = Store(places.queue)
        try:
            inventory = with_known_gpus(inventory, store, sampler)
            controller = _Controller(places, config, store, _Beside(child, sampler, accounts), inventory)
            with nice.before_jobs():
                again = controller.run(ready, ServiceManager(environ if is_service else {}))
        finally:
            store.close()
            child.close()
            sampler.close()
            accounts.close()
    if again:
        log.warning("the spawner is gone: starting anew")
        os.execv(sys.executable, arguments)


def _arguments(places: Paths, option: str, *, is_service: bool) -> list[str]:
    """The command that starts such a controller again."""
    kept = [*(("--gpus", option) if option else ()), *(["--system"] if places.mode == "system" else [])]
    kept += ["--service"] if is_service else []
    return [sys.executable, "-I", "-m", "fgsched.controller", *kept]


@contextmanager
def taken(places: Paths) -> Iterator[None]:
    """The controller's place, held for life by a lock that the kernel gives up when we die."""
    lock = FileLock(places.lock, timeout=0)
    try:
        with written(places.lock):
            lock.acquire()
            places.lock.write_text(f"{os.getpid()}\n")
    except Timeout:
        holder = places.lock.read_text().strip() or "?"
        raise Unreachable(
            f"another controller is running (pid {holder})", "Stop it first: fgsched stop"
        ) from None
    try:
        yield
    finally:
        lock.release()


class _Beside(NamedTuple):
    """The processes beside the controller. They are started before the queue is open."""

    spawner: Spawner
    sampler: gpus.AnySampler
    accounts: Accounts


class _Controller:
    """Edges and conductor, wired together."""

    def __init__(
        self, places: Paths, config: Config, store: Store, beside: _Beside, inventory: gpus.Inventory
    ) -> None:
        child, sampler, accounts = beside
        self._store, self._inventory, self._sampler = store, inventory, sampler
        self._places, run = places, _run_directory(places, store)
        own = run.path
        self._loop = EventLoop(self._listener(), child)
        self._presence, self._cleaner = Presence(places, run, self._listen_again), run.cleaner
        self._accounts, memory = accounts, cgroups.find()
        device = cgroups.for_devices() if inventory.limits and os.geteuid() == 0 else None
        best = (Tier.DRIVER if device else Tier.SHIM).value
        gate = EnforcementGate(sampler, run=str(own), hook=library(), is_real=inventory.source == "nvml")
        mounts = find_mounts(config.preload, places.run, inventory.gpus, may_make=places.mode == "system")
        site = msgspec.structs.replace(_site(places, own, config, mounts), proves=inventory.source == "nvml")
        self._contexts = ContextCosts(config.context_memory)
        spaces, pids = _of_users(places, config, store.name)
        ports = self._ports(accounts, gate, spaces, _scratch(places, own, config))
        self._shepherds = shepherds = Launcher(run, child, site, ports, Cgroups(memory, device, pids))
        self._cards = _cards(config, inventory, sampler)
        watch, remove = self._loop.watch_once, self._cleaner.add
        self._earlier = EarlierJobs(places.run, own, self._cards, watch=watch, remove=remove)
        self._engine = Engine(
            store, shepherds, self._cards, limits=config.limits, tier=best, faults=self._loop.faults
        )
        self._engine.mounts, self._engine.binding = mounts, nice.cpu_binding(config.cpu_binding)
        watchdog = Watchdog(str(own), _policy(config), self._loop.happened, self._learn, self._loop.faults)
        self._gpu_monitor = GpuMonitor(
            self._engine, shepherds, sampler, watchdog, gate, interval=config.interval
        )
        self._pacer = GpuTime(self._engine, sampler, run=str(own), is_real=inventory.source == "nvml")
        self._gpu_monitor.measured = self._pacer.measured
        self._file_check, self._pruner = FileCheck(store), Pruner(store, _keep(config), self._revision)
        self._waiters = WaitHandlers(self._loop.finish, self._loop.faults)
        looked = (gate, mounts, self._gpu_monitor.unresolved, self._earlier, spaces, pids)
        about = ControllerInfo(places, config, inventory, memory, accounts, best, *looked)
        self._dispatcher = self._opened(about)

    def _revision(self) -> int:
        return self._engine.jobtable.revision

    def _listener(self) -> socket.socket:
        return listen(self._places.socket, for_all=self._places.mode == "system")

    def _listen_again(self) -> None:
        self._loop.listen(self._listener())

    def _opened(self, about: ControllerInfo) -> Dispatcher:
        """Whoever answers requests, at their desks."""
        self._job_handlers = JobHandlers(self._engine, _rules(about.places, about.config))
        hands = ConfigActions(lambda: load(about.places), self._obey)
        self._partition_handlers = PartitionHandlers(self._engine, about.config, hands)
        self._reservations = ReservationHandlers(self._engine)
        prospects = ExplainHandlers(self._engine, self._job_handlers)
        handlers = Handlers(
            self._job_handlers,
            self._partition_handlers,
            PriorityHandlers(self._engine),
            prospects,
            self._reservations,
        )
        refused = partial(regions.refusal, str(self._shepherds.run.path))
        answers = QueryHandlers(self._engine, self._shepherds.pids, self._pacer.mechanism, refused)
        return Dispatcher(handlers, answers, self._waiters, self._loop, about)

    def _learn(self, gpu: int, size: int) -> None:
        """So many bytes were the contexts of a process on that card."""
        self._contexts.learn(self._cards.gpu(gpu).model, size)

    def _ports(
        self, accounts: Accounts, gate: EnforcementGate, spaces: Spaces | None, scratch: Scratch
    ) -> Ports:
        return Ports(
            spaces=spaces,
            scratch=scratch,
            material=self._store.material,
            failed=self._loop.failed,
            short=self._loop.short,
            watch=self._loop.watch_once,
            gone=lambda job: self._loop.happened(JobEnded(job)),
            accounts=accounts,
            cpus=lambda index: self._cards.gpu(index).cpus,
            gate=gate,
            context=self._contexts.of,
            compute=lambda job: policy_of(job, self._engine.policy),
        )

    def run(self, ready: Callable[[], None], service: ServiceManager) -> bool:
        """Serve until stopped; True if it is to be started anew."""
        self._recover()
        self._loop.begin(self._engine, self._dispatcher)
        self._watch_edges()
        with self._signals():
            ready()
            self._started(service)
            while not self._loop.stopping and not self._engine.is_broken:
                self._loop.run_once(self._timeout(service))
                self._after_a_round()
                if service.is_due(time.monotonic()):
                    service.alive(self._status, time.monotonic())
        self._cleaner.close()
        self._stopped(service)
        if self._engine.is_broken:
            raise StorageError("the disk failed while the queue was written", "Look at the disk, then go on.")
        self._shepherds.tidy({job.slot for job in self._engine.jobtable.holding.values()})
        return self._loop.stopping == "the spawner is gone"

    def _started(self, service: ServiceManager) -> None:
        """Requests are served from now on: log it, and tell the service manager."""
        self._engine.log.note(
            "controller-start",
            pid=os.getpid(),
            version=__version__,
            mode=self._places.mode,
            gpus=len(self._inventory.gpus),
            source=self._inventory.source,
        )
        self._engine.log.flush(time.time())
        service.ready(self._status, time.monotonic())

    def _stopped(self, service: ServiceManager) -> None:
        why = self._loop.stopping or "the queue cannot be written"
        self._engine.log.note("controller-stop", pid=os.getpid(), why=why)
        self._engine.log.flush(time.time())
        service.stopping()

    @property
    def _status(self) -> str:
        """What `systemctl status` shows."""
        table, gpus = self._engine.jobtable, len(self._inventory.gpus)
        running = len(table.holding)
        return f"{gpus} GPUs, {running} running jobs, {len(table.jobs) - running} pending jobs"

    def _watch_edges(self) -> None:
        self._loop.watch(self._sampler, self._gpu_monitor.see)
        self._accounts.answered = self._loop.known
        if self._accounts.has_helper:
            self._loop.watch(self._accounts, self._accounts.receive)
        if self._presence.source is not None:
            self._loop.watch(self._presence.source, lambda: self._presence.heard(time.monotonic()))

    def _after_a_round(self) -> None:
        """A fault in one of these parts costs that part its look, and nothing else."""
        contained = self._loop.faults.run
        self._file_check.step(time.monotonic())  # what it finds stops the controller
        contained("the waiters", self._tell_waiters)
        contained("the reservations", lambda: self._reservations.tidy(time.time()))
        contained("the lookout", self._gpu_monitor.look)
        contained("the pacer", self._pacer.look)
        contained("the accounts", self._accounts.expire)
        contained("the run directory", lambda: self._presence.look(time.monotonic()))
        contained("the removal of old scripts", lambda: self._pruner.step(time.monotonic(), time.time()))
        contained("the removal of job directories", lambda: self._cleaner.step(time.monotonic()))

    def _recover(self) -> None:
        self._engine.log = DecisionLog(writer(logging.getLogger().handlers))
        with self._store.write():
            marks = self._store.card_marks()  # before the cards that are here now take the indices
            self._store.put_cards(self._inventory.gpus)
            self._cards.restore(marks)
            for gpu in self._cards.changed():
                self._store.mark_card(gpu)
        self._loop.faults.run("the jobs of earlier queues", lambda: self._earlier.look(time.time()))
        with _loading():
            self._engine.recover(time.time())
            self._engine.turn([], time.time())

    def _obey(self, config: Config) -> None:
        """The configuration was read anew: what may change while we run."""
        about = self._dispatcher.about
        self._dispatcher.about = replace(about, config=config)
        self._job_handlers.rules = _rules(about.places, config)
        self._shepherds.reconfigure(
            _site(about.places, self._shepherds.run.path, config, self._engine.mounts)
        )
        self._engine.binding = nice.cpu_binding(config.cpu_binding)
        self._gpu_monitor.interval = config.interval
        self._gpu_monitor.watchdog.policy = _policy(config)
        self._contexts.default = config.context_memory
        self._pruner.obey(_keep(config), time.monotonic())
        self._cards.obey(
            interval=config.interval, clean_timeout=config.clean_timeout, fatal=config.drain_on_xid
        )

    def _timeout(self, service: ServiceManager) -> float | None:
        """Seconds until something is due by itself; None: nothing is."""
        with self._loop.faults.contained("the timers"):
            dues = (self._due(), service.due(time.monotonic()))
            return min((due for due in dues if due is not None), default=None)
        return _LONGEST_FAULTY

    def _due(self) -> float | None:
        engine = self._engine
        unsaved = engine.due(time.time())
        unheard = RETRY if engine.undelivered else None
        orphans = _SOON if engine.orphans else None
        dated = (engine.jobtable.wait_index.next_due, self._reservations.next_due(time.time()))
        due = min((each for each in dated if each is not None), default=None)
        timer = None if due is None else min(_LONGEST, max(0.0, due - time.time()))
        quota = engine.policy.weights.interval if self._waits_for_a_quota else None
        now = time.monotonic()
        dues = (
            unsaved,
            unheard,
            self._file_check.due(time.monotonic()),
            orphans,
            timer,
            quota,
            self._gpu_monitor.due,
            self._pacer.due,
            self._accounts.due,
            self._waiters.delay,
            self._presence.due(now),
            self._cleaner.due(now),
            self._pruner.due(now),
        )
        return min((due for due in dues if due is not None), default=None)

    @property
    def _waits_for_a_quota(self) -> bool:
        """GPU time that was used decays by itself: nothing else would tell that a job may start."""
        return self._engine.policy.has_quotas and bool(self._engine.jobtable.waiting)

    def _tell_waiters(self) -> None:
        ended, self._engine.ended = self._engine.ended, []
        if ended:
            self._pruner.ended(time.monotonic())
        self._waiters.over(ended, self._engine.jobtable)
        self._waiters.tell(self._engine.jobtable, time.time())

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop the loop by way of a descriptor."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ours.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

        def hear() -> None:
            heard = set(ours.recv(64))
            if heard & {signal.SIGTERM, signal.SIGINT}:
                self._loop.stopping = "asked by a signal"
            if signal.SIGHUP in heard:
                self._loop.happened(
                    ClientRequest(self._partition_handlers.hang_up, lambda error: log.error("%s", error))
                )

        self._loop.watch(ours, hear)
        yield
        signal.set_wakeup_fd(-1)


@contextmanager
def _loading() -> Iterator[None]:
    """Collect no garbage while the jobs are read, and never look for it among what was read.

    Of 100,000 jobs that would take a quarter of the start, and a tenth of a second now and then.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def _run_directory(places: Paths, store: Store) -> RunDir:
    """That of the queue; ids go on from the highest that an earlier queue has left."""
    own = generations.directory_of(places.run, store.name, lambda: _under_way(store))
    store.raise_ids(generations.highest_id(places.run, own))
    return RunDir(own, boot_id())


def _rules(places: Paths, config: Config) -> Rules:
    anybody = places.mode == "user" or config.allow_root_jobs
    return Rules(
        config.max_script,
        config.default_time,
        least_uid=0 if anybody else FIRST_USER,
        tiers=config.tiers,
        kill_invalid=config.kill_invalid_depend,
        max_material=config.max_bytes_per_user,
    )


def _keep(config: Config) -> Keep:
    return Keep(config.keep_scripts, config.keep_scripts_size)


def _policy(config: Config) -> Policy:
    return Policy(kills=config.watchdog == "kill", tolerance=config.tolerance)


def _under_way(store: Store) -> set[tuple[int, int]]:
    """The attempts that an earlier controller started."""
    return {(past.job.id, past.job.attempt) for past in store.open_past() if past.job.state.holds}


def _site(places: Paths, run: Path, config: Config, mounts: MountPlan) -> LaunchContext:
    return LaunchContext(
        host=socket.gethostname(),
        run=str(run),
        hook=str(library()),
        tmp=config.tmp,
        kill_wait=config.kill_wait,
        become_user=places.mode == "system",
        visible={one.name: one.visible_env for one in config.policy.resources},
        mounts=mounts,
    )


def _of_users(places: Paths, config: Config, name: str) -> tuple[Spaces | None, cgroups.PidsCgroups | None]:
    """What the host's controller gives to each user's jobs together."""
    if places.mode == "user":
        return None, None
    return Spaces(places.run, size=config.run_space), cgroups.PidsCgroups(name, config.max_processes)


def _scratch(places: Paths, own: Path, config: Config) -> Scratch:
    return Scratch(own, f"{config.tmp}/fg-{own.name}-", for_all=places.mode == "system")


def _cards(config: Config, inventory: gpus.Inventory, sampler: gpus.AnySampler) -> GpuStates:
    return GpuStates(
        inventory.gpus,
        sampled=inventory.is_sampled,
        ask=lambda: sampler.ask(gpus.READING),
        interval=config.interval,
        clean_timeout=config.clean_timeout,
        fatal=config.drain_on_xid,
    )
