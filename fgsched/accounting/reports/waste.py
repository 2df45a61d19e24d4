"""Find jobs that were charged more than they needed, and the header line that would have prevented it.

A line is proposed only if it would have been charged less than three quarters, and returns an hour or more.
"""

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from fgsched.accounting.ledger import HOUR
from fgsched.accounting.proposal import (
    ROOM_MEMORY,
    ROOM_TIME,
    WHOLE,
    WORTH,
    gibibytes_up,
    hours_up,
    share_for,
)
from fgsched.accounting.reports import numbers
from fgsched.accounting.reports.ended import Repeated
from fgsched.accounting.reports.facts import Example, Facts
from fgsched.accounting.reports.model import Given, Line, Number, Paragraphs, Section, WasteItem, Wastes
from fgsched.accounting.reports.wording import number_word, sentence
from fgsched.domain.units import format_share

_LEAST = HOUR  # GPU seconds that a proposal must return
NONE = "No header line would have returned 1 GPU-hour or more."
_CANDIDATES = 60  # groups whose jobs are looked at


class Finding(Struct, frozen=True, kw_only=True):
    """Jobs of one name, why they were charged too much, and the line that would have prevented it."""

    jobs: Repeated
    evidence: str
    line: Line
    returned: float  # GPU seconds


class Use(Struct, frozen=True, kw_only=True):
    """The medians of the example jobs of a group. Times in seconds."""

    jobs: Repeated
    total: int  # bytes of the smallest GPU that they ran on
    charge: float  # of each GPU, from 0 to 1
    unused_gpus: int  # of each job, without any process
    first: float | None  # until the first GPU process
    busy: float | None  # part of the time after that
    sm: float  # mean SM share of a GPU, from 0 to 1
    cpu: float | None  # part of the CPUs, from 0 to 1
    cpus: int

    @property
    def time(self) -> tuple[str, ...]:
        """Return a limit for the longest complete run, if it is below three quarters of the present one."""
        limit = hours_up(self.jobs.completed * ROOM_TIME)
        if not self.jobs.completed or (self.jobs.time_limit and limit * HOUR >= WORTH * self.jobs.time_limit):
            return ()
        return (f"--time={limit}h",)


# -- the groups ----------------------------------------------------------------------------------------


def findings(facts: Facts, most: int) -> list[Finding]:
    """Return the `most` findings that would have returned the most GPU-hours, the largest first.

    A finding returns at most the unused charge of its group. So groups are examined in descending order of
    their unused charge, until the next group cannot be among the largest.
    """
    totals = {card.model: card.total for card in facts.cards}
    found: list[Finding] = []
    for group in _by_unused(merged(facts.repeated)):
        unused = group.charged - (group.used or 0.0)
        if unused < _LEAST or (len(found) >= most and found[most - 1].returned >= unused):
            break
        use = use_of(group, facts.examples(group), totals)
        finding = _judged(use) if use else None
        if finding and finding.returned >= _LEAST:
            found.append(finding)
            found.sort(key=lambda one: (-one.returned, one.jobs.user, one.jobs.name))
    return found[:most]


def _by_unused(groups: Iterable[Repeated]) -> list[Repeated]:
    known = [one for one in groups if one.used is not None and one.elapsed > 0]
    known.sort(key=lambda one: (-(one.charged - (one.used or 0.0)), one.user, one.name))
    return known[:_CANDIDATES]


def merged(groups: Iterable[Repeated]) -> list[Repeated]:
    """Join groups of a user that differ in account or model only."""
    found: dict[tuple[str, str, int, int], Repeated] = {}
    for one in groups:
        key = (one.user, one.name, one.gpus, one.share)
        other = found.get(key)
        found[key] = _joined(other, one) if other else one
    return list(found.values())


