"""Handle requests that change jobs and GPUs. Each handler returns the answer to send after the commit."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import UNSET, structs, to_builtins
from msgspec.structs import replace

from fgsched import protocol
from fgsched.controller import turn
from fgsched.controller.caller import Caller
from fgsched.controller.containment import line_of_error
from fgsched.controller.engine import Engine
from fgsched.controller.handlers.dependencies import Conditions, UnmetConditions
from fgsched.controller.handlers.jobref import References, Target, Targets, name_of
from fgsched.controller.handlers.longorder import JobsOrder, LongOrder, UpdateOrder, is_long
from fgsched.controller.handlers.registration import writes
from fgsched.controller.handlers.submission import Rules, SubmissionHandlers, check_mail
from fgsched.controller.starting import go_on, has_room
from fgsched.domain.errors import BadUsage, FgschedError, NotPermitted, OurFault, Refused
from fgsched.domain.job import NO_LIMIT, Job, Request, read_request
from fgsched.domain.states import JobState, Reason
from fgsched.domain.times import format_limit
from fgsched.protocol import (
    DemandChanges,
    JobChanges,
    Outcome,
    Outcomes,
    Problem,
    Reference,
    Requeue,
    ResumeJobs,
    Suspend,
)
from fgsched.scheduling.admission import AdmissionContext, Submitter, admit, check_plain

_LONGEST_NOTE = 255  # characters
_UNPAUSED = {"failures": 0, "repeats": 0, "links": 0, "not_before": 0.0}  # what a release ends
Act = Callable[[Caller, Job, float], Outcome]


class JobActions:
    """Applies actions; an error of one job does not affect the others."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._references = References(engine)

    def each(
        self,
        caller: Caller,
        names: Sequence[Reference],
        act: Act,
        now: float,
        *,
        is_meant: Callable[[Job], bool] = lambda job: True,
    ) -> Outcomes:
        """Apply `act` to every row of `names`.

        For a whole array, apply it only to the rows for which `is_meant` is true, if there are any.
        """
        outcomes: list[Outcome] = []
        for name in dict.fromkeys(names):
            try:
                rows = self._references.own_rows(name, caller)
            except FgschedError as error:
                outcomes.append(_failed(name.name if isinstance(name, Target) else name, error))
                continue
            chosen = [row for row in rows if is_meant(row)] if type(name) is int else rows
            outcomes += [self._one(caller, row, act, now) for row in chosen or rows[:1]]
        return Outcomes(jobs=outcomes)

    def _one(self, caller: Caller, row: Job, act: Act, now: float) -> Outcome:
        """Apply the action to one row.

        An internal error is its outcome; the turn is repeated without the job.
        """
        containment = self._engine.containment
        if row.id in containment.blamed:  # no effect of a failed change is carried out
            return _failed(name_of(row), OurFault(containment.blamed[row.id]))
        try:
            return act(caller, row, now)
        except FgschedError as error:
            return _failed(name_of(row), error)
        except Exception as error:
            containment.raise_if_of_store(error)
            containment.blame(row.id, error)
            return _failed(name_of(row), OurFault(line_of_error(error)))


def _failed(name: Reference, error: FgschedError) -> Outcome:
    return Outcome(id=name, error=Problem.of(error))


_UNDER_WAY = {JobState.STARTING, JobState.RUNNING, JobState.SUSPENDED}


