"""fgtail: print and follow the output of a job with the rights of the caller, or for root of the owner."""

import errno
import math
import os
import re
import stat
from collections.abc import Callable, Sequence
from typing import BinaryIO

import click

from fgsched import protocol
from fgsched.cli.command import Command, options_of, output, run
from fgsched.client import Client, Watch, find_paths
from fgsched.domain.errors import BadUsage, NotPermitted, Refused
from fgsched.domain.states import JobState
from fgsched.domain.text import BadValue, shown
from fgsched.system.places import rights_of
from fgsched.views import choices
from fgsched.views import job as view

# Growth of a file is not reported, so the file is polled. The end of the job is reported at once.
LOOK = 0.2  # seconds
_TRIES = 25  # attempts to find the file of a job that runs
_PIECE = 1 << 16


def _lines(text: str | None) -> int | None:
    if text is not None and not re.fullmatch(r"[0-9]{1,9}", text):
        raise BadValue(text, " is not a number of lines", label="--lines=")
    return None if text is None else int(text)


@click.command(cls=Command, epilog="fgtail -n 20 7")
@options_of("fgtail")
@click.argument("word", metavar="ID")
def fgtail(word: str, lines: str | None, error: bool, wait: bool, no_follow: bool) -> int:
    """Print a job's output file, and follow it until the job ends."""
    ids, most = choices.ids([word]), _lines(lines)
    if len(ids) != 1:
        raise BadUsage(f"{shown(word)} names {len(ids)} jobs; one can be followed")
    with Client(find_paths()) as client:
        job = client.call(protocol.ShowJob(id=ids[0]))
        if job.is_private:
            raise NotPermitted(f"job {ids[0]} belongs to another user", "Only its owner may see its output.")
        with client.watch(ids) as watch:
            if job.state is JobState.PENDING:
                job = _started(client, ids[0], watch, wait)
            its = view.files(job)
            with opened(its.stderr if error else its.stdout, job, watch) as file:
                if most is not None:
                    skip(file, most)
                is_over = (lambda: True) if no_follow or job.state.is_final else lambda: watch.is_over(LOOK)
                follow([(file, output().buffer)], is_over)
    return 0


def _started(client: Client, name: choices.Name, watch: Watch, wait: bool) -> protocol.JobInfo:
    """Return the job once it runs or has ended."""
    if not wait:
        raise Refused(f"job {name} is pending: it has written nothing yet", "fgtail -F waits for it.")
    while not watch.is_over(3600) and not (watch.progress and watch.progress.running):
        continue
    return client.call(protocol.ShowJob(id=name))


def opened(path: str, job: protocol.JobInfo, watch: Watch) -> BinaryIO:
    """Open the output file, as root with the rights of the owner. Raises Refused if there is none to read.

    A job that is starting makes its file when it runs; on a busy host that takes long.
    """
    tries = 1 if job.state.is_final else math.inf if job.state is JobState.STARTING else _TRIES
    while tries > 1 and not os.path.lexists(path):
        tries = 1 if watch.is_over(LOOK) else tries - 1
    try:
        with rights_of(job.uid):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as trouble:
        why = job.detail or trouble.strerror
        if trouble.errno == errno.ENOENT and job.state.is_final:
            why = f"{why}; the job is {job.state.value}"
        raise Refused(f"job {job.id}: {shown(path)}: {why}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused(f"job {job.id}: {shown(path)} is not a regular file", "There is nothing to follow.")
    return open(descriptor, "rb", buffering=0)


def skip(file: BinaryIO, lines: int) -> None:
    """Seek to the start of the last `lines` lines."""
    at = file.seek(0, os.SEEK_END)
    missing = lines + 1  # line ends to be met, the one at the very end among them
    if at and (file.seek(at - 1), file.read(1))[1] != b"\n":
        missing = lines
    while at and missing:
        step = min(_PIECE, at)
        at = file.seek(at - step)
        piece = file.read(step)
        for place in reversed([match.start() for match in re.finditer(b"\n", piece)]):
            missing -= 1
            if not missing:
                at += place + 1
                break
    file.seek(at)


def follow(copies: Sequence[tuple[BinaryIO, BinaryIO]], is_over: Callable[[], bool]) -> None:
    """Copy each file to its stream until the job has ended and everything is copied."""
    ended = False
    while True:
        for file, out in copies:
            while piece := file.read(_PIECE):
                out.write(piece)
            out.flush()
        if ended:
            return
        ended = is_over()
        for file, _ in copies:
            if os.fstat(file.fileno()).st_size < file.tell():
                file.seek(0)  # it was truncated: its whole content is new


def main() -> None:
    run(fgtail)


if __name__ == "__main__":
    main()
