"""The report on capacity: the demand of pending jobs, and the effect of one more card."""

from fgsched.accounting.ledger import HOUR
from fgsched.accounting.reports import frame, numbers
from fgsched.accounting.reports.facts import Facts
from fgsched.accounting.reports.model import (
    Cell,
    Column,
    Headline,
    Number,
    Paragraphs,
    Part,
    Report,
    Section,
    Table,
    Words,
)
from fgsched.accounting.reports.queueing import demand_section
from fgsched.accounting.reports.registry import Replayed, Wish
from fgsched.accounting.reports.timeclasses import hours_of_the_week
from fgsched.accounting.reports.wording import long_date, sentence


def capacity(facts: Facts, wish: Wish) -> Report:
    """Return the report on capacity; `wish.replays` are the replays with one more card."""
    waited = _hours_with_a_wait(facts)
    body = frame.Body(
        kind="capacity",
        title="Capacity",
        lede=_lede(facts, waited, wish),
        figures=(
            frame.headline_charged(facts),
            frame.headline_wait(facts),
            Headline(
                "waited",
                "Waited for",
                Number(waited / HOUR, "hours", f"{numbers.grouped(waited / HOUR, 1)} h"),
                f"or more of {facts.period.hours:,} hours",
            ),
        ),
        sections=(
            demand_section(facts),
            Section("replay", "One more card", "", (_replay(wish),)),
            hours_of_the_week(facts),
        ),
        terms=("charged", "measured", "wait", "demand", "replay"),
        main="demand",
        quiet=not facts.demands,
    )
    return frame.framed(facts, body, wish.now)


def _hours_with_a_wait(facts: Facts) -> float:
    """Return the seconds in which jobs waited for the resource that was lacking longest."""
    return max((one.seconds for one in facts.demands if one.lacking), default=0.0)


def _lede(facts: Facts, waited: float, wish: Wish) -> tuple[str, ...]:
    if not waited:
        return (f"No job waited for resources in this {facts.period.noun}.",)
    text = [
        f"In at least {numbers.grouped(waited // HOUR)} of {facts.period.hours:,} hours, jobs waited for a"
        " resource."
    ]
    text_of = numbers.duration_text
    useful = [
        one
        for one in wish.replays
        if one.median < one.median_now and text_of(one.median) != text_of(one.median_now)
    ]
    if useful:
        best = min(useful, key=lambda one: (one.median, one.model))
        text.append(
            f"In a replay of {_replayed(best)}, one more {best.model} changed the median wait from"
            f" {text_of(best.median_now)} to {text_of(best.median)}."
        )
    return tuple(text)


def _replay(wish: Wish) -> Part:
    if not wish.replays:
        return Paragraphs((sentence("No job ran that could be replayed."),), key="replay")
    columns = (
        Column("card", "One more"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("median_now", "Median now", right=True, unit="seconds"),
        Column("median", "Median then", right=True, unit="seconds"),
        Column("ninety_now", "90 % now", right=True, unit="seconds"),
        Column("ninety", "90 % then", right=True, unit="seconds"),
    )
    return Table("replay", columns, tuple(_replay_row(one) for one in wish.replays), caption=_caption(wish))


def _replayed(one: Replayed) -> str:
    """Name the jobs of a replay: all of the period, or the latest ones with their dates."""
    if not one.left_out:
        return f"the {numbers.counted(one.jobs, 'job')} of the period"
    jobs = f"the last {one.jobs:,} of {numbers.counted(one.jobs + one.left_out, 'job')}"
    return f"{jobs} ({long_date(one.since)} to {long_date(one.until)})"


def _caption(wish: Wish) -> str:
    return f"A replay of {_replayed(wish.replays[0])}, with and without one more card."


def _replay_row(one: Replayed) -> tuple[Cell, ...]:
    return (
        Words(one.model),
        numbers.count(one.jobs),
        numbers.duration(one.median_now),
        numbers.duration(one.median),
        numbers.duration(one.ninety_now),
        numbers.duration(one.ninety),
    )