class RunningJobHandlers:
    """The handlers of orders to running jobs, called as handler(caller, call, now) in the transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._actions = JobActions(engine)

    @writes(Requeue)
    def requeue(self, caller: Caller, call: Requeue, now: float) -> Outcomes:
        """End running jobs and requeue them, held if `hold` is set. Raises Refused."""

        def act(caller: Caller, job: Job, now: float) -> Outcome:
            _must_be_under_way(job)
            _must_not_be_adopted(job, "started again")
            holder = "" if not call.hold else "user" if caller.owns(job) else "admin"
            change = self._engine.change(job, now, wish="requeue", held=holder)
            self._engine.then(turn.RequeueOrder(change))
            return Outcome(id=name_of(job), outcome="requeued")

        return self._actions.each(caller, call.ids, act, now, is_meant=_is_under_way)

    @writes(Suspend)
    def suspend(self, caller: Caller, call: Suspend, now: float) -> Outcomes:
        """Suspend running jobs and their time limits; they keep their allocations. Raises Refused."""
        caller.must_operate("suspend jobs: what they hold stays taken")

        def act(caller: Caller, job: Job, now: float) -> Outcome:
            if job.state is not JobState.RUNNING:
                raise Refused(f"job {job.id} is {job.state.value}", "Only running jobs can be suspended.")
            _must_not_be_adopted(job, "suspended")
            turn.require_supervisor(self._engine, job)
            after = job.advance(JobState.SUSPENDED, suspended_at=now)
            self._engine.step(job, after, now)
            outcome = Outcome(id=name_of(job), outcome="suspended")
            self._engine.then(turn.SuspendOrder(after, outcome))
            return outcome

        return self._actions.each(caller, call.ids, act, now, is_meant=_is_running)

    @writes(ResumeJobs)
    def resume_jobs(self, caller: Caller, call: ResumeJobs, now: float) -> Outcomes:
        """Resume suspended jobs. Raises Refused."""
        caller.must_operate("resume jobs")

        def act(caller: Caller, job: Job, now: float) -> Outcome:
            if job.state is not JobState.SUSPENDED:
                raise Refused(f"job {job.id} is {job.state.value}", "Only suspended jobs can be resumed.")
            preemption = job.suspending_preemption
            if preemption is not None and not has_room(self._engine, job, now):
                raise Refused(
                    f"job {job.id} is preempted by job {preemption.by}: its part of the GPU is not free",
                    "It resumes automatically as soon as its part is free.",
                )
            turn.require_supervisor(self._engine, job)
            outcome = Outcome(id=name_of(job), outcome="resumed")
            go_on(self._engine, job, now, outcome)
            return outcome

        return self._actions.each(caller, call.ids, act, now, is_meant=_is_suspended)


def _is_under_way(job: Job) -> bool:
    return job.state in _UNDER_WAY


def _is_running(job: Job) -> bool:
    return job.state is JobState.RUNNING


def _is_suspended(job: Job) -> bool:
    return job.state is JobState.SUSPENDED


def _must_be_under_way(job: Job) -> None:
    if job.state is JobState.PENDING:
        raise Refused(f"job {job.id} is pending already", "fgctl hold keeps it there.")
    if not _is_under_way(job):
        raise Refused(f"job {job.id} is already completing or completed", "Submit it again with fgsub.")


def _must_not_be_adopted(job: Job, action: str) -> None:
    if job.adopted is not None:
        raise Refused(
            f"job {job.id} is the adopted process {job.adopted.pid}, which cannot be {action}",
            "fgcancel ends it, and fgcancel --signal sends it a signal.",
        )


class JobHandlers(SubmissionHandlers, RunningJobHandlers):
    """The handlers for jobs and GPUs. Each is called as handler(caller, call, now) within the transaction."""

    def __init__(self, engine: Engine, rules: Rules) -> None:
        SubmissionHandlers.__init__(self, engine, rules)
        RunningJobHandlers.__init__(self, engine)
        self._references = References(engine)
        self.orders = _ORDERS  # the requests about rows, which can be very many

    def _asker_of(self, caller: Caller, job: Job) -> Submitter:
        """Return the submitter whose rights apply to a change: the owner, or the operator who makes it."""
        return replace(caller.submitter, user=job.user)

    @writes(protocol.Cancel)
    def cancel(self, caller: Caller, call: protocol.Cancel, now: float) -> Outcomes:
        """Cancel jobs. The outcome of a job that has already ended is "over", with its state."""
        return self._actions.each(caller, call.ids, partial(self._cancel, call.reason), now)

    @writes(protocol.Signal)
    def signal(self, caller: Caller, call: protocol.Signal, now: float) -> Outcomes:
        """Send running jobs a signal: the batch shell, its children, or all processes. Raises Refused."""

        def act(caller: Caller, job: Job, now: float) -> Outcome:
            if job.state.is_final or job.state is JobState.COMPLETING:
                return _over(job)
            if job.state is not JobState.RUNNING:
                raise Refused(f"job {job.id} is not running", "Only running jobs can be sent a signal.")
            turn.require_supervisor(self._engine, job)
            outcome = Outcome(id=name_of(job), outcome="signalled")
            self._engine.then(turn.SendSignal(job, call.signal, call.target, outcome))
            return outcome

        return self._actions.each(caller, call.ids, act, now)

    @writes(protocol.Join)
    def join(self, caller: Caller, call: protocol.Join, now: float) -> Outcomes:
        """Start an agent in running jobs of the caller. Raises Refused, and NotPermitted for other users."""

        def act(caller: Caller, job: Job, now: float) -> Outcome:
            if not caller.owns(job):  # the agent runs as the owner, and would refuse an operator
                raise NotPermitted(f"job {job.id} belongs to another user", "Only its owner may join it.")
            if job.state is not JobState.RUNNING:
                raise Refused(f"job {job.id} is not running", "See: fgq --why")
            turn.require_supervisor(self._engine, job)
            outcome = Outcome(id=name_of(job), outcome="joined")
            self._engine.then(turn.StartAgent(job, call.caller, outcome))
            return outcome

        return self._actions.each(caller, call.ids, act, now)

    @writes(protocol.HoldJobs)
    def hold(self, caller: Caller, call: protocol.HoldJobs, now: float) -> Outcomes:
        """Hold pending jobs. Only an operator can release a job that an operator holds."""
        return self._actions.each(caller, call.ids, self._hold, now, is_meant=_waits)

    @writes(protocol.UserHold)
    def uhold(self, caller: Caller, call: protocol.UserHold, now: float) -> Outcomes:
        """Keep pending jobs from starting; their owner can release them."""
        return self._actions.each(caller, call.ids, self._hold_as_user, now, is_meant=_waits)

    @writes(protocol.Release)
    def release(self, caller: Caller, call: protocol.Release, now: float) -> Outcomes:
        """Release held jobs."""
        return self._actions.each(caller, call.ids, self._release, now, is_meant=_waits)

    @writes(protocol.Update)
    def update(self, caller: Caller, call: protocol.Update, now: float) -> Outcome:
        """Change the request of a job, as far as its state permits.

        Raises:
            BadUsage: nothing is changed, or a value is invalid.
            NotPermitted: the caller may not change the job or the field.
            Refused: the changed request is impossible.
        """
        changes = call.changes
        if not changed_fields(changes):
            raise BadUsage("update: nothing to change")
        engine = self._engine
        rows = self._references.own_rows(call.id, caller)
        conditions = Conditions(engine, kill_invalid=self.rules.kill_invalid)
        outcome = Outcome(id=call.id.name if isinstance(call.id, Targets) else call.id)
        for job in rows_to_change(rows, changes, caller.submitter):
            request = changed_request(job, changes, self._asker_of(caller, job), self.ground)
            check_mail(request, self.rules.mail)
            after = conditions.changed(job, request, caller, now)
            is_limited = after.request.time_limit != job.request.time_limit
            if is_limited and job.state is not JobState.PENDING:
                turn.require_supervisor(engine, job)
            engine.store.change_request(job.id, after.request)
            engine.jobtable.put(after)
            if (after.depends, after.reason) != (job.depends, job.reason):
                engine.change(after, now)
            if is_limited and job.state is not JobState.PENDING:
                self._relimit(after, outcome, now)
            if "dependency" in changed_fields(changes):
                self._warn_of_dependency(after.request, outcome, now)
        return outcome

    def long_order(self, caller: Caller, call: protocol.Call[Any]) -> LongOrder | None:
        """Return the parts of one of `orders` about very many jobs; None for another one."""
        if isinstance(call, protocol.Update):
            if not is_long(self._engine, [call.id]):
                return None
            is_for = partial(_is_for, changes=call.changes, submitter=caller.submitter)
            return UpdateOrder(self._engine, caller, is_for, call)
        if not is_long(self._engine, call.ids):  # type: ignore[attr-defined]
            return None
        return JobsOrder(self._engine, caller, _MEANT[type(call)], call)

    def _warn_of_dependency(self, request: Request, outcome: Outcome, now: float) -> None:
        if not request.dependency:
            return
        unmet = UnmetConditions(self._engine, now)
        text = unmet.warning(request, kill_invalid=self.rules.kill_invalid, option="dependency")
        outcome.warnings = tuple(dict.fromkeys(filter(None, (*outcome.warnings, text))))

    def _relimit(self, job: Job, outcome: Outcome, now: float) -> None:
        """Send the new time limit to a running job. A starting job receives it when it has a shepherd."""
        change = self._engine.change(job, now, relimited=True)
        if job.state is not JobState.STARTING:
            self._engine.then(turn.RelimitOrder(change, outcome))

    @writes(protocol.DrainGpu)
    def drain(self, caller: Caller, call: protocol.DrainGpu, now: float) -> protocol.GpuIndex:
        """Drain a GPU: start no new jobs on it. Raises BadUsage without a reason."""
        caller.must_operate("drain a GPU")
        index, note = self._gpu(call.gpu), call.reason[:_LONGEST_NOTE]
        if not note:
            raise BadUsage("a reason is needed to drain a GPU", "fgctl drain gpu=N reason='fan is loud'")
        self._engine.gpu_states.drain(index, f"{note} [{caller.name}]", now)
        return protocol.GpuIndex(gpu=index)

    @writes(protocol.ResumeGpu)
    def resume(self, caller: Caller, call: protocol.ResumeGpu, now: float) -> protocol.GpuIndex:
        """Return a drained GPU to service."""
        caller.must_operate("resume a GPU")
        index = self._gpu(call.gpu)
        self._engine.gpu_states.resume(index, now)
        return protocol.GpuIndex(gpu=index)

    # -- one job --------------------------------------------------------------------------------

    def _cancel(self, note: str, caller: Caller, job: Job, now: float) -> Outcome:
        engine = self._engine
        by = {"cancelled_by": caller.uid, "note": note}
        if job.state is JobState.COMPLETING and job.outcome is JobState.PENDING:
            engine.change(job, now, outcome=JobState.CANCELLED, **by)  # it was to run again
            return Outcome(id=name_of(job), outcome="cancelled")
        if job.state.is_final or job.state is JobState.COMPLETING:
            return _over(job)
        if job.state is JobState.PENDING:
            over = {"ended_at": now, "reason": Reason.NONE}
            engine.change(job, now, state=JobState.CANCELLED, **by, **over)
            return Outcome(id=name_of(job), outcome="cancelled")
        cancelled_job = job if job.cancelled_by is not None else engine.change(job, now, **by)
        engine.then(turn.CancelOrder(cancelled_job))
        return Outcome(id=name_of(job), outcome="cancelled")

    def _hold(self, caller: Caller, job: Job, now: float) -> Outcome:
        _must_wait(job)
        holder = "user" if caller.owns(job) else "admin"
        if job.held != "admin":
            self._engine.change(job, now, held=holder)
        return Outcome(id=name_of(job), outcome="held")

    def _hold_as_user(self, caller: Caller, job: Job, now: float) -> Outcome:
        _must_wait(job)
        if job.held == "admin" and not caller.is_operator:
            raise NotPermitted(f"job {job.id} is held by an operator", "Ask an operator to release it.")
        self._engine.change(job, now, held="user")
        return Outcome(id=name_of(job), outcome="held")

    def _release(self, caller: Caller, job: Job, now: float) -> Outcome:
        _must_wait(job)
        if job.held == "admin" and not caller.is_operator:
            raise NotPermitted(f"job {job.id} is held by an operator", "Ask an operator to release it.")
        if job.id in self._engine.jobtable.unreadable:
            raise Refused(f"job {job.id} cannot be released: {job.warning}", "Cancel it and submit it again.")
        never = Reason.DEPENDENCY_NEVER  # no release changes that
        reason = job.reason if job.reason is never else Reason.NONE
        self._engine.change(job, now, held="", reason=reason, **_UNPAUSED, opened_at=now)
        return Outcome(id=name_of(job), outcome="released")

    def _gpu(self, index: int) -> int:
        """Return `index`; Refused if the host has no such GPU."""
        if index not in self._engine.gpu_states:
            raise Refused(f"this host has no GPU {str(index)[:20]}", "fginfo -g lists its GPUs.")
        return index


def _over(job: Job) -> Outcome:
    return Outcome(id=name_of(job), outcome="over", state=(job.outcome or job.state).value)


def _waits(job: Job) -> bool:
    return job.state is JobState.PENDING


def _must_wait(job: Job) -> None:
    if job.state is not JobState.PENDING:
        raise Refused(f"job {job.id} is no longer pending", "Only pending jobs can be held or released.")


def _is_any(job: Job) -> bool:
    return True


# request -> the rows of a whole array that it is about
_MEANT: dict[type[protocol.Call[Any]], Callable[[Job], bool]] = {
    Requeue: _is_under_way,
    Suspend: _is_running,
    ResumeJobs: _is_suspended,
    protocol.Cancel: _is_any,
    protocol.Signal: _is_any,
    protocol.Join: _is_any,
    protocol.HoldJobs: _waits,
    protocol.UserHold: _waits,
    protocol.Release: _waits,
}

_ORDERS: frozenset[type[protocol.Call[Any]]] = frozenset({*_MEANT, protocol.Update})

# -- changes of a job ---------------------------------------------------------------------------

_ALWAYS = {"name", "comment", "requeue", "mail_type", "mail_user"}
_WHILE_RUNNING = {"time_limit"}  # lowered by the owner, raised by operators
_CALLED = {"demand": "what it asks for (GPUs, CPUs, memory)", "gpu_compute": "gpu-compute"}
_OF_ARRAYS = {"throttle"}  # of all tasks together


def changed_fields(changes: JobChanges) -> set[str]:
    """Return the names of the fields whose values `changes` replaces."""
    names = {name for name, value in structs.asdict(changes).items() if value is not UNSET}
    if changes.demand == DemandChanges():
        names.discard("demand")
    return names


def rows_to_change(rows: Sequence[Job], changes: JobChanges, submitter: Submitter) -> list[Job]:
    """Return the rows of an array to which a change applies; otherwise the first row, which refuses it."""
    allowed = [row for row in rows if _is_for(row, changes, submitter)]
    return allowed or list(rows[:1])


def _is_for(row: Job, changes: JobChanges, submitter: Submitter) -> bool:
    fields = changed_fields(changes)
    if fields <= _ALWAYS | _OF_ARRAYS:
        return not row.state.is_final
    is_for_running = fields <= _ALWAYS | _OF_ARRAYS | _WHILE_RUNNING and _is_under_way(row)
    return row.state is JobState.PENDING or (is_for_running and _may_limit(row, changes, submitter))


def _may_limit(job: Job, changes: JobChanges, submitter: Submitter) -> bool:
    """Tell whether the caller may set this time limit of a running job: only operators may raise it."""
    if submitter.is_operator or changes.time_limit is UNSET:
        return True
    new = changes.time_limit if changes.time_limit > 0 else math.inf
    return new <= (job.request.time_limit or math.inf)


def changed_request(job: Job, changes: JobChanges, submitter: Submitter, ground: AdmissionContext) -> Request:
    """Return the job's request with the changes.

    Raises: Refused or NotPermitted for the first field that may not be changed; BadUsage for a bad value.
    """
    fields = changed_fields(changes)
    _check_fields(job, fields)
    if job.state is not JobState.PENDING and not _may_limit(job, changes, submitter):
        limit = format_limit(job.request.time_limit)
        raise NotPermitted(
            f"job {job.id} is under way with a time limit of {limit}: only an operator may raise it",
            "Give a shorter one, or ask an operator.",
        )
    record = to_builtins(job.request) | to_builtins(structs.replace(changes, demand=UNSET))
    if changes.demand is not UNSET:
        record |= {"demand": to_builtins(job.request.demand) | to_builtins(changes.demand)}
    request = read_request(record)
    check_plain(request)
    if job.state is not JobState.PENDING or fields <= _ALWAYS:
        return structs.replace(request, time_limit=max(0, request.time_limit))
    return admit(structs.replace(request, time_limit=request.time_limit or NO_LIMIT), submitter, ground)


def _check_fields(job: Job, fields: set[str]) -> None:
    """Refuse a field that cannot be changed in the job's state."""
    if job.state.is_final or job.state is JobState.COMPLETING:
        raise Refused(
            f"job {job.id} is already completing or completed",
            "Only pending and running jobs can be changed.",
        )
    if fields & _OF_ARRAYS and not job.array:
        raise Refused(f"job {job.id} is no array", "Only arrays have a limit of tasks that run.")
    late = sorted(fields - _ALWAYS - _OF_ARRAYS - _WHILE_RUNNING)
    if late and job.state is not JobState.PENDING:
        raise Refused(
            f"job {job.id} is no longer pending: {_CALLED.get(late[0], late[0])} stays",
            "Its name, comment, mails, requeue flag and time limit can change.",
        )
