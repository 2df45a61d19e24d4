"""Wait for jobs at a terminal: progress, and the exit code."""

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from fgsched.client import Client, TimedOut
from fgsched.domain.errors import Unreachable

_QUIET = 2.0  # seconds before progress is shown
_RESTART = 60.0  # seconds that a controller may be away
_BETWEEN = 0.5  # seconds between two attempts to reach it


class Progress:
    """A progress line on a terminal's standard error, from the third second on."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._is_shown = False
        self.wanted = sys.stderr is not None and sys.stderr.isatty()

    def tell(self, counts: dict[str, Any]) -> None:
        if self.wanted and time.monotonic() - self._since >= _QUIET:
            text = f"{counts['done']} done, {counts['running']} running, {counts['pending']} pending"
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self._is_shown = True

    def clear(self) -> None:
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def wait_for(
    client: Client, ids: Sequence[int | str], *, any_will_do: bool = False, patience: float | None = None
) -> list[dict[str, Any]]:
    """Return how the jobs ended, when all have ended or, with `any_will_do`, the first.

    `patience` is in seconds. If the controller stops, wait as long as a restart may take.

    Raises:
        TimedOut: the patience is exhausted.
    """
    until = None if patience is None else time.monotonic() + patience
    gone_at: float | None = None
    while True:
        left = None if until is None else max(0.0, until - time.monotonic())
        try:
            return _ask(client, ids, any_will_do, left)
        except TimedOut:
            raise
        except Unreachable:
            now = time.monotonic()
            gone_at = gone_at or now
            if not client.was_there or now - gone_at > _RESTART or (left is not None and not left):
                raise
            time.sleep(_BETWEEN)


def _ask(
    client: Client, ids: Sequence[int | str], any_will_do: bool, patience: float | None
) -> list[dict[str, Any]]:
    progress = Progress()
    tell = progress.tell if progress.wanted else None
    try:
        answer = client.ask("wait", ids=list(ids), any=any_will_do, patience=patience, progress=tell)
    finally:
        progress.clear()
    jobs: list[dict[str, Any]] = answer["jobs"]
    return jobs


def exit_code(jobs: Iterable[dict[str, Any]], *, compatible: bool = False) -> int:
    """Return the largest exit code; a job that a signal ended counts 128 + signal, or 1 if `compatible`."""
    return max((_code(job, compatible) for job in jobs), default=0)


def _code(job: dict[str, Any], compatible: bool) -> int:
    if job["signal"]:
        return 1 if compatible else 128 + int(job["signal"])
    if job["exit_code"] == 0 and job["state"] != "COMPLETED":
        return 1
    return int(job["exit_code"])
