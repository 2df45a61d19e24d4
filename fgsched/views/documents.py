"""The JSON documents of jobs, and the layouts of Key=Value pairs in which fgctl and scontrol show a record.

Sizes are in bytes, durations in seconds, times in seconds since the epoch and as text; an unknown value is
null. The keys are in `views/fields.py`.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from fgsched.domain.errors import BadUsage
from fgsched.domain.text import clean, shown
from fgsched.protocol import JobInfo, StateChange
from fgsched.views import display
from fgsched.views.display import SLURM_VERSION
from fgsched.views.fields import (
    DETAILS,
    EFFICIENCY,
    FGCTL,
    JOB,
    OLD,
    SCONTROL,
    SCONTROL_DETAILS,
    SLURM_VERSIONS,
    STEP,
    USE,
    JsonKey,
    Keys,
    Layout,
    LayoutPair,
    moment,
    number,
    slurm_keys,
)
from fgsched.views.job import EXPECTED, fields_of


def record(keys: Iterable[JsonKey], job: JobInfo) -> dict[str, Any]:
    """Return the values of a job by key."""
    return {key.name: _value(key, job) for key in keys}


def _value(key: JsonKey, job: JobInfo) -> Any:
    if isinstance(key.value, tuple):
        return record(key.value, job)
    return key.form(getattr(job, key.value) if isinstance(key.value, str) else key.value(job))


def fields(keys: Iterable[JsonKey]) -> list[str]:
    """Return the attributes of a job that the keys need."""
    names: dict[str, None] = {}
    for key in keys:
        names |= dict.fromkeys(fields(key.value) if isinstance(key.value, tuple) else fields_of(key.value))
    return [name for name in names if name != "step"]  # which the client fills in


def fields_of_queue(keys: Iterable[JsonKey]) -> list[str]:
    """Return the attributes that the keys need, without expected starts, which are a request of their own."""
    return [name for name in fields(keys) if name not in EXPECTED]


_KEYS = {
    "fgq": JOB + OLD["fgq"],
    "fgacct": JOB,
    "fgctl": JOB + DETAILS + OLD["fgctl"],
    "fgstat": JOB + USE + OLD["fgstat"],
    "fgtop": JOB,
    "fgeff": JOB + EFFICIENCY + OLD["fgeff"],
}


def keys_of(command: str) -> Keys:
    """Return the keys of a job in the document of a command."""
    return _KEYS[command]


def fields_of_slurm(output: str, form: "SlurmForm") -> list[str]:
    """Return the attributes of a job that a document of squeue or sacct needs."""
    steps = slurm_keys("sacct_step", form.version) if output == "sacct" else ()
    return fields(slurm_keys(output, form.version) + steps)


def document(rows: Iterable[JobInfo], command: str) -> str:
    """Return {"meta": …, "jobs": [ … ]}; rows of steps are in "steps" of their job."""
    return display.document(jobs=nested(rows, keys_of(command), STEP, with_steps=False))


def nested(rows: Iterable[JobInfo], keys: Keys, step_keys: Keys, *, with_steps: bool) -> list[dict[str, Any]]:
    """Return the records of jobs, each with those of its steps; `with_steps`: also a job without any."""
    jobs: dict[tuple[int, int | None], dict[str, Any]] = {}
    for row in rows:
        name = (row.id, row.task)
        if row.step:
            job = jobs.setdefault(name, {"job_id": row.id})
            job.setdefault("steps", []).append(record(step_keys, row))
        else:
            jobs[name] = record(keys, row) | ({"steps": []} if with_steps else {})
    return list(jobs.values())


class SlurmForm(Struct, frozen=True):
    """The syntax of a document of Slurm, and the version of its data parser."""

    syntax: str = "json"  # or "yaml"
    version: int = SLURM_VERSIONS[-1]  # 42: data_parser/v0.0.42


_NAME = "data_parser/v0.0."
PARSERS = "".join(f"{_NAME}{version}\n" for version in (SLURM_VERSIONS[-1], *SLURM_VERSIONS[:-1]))


def slurm_form(syntax: str, parser: str | None) -> SlurmForm | None:
    """Return the form of --json or --yaml with a data parser; "": the newest. None: there is no such one."""
    number_of_parser = (parser or f"v0.0.{SLURM_VERSIONS[-1]}").removeprefix("data_parser/")
    versions = {f"v0.0.{version}": version for version in SLURM_VERSIONS}
    return SlurmForm(syntax, versions[number_of_parser]) if number_of_parser in versions else None


def form_of(text: str) -> SlurmForm:
    """Return the form of --slurm-json: json, yaml, or with a parser as in json:v0.0.41. Raises BadUsage."""
    syntax, _, parser = text.partition(":")
    form = slurm_form(syntax, parser) if syntax in ("json", "yaml") else None
    if form is None:
        raise BadUsage(f"--slurm-json={shown(text)}: no such form", "Such as: json, yaml, json:v0.0.41")
    return form


def slurm_document(form: SlurmForm, command: str, **content: Any) -> str:
    """Return a document of Slurm's data parsers 0.0.40 to 0.0.42, in JSON or YAML."""
    from fgsched.views import slurmtext  # only for programs; a table needs none of it

    return slurmtext.document(form.syntax, {**content, **_envelope(form, command)})


