"""Users of a world: they submit, cancel, hold, change and repeat, and know only what was acknowledged."""

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from builders import GIB, a_demand
from fgsched.controller.caller import Caller
from fgsched.domain.errors import FgschedError, StorageError
from fgsched.domain.job import WHOLE, Demand, Request
from virtualcontroller import Asked

if TYPE_CHECKING:
    from virtualworld import VirtualWorld

ROOT = Caller(0, 0, "root", is_operator=True)
ANN, BOB, EVE = (
    Caller(uid, uid, name, is_operator=False) for uid, name in ((1, "ann"), (2, "bob"), (3, "eve"))
)
NAMES = ("day", "evening", "night")
MAIL_TYPES = (*[""] * 3, "END", "BEGIN,END,FAIL,REQUEUE", "TIME_LIMIT,TIME_LIMIT_50", "END,ARRAY_TASKS")
VERBS = (
    *("cancel", "cancel", "requeue", "suspend", "suspend", "resume_jobs", "resume_jobs", "hold", "release"),
    *("signal", "limit"),
)
_AGAIN = 1.0  # seconds until a client repeats a request
_LATER = 300.0  # seconds until a user repeats a submission that the disk did not take


@dataclass
class Known:
    """A submission that was acknowledged."""

    key: str
    first: int
    count: int
    tasks: int  # of an array; 0: none
    caller: Caller

    @property
    def ids(self) -> range:
        """The ids of its jobs."""
        return range(self.first, self.first + self.count)


