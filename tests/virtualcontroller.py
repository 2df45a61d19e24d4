"""One controller in virtual time: engine, store, handlers and bookkeeping, as a process runs them.

`Life` does what `controller/service.py` does around the engine, without sockets and processes: it takes in
what has arrived, makes a turn, and then calls the parts that run after each round of the event loop.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Any

from asking import as_call, carried_out, plain
from crashing import UNLIMITED, CrashingEngine, CrashingStore, PowerCut
from faultydisk import FaultyDisk
from fgsched.accounting.accountant import Accountant
from fgsched.accounting.messages import Answer, Keep
from fgsched.config.load import Config
from fgsched.controller.audit import Audit
from fgsched.controller.bookkeeping import Bookkeeper
from fgsched.controller.caller import Caller
from fgsched.controller.eventloop import _witnessed
from fgsched.controller.gpustate import GpuStates
from fgsched.controller.handlers.explain import ExplainHandlers
from fgsched.controller.handlers.jobs import JobHandlers
from fgsched.controller.handlers.partitions import ConfigActions, PartitionHandlers
from fgsched.controller.handlers.reservations import ReservationHandlers
from fgsched.controller.handlers.submission import Rules
from fgsched.controller.hooking import SitePrograms
from fgsched.controller.mailing import MailerControl
from fgsched.controller.moving import Mover, PastJobs, Site
from fgsched.controller.turn import ClientRequest, Effect, Event, SendReply, WatchdogFinding
from fgsched.controller.upkeep import JobRetention as Retention
from fgsched.controller.upkeep import Pruner
from fgsched.domain.errors import FgschedError, StorageError
from fgsched.domain.job import Gpu, Job
from fgsched.domain.states import JobState, Reason
from fgsched.launch.launcher import PendingLaunch
from fgsched.lifecycle.watchdog import Fault
from fgsched.store import wal
from fgsched.store.store import Unreadable
from fgsched.system.helper import Watch
from virtualhost import Agenda, VirtualHost
from virtualprograms import MAILS, Post, Programs, VirtualMailer, VirtualRunner

KEEP = Keep(minutes=86_400, hours=7 * 86_400, days=-1)
wal.READ_ONLY = "mode=ro"  # SQLite opens the index once in a process, and the accountant writes in this one
_HOUR = 3600.0
_CLEAN = 30.0  # seconds after which a card that lists an ended job becomes suspect


@dataclass
class Asked:
    """A request of a client, which repeats it until it has an answer."""

    operation: str
    caller: Caller
    arguments: dict[str, Any]
    answered: Callable[[Any], None] = lambda answer: None
    tries: int = 0
    pid: int = 0  # of the client, in the audit log


class VirtualEngine(CrashingEngine):
    """An engine that does nothing any more once the power of its disk has failed."""

    disk: FaultyDisk
    is_undone = False  # the last turn could not be stored

    def _orphans_due(self) -> float | None:
        """Look less often than the real engine: a job that a spawner sees to its end can take hours."""
        jobs = [self.jobtable.jobs[one] for one in self.orphans if one in self.jobtable.jobs]
        if not self.orphans or not all(map(self.launcher.has_supervisor, jobs)):
            return super()._orphans_due()
        return _HOUR

    def _undo(self, events: Iterable[Event], error: StorageError, now: float) -> None:
        self.is_undone = True
        super()._undo(events, error, now)

    def _finish(self, now: float) -> None:
        self.is_undone = False
        super()._finish(now)

    def perform(self, effect: Effect) -> None:
        if self.disk.is_cut:
            raise PowerCut
        super().perform(effect)


class VirtualMover(Mover):
    """A mover that looks once an hour, and not once a minute, for ended jobs that others wait for."""

    def _end_round(self, now: float, wall: float) -> None:
        has_moved = self._has_moved
        super()._end_round(now, wall)
        if self._due is not None and not has_moved:
            self._due = max(self._due, now + _HOUR)


class VirtualAccountant:
    """The accountant with the interface of `AccountantProcess`; it can be killed around its commit."""

    def __init__(self, path: Path, agenda: Agenda, delay: Callable[[], float]) -> None:
        self._path, self._agenda, self._delay = path, agenda, delay
        self.keep = KEEP
        self.has_unsent = False
        self.dies = ""  # "before" or "after" its next commit
        self.deaths = 0
        self._answers: list[Answer] = []
        self._accountant: Accountant | None = None
        self._ended: Callable[[], None] = lambda: None
        self.start()

    @property
    def pid(self) -> int:
        return os.getpid() if self._accountant is not None else 0

    def start(self) -> None:
        self._answers = []
        self._accountant = Accountant(self._path, UTC, KEEP)
        self._accountant.begin()

    def begin(self, watch: Watch, ended: Callable[[], None]) -> None:
        self._ended = ended

    def send(self, text: bytes) -> None:
        served = self._accountant
        self._agenda.after(self._delay(), partial(self._receives, served, text))

    def _receives(self, served: Accountant | None, text: bytes) -> None:
        """Store a message, unless the process died meanwhile."""
        if served is None or served is not self._accountant:
            return
        if self.dies == "before":
            self.die()
            return
        answer = served.answer(text.rstrip(b"\n"), self._agenda.wall)
        if self.dies == "after":
            self.die()
        else:
            self._agenda.after(self._delay(), lambda: self._answers.append(answer))

    def die(self) -> None:
        """End as by kill -9; the bookkeeper hears of it."""
        self.dies, self.deaths = "", self.deaths + 1
        self._answers = []
        self.close()
        self._ended()

    def receive(self) -> list[Answer]:
        found, self._answers = self._answers, []
        return found

    @property
    def has_answers(self) -> bool:
        return bool(self._answers)

    def close(self) -> None:
        served, self._accountant = self._accountant, None
        if served is not None:
            served.close()


@dataclass
class Place:
    """What all controllers of a world share."""

    path: Path  # of the queue
    gpus: list[Gpu]
    config: Config
    agenda: Agenda
    host: VirtualHost
    disk: FaultyDisk
    delay: Callable[[], float]
    programs: Programs
    post: Post
    noted: Callable[[str], None] = lambda what: None
    mailbox: list[Asked] = field(default_factory=list)  # requests of clients
    lost_answer: Callable[[], bool] = lambda: False  # whether a client does not get its answer
    audit: list[str] = field(default_factory=list)  # lines
    asks: Counter[str] = field(default_factory=Counter)
    told: Callable[[Asked, Any], None] = lambda asked, answer: None  # before a client gets an answer


class Life:
    """One controller, from its start to its end."""

    def __init__(self, site: Place, left: int = UNLIMITED) -> None:
        """Start a controller whose power fails after `left` effects. Raises StorageError or PowerCut."""
        self.site = site
        self._asks: list[float] = []  # when the unanswered questions to the driver were asked
        self._answers_at = 0.0  # the time of the last of their answers
        self.looked_at = -math.inf  # when the cards were read last
        self.accountant: VirtualAccountant | None = None
        site.host.attach()
        self.number = site.host.life
        self.runner, self.mailer = VirtualRunner(site.programs), VirtualMailer(site.post)
        self.store = CrashingStore(site.path)
        try:
            self._furnish(left)
        except BaseException:
            self.kill()
            raise

    def _furnish(self, left: int) -> None:
        site, wall = self.site, self.site.agenda.wall
        states = GpuStates(
            site.gpus, sampled=True, ask=self._ask, interval=site.config.interval, clean_timeout=_CLEAN
        )
        self.engine = engine = VirtualEngine(
            self.store, site.host, states, limits=site.config.limits, tier="shim"
        )
        engine.disk, engine.left, self.store.engine = site.disk, left, engine
        with self.store.write():
            self.store.drop_orphan_holds()
            marks = self.store.gpu_marks()
            self.store.put_gpus(site.gpus)
            states.restore(marks)
            for gpu in states.changed():
                self.store.mark_gpu(gpu)
        engine.site.configure(site.config)
        self._run_programs()
        self._open_desks()
        self._open_accounts()
        engine.recover(wall)
        engine.turn([], wall)
        with suppress(Unreadable):
            self.accounts.read_runs(wall - 30 * 86_400)
        self._check()

    def _run_programs(self) -> None:
        """Prolog, epilog and mails, with runner and mailer in virtual time."""
        host, engine = self.site.host, self.engine
        desk = SitePrograms(
            Path("/nowhere"),
            "system",
            watch=lambda pidfd, ended: None,
            report=lambda event: host.inbox.append(event),
            under_way=lambda job: engine.jobtable.under_way(job),
            gate=_Open(),  # type: ignore[arg-type]
        )
        desk._runner.close()
        desk._runner = self.runner  # type: ignore[assignment]
        desk.configure(self.site.config.hooks)
        engine.epilogs, host.gate = desk, desk.open_for
        self.mailroom = MailerControl(engine.mail, self.mailer)  # type: ignore[arg-type]

    def _open_desks(self) -> None:
        engine = self.engine
        self.audit = Audit(self.site.audit.append, lambda number: engine.jobtable.named(number))
        jobs = JobHandlers(engine, Rules(max_script=1000, default_time=0, mail=MAILS))
        partitions = PartitionHandlers(engine, ConfigActions(lambda: self.site.config, lambda config: None))
        self.prospects = ExplainHandlers(engine, jobs.tried)
        self.handlers = [jobs, partitions, ReservationHandlers(engine)]

    def _open_accounts(self) -> None:
        site, agenda = self.site, self.site.agenda
        path = site.path.with_name("accounts.db")
        self.accounts = PastJobs(path)
        self.store.use_moved(self.accounts)
        table = Site(lambda: self.engine.jobtable, "host")
        self.mover = VirtualMover(self.store, self.accounts, table, site.config.move_after)
        self.accountant = VirtualAccountant(path, agenda, site.delay)
        self.keeper = Bookkeeper(self.accountant, self.mover, lambda: agenda.now)  # type: ignore[arg-type]
        with suppress(Unreadable):  # accounts without their log: as Accounts.begin
            self.store.raise_ids(self.accounts.last_id())
        self.keeper.begin(lambda pidfd, ended: None)
        keep = Retention(site.config.keep_scripts, site.config.keep_scripts_size)
        self.pruner = Pruner(self.store, keep, lambda: self.engine.jobtable.revision)

    # -- a round of the event loop --------------------------------------------------------------------

    @property
    def is_wanted(self) -> bool:
        """Whether something has arrived."""
        assert self.accountant is not None
        site = self.site
        helpers = self.accountant.has_answers or self.runner.has_heard or self.mailer.has_reports
        return bool(site.host.inbox or site.mailbox or helpers)

    @property
    def is_settled(self) -> bool:
        """Whether no crash, answer or start of a job is on its way, and nothing is polled."""
        engine = self.engine
        is_polled = engine.gpu_states.is_cleaning or engine.orphans or engine.undelivered
        states = {job.state for job in engine.jobtable.holding.values()}
        is_awaited = self._asks or self.runner.is_busy or not states <= {JobState.RUNNING, JobState.SUSPENDED}
        return engine.left > 1000 and not is_polled and not is_awaited

    def round(self, *, is_due: bool = False) -> None:
        """Take in what has arrived, make a turn, and call the other parts. Raises PowerCut."""
        site = self.site
        self.runner.receive()
        happened, site.host.inbox = site.host.inbox, []
        asked, site.mailbox[:] = list(site.mailbox), []
        self.unanswered = asked
        events = [*happened, *(self._request(one) for one in asked)]
        if events or is_due or self._turn_due() <= 0.0:
            self.engine.turn(events, site.agenda.wall)
        self._check()
        self._after_round()
        self._check()

    def _check(self) -> None:
        if self.site.disk.is_cut:
            raise PowerCut

    def _after_round(self) -> None:
        agenda, engine = self.site.agenda, self.engine
        ended, engine.ended = engine.ended, []
        if ended:
            self.pruner.ended(agenda.now)
            self.mover.ended(agenda.now)
        self.keeper.receive()
        engine.site.tidy(agenda.wall)
        self._look()
        self.pruner.step(agenda.now, agenda.wall)
        self.keeper.look(agenda.wall)
        self.mailroom.receive()
        self.mailroom.look(agenda.now)

    def dues(self) -> tuple[float, float]:
        """Return when the next turn and the next round are due without an event, by the monotonic clock."""
        now = self.site.agenda.now
        turn = self._turn_due()
        parts = (self._look_due(), self.pruner.due(now), self.keeper.due(), self.mailroom.due(now))
        return now + turn, now + min(turn, *(one for one in parts if one is not None))

    def _turn_due(self) -> float:
        """Return the seconds until the engine needs a turn without an event."""
        due = self.engine.due(self.site.agenda.wall)
        return math.inf if due is None else due

    # -- clients --------------------------------------------------------------------------------------

    def _request(self, asked: Asked) -> ClientRequest:
        def act(now: float) -> SendReply:
            answer: Any
            try:
                answer = carried_out(self.handlers, asked.operation, asked.caller, asked.arguments, now)
            except FgschedError as error:
                answer = error
            return SendReply(partial(self._answered, asked), answer)

        request = ClientRequest(act, partial(self._answered, asked), by=asked.caller.name)
        if not asked.pid:
            self.site.asks["clients"] += 1
            asked.pid = self.site.asks["clients"]
        call = as_call(asked.operation, **asked.arguments)
        told = self.audit.witness(asked.caller, asked.pid, call, self.site.agenda.now)
        return request if told is None else _witnessed(request, told)

    def _answered(self, asked: Asked, answer: Any) -> None:
        """Send an answer, which its client may not get."""
        if self.site.disk.is_cut or self.site.lost_answer():
            return
        self.unanswered = [one for one in self.unanswered if one is not asked]
        self.site.told(asked, plain(answer))
        asked.answered(plain(answer))

    # -- cards ----------------------------------------------------------------------------------------

    def _look_due(self) -> float | None:
        if self._asks or not self.engine.jobtable.jobs:
            return None  # or as soon as the driver has answered
        pause = 1.0 if self.engine.gpu_states.is_cleaning else self.site.config.interval
        return max(0.0, self.looked_at + pause - self.site.agenda.now)

    def _look(self) -> None:
        if self._look_due() == 0.0:
            self.looked_at = self.site.agenda.now
            self.engine.gpu_states.ask()

    def _ask(self) -> None:
        """The driver shows a moment between the question and its answer; one process answers, in order."""
        host, agenda, life = self.site.host, self.site.agenda, self.number
        looks_at = max(self._answers_at, agenda.now + self.site.delay())
        answers_at = self._answers_at = looks_at + self.site.delay()
        self._asks.append(agenda.now)

        def looks() -> None:
            readings, there = host.readings([gpu.index for gpu in self.site.gpus]), host.on_gpus()
            agenda.after(answers_at - agenda.now, lambda: answers(readings, there))

        def answers(readings: Any, there: set[int]) -> None:
            if life == host.life:
                self._asks.pop(0)
                self._saw(readings, there)

        agenda.after(looks_at - agenda.now, looks)

    def _saw(self, readings: Any, there: set[int]) -> None:
        states, wall = self.engine.gpu_states, self.site.agenda.wall
        states.use_readings(readings, listed_jobs=there & states.watched, now=wall)
        lost = {index for index, one in readings.items() if one.is_lost}
        for job in self.engine.jobtable.holding.values():
            here = sorted(lost & {hold.gpu for hold in job.holds})
            if here and job.state is JobState.RUNNING and not job.is_to_end:
                fault = Fault(reason=Reason.GPU_LOST, gpu=here[0])
                self.site.host.inbox.append(WatchdogFinding(job.id, job.attempt, warn=(), end=fault))
        self.site.host.inbox += [] if self.site.host.inbox else [_NOTHING]

    # -- the end --------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End as by kill -9: nothing more is written, and the files are closed as the kernel does it."""
        disk = self.site.disk
        disk.cut()
        self.runner.close()
        self.mailer.close()
        self.store.engine = None
        if self.accountant is not None:
            with suppress(Exception):
                self.accountant.close()
            with suppress(Exception):
                self.accounts.close()
        opened = self.store._opened
        with suppress(Exception):
            opened.db.close()
        opened.record.close()
        sums = opened._sums
        if sums is not None:
            sums.close()

    def stop(self) -> None:
        """End as on SIGTERM."""
        assert self.accountant is not None
        self.runner.close()
        self.mailer.close()
        self.accountant.close()
        self.accounts.close()
        self.store.close()


_NOTHING = WatchdogFinding(0, 0, (), None)  # of no job: it makes a turn after a reading


class _Open:
    """The check before each launch, which finds nothing."""

    def open_for(self, launching: PendingLaunch) -> None:
        launching.go()


@contextmanager
def opened(path: Path) -> Iterator[CrashingStore]:
    """Open the queue for a look after its controllers."""
    store = CrashingStore(path)
    store.use_moved(PastJobs(path.with_name("accounts.db")))
    yield store
    store.close()


def is_waiting(job: Job) -> bool:
    return job.state is JobState.PENDING
