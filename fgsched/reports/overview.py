"""The overview: one page on the use of the GPUs, by user, and on waste."""

from collections.abc import Sequence

from fgsched.reports import frame, numbers
from fgsched.reports.facts import Facts
from fgsched.reports.incidents import failures_section, health_and_foreign
from fgsched.reports.model import Report
from fgsched.reports.queueing import waits_section
from fgsched.reports.registry import Wish
from fgsched.reports.users import users_section
from fgsched.reports.utilization import gpus, hours_of_the_week, where_the_time_went
from fgsched.reports.waste import WasteFinding, findings, wastes
from fgsched.reports.wording import earlier_name, number_word

_WASTES = 5


def overview(facts: Facts, wish: Wish) -> Report:
    """Return the overview of a period."""
    proposals = findings(facts, _WASTES)
    body = frame.Body(
        kind="overview",
        title="GPU report",
        lede=tuple(_lede(facts, proposals)),
        figures=(
            frame.headline_charged(facts),
            frame.headline_efficiency(facts),
            frame.headline_idle(facts),
            frame.headline_wait(facts),
            frame.headline_jobs(facts),
            frame.headline_down(facts),
        ),
        sections=(
            where_the_time_went(facts),
            gpus(facts),
            hours_of_the_week(facts),
            users_section(facts),
            waits_section(facts),
            failures_section(facts),
            wastes(facts, proposals),
            health_and_foreign(facts),
        ),
        terms=("charged", "used", "efficiency", "classes", "measured", "idle", "wait", "failed", "returned"),
        main="classes",
        quiet=not facts.ended and not facts.charged,
    )
    return frame.framed(facts, body, wish.now)


def _lede(facts: Facts, proposals: Sequence[WasteFinding]) -> list[str]:
    if nothing := frame.nothing_ran(facts):
        return [*nothing]
    text = [_computed(facts)]
    if facts.idle >= 1800:
        text.append(f"{numbers.brief_hours(facts.idle)} GPU-hours were charged and idle.")
    if proposals:
        returned = numbers.brief_hours(sum(waste.returned for waste in proposals))
        which = "change to a job header" if len(proposals) == 1 else "changes to job headers"
        text.append(
            f"The {number_word(len(proposals))} {which} at the end of this report would have returned"
            f" {returned} GPU-hours."
        )
    return [*text, *frame.no_earlier(facts)]


def _computed(facts: Facts) -> str:
    now = numbers.shares(facts.classes)[0]
    subject = "The card" if len(facts.gpus) == 1 else "The cards"
    text = f"{subject} computed {now.text} of the time{frame.measured_word(facts)}"
    if not facts.before.totals:
        return f"{text}."
    change = numbers.points(now, numbers.shares(facts.before.classes)[0])
    name = earlier_name(facts.before.period)
    if change is None or change.direction == "same":
        return f"{text}, as in {name}."
    word = "more" if change.direction == "up" else "less"
    return f"{text}, {change.text} {word} than in {name}."
