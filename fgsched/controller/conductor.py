"""One turn: take in what has happened, decide, commit, then do what was decided.

Everything that has happened since the last turn is taken in together and committed once. Effects come after
the commit; each can be repeated or undone by a controller that starts after a crash at any point (`recover`).
"""

import math
from collections.abc import Iterable
from functools import partial

from fgsched.controller.book import Book
from fgsched.controller.cards import Cards
from fgsched.controller.charges import Charges
from fgsched.controller.eligibility import Eligibility
from fgsched.controller.events import Asked, Died, Effect, Event, Failed, Forked, Launcher, Noticed
from fgsched.controller.moving import Mover
from fgsched.controller.noticing import found_out, post_mortem, take_notice
from fgsched.controller.orphans import look_after_orphans
from fgsched.controller.preempting import Preempter
from fgsched.controller.reminders import attend, remind
from fgsched.crash import point
from fgsched.deciding.planner import Plan, Start
from fgsched.errors import OurFault, StorageError
from fgsched.jobs.binding import Binding
from fgsched.jobs.endings import over, returned, settled
from fgsched.jobs.lifecycle import Adopt, Finish, Hunt, Requeue, Seen, Shepherd, recover
from fgsched.jobs.private import Mounts
from fgsched.jobs.tiers import is_hooked, tier_of
from fgsched.model import Ended, Job, JobState, Limits, Reason
from fgsched.policy import Policy
from fgsched.store import StorageBroken, Store


