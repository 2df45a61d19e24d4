"""The sections on the health of GPUs and on processes outside of jobs."""

from collections.abc import Sequence

from fgsched.accounting.ledger import HOUR
from fgsched.accounting.records import HealthEvent
from fgsched.reports import numbers
from fgsched.reports.facts import Facts, ForeignRun
from fgsched.reports.model import (
    Cell,
    Column,
    Given,
    Number,
    Paragraphs,
    Part,
    Phrase,
    Section,
    Table,
    Words,
)
from fgsched.reports.timeclasses import DownTime, down_times, explained
from fgsched.reports.wording import XIDS, event, long_time, sentence

_NO_EVENT = "No Xid event, no uncorrectable ECC error, no drained card."
_NO_FOREIGN = "No process outside fgsched used a GPU."
_THROTTLES = {
    "power": "power cap reached",
    "hardware": "clocks lowered by the hardware",
    "thermal": "clocks lowered by heat",
    "heat": "clocks lowered by heat",
}


def health_and_foreign(facts: Facts) -> Section:
    """Return the section of an overview."""
    parts: tuple[Part, ...] = (events(facts), processes(facts, most=10))
    return Section("health", "Health and external use", "", parts)


def events(facts: Facts, title: str = "Events") -> Part:
    """Return the table of the events of the GPUs, or a sentence if there was none."""
    gpus = {card.uuid: card.gpu for card in facts.cards}
    rows: list[tuple[float, int, tuple[Cell, ...]]] = []
    downs = [(card, down) for card in facts.cards for down in down_times(facts, card)]
    for card, down in downs:
        text = _down_text(down, facts.period.until)
        rows.append((down.since, card.gpu, (gpu_cell(card.gpu), event(down.since), text)))
    causes = {(card.uuid, down.since, down.reason.lower().split(" ")[-1]) for card, down in downs}
    for health in facts.health:
        if health.kind != "state" and (health.card, health.at, health.detail) not in causes:
            gpu = gpus.get(health.card)
            text = Phrase((Given(_described(health)),))
            rows.append((health.at, -1 if gpu is None else gpu, (gpu_cell(gpu), event(health.at), text)))
    if not rows:
        return Paragraphs((sentence(_NO_EVENT),), key="events")
    columns = (Column("card", "Card"), Column("time", "Time"), Column("event", "Event"))
    ordered = sorted(rows, key=lambda row: (row[0], row[1], str(row[2])))
    return Table("events", columns, tuple(cells for _, _, cells in ordered), title=title)


def _down_text(down: DownTime, end: float) -> Phrase:
    """Return the reason of a time in which a GPU was down, and when it was back; `end`: of the period."""
    why, until = explained(down.reason), long_time(down.until)
    back = "not back" if down.until >= end else f"back {until}" if down.is_back else f"seen until {until}"
    return Phrase((Words("down: " if why else "down"), Given(why), Words(f"; {back}")))


def gpu_cell(gpu: int | None) -> Cell:
    """Return the cell of a GPU index."""
    return Number(None, "", "–") if gpu is None else Number(gpu, "", f"GPU {gpu}")


def _described(health: HealthEvent) -> str:
    if health.kind == "xid":
        number = health.detail.split(" ")[0].removesuffix(":")
        meaning = XIDS.get(number)
        return f"Xid {health.detail}" + (f" ({meaning})" if meaning and " " not in health.detail else "")
    if health.kind == "ecc":
        return f"uncorrectable ECC errors: {health.detail} since the driver was loaded"
    if health.kind == "remap":
        return f"memory rows remapped: {health.detail}"
    if health.kind == "throttle":
        return _THROTTLES.get(health.detail, f"clocks limited: {health.detail}")
    return f"{health.kind}: {health.detail}"


def processes(facts: Facts, most: int = 0, title: str = "Processes outside fgsched") -> Part:
    """Return the table of processes outside of jobs, the longest first, or a sentence."""
    runs = facts.foreign[:most] if most else facts.foreign
    rest = len(facts.foreign) - len(runs)
    if not runs:
        return Paragraphs((sentence(_NO_FOREIGN),), key="processes")
    columns = (
        Column("user", "User"),
        Column("pid", "PID", right=True, minor=True),
        Column("command", "Command"),
        Column("card", "Card"),
        Column("memory", "Memory", right=True, unit="bytes"),
        Column("since", "From", in_text=not most),
        Column("until", "To", in_text=False),
        Column("time", "Time", right=True, unit="hours"),
    )
    rows = tuple(_process(facts, run) for run in runs)
    caption = (
        f"The longest {len(runs)} of {len(facts.foreign):,}; fgreport strangers lists all." if rest else ""
    )
    return Table("processes", columns, rows, title=title, caption=caption)


def _process(facts: Facts, run: ForeignRun) -> tuple[Cell, ...]:
    gpus = {card.uuid: card.gpu for card in facts.cards}
    time = numbers.hours(run.seconds)
    return (
        Given(run.user),
        Number(run.pid, "", str(run.pid)) if run.pid else Words("several"),
        Given(run.command),
        gpu_cell(gpus.get(run.card)),
        numbers.gibibytes(run.peak),
        event(run.since),
        event(run.until),
        Number(time.value, "hours", f"{time.text} h"),
    )


def byte_hours(runs: Sequence[ForeignRun]) -> float:
    """Return the memory of processes outside of jobs in GiB-hours."""
    return sum(run.memory for run in runs) / numbers.GIB / HOUR


def is_quiet(facts: Facts) -> bool:
    """Tell whether no GPU had an event, and the driver stayed the same."""
    return (
        not facts.health
        and not facts.has_new_driver
        and not any(down_times(facts, card) for card in facts.cards)
    )
