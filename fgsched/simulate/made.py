"""A workload that is made up: the same seed makes the same one."""

import math
import random

from fgsched.domain.job import WHOLE, Demand
from fgsched.simulate.workload import Task, Workload, counted

# How many of a hundred jobs ask for what: most are small, as in the logs of shared hosts.
_SHARES = {1250: 18, 2500: 28, 5000: 24, 7500: 6, WHOLE: 18}
_CARDS = {2: 3, 4: 2, 8: 1}
_MEDIAN, _SPREAD = 15 * 60, 1.3  # seconds, and the sigma of the logarithm
_LONGEST = 12 * 3600
_USERS = 12
_NO_LIMIT = 0.1  # part of the jobs that name no time limit and get a day
_DAY = 24 * 3600


def made(*, seed: int, hours: float, load: float, cards: int, began: float = 0.0) -> Workload:
    """Jobs of so many hours, who together ask for `load` times what the cards have in that time.

    More of them come in the middle of the day than at night.
    """
    luck = random.Random(seed)
    length, wanted = hours * 3600, load * cards * hours * 3600
    tasks: list[Task] = []
    asked = 0.0
    while asked < wanted:
        task = _task(luck, cards, began + _moment(luck, length))
        tasks.append(task)
        asked += task.lasts * task.demand.gpus * task.demand.share / WHOLE
    return Workload.of(tasks, f"{counted(len(tasks), 'made-up job')} (seed {seed})")


def _task(luck: random.Random, cards: int, submitted: float) -> Task:
    run = min(_LONGEST, math.ceil(_MEDIAN * math.exp(luck.gauss(0, _SPREAD))))
    limit = math.ceil(run * luck.uniform(1.1, 4) / 900) * 900
    user = min(luck.randrange(_USERS), luck.randrange(_USERS))  # a few submit most
    return Task(
        demand=_demand(luck, cards),
        submitted=submitted,
        run=run,
        time_limit=_DAY if luck.random() < _NO_LIMIT else limit,
        user=f"user{user}",
        uid=1000 + user,
    )


def _demand(luck: random.Random, cards: int) -> Demand:
    several = {number: weight for number, weight in _CARDS.items() if number <= cards}
    kinds = [(1, share) for share in _SHARES] + [(number, WHOLE) for number in several]
    gpus, share = luck.choices(kinds, [*_SHARES.values(), *several.values()])[0]
    return Demand(gpus=gpus, share=share)


def _moment(luck: random.Random, length: float) -> float:
    """Seconds from the beginning, which is midnight."""
    while True:
        at = luck.uniform(0, length)
        busy = 0.6 - 0.4 * math.cos(2 * math.pi * at / _DAY)
        if luck.random() < busy:
            return at
