"""The programs of a site and its mails in virtual time: they fail, are late, or are killed."""

import io
import random
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from functools import partial

from fgsched.domain.errors import Refused
from fgsched.hooks.programs import HookRun, HookSettings, Ran
from fgsched.mail.letters import Letter, MailSettings, from_bytes
from fgsched.mail.mailer import Later, Mailer
from fgsched.mail.spool import Spool
from virtualhost import Agenda

MAILS = MailSettings(way="smtp")
_PAUSE = 1.0  # seconds until a runner or mailer that was killed is started again
_SHORT = HookSettings(prolog="/site/prolog", epilog="/site/epilog")
SITES = (HookSettings(), _SHORT, HookSettings(epilog="/site/epilog"), HookSettings(prolog="/site/prolog"))


@dataclass
class Faults:
    """How often things go wrong, as probabilities."""

    fails: float = 0.06  # a program of the site
    runner_dies: float = 0.02  # while it runs a program
    mailer_dies: float = 0.05  # between the sending of a mail and the note of it
    server: float = 0.1  # the mail server refuses for now


@dataclass
class Program:
    """One run of a prolog or epilog: the truth."""

    hook: str
    job: int
    attempt: int
    began: float  # monotonic seconds
    ended: float | None = None
    problem: str = ""
    is_killed: bool = False  # with its runner


@dataclass
class Programs:
    """All programs that ever ran on a host."""

    agenda: Agenda
    draw: random.Random
    faults: Faults = field(default_factory=Faults)
    began: Callable[[Program], None] = lambda program: None
    failed: Callable[[Program, HookRun], None] = lambda program, run: None
    noted: Callable[[str], None] = lambda what: None
    all: list[Program] = field(default_factory=list)
    hurt: Counter[str] = field(default_factory=Counter)

    def of(self, hook: str, job: int, attempt: int) -> list[Program]:
        """Return the runs of a program for an attempt."""
        return [one for one in self.all if (one.hook, one.job, one.attempt) == (hook, job, attempt)]

    def outcome(self) -> tuple[float, str]:
        """Draw how long a program runs, in seconds, and its problem."""
        draw = self.draw
        if draw.random() >= self.faults.fails:
            return draw.choice([0.0, 0.01, draw.uniform(0.0, 50.0)]), ""
        self.hurt["program of the site failed"] += 1
        return draw.choice(
            [
                (0.1, "exited with status 1"),
                (62.0, "did not end within 60 s"),
                (3.0, "was killed by signal 9"),
            ]
        )


