"""Make turns: take in events, plan, commit, and then carry out the effects.

All events since the last turn are taken in together and committed once. Effects follow the commit. Each can
be repeated or undone by a controller that starts after a crash at any point (`recover`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from fgsched.controller.containment import (
    PAUSE,
    AlreadyMarked,
    Containment,
    Doomed,
    Faults,
    Unattributed,
    is_held_for_an_error,
    line_of_error,
    marked,
)
from fgsched.controller.decisionlog import DecisionLog
from fgsched.controller.gpustate import BY_PROGRAM, GpuStates
from fgsched.controller.jobtable import JobTable
from fgsched.controller.mailing import JobMails, no_usage
from fgsched.controller.mpsdaemons import MpsServers, NoMps
from fgsched.controller.sitepolicy import SitePolicy
from fgsched.controller.starting import Eligibility, Starter, begin, culprits
from fgsched.controller.turn import (
    RETRY,
    AttemptLauncher,
    CancelOrder,
    ClientRequest,
    ClientsEnded,
    Effect,
    EngineContext,
    EpilogDone,
    Epilogs,
    Event,
    Executor,
    Faulted,
    Follow,
    Forget,
    HostShort,
    JobEnded,
    JobStarted,
    MpsHost,
    NoEpilogs,
    PrologFailed,
    Recovery,
    ResendOrders,
    RunEpilog,
    StartFailed,
    WatchdogFinding,
    job_to_mark,
    without_overtaken,
)
from fgsched.controller.usage import UsageCharges, charged_seconds
from fgsched.crash import point
from fgsched.domain.errors import OurFault, StorageError
from fgsched.domain.job import Ended, GpuState, HostLimits, Job, JobUsage, OomReport, Refusal
from fgsched.domain.policy import Policy
from fgsched.domain.states import JobState, Reason
from fgsched.lifecycle.enforcement import MountPlan
from fgsched.lifecycle.launchspec import CpuBinding
from fgsched.lifecycle.mps import is_server
from fgsched.lifecycle.transitions import (
    Alive,
    Delay,
    Finish,
    KillRemaining,
    RequeueUnstarted,
    Result,
    Seen,
    Shepherd,
    ShepherdGone,
    WatchShepherd,
    blame_gpu,
    complete,
    lost,
    reason_of,
    recover,
    settle,
    withdraw,
)
from fgsched.lifecycle.watchdog import oom_report, watchdog_changes
from fgsched.scheduling.planner import JobStart
from fgsched.store import JobRecord, StorageBroken, Store, is_fatal

_AFTER_UNDONE = 1.0  # seconds after a turn that could not be stored, until it is repeated without an event
_LONGEST = 300.0  # seconds until the clock, which may be set, is read again while a job waits for a time
_SOON = 0.1  # seconds between two attempts to end the processes of a job without a shepherd


NO_MOUNTS, NO_BINDING = MountPlan(), CpuBinding()


class Engine:
    """The engine of the controller. All durable state is in the store, so a crash loses none."""

    def __init__(  # noqa: PLR0913  all that it needs
        self,
        store: Store,
        launcher: AttemptLauncher,
        gpu_states: GpuStates,
        *,
        limits: HostLimits,
        tier: str,  # how jobs are held to their share of device memory on this host
        faults: Faults | None = None,
        mounts: MountPlan = NO_MOUNTS,  # the private mounts of jobs
        binding: CpuBinding = NO_BINDING,  # to which CPUs jobs are bound; as policy
        epilogs: Epilogs | None = None,
        log: DecisionLog | None = None,
        mps_host: MpsHost | None = None,  # the processes of MPS daemons
        usage: Callable[[Job], JobUsage | None] = no_usage,  # sums of samples, for mails
    ) -> None:
        """Begin without jobs; `recover` reads them. What is None is left out."""
        self.store, self.launcher, self.gpu_states = store, launcher, gpu_states
        self.site = SitePolicy(store, gpu_states, limits)
        self.charges = UsageCharges(store.kept)
        self.mounts, self.binding, self.tier = mounts, binding, tier
        self._starter, self.jobtable = Starter(), JobTable()
        self.eligibility = Eligibility(self)
        self.orphans: dict[int, float] = {}  # jobs without a shepherd -> end of their processes
        self.undelivered: dict[int, float] = {}  # job -> when an order to it was tried last
        self._is_sweep_due = False  # the traces of ended attempts are removed after the next commit
        self.unsaved: list[Event] = []  # ends that could not be stored yet: the disk was full
        self.ended: list[Job] = []  # since the last call of the caller
        self.is_broken = False  # the store is not to be used any more: the next controller takes up from it
        self.faults = faults or Faults()
        self.log = log or DecisionLog()
        self.mail = JobMails(self, usage)
        self.mps = MpsServers(mps_host or NoMps())
        self.epilogs: Epilogs = epilogs or NoEpilogs()
        self.containment = Containment(self.faults)
        self._executor, self._after = Executor(self), list[Effect]()
        self._faulted: list[Event] = []  # effects that failed for a job, for the next turn
        self._plans_again_at = -math.inf  # planning failed, and is left out until then
        self._ended_before: list[Job] = []  # the part of `ended` that earlier turns committed
        self._undone_at = -math.inf  # when a turn could not be stored; none was stored since
        self._turned_at = -math.inf  # the time with which the last turn planned

    @property
    def policy(self) -> Policy:
        """The policy of the site that is in effect."""
        return self.site.policy

    @property
    def limits(self) -> HostLimits:
        """The CPUs and the memory of the host that jobs can use, and the rules for sharing a GPU."""
        return self.site.limits

    @property
    def mps_host(self) -> MpsHost:
        """The processes of the MPS daemons."""
        return self.mps.host

    # -- the turn -------------------------------------------------------------------------------

    def turn(self, events: Iterable[Event], now: float) -> None:
        """Take in the events, plan, commit, and carry out the effects."""
        events = without_overtaken([*self.unsaved, *self._faulted, *events])
        self.unsaved, self._faulted, self._turned_at = [], [], now
        try:
            failure = self._commit(partial(self._steps, events, now), now)
        except Unattributed as unattributed:
            self._turn_each(events, unattributed.error, now)
            return
        if failure is not None:
            self._undo(events, failure, now)
            return
        point("controller_after_commit")
        self._refuse_guilty(events)
        self._finish(now)

    def _steps(self, events: Iterable[Event], now: float) -> None:
        """Do the part of a turn that is within the transaction."""
        for event in events:
            self._take_in(event, now)
        follow_up_orphans(self, now)
        resend_orders(self, now)
        self.mail.create_due_mails(now)
        self._clean(now)
        self.containment.check()
        self._mark_blamed(now)  # jobs that were submitted in this turn
        self.eligibility.settle(now)
        self.containment.check()
        self._plan(now)
        self.mps.settle(self, now)
        self.containment.check()

    def _commit(self, steps: Callable[[], None], now: float) -> StorageError | None:
        """Run `steps` in one transaction; repeat it without the jobs for which it fails.

        Returns the error if the store cannot be written. Raises Unattributed if `steps` fail twice and no
        single job is the cause. In both cases nothing is stored.
        """
        orphans, settled, self._ended_before = dict(self.orphans), -1, list(self.ended)
        self.mps.begin()
        while True:
            try:
                with self.store.write():
                    settled = self.containment.begin_round(settled)
                    self._mark_blamed(now)
                    steps()
                    self.charges.write()
                    self.mail.tidy()
                    point("controller_before_commit")
                self.mail.committed()
                self.containment.begin()
                self._ended_before = list(self.ended)
                return None
            except StorageError as error:
                self.orphans = orphans
                return error
            except Doomed:
                pass
            except Exception as error:
                if self._plans_again_at > now:
                    self.orphans = orphans
                    raise Unattributed(error) from error
                self._planning_failed(error, now)
            self.orphans = dict(orphans)
            self._forget_turn(now)
            if self.is_broken:  # the job table differs from the queue: no further round
                return StorageBroken("the queue cannot be read", "Repeat the command.")

    def _turn_each(self, events: Sequence[Event], error: Exception, now: float) -> None:
        """Make a turn for each event alone, to find the event that causes a failure."""
        self.containment.begin()
        self.containment.refused.clear()
        self._forget_turn(now)
        if len(events) > 1:
            for event in events:
                self._plans_again_at = -math.inf  # it was not planning that failed
                self.turn([event], now)
        elif not events:
            self.faults.note("a turn", error)
        elif self._fails_without_events(now):
            self.faults.note("a turn", error)
            self._undo(
                events, StorageError(f"internal error: {line_of_error(error)}", "Repeat the command."), now
            )
        else:
            self._turn_again(events[0], now)

    def _turn_again(self, event: Event, now: float) -> None:
        """Repeat a turn that fails with this event only; if it fails again, drop the event."""
        try:
            failure = self._commit(partial(self._steps, [event], now), now)
        except Unattributed as again:
            if isinstance(event, ClientRequest):
                event.refuse(OurFault(self.faults.note("a request", again.error)))
            elif isinstance(event, Recovery):
                self.faults.note("recovery", again.error)
            else:
                self.containment.set_aside(event.job, again.error)
            self._forget_turn(now)
            return
        if failure is not None:
            self._undo([event], failure, now)
            return
        self._refuse_guilty([event])
        self._finish(now)

    def _fails_without_events(self, now: float) -> bool:
        """Make a turn without events; return whether it fails too, so that no event is blamed."""
        try:
            failure = self._commit(partial(self._steps, [], now), now)
        except Unattributed:
            self._forget_turn(now)
            return True
        if failure is not None:
            return True
        self._finish(now)
        return False

    def _finish(self, now: float) -> None:
        """Carry out the effects of the committed decisions, and log the decisions."""
        self._undone_at = -math.inf
        if self._is_sweep_due:  # before the jobs that this turn starts
            self._is_sweep_due = False
            self._sweep()
        effects = self._drain()
        self.faults.run("the log", partial(self.log.flush, now))
        self.carry_out(effects)

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out effects in order. An effect that fails for one job does not affect the others."""
        for effect in effects:
            try:
                self.perform(effect)
            except Exception as error:
                self._effect_failed(effect, error)

    def perform(self, effect: Effect) -> None:
        self._executor.perform(effect)

    def _effect_failed(self, effect: Effect, error: Exception) -> None:
        """Make the next turn determine the state of the job, after its effect failed."""
        job = job_to_mark(effect)
        if isinstance(error, StorageError) or is_fatal(error):
            self.is_broken = True  # the next controller carries out the remaining committed effects
        subject = f"job {job.id}" if job else "an effect"
        why = f"internal error: {self.faults.note(subject, error)}"
        if job is not None:
            self._faulted.append(Faulted(job.id, job.attempt, why))

    def _drain(self) -> list[Effect]:
        effects, self._after = self._after, []
        return effects

    def then(self, effect: Effect) -> None:
        """Carry out this effect after the commit of the turn."""
        self._after.append(effect)

    def _undo(self, events: Iterable[Event], error: StorageError, now: float) -> None:
        """Roll back the turn: drop its changes, refuse its requests, and keep its events."""
        self.is_broken = self.is_broken or isinstance(error, StorageBroken)
        self._undone_at = now
        self.containment.begin()
        self.containment.refused.clear()
        self._forget_turn(now)
        requests = [event for event in events if isinstance(event, ClientRequest)]
        self.unsaved += [event for event in events if not isinstance(event, ClientRequest)]
        for request in requests:
            if request.stores or self.is_broken:
                request.refuse(error)
            else:
                self._carry_out_unstored(request, now)

    def _carry_out_unstored(self, request: ClientRequest, now: float) -> None:
        """Carry out a request that stores nothing, such as a signal, though its turn could not be stored."""
        try:
            self.then(request.act(now))
        except Exception as error:
            request.refuse(OurFault(self.faults.note("a request", error)))
        self.carry_out(self._drain())

    def _refuse_guilty(self, events: Iterable[Event]) -> None:
        """Refuse the requests that caused internal errors; the turn was made without them."""
        refused, self.containment.refused = self.containment.refused, {}
        for event in events if refused else ():
            if isinstance(event, ClientRequest) and (fault := refused.get(id(event))):
                event.refuse(fault)

    def _forget_turn(self, now: float) -> None:
        self._after, self.ended = [], list(self._ended_before)
        self.log.drop()
        self.gpu_states.undone()
        self.mps.undo()
        if self.is_broken:
            return
        try:
            self.site.restore()
        except Exception as error:
            self.faults.note("the policy of the site", error)
        try:
            self._read_book()
            self._resume_cleaning(now)
        except Exception as error:
            if not is_fatal(error):
                raise
            self.is_broken = True
            self.faults.note("the queue", error)

    def _read_book(self) -> None:
        self.charges.read()
        records = self.store.open_past()
        while bad := self._filled_table(records):
            for job_id, error in bad.items():
                self.containment.set_aside(job_id, error)
        self.jobtable.allocations = {
            past.job.id: past.allocated for past in records if past.job.id in self.jobtable.holding
        }
        for past in records:
            if past.damage:
                self.containment.damage(past.job, past.damage)
        self.mail.resume()

    def _filled_table(self, records: Iterable[JobRecord]) -> dict[int, Exception]:
        """Build the job table from the open jobs; return the error of each job that it cannot contain.

        A failed `put` may leave the table inconsistent. Therefore each later job that fails is also tried in
        an empty table, and is reported only if it fails there, too.
        """
        self.jobtable, bad = JobTable(made_tasks=self.store.tasks.made), dict[int, Exception]()
        for past in records:
            if past.job.id in self.containment.aside:
                self.jobtable.set_aside(past.job)
                continue
            if past.damage:
                self.jobtable.unreadable.add(past.job.id)
            error = _failure_of(self.jobtable, past.job)
            if error and (not bad or _failure_of(JobTable(made_tasks=self.store.tasks.made), past.job)):
                bad[past.job.id] = error
        return bad

    def _resume_cleaning(self, now: float) -> None:
        for job in self.jobtable.holding.values():
            if job.state is not JobState.COMPLETING or self.epilogs.runs(job.id):
                continue
            if not self.gpu_states.cleans(job.id):
                self.gpu_states.begin_cleaning(job.id, now)

    # -- failures of one job ------------------------------------------------------------------------

    def _mark_blamed(self, now: float) -> None:
        """Mark the jobs that caused errors; set aside each job that cannot be marked.

        One round handles all of them, so the number of rounds does not grow with the number of jobs.
        """
        failed = False
        for job_id, why in list(self.containment.unmarked.items()):
            job = self.jobtable.jobs.get(job_id)
            if job is None:
                continue
            del self.containment.unmarked[job_id]
            try:
                self._mark(job, why, now)
            except Exception as error:
                self.containment.raise_if_of_store(error)
                self.containment.set_aside(job_id, error)
                failed = True
                if self.jobtable.is_torn:
                    break  # later failures may be caused by the inconsistent table
        if failed:
            raise Doomed

    def _charge_marked(self, job: Job, now: float) -> None:
        """Charge a job that is marked; a fault of its charge must not leave it on its GPUs."""
        try:
            self.charges.charge(job, self.jobtable.allocations.get(job.id, ()), now, self.policy)
        except Exception as error:
            if is_fatal(error):
                raise
            self.faults.note(f"the charge of job {job.id}", error)

    def _mark(self, job: Job, why: str, now: float) -> None:
        """Record the error of a job (`containment.marked`)."""
        if is_held_for_an_error(job):
            raise AlreadyMarked
        attempt = None if job.state in (JobState.PENDING, JobState.COMPLETING) else self.launcher.seize(job)
        lives = isinstance(attempt, Alive) or (
            isinstance(attempt, ShepherdGone) and not self.launcher.kill_remaining(job)
        )
        if lives:  # a shortage may pass: it is taken up again soon, as often as it takes
            self.orphans.setdefault(job.id, math.inf)
        if lives and job.warning == why:
            return
        status = attempt.status if isinstance(attempt, Result) else 0
        is_dirty = self.epilogs.is_configured or (bool(job.holds) and self.gpu_states.needs_cleaning)
        after = marked(job, why, now, lives=lives, status=status, is_dirty=is_dirty)
        if job.id in self.containment.damaged:
            self.store.repair(job, self.jobtable.allocations.get(job.id, ()))
        if not self.store.save(job, after, now=now):
            raise AlreadyMarked
        if job.holds and not after.holds:
            self._charge_marked(after, now)
        self.log.step(job, after)
        self.jobtable.put(after)
        self.mail.note(job, after, now)
        if lives:
            return
        self.orphans.pop(job.id, None)
        if after.state.is_final:
            self.ended.append(after)
        elif after.state is JobState.COMPLETING:
            self.gpu_states.begin_cleaning(job.id, now)
        if job.state not in (JobState.PENDING, JobState.COMPLETING):
            self.then(Forget(job))

    def _plan(self, now: float) -> None:
        """Plan, and start the jobs that fit.

        Jobs for which planning fails are held; if no job is the cause, planning pauses.
        """
        if now < self._plans_again_at <= now + PAUSE:
            return
        try:
            self._start_what_fits(now)
        except Exception as error:
            self.containment.raise_if_of_store(error)
            gpus = self.gpu_states.gpus_for_planning(now)
            blamed = culprits(self.jobtable, gpus, self.gpu_states.readings, self.limits, now)
            for job_id in blamed:
                self.containment.blame(job_id, error)
            if not blamed:
                self._planning_failed(error, now)
                raise Doomed from error

    def _planning_failed(self, error: Exception, now: float) -> None:
        self.faults.note("planning", error)
        self.containment.pauses += 1
        self._plans_again_at = now + PAUSE

    def due(self, now: float) -> float | None:
        """Return the seconds until the engine needs a turn without events; None if it needs none.

        A turn that could not be stored changes nothing, so it is repeated after a second and not at once.
        """
        pause = min((seconds for seconds in self._dues(now) if seconds is not None), default=None)
        undone_pause = self._undone_at + _AFTER_UNDONE - now
        return max(pause, undone_pause) if pause is not None and undone_pause <= _AFTER_UNDONE else pause

    def _dues(self, now: float) -> Iterator[float | None]:
        table = self.jobtable
        yield 0.0 if self._faulted or table.wait_index.to_evaluate else None
        if self._plans_again_at > self._turned_at and table.waiting:  # the last turn left planning out
            yield min(PAUSE, max(0.0, self._plans_again_at - now))
        yield 0.0 if self._undone_at > -math.inf and table.waiting else None  # what it planned is lost
        yield _AFTER_UNDONE if self.unsaved else self.mail.due(now)
        yield RETRY if self.undelivered else None
        yield RETRY if self.gpu_states.is_cleaning and not self.gpu_states.needs_cleaning else None
        yield self._orphans_due()
        yield self.mps.due(now)
        unseen = min(now, self._turned_at)  # a reservation may have begun or ended since the turn
        for at in (table.wait_index.next_due, self.site.next_due(unseen), table.next_end(unseen)):
            yield None if at is None else min(_LONGEST, max(0.0, at - now))
        if table.is_contended or (self.policy.has_quotas and table.waiting):
            yield self._drift_due(now)

    def _drift_due(self, now: float) -> float:
        """Return the seconds until the waiting jobs are planned again because only time has passed.

        Priorities change with fair share and age, used GPU time decays, and a job becomes too long for its
        operator's reservation: then another job is first, or the capacity kept for the first one is free.
        """
        interval = float(self.policy.weights.interval)
        return min(interval, max(0.0, self._turned_at + interval - now))

    def tidy(self) -> None:
        """Forget the reservations that had ended when the last turn planned."""
        self.site.tidy(self._turned_at)

    def _orphans_due(self) -> float | None:
        """Return the seconds until the jobs without a shepherd are examined again."""
        return _SOON if self.orphans else None

    # -- events -------------------------------------------------------------------------------------

    def _take_in(self, event: Event, now: float) -> None:
        if isinstance(event, ClientRequest):
            self._ask(event, now)
            return
        if isinstance(event, Recovery):
            self._take_up_all(now)
            self._is_sweep_due = True
            return
        if isinstance(event, EpilogDone):
            self.containment.run(event.job, partial(self._epilog_done, event, now))
            return
        if is_server(event.job):
            with self.faults.contained("an MPS daemon"):
                self.mps.take_event(self, event, now)
            return
        job = self.jobtable.under_way(event.job)
        if job is not None:  # else it is a late event of an ended attempt
            self.containment.run(job.id, partial(self._happened, job, event, now))

    def _ask(self, event: ClientRequest, now: float) -> None:
        if id(event) in self.containment.refused:
            return
        self.log.requester = event.by
        try:
            self.then(event.act(now))
        except Exception as error:
            self.containment.raise_if_of_store(error)
            self.containment.refuse(event, error)
        finally:
            self.log.requester = ""

    def _happened(self, job: Job, event: Event, now: float) -> None:
        match event:
            case JobStarted(attempt=job.attempt, shepherd=shepherd):
                self._run(job, shepherd, now)
            case StartFailed(attempt=job.attempt, why=why):
                ended = Ended(status=0, detail=why)
                self.end(job, Finish(JobState.FAILED, Reason.LAUNCH_FAILURE, ended), now)
            case HostShort(attempt=job.attempt, why=why):
                self._return(job, Reason.HOST_SHORTAGE, why, now)
            case PrologFailed(attempt=job.attempt, why=why):
                self._drain_gpus(job, f"the prolog of job {job.id} {why}", now)
                self._return(job, Reason.PROLOG_FAILED, f"the prolog {why}", now)
            case JobEnded(attempt=attempt) if attempt in {0, job.attempt}:
                self.take_up(job, self.launcher.seize(job), now)  # with a result or not
            case WatchdogFinding(attempt=job.attempt):
                take_finding(self, job, event, now)
            case ClientsEnded():
                self.mps.clients_ended(self, event, job)
            case Faulted(attempt=job.attempt):
                self.containment.accuse(job.id, event.why)

    def _run(self, job: Job, shepherd: Shepherd, now: float) -> None:
        if job.state is JobState.STARTING:
            running = job.advance(JobState.RUNNING)
            if self.store.run(job, running, now=now):
                self.jobtable.put(running)
                self.mail.note(job, running, now)
                job = running
        self.then(Follow(job, shepherd))

    def end(self, job: Job, finish: Finish, now: float) -> None:
        """Record how a job ended.

        It keeps its holds until its GPUs list no process of it, and until its epilog has run.
        """
        dirty = (
            bool(job.holds) and self.gpu_states.needs_cleaning and finish.reason is not Reason.LAUNCH_FAILURE
        )
        over = complete(
            *(job, finish, now),
            reason=Reason.GPU_CLEANING if dirty else finish.reason,
            post_mortem=post_mortem(self, job, finish.refusal) if finish.refusal else job.post_mortem,
        )
        is_over = not dirty and not self.epilogs.is_configured
        after = settle(over, now, max_requeue=self.limits.max_requeue) if is_over else over
        self.step(job, after, now, over=over)
        self.orphans.pop(job.id, None)
        if dirty:
            self.gpu_states.begin_cleaning(job.id, now)
        elif after.state is JobState.COMPLETING:
            self._begin_epilog(after)
        if finish.survivor:
            self.gpu_states.left_alive(job, finish.survivor, now)
        reported = job.changed(supervisor_lost=True) if finish.lost else job
        self.then(Forget(reported, marks=not after.state.is_final))

    def step(self, before: Job, after: Job, now: float, *, over: Job | None = None) -> bool:
        """Store one step of a job. `over`: the record of the attempt that ends, if `before` lacks its end."""
        is_released = bool(before.holds) and not after.holds
        attempt, gpu_allocations = over or before, self.jobtable.allocations.get(before.id, ())
        if is_released and not after.state.is_final:
            charged = before.charged_before + charged_seconds(attempt, gpu_allocations, now)
            after = after.changed(charged_before=charged)
        if not self.store.save(before, after, now=now):
            return False
        self.log.step(before, after)
        if is_released:
            self.charges.charge(attempt, gpu_allocations, now, self.policy)
        self.jobtable.put(after)
        self.mail.note(before, after, now)
        if after.state.is_final:
            self.ended.append(after)
        return True

    def change(self, before: Job, now: float, **changes: object) -> Job:
        """Store a change that is not a state change, such as a hold, and return the job."""
        after = before.changed(**changes)
        self.step(before, after, now)
        return after

    # -- timers -------------------------------------------------------------------------------------

    def _clean(self, now: float) -> None:
        """Release the holds of ended jobs that no GPU lists any more."""
        for job_id, is_clean in self.gpu_states.cleaned(now).items():
            job = self.jobtable.jobs.get(job_id)
            if job is None or job.state is not JobState.COMPLETING or job.outcome is None:
                continue
            if job_id in self.containment.blamed:  # marked in this turn: the next one tries again
                self.gpu_states.begin_cleaning(job_id, now)
                continue
            self.containment.run(job_id, partial(self._settle_clean, job, now, is_clean=is_clean))
        for gpu in self.gpu_states.changed():
            self.store.mark_gpu(gpu)
            self.log.note("gpu", gpu=gpu.index, state=gpu.state.value, why=gpu.note or None)

    def _settle_clean(self, job: Job, now: float, *, is_clean: bool) -> None:
        if not is_clean:
            self.gpu_states.left_dirty(job, now)
        if self.epilogs.is_configured:
            self._begin_epilog(job)
        else:
            self._settle(job, now)

    def _settle(self, job: Job, now: float) -> None:
        checked = with_gpu_fault(self, job, now)
        self.step(job, settle(checked, now, max_requeue=self.limits.max_requeue), now)

    def _begin_epilog(self, job: Job) -> None:
        self.then(RunEpilog(job, self.jobtable.allocations.get(job.id, ())))

    def _epilog_done(self, event: EpilogDone, now: float) -> None:
        """Release an ended job. If its epilog failed, drain its GPUs first."""
        job = self.jobtable.jobs.get(event.job)
        if job is None or job.state is not JobState.COMPLETING or job.attempt != event.attempt:
            return
        if event.why:
            self._drain_gpus(job, f"the epilog of job {job.id} {event.why}", now)
        self._settle(job, now)

    def _drain_gpus(self, job: Job, note: str, now: float) -> None:
        """Drain the GPUs of a job because a program of the site failed."""
        for index in {hold.gpu for hold in job.holds}:
            if index in self.gpu_states and self.gpu_states.gpu(index).state is not GpuState.DRAINED:
                self.gpu_states.drain(index, f"{note}{BY_PROGRAM}", now)

    def _start_what_fits(self, now: float) -> None:
        self._starter.start_what_fits(self, now)

    # -- after a crash --------------------------------------------------------------------------

    def recover(self, now: float) -> None:
        """Bring every job that was starting or running into a correct state. It can be repeated.

        No job, row or leftover prevents its completion. If the disk is full, later turns repeat it. Until one
        succeeds, nothing is stored: requests that change something are refused, and no job starts.

        Raises:
            StorageError: the queue cannot be read, or its disk has failed.
        """
        self._read_book()
        self.mps.restore(self.jobtable.holding.values(), now)
        try:
            failure = self._commit(partial(self._take_up_all, now), now)
        except Unattributed as unattributed:
            failure = None
            self.faults.note("recovery", unattributed.error)
            self._forget_turn(now)
        if isinstance(failure, StorageBroken):
            raise failure
        if failure is not None:
            self._undo([Recovery()], failure, now)
            return
        self._sweep()
        self._finish(now)

    def _take_up_all(self, now: float) -> None:
        self._resume_cleaning(now)
        for job in list(self.jobtable.holding.values()):
            if job.state is not JobState.COMPLETING:
                self.containment.run(job.id, partial(self._take_up_from_traces, job, now))
        self.mps.settle(self, now)
        self.containment.check()
        self.mail.resend()
        point("controller_in_recovery")

    def _take_up_from_traces(self, job: Job, now: float) -> None:
        self.take_up(job, self.launcher.seize(job), now)

    def _sweep(self) -> None:
        """Remove the traces of ended attempts, also where the job is still being cleaned up."""
        under_way = (job for job in self.jobtable.holding.values() if job.state is not JobState.COMPLETING)
        jobs = (*under_way, *self.jobtable.aside.values())
        try:
            self.launcher.sweep({(job.id, job.attempt) for job in jobs})
        except Exception as error:
            self.faults.note("what earlier jobs left behind", error)

    def take_up(self, job: Job, status: Seen, now: float) -> None:
        match recover(job, status, boot=self.launcher.boot, max_requeue=self.limits.max_requeue):
            case Finish() as how:
                self.end(job, how, now)
            case RequeueUnstarted():
                self._return(job, Reason.NONE, "", now)
            case Delay(why=why):
                self._return(job, Reason.HOST_SHORTAGE, why, now)
            case WatchShepherd(shepherd=shepherd):
                self._run(job, shepherd, now)
            case KillRemaining():
                self.orphans.setdefault(job.id, math.inf)
                self.then(ResendOrders(job))  # the shepherd that received the orders may have ended

    def _return(self, job: Job, reason: Reason, why: str, now: float) -> None:
        """Return a job whose script was not executed to the queue, after the epilog if the site has one.

        A cancelled job ends instead.
        """
        if job.cancelled_by is not None:
            self.end(job, Finish(JobState.CANCELLED, Reason.NONE, Ended(status=0)), now)
            return
        if job.adopted is not None:
            self._return_adopted(job, reason, why, now)
            return
        after = over = withdraw(job, reason, why, now)
        if self.epilogs.is_configured:
            self._begin_epilog(over)
        else:
            after = settle(over, now, max_requeue=self.limits.max_requeue)
        self.step(job, after, now, over=over)
        self.orphans.pop(job.id, None)
        self.then(Forget(job))

    def _return_adopted(self, job: Job, reason: Reason, why: str, now: float) -> None:
        """Launch the job of an adopted process, which runs already, again with the same holds.

        If the host lacked something for it, the job ends instead: it belongs to no queue.
        """
        if reason is not Reason.NONE:
            ended = Ended(status=0, detail=why)
            self.end(job, Finish(JobState.FAILED, Reason.LAUNCH_FAILURE, ended), now)
            return
        over = withdraw(job, reason, why, now)
        self.step(job, settle(over, now, max_requeue=self.limits.max_requeue), now, over=over)
        self.orphans.pop(job.id, None)
        self.then(Forget(job))
        begin(self, JobStart(job.id, job.holds, job.partition), now)