def _joined(one: Repeated, other: Repeated) -> Repeated:
    return replace(
        one if one.last > other.last else other,
        model=min(one.model, other.model),
        memory=max(one.memory, other.memory),
        jobs=one.jobs + other.jobs,
        charged=one.charged + other.charged,
        used=_sum(one.used, other.used),
        idle=_sum(one.idle, other.idle),
        completed=max(one.completed, other.completed),
        peak=max(one.peak, other.peak),
        longest=max(one.longest, other.longest),
        elapsed=one.elapsed + other.elapsed,
        time_limit=max(one.time_limit, other.time_limit),
    )


def _sum(*parts: float | None) -> float | None:
    """Return the sum of what was measured; None: nothing was."""
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def use_of(group: Repeated, examples: Sequence[Example], totals: dict[str, int]) -> Use | None:
    """Summarize the examples of a group; None if none was measured. `totals` maps models to bytes."""
    known = [one for one in examples if one.used is not None and one.elapsed > 0]
    if not known or group.model not in totals:
        return None
    total = totals[group.model]
    charge = max(group.share / WHOLE, group.memory / total)
    busy = [one.busy / one.with_process for one in known if one.busy is not None and one.with_process]
    firsts = [one.first_process for one in known if one.first_process is not None]
    cpus = [one.cpu_seconds / one.elapsed / one.cpus for one in known if one.cpu_seconds and one.cpus]
    return Use(
        jobs=group,
        total=total,
        charge=min(1.0, charge),
        unused_gpus=min(group.gpus - 1, int(_unused(known, min(1.0, charge), group.gpus) + 0.15)),
        first=median(firsts) if firsts else None,
        busy=median(busy) if busy else None,
        sm=sum(one.used or 0.0 for one in known) / max(1.0, _sampled(known)) / group.gpus,
        cpu=median(cpus) if cpus else None,
        cpus=max((one.cpus or 1 for one in known), default=1),
    )


def _sampled(known: Sequence[Example]) -> float:
    return sum(one.sampled or 0.0 for one in known)


def _unused(known: Sequence[Example], charge: float, gpus: int) -> float:
    """Return the mean number of GPUs without a process while another one of the job had one."""
    there = sum(one.with_process or 0.0 for one in known)
    before = charge * gpus * (_sampled(known) - there)  # GPU seconds in which no GPU of the job had a process
    empty = sum(one.empty or 0.0 for one in known) - before
    return empty / charge / there if there else 0.0


# -- the judgement -------------------------------------------------------------------------------------


def _judged(use: Use) -> Finding | None:
    """Return the first proposal that is worth it."""
    for judge in (_unused_gpus, _late_start, _too_large):
        found = judge(use)
        if found:
            return found
    return None


def _unused_gpus(use: Use) -> Finding | None:
    gpus, unused = use.jobs.gpus, use.unused_gpus
    if unused < 1:
        return None
    return Finding(
        jobs=use.jobs,
        evidence=f"Asks for {gpus} GPUs and starts no process on {number_word(unused)} of them.",
        line=Line(("#FG", f"--gpus={gpus - unused}", *use.time)),
        returned=use.jobs.charged * unused / gpus,
    )


def _late_start(use: Use) -> Finding | None:
    mean = use.jobs.elapsed / use.jobs.jobs
    if use.first is None or use.first < HOUR or use.first < 0.25 * mean:
        return None
    run = hours_up((use.jobs.longest - use.first) * ROOM_TIME)
    waited = numbers.duration_text(use.first)
    several = ", a median of the latest jobs" if use.jobs.jobs > 1 else ""
    return Finding(
        jobs=use.jobs,
        evidence=f"Holds its share for {waited} before its first GPU process{several}: the preparation needs"
        " no GPU.",
        line=Line(("#FG", _gpus(use), *_memory(use), f"--time={run}h", "--dependency=afterok:PREP_JOB")),
        returned=min(use.first / mean * use.jobs.charged, use.jobs.charged - (use.jobs.used or 0.0)),
    )


