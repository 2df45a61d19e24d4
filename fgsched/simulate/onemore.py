"""Replay the jobs of a period on the GPUs of the host, and with one more of each model."""

from collections.abc import Sequence

from msgspec import structs

from fgsched.accounting.records import Card
from fgsched.domain.job import Demand, Gpu, HostLimits
from fgsched.domain.policy import Policy
from fgsched.reports.facts import Facts, PastRun
from fgsched.reports.registry import Replayed
from fgsched.reports.wording import model_name, quantile
from fgsched.simulate.replay import SimHost, replay
from fgsched.simulate.workload import Task, runnable

_MOST = 2_000  # jobs that are replayed: the latest; a replay of more of them would take minutes
_UNLIMITED = 1 << 62


def one_more_card(facts: Facts, limits: HostLimits, most: int = _MOST) -> tuple[Replayed, ...]:
    """Return what one more card of each model would have changed for the jobs of a period.

    `most` jobs are replayed, the latest. CPUs and host memory of `limits` do not restrict the replay: the
    accounts lack the requests for them.
    """
    gpus = tuple(_gpu(index, card) for index, card in enumerate(facts.cards))
    latest = facts.runs(most)
    if not gpus or not latest:
        return ()
    limits = structs.replace(limits, cpus=_UNLIMITED, host_memory=_UNLIMITED)
    host = SimHost(gpus=gpus, limits=limits, policy=Policy())
    tasks, _ = runnable([_task(run) for run in latest], gpus, limits)
    now = _waits(tasks, host)
    found = []
    for model in dict.fromkeys(card.model for card in facts.cards):
        card = next(card for card in facts.cards if card.model == model)
        added = structs.replace(_gpu(len(gpus), card), uuid="one-more")
        then = _waits(tasks, SimHost(gpus=(*gpus, added), limits=limits, policy=Policy()))
        found.append(
            Replayed(
                model=model_name(model),
                jobs=len(tasks),
                left_out=max(0, facts.ran - len(tasks)),
                since=min(run.eligible_at for run in latest),
                until=max(run.ended_at for run in latest),
                median_now=quantile(now, 50) or 0.0,
                median=quantile(then, 50) or 0.0,
                ninety_now=quantile(now, 90) or 0.0,
                ninety=quantile(then, 90) or 0.0,
            )
        )
    return tuple(found)


def _waits(tasks: Sequence[Task], host: SimHost) -> list[float]:
    """Return the waits in a replay, in seconds, ascending."""
    return sorted(outcome.wait for outcome in replay(tasks, host).outcomes)


def _gpu(index: int, card: Card) -> Gpu:
    return Gpu(index=index, uuid=card.uuid, model=card.model, total=card.total)


def _task(run: PastRun) -> Task:
    demand = Demand(gpus=run.gpus, share=run.share, memory=run.memory, gpu_type=run.gpu_type)
    return Task(
        demand=demand,
        submitted=run.eligible_at,
        run=max(1.0, run.ended_at - run.started_at),
        time_limit=run.time_limit,
        id=run.id,
        user=run.user,
    )
