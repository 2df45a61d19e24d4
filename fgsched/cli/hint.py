"""Tell a person at the submission that earlier runs used much less GPU memory: once for each name and day."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

import click

from fgsched import protocol
from fgsched.client import Client
from fgsched.domain.errors import FgschedError
from fgsched.domain.states import JobState
from fgsched.domain.text import clean
from fgsched.domain.units import GIBIBYTE
from fgsched.reports.efficiency import ROOM_MEMORY, gibibytes_up
from fgsched.system.places import read_own, replace_file
from fgsched.views import job as view
from fgsched.views.job import fields_of

_FACTOR = 4  # of the peak: a larger request is worth a hint
_RUNS = 5  # that are looked at, at most
_LEAST_RUNS = 2
BACK = 500  # ids before the new job: a bounded look at the history
_LONGEST = 1 << 20  # bytes of the file
_LEAST = GIBIBYTE  # bytes: a smaller request is not worth a hint
FIELDS = ("id", "name", "state", "gpus", "memory", *fields_of(view.gpu_peak))


def print_hint(client: Client, job: int, name: str) -> None:
    """Print a hint about a job that was submitted, if its last runs justify one. It never fails."""
    today, file = time.strftime("%Y-%m-%d"), _file()
    try:
        lines_of_today = [line for line in _lines(file) if line.startswith(today)]
        if f"{today} {name}" in lines_of_today:
            return
        call = protocol.ListHistory(fields=FIELDS, after=max(0, job - 1 - BACK), uid=os.geteuid())
        text = hint(job, name, client.call(call).jobs)
        if text:
            remember([*lines_of_today, f"{today} {name}"])
            click.echo(f"fgsub: note: {text}", err=True)
    except (FgschedError, OSError, ValueError):
        return  # the job is submitted; a hint that cannot be remembered would be repeated


def remember(lines: Iterable[str]) -> None:
    """Replace the file with the names of today. Raises OSError."""
    text = "".join(f"{line}\n" for line in lines)
    replace_file(_file(), text.encode(), 0o600, make=True, folder_mode=0o700)


def hint(job: int, name: str, jobs: Iterable[protocol.JobInfo]) -> str:
    """Return what to say of job `job` after the earlier jobs of its owner, or ""."""
    runs = [run for run in jobs if run.name == name]
    requested = next((run.memory for run in runs if run.id == job and run.gpus), None)
    complete = [run for run in runs if run.id != job and run.state is JobState.COMPLETED][-_RUNS:]
    used = [peak for peak in map(view.gpu_peak, complete) if peak]
    if not requested or requested < _LEAST or len(used) < _LEAST_RUNS or requested <= _FACTOR * max(used):
        return ""
    size = gibibytes_up(max(used) * ROOM_MEMORY)
    amounts = f"{max(used) / GIBIBYTE:.1f} of {requested / GIBIBYTE:.1f} GiB of GPU memory"
    return (
        f"the last {len(used)} runs of {clean(name)} used at most {amounts}; --gpu-mem={size}G is enough\n"
        "fgeff --name shows more; FGSUB_HINT=no switches such notes off."
    )


def _file() -> Path:
    """Return the file with the names of today."""
    home = os.environ.get("FG_HOME")
    if home:
        return Path(home) / "hints"
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "fgsched" / "hints"


def _lines(file: Path) -> list[str]:
    return read_own(file, _LONGEST).decode(errors="replace").splitlines()
