"""Handle requests for explanations and forecasts of pending jobs and of trial submissions.

They plan often, so they are answered in steps, with a copy of the queue: turns change the queue meanwhile.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial

from msgspec.structs import replace

from fgsched import protocol
from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.controller.handlers.fields import elapsed
from fgsched.controller.handlers.jobref import References, name_of
from fgsched.controller.handlers.registration import reads
from fgsched.controller.jobtable import opens, pending
from fgsched.controller.starting import outlook, preemption_notes
from fgsched.domain.job import Job
from fgsched.domain.states import JobState, Reason
from fgsched.domain.steps import Steps
from fgsched.domain.waiting import Advice, Blocker, ExpectedStart, Explanation, Trial, Unblock, gate_of
from fgsched.lifecycle.dependencies import Term, parse_dependency
from fgsched.scheduling.explain import TRIES, Expected, advice, blockers, forecast
from fgsched.scheduling.planner import Plan, Snapshot
from fgsched.scheduling.queue import QueuedJob
from fgsched.scheduling.reservations import Running
from fgsched.scheduling.runtimes import RunHistory, work_of
from fgsched.server import LongAnswer, LongQuestion, cut
from fgsched.store import NewJob
from fgsched.store.store import Unreadable

_MOST = 50  # jobs in one answer
_CULPRITS = 3  # jobs and tasks that a sentence about a dependency names
_QUANTILES = {"likely": 0.5, "late": 0.9}  # of the earlier runs of the same work
_REMEMBERED = 30 * 86400.0  # seconds of history that count


class ExplainHandlers:
    """The handlers of explanations, forecasts and trial submissions."""

    def __init__(
        self, engine: Engine, tried: Callable[[Caller, protocol.Test, float], Sequence[NewJob]]
    ) -> None:
        """Take `tried`, which returns the jobs that a trial submission would make."""
        self._engine, self._tried = engine, tried
        self._references = References(engine)

    # -- why ------------------------------------------------------------------------------------

    @reads(protocol.ExplainJobs)
    def why(
        self, caller: Caller, call: protocol.ExplainJobs, now: float
    ) -> LongQuestion[protocol.Explanations]:
        """Return all blockers of the named jobs, or of the caller's pending jobs, with their remedies."""
        return LongQuestion(partial(self._why, caller, call))

    def _why(self, caller: Caller, call: protocol.ExplainJobs, now: float) -> Steps[protocol.Explanations]:
        jobs = yield from self._meant(caller, call.ids)
        snapshot = self._scene(now)
        jobs, left_out = jobs[:_MOST], len(jobs) - _MOST
        explained: list[Explanation] = []
        for job in jobs:
            explained.append(self._present(job))
            yield
        tries = max(1, snapshot.plans(TRIES * len(jobs)) // max(1, len(jobs)))
        starts, is_cut_off = yield from self._starts(snapshot, {job.id for job in jobs})
        for place, about in enumerate(explained):
            explained[place] = yield from self._planned(snapshot, about, tries, starts, is_cut_off)
        return protocol.Explanations(jobs=explained, left_out=max(0, left_out))

    def _meant(self, caller: Caller, names: Sequence[protocol.Reference] | None) -> Steps[list[Job]]:
        if names is None:
            own_jobs: list[Job] = []
            for piece in cut(list(self._engine.jobtable.jobs.values())):
                own_jobs += [job for job in piece if caller.owns(job) and job.state is JobState.PENDING]
                yield
            return own_jobs
        return [job for name in names for job in self._references.seen_rows(name, caller)]

    def _present(self, job: Job) -> Explanation:
        """Return the part of an explanation that needs no plan."""
        return Explanation(
            id=job.id,
            called=name_of(job),
            name=job.request.name,
            user=job.user,
            state=job.state,
            reason=self._engine.jobtable.reason(job),
            blockers=self._named(self._gates(job)),
            advice=[],
            notes=preemption_notes(self._engine.jobtable, job),
            start=None,
        )

    def _planned(
        self,
        snapshot: Snapshot,
        about: Explanation,
        tries: int,
        starts: dict[int, ExpectedStart],
        is_cut_off: bool,
    ) -> Steps[Explanation]:
        """Add the forecast start and, of a job in the queue, its blockers and advice."""
        entry = snapshot.queue.entry(about.id)
        if entry is not None:
            decided = yield from snapshot.plan_in_steps()
            blockers, changes = yield from _blockers_and_advice(snapshot, entry, decided, tries)
            notes = about.notes or outlook(self._engine, snapshot, entry)
            about = replace(about, blockers=self._named(blockers), advice=changes, notes=notes)
            yield
        is_behind = is_cut_off and about.id not in starts
        return replace(about, start=starts.get(about.id), is_behind_too_many=is_behind)

    def _named(self, blockers: Sequence[Blocker]) -> list[Blocker]:
        """Add the names of jobs that are tasks of arrays, as the queue shows them."""
        jobs, named_blockers = self._engine.jobtable.jobs, []
        for blocker in blockers:
            lifting_jobs = [jobs[job] for job in blocker.lift.jobs if job in jobs]
            if any(job.array for job in lifting_jobs) and len(lifting_jobs) == len(blocker.lift.jobs):
                called = tuple(str(name_of(job)) for job in lifting_jobs)
                blocker = replace(blocker, lift=replace(blocker.lift, called=called))
            named_blockers.append(blocker)
        return named_blockers

    def _gates(self, job: Job) -> list[Blocker]:
        """Return the gates that keep a pending job out of the queue."""
        if job.state is not JobState.PENDING:
            return []
        jobtable, gates = self._engine.jobtable, []
        closed = jobtable.wait_index.closed(job)
        if job.held:
            gates.append(Blocker(gate_of(job, jobtable.reason(job))))
        if closed is not None:
            gate = gate_of(job, closed)
            if closed is Reason.DEPENDENCY_NEVER:
                gate = replace(gate, broken=self._broken(job))
            gates.append(Blocker(gate, Unblock(at=opens(job) or None)))
        return gates

    def _broken(self, job: Job) -> str:
        """Return which jobs and tasks made a dependency impossible, such as "8_2 is FAILED"."""
        with suppress(Unreadable):
            culprits = [name for term in parse_dependency(job.depends).terms for name in self._against(term)]
            return ", ".join(culprits[:_CULPRITS]) + (" and others" if len(culprits) > _CULPRITS else "")
        return ""

    def _against(self, term: Term) -> list[str]:
        """Return the jobs and tasks whose end contradicts one condition. Raises Unreadable."""
        tasks = self._engine.store.tasks
        job_record = tasks.get(term.job, term.task) if term.task is not None else None
        past = job_record or self._engine.store.past(term.job)
        if past is None or term.kind == "singleton":
            return []
        wrong = term.kind == "afternotok"
        if job_record is None and past.job.array == past.job.id and not wrong:
            failed = sorted(
                task for task, is_completed in tasks.ended(past.job.id).items() if not is_completed
            )
            rows = [
                task_record.job
                for task in failed[: _CULPRITS + 1]
                if (task_record := tasks.get(past.job.id, task))
            ]
        else:
            rows = [past.job]
        ended = [row for row in rows if row.state.is_final and (row.state is JobState.COMPLETED) == wrong]
        return [f"{name_of(job)} is {job.state.value}" for job in ended]

    def _scene(self, now: float) -> Snapshot:
        """Return the present input of a plan, with a queue of its own."""
        engine = self._engine
        gpus = engine.gpu_states.gpus_for_planning(now)
        shared = engine.jobtable.snapshot(gpus, engine.gpu_states.readings, limits=engine.limits, now=now)
        return replace(shared, queue=shared.queue.copy())

    # -- when -----------------------------------------------------------------------------------

    @reads(protocol.ListStarts)
    def starts(self, caller: Caller, call: protocol.ListStarts, now: float) -> LongQuestion[protocol.Starts]:
        """Return the latest and the likely starts of the pending jobs that the caller may see."""
        return LongQuestion(partial(self._listed_starts, caller))

    def _listed_starts(self, caller: Caller, now: float) -> Steps[LongAnswer[protocol.Starts]]:
        snapshot, job_ids, later = self._scene(now), set[int](), dict[int, ExpectedStart]()
        for piece in cut(self._engine.jobtable.in_order()):
            for job in piece:
                if job.state is JobState.PENDING and caller.may_see(job):
                    if snapshot.queue.kind(job.id) is not None:
                        job_ids.add(job.id)
                    elif opens(job) > now:
                        later[job.id] = ExpectedStart(not_before=opens(job))
            yield
        expected_starts, _ = yield from self._starts(snapshot, job_ids)
        rows = sorted((later | expected_starts).items(), key=lambda pair: pair[0])
        return LongAnswer("starts", cut(rows), lambda: protocol.Starts(starts=[]))

    def _starts(self, snapshot: Snapshot, job_ids: set[int]) -> Steps[tuple[dict[int, ExpectedStart], bool]]:
        """Return the forecast starts, and whether the forecast was cut off because of too many jobs."""
        worst = yield from forecast(snapshot, _by_limit, lambda job: job.until, job_ids)
        yield
        history = RunHistory(self._engine.store.runs_since(snapshot.now - _REMEMBERED))
        yield
        guesses = {}
        for name, part in _QUANTILES.items():
            lengths = self._lengths(history, part, snapshot.now)
            guesses[name] = yield from forecast(snapshot, *lengths, job_ids)
            yield
        known_runs = cache(lambda job_id: self._likely(history, job_id, 0.5, snapshot.now) is not None)
        best_starts: dict[int, tuple[Expected, list[int]]] = {}
        for source in (worst, guesses["likely"]):
            known_counts = yield from _counts(known_runs, source.over)
            best_starts |= {job_id: (best, known_counts) for job_id, best in source.starts.items()}
        expected_starts = {}
        for job_id in job_ids:
            if job_id in best_starts:
                yield
                best, known_counts = best_starts[job_id]
                known_count = known_counts[best.before]
                is_guess = not best.before or known_count > 0  # else nothing but the limits is known
                expected_starts[job_id] = ExpectedStart(
                    latest=_at(worst.starts.get(job_id)),
                    likely=_at(guesses["likely"].starts.get(job_id)) if is_guess else None,
                    late=_at(guesses["late"].starts.get(job_id)) if is_guess else None,
                    gpus=tuple(hold.gpu for hold in best.holds),
                    partition=best.partition,
                    before=best.before,
                    known=known_count,
                )
        return expected_starts, worst.is_cut_off

    def _likely(self, history: RunHistory, job_id: int, part: float, now: float) -> float | None:
        """Return how many seconds a job is likely to run in total; None: not known."""
        job = self._engine.jobtable.jobs.get(job_id)
        if job is None:
            return None
        ran = elapsed(job, now) if job.state.holds else 0.0
        request = job.request
        return history.likely((job.uid, work_of(request)), request.time_limit, part, elapsed=ran)

    def _lengths(
        self, history: RunHistory, part: float, now: float
    ) -> tuple[Callable[[QueuedJob], float], Callable[[Running], float]]:
        """Return two assumptions: the run time of a waiting job in seconds, and the end of a running job.

        Both follow from the `part` quantile of the earlier runs of the same work.
        """
        jobs = self._engine.jobtable.jobs

        def run_time(entry: QueuedJob) -> float:
            likely = self._likely(history, entry.id, part, now)
            return likely if likely is not None else _by_limit(entry)

        def end(running_job: Running) -> float:
            job, likely = jobs.get(running_job.id), self._likely(history, running_job.id, part, now)
            if job is None or likely is None or job.state is JobState.SUSPENDED:
                return float(running_job.until)
            return min(float(running_job.until), max(now + 1.0, job.start_time + job.suspended + likely))

        return run_time, end

    # -- test -----------------------------------------------------------------------------------

    @reads(protocol.Test)
    def test(self, caller: Caller, call: protocol.Test, now: float) -> LongQuestion[protocol.Trials]:
        """Return the expected starts of a trial submission, without queueing its jobs.

        The steps raise the errors of a submission.
        """
        return LongQuestion(partial(self._test, caller, call))

    def _test(self, caller: Caller, call: protocol.Test, now: float) -> Steps[protocol.Trials]:
        new_jobs = self._tried(caller, call, now)
        first = self._engine.store.last_id() + 1
        submitter = (caller.uid, caller.gid, caller.name)
        jobs = [new.job(number, submitter, now) for number, new in enumerate(new_jobs[:_MOST], first)]
        snapshot, trials = self._scene(now), list[Trial]()
        for job in jobs:
            trials.append((yield from self._trial(snapshot, job, now)))
            yield
        return protocol.Trials(jobs=trials, left_out=max(0, len(new_jobs) - _MOST))

    def _trial(self, snapshot: Snapshot, job: Job, now: float) -> Steps[Trial]:
        entry = replace(pending(job), count=1)
        with snapshot.with_job(entry):
            decided = yield from snapshot.plan_in_steps()
            holds = next((start.holds for start in decided.starts if start.job_id == entry.id), ())
            partition = job.request.partition
            if closed := self._closed(job, now):
                return Trial(id=job.id, partition=partition, blockers=closed, holds=holds)
            blockers, changes = yield from _blockers_and_advice(
                snapshot, entry, decided, snapshot.plans(TRIES)
            )
            starts, _ = yield from self._starts(snapshot, {job.id})
            return Trial(
                id=job.id,
                partition=partition,
                blockers=self._named(blockers),
                advice=changes,
                notes=outlook(self._engine, snapshot, entry) if blockers else [],
                start=starts.get(job.id),
                holds=holds,
            )

    def _closed(self, job: Job, now: float) -> list[Blocker]:
        """Return the gate that would keep a new job out of the queue."""
        if job.held:
            return [Blocker(gate_of(job, Reason.HELD_USER if job.reason is Reason.NONE else job.reason))]
        if job.depends:
            return [Blocker(gate_of(job, Reason.DEPENDENCY))]
        if opens(job) > now:
            return [Blocker(gate_of(job, Reason.BEGIN_TIME), Unblock(at=opens(job)))]
        return []


def _blockers_and_advice(
    snapshot: Snapshot, entry: QueuedJob, decided: Plan, tries: int
) -> Steps[tuple[list[Blocker], list[Advice]]]:
    """Return the blockers of a queue entry, and the changes with which it would start.

    `decided` is the plan of `snapshot`. At most `tries` changes are tried.
    """
    sufficient = yield from advice(snapshot, entry, decided, most=tries)
    changes = [
        Advice(
            option=start_advice.change.option,
            before=start_advice.change.before,
            after=start_advice.change.after,
            gpus=tuple(hold.gpu for hold in start_advice.start.holds),
        )
        for start_advice in sufficient
    ]
    return blockers(snapshot, entry, decided), changes


def _counts(holds: Callable[[int], bool], job_ids: Sequence[int]) -> Steps[list[int]]:
    """Return for each number of jobs how many of the first ones `holds` is true for."""
    counts = [0]
    for job_id in job_ids:
        counts.append(counts[-1] + holds(job_id))
        yield
    return counts


def _by_limit(entry: QueuedJob) -> float:
    return float(entry.time_limit) if entry.time_limit else math.inf


def _at(expected: Expected | None) -> float | None:
    return expected.at if expected else None