def _failure_of(table: JobTable, job: Job) -> Exception | None:
    """Put a job into a table; return the exception that this raises, None if there is none.

    Raises: sqlite3.DatabaseError if it is the queue file that fails.
    """
    try:
        table.put(job)
    except Exception as error:
        if is_fatal(error):
            raise
        return error
    return None


# -- running jobs: undelivered orders, lost shepherds, findings of the watchdog --------------------


_GRACE = 1.0  # seconds that a spawner has to write the result of a job it inherited


def resend_orders(engine: EngineContext, now: float) -> None:
    """Repeat each undelivered order once in `RETRY` seconds."""
    for job_id, tried_at in list(engine.undelivered.items()):
        job = engine.jobtable.under_way(job_id)
        if job is None:
            del engine.undelivered[job_id]
        elif not 0 < now - tried_at < RETRY:  # the clock may be set back
            engine.undelivered[job_id] = now
            engine.then(ResendOrders(job, is_again=True))


def follow_up_orphans(engine: EngineContext, now: float) -> None:
    """Read the result of each job without a shepherd, or end its remaining processes."""
    orphans = engine.orphans
    for job_id, empty_since in list(orphans.items()):
        job = engine.jobtable.jobs.get(job_id)
        if job is None:
            del orphans[job_id]
            continue
        engine.containment.run(job_id, partial(_follow_up, engine, job, empty_since, now))