class Users:
    """All users of a host."""

    def __init__(self, world: "VirtualWorld", draw: random.Random) -> None:
        self._world, self._draw = world, draw
        self.known: dict[str, Known] = {}  # by key
        self.cancelled: set[int] = set()  # acknowledged
        self.asked_to_cancel: set[int] = set()
        self.partitions: dict[str, str] = {}  # the states that were acknowledged last
        self.changing = 0  # unanswered changes of partitions
        self.refused: dict[str, FgschedError] = {}
        self._keys = 0

    def act(self) -> None:
        """One of the users does something."""
        draw = self._draw
        acts = [self.submit] * 8 + [self.submit_array] * 2 + [self.submit_after] * 2 + [self.submit_later]
        acts += (
            [self.order] * 4 + [self.update] * 2 + [self.drain, self.partition, self.reserve, self.unreserve]
        )
        act = draw.choice(acts)
        for _ in range(draw.choice([1, 1, 1, 2, 5])):
            act()

    def ask(self, operation: str, caller: Caller, answered: Any = None, **arguments: Any) -> None:
        """Send a request, which is repeated until it is answered."""
        self._send(Asked(operation, caller, arguments, answered or (lambda answer: None)))

    def _send(self, asked: Asked) -> None:
        self._world.counts["requests"] += 1
        self._world.place.mailbox.append(asked)

    def resend(self, unanswered: list[Asked], seconds: float = _AGAIN) -> None:
        """Repeat requests whose answers did not come."""
        for one in unanswered:
            one.tries += 1
            self._world.counts["requests repeated"] += 1
            self._world.agenda.after(seconds, lambda one=one: self._world.place.mailbox.append(one))

    # -- submissions ----------------------------------------------------------------------------------

    def demand(self) -> Demand:
        draw = self._draw
        return draw.choice(
            [
                a_demand(draw.choice([1000, 2500, 5000, 7500]), draw.choice([0, 0, GIB, 9 * GIB])),
                a_demand(draw.choice([2500, 5000]), cpus=draw.randrange(1, 4)),
                a_demand(memory=draw.choice([GIB, 8 * GIB, 20 * GIB])),
                a_demand(WHOLE, gpus=draw.randrange(1, 4)),
                a_demand(cpus=draw.randrange(1, 7)),
            ]
        )

    def request(self, **more: Any) -> Request:
        draw = self._draw
        usual = {
            "name": "job",
            "demand": self.demand(),
            "partition": ",".join(draw.sample(NAMES, draw.choice([1, 1, 2]))),
            "account": draw.choice(["", "", "lab"]),
            "time_limit": draw.choice([0, 30, 600, 3600, 8 * 3600]),
            "nice": draw.choice([0, 0, 0, 500]),
            "requeue": draw.random() < 0.8,
            "mail_type": draw.choice(MAIL_TYPES),
            "mail_user": draw.choice(["", "", "carl"]),
        }
        return Request(**usual | more)

    def submit(self, **more: Any) -> None:
        self._keys += 1
        key, caller = f"key-of-a-submission-{self._keys}", self._draw.choice([ANN, BOB, EVE])
        request = self.request(**more)
        count = 1 if request.array else self._draw.choice([1, 1, 1, 3])
        arguments = {
            "key": key,
            "scripts": [f"#!/bin/sh\n# {self._keys % 5}\n"],
            "environments": [{}],
            "requests": [to_builtins(request)],
            "jobs": [[0, 0, 0, self._draw.random() < 0.05]] * count,
        }
        asked = Asked("submit", caller, arguments)
        asked.answered = lambda answer: self._submitted(asked, key, request, answer)
        self._send(asked)

    def _submitted(self, asked: Asked, key: str, request: Request, answer: Any) -> None:
        world = self._world
        if isinstance(answer, StorageError):
            self.resend([asked], _LATER)
        elif isinstance(answer, FgschedError):
            world.counts["submissions refused"] += 1
            self.refused[key] = answer
        else:
            tasks = _count(request.array)
            fresh = Known(key, answer["first"], answer["count"], tasks, asked.caller)
            world.checks.acknowledged(self.known.setdefault(key, fresh), fresh)
            world.note(f"ack {fresh.first} {fresh.count}")
            world.counts["jobs"] += fresh.count * max(1, tasks)
            if world.draw.random() < 0.03:  # a client that was killed asks again with the same key
                self.resend([asked])
                world.counts["jobs"] -= fresh.count * max(1, tasks)

    def submit_array(self) -> None:
        last = self._draw.randrange(0, 6)
        self.submit(array=f"0-{last}" if last else "0", throttle=self._draw.choice([0, 1, 2]))

    def submit_after(self) -> None:
        kind = self._draw.choice(["afterok", "afterany", "afternotok", "after", "singleton"])
        if kind == "singleton":
            self.submit(dependency=kind)
        elif self.known:
            self.submit(dependency=f"{kind}:{self.some_job()}")

    def submit_later(self) -> None:
        begin = int(self._world.agenda.wall) + self._draw.randrange(1, 20_000)
        deadline = begin + self._draw.randrange(4000, 40_000) if self._draw.random() < 0.5 else 0
        more = {"deadline": deadline, "time_limit": 600} if deadline else {}
        self.submit(begin=begin, **more)

    def some_job(self) -> int:
        lately = list(self.known.values())[-12:]
        return self._draw.choice(lately).first

    # -- changes --------------------------------------------------------------------------------------

    def order(self) -> None:
        if not self.known:
            return
        verb = self._draw.choice(VERBS)
        job = self.some_job()
        if self._draw.random() < 0.5 and (running := self._world.host.alive):
            job = self._draw.choice(running)[0]
            self._world.kill_amid_order()
        if verb == "cancel":
            self.cancel(job)
        elif verb == "signal":
            self.signal(job)
        elif verb == "limit":
            self.ask("update", ROOT, id=job, changes={"time_limit": self._draw.choice([60, 1800, 7200])})
        else:
            self.ask(verb, ROOT, ids=[job])

    def cancel(self, job: int) -> None:
        self.asked_to_cancel.add(job)

        def answered(answer: Any) -> None:
            if not isinstance(answer, Exception) and "outcome" in answer["jobs"][0]:
                self.cancelled.add(job)

        self.ask("cancel", ROOT, answered, ids=[job])

    def signal(self, job: int) -> None:
        """Send a signal; whoever is told that it was sent may rely on it."""
        signals = self._world.host.signals
        before = signals.copy()

        def answered(answer: Any) -> None:
            if not isinstance(answer, Exception):  # the tasks of an array have rows of their own
                told = [row["id"] for row in answer["jobs"] if row.get("outcome") == "signalled"]
                missed = [name for name in told if signals[name] <= before[name]]
                self._world.checks.signalled(job, not missed)

        self.ask("signal", ROOT, answered, ids=[job], signal=10)

    def update(self) -> None:
        if self.known:
            draw = self._draw
            changes = draw.choice([{"nice": draw.randrange(100)}, {"time_limit": draw.choice([60, 7200])}])
            self.ask("update", ROOT, id=self.some_job(), changes=changes)

    def drain(self) -> None:
        index = self._draw.randrange(3)
        if self._draw.random() < 0.4:
            self.ask("drain", ROOT, gpu=index, reason="fan")
        else:
            self.resume(index)

    def resume(self, index: int) -> None:
        """Return a card to service, whatever it lists; nobody knows when, until there is an answer."""
        host = self._world.host
        host.tolerated[index] += 1

        def answered(answer: Any) -> None:
            host.put_up_with(index)
            host.tolerated[index] -= 1

        self.ask("resume", ROOT, answered, gpu=index)

    def partition(self) -> None:
        state = self._draw.choice(["up", "up", "up", "down", "inactive", "drain"])
        self.open_partition(self._draw.choice(NAMES), state)

    def open_partition(self, name: str, state: str) -> None:
        self.changing += 1

        def answered(answer: Any) -> None:
            self.changing -= 1
            if not isinstance(answer, Exception):
                self.partitions[name] = state
            elif isinstance(answer, StorageError):
                self.partitions.pop(name, None)

        self.ask("update_partition", ROOT, answered, name=name, values={"state": state})

    def reserve(self) -> None:
        draw, start = self._draw, int(self._world.agenda.wall) + self._draw.randrange(60, 9000)
        self._keys += 1
        about = {
            "name": f"r{self._keys}",
            "start": start,
            "end": start + draw.randrange(600, 20_000),
            "share": draw.choice([2500, 5000, WHOLE]),
            "gpus": draw.choice([[0], [1], [0, 1], [2]]),
            "flags": draw.choice([[], ["ignore_jobs"], ["maint"]]),
            "users": ["ann"],
        }
        self.ask("create_reservation", ROOT, **about)

    def unreserve(self) -> None:
        if self._world.life is not None:
            for one in list(self._world.life.engine.policy.reservations)[:1]:
                self.ask("delete_reservation", ROOT, name=one.name)

    # -- the end --------------------------------------------------------------------------------------

    def open_all(self) -> None:
        """An operator opens everything and releases every job."""
        life = self._world.life
        if life is None:
            return
        for name in NAMES:
            self.open_partition(name, "up")
        for index in range(3):
            self.resume(index)
        for one in life.engine.policy.reservations:
            self.ask("delete_reservation", ROOT, name=one.name)
        jobs = sorted(life.engine.jobtable.jobs)
        if jobs:
            self.ask("release", ROOT, ids=jobs)
            self.ask("resume_jobs", ROOT, ids=jobs)


def _count(array: str) -> int:
    first, _, last = array.partition("-")
    return int(last or first) + 1 if array else 0
