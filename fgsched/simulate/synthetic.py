"""Generate synthetic workloads; equal seeds give equal workloads."""

import math
import random

from fgsched.domain.job import WHOLE, Demand
from fgsched.simulate.workload import Task, Workload, counted

# Weights of the requests: most are small, as in traces of shared hosts.
_SHARES = {1250: 18, 2500: 28, 5000: 24, 7500: 6, WHOLE: 18}
_GPU_COUNTS = {2: 3, 4: 2, 8: 1}
_MEDIAN, _SIGMA = 15 * 60, 1.3  # seconds of run time, and the standard deviation of its logarithm
_LONGEST = 12 * 3600  # seconds
_USERS = 12
_NO_LIMIT = 0.1  # fraction of the jobs that request no time limit and get a day
_DAY = 24 * 3600  # seconds


def generate(*, seed: int, hours: float, load: float, cards: int, began: float = 0.0) -> Workload:
    """Generate jobs that are submitted within a number of hours, more of them by day than by night.

    Args:
        load: GPU time of all jobs, relative to that of the GPUs in these hours.
        cards: number of GPUs.
        began: seconds since the epoch of the first hour, which is midnight.
    """
    chance = random.Random(seed)
    length, target = hours * 3600, load * cards * hours * 3600
    tasks: list[Task] = []
    total = 0.0  # GPU seconds
    while total < target:
        task = _task(chance, cards, began + _submission(chance, length))
        tasks.append(task)
        total += task.lasts * task.demand.gpus * task.demand.share / WHOLE
    return Workload.of(tasks, f"{counted(len(tasks), 'generated job')} (seed {seed})")


def _task(chance: random.Random, cards: int, submitted: float) -> Task:
    run = min(_LONGEST, math.ceil(_MEDIAN * math.exp(chance.gauss(0, _SIGMA))))
    limit = math.ceil(run * chance.uniform(1.1, 4) / 900) * 900
    user = min(chance.randrange(_USERS), chance.randrange(_USERS))  # few users submit most jobs
    return Task(
        demand=_demand(chance, cards),
        submitted=submitted,
        run=run,
        time_limit=_DAY if chance.random() < _NO_LIMIT else limit,
        user=f"user{user}",
        uid=1000 + user,
    )


def _demand(chance: random.Random, cards: int) -> Demand:
    several = {number: weight for number, weight in _GPU_COUNTS.items() if number <= cards}
    kinds = [(1, share) for share in _SHARES] + [(number, WHOLE) for number in several]
    gpus, share = chance.choices(kinds, [*_SHARES.values(), *several.values()])[0]
    return Demand(gpus=gpus, share=share)


def _submission(chance: random.Random, length: float) -> float:
    """Return the seconds from the start, which is midnight, to a submission."""
    while True:
        at = chance.uniform(0, length)
        busy = 0.6 - 0.4 * math.cos(2 * math.pi * at / _DAY)
        if chance.random() < busy:
            return at
