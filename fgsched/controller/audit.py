"""Write the audit log: who changed the jobs of another user or the host, and who was refused.

A line has the uid and the pid of the client as the kernel states them, ids of jobs, names of users, GPUs and
settings. It never has a script, an argument, a path, or a value that was set.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET, structs

from fgsched import protocol
from fgsched.controller.caller import Caller
from fgsched.controller.decisionlog import INFO, WARNING, LogFile, dated, fields
from fgsched.controller.eventloop import Told
from fgsched.domain.errors import FgschedError
from fgsched.domain.job import Job
from fgsched.domain.times import HOUR
from fgsched.protocol import Outcome, Outcomes

log = logging.getLogger("fgsched.controller")
Call = protocol.Call[Any]
_OF_JOBS: dict[type[Call], str] = {
    protocol.Cancel: "cancel",
    protocol.Signal: "signal",
    protocol.Join: "join",
    protocol.HoldJobs: "hold",
    protocol.UserHold: "uhold",
    protocol.Release: "release",
    protocol.Requeue: "requeue",
    protocol.Suspend: "suspend",
    protocol.ResumeJobs: "resume",
    protocol.Update: "update",
    protocol.PutFirst: "top",
}
_OF_HOST: dict[type[Call], str] = {
    protocol.DrainGpu: "drain-gpu",
    protocol.ResumeGpu: "resume-gpu",
    protocol.Reconfigure: "reconfigure",
    protocol.CreatePartition: "create-partition",
    protocol.UpdatePartition: "update-partition",
    protocol.DeletePartition: "delete-partition",
    protocol.CreateReservation: "create-reservation",
    protocol.UpdateReservation: "update-reservation",
    protocol.DeleteReservation: "delete-reservation",
    protocol.Adopt: "adopt",
    protocol.BackUp: "backup",
    protocol.ArchiveJobs: "archive",
    protocol.Stop: "stop",
}
ACTIONS = _OF_JOBS | _OF_HOST
_MOST_REFUSALS = 60  # lines about refusals of one user in an hour: no user can push the lines of others out
_LISTED = 20  # jobs that a line names; more jobs get more lines


class Audit:
    """Collects what becomes of the requests that are recorded, and writes a line about each."""

    def __init__(self, write: Callable[[str], None], find: Callable[[int], Job | None]) -> None:
        """`write` takes a line without its time; `find` returns an open job or array."""
        self._write, self._find = write, find
        # uid -> (begin of its hour, number); uids without an account count as one user
        self._refusals: dict[int | None, tuple[float, int]] = {}

    def witness(self, caller: Caller, pid: int, call: Call, now: float) -> Told | None:
        """Return the function that takes the outcome of a request; None if it is not recorded.

        Call it before the request is carried out. `now`: monotonic seconds.
        """
        if (action := ACTIONS.get(type(call))) is None:
            return None
        subject = fields(uid=caller.uid, user=caller.name, pid=pid, action=action)
        owners = {name: self._find(_number(name)) for name in _names(call)}
        detail = _detail(call)

        def told(answer: Any) -> None:
            for about, why in _results(type(call), owners, answer, caller.uid):
                if not why or self._may_note_refusal(caller, now):
                    result = f"result={why or 'done'}"
                    self._write(" ".join(part for part in (subject, about, detail, result) if part))

        return told

    def note(self, **values: object) -> None:
        """Write a line about an act of no client."""
        self._write(fields(**values))

    def _may_note_refusal(self, caller: Caller, now: float) -> bool:
        uid = caller.uid if caller.has_account else None
        begun, number = self._refusals.get(uid, (now, 0))
        if now - begun >= HOUR:
            begun, number = now, 0
        self._refusals[uid] = begun, number + 1
        if number == _MOST_REFUSALS:
            label = "this user" if caller.has_account else "uids without an account"
            self._write(
                fields(uid=caller.uid, note=f"further refusals of {label} are not listed for an hour")
            )
        return number < _MOST_REFUSALS


def _names(call: Call) -> Sequence[int | str]:
    """Return the jobs that a request names."""
    if type(call) not in _OF_JOBS:
        return ()
    if isinstance(call, protocol.Update | protocol.PutFirst):
        return (call.id,)
    names: Sequence[int | str] = getattr(call, "ids", ())
    return names


def _number(name: int | str) -> int:
    """Return the id of the job or array that a reference names; 0 for a malformed one."""
    if isinstance(name, int):
        return name
    digits = name.partition("_")[0]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else 0


def _detail(call: Call) -> str:
    """Return what a request changes: names of fields, never their values."""
    match call:
        case protocol.Update():
            changes = structs.asdict(call.changes).items()
            return fields(changes=",".join(name for name, new in changes if new is not UNSET))
        case protocol.Signal():
            return fields(signal=int(call.signal))
        case protocol.DrainGpu() | protocol.ResumeGpu():
            return fields(gpu=call.gpu)
        case protocol.Adopt():
            return fields(process=call.pid)
        case protocol.CreatePartition() | protocol.UpdatePartition():
            return fields(partition=call.name, changes=",".join(call.values))
        case protocol.DeletePartition():
            return fields(partition=call.name)
        case protocol.ReservationChanges() | protocol.DeleteReservation():
            return fields(reservation=call.name)
    return ""


def _results(
    kind: type[Call], owners: dict[int | str, Job | None], answer: Any, uid: int
) -> Iterator[tuple[str, str]]:
    """Yield (jobs and their owner, why it was refused or "") of each line."""
    if kind in _OF_HOST:
        yield "", _why(answer)
        return
    ids_of: dict[tuple[str, str], list[str]] = {}
    jobs = [job for job in owners.values() if job is not None]
    tasks = {f"{job.array}_{job.task}": job for job in jobs}  # a task can be named by the id of its row
    for outcome in _outcomes(answer, owners):
        job = owners.get(outcome.id) or tasks.get(str(outcome.id)) or owners.get(_number(outcome.id))
        if job is not None and job.uid != uid:
            why = outcome.error.cause if outcome.error else ""
            ids_of.setdefault((job.user, "refused" if why else ""), []).append(str(outcome.id))
    for (owner, why), ids in ids_of.items():
        for at in range(0, len(ids), _LISTED):
            yield fields(jobs=",".join(ids[at : at + _LISTED]), owner=owner), why


def _outcomes(answer: Any, owners: dict[int | str, Job | None]) -> list[Outcome]:
    """Return the outcome of each job; an error is the outcome of all of them."""
    if isinstance(answer, Outcomes):
        return list(answer.jobs)
    if isinstance(answer, Outcome):
        return [answer]
    error = protocol.Problem.of(answer) if isinstance(answer, FgschedError) else None
    return [Outcome(id=name, error=error) for name in owners]


def _why(answer: Any) -> str:
    return "refused" if isinstance(answer, FgschedError) else ""


# -- the file --------------------------------------------------------------------------------------

_OPEN = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def file_writer(path: Path, clock: Callable[[], float]) -> Callable[[str], None]:
    """Return the function that appends a dated line to the audit log; `clock` returns epoch seconds.

    Only the user of the controller can read the file. At 8 MiB it is renamed to `.1`. A line that cannot be
    written there, such as on a full disk, is in the log of the controller.
    """
    files: list[LogFile] = []

    def write(text: str) -> None:
        try:
            if not files:
                files.append(LogFile(path, os.open(path, _OPEN, 0o600)))
            files[0].append(dated(clock(), WARNING if "result=refused" in text else INFO) + text)
        except OSError as error:
            log.error("%s cannot be written (%s): %s", path.name, error.strerror, text)

    return write
