"""Submit a call: tell options from arguments, write the folder of the call, and queue its job."""

import functools
import hashlib
import inspect
import os
import secrets
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from msgspec import Struct

from fgsched import protocol
from fgsched.client import Client, find_paths
from fgsched.domain.errors import FgschedError, NoSuchJob
from fgsched.domain.text import BadValue
from fgsched.domain.times import parse_duration
from fgsched.domain.units import SubmitContext, parse_bytes
from fgsched.python import calls, task
from fgsched.python.errors import SubmissionWarning
from fgsched.python.pickling import CallParts, dumps
from fgsched.submission.checks import Process, Source
from fgsched.submission.options import AnySetting, OptionReader
from fgsched.submission.prepare import SubmissionPreparer
from fgsched.submission.request import parts
from fgsched.submission.table import BY_NAME, MEANT, AnyOption
from fgsched.system.paths import Paths
from fgsched.system.unanswered import new_key

Options = Mapping[str, Any]  # options of fgsub with _ for -, such as {"gpus": 0.5, "job_name": "train"}
OWN = ("keep", "folder", "calls_limit")  # options of a call that are none of its job
NOT_HERE = {  # options of fgsub that name a script, or say what fgsub prints
    "wrap": "submit a list of words instead",
    "batch": "use fgsched.map",
    "array": "use fgsched.map",
    **dict.fromkeys(("wait", "parsable", "quiet", "json"), "it only changes what fgsub prints"),
    **dict.fromkeys(("test-only", "explain-options"), "use fgsub"),
}
_SWEPT = 3600.0  # seconds between two looks for expired calls
_swept_at: dict[Path, float] = {}


