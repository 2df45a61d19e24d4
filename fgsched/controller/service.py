"""Run the controller: build its parts, and call each part after each round of the event loop."""

import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fgsched import __version__, gpus
from fgsched.config.load import load
from fgsched.config.schema import Config
from fgsched.controller.audit import ACTIONS, Audit, file_writer
from fgsched.controller.bookkeeping import Accounts
from fgsched.controller.daemon import HelperProcesses
from fgsched.controller.decisionlog import decision_log
from fgsched.controller.enforcementcheck import EnforcementCheck
from fgsched.controller.engine import Engine
from fgsched.controller.eventloop import SPAWNER_GONE, EventLoop
from fgsched.controller.gpumonitor import (
    GpuMonitor,
    InventoryRetry,
    Watchdog,
    is_needed,
    watchdog_policy,
)
from fgsched.controller.gpustate import ContextCosts, GpuStates
from fgsched.controller.gputime import GpuTime
from fgsched.controller.handlers.about import ControllerInfo
from fgsched.controller.handlers.accounts import AccountsHandlers, ReportHandlers
from fgsched.controller.handlers.adopt import AdoptHandlers, ListedProcesses, ProcessHandlers, host_user_of
from fgsched.controller.handlers.dispatch import Dispatcher
from fgsched.controller.handlers.events import EventReaders
from fgsched.controller.handlers.explain import ExplainHandlers
from fgsched.controller.handlers.fields import Live
from fgsched.controller.handlers.jobs import JobHandlers
from fgsched.controller.handlers.partitions import ConfigActions, PartitionHandlers
from fgsched.controller.handlers.priority import PriorityHandlers
from fgsched.controller.handlers.query import QueryHandlers, QueueLineHandlers
from fgsched.controller.handlers.reservations import ReservationHandlers
from fgsched.controller.handlers.submission import rules_of
from fgsched.controller.hooking import SitePrograms
from fgsched.controller.mailing import MailerControl
from fgsched.controller.mpsdaemons import MpsControl
from fgsched.controller.sampling import SampledUsage, Sampling, job_loads
from fgsched.controller.turn import ClientRequest, JobEnded
from fgsched.controller.upkeep import EarlierJobs, FileCheck, JobRetention, Presence, Pruner
from fgsched.domain.errors import StorageError
from fgsched.domain.job import Job
from fgsched.domain.policy import Policy
from fgsched.domain.states import Tier
from fgsched.domain.vendor import VendorFacts
from fgsched.gpus.ownership import Ownership, dismiss
from fgsched.launch import regions
from fgsched.launch.arbiter import Arbiter
from fgsched.launch.hostwait import HostWaits
from fgsched.launch.launcher import Cgroups, LaunchCheck, Launcher, Ports
from fgsched.launch.regions import Unhooked
from fgsched.launch.rundir import RunDir
from fgsched.lifecycle.enforcement import MountPlan, compute_policy_of
from fgsched.lifecycle.launchspec import LaunchContext
from fgsched.server import listen
from fgsched.store import StorageBroken, Store
from fgsched.system import cgroups, containers, generations
from fgsched.system.mounts import find as find_mounts
from fgsched.system.nice import cpu_binding
from fgsched.system.paths import Paths
from fgsched.system.process import Watch, boot_id
from fgsched.system.sdnotify import ServiceManager
from fgsched.system.spaces import Scratch, Spaces
from fgsched.views.display import host_name
from fgshim import library, spawner

# -- the parts that launch jobs --------------------------------------------------------------------


class LaunchReports(Struct, frozen=True):
    """Receives the reports of the launcher, and answers its questions."""

    failed: Callable[[Job, str], None]  # an attempt could not be launched
    short: Callable[[Job, str], None]  # an attempt lacked a resource; a later one may get it
    watch: Watch
    shepherd_ended: Callable[[int], None]  # the shepherd of this job has ended
    cpus: Callable[[int], tuple[int, ...]]  # the CPUs near a GPU
    context: Callable[[str], tuple[int, bool]]  # GPU model -> as of region.pack
    policy: Callable[[], Policy]
    launch_check: LaunchCheck  # what every launch passes


