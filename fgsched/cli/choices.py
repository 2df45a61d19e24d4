"""Lists that users type to choose jobs: ids, users, states, names."""

import os
from collections.abc import Iterable

from fgsched.errors import BadUsage
from fgsched.model import JobState
from fgsched.units import parse_ids
from fgsched.values import shown

OPEN = tuple(state for state in JobState if not state.is_final)
_ELSEWHERE = (  # states of Slurm in which no job of ours can be
    *("SUSPENDED S", "PREEMPTED PR", "DEADLINE DL", "REQUEUED RQ", "REQUEUE_HOLD RH", "SPECIAL_EXIT SE"),
    *("STOPPED ST", "BOOT_FAIL BF", "RESIZING RS", "REVOKED RV", "SIGNALING SI", "STAGE_OUT SO"),
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


def ids(texts: Iterable[str]) -> list[int]:
    """Job ids; lists and ranges are allowed."""
    return list(dict.fromkeys(job for text in texts for job in parse_ids(text)))


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