def _follow_up(engine: EngineContext, job: Job, empty_since: float, now: float) -> None:
    """Wait for the result from the spawner that inherited the job, or end the remaining processes."""
    orphans = engine.orphans
    status = engine.launcher.seize(job)
    if isinstance(status, Alive):  # something failed for the job earlier, and may not fail any more
        del orphans[job.id]
        engine.take_up(job, status, now)
    elif isinstance(status, Result):
        engine.take_up(job, status, now)
    elif not engine.launcher.kill_remaining(job):
        orphans[job.id] = math.inf
        if job.state is JobState.STARTING and engine.launcher.has_supervisor(job):
            engine.step(job, job.advance(JobState.RUNNING), now)  # its JobStarted never came
    elif now - empty_since >= _GRACE:
        engine.end(job, lost(job, status if isinstance(status, ShepherdGone) else ShepherdGone()), now)
    else:
        orphans[job.id] = min(now, empty_since)


def take_finding(engine: EngineContext, job: Job, finding: WatchdogFinding, now: float) -> None:
    """Record a finding of the watchdog, and end the job if the finding requires it."""
    if job.is_to_end:
        return
    holders = engine.jobtable.holding.values()
    changes = watchdog_changes(job, finding.warn, finding.end, holders, readings=engine.gpu_states.readings)
    after = engine.change(job, now, **changes)
    if after.is_to_end:
        engine.then(CancelOrder(after))


def with_gpu_fault(engine: EngineContext, job: Job, now: float) -> Job:
    """Return an ended job as failed by its GPU, if the GPU failed while the job was running."""
    gpus = [hold.gpu for hold in job.holds]
    over = blame_gpu(job, has_failed=engine.gpu_states.failed_since(gpus, job.start_time))
    is_known = over is job and job.reason is not Reason.GPU_CLEANING
    return replace(over, reason=job.reason if is_known else reason_of(over), ended_at=over.ended_at or now)


def post_mortem(engine: EngineContext, job: Job, refusal: Refusal) -> OomReport:
    """Report the memory of all jobs and processes on the GPU on which a job ran out of memory."""
    return oom_report(job, refusal, engine.jobtable.holding.values(), engine.gpu_states.readings)