class LaunchParts(Struct, frozen=True):
    """The launcher and its parts."""

    launcher: Launcher
    mounts: MountPlan
    memory: cgroups.MemoryCgroup
    tier: str  # best enforcement level of the host
    spaces: Spaces | None
    pids: cgroups.PidsCgroups | None


_NAMES_OF_SLURM = Path(__file__).parents[1] / "slurm" / "bin"  # programs that jobs find first
_COMMANDS = Path(__file__).parents[1] / "cli" / "bin"  # and last: another environment may hide those in PATH


def build(
    paths: Paths, config: Config, store: Store, helpers: HelperProcesses, run: RunDir, reports: LaunchReports
) -> LaunchParts:
    """Create the launcher and its parts for a queue with the run directory `run`."""
    inventory, is_real = helpers.inventory, helpers.inventory.is_real
    vendor = inventory.vendor
    memory = cgroups.find(store.name)
    device = cgroups.for_devices(store.name) if inventory.limits and os.geteuid() == 0 else None
    mounts = find_mounts(config.preload, paths.run, inventory.nodes, may_make=paths.mode == "system")
    spaces, pids = _of_users(paths, config, store.name)
    ports = Ports(
        spaces=spaces,
        scratch=_scratch(paths, run.path, config),
        material=store.material,
        failed=reports.failed,
        short=reports.short,
        watch=reports.watch,
        shepherd_ended=reports.shepherd_ended,
        host_users=helpers.sessions[0] if helpers.sessions else helpers.host_users,
        cpus=reports.cpus,
        launch_check=reports.launch_check,
        context=reports.context,
        compute=lambda job: compute_policy_of(job, reports.policy()),
    )
    context = launch_context(paths, run.path, config, mounts, vendor.facts)
    simulates = inventory.is_sampled and not is_real
    context = replace(context, proves=is_real and vendor.facts.is_hooked, simulates=simulates)
    launcher = Launcher(run, helpers.spawner, context, ports, Cgroups(memory, device, pids))
    tier = (Tier.DRIVER if device else Tier.SHIM if vendor.facts.is_hooked else Tier.NONE).value
    return LaunchParts(launcher, mounts, memory, tier, spaces, pids)


def enforcement_gate(helpers: HelperProcesses, run: RunDir) -> EnforcementCheck:
    """Return the gate that checks the enforcement before a launch."""
    inventory = helpers.inventory
    return EnforcementCheck(
        helpers.sampler,
        run=str(run.path),
        hook=library(),
        is_real=inventory.is_real,
        driver=inventory.vendor.driver_state,
    )


def run_directory(paths: Paths, store: Store) -> RunDir:
    """Return the run directory of a queue.

    Its ids continue after the highest id in the files of earlier queues.
    """
    directory = generations.directory_of(paths.run, store.name)
    store.raise_ids(generations.highest_id(paths.run, directory))
    return RunDir(directory, boot_id())


def launch_context(
    paths: Paths, run: Path, config: Config, mounts: MountPlan, vendor: VendorFacts
) -> LaunchContext:
    """Return the values that are equal for all launches."""
    podman = containers.write_podman_settings(
        run / "containers.conf", [str(paths.run)], str(library()), vendor.selecting, preload=bool(mounts.how)
    )
    return LaunchContext(
        host=host_name(),
        run=str(run),
        hook=str(library()),
        tmp=config.tmp,
        kill_wait=config.kill_wait,
        become_user=paths.mode == "system",
        vendor=vendor,
        no_new_privileges=config.no_new_privileges,
        visible={resource.name: resource.visible_env for resource in config.policy.resources},
        visible_devices=config.visible_devices,
        mounts=mounts,
        programs=str(_NAMES_OF_SLURM),
        commands=str(_COMMANDS),
        python=sys.executable,
        task_prolog=config.task_prolog,
        task_prolog_time=config.task_prolog_time,
        containers=containers.installed(),
        podman=podman,
    )


def _of_users(paths: Paths, config: Config, name: str) -> tuple[Spaces | None, cgroups.PidsCgroups | None]:
    """Return the tmpfs and the cgroups of users; only the host's controller has them."""
    if paths.mode == "user":
        return None, None
    return Spaces(paths.run, size=config.run_space), cgroups.PidsCgroups(name, config.max_processes)


