"""fgctl attach: connect the caller's terminal to that of a running job, or follow the job's output files."""

import os
import re
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import click

from fgsched import protocol
from fgsched.cli import fgtail
from fgsched.cli.command import output
from fgsched.cli.fgrun import left
from fgsched.cli.fgwait import exit_code
from fgsched.client import Client
from fgsched.domain.errors import NotPermitted, Refused
from fgsched.domain.states import JobState
from fgsched.interactive import link
from fgsched.interactive.connected import Connected, ConnectionPlan, Detached, Interrupted
from fgsched.interactive.terminal import Signals
from fgsched.lifecycle.launchspec import job_dir
from fgsched.views import choices
from fgsched.views import job as view

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
        click.echo(left(_NAME, job.id, detached), err=True)
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
    directory = Path(job_dir(str(client.places.run), job.id, job.attempt))
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
