"""The requests that only look: answered from memory, after the turn; history in short pages."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any
from weakref import ref

from msgspec import to_builtins

from fgsched.controller.caller import Caller
from fgsched.controller.decisionlog import DecisionLog
from fgsched.controller.engine import Engine
from fgsched.controller.handlers.fields import Choice, Look, cause, elapsed, getters, rest_text
from fgsched.controller.handlers.references import References, split_reference
from fgsched.controller.handlers.wait import Key, standing
from fgsched.controller.jobtable import JobTable
from fgsched.controller.pieces import PIECE, Pieces, cut
from fgsched.controller.waitindex import eligible
from fgsched.domain.errors import BadUsage, NoSuchJob, NotPermitted, Refused
from fgsched.domain.job import Ended, Job, Request
from fgsched.domain.policy import Policy
from fgsched.jobs.arrays import tasks
from fgsched.jobs.enforcement import is_hooked, others_of, preload_of
from fgsched.jobs.lifecycle import suspended_seconds
from fgsched.jobs.pacing import policy_of
from fgsched.jobs.records import to_record
from fgsched.store import JobRecord

PAGE = 500  # jobs of history at a time
_CHECKED = 60.0  # seconds for which users who are no operators are told what the last check found
_WAITED = 100_000  # jobs that are waited for at once
_PUBLIC = (  # of a request; the rest is its owner's
    *("name", "partition", "account", "qos", "reservation", "nice", "demand", "time_limit"),
)
_MOST = 10**15  # in a number that is asked with: floats and SQLite hold it exactly
_RECENT = 300.0  # seconds for which the queue still shows a job that is over, when asked for


class QueryHandlers:
    """`answer = answers.operations[name](caller, arguments, now)`."""

    def __init__(
        self,
        engine: Engine,
        pids: Callable[[Job], list[int]],
        mechanism: Callable[[Job], str] = lambda job: "",
        refusal: Callable[[Job], str] = lambda job: "",
    ) -> None:
        self._engine = engine
        self._references = References(engine)
        self._pids = pids
        self._mechanism = mechanism
        self._refusal = refusal
        self._verdict, self._checked_at = "", 0.0  # of the queue file
        self._last: Callable[[], _Snapshot | None] = lambda: None
        self.operations: dict[str, Callable[[Caller, dict[str, Any], float], Any]] = {
            "queue": self.queue,
            "job": self.job,
            "jobs": self.jobs,
            "script": self.script,
            "pids": self.pids,
            "history": self.history,
            "gpus": self.gpus,
            "check": self.check,
        }

    def queue(self, caller: Caller, arguments: dict[str, Any], now: float) -> Pieces:
        """Rows of the fields asked for, of all open jobs; with `recent`, of those just ended too.

        `where` leaves only those whose fields have one of the values it lists.
        """
        names = arguments.get("fields")
        wanted = getters(names)
        look = Look(self._engine, caller, now)
        open_jobs, ended = self._snapshot(), []
        if arguments.get("recent"):
            ended = [past.job for past in self._engine.store.ended_since(now - _RECENT)]
        choice = Choice(arguments.get("where", {}), look)

        def rows() -> Iterator[list[Any]]:
            for piece in chain(cut(open_jobs.jobs), cut(ended)):
                yield [self._row(look, job, wanted) for job in self._chosen(choice, piece)]

        return Pieces({"fields": names}, "rows", rows())

    def _row(self, look: Look, job: Job, wanted: Sequence[Callable[[Look, Job], Any]]) -> list[Any]:
        """A row of the queue; of a job for which that fails, with the defaults of its request."""
        try:
            return [get(look, job) for get in wanted]
        except Exception as error:
            self._engine.faults.note(f"the row of job {job.id}", error)
            return [get(look, _bare(job)) for get in wanted]

    def _chosen(self, choice: Choice, jobs: Sequence[Job]) -> Iterable[Job]:
        """Those that are asked for; one for which that cannot be told is left out."""
        try:
            return choice.of(jobs)
        except Exception as error:
            self._engine.faults.note("the choice of jobs", error)
            return [] if len(jobs) == 1 else [one for job in jobs for one in self._chosen(choice, [job])]

    def _snapshot(self) -> "_Snapshot":
        """All open jobs as they are now; the same object for all who ask before anything changes."""
        jobtable, last = self._engine.jobtable, self._last()
        if last is None or last.jobtable is not jobtable or last.revision != jobtable.revision:
            last = _Snapshot(jobtable)
            self._last = ref(last)
        return last

    def job(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        """All that there is to say of one job; its arguments and paths only to whom they belong."""
        return self._full(self._past(arguments), caller, now)

    def jobs(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        """The same of all that a name means: an array has many rows."""
        found = self._references.past(arguments.get("id"))
        return {"jobs": [self._full(past, caller, now) for past in found]}

    def _full(self, past: JobRecord, caller: Caller, now: float) -> dict[str, Any]:
        record = self._record(past, caller, now)
        record["refused"] = "" if record["is_private"] else self._refusal(past.job)
        found = cause(self._engine.jobtable, past.job)
        record["cause"] = None if found is None else to_builtins(found)
        record["events"] = self._engine.store.steps.of(past.job.id)
        return record

    def script(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        """The script as it was submitted; its owner's secret."""
        job = self._past(arguments).job
        if not caller.may_see_secrets(job):
            raise NotPermitted(
                f"job {job.id} belongs to another user", "Its script is shown to its owner only."
            )
        script, _ = self._engine.store.material(job.id)
        if not script:
            raise Refused(
                f"the script of job {job.id} is no longer kept",
                "It was removed some time after the job ended: keep_scripts in fgsched.toml(5).",
            )
        return {"script": script.decode(errors="surrogateescape")}

    def pids(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        job = self._past(arguments).job
        caller.must_own(job)
        return {"pids": self._pids(job) if job.state.holds else []}

    def waited(self, ids: Any) -> Generator[None, None, tuple[list[Job], set[Key]]]:
        """(those that are over, what is waited for); refuses the first name that there is no job for.

        What was over when it was asked for is looked up in steps, since it does not change any more. The open
        ones are looked at in the last step, since nothing tells of those that end before it.
        """
        if not isinstance(ids, list) or len(ids) > _WAITED:
            raise BadUsage(f"ids is not a list of at most {_WAITED} job ids")
        names, jobtable = _distinct(ids), self._engine.jobtable.jobs
        over: dict[Any, Job] = {}
        for piece in cut([name for name in names if type(name) is int and name not in jobtable]):
            found = (past.job for name in piece for past in self._references.past(name))
            over |= {job.id: job for job in found if job.state.is_final and not job.array}
            yield
        keys: set[Key] = set()
        jobtable = self._engine.jobtable.jobs
        for name in names:
            if name in jobtable and not jobtable[name].array:
                keys.add(name)
            elif name not in over:
                keys |= self._open_of(name, over)
        return list(over.values()), keys

    def _open_of(self, name: Any, over: dict[Any, Job]) -> set[Key]:
        """What waiting for the open rows of a name means; those that are over are added to `over`."""
        keys: set[Key] = set()
        for past in self._references.past(name):
            if past.job.state.is_final:
                over[past.job.id] = past.job
            else:
                keys |= self._keys(past.job, name)
        return keys

    def _keys(self, job: Job, name: Any) -> set[Key]:
        """What waiting for an open row means: all of its array, some tasks of its rest, or itself."""
        if job.array and name == job.array:
            return {(job.array, None)}
        _, wanted = split_reference(name)
        array = self._engine.jobtable.arrays.get(job.array) if job.is_rest else None
        if array is None:
            return {job.id}
        return {(job.array, task) for task in tasks(array.rest & (wanted or 0))}

    @property
    def policy(self) -> Policy:
        return self._engine.policy

    @property
    def log(self) -> DecisionLog:
        return self._engine.log

    @property
    def running(self) -> int:
        return len(self._engine.jobtable.holding)

    def history(self, caller: Caller, arguments: dict[str, Any], now: float) -> Pieces:
        """A page of the jobs that existed in a window of time, by id; `next` asks for the one after.

        With `ids`, those of at most a page of names; `missing` are the names that nothing has.
        """
        tail: dict[str, Any] = {"next": None, "missing": []}
        if "ids" in arguments:
            found = self._named(arguments["ids"], tail["missing"])
        else:
            uid = arguments.get("uid")
            window: dict[str, Any] = {
                "since": _number(arguments, "since", 0.0),
                "until": _number(arguments, "until", _MOST),
                "uid": None if uid is None else int(_number(arguments, "uid", 0)),
            }
            found = self._window(window, int(_number(arguments, "after", 0)), tail)
        rows = ([self._record(past, caller, now) for past in piece] for piece in found)
        return Pieces({}, "jobs", rows, lambda: tail)

    def _window(self, window: dict[str, Any], after: int, tail: dict[str, Any]) -> Iterator[list[JobRecord]]:
        """The pieces of a page of the jobs in a window."""
        left = PAGE
        while left:
            found = self._engine.store.history(**window, after=after, page=min(left, PIECE))
            yield found
            left -= len(found)
            if len(found) < PIECE:
                return
            after = found[-1].job.id
        tail["next"] = after

    def _record(self, past: JobRecord, caller: Caller, now: float) -> dict[str, Any]:
        """What a list says of a job; of one for which that fails, with the defaults of its request."""
        try:
            return self._described(past, caller, now)
        except Exception as error:
            self._engine.faults.note(f"the record of job {past.job.id}", error)
            return self._described(JobRecord(_bare(past.job), ()), caller, now)

    def _described(self, past: JobRecord, caller: Caller, now: float) -> dict[str, Any]:
        """`describe`, with the present reason, and without what is the owner's secret."""
        record = describe(past, now) | {"reason": self._engine.jobtable.reason(past.job).value}
        record["gpu_compute"] = policy_of(past.job, self._engine.policy)
        record["eviction"] = to_builtins(past.job.preemption) if past.job.preemption else None
        record["pacing"] = self._mechanism(past.job)
        record["tasks"] = rest_text(self._engine, past.job)
        record["is_private"] = not caller.may_see_secrets(past.job)
        if record["is_private"]:
            record["detail"] = ""  # it names paths
            record["note"] = ""
            record["request"] = {key: record["request"][key] for key in _PUBLIC if key in record["request"]}
        return record

    def gpus(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        """The cards, what is left of each, what was last seen on it, and its jobs."""
        engine = self._engine
        rooms = engine.jobtable.rooms(engine.cards.gpus, engine.cards.readings)
        host = engine.jobtable.host(engine.limits)
        return {
            "gpus": [
                to_builtins(room.gpu)
                | {
                    "state": room.gpu.state.value,
                    "free_share": room.share,
                    "free_memory": max(0, room.memory),
                    "external": room.external,
                    "jobs": [
                        job.id
                        for job in engine.jobtable.holding.values()
                        if any(hold.gpu == room.gpu.index for hold in job.holds)
                    ],
                    "seen": self._seen(room.gpu.index),
                    "kept_as": self.policy.kept_as(room.gpu.index, now),
                }
                for room in rooms
            ],
            "enforce": engine.tier,
            "preload": engine.mounts.word,
            "preload_note": engine.mounts.note,
            "other_gpus": engine.mounts.others,
            "cpus": {"free": host.cpus, "total": engine.limits.cpus},
            "memory": {"free": host.memory, "total": engine.limits.host_memory},
            "jobs": self._counts(),
        }

    def _seen(self, index: int) -> dict[str, Any] | None:
        reading = self._engine.cards.readings.get(index)
        return to_builtins(reading) if reading else None

    def _counts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for job in self._engine.jobtable.jobs.values():
            found[job.state.value] = found.get(job.state.value, 0) + self._engine.jobtable.tasks(job)
        return found

    def check(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        """Whether the queue file is whole. It takes long: only an operator has it read at each request."""
        if caller.is_operator or not self._verdict or not 0 <= now - self._checked_at < _CHECKED:
            self._verdict, self._checked_at = self._engine.store.check(), now
        return {"queue": self._verdict}

    def _past(self, arguments: dict[str, Any]) -> JobRecord:
        """The one job that is named."""
        name = arguments.get("id")
        found = self._references.past(name)
        if len(found) > 1:
            raise Refused(f"{name} is an array of {len(found)} rows", f"Name one task, such as {name}_0.")
        return found[0]

    def _named(self, ids: Any, missing: list[Any]) -> Iterator[list[JobRecord]]:
        """Pieces of those that there are of a page of names; the names that nothing has go to `missing`."""
        if not isinstance(ids, list) or len(ids) > PAGE:
            raise BadUsage(f"history: ids is not a list of at most {PAGE} job ids")
        for one in ids:
            split_reference(one)

        def found() -> Iterator[list[JobRecord]]:
            for one in ids:
                try:
                    yield self._references.past(one)
                except NoSuchJob:
                    missing.append(one)

        return found()


def _distinct(ids: list[Any]) -> list[Any]:
    """The names, each once; BadUsage for one that cannot be a name."""
    try:
        return list(dict.fromkeys(ids))
    except TypeError:
        raise BadUsage("ids holds something that is not a job id") from None


class _Snapshot:
    """The open jobs at one moment, for as long as an answer is made of them."""

    def __init__(self, jobtable: JobTable) -> None:
        self.jobtable, self.revision = jobtable, jobtable.revision
        self.jobs = tuple(jobtable.jobs.values())


def _bare(job: Job) -> Job:
    """A job without anything that is written in a form of its own."""
    nothing: dict[str, Any] = {"array": 0, "task": None, "depends": "", "resources": (), "cpus": ""}
    return job.changed(request=Request(name=job.request.name), preemption=None, post_mortem=None, **nothing)


def describe(past: JobRecord, now: float) -> dict[str, Any]:
    """One job as a plain record."""
    job = past.job
    ended = job.ended or Ended(status=0)
    hooked = bool(job.attempt) and is_hooked(job.tier, has_cards=bool(past.allocated))
    return standing(job) | {
        "uid": job.uid,
        "partition": job.partition or job.request.partition,
        "resources": [[name, list(indices)] for name, indices in job.resources],
        "gid": job.gid,
        "user": job.user,
        "reason": job.reason.value,
        "held": job.held,
        "attempt": job.attempt,
        "restarts": job.restarts,
        "array": job.array or None,
        "task": job.task,
        **{name: getattr(job, name) for name in ("depends", "note", "cpus")},
        "suspended": suspended_seconds(job, now),
        "submitted_at": job.submitted_at,
        "eligible_at": eligible(job),
        "started_at": job.started_at,
        "ended_at": job.ended_at if job.state.is_final else None,
        "elapsed": elapsed(job, now),
        "request": to_record(job.request),
        "allocated": [one._asdict() for one in past.allocated] if job.attempt else [],
        "tier": job.tier,
        "preload": preload_of(job.mounts, hooked=hooked),
        "other_gpus": others_of(job.mounts),
        "cancelled_by": job.cancelled_by,
        "cpu_seconds": ended.cpu_seconds,
        "max_rss": ended.max_rss,
        "gpu_peak": ended.gpu_peak,
        "refusals": ended.refusals,
        "detail": ended.detail,
        "lost": job.supervisor_lost,
        "warning": job.warning,
        "post_mortem": to_builtins(job.post_mortem) if job.post_mortem else None,
    }


def _number(arguments: dict[str, Any], name: str, default: float) -> float:
    value = arguments.get(name, default)
    if type(value) not in {int, float} or not -_MOST <= value <= _MOST:
        raise BadUsage(f"{name} is not a number of up to 15 digits")
    return float(value)
