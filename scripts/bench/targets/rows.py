"""Rows of the campaign: what a round of a target did and found, their sums, and the table of them."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

COUNTS = ("lost", "twice", "never", "wrong", "orphaned", "left")  # of jobs and traces; each must be 0


@dataclass
class Row:
    """The result of one round, which the seed and the size repeat."""

    target: str
    seed: int
    done: int  # in the unit of the target
    jobs: int = 0
    lost: int = 0  # acknowledged, and not in the queue or the accounts
    twice: int = 0
    never: int = 0
    wrong: int = 0  # exit status or state
    orphaned: int = 0  # processes
    left: int = 0  # claims, results, directories, cgroups
    worst: float = 0.0  # milliseconds
    findings: list[str] = field(default_factory=list)  # each is a failure
    notes: dict[str, float] = field(default_factory=dict)  # figures that are summed
    seconds: float = 0.0
    size: int = 0
    commit: str = ""

    @property
    def is_held(self) -> bool:
        return not self.findings and not any(getattr(self, name) for name in COUNTS)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def summed(rows: Iterable[Row]) -> Row:
    """Return one row with the sums of several rounds of a target; `worst` is their maximum."""
    first, *rest = rows
    total = Row(**first.plain())
    for row in rest:
        for name in ("done", "jobs", "seconds", *COUNTS):
            setattr(total, name, getattr(total, name) + getattr(row, name))
        total.worst = max(total.worst, row.worst)
        total.findings = [*total.findings, *row.findings]
        for name, value in row.notes.items():
            is_peak = name.startswith(("max ", "slope "))
            total.notes[name] = (
                max(total.notes.get(name, value), value) if is_peak else total.notes.get(name, 0) + value
            )
    return total


COLUMNS = (
    *(
        "target",
        "what",
        "asked",
        "done",
        "seeds",
        "jobs",
        "lost",
        "twice",
        "never run",
        "wrong status",
        "orphaned",
    ),
    *("left behind", "worst", "verdict"),
)
HEAD = f"| {' | '.join(COLUMNS)} |"
LINE = "|---|---|" + "---:|" * 11 + "---|"


def table(parts: Iterable[tuple[str, str, int, str, list[Row]]]) -> str:
    """Return the Markdown table of (target, what, asked, what `worst` measures, rounds)."""
    lines = [HEAD, LINE]
    for target, what, asked, worst_of, rows in parts:
        if not rows:
            lines.append(f"| {target} | {what} | {asked:,} | 0 |" + " |" * 9 + " not run |")
            continue
        total = summed(rows)
        counts = " | ".join(f"{getattr(total, name):,}" for name in COUNTS)
        worst = f"{total.worst:,.0f} ms {worst_of}".strip() if total.worst else ""
        seeds = spans([row.seed for row in rows])
        lines.append(
            f"| {target} | {what} | {asked:,} | {total.done:,} | {seeds} | {total.jobs:,} | {counts}"
            f" | {worst} | {verdict(total, asked)} |"
        )
    return "\n".join(lines)


def verdict(total: Row, asked: int) -> str:
    if not total.is_held:
        return f"**failed**: {len(total.findings)} findings" if total.findings else "**failed**"
    return "held" if total.done >= asked else f"held so far ({total.done / asked:.1%} of the target)"


def spans(seeds: Iterable[int]) -> str:
    """Write numbers as spans: 3–5, 9."""
    found: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if found and found[-1][1] == seed - 1:
            found[-1][1] = seed
        else:
            found.append([seed, seed])
    return ", ".join(f"{first}–{last}" if last > first else f"{first}" for first, last in found)
