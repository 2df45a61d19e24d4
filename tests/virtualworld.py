"""A whole site in virtual time: users, controllers, a faulty disk and a host. One seed is one history.

    world = VirtualWorld(seed=7, directory=path)
    world.run(days=3)
    world.finish()
    print(world.history)

`run` raises `Violation` where the controllers break a promise: tests/worldchecks.py has all of them.
"""

import hashlib
import math
import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import TracebackType

from builders import GIB, a_gpu
from crashing import UNLIMITED, PowerCut
from faultydisk import KINDS, FaultyDisk
from fgsched.config.load import Config
from fgsched.config.schema import AccountSettings, PartitionSettings, UserSettings
from fgsched.domain.errors import StorageError
from fgsched.domain.job import Job
from fgsched.hooks.programs import HookRun
from fgsched.mail.spool import Spool
from virtualaccounts import AccountFiles
from virtualcontroller import Life, Place
from virtualhost import Agenda, Faults, VirtualHost
from virtualprograms import SITES, Post, Program, Programs
from virtualprograms import Faults as ProgramFaults
from virtualusers import Users
from worldchecks import Checks

HOUR, DAY = 3600.0, 86_400.0
_CALLS = {"write": 40, "sync": 15}  # of a kind, of which one fails
_ROUNDS = 400  # of one moment, after which the controller never comes to rest


@dataclass
class Weather:
    """How often things happen, in hours between two of them on average; 0: never."""

    user: float = 3.0
    kill: float = 14.0
    power: float = 30.0
    stop: float = 40.0
    reboot: float = 120.0
    disk_error: float = 60.0
    disk_full: float = 60.0
    shepherd: float = 20.0
    spawner: float = 50.0
    accountant: float = 24.0
    clock: float = 70.0
    gpu: float = 60.0
    accounts_log: float = 300.0
    reading: float = 1.0  # of the cards; one that is lost or comes back is read at once
    answer: float = 0.05  # probability that a client does not get its answer
    host: Faults = field(default_factory=Faults)
    programs: ProgramFaults = field(default_factory=ProgramFaults)

    def paced(self, factor: float) -> "Weather":
        """Return weather in which everything happens `factor` times as often."""
        hours = {one.name: getattr(self, one.name) / factor for one in fields(self)[:-3]}
        return replace(self, **hours)


QUIET = Faults(*[0.0] * len(fields(Faults)))
NO_PROBLEMS = ProgramFaults(*[0.0] * len(fields(ProgramFaults)))
CALM = Weather(
    **dict.fromkeys(
        ("kill", "power", "stop", "reboot", "disk_error", "disk_full", "shepherd", "spawner"), 0.0
    ),
    accountant=0.0,
    clock=0.0,
    gpu=0.0,
    accounts_log=0.0,
    answer=0.0,
    host=QUIET,
    programs=NO_PROBLEMS,
)


def a_site(draw: random.Random, interval: float) -> Config:
    """Make up the settings of a small cluster. What is polled is polled every `interval` seconds."""
    hooks = draw.choice(SITES)
    few = lambda usual, *others: draw.choice([usual] * 3 + list(others))  # noqa: E731

    def partition(*after: str) -> PartitionSettings:
        return PartitionSettings(
            max_running=few(0, 3),
            max_running_per_user=few(0, 2),
            max_gpus_running=few(0, 15_000),
            preempt=tuple(one for one in after if draw.random() < 0.5),
            preempt_mode=draw.choice(["requeue", "cancel", "suspend"]),
            preempt_grace=draw.choice([0, 0, 20]),
        )

    return Config(
        prolog=hooks.prolog,
        epilog=hooks.epilog,
        cpus=12,
        memory=2**40,
        interval=interval,
        fairshare_interval=interval,
        move_after=int(HOUR),
        keep_scripts=int(DAY),
        max_jobs_per_gpu=few(0, 3),
        weight_fairshare=few(0, 10_000),
        partitions={
            "day": partition("evening", "night"),
            "evening": partition("night"),
            "night": partition(),
        },
        accounts={"lab": AccountSettings(gpu_minutes=few(0, 6000), max_running=few(0, 3))},
        users={"ann": UserSettings(max_running=few(0, 3))},
    )


