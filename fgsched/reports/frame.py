"""Put a report together: period, footer and definitions around its sections."""

from collections.abc import Sequence

from msgspec import Struct

from fgsched import __version__
from fgsched.accounting.periods import Period
from fgsched.domain.times import HOUR, format_time
from fgsched.reports import numbers
from fgsched.reports.facts import Facts
from fgsched.reports.model import Change, Figures, Headline, Number, Report, Section, Span
from fgsched.reports.wording import definitions, quantile, stretch

_MOST_GAPS = 5  # that the footer names


class Body(Struct, frozen=True, kw_only=True):
    """The contents of a report that differ by kind."""

    kind: str
    title: str
    lede: tuple[str, ...]
    figures: tuple[Headline, ...]
    sections: tuple[Section, ...]
    terms: tuple[str, ...]  # keys of definitions
    main: str = ""  # key of the part that CSV writes if none is named
    quiet: bool = False  # nothing to report


def framed(facts: Facts, body: Body, now: float) -> Report:
    """Return the whole report; `now` is in epoch seconds and shown only for a period that has not ended."""
    return Report(
        kind=body.kind,
        title=body.title,
        host=facts.host,
        period=span_of(facts.period),
        lede=body.lede,
        figures=Figures(body.figures),
        sections=body.sections,
        definitions=definitions(*body.terms),
        notes=(*_origin(facts, now), *_without_samples(facts)),
        main=body.main,
        quiet=body.quiet,
    )


def span_of(period: Period) -> Span:
    """Return a period as part of a report."""
    return Span(
        since=period.since,
        until=period.until,
        since_iso=period.since_iso,
        until_iso=period.until_iso,
        name=period.name,
        label=period.label,
        noun=period.noun,
        closed=period.closed,
    )


def _origin(facts: Facts, now: float) -> tuple[str, ...]:
    if facts.period.closed:
        return (
            f"Made by fgreport {__version__} from the records of {facts.host}, {_zone(facts.period)}.",
            "The period is closed: the report comes out the same when it is made again.",
        )
    origin, until = format_time(now, "%Y-%m-%d %H:%M %Z"), format_time(facts.period.until, "%Y-%m-%d %H:%M")
    return (
        f"Made {origin} by fgreport {__version__} from the records of {facts.host}.",
        f"The period has not ended: it is reported up to {until}.",
    )


def _zone(period: Period) -> str:
    zones = [format_time(at, "%Z") for at in (period.since, period.until - 1)]
    return f"times in {zones[0]}" + (f" and {zones[1]}" if zones[0] != zones[1] else "")


def _without_samples(facts: Facts) -> tuple[str, ...]:
    if facts.is_measured_whole:
        return ()
    shown = [
        stretch(max(gap.since, facts.period.since), min(gap.until, facts.period.until), facts.period)
        + (f" ({gap.why})" if gap.why else "")
        for gap in facts.gaps[:_MOST_GAPS]
    ]
    more = len(facts.gaps) - len(shown)
    if not shown:
        return (f"Without samples: {numbers.brief_hours(facts.lost)} GPU-hours.",)
    without_samples = f", and {more} more times" if more > 0 else ""
    hours = numbers.brief_hours(facts.lost)
    return (f"Without samples: {', '.join(shown)}{without_samples}; {hours} GPU-hours in all.",)


# -- headline figures ----------------------------------------------------------------------------------


def fraction(part: float, whole: float, suffix: str = "") -> str:
    """Return '1,074 of 1,328 GPU-hours'; both in GPU seconds."""
    return f"{_whole(part)} of {_whole(whole)} GPU-hours{suffix}"


def _whole(seconds: float) -> str:
    return numbers.grouped(seconds / HOUR, 0 if seconds >= 10 * HOUR or seconds < HOUR / 20 else 1)


def headline_charged(facts: Facts) -> Headline:
    """Return the charged part of the hours: the sum of the first three classes, as printed."""
    now, before = (_charged(numbers.shares(period_facts.classes)) for period_facts in (facts, facts.before))
    note = fraction(facts.charged, facts.sampled)
    return Headline("charged", "Charged", now, note, numbers.points(now, before))


def _charged(classes: Sequence[Number]) -> Number:
    if classes[0].value is None:
        return numbers.unknown("%")
    value = round(sum(share.value or 0.0 for share in classes[:3]), 1)
    return Number(value, "%", f"{value:.1f} %")


def headline_efficiency(facts: Facts) -> Headline:
    now = numbers.share(facts.used, facts.measured)
    before = numbers.share(facts.before.used, facts.before.measured)
    note = fraction(facts.used, facts.measured, " used")
    return Headline("efficiency", "GPU efficiency", now, note, numbers.points(now, before, 1))


def headline_idle(facts: Facts) -> Headline:
    now = numbers.share(facts.idle, facts.charged)
    before = numbers.share(facts.before.idle, facts.before.charged)
    return Headline("idle", "Idle", now, fraction(facts.idle, facts.charged), numbers.points(now, before, -1))


def headline_wait(facts: Facts) -> Headline:
    ordered, earlier = facts.all_waits, facts.before.all_waits
    note = f"90 %: {numbers.duration(quantile(ordered, 90)).text}"
    median = quantile(ordered, 50)
    change = numbers.by_duration(median, quantile(earlier, 50))
    return Headline("median_wait", "Median wait", numbers.duration(median), note, change)


def headline_jobs(facts: Facts) -> Headline:
    note = f"{facts.failed:,} failed, {numbers.share(facts.failed, facts.ended).text}"
    change = numbers.by_count(facts.ended, facts.before.ended) if facts.before.is_known else None
    return Headline("jobs", "Jobs ended", numbers.count(facts.ended), note, change)


def headline_down(facts: Facts) -> Headline:
    down = facts.classes[5] if facts.totals else 0.0
    hours = numbers.hours(down)
    change: Change | None = None
    if facts.before.totals:
        change = numbers.by_hours(down, facts.before.classes[5], -1)
    part = numbers.shares(facts.classes)[5].text
    return Headline(
        "down", "Down", Number(hours.value, "GPU-hours", f"{hours.text} h"), f"{part} of the hours", change
    )


def measured_word(facts: Facts) -> str:
    """Return " measured", the restriction of "of the time", if a part of the period has no samples."""
    return "" if facts.is_measured_whole else " measured"


def nothing_ran(facts: Facts) -> Sequence[str]:
    """Return the sentences for a lede if no job ran or nothing was sampled; nothing otherwise."""
    if not facts.ended and not facts.charged:
        return (f"No job ran in this {facts.period.noun}.", *no_earlier(facts))
    if not facts.sampled:
        jobs = numbers.counted(facts.ended, "job")
        return (f"{jobs} ended; the GPUs were not sampled in this {facts.period.noun}.", *no_earlier(facts))
    return ()


def no_earlier(facts: Facts) -> Sequence[str]:
    """Return the sentence for a lede without an earlier period; nothing if there is one."""
    if facts.before.is_known:
        return ()
    return (f"There are no records of an earlier {facts.period.noun}.",)
