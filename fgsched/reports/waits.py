"""The section on waits: their distribution by size of the job."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from fgsched.reports import numbers
from fgsched.reports.facts import Facts, Slowdowns, WaitGroup
from fgsched.reports.model import Mark, Paragraphs, Quantiles, Section, WaitRow
from fgsched.reports.wording import quantile, sentence
from fgshim.grouping import Numbers, ordered

_WHOLE = 10_000
SIZES = ("≤ 0.25 GPU", "≤ 0.5 GPU", "< 1 GPU", "1 GPU", "> 1 GPU")
NO_GPU = "no GPU"
_TICKS = ((0, "at once"), (600, "10 min"), (3600, "1 h"), (21_600, "6 h"), (86_400, "24 h"))
_DOTS = 20
_CAPTION = (
    "Each dot is one job in twenty of its {group}; in a {brief} of fewer than 20 jobs, one job."
    " The line marks the median. Logarithmic scale."
)
CAPTION = _CAPTION.format(group="size class", brief="class")


def size_of(one: WaitGroup | Slowdowns) -> str:
    """Return the size class of jobs."""
    if one.gpus == 0:
        return NO_GPU
    if one.gpus > 1:
        return SIZES[4]
    return SIZES[(one.share > 2500) + (one.share > 5000) + (one.share >= _WHOLE)]


def waits(facts: Facts) -> Section:
    """Return the section of the waits by size class."""
    if not facts.waits:
        return Section("waits", "Waits", "", (Paragraphs((sentence("No job started."),)),))
    return Section("waits", "Waits", "", (by_size(facts.waits),))


def by_size(found: Iterable[WaitGroup]) -> Quantiles:
    """Return the distribution of waits by size class."""
    classes: dict[str, list[Numbers]] = defaultdict(list)
    for one in found:
        classes[size_of(one)].append(one.waits)
    names = [*SIZES, *([NO_GPU] if NO_GPU in classes else [])]
    return distribution([(name, classes[name]) for name in names], key="sizes")


def distribution(
    classes: Sequence[tuple[str, list[Numbers]]], key: str, *, is_given: bool = False
) -> Quantiles:
    """Return the distribution of the waits, in seconds, of named classes of jobs."""
    rows = tuple(_row(name, ordered(found), is_given=is_given) for name, found in classes)
    ticks = tuple(Mark(at, label) for at, label in _TICKS)
    if is_given:
        caption = _CAPTION.format(group="partition", brief="partition")
        return Quantiles(rows=rows, ticks=ticks, caption=caption, key=key, head="Partition")
    return Quantiles(rows=rows, ticks=ticks, caption=CAPTION, key=key)


def _row(name: str, found: Sequence[float], *, is_given: bool) -> WaitRow:
    dots = found
    if len(found) > _DOTS:
        dots = [quantile(found, (at + 0.5) * 100 / _DOTS) or 0.0 for at in range(_DOTS)]
    return WaitRow(
        name=name,
        jobs=numbers.count(len(found)),
        dots=tuple(dots),
        median=numbers.duration(quantile(found, 50)),
        ninety=numbers.duration(quantile(found, 90)),
        longest=numbers.duration(found[-1] if found else None),
        is_given=is_given,
    )