def _scratch(paths: Paths, own_directory: Path, config: Config) -> Scratch:
    return Scratch(own_directory, f"{config.tmp}/fg-", for_all=paths.mode == "system")


log = logging.getLogger("fgsched.controller")
_NEEDED = 2**20  # bytes of free space with which a controller starts in any case
_YOUNG = 10_000  # new objects at which cycles are searched; the requests of one turn have up to a thousand
_LONGEST_FAULTY = 1.0  # seconds until the next round where the timers failed
_ASKED_AGAIN = "asked to restart by a signal"
_GPUS_ANSWER = "the GPU driver, which was late at the start, answers"
_ENDING = {signal.SIGTERM, signal.SIGINT}
_RESTARTING = {SPAWNER_GONE, _ASKED_AGAIN, _GPUS_ANSWER}
_OBEYED = {*_ENDING, signal.SIGHUP, signal.SIGUSR1}


# -- the controller --------------------------------------------------------------------------------


class _Timed(NamedTuple):
    """A part that runs after each round of the event loop, and also when its time is due."""

    name: str
    act: Callable[[], object]
    due: Callable[[], float | None]  # seconds; None: it needs no turn by itself


class Controller:
    """The engine with everything around it."""

    def __init__(
        self, paths: Paths, config: Config, store: Store, helpers: HelperProcesses, manager: ServiceManager
    ) -> None:
        self._paths, self._store, self._helpers, self._manager = paths, store, helpers, manager
        run = run_directory(paths, store)
        self._loop = EventLoop(self._listener(), helpers.spawner)
        self._presence, self._cleaner = Presence(paths, run, self._listen_again), run.cleaner
        self._gpus = _gpu_states(config, helpers)
        self._contexts = ContextCosts(config.context_memory)
        self._gate = enforcement_gate(helpers, run)
        self._hooks = self._site_programs(config)
        launching = build(paths, config, store, helpers, run, self._launch_reports())
        self._launcher = launching.launcher
        self._mps = self._mps_daemons(config)
        watch, remove = self._loop.watch_once, self._cleaner.add
        self._earlier = EarlierJobs(paths.run, run.path, self._gpus, watch=watch, remove=remove)
        limits, tier, faults = config.limits, launching.tier, self._loop.faults
        sampled = SampledUsage(config.interval)
        self._engine = Engine(
            store,
            self._launcher,
            self._gpus,
            limits=limits,
            tier=tier,
            faults=faults,
            mounts=launching.mounts,
            binding=cpu_binding(config.cpu_binding),
            epilogs=self._hooks,
            log=decision_log(),
            mps_host=self._mps,
            usage=sampled.of,
        )
        self._engine.site.configure(config)
        self._file_check, self._pruner = FileCheck(store), Pruner(store, _keep(config), self._revision)
        self._accounts = Accounts(helpers.accountant, paths, config, store, lambda: self._engine.jobtable)
        self._mailroom = MailerControl(self._engine.mail, helpers.mailer)
        self._sampling = Sampling(self._engine, helpers.host_users, self._accounts.send, sampled)
        self._processes = ListedProcesses()
        self._gputime = self._sharing()
        self._inventory_retry = self._retried()
        self._monitor = self._monitoring(config)
        self._dispatcher = self._dispatching(self._described(launching, config), self._live(sampled))
        self._parts = self._timed()

    def answer_for(self, owned: Ownership) -> None:
        """Close the connections of programs that look up which controller has a GPU."""
        for listener in owned.listeners:
            self._loop.watch(listener, partial(dismiss, listener))

    def _described(self, launching: LaunchParts, config: Config) -> ControllerInfo:
        """Return the description of the controller for `ping`."""
        inventory = self._helpers.inventory
        return ControllerInfo(
            paths=self._paths,
            config=config,
            inventory=inventory,
            memory=launching.memory,
            host_users=self._helpers.host_users,
            tier=launching.tier,
            mounts=launching.mounts,
            fence=lambda: self._gate.verdict,
            unresolved_pids=lambda: self._monitor.unresolved.pids,
            earlier_jobs=self._earlier.summary,
            context_memory=partial(self._contexts.smallest, {gpu.model for gpu in inventory.gpus}),
            spaces=launching.spaces,
            pids=launching.pids,
            accounts_note=lambda: self._accounts.trouble,
            queue_note=lambda: self._store.trouble,
        )

    def _live(self, sampled: SampledUsage) -> Live:
        """Return the sources of values of a running job that its record lacks."""
        return Live(
            self._gputime.mechanism,
            usage=sampled.of,
            use_now=self._sampling.use_now,
            srun_steps=self._launcher.steps,
            oom_kills=self._launcher.oom_kills,
            refusal=partial(regions.refusal, str(self._launcher.run.path)),
            unhooked=Unhooked(self._launcher.shepherd).of,
            host_wait=HostWaits(self._launcher.shepherd).of,
        )

    def _dispatching(self, about: ControllerInfo, live: Live) -> Dispatcher:
        """Return the dispatcher with the handlers of all requests."""
        self._reports = ReportHandlers(about.paths.accounts, self._loop, self._settings)
        self._readers = EventReaders(self._engine.log, self._loop)
        self._jobs = JobHandlers(self._engine, rules_of(about.paths, about.config))
        actions = ConfigActions(lambda: load(about.paths), self._reconfigure)
        self._partitions = PartitionHandlers(self._engine, actions)
        self._audit = Audit(
            file_writer(about.paths.audit, time.time), lambda number: self._engine.jobtable.named(number)
        )
        engine, loop, jobs, launcher = self._engine, self._loop, self._jobs, self._launcher
        person = partial(host_user_of, about)
        answers = QueryHandlers(engine, launcher.pids, live)
        return Dispatcher(
            [
                answers,
                QueueLineHandlers(answers),
                self._partitions,
                ReservationHandlers(engine),
                PriorityHandlers(engine),
                ExplainHandlers(engine, jobs.tried),
                AdoptHandlers(engine, jobs, self._monitor.job_of, person, sys.executable),
                ProcessHandlers(
                    self._processes,
                    self._monitor.job_of,
                    self._sampling.user_name,
                    lambda: engine.jobtable.jobs,
                ),
                AccountsHandlers(self._accounts, loop),
                self._reports,
                self._readers,
            ],
            submissions=jobs,
            engine=engine,
            loop=loop,
            about=about,
            hooks=self._hooks,
        )

    def _site_programs(self, config: Config) -> SitePrograms:
        """Return the part that runs prolog and epilog."""
        lock, mode = self._paths.run / "hooks.lock", self._paths.mode
        desk = SitePrograms(
            lock,
            mode,
            watch=self._loop.watch_once,
            report=self._loop.happened,
            under_way=lambda job: self._engine.jobtable.under_way(job),
            gate=self._gate,
        )
        desk.configure(config.hooks)
        return desk

    def _mps_daemons(self, config: Config) -> MpsControl:
        """Return the part that starts and ends the MPS daemons of users."""
        lock = self._paths.run / "mps.lock"
        desk = MpsControl(lock, self._loop.watch_once, self._loop.happened, self._launcher)
        desk.configure(config, self._helpers.inventory)
        return desk

    def _settings(self) -> Config:
        """Return the settings in force."""
        return self._dispatcher.about.config

    def _sharing(self) -> GpuTime:
        """Return the part that tells the arbiter which jobs share GPUs."""
        run = self._launcher.run.path
        return GpuTime(self._engine, Arbiter(spawner(), run / "arbiter"), run=str(run))

    def _monitoring(self, config: Config) -> GpuMonitor:
        """Return the part that queries the GPUs."""
        run, faults = str(self._launcher.run.path), self._loop.faults
        policy = watchdog_policy(config)
        return GpuMonitor(
            self._engine,
            self._launcher,
            self._answers_of_gpus(),
            Watchdog(run, policy, self._loop.happened, self._learn, faults),
            self._gate,
            interval=config.interval,
            looks=[self._processes.keep],
            record=self._sampling.add_look if self._accounts.bookkeeper is not None else None,
            answers={
                gpus.INVENTORY: lambda answer: self._inventory_retry.hear(answer, time.monotonic()),
            },
        )

    def _answers_of_gpus(self) -> Callable[[], list[gpus.GpuAnswer]]:
        """Return the function that reads the answers of the sampler."""
        sampler, launcher = self._helpers.sampler, self._launcher
        if isinstance(sampler, gpus.Sampler):
            return sampler.read
        loads = partial(job_loads, self._engine, str(launcher.run.path), launcher.shepherd)
        return partial(sampler.read, loads)

    def _retried(self) -> InventoryRetry:
        """Return the part that asks a late driver again; the controller restarts once it answers."""

        def restart() -> None:
            self._loop.stopping = self._loop.stopping or _GPUS_ANSWER

        ask = partial(self._helpers.sampler.ask, gpus.INVENTORY)
        needed = is_needed(self._helpers.inventory)
        return InventoryRetry(needed=needed, ask=ask, answered=restart, now=time.monotonic())

    def _timed(self) -> list[_Timed]:
        """Return the parts that run after each round. An exception in one part does not affect the others."""
        clock = time.monotonic
        presence, cleaner, pruner = self._presence, self._cleaner, self._pruner
        retry = self._inventory_retry
        lookups, waiters = [self._helpers.host_users, *self._helpers.sessions], self._dispatcher.waiters
        return [
            _Timed("the waiters", self._tell_waiters, lambda: waiters.delay),
            _Timed("the reservations", self._engine.tidy, _never),
            _Timed("the GPU monitor", self._monitor.look, lambda: self._monitor.due),
            _Timed("the inventory", lambda: retry.look(clock()), lambda: retry.due(clock())),
            _Timed("the GPU time", self._gputime.look, lambda: self._gputime.due),
            *(
                _Timed(
                    "the users of the host",
                    partial(self._wake, lookup.expire),
                    partial(getattr, lookup, "due"),
                )
                for lookup in lookups
            ),
            _Timed("the run directory", lambda: presence.look(clock()), lambda: presence.due(clock())),
            _Timed(
                "the removal of old scripts",
                lambda: pruner.step(clock(), time.time()),
                lambda: pruner.due(clock()),
            ),
            _Timed(
                "the removal of job directories",
                lambda: cleaner.step(clock()),
                lambda: cleaner.due(clock()),
            ),
            _Timed("the bookkeeping", lambda: self._accounts.look(time.time()), lambda: self._accounts.due),
            _Timed("the programs of the site", self._hooks.look, lambda: self._hooks.due),
            _Timed("the MPS daemons", self._mps.look, lambda: self._mps.due),
            _Timed("the readers of events", self._readers.look, lambda: self._readers.due),
            _Timed("the mails", lambda: self._mailroom.look(clock()), lambda: self._mailroom.due(clock())),
            _Timed("the service manager", self._show_life, lambda: self._manager.due(clock())),
        ]

    def _revision(self) -> int:
        return self._engine.jobtable.revision

    def _listener(self) -> socket.socket:
        return listen(self._paths.socket, for_all=self._paths.mode == "system")

    def _listen_again(self) -> None:
        self._loop.listen(self._listener())

    def _learn(self, gpu: int, size: int) -> None:
        """Record the size of a process's contexts on a GPU, in bytes."""
        self._contexts.learn(self._gpus.gpu(gpu).model, size)

    def _launch_reports(self) -> LaunchReports:
        return LaunchReports(
            failed=self._loop.failed,
            short=self._loop.short,
            watch=self._loop.watch_once,
            shepherd_ended=lambda job: self._loop.happened(JobEnded(job)),
            cpus=lambda index: self._gpus.gpu(index).cpus,
            context=self._contexts.of,
            policy=lambda: self._engine.policy,
            launch_check=self._hooks,
        )

    def run(self, ready: Callable[[], None]) -> bool:
        """Run the event loop until the stop; return whether the process should execute itself again.

        Raises: StorageError, if the queue cannot be used.
        """
        self._recover()
        self._loop.begin(self._engine, self._dispatcher, self._jobs, self._audit.witness, ACTIONS)
        self._watch_edges()
        with self._loop.signals(_OBEYED, self._take_signals):
            ready()
            self._started()
            while not self._loop.stopping and not self._engine.is_broken:
                self._loop.run_once(self._timeout())
                self._after_round()
        self._cleaner.close()
        self._loop.faults.run("the samples", self._sampling.finish)
        self._accounts.close()
        self._reports.close()
        self._hooks.close()
        self._mps.close(self._engine.mps.servers, [*self._engine.jobtable.holding.values()])
        self._stopped()
        if self._engine.is_broken:
            raise StorageError(
                "the disk failed while the queue was written",
                "Check the disk, then start the controller again.",
            )
        self._launcher.tidy({job.slot for job in self._engine.jobtable.holding.values()})
        return self._is_restarting

    def _started(self) -> None:
        """Log that requests are accepted from now on, and notify the service manager."""
        inventory = self._helpers.inventory
        self._engine.log.note(
            "controller-start",
            pid=os.getpid(),
            version=__version__,
            mode=self._paths.mode,
            gpus=len(inventory.gpus),
            source=inventory.source,
        )
        self._engine.log.flush(time.time())
        self._manager.ready(self._status, time.monotonic())

    def _stopped(self) -> None:
        why = self._loop.stopping or "the queue cannot be written"
        self._engine.log.note("controller-stop", pid=os.getpid(), why=why)
        self._engine.log.flush(time.time())
        if self._is_restarting:  # the service manager would kill a service that reported its stop
            self._manager.alive("restarting", time.monotonic())
        else:
            self._manager.stopping()

    @property
    def _is_restarting(self) -> bool:
        return self._loop.stopping in _RESTARTING and not self._engine.is_broken

    def _show_life(self) -> None:
        now = time.monotonic()
        if self._manager.is_due(now):
            self._manager.alive(self._status, now)

    @property
    def _status(self) -> str:
        """Return the text for `systemctl status`."""
        table, count = self._engine.jobtable, len(self._helpers.inventory.gpus)
        running = len(table.holding)
        trouble = f"; {self._store.trouble}" if self._store.trouble else ""
        return f"{count} GPUs, {running} running jobs, {len(table.jobs) - running} pending jobs{trouble}"

    def _watch_edges(self) -> None:
        host_users, presence = self._helpers.host_users, self._presence
        self._loop.watch(self._helpers.sampler, self._monitor.process_answers)
        self._accounts.begin(self._loop.watch, self._loop.watch_once, time.time())
        if self._helpers.mailer is not None:
            self._loop.watch(self._helpers.mailer, self._mailroom.receive)
            self._helpers.mailer.begin(self._loop.watch_once, lambda: None)
        self._reports.begin()
        self._loop.watch(self._hooks, self._hooks.receive)
        self._loop.watch(self._mps, self._mps.receive)
        self._sampling.begin(self._accounts.past_jobs)
        for lookup in (host_users, *self._helpers.sessions):
            if lookup.has_helper:
                self._loop.watch(lookup, partial(self._wake, lookup.receive))
        if presence.source is not None:
            self._loop.watch(presence.source, lambda: presence.heard(time.monotonic()))

        self._helpers.inherited.watch(self._loop.watch_once)

    def _wake(self, look: Callable[[], list[int]]) -> None:
        """Resume the requests of the users whose look-ups have ended."""
        for uid in look():
            self._loop.known(uid)

    def _after_round(self) -> None:
        self._file_check.step(time.monotonic())  # damage that it finds stops the controller
        for part in self._parts:
            self._loop.faults.run(part.name, part.act)

    def _recover(self) -> None:
        try:
            self._store_gpus()
        except StorageBroken:
            raise
        except StorageError as error:
            raise _no_space(self._paths.state) from error
        self._loop.faults.run("the jobs of earlier queues", lambda: self._earlier.look(time.time()))
        self._engine.recover(time.time())
        self._engine.turn([], time.time())
        _collect_rarely()

    def _store_gpus(self) -> None:
        """Store the GPUs that are here now. Nothing is written if the queue has them already."""
        with self._store.write():
            if dropped := self._store.drop_orphan_holds():
                log.warning("%d holds without a job are dropped from the queue", dropped)
            marks = self._store.gpu_marks()  # before the GPUs that are here now take the indices
            self._store.put_gpus(self._helpers.inventory.gpus)
            self._gpus.restore(marks)
            for gpu in self._gpus.changed():
                self._store.mark_gpu(gpu)

    def _reconfigure(self, config: Config) -> None:
        """Use the settings that can change in a running controller."""
        dispatcher = self._dispatcher
        dispatcher.about = replace(dispatcher.about, config=config)
        self._jobs.rules = rules_of(self._paths, config)
        run = self._launcher.run.path
        vendor = self._helpers.inventory.vendor.facts
        self._launcher.reconfigure(launch_context(self._paths, run, config, self._engine.mounts, vendor))
        self._engine.binding = cpu_binding(config.cpu_binding)
        self._monitor.interval = config.interval
        self._monitor.watchdog.policy = watchdog_policy(config)
        self._contexts.default = config.context_memory
        self._mailroom.configure(config.mails)
        self._hooks.configure(config.hooks)
        self._mps.configure(config, self._helpers.inventory)
        self._pruner.configure(_keep(config), time.monotonic())
        self._accounts.configure(config)
        self._sampling.configure(config.interval)
        self._gpus.configure(
            interval=config.interval, clean_timeout=config.clean_timeout, fatal=config.drain_on_xid
        )

    def _timeout(self) -> float | None:
        """Return the seconds until something is due, or None."""
        with self._loop.faults.contained("the timers"):
            return min((seconds for seconds in self._dues() if seconds is not None), default=None)
        return _LONGEST_FAULTY

    def _dues(self) -> Iterator[float | None]:
        yield self._engine.due(time.time())
        yield self._file_check.due(time.monotonic())
        for part in self._parts:
            yield part.due()

    def _tell_waiters(self) -> None:
        ended, self._engine.ended = self._engine.ended, []
        if ended:
            self._pruner.ended(time.monotonic())
            self._accounts.ended()
            self._sampling.ended(ended)
            self._mps.forget(ended)
        self._dispatcher.waiters.answer_ended(ended, self._engine.jobtable)
        self._dispatcher.waiters.send_progress(self._engine.jobtable, time.time())

    def _take_signals(self, numbers: set[int]) -> None:
        """Stop at SIGTERM and SIGINT, restart at SIGUSR1, and reread the configuration at SIGHUP."""
        if signal.SIGUSR1 in numbers and not self._loop.stopping:
            self._loop.stopping = _ASKED_AGAIN
        if numbers & _ENDING:
            self._loop.stopping = "asked by a signal"
        if signal.SIGHUP in numbers:
            self._audit.note(by="SIGHUP", action="reconfigure")
            reread = self._partitions.hang_up
            self._loop.happened(ClientRequest(reread, lambda error: log.error("%s", error), by="SIGHUP"))


