"""The requests that ask what will be: why a job waits, when it starts, what would become of another."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.controller.handlers.jobs import JobHandlers
from fgsched.controller.handlers.references import References, name_of
from fgsched.controller.jobtable import pending
from fgsched.controller.preemption import outlook, room_made
from fgsched.controller.waitindex import opens
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import Job, JobState, Reason
from fgsched.scheduling.explain.advice import TRIES, advice
from fgsched.scheduling.explain.blockers import blockers
from fgsched.scheduling.explain.explain import gate, sentence
from fgsched.scheduling.explain.forecast import Expected, forecast
from fgsched.scheduling.explain.remedies import advised, lifted, shown, update_word
from fgsched.scheduling.explain.runtimes import History
from fgsched.scheduling.queue import QueuedJob
from fgsched.scheduling.snapshot import Snapshot

_MOST = 50  # jobs whose blockers are told in one answer
_PARTS = {"likely": 0.5, "late": 0.9}  # of a name's earlier runs: how many were over by then
_REMEMBERED = 30 * 86400.0  # seconds of history that count


class ExplainHandlers:
    """`answer = prospects.operations[name](caller, arguments, now)`."""

    def __init__(self, engine: Engine, handlers: JobHandlers) -> None:
        self._engine, self._job_handlers = engine, handlers
        self._references = References(engine)
        self.operations: dict[str, Callable[[Caller, dict[str, Any], float], Any]] = {
            "why": self.why,
            "starts": self.starts,
            "test": self.test,
        }

    # -- why ------------------------------------------------------------------------------------

    def why(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        """Of each job named, or else of the caller's that wait: every blocker, and what to do about it."""
        jobs = self._meant(caller, arguments)
        snapshot = self._scene(now)
        jobs, left_out = jobs[:_MOST], len(jobs) - _MOST
        tries = max(1, snapshot.plans(TRIES * len(jobs)) // max(1, len(jobs)))
        told = [self._told(snapshot, job, tries) for job in jobs]
        starts = self._starts(snapshot, {job.id for job in jobs})
        return {
            "jobs": [record | {"start": starts.get(record["id"])} for record in told],
            "left_out": max(0, left_out),
        }

    def _meant(self, caller: Caller, arguments: dict[str, Any]) -> list[Job]:
        names = arguments.get("ids")
        if names is None:
            mine = (job for job in self._engine.jobtable.jobs.values() if job.uid == caller.uid)
            return [job for job in mine if job.state is JobState.PENDING]
        if not isinstance(names, list):
            raise BadUsage("why: ids is not a list")
        return [job for name in names for job in self._references.rows(name)]

    def _told(self, snapshot: Snapshot, job: Job, tries: int) -> dict[str, Any]:
        record: dict[str, Any] = {
            "id": job.id,
            "called": name_of(job),
            "name": job.request.name,
            "user": job.user,
            "state": job.state.value,
            "reason": self._engine.jobtable.reason(job).value,
            "blockers": self._wait_index(job),
            "advice": [],
            "notes": room_made(self._engine.jobtable, job),
        }
        entry = snapshot.queue.entry(job.id)
        if entry is not None:
            record |= self._of_waiting(snapshot, entry, tries)
            record["notes"] = record["notes"] or outlook(self._engine, snapshot, entry)
        return record

    def _wait_index(self, job: Job) -> list[dict[str, Any]]:
        """What keeps it from being considered at all."""
        if job.state is not JobState.PENDING:
            return []
        jobtable, found = self._engine.jobtable, []
        if job.held:
            release = "fgctl release" if job.held == "user" else "an operator's fgctl release"
            found.append(_blocker(jobtable.reason(job), "is held", f"with {release} {name_of(job)}"))
        closed = jobtable.wait_index.closed(job)
        if closed is not None:
            found.append(_blocker(closed, gate(job, closed), "", at=opens(job) or None))
        return found

    def _of_waiting(self, snapshot: Snapshot, entry: QueuedJob, tries: int) -> dict[str, Any]:
        decided = snapshot.plan()
        return {
            "blockers": [
                _blocker(
                    each.short.reason,
                    sentence(each.short),
                    lifted(each),
                    at=each.lift.at if each.lift.at < math.inf else None,
                    jobs=each.lift.jobs,
                )
                | {"partition": each.partition}
                for each in blockers(snapshot, entry, decided)
            ],
            "advice": [
                {
                    "text": advised(each),
                    "option": each.change.option,
                    "value": shown(each.change)[0],
                    "update": update_word(each.change),
                    "gpus": [hold.gpu for hold in each.start.holds],
                }
                for each in advice(snapshot, entry, decided, most=tries)
            ],
        }

    def _scene(self, now: float) -> Snapshot:
        engine = self._engine
        gpus = engine.cards.gpus_for_planning(now)
        return engine.jobtable.snapshot(gpus, engine.cards.readings, limits=engine.limits, now=now)

    # -- when -----------------------------------------------------------------------------------

    def starts(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        """When the jobs that wait will start: at the latest by their limits, and likely."""
        snapshot = self._scene(now)
        waiting = {job.id for job in self._engine.jobtable.jobs.values() if job.state is JobState.PENDING}
        found = self._starts(snapshot, {one for one in waiting if snapshot.queue.entry(one)})
        for job in self._engine.jobtable.jobs.values():
            if job.id in waiting and job.id not in found and opens(job) > now:
                found[job.id] = {"not_before": opens(job)}
        return {"starts": [[job_id, record] for job_id, record in sorted(found.items())]}

    def _starts(self, snapshot: Snapshot, wanted: set[int]) -> dict[int, dict[str, Any]]:
        """{job: at the latest, likely, late, cards, how much of it history knows}."""
        worst = forecast(snapshot, _by_limit, lambda job: job.until, wanted)
        history = History(self._engine.store.runs_since(snapshot.now - _REMEMBERED))
        lengths = {name: self._lengths(history, part, snapshot.now) for name, part in _PARTS.items()}
        guesses = {name: forecast(snapshot, *both, wanted) for name, both in lengths.items()}
        found = {}
        for job_id in wanted:
            said = {name: _at(guess.get(job_id)) for name, guess in guesses.items()}
            best = guesses["likely"].get(job_id) or worst.get(job_id)
            if best is not None:
                found[job_id] = {
                    "latest": _at(worst.get(job_id)),
                    **said,
                    "gpus": [hold.gpu for hold in best.holds],
                    "partition": best.partition,
                    "before": len(best.before),
                    "known": sum(history.runs(self._name(one)) > 0 for one in best.before),
                }
        return found

    def _name(self, job_id: int) -> tuple[int, str]:
        job = self._engine.jobtable.jobs.get(job_id)
        return (job.uid, job.request.name) if job else (-1, "")

    def _lengths(self, history: History, part: float, now: float) -> tuple[Any, Any]:
        """(how long a waiting job, until when a running one) is supposed to run, by their earlier runs."""
        jobs = self._engine.jobtable.jobs

        def waits(entry: QueuedJob) -> float:
            likely = history.likely(self._name(entry.id), entry.time_limit, part)
            return likely if likely is not None else _by_limit(entry)

        def runs(one: Any) -> float:
            job = jobs.get(one.id)
            likely = history.likely(self._name(one.id), job.request.time_limit, part) if job else None
            if job is None or job.started_at is None or likely is None or job.state is JobState.SUSPENDED:
                return float(one.until)
            return min(float(one.until), max(now + 1.0, job.started_at + likely))

        return waits, runs

    # -- what if --------------------------------------------------------------------------------

    def test(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        """What would become of a submission; nothing is queued. Refused as the submission would be."""
        made = self._job_handlers.tried(caller, arguments, now)
        first = self._engine.store.last_id() + 1
        who = (caller.uid, caller.gid, caller.name)
        jobs = [new.job(number, who, now) for number, new in enumerate(made[:_MOST], first)]
        return {"jobs": [self._tested(job, now) for job in jobs], "left_out": max(0, len(made) - _MOST)}

    def _tested(self, job: Job, now: float) -> dict[str, Any]:
        snapshot = self._scene(now)
        untimely = self._untimely(job, now)
        record: dict[str, Any] = {"id": job.id, "blockers": untimely, "advice": [], "notes": []}
        entry = replace(pending(job), count=1)
        with snapshot.instead(entry):
            start = None if record["blockers"] else self._starts(snapshot, {job.id}).get(job.id)
            if not record["blockers"]:
                record |= self._of_waiting(snapshot, entry, snapshot.plans(TRIES))
                record["notes"] = outlook(self._engine, snapshot, entry) if record["blockers"] else []
            holds = _holds(snapshot, entry)
        return record | {"start": start, "holds": holds, "partition": job.request.partition}

    def _untimely(self, job: Job, now: float) -> list[dict[str, Any]]:
        if job.held:
            return [_blocker(Reason.HELD_USER, "would be held", "with fgctl release")]
        if job.depends:
            return [_blocker(Reason.DEPENDENCY, gate(job, Reason.DEPENDENCY), "")]
        if opens(job) > now:
            return [_blocker(Reason.BEGIN_TIME, gate(job, Reason.BEGIN_TIME), "", at=opens(job))]
        return []


def _blocker(
    reason: Reason, text: str, lifts: str, *, at: float | None = None, jobs: Iterable[int] = ()
) -> dict[str, Any]:
    return {"reason": reason.value, "text": text, "lifted": lifts, "at": at, "jobs": list(jobs)}


def _by_limit(entry: QueuedJob) -> float:
    return float(entry.time_limit) if entry.time_limit else math.inf


def _at(expected: Expected | None) -> float | None:
    return expected.at if expected else None


def _holds(snapshot: Snapshot, entry: QueuedJob) -> list[Mapping[str, int]]:
    """What it would be given if it started now; empty if it would not."""
    start = next((one for one in snapshot.plan().starts if one.job_id == entry.id), None)
    holds = start.holds if start else ()
    return [{"gpu": hold.gpu, "share": hold.share, "memory": hold.memory} for hold in holds]
