"""The section on failures: jobs by kind and by user, and jobs that reached their limit of GPU memory."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from fgsched.reports import numbers
from fgsched.reports.facts import Facts, JobTotals, MemoryRefusal
from fgsched.reports.model import (
    Bar,
    Cell,
    Column,
    Line,
    Number,
    Paragraphs,
    Piece,
    Section,
    Table,
    Words,
)
from fgsched.reports.wording import counts, job_cells, sentence

KINDS = (
    *("FAILED", "TIMEOUT", "GPU out of memory", "host out of memory", "host or GPU fault", "cancelled"),
    *("deadline", "preempted"),
)
_ALWAYS = 6  # kinds that have a row even without a job
_STATES = {
    "FAILED": "FAILED",
    "TIMEOUT": "TIMEOUT",
    "NODE_FAIL": "host or GPU fault",
    "CANCELLED": "cancelled",
    "DEADLINE": "deadline",
    "PREEMPTED": "preempted",
}


def kind_of(job: JobTotals) -> str:
    """Return the kind of failure, one of KINDS; "" for success."""
    if job.state == "OUT_OF_MEMORY":
        return "GPU out of memory" if job.oom == "gpu" else "host out of memory"
    return _STATES.get(job.state, "")


def failures(facts: Facts, most: int = 5) -> Section:
    """Return the section of an overview."""
    if not facts.ended:
        return Section("failures", "Failures", "", (Paragraphs((sentence("No job ended."),)),))
    by_kind = kinds(facts)
    if not any(kind_of(job) for job in facts.jobs):
        text = f"None of {numbers.counted(facts.ended, 'job')} ended in failure."
        return Section("failures", "Failures", "", (Paragraphs((sentence(text),)),))
    say = f"{facts.failed:,} of {numbers.counted(facts.ended, 'job')} ended in failure."
    refusals, killed = facts.refusals(most), facts.host_refusals(most)
    parts = (by_kind, *([limits(refusals)] if refusals else []), *([host_limits(killed)] if killed else []))
    return Section("failures", "Failures", say, parts)


def kinds(facts: Facts) -> Table:
    """Return the table of the kinds of failure."""
    now, users = _by_kind(facts.jobs)
    before, _ = _by_kind(facts.before.jobs)
    largest = max(now[kind] for kind in KINDS)
    is_compared = facts.before.is_known
    columns = (
        Column("kind", "How it ended"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("bar", "Number of jobs", in_text=False, minor=True),
        Column("change", "Change", unit="jobs"),
        Column("users", "Most often"),
    )
    rows = []
    for at, kind in enumerate(KINDS):
        if at >= _ALWAYS and not now[kind] and not before[kind]:
            continue
        bar = Bar((Piece("count", now[kind] / largest),) if now[kind] else ())
        change: Cell = numbers.by_count(now[kind], before[kind], -1) if is_compared else Words("")
        rows.append((Words(kind), numbers.count(now[kind]), bar, change, counts(users[kind].items())))
    heads = columns if is_compared else tuple(column for column in columns if column.key != "change")
    kept = [at for at, column in enumerate(columns) if column in heads]
    return Table("kinds", heads, tuple(tuple(row[at] for at in kept) for row in rows))


def _by_kind(jobs: Iterable[JobTotals]) -> tuple[Counter[str], dict[str, Counter[str]]]:
    """Count jobs by kind of failure, and by kind and user."""
    kinds_of_jobs: Counter[str] = Counter()
    users: dict[str, Counter[str]] = defaultdict(Counter)
    for job in jobs:
        kinds_of_jobs[kind_of(job)] += job.jobs
        users[kind_of(job)][job.owner.user] += job.jobs
    return kinds_of_jobs, users


def limits(refusals: Iterable[MemoryRefusal]) -> Table:
    """Return the table of jobs that reached their GPU memory limit, with a limit that would suffice."""
    columns = (
        Column("job", "Job"),
        Column("user", "User"),
        Column("name", "Name"),
        Column("limit", "Limit", right=True, unit="bytes"),
        Column("refused", "Refused", right=True, unit="bytes"),
        Column("line", "Would fit"),
    )
    rows = tuple(_limit_row(refusal) for refusal in refusals)
    return Table("limits", columns, rows, title="Jobs that met their GPU memory limit")


def host_limits(
    refusals: Iterable[MemoryRefusal], title: str = "Jobs that met their host memory limit"
) -> Table:
    """Return the table of jobs of which the kernel killed a process for host memory."""
    columns = (
        Column("job", "Job"),
        Column("user", "User"),
        Column("name", "Name"),
        Column("asked", "Asked", right=True, unit="bytes"),
        Column("largest", "Largest process", right=True, unit="bytes"),
    )
    rows = tuple(
        (
            *job_cells(refusal),
            numbers.gibibytes(refusal.memory or None),
            numbers.gibibytes(refusal.peak or None),
        )
        for refusal in refusals
    )
    empty = "The kernel killed no process of a job for host memory."
    return Table("host_limits", columns, rows, title=title, empty=empty)


def _limit_row(refusal: MemoryRefusal) -> tuple[Cell, ...]:
    refused = numbers.unknown("bytes")
    if refusal.refused:
        refused = Number(refusal.refused, "bytes", f"+{numbers.gibibytes(refusal.refused).text}")
    needed = max(refusal.memory, refusal.peak + (refusal.refused or refusal.memory // 4))
    fits = -int(-needed * 1.05 // numbers.GIB)
    return (
        *job_cells(refusal),
        Number(refusal.memory, "bytes", f"{numbers.plain_gibibytes(refusal.memory)} GiB"),
        refused,
        Line((f"--gpu-mem={fits}G",)),
    )
