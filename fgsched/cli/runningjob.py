"""Verbs of fgctl about a running job: wait until it runs, follow events, write to its output, attach."""

import os
import re
import signal
import stat
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, TextIO

import click

from fgsched import protocol
from fgsched.cli import fgtail
from fgsched.cli.command import output
from fgsched.cli.fgrun import detached_line
from fgsched.cli.fgwait import exit_code
from fgsched.client import Client, find_paths
from fgsched.domain.errors import NoSuchJob, NotPermitted, Refused
from fgsched.domain.states import JobState
from fgsched.domain.text import clean
from fgsched.hooks.subscription import BEGUN, follow, lines_of
from fgsched.interactive import link
from fgsched.interactive.connected import Connected, ConnectionPlan, Detached, Interrupted
from fgsched.interactive.terminal import Signals
from fgsched.lifecycle.arrays import split_reference
from fgsched.lifecycle.launchspec import job_dir
from fgsched.views import choices
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
    with Client(find_paths(), may_start=False) as client:
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
    with Client(find_paths()) as client:
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


# -- fgctl attach --------------------------------------------------------------------------------------


_NAME = "fgctl"
_AGENT = re.compile(rf"(?:export {link.VARIABLE}='?| fgsched\.interactive\.agent )(fgrun-[0-9a-f]{{32}})\b")
_LINES = 10  # of each output file that are shown at first
_RECORDED = 60  # seconds that the controller may take to record the end


def attach(client: Client, reference: choices.Name) -> int:
    """Attach to a job of the caller until it ends or the caller leaves; return the exit code of the job.

    Raises:
        Refused: the job does not run, or it has neither a terminal nor output files.
        NotPermitted: the job belongs to another user.
    """
    job = client.call(protocol.ShowJob(id=reference))
    if job.is_private or job.uid != os.geteuid():
        raise NotPermitted(f"job {reference} belongs to another user", "Only its owner may attach to it.")
    _refuse_unless_running(job)
    match = _AGENT.search(client.call(protocol.ShowScript(id=job.id)).script)
    try:
        if match is None or not _on_terminal(client, job, match[1]):
            _follow(client, job, is_foreground=match is not None)
    except Interrupted as interrupted:
        return 128 + interrupted.number
    except Detached as detached:
        click.echo(detached_line(_NAME, job.id, detached), err=True)
        return 0
    except KeyboardInterrupt:
        click.echo(f"\n{_NAME}: detached from job {job.id}, which continues", err=True)
        return 128 + signal.SIGINT
    return exit_code(client.call(protocol.Wait(ids=[job.id]), patience=_RECORDED).jobs)


def _refuse_unless_running(job: protocol.JobInfo) -> None:
    if job.state is JobState.PENDING:
        raise Refused(f"job {job.id} is pending", f"fgtail -F {job.id} waits for it and follows its output.")
    if job.state.is_final:
        raise Refused(
            f"job {job.id} has ended: it is {job.state.value}", f"fgtail {job.id} prints its output."
        )


def _on_terminal(client: Client, job: protocol.JobInfo, name: str) -> bool:
    """Serve the job's terminal until the job has ended; return False if the job has none."""
    directory = Path(job_dir(str(client.paths.run), job.id, job.attempt))
    try:
        connection = link.connect(link.attach_name(name), directory)
    except link.CallerGone:
        return False
    plan = ConnectionPlan(name=_NAME, job=job.id, terminal=True, stays=True)
    with connection, Signals() as signals:
        Connected(connection, signals, plan, lambda text: None, lambda: None).attach()
    return True


def _follow(client: Client, job: protocol.JobInfo, *, is_foreground: bool) -> None:
    """Print the last lines of the job's output files, and follow them until the job has ended."""
    its = view.files(job)
    paths = {path: stream for path, stream in ((its.stderr, 2), (its.stdout, 1)) if path != os.devnull}
    if not paths:
        where = "to the fgrun that started it" if is_foreground else "nowhere"
        raise Refused(
            f"job {job.id} has no terminal, and its output goes {where}",
            f"fgrun --jobid={job.id} --pty bash opens a shell in the job.",
        )
    streams: dict[int, BinaryIO] = {1: output().buffer, 2: sys.stderr.buffer}
    with client.watch([job.id]) as watch, ExitStack() as opened:
        files = {
            opened.enter_context(fgtail.opened(path, job, watch)): streams[stream]
            for path, stream in paths.items()
        }
        for file in files:
            fgtail.skip(file, _LINES)
        fgtail.follow(list(files.items()), lambda: watch.is_over(fgtail.LOOK))
