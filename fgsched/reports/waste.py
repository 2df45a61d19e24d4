"""Find jobs that were charged more than they needed, and the header line that would have prevented it.

A line is proposed only if it would have been charged less than three quarters, and returns an hour or more.
"""

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from fgsched.accounting.ledger import HOUR
from fgsched.domain.units import format_share
from fgsched.reports import numbers
from fgsched.reports.ended import Repeated
from fgsched.reports.facts import Example, Facts
from fgsched.reports.model import Given, Line, Number, Paragraphs, Section, WasteItem, Wastes
from fgsched.reports.proposal import (
    ROOM_MEMORY,
    ROOM_TIME,
    WHOLE,
    WORTH,
    gibibytes_up,
    hours_up,
    share_for,
)
from fgsched.reports.wording import number_word, sentence

_LEAST = HOUR  # GPU seconds that a proposal must return
NONE = "No header line would have returned 1 GPU-hour or more."
_CANDIDATES = 60  # groups whose jobs are looked at


class WasteFinding(Struct, frozen=True, kw_only=True):
    """Jobs of one name, why they were charged too much, and the line that would have prevented it."""

    jobs: Repeated
    evidence: str
    line: Line
    returned: float  # GPU seconds


class MedianUse(Struct, frozen=True, kw_only=True):
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
        """Return the option of a shorter time limit, if there is one."""
        hours = shorter_limit(self.jobs)
        return (f"--time={hours}h",) if hours else ()


# -- the groups ----------------------------------------------------------------------------------------


def shorter_limit(jobs: Repeated) -> int | None:
    """Return a limit in hours for the longest complete run, if it is below three quarters of the present.

    An earlier end of a job that failed says nothing about the time that it needs.
    """
    hours = hours_up(jobs.completed * ROOM_TIME)
    is_shorter = not jobs.time_limit or hours * HOUR < WORTH * jobs.time_limit
    return hours if jobs.completed and is_shorter else None


def findings(facts: Facts, most: int) -> list[WasteFinding]:
    """Return the `most` findings that would have returned the most GPU-hours, the largest first.

    A finding returns at most the unused charge of its group. So groups are examined in descending order of
    their unused charge, until the next group cannot be among the largest.
    """
    totals = {card.model: card.total for card in facts.cards}
    largest: list[WasteFinding] = []
    for group in _by_unused(merged(facts.repeated)):
        unused = group.charged - (group.used or 0.0)
        if unused < _LEAST or (len(largest) >= most and largest[most - 1].returned >= unused):
            break
        use = use_of(group, facts.examples(group), totals)
        finding = _judged(use) if use else None
        if finding and finding.returned >= _LEAST:
            largest.append(finding)
            largest.sort(key=lambda finding: (-finding.returned, finding.jobs.user, finding.jobs.name))
    return largest[:most]


def _by_unused(groups: Iterable[Repeated]) -> list[Repeated]:
    measured = [group for group in groups if group.used is not None and group.elapsed > 0]
    measured.sort(key=lambda group: (-(group.charged - (group.used or 0.0)), group.user, group.name))
    return measured[:_CANDIDATES]


def merged(groups: Iterable[Repeated]) -> list[Repeated]:
    """Join groups of a user that differ in account or model only."""
    joined: dict[tuple[str, str, int, int], Repeated] = {}
    for group in groups:
        key = (group.user, group.name, group.gpus, group.share)
        other = joined.get(key)
        joined[key] = _joined(other, group) if other else group
    return list(joined.values())


def _joined(group: Repeated, other: Repeated) -> Repeated:
    return replace(
        group if group.last > other.last else other,
        model=min(group.model, other.model),
        memory=max(group.memory, other.memory),
        jobs=group.jobs + other.jobs,
        charged=group.charged + other.charged,
        used=_sum(group.used, other.used),
        idle=_sum(group.idle, other.idle),
        completed=max(group.completed, other.completed),
        peak=max(group.peak, other.peak),
        longest=max(group.longest, other.longest),
        elapsed=group.elapsed + other.elapsed,
        time_limit=max(group.time_limit, other.time_limit),
    )


def _sum(*parts: float | None) -> float | None:
    """Return the sum of what was measured; None: nothing was."""
    measured = [part for part in parts if part is not None]
    return sum(measured) if measured else None


def use_of(group: Repeated, examples: Sequence[Example], totals: dict[str, int]) -> MedianUse | None:
    """Summarize the examples of a group; None if none was measured. `totals` maps models to bytes."""
    measured = [job for job in examples if job.used is not None and job.elapsed > 0]
    if not measured or group.model not in totals:
        return None
    total = totals[group.model]
    charge = min(1.0, max(group.share / WHOLE, group.memory / total))
    busy = [job.busy / job.with_process for job in measured if job.busy is not None and job.with_process]
    firsts = [job.first_process for job in measured if job.first_process is not None]
    cpus = [job.cpu_seconds / job.elapsed / job.cpus for job in measured if job.cpu_seconds and job.cpus]
    return MedianUse(
        jobs=group,
        total=total,
        charge=charge,
        unused_gpus=min(group.gpus - 1, int(_unused(measured, charge, group.gpus) + 0.15)),
        first=median(firsts) if firsts else None,
        busy=median(busy) if busy else None,
        sm=sum(job.used or 0.0 for job in measured) / max(1.0, _sampled(measured)) / group.gpus,
        cpu=median(cpus) if cpus else None,
        cpus=max((job.cpus or 1 for job in measured), default=1),
    )