def _envelope(form: SlurmForm, command: str) -> dict[str, Any]:
    """Return the end of each document of Slurm."""
    import grp
    import pwd

    major, minor, micro = SLURM_VERSION.split(".")
    plugin = {"type": "", "name": "", "data_parser": f"{_NAME}{form.version}"}
    client = {"user": pwd.getpwuid(os.getuid()).pw_name, "group": grp.getgrgid(os.getgid()).gr_name}
    version = {"version": {"major": major, "micro": micro, "minor": minor}, "release": SLURM_VERSION}
    return {
        "meta": {
            "plugin": {**plugin, "accounting_storage": "accounting_storage/slurmdbd"},
            "client": {"source": "", **client},
            "command": [command],
            "slurm": {**version, "cluster": "fgsched"},
        },
        "errors": [],
        "warnings": [],
    }


def squeue_document(jobs: Iterable[JobInfo], form: SlurmForm, command: str = "squeue") -> str:
    """Return jobs as squeue --json and scontrol show job --json have them."""
    keys, now = slurm_keys("squeue", form.version), number(int(time.time()))
    records = [record(keys, job) for job in jobs]
    return slurm_document(form, command, jobs=records, last_backfill=number(0), last_update=now)


def sacct_document(rows: Iterable[JobInfo], form: SlurmForm) -> str:
    """Return jobs as sacct --json has them; each object contains its steps."""
    keys, step_keys = slurm_keys("sacct", form.version), slurm_keys("sacct_step", form.version)
    return slurm_document(form, "sacct", jobs=nested(rows, keys, step_keys, with_steps=True))


# -- the layouts of Key=Value pairs --------------------------------------------------------------------


Line = list[tuple[str, object]]
Group = list[Line]  # the lines of one record


def text(groups: Iterable[Group], *, oneliner: bool, between: str = "  ") -> str:
    """Return records of Key=Value pairs; lines after the first are indented. An empty value is (null).

    `between`: the text between two pairs.
    """
    return "".join(_record(lines, oneliner, between) for lines in groups)


def _record(lines: Group, oneliner: bool, between: str) -> str:
    rows = [between.join(map(_key_and_value, line)) for line in lines if line]
    return between.join(rows) + "\n" if oneliner else "\n   ".join(rows) + "\n\n"


def _key_and_value(pair: tuple[str, object]) -> str:
    """Return a pair as text; one without a key is empty, as Slurm ends some lines with a blank."""
    key, value = pair
    return f"{key}={_shown(value)}" if key else ""


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
