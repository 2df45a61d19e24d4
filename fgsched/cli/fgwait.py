"""fgwait: wait for jobs at a terminal, with their progress, and exit as they did."""

import re
import sys
import time
from collections.abc import Iterable, Sequence

import click

from fgsched import protocol
from fgsched.cli.command import Command, options_of, run, warn, write
from fgsched.client import Client, TimedOut, find_paths
from fgsched.domain.errors import Unreachable
from fgsched.domain.text import BadValue
from fgsched.views import choices, display

_QUIET = 2.0  # seconds before progress is shown
_RESTART = 60.0  # seconds that a controller may be away
_BETWEEN = 0.5  # seconds between two attempts to reach it
_TOO_LATE = 124  # as timeout(1) has it


class ProgressLine:
    """A progress line on a terminal's standard error, from the third second on."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._is_shown = False
        self.wanted = sys.stderr is not None and sys.stderr.isatty()

    def show(self, counts: protocol.Progress) -> None:
        if self.wanted and time.monotonic() - self._since >= _QUIET:
            text = f"{counts.done} done, {counts.running} running, {counts.pending} pending"
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self._is_shown = True

    def clear(self) -> None:
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def wait_for(
    client: Client, ids: Sequence[int | str], *, any_will_do: bool = False, patience: float | None = None
) -> list[protocol.JobEnd]:
    """Wait until all jobs, or the first of them, have ended; return their final states.

    A restart of the controller does not end the wait. `patience` is in seconds; None: no limit.

    Raises: TimedOut after `patience`; Unreachable if there is no controller.
    """
    until = None if patience is None else time.monotonic() + patience
    gone_at: float | None = None
    while True:
        remaining = None if until is None else max(0.0, until - time.monotonic())
        try:
            return _ask(client, ids, any_will_do, remaining)
        except TimedOut:
            raise
        except Unreachable:
            now = time.monotonic()
            gone_at = gone_at or now
            if not client.was_there or now - gone_at > _RESTART or (remaining is not None and not remaining):
                raise
            time.sleep(_BETWEEN)


def _ask(
    client: Client, ids: Sequence[int | str], any_will_do: bool, patience: float | None
) -> list[protocol.JobEnd]:
    progress = ProgressLine()
    call = protocol.Wait(ids=list(ids), any=any_will_do, progress=progress.wanted)
    try:
        return client.call(call, patience=patience, progress=progress.show).jobs
    finally:
        progress.clear()


def exit_code(jobs: Iterable[protocol.JobEnd], *, compatible: bool = False) -> int:
    """Return the largest exit code; a job that a signal ended counts 128 + signal, or 1 if `compatible`."""
    return max((_code(job, compatible) for job in jobs), default=0)


def _code(job: protocol.JobEnd, compatible: bool) -> int:
    if job.signal:
        return 1 if compatible else 128 + job.signal
    return 1 if job.exit_code == 0 and job.state != "COMPLETED" else job.exit_code


def _seconds(text: str | None) -> float | None:
    if text is not None and not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        raise BadValue(text, " is not a number of seconds", label="--timeout=")
    return None if text is None else float(text)


@click.command(cls=Command, epilog="fgwait 7 10-14 && echo all done")
@options_of("fgwait")
@click.argument("words", nargs=-1, required=True, metavar="ID|FIRST-LAST...")
def fgwait(words: Sequence[str], any_will_do: bool, timeout: str | None, as_json: bool) -> int:
    """Wait for jobs to end, and exit with the largest of their exit codes."""
    ids, patience = choices.ids(words), _seconds(timeout)
    try:
        with Client(find_paths(), is_prompt=patience is not None) as client:
            if patience is None:  # a controller that is silent from the start is not waited for
                client.call(protocol.Ping())
            jobs = wait_for(client, ids, any_will_do=any_will_do, patience=patience)
    except TimedOut:
        if patience is None:
            raise
        which = "none of the jobs has ended" if any_will_do else "some jobs have not ended"
        warn("fgwait", f"{which} after {patience:g} seconds")
        return _TOO_LATE
    if as_json:
        ended = [
            {"job_id": job.id, "state": job.state, "exit_code": job.exit_code, "signal": job.signal}
            for job in jobs
        ]
        write(display.document(jobs=sorted(ended, key=lambda job: job["job_id"])))
    return exit_code(jobs)


def main() -> None:
    run(fgwait)


if __name__ == "__main__":
    main()
