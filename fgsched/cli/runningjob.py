"""Verbs of fgctl about a running job: wait until it runs, follow events, write to its error file."""

import os
import stat
import time
from collections.abc import Callable
from typing import TextIO

from fgsched import protocol
from fgsched.client import Client, find_places
from fgsched.domain.errors import NoSuchJob, NotPermitted, Refused
from fgsched.domain.states import JobState
from fgsched.domain.text import clean
from fgsched.hooks.subscription import BEGUN, follow, lines_of
from fgsched.lifecycle.arrays import split_reference
from fgsched.views import job as view
from fgsched.views.choices import spelled

_RUNS = {JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING}
_PAUSE = 0.1  # seconds
_FIELDS = ["id", "state"]


def wait_until_running(client: Client, name: int | str, sleep: Callable[[float], None] = time.sleep) -> None:
    """Return as soon as a job, or a task of an array, runs, also if the controller restarts meanwhile.

    Raises:
        NoSuchJob: it does not exist.
        Refused: it has ended.
    """
    number = name if isinstance(name, int) else split_reference(name)[0]
    for batch in follow(client, ""):
        if batch.events and not batch.lost and not any(_is_about(event, number) for event in batch.events):
            continue
        while (states := _states(client, name)) == {JobState.STARTING}:
            sleep(_PAUSE)  # no event says that a job that was started runs now
        if not states.isdisjoint(_RUNS):
            return


def _is_about(event: protocol.StreamedEvent, number: int) -> bool:
    return number in (event.job, event.array) or bool(event.count)


def _states(client: Client, name: int | str) -> set[JobState]:
    """Return the states of a job, or of the tasks of an array. Raises as wait_until_running."""
    where = protocol.Where(id=[name])
    states = {job.state for job in client.call(protocol.ListQueue(fields=_FIELDS, where=where)).jobs}
    if states:
        return states
    page = client.call(protocol.ListHistory(fields=_FIELDS, ids=[name]))
    if page.missing or not page.jobs:
        raise NoSuchJob(f"Invalid job id specified: {spelled([name])}", "fgq lists your jobs.")
    states = {job.state for job in page.jobs}
    if all(state.is_final for state in states):
        raise Refused(f"job {name} has ended: {page.jobs[-1].state.value}", f"fgacct -j {name} shows it.")
    return states


def subscribe(output: TextIO, *, as_json: bool) -> None:
    """Print events until the reader goes away. The first JSON object says that the subscription has begun."""
    with Client(find_places(), may_start=False) as client:
        batches = follow(client, "")
        next(batches)
        output.write(f"{BEGUN}\n" if as_json else "")
        output.flush()
        for batch in batches:
            output.writelines(f"{line}\n" for line in lines_of(batch, as_json=as_json))
            output.flush()


def notify(job: int | str, message: str) -> None:
    """Append a line to the error file of a running job of the caller.

    Raises:
        NoSuchJob: there is no such job.
        NotPermitted: it is another user's job; only a process of its owner may write the file.
        Refused: the job does not run, or its error file cannot be written.
    """
    with Client(find_places()) as client:
        job_info = client.call(protocol.ShowJob(id=job))
    if job_info.state not in _RUNS:
        raise Refused(f"job {job} does not run", "A message is for a running job.")
    if job_info.uid != os.geteuid():
        raise NotPermitted(
            f"job {job} belongs to another user", "Only its owner can write into its error file."
        )
    _append(view.files(job_info).stderr, f"{clean(message)}\n")


def _append(path: str, line: str) -> None:
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise Refused(f"the error file {path} is no regular file", "Write to the job in another way.")
            os.write(file, line.encode(errors="surrogateescape"))
        finally:
            os.close(file)
    except OSError as error:
        raise Refused(f"the error file {path}: {error.strerror}", "Check the path and the disk.") from None
