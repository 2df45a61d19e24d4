"""The sections on the health of GPUs and on processes outside of jobs."""

from collections.abc import Sequence

from fgsched.accounting.ledger import HOUR
from fgsched.accounting.records import HealthEvent
from fgsched.accounting.reports import numbers
from fgsched.accounting.reports.facts import Facts, ForeignRun
from fgsched.accounting.reports.model import (
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
from fgsched.accounting.reports.timeclasses import down_times, explained
from fgsched.accounting.reports.wording import XIDS, event, long_time, sentence

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
    downs = [(card, *one) for card in facts.cards for one in down_times(facts, card)]
    for card, since, until, reason, is_back in downs:
        back = f"; back {long_time(until)}" if is_back else f"; seen until {long_time(until)}"
        back = "; not back" if until >= facts.period.until else back
        why = explained(reason)
        text = Phrase((Words("down: " if why else "down"), Given(why), Words(back)))
        rows.append((since, card.gpu, (gpu_cell(card.gpu), event(since), text)))
    told = {(card.uuid, since, reason.lower().split(" ")[-1]) for card, since, _, reason, _ in downs}
    for one in facts.health:
        if one.kind != "state" and (one.card, one.at, one.detail) not in told:
            gpu = gpus.get(one.card)
            text = Phrase((Given(_described(one)),))
            rows.append((one.at, -1 if gpu is None else gpu, (gpu_cell(gpu), event(one.at), text)))
    if not rows:
        return Paragraphs((sentence(_NO_EVENT),), key="events")
    columns = (Column("card", "Card"), Column("time", "Time"), Column("event", "Event"))
    ordered = sorted(rows, key=lambda row: (row[0], row[1], str(row[2])))
    return Table("events", columns, tuple(cells for _, _, cells in ordered), title=title)


def gpu_cell(gpu: int | None) -> Cell:
    """Return the cell of a GPU index."""
    return Number(None, "", "–") if gpu is None else Number(gpu, "", f"GPU {gpu}")


def _described(one: HealthEvent) -> str:
    if one.kind == "xid":
        number = one.detail.split(" ")[0].removesuffix(":")
        known = XIDS.get(number)
        return f"Xid {one.detail}" + (f" ({known})" if known and " " not in one.detail else "")
    if one.kind == "ecc":
        return f"uncorrectable ECC errors: {one.detail} since the driver was loaded"
    if one.kind == "remap":
        return f"memory rows remapped: {one.detail}"
    if one.kind == "throttle":
        return _THROTTLES.get(one.detail, f"clocks limited: {one.detail}")
    return f"{one.kind}: {one.detail}"


def processes(facts: Facts, most: int = 0, title: str = "Processes outside fgsched") -> Part:
    """Return the table of processes outside of jobs, the longest first, or a sentence."""
    found = facts.foreign[:most] if most else facts.foreign
    rest = len(facts.foreign) - len(found)
    if not found:
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
    rows = tuple(_process(facts, one) for one in found)
    some = (
        f"The longest {len(found)} of {len(facts.foreign):,}; fgreport strangers lists all." if rest else ""
    )
    return Table("processes", columns, rows, title=title, caption=some)


def _process(facts: Facts, one: ForeignRun) -> tuple[Cell, ...]:
    gpus = {card.uuid: card.gpu for card in facts.cards}
    time = numbers.hours(one.seconds)
    return (
        Given(one.user),
        Number(one.pid, "", str(one.pid)) if one.pid else Words("several"),
        Given(one.command),
        gpu_cell(gpus.get(one.card)),
        numbers.gibibytes(one.peak),
        event(one.since),
        event(one.until),
        Number(time.value, "hours", f"{time.text} h"),
    )


def byte_hours(found: Sequence[ForeignRun]) -> float:
    """Return the memory of processes outside of jobs in GiB-hours."""
    return sum(one.memory for one in found) / numbers.GIB / HOUR


def is_quiet(facts: Facts) -> bool:
    """Tell whether no GPU had an event, and the driver stayed the same."""
    return (
        not facts.health
        and not facts.has_new_driver
        and not any(down_times(facts, card) for card in facts.cards)
    )