class Conductor:
    """Remembers nothing that a crash could lose: whatever must last is in the store."""

    def __init__(self, store: Store, launcher: Launcher, cards: Cards, *, limits: Limits, tier: str) -> None:
        self.store = store
        self.launcher = launcher
        self.cards = cards
        self.limits = limits
        self.policy = Policy()  # until whoever knows the site says otherwise
        self.charges = Charges(store.kept)
        self.mover, self.preempter = Mover(), Preempter()
        self.mounts = Mounts()  # what jobs can have of the file system for themselves; as policy
        self.binding = Binding()  # to which CPUs they are bound; as policy
        self.tier = tier  # how jobs are held to their share of device memory on this host
        self.book = Book()
        self.eligibility = Eligibility(self)
        self.orphans: dict[int, float] = {}  # jobs without a shepherd -> since when nothing of them is left
        self.unsaved: list[Event] = []  # ends that could not be stored yet: the disk was full
        self.ended: list[Job] = []  # since the caller last looked
        self.forgotten: list[Effect] = []  # who else has to know that a turn was undone
        self.is_broken = False  # the store is not to be used any more: the next controller takes up from it
        self._after: list[Effect] = []
        self._asked: Asked | None = None  # the request that was taken in last

    # -- the turn -------------------------------------------------------------------------------

    def turn(self, events: Iterable[Event], now: float) -> None:
        """Take in, decide, commit, carry out."""
        events = [*self.unsaved, *events]
        self.unsaved, orphans = [], dict(self.orphans)
        try:
            with self.store.write():
                for event in events:
                    self._take_in(event, now)
                look_after_orphans(self, now)
                self._clean(now)
                self.eligibility.settle(now)
                self._start_what_fits(now)
                self.charges.write()
                point("controller_before_commit")
        except StorageError as error:
            self.orphans = orphans
            self._undo(events, error, now)
            return
        except OurFault as fault:
            self.orphans = orphans
            self._do_without(events, fault, now)
            return
        point("controller_after_commit")
        self.carry_out(self._drain())

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Do what was decided, in order."""
        for effect in effects:
            effect()

    def _drain(self) -> list[Effect]:
        effects, self._after = self._after, []
        return effects

    def then(self, effect: Effect) -> None:
        """Do this once the turn is committed."""
        self._after.append(effect)

    def _undo(self, events: Iterable[Event], error: StorageError, now: float) -> None:
        """Nothing of the turn is stored: forget it, refuse what was asked, keep what has happened."""
        self.is_broken = isinstance(error, StorageBroken)
        self._forget_turn(now)
        for event in events:
            if isinstance(event, Asked):
                event.refuse(error)
            else:
                self.unsaved.append(event)

    def _do_without(self, events: Iterable[Event], fault: OurFault, now: float) -> None:
        """A request that we have a bug for is refused; whatever else has happened is taken in again."""
        guilty = self._asked
        assert guilty is not None
        self._forget_turn(now)
        guilty.refuse(fault)
        self.turn([event for event in events if event is not guilty], now)

    def _forget_turn(self, now: float) -> None:
        self._after, self.ended = [], []
        if not self.is_broken:
            for forget in self.forgotten:
                forget()
            self._read_book()
            self._resume_cleaning(now)

    def _read_book(self) -> None:
        found = self.store.open_past()
        self.book = Book((past.job for past in found), self.store.tasks.made)
        self.charges.read()
        self.book.given = {past.job.id: past.allocated for past in found if past.job.state.holds}

    def _resume_cleaning(self, now: float) -> None:
        for job in self.book.holding.values():
            if job.state is JobState.COMPLETING and not self.cards.cleans(job.id):
                self.cards.begin_cleaning(job.id, now)

    # -- what has happened ----------------------------------------------------------------------

    def _take_in(self, event: Event, now: float) -> None:
        if isinstance(event, Asked):
            self._asked = event
            self.then(event.act(now))
            return
        job = self.book.under_way(event.job)
        if job is None:
            return  # an echo of an attempt that is over
        match event:
            case Forked(attempt=job.attempt, shepherd=shepherd):
                self._run(job, shepherd, now)
            case Failed(attempt=job.attempt, why=why):
                ended = Ended(status=0, detail=why)
                self.end(job, Finish(JobState.FAILED, Reason.LAUNCH_FAILURE, ended), now)
            case Died(attempt=attempt) if attempt in {0, job.attempt}:
                self.take_up(job, self.launcher.seize(job), now)  # with a result or not
            case Noticed(attempt=job.attempt):
                take_notice(self, job, event, now)

    def _run(self, job: Job, shepherd: Shepherd, now: float) -> None:
        if job.state is JobState.STARTING:
            running = job.advance(JobState.RUNNING)
            if self.store.run(job, running, now=now):
                self.book.put(running)
                job = running
        self.then(lambda: attend(self, job, shepherd))

    def end(self, job: Job, how: Finish, now: float) -> None:
        """Write down how a job ended; it keeps its holds until the cards are clean of it."""
        dirty = bool(job.holds) and self.cards.needs_cleaning and how.reason is not Reason.LAUNCH_FAILURE
        after = over(
            *(job, how, now),
            most=self.limits.max_requeue,
            dirty=dirty,
            reason=Reason.GPU_CLEANING if dirty else how.reason,
            post_mortem=post_mortem(self, job, how.refusal) if how.refusal else job.post_mortem,
        )
        self.step(job, after, now)
        self.orphans.pop(job.id, None)
        if dirty:
            self.cards.begin_cleaning(job.id, now)
        gone = job.changed(supervisor_lost=True) if how.lost else job
        self.then(lambda: self.launcher.forget(gone))

    def step(self, before: Job, after: Job, now: float) -> bool:
        if not self.store.save(before, after, now=now):
            return False
        if before.holds and not after.holds:
            given = self.book.given.get(before.id, ())
            self.charges.charge(before, given, after.ended_at or now, self.policy)
        self.book.put(after)
        if after.state.is_final:
            self.ended.append(after)
        return True

    def change(self, before: Job, now: float, **changes: object) -> Job:
        """A change that is no step: held, cancelled …"""
        after = before.changed(**changes)
        self.step(before, after, now)
        return after

    # -- what is due ----------------------------------------------------------------------------

    def _clean(self, now: float) -> None:
        """Give back the shares of ended jobs that no card lists any more."""
        for job_id, is_clean in self.cards.cleaned(now).items():
            job = self.book.jobs.get(job_id)
            if job is None or job.state is not JobState.COMPLETING or job.outcome is None:
                continue
            if not is_clean:
                self.cards.left_dirty(job, now)
            seen = found_out(self, job, now)
            self.step(job, settled(seen, now, most=self.limits.max_requeue), now)
        for gpu in self.cards.changed():
            self.store.mark_card(gpu)

    def _start_what_fits(self, now: float) -> None:
        self.preempter.resume(self, now)
        if not self.book.waiting:
            return
        if not self.cards.is_fresh(now):
            self.then(self.cards.ask)
        self.charges.bring_up_to_date(self.book, self.policy, self.cards.gpus, self.limits, now)
        decided = self.preempter.decide(self, self._start_planned, now)
        if self.limits.defragment:
            self.mover.make_room(self, decided, now)

    def _start_planned(self, now: float) -> Plan:
        """While it is not known what is on the cards only those start that need none, and overtake nobody."""
        plan = partial(self.book.plan, readings=self.cards.readings, limits=self.limits, now=now)
        decided, is_fresh = plan(self.cards.gpus), self.cards.is_fresh(now)
        for start in decided.starts:
            if is_fresh or not start.holds:
                self._reserve(start, now)
        return decided if is_fresh else plan(self.cards.gpus_for_planning(now))

    def _reserve(self, start: Start, now: float) -> None:
        """Write the hold down first; only a job that is written down is started."""
        job = self.eligibility.task_of(self.book.jobs[start.job_id])
        if job is None:
            return  # other rows of its array took the last places
        given = tuple(self.cards.allocation(hold) for hold in start.holds)
        tier = tier_of(job.request.tier, self.tier) if given else "none"
        after = job.advance(
            JobState.STARTING,
            attempt=job.attempt + 1,
            holds=start.holds,
            partition=start.partition,
            resources=self.book.pick(job.request.demand),
            slot=self.book.free_slot(),
            reason=Reason.NONE,
            boot=self.launcher.boot,
            started_at=now,
            tier=tier,
            mounts=self.mounts.of([one.uuid for one in given], hooked=is_hooked(tier, has_cards=bool(given))),
            cpus=self.binding.of(self.cards.near(start.holds), job.request.demand.cpus, self.book.bound()),
        )
        if self.store.start(job, after, given):
            self.book.put(after)
            self.book.given[after.id] = given
            self.then(lambda: self.launcher.start(after, given))

    # -- after a crash --------------------------------------------------------------------------

    def recover(self, now: float) -> None:
        """Bring every job that was under way to where it belongs. May itself be cut short and repeated."""
        self._read_book()
        with self.store.write():
            for job in list(self.book.holding.values()):
                if job.state is not JobState.COMPLETING:
                    self.take_up(job, self.launcher.seize(job), now)
            self._resume_cleaning(now)
            self.charges.write()
            point("controller_in_recovery")
        self.launcher.sweep({(job.id, job.attempt) for job in self.book.holding.values()})
        self.carry_out(self._drain())

    def take_up(self, job: Job, seen: Seen, now: float) -> None:
        match recover(job, seen, boot=self.launcher.boot, most=self.limits.max_requeue):
            case Finish() as how:
                self.end(job, how, now)
            case Requeue():
                self._requeue(job, now)
            case Adopt(shepherd=shepherd):
                self._run(job, shepherd, now)
            case Hunt():
                self.orphans.setdefault(job.id, math.inf)
                if job.is_to_end or job.leaves or job.relimited:  # who was told may be who is gone
                    self.then(lambda: remind(self.launcher, job))

    def _requeue(self, job: Job, now: float) -> None:
        """Nothing ran. A job that somebody cancelled meanwhile does not come back."""
        if job.cancelled_by is not None:
            self.end(job, Finish(JobState.CANCELLED, Reason.NONE, Ended(status=0)), now)
            return
        self.step(job, returned(job, now, most=self.limits.max_requeue, ran=False), now)
        self.orphans.pop(job.id, None)
        self.then(lambda: self.launcher.forget(job))
