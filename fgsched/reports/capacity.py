"""The report on capacity: the demand of pending jobs, and the effect of one more card."""

from fgsched.domain.times import HOUR
from fgsched.reports import frame, numbers
from fgsched.reports.facts import Facts
from fgsched.reports.model import (
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
from fgsched.reports.queueing import demand_section
from fgsched.reports.registry import Replayed, Wish
from fgsched.reports.timeclasses import hours_of_the_week
from fgsched.reports.wording import long_date, sentence


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
    return max((demand.seconds for demand in facts.demands if demand.lacking), default=0.0)


def _lede(facts: Facts, waited: float, wish: Wish) -> tuple[str, ...]:
    if not waited:
        return (f"No job waited for resources in this {facts.period.noun}.",)
    text = [
        f"In at least {numbers.grouped(waited // HOUR)} of {facts.period.hours:,} hours, jobs waited for a"
        " resource."
    ]
    useful = [replay for replay in wish.replays if _is_shorter(replay)]
    if useful:
        best = min(useful, key=lambda replay: (replay.median, replay.model))
        text.append(
            f"In a replay of {_replayed(best)}, one more {best.model} changed the median wait from"
            f" {numbers.duration_text(best.median_now)} to {numbers.duration_text(best.median)}."
        )
    return tuple(text)


def _is_shorter(replay: Replayed) -> bool:
    """Tell whether the median wait becomes shorter, and its text another one."""
    texts = {numbers.duration_text(replay.median), numbers.duration_text(replay.median_now)}
    return replay.median < replay.median_now and len(texts) == 2


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
    rows = tuple(_replay_row(replay) for replay in wish.replays)
    return Table("replay", columns, rows, caption=_caption(wish))


def _replayed(replay: Replayed) -> str:
    """Name the jobs of a replay: all of the period, or the latest ones with their dates."""
    if not replay.left_out:
        return f"the {numbers.counted(replay.jobs, 'job')} of the period"
    jobs = f"the last {replay.jobs:,} of {numbers.counted(replay.jobs + replay.left_out, 'job')}"
    return f"{jobs} ({long_date(replay.since)} to {long_date(replay.until)})"


def _caption(wish: Wish) -> str:
    return f"A replay of {_replayed(wish.replays[0])}, with and without one more card."


def _replay_row(replay: Replayed) -> tuple[Cell, ...]:
    return (
        Words(replay.model),
        numbers.count(replay.jobs),
        numbers.duration(replay.median_now),
        numbers.duration(replay.median),
        numbers.duration(replay.ninety_now),
        numbers.duration(replay.ninety),
    )
