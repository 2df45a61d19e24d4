"""fgwait: wait until jobs have ended, and exit with their exit code."""

import re
from collections.abc import Sequence

import click

from fgsched import protocol
from fgsched.cli.command import Command, run, warn, write
from fgsched.cli.waiting import exit_code, wait_for
from fgsched.client import Client, TimedOut, find_places
from fgsched.domain.text import BadValue
from fgsched.views import choices, display

_TOO_LATE = 124  # as timeout(1) has it


def _seconds(ctx: click.Context, option: click.Parameter, text: str | None) -> float | None:
    if text is not None and not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        raise BadValue(text, " is not a number of seconds", label="--timeout=")
    return None if text is None else float(text)


@click.command(cls=Command, epilog="fgwait 7 10-14 && echo all done")
@click.option("--any", "any_will_do", is_flag=True, help="Wait only until the first job ends.")
@click.option(
    "--timeout", callback=_seconds, metavar="SECONDS", help="Give up after this time with exit status 124."
)
@click.option("--json", "as_json", is_flag=True, help="Print the outcomes as a JSON object.")
@click.argument("words", nargs=-1, required=True, metavar="ID|FIRST-LAST...")
def fgwait(words: Sequence[str], any_will_do: bool, timeout: float | None, as_json: bool) -> int:
    """Wait for jobs to end, and exit with the largest of their exit codes."""
    ids = choices.ids(words)
    try:
        with Client(find_places(), is_prompt=timeout is not None) as client:
            if timeout is None:  # a controller that is silent from the start is not waited for
                client.call(protocol.Ping())
            jobs = wait_for(client, ids, any_will_do=any_will_do, patience=timeout)
    except TimedOut:
        if timeout is None:
            raise
        which = "none of the jobs has ended" if any_will_do else "some jobs have not ended"
        warn("fgwait", f"{which} after {timeout:g} seconds")
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