class VirtualRunner:
    """The runner of one controller, with the interface of `HookRunner`. It dies with its controller."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._asked: dict[int, tuple[HookRun, Callable[[Ran], None]]] = {}
        self._running: dict[int, Program] = {}
        self._heard: list[Ran] = []
        self._number = self._life = 0

    def request(self, run: HookRun, done: Callable[[Ran], None]) -> None:
        self._number += 1
        self._asked[self._number] = run, done
        self._programs.agenda.after(0.001, partial(self._start, self._number, self._life))

    def _start(self, number: int, life: int) -> None:
        if life != self._life:
            return
        run, programs = self._asked[number][0], self._programs
        about = run.environment
        job, attempt = int(about["FG_JOB_ID"]), int(about["FG_ATTEMPT"])
        program = Program(about["FG_HOOK"], job, attempt, programs.agenda.now)
        programs.began(program)
        programs.all.append(program)
        programs.noted(f"{program.hook} {job}.{attempt}")
        self._running[number] = program
        seconds, problem = programs.outcome()
        if programs.draw.random() < programs.faults.runner_dies:
            programs.hurt["runner of programs killed"] += 1
            programs.agenda.after(seconds / 2, partial(self._die, life))
        programs.agenda.after(seconds, partial(self._end, number, life, problem))

    def _end(self, number: int, life: int, problem: str) -> None:
        if life != self._life:
            return
        program = self._running.pop(number)
        program.ended, program.problem = self._programs.agenda.now, problem
        if problem:
            self._programs.failed(program, self._asked[number][0])
        self._heard.append(Ran(number=number, problem=problem))

    def _die(self, life: int) -> None:
        """End as by kill -9, with its programs; the next runner runs the unfinished ones again."""
        if life != self._life:
            return
        self.close()
        for number in self._asked:
            if not any(one.number == number for one in self._heard):
                self._programs.agenda.after(_PAUSE, partial(self._start, number, self._life))

    @property
    def is_busy(self) -> bool:
        """Whether a program runs or has an outcome that nobody has heard."""
        return bool(self._asked)

    @property
    def has_heard(self) -> bool:
        return bool(self._heard)

    def receive(self) -> None:
        while self._heard:
            ran = self._heard.pop(0)
            _, done = self._asked.pop(ran.number)
            done(ran)

    def close(self) -> None:
        """Kill what runs."""
        self._life += 1
        for program in self._running.values():
            program.ended, program.is_killed = self._programs.agenda.now, True
        self._running.clear()


# -- mails ------------------------------------------------------------------------------------------


class MailerKilled(Exception):
    """The mailer is killed."""


@dataclass
class Post:
    """The queue of mails, on the faulty disk, and what the server has accepted. They outlive a controller."""

    spool: Spool
    agenda: Agenda
    draw: random.Random
    faults: Faults = field(default_factory=Faults)
    sent: list[tuple[str, Letter]] = field(default_factory=list)
    deaths: Counter[str] = field(default_factory=Counter)  # of the mailer after it sent a letter, or errors
    hurt: Counter[str] = field(default_factory=Counter)
    has_power: Callable[[], bool] = lambda: True


class _Sender(Mailer):
    """The mailer; the mail server is drawn."""

    post: Post

    def _composed(self, name: str, letter: Letter, now: float) -> tuple[list[str], bytes]:
        if not letter.to:
            raise Refused("no recipient", "")
        return list(letter.to), b""

    def _send(self, name: str, letter: Letter, to: list[str], data: bytes, now: float) -> None:
        post = self.post
        if not post.has_power():
            return
        if post.draw.random() < post.faults.server:
            post.hurt["mail server refused"] += 1
            self._put_off(name, letter, Later("the server is busy"), now)
            return
        post.sent.append((name, from_bytes(post.spool.read(name))))
        if post.draw.random() < post.faults.mailer_dies:
            post.hurt["mailer killed"] += 1
            post.deaths[name] += 1
            raise MailerKilled
        self._end(name, now, is_sent=True)

    def _end(self, name: str, now: float, *, is_sent: bool) -> None:
        super()._end(name, now, is_sent=is_sent)
        if name in self._ended and is_sent:
            self.post.deaths[name] += 1  # of the note of it, which the disk may lose


class VirtualMailer:
    """The mailer of one controller, with the interface of `MailerProcess`."""

    settings = MAILS

    def __init__(self, post: Post) -> None:
        self._post, self._reports = post, list[str]()
        self._life, self._woken_at = 0, float("inf")
        self._not_before = 0.0
        self._sender: _Sender | None = None

    def post(self, name: str, data: bytes) -> bool:
        is_new = self._post.spool.put(name, data)
        self._wake(self._post.draw.uniform(0.001, 0.1))
        return is_new

    def due(self, now: float) -> float | None:
        return None if self._sender is not None else max(0.0, self._not_before - now)

    def look(self, now: float) -> None:
        if self.due(now) == 0.0:
            self._sender = _Sender(self._post.spool, MAILS, "host")
            self._sender.post = self._post
            self._woken_at = float("inf")
            self._wake(0.001)

    def configure(self, settings: MailSettings) -> None:
        """Never called."""

    def _wake(self, seconds: float) -> None:
        at = self._post.agenda.now + seconds
        if at < self._woken_at:
            self._woken_at = at
            self._post.agenda.after(seconds, partial(self._step, self._life, at))

    def _step(self, life: int, at: float) -> None:
        """One round of `fgsched.mail.mailer.serve`."""
        if at != self._woken_at:
            return
        agenda, self._woken_at = self._post.agenda, float("inf")
        if life != self._life or self._sender is None or not self._post.has_power():
            return
        try:
            with redirect_stderr(io.StringIO()):  # its log
                if names := self._sender.kept():
                    agenda.after(self._post.draw.uniform(0.001, 1.0), partial(self._report, life, names))
                self._sender.work(agenda.wall)
        except MailerKilled:
            self._sender, self._not_before = None, agenda.now + _PAUSE
            self._life += 1
            return
        due = self._sender.due(agenda.wall)
        if due is not None:
            self._wake(max(due, 0.001))

    def _report(self, life: int, names: list[str]) -> None:
        if life == self._life:
            self._reports += names

    @property
    def has_reports(self) -> bool:
        return bool(self._reports)

    def receive(self) -> list[str]:
        found, self._reports = self._reports, []
        return found

    def close(self) -> None:
        """End with the controller."""
        self._life += 1
        self._sender = None
