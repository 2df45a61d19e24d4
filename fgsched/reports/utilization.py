"""The report on the use of the GPUs: classes, each GPU, the hours of the week, the last 24 hours."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fgsched.accounting.periods import Period
from fgsched.accounting.records import GpuRecord, HealthEvent
from fgsched.domain.job import is_instance
from fgsched.domain.times import DAY, HOUR
from fgsched.domain.units import GIB
from fgsched.reports import frame, numbers
from fgsched.reports.facts import ChargedSpan, Facts, GpuSlot
from fgsched.reports.model import (
    ABSENT,
    CLASSES,
    Cell,
    ClassBar,
    ClassShare,
    Column,
    Given,
    GpuRow,
    GpuRows,
    Headline,
    HeatMap,
    HeatRow,
    Mark,
    Number,
    Paragraphs,
    Phrase,
    Report,
    Section,
    Step,
    Table,
    Words,
)
from fgsched.reports.registry import Wish
from fgsched.reports.wording import (
    DASH,
    WEEKDAYS,
    XIDS,
    dash,
    listed,
    model_name,
    named,
    sentence,
    short_time,
    step_text,
    stretch,
)

_FINE = 300  # seconds: the step of the last 24 hours


def utilization(facts: Facts, wish: Wish) -> Report:
    """Return the report on the use of the GPUs."""
    body = frame.Body(
        kind="utilization",
        title="Use of the GPUs",
        lede=_lede(facts),
        figures=(
            frame.headline_charged(facts),
            frame.headline_efficiency(facts),
            _packing(facts),
            frame.headline_down(facts),
        ),
        sections=(
            where_the_time_went(facts),
            gpus(facts),
            Section("cards", "Hours of each card", "", (_table(facts),)),
            hours_of_the_week(facts),
            _last_day(facts),
        ),
        terms=("charged", "used", "efficiency", "classes", "measured", "packing"),
        main="cards",
        quiet=not facts.sampled,
    )
    return frame.framed(facts, body, wish.now)


def _lede(facts: Facts) -> tuple[str, ...]:
    if not facts.sampled:
        return (f"There are no samples of this {facts.period.noun}.",)
    charged = frame.headline_charged(facts).number.text
    active = numbers.shares(facts.classes)[0].text
    subject = "The card was" if len(facts.gpus) == 1 else "The cards were"
    text = f"{subject} charged {charged} of the time{frame.measured_word(facts)} and computed {active}."
    return (text, *frame.no_earlier(facts))


def _packing(facts: Facts) -> Headline:
    packed = sum(total.packed for total in facts.totals)
    now = numbers.share(facts.charged, packed)
    before = numbers.share(facts.before.charged, sum(total.packed for total in facts.before.totals))
    note = frame.fraction(facts.charged, packed)
    return Headline("packing", "Packing factor", now, note, numbers.points(now, before, 1))


def _table(facts: Facts) -> Table:
    columns = (
        Column("gpu", "Card"),
        Column("model", "Model", minor=True),
        Column("active", "Active", right=True, unit="GPU-hours"),
        Column("held", "Held-idle", short="Held", right=True, unit="GPU-hours"),
        Column("empty", "Reserved-empty", short="Empty", right=True, unit="GPU-hours"),
        Column("free", "Free", right=True, unit="GPU-hours"),
        Column("external", "External", short="Ext.", right=True, unit="GPU-hours"),
        Column("down", "Down", right=True, unit="GPU-hours"),
        Column("used", "Used", right=True, unit="GPU-hours", minor=True),
        Column("packing", "Packing", right=True, unit="%", minor=True),
    )
    totals = {sums.uuid: sums for sums in facts.totals}
    used: dict[str, float] = defaultdict(float)
    for use in facts.uses:
        used[use.uuid] += use.used
    rows: list[tuple[Cell, ...]] = []
    for gpu in facts.gpus:
        sums_of_gpu = totals.get(gpu.uuid)
        if sums_of_gpu is not None:
            compute: Cell = dash() if is_instance(gpu.uuid) else numbers.hours(used[gpu.uuid])
            rows.append(
                (
                    Number(gpu.gpu, "", f"GPU {gpu.gpu}"),
                    Words(model_name(gpu.model)),
                    *(numbers.hours(value) for value in sums_of_gpu.classes),
                    compute,
                    numbers.rate(sums_of_gpu.charged, sums_of_gpu.packed),
                )
            )
    packed = sum(sums.packed for sums in facts.totals)
    sums = [numbers.hours(value) for value in (*facts.classes, facts.used)]
    total: tuple[Cell, ...] = (
        Words("total"),
        Words(""),
        *sums,
        numbers.rate(facts.charged, packed),
    )
    return Table("cards", columns, tuple(rows), total=total if rows else (), empty="No GPU was sampled.")


def _last_day(facts: Facts) -> Section:
    """Return the last 24 hours of the period in steps of five minutes, as far as minutes are kept."""
    since, until = max(facts.period.since, facts.period.until - DAY), facts.period.until
    slots: dict[str, list[GpuSlot]] = defaultdict(list)
    for slot in facts.fine_slots(since, until, _FINE):
        slots[slot.uuid].append(slot)
    title = "Last 24 hours"
    if not slots:
        text = "The samples of minutes of this period are no longer kept."
        return Section("day", title, "", (Paragraphs((sentence(text),)),))
    rows = []
    for gpu in facts.gpus:
        mine = slots[gpu.uuid]
        sampled, active = (
            sum(gpu_slot.sampled for gpu_slot in mine),
            sum(gpu_slot.active for gpu_slot in mine),
        )
        charged = active + sum(gpu_slot.held + gpu_slot.empty for gpu_slot in mine)
        rows.append(
            GpuRow(
                gpu=gpu.gpu,
                uuid=gpu.uuid,
                model=model_name(gpu.model),
                notes=(),
                charged=numbers.rate(charged, sampled),
                active=numbers.rate(active, sampled),
                peak=numbers.unknown("bytes"),
                steps=steps_of(mine, int(until - since), _FINE),
            )
        )
    marks = tuple(
        Mark(at * 6 * HOUR / (until - since), short_time(since + at * 6 * HOUR)[4:])
        for at in range(int((until - since) // (6 * HOUR)))
    )
    note = "Height: 0–100 % of the card, five minutes a step."
    part = GpuRows(tuple(rows), since, _FINE, marks, note, key="day")
    return Section("day", title, f"Up to {short_time(until)}.", (part,))


# -- the sections --------------------------------------------------------------------------------------


_MEANINGS = (
    "a job's process computes",
    "a job holds memory, computes 1 % or less",
    "share charged, no process of the job",
    "not charged to any job",
    "processes outside fgsched",
    "drained, suspect or failed",
)
_GOOD = (1, -1, -1, 0, -1, -1)  # whether more of the class is better
_BOUNDS = (10, 30, 50, 70, 90)  # per cent
_NOT_IN_PERIOD = Number(None, "%", "")
_MOST_DOWN = 3  # times in which a GPU was down that are named beside it; more are counted
_MOST_FOREIGN = 3  # times of processes outside of jobs that are named beside a GPU
_SAME_CAUSE = 120  # seconds between an Xid and the change of state that it caused
_UP = ("up", "ok", "idle", "healthy", "available")  # states of a GPU that takes jobs
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


# -- the six classes -----------------------------------------------------------------------------------


def where_the_time_went(facts: Facts) -> Section:
    """Return the section of the six time classes."""
    now = numbers.shares(facts.classes)
    before = numbers.shares(facts.before.classes) if facts.before.totals else [None] * 6
    classes = tuple(
        ClassShare(
            name=name,
            meaning=_MEANINGS[at],
            hours=numbers.hours(facts.classes[at]),
            share=now[at],
            change=numbers.points(now[at], earlier, _GOOD[at]) if earlier else None,
        )
        for at, (name, earlier) in enumerate(zip(CLASSES, before, strict=True))
    )
    whole = Number(100.0, "%", "100.0 %") if facts.sampled else numbers.unknown("%")
    bar = ClassBar(classes, numbers.hours(facts.sampled), whole, numbers.hours(facts.lost))
    return Section("time", "Where the time went", _hours_measured(facts), (bar,))


def _hours_measured(facts: Facts) -> str:
    gpus, hours = len(facts.gpus), facts.period.hours
    whole = f"{numbers.counted(gpus, 'card')} × {hours:,} h = {gpus * hours:,} GPU-hours"
    if facts.is_measured_whole:
        return f"{whole}, all measured."
    decimals = 0 if round(facts.lost / HOUR, 1) == round(facts.lost / HOUR) else 1
    lost = round(facts.lost / HOUR, decimals)
    measured = numbers.grouped(gpus * hours - lost, decimals)
    return f"{whole}, less {numbers.grouped(lost, decimals)} h without samples = {measured} measured."


# -- each GPU ------------------------------------------------------------------------------------------


def gpus(facts: Facts) -> Section:
    """Return the section with a row for each GPU over the period."""
    if not facts.gpus:
        return Section("gpus", "GPUs", "", (Paragraphs((sentence("No GPU was seen."),)),))
    length = int(facts.period.until - facts.period.since)
    slots: dict[str, list[GpuSlot]] = defaultdict(list)
    for slot in facts.slots:
        slots[slot.uuid].append(slot)
    rows = tuple(_gpu_row(facts, gpu, steps_of(slots[gpu.uuid], length, facts.step)) for gpu in facts.gpus)
    part = GpuRows(
        rows=rows,
        since=facts.period.since,
        step=facts.step,
        days=days_of(facts.period),
        note=_axis(facts),
    )
    return Section("gpus", "GPUs", _most_and_least(rows), (part,))


def _gpu_row(facts: Facts, gpu: GpuRecord, steps: tuple[Step | None, ...]) -> GpuRow:
    totals = next((totals for totals in facts.totals if totals.uuid == gpu.uuid), None)
    sampled = totals.sampled if totals else 0.0
    peak = totals.peak if totals else 0
    text = f"{numbers.grouped(peak / GIB)} / {numbers.grouped(gpu.total / GIB)} GiB"
    memory = Number(peak, "bytes", text) if sampled else numbers.unknown("bytes")
    return GpuRow(
        gpu=gpu.gpu,
        uuid=gpu.uuid,
        model=model_name(gpu.model),
        notes=(*_down_notes(facts, gpu), *_foreign_notes(facts, gpu)),
        charged=numbers.rate(totals.charged if totals else 0.0, sampled),
        active=numbers.rate(totals.active if totals else 0.0, sampled),
        peak=memory,
        steps=steps,
    )


def steps_of(slots: Sequence[GpuSlot], length: int, step: int) -> tuple[Step | None, ...]:
    """Return the steps of a GPU in `length` seconds; None where less than half of a step has samples."""
    steps: list[Step | None] = [None] * -(-length // step)
    for slot in slots:
        if 0 <= slot.slot < len(steps) and 2 * slot.sampled >= min(step, length - step * slot.slot):
            parts = (slot.active, slot.held, slot.empty, slot.external, slot.down)
            steps[slot.slot] = Step(*(round(max(0.0, part / slot.sampled), 4) for part in parts))
    return tuple(steps)


class DownTime(NamedTuple):
    """A time in which a GPU was down, in epoch seconds."""

    since: float
    until: float  # when it was back, or was last seen
    reason: str
    is_back: bool  # it was seen to be back at `until`


def down_times(facts: Facts, gpu: GpuRecord) -> list[DownTime]:
    """Return the times in which a GPU was down."""
    begin, reason = _down_at_begin(facts.states_before, gpu)
    events = [event for event in facts.health if event.uuid == gpu.uuid]
    times = []
    for event in events:
        if event.kind != "state":
            continue
        if not is_up(event):
            if begin is None:
                begin, reason = event.at, _reason(event, events)
        elif begin is not None:
            times.append(_down_time(facts, begin, event.at, reason))
            begin = None
    if begin is not None:
        times.append(_down_time(facts, begin, facts.period.until, reason))
    return times


def _down_time(facts: Facts, begin: float, end: float, reason: str) -> DownTime:
    """Return a time up to a change of state at `end`, or up to the end of the period."""
    seen = _seen_until(facts, end)
    is_back = seen == end < facts.period.until
    return DownTime(max(begin, facts.period.since), seen, reason, is_back)


def _seen_until(facts: Facts, at: float) -> float:
    """Return when a state that ended at `at` was last seen: before a time without samples that ends there."""
    return next((max(gap.since, facts.period.since) for gap in facts.gaps if gap.since < at <= gap.until), at)


def _reason(state: HealthEvent, events: Sequence[HealthEvent]) -> str:
    """Return the Xid of the driver that came with a change of state, else the state."""
    for event in events:
        if event.kind == "xid" and abs(event.at - state.at) <= _SAME_CAUSE:
            return f"Xid {event.detail}"
    return state.detail


def is_up(event: HealthEvent) -> bool:
    """Tell whether a change of state ends the time in which a GPU was down."""
    return event.detail.lower().split(":")[0].split(" ")[0] in _UP


def _down_at_begin(events: Sequence[HealthEvent], gpu: GpuRecord) -> tuple[float | None, str]:
    last = next((event for event in reversed(events) if event.uuid == gpu.uuid), None)
    return (None, "") if last is None or is_up(last) else (last.at, last.detail)


def _down_notes(facts: Facts, gpu: GpuRecord) -> list[Phrase]:
    notes, downs = [], down_times(facts, gpu)
    if len(downs) > _MOST_DOWN:
        hours = numbers.brief_hours(sum(down.until - down.since for down in downs))
        return [sentence(f"down {len(downs):,} times, {hours} h in all")]
    for down in downs:
        whole = down.since <= facts.period.since and down.until >= facts.period.until
        when = f"all {facts.period.noun}" if whole else stretch(down.since, down.until, facts.period)
        why = explained(down.reason)
        notes.append(Phrase((Words(f"down {when}" + (": " if why else "")), Given(why))))
    return notes


def explained(detail: str) -> str:
    """Return the reason of a state ('Xid 94, contained ECC error'), "" if it is not known."""
    reason = detail.partition(": ")[2] or detail
    if reason == "down":
        return ""
    number = reason.lower().removeprefix("xid").strip()
    return f"Xid {number}, {XIDS[number]}" if number in XIDS else reason


def _foreign_notes(facts: Facts, gpu: GpuRecord) -> list[Phrase]:
    """Return the longest times of processes outside of jobs, in their order, and how many more there are."""
    runs = [run for run in facts.foreign if run.uuid == gpu.uuid and run.seconds >= HOUR / 2]
    notes = []
    for run in sorted(runs[:_MOST_FOREIGN], key=lambda run: (run.since, run.user)):
        when = stretch(run.since, run.until, facts.period)
        size = numbers.gibibytes(run.peak, 0).text
        notes.append(Phrase((Words(f"external {when}: "), Given(run.user), Words(f", {size}"))))
    more = runs[_MOST_FOREIGN:]
    if more:
        hours = numbers.brief_hours(sum(run.seconds for run in more))
        times = "once more" if len(more) == 1 else f"{len(more):,} more times"
        notes.append(sentence(f"external {times}, {hours} h in all"))
    return notes


def days_of(period: Period) -> tuple[Mark, ...]:
    """Return the marks of an axis: days up to 9 days, Mondays up to 70 days, else months."""
    marks, length = [], period.until - period.since
    local = time.localtime(period.since)
    days = round(length / DAY)
    for number in range(days + 2):
        at = time.mktime((local.tm_year, local.tm_mon, local.tm_mday + number, 0, 0, 0, 0, 0, -1))
        day = time.localtime(at)
        if not period.since <= at < period.until:
            continue
        if days <= 9:
            marks.append(Mark((at - period.since) / length, WEEKDAYS[day.tm_wday][:3]))
        elif (day.tm_wday == 0) if days <= 70 else (day.tm_mday == 1):
            month = _MONTHS[day.tm_mon - 1]
            marks.append(
                Mark((at - period.since) / length, f"{day.tm_mday} {month}" if days <= 70 else month)
            )
    return tuple(marks)


def _axis(facts: Facts) -> str:
    line = "midnight" if facts.period.hours <= 9 * 24 else "mark"
    return f"Height: 0{DASH}100 % of the card, {step_text(facts.step)} a step, a line at each {line}."


def _most_and_least(rows: Sequence[GpuRow]) -> str:
    measured = [row for row in rows if row.charged.value is not None]
    if len(measured) < 2 or not any(row.charged.value for row in measured):
        return ""
    most = max(measured, key=lambda row: row.charged.value or 0.0).charged.text
    least = min(measured, key=lambda row: row.charged.value or 0.0).charged.text
    if most == least:
        which = "" if len(measured) == len(rows) else " with samples"
        return f"All GPUs{which} were charged {most} of their hours."
    first, last = ([row.gpu for row in measured if row.charged.text == text] for text in (most, least))
    verb, whose = ("was", "its") if len(first) == 1 else ("were", "their")
    return f"{named(first)} {verb} charged most, {most} of {whose} hours; {named(last)} least, {least}."


# -- the hours of the week -----------------------------------------------------------------------------


def hours_of_the_week(facts: Facts) -> Section:
    """Return the section of the heat map by weekday and hour."""
    if facts.span != HOUR:
        text = "The samples of hours of this period are no longer kept."
        return Section("hours", "Hours of the week", "", (Paragraphs((sentence(text),)),))
    cells: dict[tuple[int, int], list[float]] = {key: [0.0, 0.0] for key in _hours_in(facts.period)}
    for span in facts.charged_spans:
        local = time.localtime(span.at)
        _add(cells.setdefault((local.tm_wday, local.tm_hour), [0.0, 0.0]), span)
    days = sorted({day for day, _ in cells})
    each_hour = [[cell for day in days if (cell := cells.get((day, hour)))] for hour in range(24)]
    heat = HeatMap(
        caption="Share of the cards charged to jobs, by hour of the week, in per cent; each cell is the mean"
        f" of {numbers.counted(len(facts.gpus), 'card')}.",
        rows=tuple(
            _heat_row(WEEKDAYS[day][:3], [cells.get((day, hour)) for hour in range(24)]) for day in days
        ),
        means=_heat_row("mean", [_sum(hours) if hours else None for hours in each_hour]),
        bounds=("below 10", f"10{DASH}30", f"30{DASH}50", f"50{DASH}70", f"70{DASH}90", "90 % and more"),
    )
    return Section("hours", "Hours of the week", _extremes(facts, heat), (heat,))


def _hours_in(period: Period) -> set[tuple[int, int]]:
    """Return the hours of the week, (weekday, hour), that a period has."""
    starts = range(int(period.since), int(min(period.until, period.since + 8 * DAY)), HOUR)
    return {(local.tm_wday, local.tm_hour) for local in map(time.localtime, starts)}


def _add(cell: list[float], span: ChargedSpan) -> None:
    cell[0] += span.charged
    cell[1] += span.sampled


def _sum(cells: Sequence[Sequence[float]]) -> list[float]:
    return [sum(cell[0] for cell in cells), sum(cell[1] for cell in cells)]


def _heat_row(label: str, cells: Sequence[Sequence[float] | None]) -> HeatRow:
    """Return a row of the heat map; None: the hour is not in the period."""
    shown = [_NOT_IN_PERIOD if cell is None else _percent(*cell) for cell in cells]
    levels = tuple(map(_level, shown))
    return HeatRow(label, tuple(shown), levels, numbers.rate(*_sum([cell for cell in cells if cell])))


def _level(cell: Number) -> int | None:
    if cell is _NOT_IN_PERIOD:
        return ABSENT
    return None if cell.value is None else sum(int(cell.text) >= bound for bound in _BOUNDS)


def _percent(charged: float, sampled: float) -> Number:
    """Return per cent without the unit, which the caption names."""
    rate = numbers.rate(charged, sampled)
    return Number(rate.value, "%", rate.text.removesuffix(" %"))


def _extremes(facts: Facts, heat: HeatMap) -> str:
    """Name the hours with the largest and the smallest charge."""
    spans = [span for span in facts.charged_spans if span.sampled > 0]
    if not spans:
        return "No hour was measured."
    of = f"{len(spans):,}{' measured' if len(spans) < facts.period.hours else ''} hours"
    empty = sum(span.charged < 1 for span in spans)
    if empty == len(spans):
        return "No hour had a job on a card."
    if empty > 12:
        return f"{empty:,} of {of} had no job on a card. {_extreme(heat, 'Fullest', max)}"
    full = sum(span.charged >= 0.995 * span.sampled for span in spans)
    return f"All cards were full in {full:,} of {of}. {_extreme(heat, 'Emptiest', min)}{_emptiest_day(heat)}"


def _extreme(heat: HeatMap, word: str, choose: Callable[[Iterable[float]], float]) -> str:
    """Name the hour with the largest or the smallest charge, and how many others have the same."""
    cells = [
        (cell, f"{row.label} {hour:02d}:00")
        for row in heat.rows
        for hour, cell in enumerate(row.cells)
        if cell.value is not None
    ]
    value = choose(cell.value or 0.0 for cell, _ in cells)
    text = next(cell.text for cell, _ in cells if cell.value == value)
    same = [name for cell, name in cells if cell.text == text]
    others = "" if len(same) == 1 else f" and {numbers.counted(len(same) - 1, 'other')}"
    return f"{word} hour: {same[0]}{others}, {text} %."


def _emptiest_day(heat: HeatMap) -> str:
    """Name the weekdays with the smallest charge, if there are several."""
    rows = [row for row in heat.rows if row.mean.value is not None]
    if len(rows) < 2:
        return ""
    least = min(rows, key=lambda row: row.mean.value or 0.0).mean.text
    labels = [row.label for row in rows if row.mean.text == least]
    days = [day for day in WEEKDAYS if day.startswith(tuple(labels))]
    return f" Emptiest day{'s' if len(days) > 1 else ''}: {listed(days)}, {least}."
