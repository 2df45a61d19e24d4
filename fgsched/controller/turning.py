"""What those need of the conductor who do a part of its turn, so that they need not know it."""

from typing import Protocol

from fgsched.controller.book import Book
from fgsched.controller.cards import Cards
from fgsched.controller.events import Effect, Launcher
from fgsched.jobs.lifecycle import Finish, Seen
from fgsched.model import Job, Limits
from fgsched.policy import Policy
from fgsched.store import Store


class Turning(Protocol):
    """The turn as it is made: what there is, and how it is changed. The conductor is one."""

    book: Book
    store: Store
    cards: Cards
    launcher: Launcher
    limits: Limits
    orphans: dict[int, float]

    @property
    def policy(self) -> Policy: ...

    def step(self, before: Job, after: Job, now: float) -> bool: ...

    def change(self, before: Job, now: float, **changes: object) -> Job: ...

    def end(self, job: Job, how: Finish, now: float) -> None: ...

    def take_up(self, job: Job, seen: Seen, now: float) -> None: ...

    def then(self, effect: Effect) -> None: ...
