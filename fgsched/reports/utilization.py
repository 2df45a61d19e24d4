"""The report on the use of the GPUs: classes, each GPU, the hours of the week, the last 24 hours."""

from collections import defaultdict

from fgsched.domain.job import is_instance
from fgsched.domain.times import DAY, HOUR
from fgsched.reports import frame, numbers
from fgsched.reports.facts import Facts, GpuSlot
from fgsched.reports.model import (
    Cell,
    Column,
    GpuRow,
    GpuRows,
    Headline,
    Mark,
    Number,
    Paragraphs,
    Report,
    Section,
    Table,
    Words,
)
from fgsched.reports.registry import Wish
from fgsched.reports.timeclasses import gpus, hours_of_the_week, steps_of, where_the_time_went
from fgsched.reports.wording import dash, model_name, sentence, short_time

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
    text = f"{subject} charged {charged} of the time{frame.restriction(facts)} and computed {active}."
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
