"""What the conductor does about what the watchdog saw, and about a job that ran out of device memory."""

from dataclasses import replace

from fgsched.controller.events import Noticed
from fgsched.controller.telling import tell
from fgsched.controller.turning import Turning
from fgsched.domain.job import Job
from fgsched.domain.shortage import PostMortem, Refusal
from fgsched.jobs.endings import blamed
from fgsched.jobs.lifecycle import reason_of
from fgsched.jobs.postmortem import examine, noticed


def take_notice(conductor: Turning, job: Job, seen: Noticed, now: float) -> None:
    """Write down what the watchdog saw, and then end the job if that is what it comes to."""
    if job.is_to_end:
        return
    others = conductor.book.holding.values()
    changes = noticed(job, seen.warn, seen.end, others, readings=conductor.cards.readings)
    after = conductor.change(job, now, **changes)
    if after.is_to_end:
        conductor.then(tell(conductor, after, lambda: conductor.launcher.cancel(after)))


def found_out(conductor: Turning, job: Job, now: float) -> Job:
    """A job that nothing is left of: the look after its end may show that the fault was its card's."""
    cards = [hold.gpu for hold in job.holds]
    over = blamed(job, is_sick=conductor.cards.failed_since(cards, job.started_at or 0.0))
    return replace(over, reason=reason_of(over), ended_at=over.ended_at or now)


def post_mortem(conductor: Turning, job: Job, refusal: Refusal) -> PostMortem:
    """Who was on the card when the job ran out of its share of it."""
    return examine(job, refusal, conductor.book.holding.values(), conductor.cards.readings)