def _sampled(examples: Sequence[Example]) -> float:
    return sum(example.sampled or 0.0 for example in examples)


def _unused(examples: Sequence[Example], charge: float, gpus: int) -> float:
    """Return the mean number of GPUs without a process while another one of the job had one."""
    with_process = sum(example.with_process or 0.0 for example in examples)
    before = charge * gpus * (_sampled(examples) - with_process)  # GPU seconds without any process of the job
    empty = sum(example.empty or 0.0 for example in examples) - before
    return empty / charge / with_process if with_process else 0.0


# -- the judgement -------------------------------------------------------------------------------------


def _judged(use: MedianUse) -> WasteFinding | None:
    """Return the first proposal that is worth it."""
    for judge in (_unused_gpus, _late_start, _too_large):
        finding = judge(use)
        if finding:
            return finding
    return None


def _unused_gpus(use: MedianUse) -> WasteFinding | None:
    gpus, unused = use.jobs.gpus, use.unused_gpus
    if unused < 1:
        return None
    return WasteFinding(
        jobs=use.jobs,
        evidence=f"Asks for {gpus} GPUs and starts no process on {number_word(unused)} of them.",
        line=Line(("#FG", f"--gpus={gpus - unused}", *use.time)),
        returned=use.jobs.charged * unused / gpus,
    )


def _late_start(use: MedianUse) -> WasteFinding | None:
    mean = use.jobs.elapsed / use.jobs.jobs
    if use.first is None or use.first < HOUR or use.first < 0.25 * mean:
        return None
    run = hours_up((use.jobs.longest - use.first) * ROOM_TIME)
    waited = numbers.duration_text(use.first)
    several = ", a median of the latest jobs" if use.jobs.jobs > 1 else ""
    return WasteFinding(
        jobs=use.jobs,
        evidence=f"Holds its share for {waited} before its first GPU process{several}: the preparation needs"
        " no GPU.",
        line=Line(("#FG", _gpus(use), *_memory(use), f"--time={run}h", "--dependency=afterok:PREP_JOB")),
        returned=min(use.first / mean * use.jobs.charged, use.jobs.charged - (use.jobs.used or 0.0)),
    )


def _gpus(use: MedianUse) -> str:
    return f"--gpus={format_share(use.jobs.share * use.jobs.gpus)}"


def _memory(use: MedianUse) -> tuple[str, ...]:
    """Return the memory option of the request, if the memory exceeds the share of the card."""
    of_share = use.jobs.share / WHOLE * use.total
    return (f"--gpu-mem={gibibytes_up(use.jobs.memory)}G",) if use.jobs.memory > of_share * 1.01 else ()


def _too_large(use: MedianUse) -> WasteFinding | None:
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
    return WasteFinding(
        jobs=use.jobs,
        evidence=_evidence(use, is_bound=is_bound),
        line=Line(("#FG", f"--gpus={format_share(share)}", size, *cpus, *use.time)),
        returned=use.jobs.charged * (1 - charge / use.charge),
    )


def _evidence(use: MedianUse, *, is_bound: bool) -> str:
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


def item(rank: int, finding: WasteFinding, warned: str = "") -> WasteItem:
    """Return the entry of a finding."""
    return WasteItem(
        rank=rank,
        user=Given(finding.jobs.user),
        job=Given(finding.jobs.name),
        jobs=Number(finding.jobs.jobs, "jobs", numbers.counted(finding.jobs.jobs, "job")),
        asked=asked(finding.jobs),
        evidence=finding.evidence,
        line=finding.line,
        returned=_hours(finding.returned),
        charged=_hours(finding.jobs.charged),
        warned=warned,
    )


def _hours(seconds: float) -> Number:
    hours = numbers.hours(seconds)
    return Number(hours.value, hours.unit, f"{hours.text} h")


def wastes(facts: Facts, proposals: Sequence[WasteFinding]) -> Section:
    """Return the section of an overview: the five largest."""
    title = "Largest wastes"
    if not proposals:
        return Section("wastes", title, "", (Paragraphs((sentence(NONE),)),))
    returned = sum(proposal.returned for proposal in proposals)
    part = numbers.rate(returned, sum(jobs.charged for jobs in facts.jobs)).text
    say = (
        "Each waste has a header line for the job script, and the GPU-hours that the line would have"
        f" returned. Together {numbers.brief_hours(returned)} GPU-hours, {part} of those charged to the jobs"
        " that ended."
    )
    items = tuple(item(rank, proposal) for rank, proposal in enumerate(proposals, 1))
    return Section("wastes", title, say, (Wastes(items),))
