"""The JSON documents of jobs: one set of keys for all commands, and Slurm's documents.

Sizes are in bytes, durations in seconds, times in seconds since the epoch and as text; an unknown value is
null. The keys are in `views/fields.py`.
"""

from collections.abc import Iterable
from typing import Any

from fgsched.protocol import JobInfo
from fgsched.views import display
from fgsched.views.display import SLURM_VERSION
from fgsched.views.fields import (
    DETAILS,
    JOB,
    OLD,
    SLURM_ACCOUNTS,
    SLURM_QUEUE,
    SLURM_STEP,
    STEP,
    JsonKey,
    Keys,
)
from fgsched.views.job import fields_of


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


_KEYS = {
    "fgq": JOB + OLD["fgq"],
    "fgacct": JOB,
    "fgctl": JOB + DETAILS + OLD["fgctl"],
    "squeue": SLURM_QUEUE,
    "sacct": SLURM_ACCOUNTS + SLURM_STEP,
}


def keys_of(command: str) -> Keys:
    """Return the keys of a job in the document of a command: fgq, fgacct, fgctl, squeue or sacct."""
    return _KEYS[command]


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


def slurm_document(**content: Any) -> str:
    """Return a document of Slurm's data parser (v0.0.38)."""
    import json  # only for programs; a table needs none of it

    meta = {
        "plugin": {"type": "openapi/v0.0.38", "name": "fgsched"},
        "Slurm": {"version": {"major": "22", "micro": "8", "minor": "05"}, "release": SLURM_VERSION},
    }
    return json.dumps({"meta": meta, "errors": [], **content}, indent=2) + "\n"


def squeue_document(jobs: Iterable[JobInfo]) -> str:
    """Return jobs as squeue --json and scontrol show job --json have them."""
    return slurm_document(jobs=[record(SLURM_QUEUE, job) for job in jobs])


def sacct_document(rows: Iterable[JobInfo]) -> str:
    """Return jobs as sacct --json has them; each object contains its steps."""
    return slurm_document(jobs=nested(rows, SLURM_ACCOUNTS, SLURM_STEP, with_steps=True))
