"""The words of reports: models, times, lists, and the definitions at the foot."""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from fgsched.accounting.periods import Period
from fgsched.domain.times import format_time
from fgsched.gpus import vendors
from fgsched.reports.model import Cell, Definition, Event, Given, Number, Phrase, Words
from fgsched.views import job as view

DASH = "–"
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_ISO = "%Y-%m-%dT%H:%M:%S%z"
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
XIDS = {
    "13": "graphics engine exception",
    "31": "memory page fault of a program",
    "43": "a program stopped the GPU's work",
    "45": "work removed after a fault",
    "48": "double-bit ECC error",
    "61": "fault of the GPU's microcontroller",
    "62": "fault of the GPU's microcontroller",
    "63": "a row of memory was remapped",
    "64": "a row of memory could not be remapped",
    "74": "NVLink error",
    "79": "the GPU has fallen off the bus",
    "92": "many single-bit ECC errors",
    "94": "contained ECC error",
    "95": "uncontained ECC error",
    "119": "the GPU's system processor does not answer",
    "120": "the GPU's system processor does not answer",
}

_DEFINITIONS = """\
charged: GPU-hours charged
  Sum over jobs of charged share × hours. The charged share is the larger of the share of the card
  and the share of its memory that a job reserves. Charged = active + held-idle + reserved-empty.
used: GPU-hours used
  Sum of the measured SM share × hours. An SM share says that a kernel ran, not how full the card
  was.
efficiency: GPU efficiency
  Used / charged.
classes: Time classes
  Each card-minute is divided by share. active: a process of the job has an SM share above 1 %.
  held-idle: its processes hold memory and have an SM share of 1 % or less. reserved-empty: the
  share is charged and the job has no process. external: memory share of processes outside fgsched.
  down: drained, suspect or failed. free: the rest. The six add up to 100 % of the hours measured.
measured: Hours measured
  Cards × hours of the period, less the hours without samples.
idle: Idle GPU-hours
  Held-idle + reserved-empty.
wait: Wait
  Start − eligible, of the jobs that ended in the period; time held and time on a dependency are not
  counted. 90 %: nine of ten jobs waited no longer.
failed: Failed
  Jobs ended in the period as FAILED, TIMEOUT, OUT_OF_MEMORY or NODE_FAIL, of all jobs ended.
  Cancelled jobs do not count.
returned: Would be returned
  Charged hours less the hours that the same jobs would have been charged with the header line
  shown.
unused: Memory not used
  (asked − peak) × hours, in GiB-hours. 1 TiB-hour = 1,024 GiB-hours.
longest: Longest
  The longest stretch in which no process of the job had an SM share above 1 %; the longest of the
  latest jobs.
packing: Packing factor
  GPU-hours charged / hours of the cards that had at least one job.
size: Size
  The share of a card that a job asked for, times its number of cards.
slowdown: Slowdown
  (wait + run) / the longer of run and 10 minutes; the median.
demand: Waited for
  What a job lacked in the look: share, memory, whole cards, a model, CPUs, host memory, or a
  resource of the site. Hours with a wait are hours in which at least one job waited for it.
replay: One more card
  The jobs that the table names are started again in virtual time, once on the cards of the host and once
  with the additional card. Both medians are of the replay, which knows no holds, dependencies and
  failures.
weight: GPU-hours weighted
  GPU-hours charged × the weight of the card's model.
whole: Hours of jobs
  In a list of jobs: of the jobs that ended in the period, with all their attempts, also the hours before
  the period.
foreign: Process outside fgsched
  A process on a GPU that belongs to no job, with the times in the period in which it was seen. Where a
  card is fully charged it is listed, and adds nothing to external.
"""


def definitions(*keys: str) -> tuple[Definition, ...]:
    """Return the definitions of the terms that a report uses."""
    terms = dict(_parsed())
    return tuple(terms[key] for key in keys)


def _parsed() -> Iterator[tuple[str, Definition]]:
    for part in re.split(r"\n(?! )", _DEFINITIONS.strip()):
        head, *text = part.splitlines()
        key, _, term = head.partition(": ")
        yield key, Definition(term, " ".join(" ".join(text).split()))


def number_word(value: int) -> str:
    """Return a small number in words, a larger one in digits."""
    return _NUMBERS[value] if value < len(_NUMBERS) else f"{value:,}"


def model_name(model: str) -> str:
    """Return a GPU's model without its maker."""
    return vendors.short_model(model) or "GPU"


def type_word(model: str, others: Iterable[str]) -> str:
    """Return the value of --gpu-type that selects a model: a word of its name, or the name with hyphens."""
    words = model.removeprefix("RTX ").split() or [model]
    is_unique = not any(_plain(words[0]) in _plain(other) for other in others)
    return words[0] if is_unique else "-".join(model.split())


