"""The layouts of Key=Value pairs in which fgctl and scontrol show a record.

A layout is data: lines of pairs (`views/fields.py`). A pair stands in its line only if its condition is met;
a line without pairs is left out.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fgsched.domain.text import clean
from fgsched.protocol import JobInfo, StateChange
from fgsched.views.fields import FGCTL, SCONTROL, SCONTROL_DETAILS, Layout, LayoutPair, moment

Line = list[tuple[str, object]]
Group = list[Line]  # the lines of one record


def text(groups: Iterable[Group], *, oneliner: bool, between: str = "  ") -> str:
    """Return records of Key=Value pairs; lines after the first are indented. An empty value is (null).

    `between`: the text between two pairs.
    """
    return "".join(_record(lines, oneliner, between) for lines in groups)


def _record(lines: Group, oneliner: bool, between: str) -> str:
    rows = [between.join(f"{key}={_shown(value)}" for key, value in line) for line in lines if line]
    return between.join(rows) + "\n" if oneliner else "\n   ".join(rows) + "\n\n"


def _shown(value: object) -> str:
    return "(null)" if value is None else clean(str(value))


def lines(layout: Layout, row: Any) -> Group:
    """Return the lines of a row."""
    shown = ([_pair(pair, row) for pair in pairs if _is_shown(pair, row)] for pairs in layout)
    return [line for line in shown if line]


def _value_of(value: str | Callable[[Any], Any], row: Any) -> Any:
    return getattr(row, value) if isinstance(value, str) else value(row)


def _is_shown(pair: LayoutPair, row: Any) -> bool:
    return not pair.condition or bool(_value_of(pair.condition, row))


def _pair(pair: LayoutPair, row: Any) -> tuple[str, object]:
    return pair.key, pair.text(_value_of(pair.value, row))


def of_fgctl(job: JobInfo) -> Group:
    """Return a job as `fgctl show job` shows it, with its events."""
    events: Group = [[("Event", _event(change))] for change in _without_repetitions(job.steps)]
    return [*lines(FGCTL, job), *events]


def _without_repetitions(changes: Sequence[StateChange]) -> list[StateChange]:
    """Return the changes of state, without repetitions of one state, attempt and reason."""
    state_changes: list[StateChange] = []
    last = None
    for change in changes:
        what = (change.attempt, change.after, change.reason)
        if change.before != change.after or what != last:
            state_changes.append(change)
        last = what
    return state_changes


def _event(change: StateChange) -> str:
    return f"{moment(change.at)},attempt={change.attempt},{change.before}->{change.after},{change.reason}"


def of_scontrol(job: JobInfo, *, details: bool = False) -> Group:
    """Return a job as scontrol shows it; `details`: with the CPUs and GPUs that it holds."""
    return lines(SCONTROL_DETAILS if details else SCONTROL, job)