class VirtualWorld:
    """One history."""

    def __init__(self, seed: int, directory: Path, weather: Weather | None = None) -> None:
        self.seed, self.weather = seed, weather or Weather()
        self._digest, self.trace = hashlib.sha256(), list[str]()
        self.traces = False
        self.counts: Counter[str] = Counter()
        self.draw = random.Random(f"{seed} faults")
        self.agenda = Agenda()
        self.host = VirtualHost(self.agenda, random.Random(f"{seed} host"), self.weather.host)
        self.host.noted, self.host.length = self.note, self.length
        self.host.launching = lambda job, given: self.checks.launching(job, given)
        self._held = ExitStack()
        self.disk = self._held.enter_context(FaultyDisk(directory, random.Random(f"{seed} disk")))
        gpus = [a_gpu(0), a_gpu(1), a_gpu(2, memory=40 * GIB)]
        config = a_site(random.Random(f"{seed} site"), (weather or Weather()).reading * HOUR)
        self._employ(directory)
        self.place = Place(
            *(directory / "queue.db", gpus, config, self.agenda, self.host, self.disk, self._pause),
            *(self.programs, self.post, self.note),
        )
        self.place.lost_answer = lambda: self.draw.random() < self.weather.answer
        self.accounts = AccountFiles(
            directory / "accounts.db", directory.with_name(f"{directory.name}.accounts")
        )
        self.users = Users(self, random.Random(f"{seed} users"))
        self.checks = Checks(self)
        self.place.told = self.checks.answered
        self.life: Life | None = None
        self.is_calm = False  # no faults any more

    def _employ(self, directory: Path) -> None:
        """The programs of the site, and its mails."""
        draws = [random.Random(f"{self.seed} {name}") for name in ("programs", "mails")]
        self.programs = Programs(self.agenda, draws[0], self.weather.programs)
        self.programs.began = lambda program: self.checks.program_begins(program)
        self.programs.failed, self.programs.noted = self._program_failed, self.note
        self.host.executing = lambda key: self.checks.executes(key)
        self.post = Post(Spool(directory / "mail"), self.agenda, draws[1], self.weather.programs)
        self.post.has_power = lambda: not self.disk.is_cut

    def _program_failed(self, program: Program, run: HookRun) -> None:
        """An operator returns the cards to service that are drained for it."""
        for index in filter(None, run.environment["FG_JOB_GPUS"].split(",")):
            self.agenda.after(
                self.programs.draw.uniform(600, 6 * HOUR), partial(self.users.resume, int(index))
            )

    def __enter__(self) -> "VirtualWorld":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.life is not None:
            self.life.kill()
            self.disk.restore(is_power=False)
        self._held.close()

    def note(self, what: str) -> None:
        """Add a line to the history."""
        line = f"{self.agenda.now:.6f} {what}"
        self._digest.update(line.encode() + b"\n")
        if self.traces:
            self.trace.append(line)

    @property
    def history(self) -> str:
        """The hash of all that has happened."""
        return self._digest.hexdigest()[:16]

    def length(self, job: Job) -> tuple[float, int]:
        """Draw how long a job works and the status with which it exits."""
        draw = self.host.draw
        seconds = draw.choice([0.0, 0.01, 1.0, draw.expovariate(1 / 600), draw.expovariate(1 / (4 * HOUR))])
        return seconds, draw.choice([0, 0, 0, 0, 256, 9])

    def _pause(self) -> float:
        draw = self.host.draw
        return draw.uniform(0.001, 0.05) if draw.random() < 0.9 else draw.uniform(0.1, 90.0)

    # -- time -----------------------------------------------------------------------------------------

    def run(self, days: float) -> None:
        """Let users and faults have their way for so many days."""
        self._plan()
        self._until(self.agenda.now + days * DAY)
        self.counts["days"] += days

    def _plan(self) -> None:
        w = self.weather
        for hours, act in (
            (w.user, self.users.act),
            (w.kill, self.kill_later),
            (w.power, self.cut_later),
            (w.stop, self.stop),
            (w.reboot, self.reboot),
            (w.disk_error, self.fail_disk),
            (w.disk_full, self.fill_disk),
            (w.shepherd, self.kill_shepherd),
            (w.spawner, self.kill_spawner),
            (w.accountant, self.kill_accountant),
            (w.clock, self.set_clock),
            (w.gpu, self.lose_gpu),
            (w.accounts_log, self.lose_log),
        ):
            if hours:
                self._repeat(hours * HOUR, act)

    def _repeat(self, mean: float, act: Callable[[], None]) -> None:
        draw = random.Random(f"{self.seed} {act.__name__}")

        def again() -> None:
            if not self.is_calm:
                act()
                self.agenda.after(draw.expovariate(1 / mean), again)

        self.agenda.after(draw.expovariate(1 / mean), again)

    def _until(self, end: float) -> None:
        while True:
            if self.life is None and not self._is_starting:
                self.start()
            life = self.life
            turn_at, due_at = (self._dues or life.dues()) if life else (math.inf, math.inf)
            self._dues = None
            due = min(self.agenda.next, due_at)
            if due > end:
                break
            self.agenda.now = max(self.agenda.now, due)
            self.agenda.run_due()
            if life is not None and life is self.life and turn_at <= self.agenda.now:
                self.round(is_due=True)
            self.rounds()
        self.agenda.now = end

    _is_starting = False
    _dues: tuple[float, float] | None = None  # of the controller at rest

    def rounds(self) -> None:
        """Rounds of the event loop until nothing is left to do at this moment."""
        for _ in range(_ROUNDS):
            if self.life is None:
                return
            if self.disk.is_cut:  # by a call of the accountant or the mailer
                self.crashed()
                return
            if not self.life.is_wanted and (dues := self.life.dues())[1] > self.agenda.now:
                self._dues = dues
                self.rest(self.life)
                return
            self.round()
        self.checks.fail("the controller never comes to rest")

    def rest(self, life: Life) -> None:
        """Nothing is left to do at this moment, so that a further turn changes nothing."""
        self.checks.rest(life)
        self._rests += 1
        is_sure = life.is_settled and not (self.power_fails or self.disk.is_full or life.engine.is_undone)
        if self._rests % 5 == 0 and is_sure:
            self._dues = None
            before = dict(life.engine.jobtable.jobs)
            with self.disk.unarmed():
                life.engine.turn([], self.agenda.wall)
            self.checks.idle_turn(life, before)

    _rests = 0

    def round(self, *, is_due: bool = False) -> None:
        """Make a round of the event loop; `is_due`: the time of a turn has come."""
        life = self.life
        assert life is not None
        self.counts["rounds"] += 1
        try:
            life.round(is_due=is_due)
        except PowerCut:
            self.crashed()
            return
        except StorageError as error:
            self.note(f"storage {type(error).__name__}")
            self.end_life("storage error")
            return
        self.users.resend(life.unanswered)
        if life.engine.is_broken:
            self.end_life("storage error")
            return
        self.checks.round(life)

    # -- controllers ----------------------------------------------------------------------------------

    def start(self, left: int = UNLIMITED) -> None:
        """Start a controller; where that fails, another one follows."""
        try:
            self.life = Life(self.place, left)
        except PowerCut:
            self.crashed()
            return
        except StorageError as error:
            self.note(f"no start: {error.cause}".replace(str(self.place.path.parent), ""))
            self.counts["starts refused"] += 1
            self.disk.restore(is_power=False)
            self.checks.start_failed(error)
            self._start_again(300.0)
            return
        self.counts["starts"] += 1
        self.note("start")
        self.checks.started(self.life)

    def _start_again(self, seconds: float, left: int = UNLIMITED) -> None:
        self._is_starting = True

        def start() -> None:
            self._is_starting = False
            if self.life is None:
                self.start(left)

        self.agenda.after(seconds, start)

    def crashed(self) -> None:
        """The controller is dead: killed, or with the power of its disk."""
        is_power = self.disk.is_cut and self.power_fails
        self.counts["power cuts" if is_power else "kills"] += 1
        self.note("power cut" if is_power else "killed")
        unanswered = self.life.unanswered if self.life else []
        if self.life is not None:
            self.life.kill()
        self.life = None
        self.host.life += 1
        if is_power:
            self.host.reboot()
        self.disk.disarm(is_cut_only=True)
        self.disk.restore(is_power=is_power)
        self.power_fails = False
        self.users.resend(unanswered)
        again = self.draw.random() < 0.3 and not self.is_calm  # it dies again in its recovery
        self._start_again(self.draw.choice([0.01, 1.0, 60.0]), self.draw.randrange(6) if again else UNLIMITED)

    power_fails = False

    def end_life(self, why: str) -> None:
        """The controller gives up; the service manager starts another one."""
        self.counts[why] += 1
        assert self.life is not None
        unanswered = self.life.unanswered
        self.life.kill()
        self.life = None
        self.host.life += 1
        self.disk.disarm(is_cut_only=True)
        self.disk.restore(is_power=False)
        self.users.resend(unanswered)
        self._start_again(5.0)

    # -- faults ---------------------------------------------------------------------------------------

    def kill_later(self) -> None:
        """The controller dies at one of its next effects or commits."""
        if self.life is not None:
            self.life.engine.left = self.draw.randrange(12)

    def kill_amid_order(self) -> None:
        """The controller dies now and then while it carries out an order to a running job."""
        if self.life is not None and self.weather.kill and not self.is_calm and self.draw.random() < 0.1:
            self.life.engine.left = self.draw.randrange(1, 4)

    def cut_later(self) -> None:
        """The power fails at one of the next writes to the disk."""
        if self.life is not None:
            self.power_fails = True
            self.disk.arm(self.draw.randrange(60), "cut")

    def stop(self) -> None:
        """The controller is stopped as for an upgrade, and started again."""
        if self.life is None:
            return
        self.counts["stops"] += 1
        self.note("stop")
        try:
            self.life.stop()
        except PowerCut:
            self.crashed()
            return
        self.life = None
        self.host.life += 1
        if self.disk.is_cut:
            self.disk.restore(is_power=False)
        self._start_again(1.0)

    def reboot(self) -> None:
        """The host restarts: as a power cut, but the disk is synchronised before it."""
        if self.life is not None:
            self.life.kill()
            self.disk.restore(is_power=False)
            self.life = None
        self.counts["reboots"] += 1
        self.note("reboot")
        self.host.reboot()
        self._start_again(60.0)

    def fail_disk(self) -> None:
        """One of the next calls of a kind fails with EIO."""
        self.counts["disk errors"] += 1
        kind = self.draw.choice(KINDS)
        self.disk.arm(self.draw.randrange(_CALLS.get(kind, 4)), "EIO", kind)

    def fill_disk(self) -> None:
        """The disk is full for a while."""
        self.counts["disk full"] += 1
        self.note("disk full")
        self.disk.is_full = True
        self.agenda.after(self.draw.uniform(60, 600), self.empty_disk)

    def empty_disk(self) -> None:
        self.disk.is_full = False

    def kill_shepherd(self) -> None:
        if alive := self.host.alive:
            key = self.draw.choice(alive)
            self.note(f"shepherd {key} killed")
            self.host.kill_shepherd(key)

    def kill_spawner(self) -> None:
        """The controller executes itself again when its spawner is gone."""
        self.note("spawner killed")
        self.host.kill_spawner()
        self.stop()

    def kill_accountant(self) -> None:
        if self.life is not None and self.life.accountant is not None:
            self.counts["accountants killed"] += 1
            self.life.accountant.dies = self.draw.choice(["before", "after"])

    def lose_log(self) -> None:
        """The log of the accounts is removed: after a kill of all processes, or below the accountant."""
        accounts = self.accounts
        if self.life is None or accounts.is_lost or not accounts.has_log:
            return
        is_killed = self.draw.random() < 0.7
        if is_killed:
            self.crashed()
            if not accounts.has_log:  # a loss of power took the newest record of the commit file as well
                return
        self.counts["logs of the accounts lost"] += 1
        self.note(f"log of the accounts lost, {is_killed=}")
        accounts.lose(is_killed=is_killed)
        for file in (accounts.path, accounts.path.with_suffix(".commits")):
            self.disk.write_back(file)  # half a minute goes by before the next loss of power
        self.agenda.after(self.draw.uniform(HOUR, 2 * DAY), self.mend_accounts)

    def mend_accounts(self) -> None:
        """An operator brings the log back, or accepts the accounts without it."""
        self.stop()
        if self.life is not None:
            return
        try:
            self.accounts.mend(is_found=self.draw.random() < 0.3)
        except (StorageError, OSError) as error:
            self.note(f"accounts not mended: {type(error).__name__}")
            if self.disk.is_cut:
                self.crashed()
            self.agenda.after(HOUR, self.mend_accounts)

    def set_clock(self) -> None:
        """The wall clock is set."""
        seconds = self.draw.choice([-HOUR, -60.0, 60.0, HOUR, 3 * HOUR])
        self.counts["clock set"] += 1
        self.note(f"clock {seconds:+.0f}")
        self.agenda.offset += seconds

    def lose_gpu(self) -> None:
        """A card falls off the bus, and comes back later."""
        index = self.draw.randrange(3)
        if index in self.host.lost_gpus:
            return
        self.counts["cards lost"] += 1
        self.note(f"card {index} lost")
        self.host.lost_gpus.add(index)
        self._read_gpus()
        self.agenda.after(self.draw.uniform(60, 5 * HOUR), lambda: self._find_gpu(index))

    def _find_gpu(self, index: int) -> None:
        self.host.lost_gpus.discard(index)
        self._read_gpus()

    def _read_gpus(self) -> None:
        """Let the next reading be due: cards are read seldom while nothing happens to them."""
        if self.life is not None:
            self.life.looked_at = -math.inf

    # -- the end --------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End all faults, let all jobs end, and compare queue, accounts and truth."""
        self.is_calm = True
        self.weather.answer = 0.0
        self.host.faults = QUIET
        self.programs.faults = self.post.faults = NO_PROBLEMS
        self.disk.disarm()
        self.disk.is_full = self.power_fails = False
        self.host.lost_gpus.clear()
        if self.life is not None:
            self.life.engine.left = UNLIMITED
        self._until(self.agenda.now + HOUR)
        for _ in range(60):
            if self.checks.is_drained():
                break
            self.users.open_all()
            self._until(self.agenda.now + 6 * HOUR)
        self._until(self.agenda.now + 6 * HOUR)
        self.checks.end()
        self.note(f"rows {self.checks.rows()}")
