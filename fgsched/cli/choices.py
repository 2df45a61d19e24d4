"""Lists that users type to choose jobs: ids, users, states, names."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fgsched.domain.errors import BadUsage
from fgsched.domain.job import JobState
from fgsched.domain.text import BadValue, shown
from fgsched.domain.units import format_indices, parse_ids
from fgsched.jobs.arrays import format_array, parse_tasks

Name = int | str  # of a job, an array or some of its tasks
_SEPARATOR = re.compile(r",(?![^\[]*\])")  # a comma outside brackets
_TASKS = re.compile(r"([0-9]{1,18})_(?:([0-9]{1,40})|\[([^\]]*)\])")
OPEN = tuple(state for state in JobState if not state.is_final)
_ELSEWHERE = (  # states of Slurm in which no job of ours can be
    *(
        "REQUEUED RQ",
        "REQUEUE_HOLD RH",
        "SPECIAL_EXIT SE",
        "STOPPED ST",
        "BOOT_FAIL BF",
        "RESIZING RS",
        "REVOKED RV",
        "SIGNALING SI",
        "STAGE_OUT SO",
    ),
)
_BY_WORD = {word: state for state in JobState for word in (state.value, state.code)}
_NEVER = {word for pair in _ELSEWHERE for word in pair.split()}


def words(texts: Iterable[str]) -> list[str]:
    """The words of options that may be repeated and may each be a list."""
    return [word for text in texts for word in text.split(",") if word]


def states(texts: Iterable[str]) -> set[JobState]:
    """States by either of their names, in any case; 'all' is every one."""
    found: set[JobState] = set()
    for word in words(texts):
        if word.lower() == "all":
            found.update(JobState)
        elif word.upper() in _BY_WORD:
            found.add(_BY_WORD[word.upper()])
        elif word.upper() not in _NEVER:
            allowed = " ".join(f"{state.value} ({state.code})" for state in JobState)
            raise BadUsage(f"Invalid job state specified: {shown(word)}", f"There are: all {allowed}")
    return found


def state_values(texts: Sequence[str]) -> list[str]:
    """For a question of the queue; for states of Slurm alone one that no job is in."""
    return [state.value for state in states(texts)] or ["none of those there are"] * bool(texts)


def ids(texts: Iterable[str]) -> list[Name]:
    """Jobs by name: 7, 10-14, 12_3, 12_[1-5,8], and lists of them."""
    found: list[Name] = []
    for text in texts:
        for part in _SEPARATOR.split(text):
            match = _TASKS.fullmatch(part)
            if match is None:
                found += parse_ids(part)
                continue
            bits = _tasks(match[2] or match[3], part)
            listed = format_array(bits)
            found.append(f"{int(match[1])}_{listed}" if listed.isdigit() else f"{int(match[1])}_[{listed}]")
    return list(dict.fromkeys(found))


def _tasks(listed: str, part: str) -> int:
    try:
        return parse_tasks(listed, whole=part)
    except BadValue as error:
        raise BadUsage(f"{shown(part)}{error.why}") from None


def spelled(names: Iterable[Name]) -> str:
    """Names as one list."""
    known = list(names)
    parts = [one for one in known if isinstance(one, str)]
    numbers = format_indices(one for one in known if isinstance(one, int))
    return ",".join([numbers] * bool(numbers) + parts)


def exactly(row: Mapping[str, Any]) -> Name:
    """The name of this row alone: that of an array's waiting tasks names no others."""
    if row["array"] is None:
        return int(row["id"])
    return name_of({**row, "tasks": (row["tasks"] or "").partition("%")[0] or None})


def name_of(row: Mapping[str, Any]) -> str:
    """What a job is called: 12, 12_3, 12_[4-15%2]."""
    if row["task"] is not None:
        return f"{row['array']}_{row['task']}"
    return str(row["id"]) if row["tasks"] is None else f"{row['id']}_[{row['tasks']}]"


def users(texts: Iterable[str]) -> list[str]:
    """User names; a number is looked up, and stays one where no account has it."""
    import pwd

    found = []
    for word in words(texts):
        try:
            entry = pwd.getpwuid(int(word)) if word.isdecimal() else pwd.getpwnam(word)
        except (KeyError, OverflowError):
            if not word.isdecimal():
                raise BadUsage(
                    f"Invalid user: {shown(word)}", "For an account that is gone give its number."
                ) from None
            found.append(str(int(word)))
        else:
            found.append(entry.pw_name)
    return found


def me() -> str:
    """The name of whoever calls, as jobs carry it."""
    return users([str(os.geteuid())])[0]