class Bound(Struct, frozen=True):
    """A function with options of its jobs: what `fgsched.options(gpus=0.5)(function)` returns."""

    function: Any
    options: Mapping[str, Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function in this process."""
        return self.function(*args, **kwargs)


def options(**chosen: Any) -> Callable[[Callable[..., Any]], Bound]:
    """Return a function that adds options of jobs to a function, for names that it has, too."""
    return lambda function: Bound(function, chosen)


class NewCall(Struct, frozen=True):
    """A call that is ready to be written."""

    name: str  # of the job
    script: str
    facts: calls.CallFacts
    files: Mapping[str, bytes | memoryview]
    array: str = ""  # indices of its tasks; "": one job


def separate(
    function: Any, keywords: Mapping[str, Any], fg: Options | None
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return (function, its keyword arguments, options of the job).

    Raises TypeError for a name that is both.
    """
    chosen: dict[str, Any] = {}
    if isinstance(function, Bound):
        chosen, function = dict(function.options), function.function
        return function, dict(keywords), chosen | dict(fg or {})
    if fg is not None:
        return function, dict(keywords), dict(fg)
    own = _parameters(function)
    arguments: dict[str, Any] = {}
    for name, value in keywords.items():
        is_option = option_of(name) is not None or name in OWN
        if is_option and name in own:
            raise TypeError(
                f"{name} is a parameter of {_name(function)} and an option of its job: give the options as "
                f"fg=dict({name}=…)"
            )
        (chosen if is_option else arguments)[name] = value
    return function, arguments, chosen


def _parameters(function: Any) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def check_arguments(function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    """Refuse arguments that the function does not take. Raises TypeError."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # one of C without a signature
        return
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        raise TypeError(f"{_name(function)}: {error}{_meant(keywords)}") from None


def _meant(keywords: Iterable[str]) -> str:
    """Return the option that an unknown name probably means."""
    from difflib import get_close_matches

    for name in keywords:
        dashed = name.replace("_", "-")
        near = get_close_matches(dashed, BY_NAME, 1)
        if dashed in MEANT:
            return f"; for the job, fgsub has {MEANT[dashed]}"
        if near:
            return f"; did you mean the option {near[0].replace('-', '_')}=?"
    return ""


def option_of(name: str) -> AnyOption | None:
    """Return the option of fgsub that a keyword names; None: there is none."""
    return BY_NAME.get(name.replace("_", "-"))


def settings_of(chosen: Options) -> list[AnySetting]:
    """Return the settings of a submission for options as keywords. Raises TypeError or BadUsage."""
    settings = []
    for name, value in chosen.items():
        option = option_of(name)
        if option is None:
            raise TypeError(f"{name} is not an option of a job{_meant([name])}")
        if option.name in NOT_HERE:
            raise TypeError(f"{name} has no meaning here: {NOT_HERE[option.name]}")
        if value is not None and value is not False:
            settings.append(OptionReader().setting(option, text_of(option, value)))
    return settings


def text_of(option: AnyOption, value: Any) -> str:
    """Return the value of an option as fgsub reads it. Raises TypeError."""
    if value is True:
        if not option.is_flag and not option.bare:
            raise TypeError(f"{option.name.replace('-', '_')}=True: it needs a value")
        return option.bare
    if isinstance(value, timedelta):
        return f"{max(1, round(value.total_seconds()))}s"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)


# -- what is written -------------------------------------------------------------------------------


def function_call(
    function: Any,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    *,
    keep: int,
    tasks: list[bytes] | None = None,
) -> NewCall:
    """Return the call of a function. `keep` is in seconds; `tasks` has further arguments of each task.

    Raises NotPicklable.
    """
    buffers: list[memoryview] = []
    content = dumps(CallParts((function, arguments, keywords)), "", buffers)
    files: dict[str, bytes | memoryview] = {task.CALL: content}
    files |= {f"{task.BUFFER}{number}": buffer for number, buffer in enumerate(buffers)}
    if tasks is not None:
        files[task.ARGUMENTS] = task.joined(tasks)
    if not sys.executable:
        raise RuntimeError("this process does not know its Python interpreter (sys.executable is empty)")
    words = [sys.executable, "-u", "-P", task.__file__]
    return NewCall(
        name=_name(function),
        script=f'#!/bin/sh\nexec {shlex.join(words)} "$1"\n',
        facts=_facts(function, keep),
        files=files,
        array="" if tasks is None else f"0-{len(tasks) - 1}",
    )


def command_call(words: Sequence[str], *, keep: int) -> NewCall:
    """Return the call of a command. `keep` is in seconds. Raises TypeError."""
    if not words or not all(isinstance(word, str) for word in words):
        raise TypeError("a command is a list of at least one text")
    name = os.path.basename(words[0])
    facts = calls.CallFacts(name=name, python="", version="", path=[], keep=keep)
    return NewCall(name, f"#!/bin/sh\nexec {shlex.join(words)}\n", facts, {})


def _facts(function: Any, keep: int) -> calls.CallFacts:
    path = [entry or os.getcwd() for entry in sys.path]
    module, digest = _module(function)
    return calls.CallFacts(
        name=_name(function),
        python=sys.executable,
        version=f"{sys.version_info.major}.{sys.version_info.minor}",
        path=[os.path.abspath(entry) for entry in path],
        keep=keep,
        module=module,
        module_digest=digest,
    )


def _module(function: Any) -> tuple[str, str]:
    """Return the file of a function that is sent by reference, and its digest; "": it is sent by value."""
    name = getattr(function, "__module__", None) or ""
    path = getattr(sys.modules.get(name), "__file__", None)
    if name == "__main__" or not path or not path.endswith(".py"):
        return "", ""
    try:
        return os.path.abspath(path), hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return "", ""


def _name(function: Any) -> str:
    """Return the name of a function, for the job and for messages."""
    if isinstance(function, functools.partial):
        return _name(function.func)
    name = getattr(function, "__name__", type(function).__name__)
    return "lambda" if name == "<lambda>" else str(name)


# -- the queue ----------------------------------------------------------------------------------


class _CallProcess(Process):
    """This process, with the script of a call."""

    def __init__(self, text: str) -> None:
        super().__init__(os.environ, os.getcwd())
        self._text = text.encode(errors="surrogateescape")

    def script(self, word: str | None, directory: str) -> Source:
        """Return the script of the call."""
        return Source(word or "", self._text)


class Sent(Struct, frozen=True):
    """A call that is in the queue."""

    id: int
    folder: Path
    paths: Paths


def kept_seconds(chosen: Options) -> int:
    """Return for how many seconds the results of a call are kept. Raises BadValue."""
    keep = chosen.get("keep")
    return calls.KEEP if keep is None else parse_duration(text_of(BY_NAME["time"], keep))


def send(new_call: NewCall, chosen: Options, *, at_once: int = 0) -> Sent:
    """Write a call to the disk and queue its job; `at_once`: tasks that may run at a time, 0: all.

    Raises: the refusal of the controller; BadUsage, TypeError; StorageError; Unreachable.
    """
    paths = find_paths()
    settings = settings_of({name: value for name, value in chosen.items() if name not in OWN})
    if new_call.array:
        limit = f"%{at_once}" if at_once else ""
        settings.append(OptionReader().setting(BY_NAME["array"], new_call.array + limit))
    root = calls.root_of(chosen.get("folder"))
    with Client(paths, names_variables=False) as client:
        site = client.call(protocol.Ping(), patience=60).site
        _sweep(client, root)
        calls.refuse_full(root, _limit(chosen))
        folder = calls.create(root, _new_name(), new_call.facts, new_call.files)
        try:
            job = _queue(client, site, new_call, settings, folder)
        except FgschedError:
            calls.remove(folder)
            raise
    calls.note_job(folder, job)
    calls.add_size(root, sum(len(content) for content in new_call.files.values()))
    return Sent(job, folder, paths)


def _new_name() -> str:
    return f"{calls.PREFIX}{secrets.token_hex(16)}"


def _limit(chosen: Options) -> int:
    limit = chosen.get("calls_limit")
    try:
        return calls.LIMIT if limit is None else parse_bytes(str(limit))
    except BadValue as error:
        raise BadValue(str(limit), error.why, label="calls_limit=") from None


def _queue(
    client: Client, site: SubmitContext, new_call: NewCall, settings: list[AnySetting], folder: Path
) -> int:
    """Queue the job of a call and return its id."""
    is_array = bool(new_call.array)
    place = str(folder).replace("%", "%%")
    files = {"output": "stdout", "error": "stderr"}
    common = [
        OptionReader().setting(BY_NAME[name], f"{place}/{'%a' if is_array else '0'}.{ending}")
        for name, ending in files.items()
    ]
    preparer = SubmissionPreparer(
        _CallProcess(new_call.script), site=site, common=common, is_batch=False, name="fgsched.submit"
    )
    prepared = preparer.prepare(settings, [new_call.name, str(folder)])
    request = protocol.Submit(**parts([prepared]), key=new_key(time.time()))
    answer = client.call(request, patience=60)
    for text in dict.fromkeys((*prepared.warnings, *answer.warnings)):
        warnings.warn(text, SubmissionWarning, stacklevel=5)
    return answer.first


def _sweep(client: Client, root: Path) -> None:
    """Remove calls that are older than they are to be kept, unless their job has not ended."""
    now = time.monotonic()
    if now - _swept_at.get(root, -_SWEPT) < _SWEPT:
        return
    _swept_at[root] = now
    for folder, job in calls.expired(root, time.time()).items():
        if job is None or _is_over(client, job):
            calls.remove(folder)


def _is_over(client: Client, job: int) -> bool:
    try:
        jobs = client.call(protocol.ShowJobs(id=job)).jobs
    except NoSuchJob:
        return True
    return all(info.state.is_final for info in jobs)
