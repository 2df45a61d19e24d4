"""Read the lists that choose jobs: ids, users, states, names."""

import os
from collections.abc import Callable, Iterable
from typing import Any

from fgsched.domain.errors import BadUsage
from fgsched.domain.states import JobState
from fgsched.domain.text import BadValue, lazy_regex, shown
from fgsched.domain.units import format_indices, parse_ids
from fgsched.lifecycle.arrays import format_array, parse_tasks
from fgsched.protocol import Call, JobInfo, ListAssociations, ListPartitions, Where

Name = int | str  # of a job, an array or some of its tasks
_SEPARATOR = lazy_regex(r",(?![^\[]*\])")  # a comma outside brackets
_TASKS = lazy_regex(r"([0-9]{1,18})_(?:([0-9]{1,40})|\[([^\]]*)\])")
OPEN = tuple(state for state in JobState if not state.is_final)
_ELSEWHERE = (  # states of Slurm in which no job of ours can be
    "REQUEUED RQ",
    "RESV_DEL_HOLD RD",
    "REQUEUE_FED RF",
    "CONFIGURING CF",
    "COMPLETING CG",
    "LAUNCH_FAILED LF",
    "RECONFIG_FAIL RE",
    "UPDATE_DB UD",
    "EXPEDITING EX",
    "POWER_UP_NODE PU",
    "REQUEUE_HOLD RH",
    "SPECIAL_EXIT SE",
    "STOPPED ST",
    "BOOT_FAIL BF",
    "RESIZING RS",
    "REVOKED RV",
    "SIGNALING SI",
    "STAGE_OUT SO",
)
_BY_WORD = {word: state for state in JobState for word in (state.value, state.code)}
_NEVER = {word for pair in _ELSEWHERE for word in pair.split()}


def words(texts: Iterable[str]) -> list[str]:
    """Return the words of a repeatable option whose value is a list."""
    return [word for text in texts for word in text.split(",") if word]


def states(texts: Iterable[str]) -> set[JobState]:
    """Return states by their long or short names, in any case; 'all' means every state. Raises BadUsage."""
    job_states: set[JobState] = set()
    for word in words(texts):
        if word.lower() == "all":
            job_states.update(JobState)
        elif word.upper() in _BY_WORD:
            job_states.add(_BY_WORD[word.upper()])
        elif word.upper() not in _NEVER:
            allowed = " ".join(f"{state.value} ({state.code})" for state in JobState)
            raise BadUsage(f"Invalid job state specified: {shown(word)}", f"There are: all {allowed}")
    return job_states


def unknown(
    where: Where, partitions: Iterable[str], accounts: Iterable[str], qos: Iterable[str]
) -> BadUsage | None:
    """Return the error about the first name in `where` that no job can have; None: there is none.

    `accounts` and `qos` are the declared names; empty: jobs can have any.
    """
    for what, named, words in (
        ("partition", where.partition, list(partitions)),
        ("account", where.account, list(accounts)),
        ("qos", where.qos, list(qos)),
    ):
        wrong = next((word for word in named or () if words and word not in words), None)
        if wrong is not None:
            return BadUsage(f"Invalid {what} specified: {shown(wrong)}", f"There are: {' '.join(words)}")
    return None


def unknown_here(ask: Callable[[Call[Any]], Any], where: Where) -> BadUsage | None:
    """Return the error about the first name in `where` that no job can have; `ask`: the controller."""
    if not (where.partition or where.account or where.qos):
        return None
    declared = ask(ListAssociations())
    return unknown(
        where,
        [partition.partition.name for partition in ask(ListPartitions()).partitions],
        [account.name for account in declared.accounts],
        [qos.name for qos in declared.qos],
    )


def parts(text: str) -> list[str]:
    """Return the parts of a list of jobs; a comma in brackets separates nothing."""
    return _SEPARATOR.split(text.strip())


def ids(texts: Iterable[str], most: int | None = None) -> list[Name]:
    """Return jobs by name: 7, 10-14, 12_3, 12_[1-5,8], and lists of them.

    `most`: jobs that all lists together may name; None: any number. Raises BadUsage.
    """
    names: list[Name] = []
    for part in [part for text in texts for part in parts(text)]:
        match = _TASKS.fullmatch(part)
        if match is None:
            names += parse_ids(part)
        else:
            listed = format_array(_tasks(match[2] or match[3], part))
            names.append(f"{int(match[1])}_{listed}" if listed.isdigit() else f"{int(match[1])}_[{listed}]")
        if most is not None and len(names) > most:
            raise BadUsage(f"the lists name more than {most} jobs", "Choose jobs by user, state or name.")
    return list(dict.fromkeys(names))


def _tasks(listed: str, part: str) -> int:
    try:
        return parse_tasks(listed, whole=part)
    except BadValue as error:
        raise BadUsage(f"{shown(part)}{error.why}") from None


def spelled(names: Iterable[Name]) -> str:
    """Join names to a comma-separated list."""
    names_or_ids = list(names)
    parts = [name for name in names_or_ids if isinstance(name, str)]
    numbers = format_indices(name for name in names_or_ids if isinstance(name, int))
    return ",".join([numbers] * bool(numbers) + parts)


def exactly(job: JobInfo) -> Name:
    """Return an id that names exactly this job, or exactly the pending tasks of an array."""
    if job.array is None:
        return job.id
    listed = (job.tasks or "").partition("%")[0]
    if job.task is not None:
        return f"{job.array}_{job.task}"
    return f"{job.id}_[{listed}]" if listed else str(job.id)


def users(texts: Iterable[str]) -> list[str]:
    """Return user names. A uid is looked up; one without an account stays a number. Raises BadUsage."""
    import pwd

    names = []
    for word in words(texts):
        try:
            entry = pwd.getpwuid(int(word)) if word.isdecimal() else pwd.getpwnam(word)
        except (KeyError, OverflowError):
            if not word.isdecimal():
                without_account = "For an account that is gone give its number."
                remedy = (
                    "Give your user name; fgq and fgcancel also have --me."
                    if word == "me"
                    else without_account
                )
                raise BadUsage(f"Invalid user: {shown(word)}", remedy) from None
            names.append(str(int(word)))
        else:
            names.append(entry.pw_name)
    return names


def me() -> str:
    """Return the name of the calling user."""
    return users([str(os.geteuid())])[0]