def _no_space(state: Path) -> StorageError:
    """Return the error for a queue that must be written at the start, on a full disk."""
    space = os.statvfs(state)
    free = space.f_bavail * space.f_frsize
    return StorageError(
        f"the controller cannot start: the file system of {state} is full: {free} bytes are free,"
        f" and {_NEEDED} are needed to store the GPUs of this host, which have changed",
        "Free some space there: fgsched.log and audit.log can be moved. No job is lost.",
    )


def _never() -> None:
    """Return None, for a part that runs only after rounds of the event loop."""


def _collect_rarely() -> None:
    """Search cycles rarely from now on, and not among the jobs and modules that are there."""
    gc.set_threshold(_YOUNG)
    gc.freeze()


def _keep(config: Config) -> JobRetention:
    return JobRetention(config.keep_scripts, config.keep_scripts_size)


def _gpu_states(config: Config, helpers: HelperProcesses) -> GpuStates:
    states = GpuStates(
        helpers.inventory.gpus,
        sampled=helpers.inventory.is_sampled,
        ask=lambda: helpers.sampler.ask(gpus.READING),
        interval=config.interval,
        clean_timeout=config.clean_timeout,
        fatal=config.drain_on_xid,
    )
    states.is_unknown = helpers.inventory.is_late and helpers.inventory.source == "none"
    return states
