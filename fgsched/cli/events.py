"""Follow events: `fgctl wait_job` waits until a job runs, `fgctl subscribe` prints them."""

import time
from collections.abc import Callable
from typing import TextIO

from fgsched import protocol
from fgsched.client import Client, find_places
from fgsched.domain.errors import NoSuchJob, Refused
from fgsched.domain.states import JobState
from fgsched.hooks.subscription import BEGUN, follow, lines_of
from fgsched.lifecycle.arrays import split_reference
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
