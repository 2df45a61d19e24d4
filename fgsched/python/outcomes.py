"""Find the value or the error with which a job ended, from its files and its state."""

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from fgsched.domain.states import JobState, Reason
from fgsched.domain.units import GIBIBYTE, format_mebibytes
from fgsched.protocol import JobInfo
from fgsched.python import calls, errors
from fgsched.python.task import ERROR, VALUE
from fgsched.views import job as view

_LAST_LINES = 20  # of standard error, in the message of a job that died
_TAIL = 64 << 10  # bytes that are read for them
FIELDS = (
    *("id", "array", "task", "name", "state", "reason", "exit_code", "signal", "cancelled_by", "detail"),
    *("post_mortem", "elapsed", "time_limit", "note", *view.attributes(view.stderr)),
)


class Value(Struct, frozen=True):
    """What a function returned."""

    value: Any


class Failure(Struct, frozen=True):
    """What `result()` raises."""

    error: BaseException


Outcome = Value | Failure


def outcome_of(folder: Path | None, index: int, state: str, ask: Callable[[], JobInfo]) -> Outcome:
    """Return how a call has ended.

    Args:
        folder: of the call; None: the job was not submitted from Python.
        index: of its task.
        state: of the job, which has ended.
        ask: returns the attributes `FIELDS` of the job.
    """
    if state == JobState.CANCELLED.word:
        return Failure(_cancelled(ask()))
    if folder is not None and (folder / f"{index}{VALUE}").exists():
        return _value(folder, index, ask)
    if folder is not None and (folder / f"{index}{ERROR}").exists():
        return Failure(_raised(folder, index, ask()))
    if state == JobState.COMPLETED.word:
        facts = calls.facts_of(folder) if folder is not None else None
        if folder is None or (facts is not None and not facts.python):
            return Value(None)
        return Failure(_error(errors.ResultGone, ask(), "its result was removed"))
    return Failure(_of_state(ask()))


def _error(kind: type[errors.JobError], info: JobInfo, text: str, **facts: Any) -> errors.JobError:
    """Return an error about a job, with its id and name in the message."""
    label = view.label(info)
    message = f"job {label} ({info.name}): {text}"
    return kind(message, job=label, state=info.state.word, reason=info.reason.word, **facts)


def _cancelled(info: JobInfo) -> errors.JobError:
    by = "" if info.cancelled_by is None else f" by uid {info.cancelled_by}"
    note = f": {info.note}" if info.note else ""
    return _error(errors.JobCancelled, info, f"it was cancelled{by}{note}", by=info.cancelled_by)


def _value(folder: Path, index: int, ask: Callable[[], JobInfo]) -> Outcome:
    try:
        return Value(pickle.loads((folder / f"{index}{VALUE}").read_bytes()))
    except Exception as error:
        text = f"its result cannot be read here: {type(error).__name__}: {error}{_versions(folder)}"
        failure = _error(errors.CallFailed, ask(), text)
        failure.__cause__ = error
        return Failure(failure)


def _versions(folder: Path) -> str:
    """Return a remark if the job's Python is another than this one."""
    facts, here = calls.facts_of(folder), f"{sys.version_info.major}.{sys.version_info.minor}"
    if facts is None or not facts.version or facts.version == here:
        return ""
    return f" (written by Python {facts.version}, read by Python {here})"


def _raised(folder: Path, index: int, info: JobInfo) -> BaseException:
    """Return the error of a function that raised one, ended the process, or returned what cannot be sent."""
    head, _, content = (folder / f"{index}{ERROR}").read_bytes().partition(b"\n")
    facts: dict[str, str] = json.loads(head)
    raised = _exception(content)
    cause = raised or errors.RemoteTraceback(facts["text"])
    failure: BaseException
    if info.reason is Reason.GPU_OUT_OF_MEMORY:
        failure = _gpu_out_of_memory(info)
    elif facts["kind"] == "unpicklable":
        failure = _error(errors.ResultNotPicklable, info, f"its result cannot be sent back: {facts['repr']}")
    elif raised is not None:
        failure, cause = raised, errors.RemoteTraceback(facts["text"])
    else:
        texts = {"unreadable": "the call cannot be read there: ", "ended": "the function ended its process: "}
        text = f"{texts.get(facts['kind'], '')}{facts['repr']}{_versions(folder)}"
        failure = _error(errors.CallFailed, info, text)
    failure.__cause__ = cause
    return failure


def _exception(content: bytes) -> BaseException | None:
    try:
        error = pickle.loads(content) if content else None
    except Exception:  # one of a module that is not here, or that is not made for it
        return None
    return error if isinstance(error, BaseException) else None


def _gpu_out_of_memory(info: JobInfo) -> errors.JobError:
    report = info.post_mortem
    if report is None:
        return _error(errors.GpuOutOfMemory, info, "its GPU memory did not suffice")
    needed = -(-(report.held + report.asked) // GIBIBYTE)
    excess = f"it asked for {format_mebibytes(report.asked)} more" if report.asked else "it held more"
    return _error(
        errors.GpuOutOfMemory,
        info,
        f"{excess}, held {format_mebibytes(report.held)} of {format_mebibytes(report.limit)} of GPU memory; "
        f'for the next run: gpu_mem="{needed}G"',
        asked=report.asked,
        held=report.held,
        limit=report.limit,
        others=tuple(view.oom_others(report)),
    )


def _of_state(info: JobInfo) -> errors.JobError:
    """Return the error of a job that ended without a result."""
    match info.state:
        case JobState.TIMEOUT:
            text = f"it reached its time limit of {info.time_limit} s"
            return _error(errors.TimeLimitReached, info, text, limit=info.time_limit, used=info.elapsed)
        case JobState.OUT_OF_MEMORY if info.reason is Reason.GPU_OUT_OF_MEMORY:
            return _gpu_out_of_memory(info)
        case JobState.OUT_OF_MEMORY:
            return _error(errors.HostOutOfMemory, info, "its host memory did not suffice; set mem=")
        case JobState.NODE_FAIL:
            return _error(errors.HostFailed, info, "the host restarted while it ran")
        case JobState.FAILED if info.reason in (Reason.EXIT_CODE, Reason.SIGNALED):
            return _died(info)
    detail = f": {info.detail}" if info.detail else ""
    return _error(errors.JobError, info, f"it ended as {info.state.word} ({info.reason.word}){detail}")


def _died(info: JobInfo) -> errors.JobError:
    how = f"by signal {info.signal}" if info.signal else f"with exit code {info.exit_code}"
    lines = _last_lines(view.stderr(info))
    text = f"its process ended {how}{lines and ', after these lines on standard error:'}{lines}"
    return _error(errors.JobDied, info, text, signal=info.signal, exit_code=info.exit_code)


def _last_lines(path: str | None) -> str:
    text = read_tail(path, _TAIL)
    return "".join(f"\n  {line}" for line in text.splitlines()[-_LAST_LINES:])


def read_tail(path: str | None, size: int | None = None) -> str:
    """Return the last `size` bytes of a file as text, or all of it; "" if it is not there."""
    if path is None:
        return ""
    try:
        with open(path, "rb") as file:
            if size is not None:
                file.seek(max(0, file.seek(0, 2) - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
