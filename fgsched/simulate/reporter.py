"""Process beside the controller of a host that makes reports for users, who may not read the accounts.

It reads requests from descriptor 0, makes one report after another, and writes each to descriptor 1. It ends
with the controller, and after some minutes without a request.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec

from fgsched.accounting import guard
from fgsched.domain.errors import Exit, FgschedError
from fgsched.domain.job import HostLimits
from fgsched.reports.facts import Facts
from fgsched.reports.registry import Replayed, empty_accounts, make
from fgsched.reports.request import Made, ReportRequest

_CHUNK = 1 << 16  # bytes
_IDLE = 300.0  # seconds without a request
_DEADLINE = 60  # seconds for one report
_NICE = 10


def answer(accounts: Path, line: bytes, now: float) -> Made:
    """Return the answer to a request; `now` is in epoch seconds. Raises msgspec.MsgspecError."""
    request = msgspec.json.decode(line, type=ReportRequest)
    try:
        has_begun = accounts.exists()
        if not has_begun:
            guard.refuse_missing(accounts)
        with nullcontext(accounts) if has_begun else empty_accounts() as path:
            report, records = make(path, request, now, _replay)
    except FgschedError as error:
        code = int(error.exit_code)
        return Made(number=request.number, error=error.cause, remedy=error.remedy, exit=code)
    except Exception as error:  # a defect of ours: other users get their reports
        print(f"report {request.report}: {type(error).__name__}: {error}", file=sys.stderr)
        return Made(number=request.number, error="internal error in the report", exit=int(Exit.INTERNAL))
    text = msgspec.json.encode(report).decode()
    return Made(number=request.number, report=text, records=records)


def _replay(facts: Facts, limits: HostLimits) -> tuple[Replayed, ...]:
    from fgsched.simulate.replay import one_more_gpu  # it costs memory that the other reports do not need

    return one_more_gpu(facts, limits)


def serve(accounts: Path, source: int, sink: int, clock: Callable[[], float] = time.time) -> None:
    """Answer the lines of descriptor `source` on descriptor `sink` until the other end is closed.

    `clock` returns epoch seconds.
    """
    unread = b""
    while select.select([source], [], [], _IDLE)[0] and (data := os.read(source, _CHUNK)):
        *lines, unread = (unread + data).split(b"\n")
        for line in lines:
            signal.alarm(_DEADLINE)
            reply = answer(accounts, line, clock())
            signal.alarm(0)
            _send(sink, msgspec.json.encode(reply) + b"\n")


def _send(sink: int, data: bytes) -> None:
    while data:
        data = data[os.write(sink, data) :]


def main() -> None:
    """Run the reporter. The argument is the path of the accounts."""
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    os.umask(0o077)
    serve(Path(sys.argv[1]), 0, 1)