def _gpus(use: Use) -> str:
    return f"--gpus={format_share(use.jobs.share * use.jobs.gpus)}"


def _memory(use: Use) -> tuple[str, ...]:
    """Return the memory option of the request, if the memory exceeds the share of the card."""
    given = use.jobs.share / WHOLE * use.total
    return (f"--gpu-mem={gibibytes_up(use.jobs.memory)}G",) if use.jobs.memory > given * 1.01 else ()


def _too_large(use: Use) -> Finding | None:
    if not use.jobs.peak:  # not measured
        return None
    needed = gibibytes_up(use.jobs.peak * ROOM_MEMORY) * numbers.GIB
    share = share_for(use.sm)
    charge = max(share / WHOLE, needed / use.total)
    if charge >= WORTH * use.charge or use.jobs.gpus > 1:
        return None
    is_bound = use.cpu is not None and use.cpu >= 0.9 and use.sm < 0.5 * use.charge
    cpus = (f"--cpus-per-task={3 * use.cpus}",) if is_bound else ()
    size = f"--gpu-mem={needed // numbers.GIB}G"
    return Finding(
        jobs=use.jobs,
        evidence=_evidence(use, is_bound=is_bound),
        line=Line(("#FG", f"--gpus={format_share(share)}", size, *cpus, *use.time)),
        returned=use.jobs.charged * (1 - charge / use.charge),
    )


def _evidence(use: Use, *, is_bound: bool) -> str:
    peak, asked = numbers.plain_gibibytes(use.jobs.peak), numbers.plain_gibibytes(use.jobs.memory)
    memory, mean = f"peak memory {peak} GiB of {asked}", f"mean SM share {numbers.rate(use.sm, 1.0).text}"
    if is_bound:
        return f"Is limited by its CPUs: {mean}, {memory}."
    if use.jobs.share == WHOLE:
        return f"Takes a whole card; {memory}, {mean}."
    if use.busy is not None and use.busy < 0.7:
        return f"Computes {numbers.rate(use.busy, 1.0).text} of the time with a process; {memory}."
    return f"{memory[0].upper()}{memory[1:]}, {mean}."


# -- the section ---------------------------------------------------------------------------------------


def asked(jobs: Repeated) -> str:
    """Return the request of the jobs of a group: 'asked 0.5 GPU'."""
    share = jobs.share * jobs.gpus
    return f"asked {format_share(share)} {'GPUs' if share > WHOLE else 'GPU'}"


def item(rank: int, found: Finding, warned: str = "") -> WasteItem:
    """Return the entry of a finding."""
    return WasteItem(
        rank=rank,
        user=Given(found.jobs.user),
        job=Given(found.jobs.name),
        jobs=Number(found.jobs.jobs, "jobs", numbers.counted(found.jobs.jobs, "job")),
        asked=asked(found.jobs),
        evidence=found.evidence,
        line=found.line,
        returned=_hours(found.returned),
        charged=_hours(found.jobs.charged),
        warned=warned,
    )


def _hours(seconds: float) -> Number:
    found = numbers.hours(seconds)
    return Number(found.value, found.unit, f"{found.text} h")


def wastes(facts: Facts, found: Sequence[Finding]) -> Section:
    """Return the section of an overview: the five largest."""
    title = "Largest wastes"
    if not found:
        return Section("wastes", title, "", (Paragraphs((sentence(NONE),)),))
    returned = sum(one.returned for one in found)
    part = numbers.rate(returned, sum(one.charged for one in facts.jobs)).text
    say = (
        "Each waste has a header line for the job script, and the GPU-hours that the line would have"
        f" returned. Together {numbers.brief_hours(returned)} GPU-hours, {part} of those charged to the jobs"
        " that ended."
    )
    items = tuple(item(rank, one) for rank, one in enumerate(found, 1))
    return Section("wastes", title, say, (Wastes(items),))
