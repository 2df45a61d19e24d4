"""What the conductor does about what the watchdog saw, and about a job that ran out of device memory."""

from dataclasses import replace

from fgsched.controller.events import WatchdogFinding
from fgsched.controller.telling import tell
from fgsched.controller.turning import EngineContext
from fgsched.domain.job import Job
from fgsched.domain.shortage import PostMortem, Refusal
from fgsched.jobs.endings import blamed
from fgsched.jobs.lifecycle import reason_of
from fgsched.jobs.postmortem import examine, noticed


def take_notice(engine: EngineContext, job: Job, seen: WatchdogFinding, now: float) -> None:
    """Write down what the watchdog saw, and then end the job if that is what it comes to."""
    if job.is_to_end:
        return
    others = engine.jobtable.holding.values()
    changes = noticed(job, seen.warn, seen.end, others, readings=engine.cards.readings)
    after = engine.change(job, now, **changes)
    if after.is_to_end:
        engine.then(tell(engine, after, lambda: engine.launcher.cancel(after)))


def found_out(engine: EngineContext, job: Job, now: float) -> Job:
    """A job that nothing is left of: the look after its end may show that the fault was its card's."""
    cards = [hold.gpu for hold in job.holds]
    over = blamed(job, is_sick=engine.cards.failed_since(cards, job.started_at or 0.0))
    return replace(over, reason=reason_of(over), ended_at=over.ended_at or now)


def post_mortem(engine: EngineContext, job: Job, refusal: Refusal) -> PostMortem:
    """Who was on the card when the job ran out of its share of it."""
    return examine(job, refusal, engine.jobtable.holding.values(), engine.cards.readings)
