"""The reports on waits, and on the capacity that is missing and what one more GPU would do."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

from fgsched.domain.job import WHOLE
from fgsched.domain.times import HOUR
from fgsched.reports import frame, numbers
from fgsched.reports.facts import DemandTotals, Facts, Slowdowns, WaitGroup
from fgsched.reports.grouping import Numbers, ordered
from fgsched.reports.model import (
    Bar,
    Cell,
    Column,
    Headline,
    Mark,
    Number,
    Paragraphs,
    Part,
    Piece,
    Quantiles,
    Report,
    Section,
    Table,
    WaitRow,
    Words,
)
from fgsched.reports.registry import Replayed, Wish
from fgsched.reports.utilization import hours_of_the_week
from fgsched.reports.wording import event, job_cells, long_date, quantile, sentence

SIZES = ("≤ 0.25 GPU", "≤ 0.5 GPU", "< 1 GPU", "1 GPU", "> 1 GPU")
NO_GPU = "no GPU"
_TICKS = ((0, "at once"), (600, "10 min"), (3600, "1 h"), (21_600, "6 h"), (86_400, "24 h"))
_DOTS = 20
_CAPTION = (
    "Each dot is one job in twenty of its {group}; in a {brief} of fewer than 20 jobs, one job."
    " The line marks the median. Logarithmic scale."
)
CAPTION = _CAPTION.format(group="size class", brief="class")
_BINS = ((60, "< 1 min"), (600, "1–10 min"), (3600, "10–60 min"), (21_600, "1–6 h"), (86_400, "6–24 h"))
_LAST = "24 h and more"


def size_of(group: WaitGroup | Slowdowns) -> str:
    """Return the size class of jobs."""
    if group.gpus == 0:
        return NO_GPU
    if group.gpus > 1:
        return SIZES[4]
    return SIZES[(group.share > 2500) + (group.share > 5000) + (group.share >= WHOLE)]


def waits_section(facts: Facts) -> Section:
    """Return the section of the waits by size class."""
    if not facts.waits:
        return Section("waits", "Waits", "", (Paragraphs((sentence("No job started."),)),))
    return Section("waits", "Waits", "", (by_size(facts.waits),))


def by_size(wait_groups: Iterable[WaitGroup]) -> Quantiles:
    """Return the distribution of waits by size class."""
    classes: dict[str, list[Numbers]] = defaultdict(list)
    for wait_group in wait_groups:
        classes[size_of(wait_group)].append(wait_group.waits)
    names = [*SIZES, *([NO_GPU] if NO_GPU in classes else [])]
    return distribution([(name, classes[name]) for name in names], key="sizes")


def distribution(
    classes: Sequence[tuple[str, list[Numbers]]], key: str, *, is_given: bool = False
) -> Quantiles:
    """Return the distribution of the waits, in seconds, of named classes of jobs."""
    rows = tuple(_row(name, ordered(values), is_given=is_given) for name, values in classes)
    ticks = tuple(Mark(at, label) for at, label in _TICKS)
    if is_given:
        caption = _CAPTION.format(group="partition", brief="partition")
        return Quantiles(rows=rows, ticks=ticks, caption=caption, key=key, head="Partition")
    return Quantiles(rows=rows, ticks=ticks, caption=CAPTION, key=key)


def _row(name: str, values: Sequence[float], *, is_given: bool) -> WaitRow:
    dots = values
    if len(values) > _DOTS:
        dots = [quantile(values, (at + 0.5) * 100 / _DOTS) or 0.0 for at in range(_DOTS)]
    return WaitRow(
        name=name,
        jobs=numbers.count(len(values)),
        dots=tuple(dots),
        median=numbers.duration(quantile(values, 50)),
        ninety=numbers.duration(quantile(values, 90)),
        longest=numbers.duration(values[-1] if values else None),
        is_given=is_given,
    )


def waits(facts: Facts, wish: Wish) -> Report:
    """Return the report on waits."""
    body = frame.Body(
        kind="waits",
        title="Waits",
        lede=_lede(facts),
        figures=(
            frame.headline_wait(facts),
            _ninety_nine(facts),
            _at_once(facts),
            frame.headline_jobs(facts),
        ),
        sections=(
            _by_size(facts),
            _by_partition(facts),
            Section("histogram", "Histogram", "", (_histogram(facts),)),
            Section("slowdown", "Slowdown", "", (_slowdown(facts),)),
            Section("longest", "Longest waits", "", (_longest(facts, wish.number),)),
        ),
        terms=("wait", "size", "slowdown"),
        main="sizes",
        quiet=not facts.waits,
    )
    return frame.framed(facts, body, wish.now)


def _lede(facts: Facts) -> tuple[str, ...]:
    if not facts.waits:
        return (f"No job that ended in this {facts.period.noun} had started.",)
    ordered = facts.all_waits
    if len(ordered) == 1:
        return (f"1 job started; it waited {numbers.duration(ordered[0]).text}.",)
    median, ninety = quantile(ordered, 50), quantile(ordered, 90)
    return (
        f"Half of {numbers.counted(len(ordered), 'job')} waited {numbers.duration(median).text} or less,"
        f" nine of ten {numbers.duration(ninety).text} or less.",
    )


def _ninety_nine(facts: Facts) -> Headline:
    ninety_nine, longest = (numbers.duration(quantile(facts.all_waits, part)) for part in (99, 100))
    return Headline("ninety_nine", "99 %", ninety_nine, f"longest: {longest.text}")


def _at_once(facts: Facts) -> Headline:
    immediate, jobs = bisect_left(facts.all_waits, 60), len(facts.all_waits)
    note = f"{immediate:,} of {numbers.counted(jobs, 'job')}"
    return Headline("at_once", "Started at once", numbers.share(immediate, jobs), note)


def _none(key: str, title: str) -> Section:
    return Section(key, title, "", (Paragraphs((sentence("No job started."),)),))


def _by_size(facts: Facts) -> Section:
    if not facts.waits:
        return _none("sizes", "By size")
    return Section("sizes", "By size", "", (by_size(facts.waits),))


def _by_partition(facts: Facts) -> Section:
    if not facts.waits:
        return _none("partitions", "By partition")
    partitions: dict[str, list[Numbers]] = defaultdict(list)
    for group in facts.waits:
        partitions[group.owner.partition or "(none)"].append(group.waits)
    rows = sorted(partitions.items(), key=lambda pair: (-sum(map(len, pair[1])), pair[0]))
    return Section("partitions", "By partition", "", (distribution(rows, key="partitions", is_given=True),))


def _histogram(facts: Facts) -> Part:
    names = [*(name for _, name in _BINS), _LAST]
    ends = [0, *(bisect_left(facts.all_waits, most) for most, _ in _BINS), len(facts.all_waits)]
    counts = {name: end - begin for name, begin, end in zip(names, ends, ends[1:], strict=False)}
    largest = max(counts.values())
    columns = (
        Column("wait", "Wait"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("bar", "Number of jobs"),
        Column("share", "Share", right=True, unit="%"),
    )
    shares = numbers.shares([counts[name] for name in names])
    rows = tuple(
        (Words(name), numbers.count(counts[name]), _bar(counts[name], largest), part)
        for name, part in zip(names, shares, strict=True)
    )
    return Table("histogram", columns, rows if largest else (), empty="No job started.")


def _bar(value: float, largest: float) -> Bar:
    return Bar((Piece("count", value / largest),) if value and largest else ())


def _slowdown(facts: Facts) -> Part:
    sizes: dict[str, list[Numbers]] = defaultdict(list)
    for slowdowns in facts.slowdowns:
        sizes[size_of(slowdowns)].append(slowdowns.factors)
    factors = {name: ordered(values) for name, values in sizes.items()}
    columns = (
        Column("size", "Size"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("median", "Median", right=True),
        Column("ninety", "90 %", right=True),
    )
    rows = tuple(
        (
            Words(name),
            numbers.count(len(factors[name])),
            *(_factor(factors[name], part) for part in (50, 90)),
        )
        for name in (*SIZES, NO_GPU)
        if name in factors
    )
    return Table("slowdown", columns, rows, empty="No job started.")


def _factor(values: Numbers, percent: float) -> Cell:
    value = quantile(values, percent)
    return numbers.unknown("") if value is None else Number(value, "", numbers.grouped(value, 1))


def _longest(facts: Facts, most: int) -> Part:
    columns = (
        Column("job", "Job", right=True),
        Column("user", "User"),
        Column("name", "Name"),
        Column("wait", "Wait", right=True, unit="seconds"),
        Column("started", "Ended"),
    )
    rows = tuple(
        (
            *job_cells(job),
            numbers.duration(job.wait),
            event(job.ended_at),
        )
        for job in facts.top_jobs("wait", most)
    )
    return Table("longest", columns, rows, empty="No job that ended had started.")


# -- demand --------------------------------------------------------------------------------------------

_LACKS = {
    "share": "a share of a card",
    "memory": "GPU memory",
    "gpus": "whole cards",
    "type": "a card of a model",
    "cpus": "CPUs",
    "host_memory": "host memory",
    "resource": "a resource of the site",
}


def demand_section(facts: Facts) -> Section:
    """Return the section of what jobs waited for."""
    columns = (
        Column("lacking", "Waited for"),
        Column("reason", "Reason", minor=True),
        Column("hours", "Hours with a wait", short="hours", right=True, unit="hours"),
        Column("job_hours", "Job-hours", right=True, unit="hours"),
        Column("gpu_hours", "GPU-hours asked", short="GPU-hours", right=True, unit="GPU-hours"),
        Column("most", "Most at once", short="at once", right=True, unit="jobs"),
    )
    rows = tuple(_demand_row(demand) for demand in facts.demands)
    table = Table("demand", columns, rows, empty="No job waited for resources.")
    return Section("demand", "What jobs waited for", "", (table,))


def _demand_row(totals: DemandTotals) -> tuple[Cell, ...]:
    lack = _LACKS.get(totals.lacking, "another reason" if not totals.lacking else totals.lacking)
    return (
        Words(f"{lack}: {totals.model}" if totals.model else lack),
        Words(totals.reason),
        Number(totals.seconds / 3600, "hours", numbers.grouped(totals.seconds / 3600, 1)),
        Number(totals.job_seconds / 3600, "hours", numbers.grouped(totals.job_seconds / 3600, 1)),
        numbers.hours(totals.gpu_seconds),
        numbers.count(totals.most),
    )


# -- the report on capacity ----------------------------------------------------------------------------


def capacity(facts: Facts, wish: Wish) -> Report:
    """Return the report on capacity; `wish.replays` are the replays with one more GPU."""
    waited = _hours_with_a_wait(facts)
    body = frame.Body(
        kind="capacity",
        title="Capacity",
        lede=_capacity_lede(facts, waited, wish),
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


def _capacity_lede(facts: Facts, waited: float, wish: Wish) -> tuple[str, ...]:
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
