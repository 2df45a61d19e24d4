"""The files of a job, from its record: the names that the controller opened them by."""

import os
import pwd
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from fgsched.jobs.filenames import Values
from fgsched.jobs.launchspec import Files, files
from fgsched.jobs.records import from_record


def files_of(record: Mapping[str, Any]) -> Files:
    """Input, output and errors of a job whose whole record is known to us."""
    values = Values(
        job_id=record["id"],
        name=record["request"]["name"],
        user=record["user"],
        home=_home(record["uid"]),
        host=os.uname().nodename.partition(".")[0],
        gpus=tuple(card["gpu"] for card in record["allocated"]),
        restarts=record.get("restarts", 0),
        array=record.get("array") or 0,
        task=record.get("task") or 0,
    )
    return files(from_record(record["request"]), values)


@lru_cache(maxsize=1024)
def _home(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return "/"