def _plain(name: str) -> str:
    return re.sub("[-_ ]", "", name).lower()


def named(gpus: Sequence[int]) -> str:
    """Return GPUs in a sentence: 'GPU 3', 'GPUs 1, 3 and 4'."""
    return f"{'GPU' if len(gpus) == 1 else 'GPUs'} {listed([str(gpu) for gpu in gpus])}"


def listed(words: Sequence[str]) -> str:
    """Return words in a sentence: 'a, b and c'."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def step_text(seconds: int) -> str:
    """Return the length of a step of a drawing: '5 minutes', 'one hour', '44 hours', '2 days'."""
    for unit, noun in ((86_400, "day"), (3600, "hour")):
        if seconds % unit == 0:
            return f"one {noun}" if seconds == unit else f"{seconds // unit} {noun}s"
    return f"{seconds // 60} minutes"


def short_time(at: float) -> str:
    """Return a time in epoch seconds as 'Wed 14:10'."""
    local = time.localtime(at)
    return f"{WEEKDAYS[local.tm_wday][:3]} {local.tm_hour:02d}:{local.tm_min:02d}"


def long_time(at: float) -> str:
    """Return a time in epoch seconds as 'Wed 11 Nov 14:10'."""
    local = time.localtime(at)
    day = f"{WEEKDAYS[local.tm_wday][:3]} {local.tm_mday} {_MONTHS[local.tm_mon - 1]}"
    return f"{day} {local.tm_hour:02d}:{local.tm_min:02d}"


def long_date(at: float) -> str:
    """Return the day of a time in epoch seconds as '11 Nov 2026'."""
    local = time.localtime(at)
    return f"{local.tm_mday} {_MONTHS[local.tm_mon - 1]} {local.tm_year}"


def event(at: float) -> Event:
    """Return a time in epoch seconds as a cell."""
    return Event(at, long_time(at), format_time(at, _ISO))


class ListedJob(view.NamedJob, Protocol):
    """A job in a row of a table."""

    @property
    def user(self) -> str: ...
    @property
    def name(self) -> str: ...


def job_cell(job: view.NamedJob) -> Number:
    """Return the cell of a job: its number, shown as it is in the other commands."""
    return Number(job.id, "", view.label(job))


def job_cells(job: ListedJob) -> tuple[Number, Given, Given]:
    """Return the id, the user and the name of a job as cells."""
    return job_cell(job), Given(job.user), Given(job.name)


def stretch(since: float, until: float, period: Period) -> str:
    """Return two times in epoch seconds as "Wed 14:10 - Thu 18:40", with dates in long periods."""
    form = short_time if period.hours <= 8 * 24 else long_time
    first, last = time.localtime(since), time.localtime(until)
    if (first.tm_year, first.tm_yday) == (last.tm_year, last.tm_yday):
        return f"{form(since)} {DASH} {last.tm_hour:02d}:{last.tm_min:02d}"
    return f"{form(since)} {DASH} {form(until)}"


def earlier_name(period: Period) -> str:
    """Return the name of the earlier period in a sentence: 'week 45', 'the day before'."""
    local = time.localtime(period.since)
    if period.noun == "week":
        return f"week {int(time.strftime('%V', local))}"
    if period.noun == "month":
        return time.strftime("%Y-%m", local)
    return "the day before" if period.noun == "day" else "the period before"


def counts(pairs: Iterable[tuple[str, int]], most: int = 3) -> Phrase:
    """Return names with counts, the largest first: 'hiro 13, ben 12, elif 1'; a dash for none."""
    ordered = sorted((pair for pair in pairs if pair[1]), key=lambda pair: (-pair[1], pair[0]))
    if not ordered:
        return Phrase((Words(DASH),))
    parts: list[Words | Given] = []
    for name, number in ordered[:most]:
        parts += [Words(", " if parts else ""), Given(name), Words(f" {number:,}")]
    if len(ordered) > most:
        parts.append(Words(f", {len(ordered) - most} more"))
    return Phrase(tuple(parts))


def sentence(text: str) -> Phrase:
    """Return a text of the report as a phrase."""
    return Phrase((Words(text),))


def quantile(ordered: Sequence[float], percent: float) -> float | None:
    """Return the value that `percent` of the ascending values do not exceed; None of no values."""
    if not ordered:
        return None
    rank = -(-len(ordered) * percent // 100)
    return ordered[min(len(ordered), max(1, int(rank))) - 1]


def dash() -> Cell:
    """Return the cell of a value that does not apply."""
    return Words(DASH)
