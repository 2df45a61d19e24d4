"""The promises of a controller, compared with what really happened in a world."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asking import as_call
from fgsched.controller.audit import ACTIONS
from fgsched.controller.jobtable import JobTable
from fgsched.domain.errors import StorageError
from fgsched.domain.job import WHOLE, Job
from fgsched.domain.states import JobState, Reason
from fgsched.mail.letters import JobMail
from fgsched.store import GpuAllocation
from fgsched.store.store import Unreadable
from virtualcontroller import Asked, Life, is_waiting
from virtualprograms import Program
from virtualusers import Known

if TYPE_CHECKING:
    from virtualworld import VirtualWorld

FOR_EVER = {
    *("DependencyNeverSatisfied", "Dependency", "PartitionTimeLimit", "Reservation"),
    *("QOSGrpGRES", "QOSMaxGRESPerUser", "AssocGrpGRES", "AssocGrpGRESMinutes"),
}


def _names(line: str, job: object) -> bool:
    """Tell whether a line of the audit log names a job."""
    found = re.search(r" jobs=(\S+)", line)
    return found is not None and str(job) in found[1].strip('"').split(",")


def _mails_of(job: Job) -> list[str]:
    """Return the mails about its end that an ended job must have caused; none of a task of an array."""
    kinds = job.request.mail_type.split(",")
    if not job.state.is_final or (job.array and "ARRAY_TASKS" not in kinds):
        return []
    has_failed = job.state not in (JobState.COMPLETED, JobState.CANCELLED)
    found = ["FAIL" if has_failed and "FAIL" in kinds else "END"]
    found += ["TIME_LIMIT"] if job.state is JobState.TIMEOUT else []
    return [kind for kind in found if kind in kinds]


class Violation(AssertionError):
    """Raised if a controller breaks a promise."""


class Checks:
    """What must hold after each round, after each start, and at the end."""

    def __init__(self, world: "VirtualWorld") -> None:
        self._world = world
        self.finals: dict[int, JobState] = {}  # as a controller told them first
        self._ran = 0  # runs that were examined
        self._revision = (0, -1)
        self._found = ""  # a violation to be raised after the round

    def fail(self, what: str) -> None:
        raise Violation(f"day {self._world.agenda.now / 86_400:.2f}: {what}")

    def _must(self, holds: object, what: str) -> None:
        if not holds:
            self.fail(what)

    # -- after each round -----------------------------------------------------------------------------

    def round(self, life: Life) -> None:
        """Check what a controller can break in a turn."""
        self._must(not self._found, self._found)
        self._no_internal_error(life)
        self._nothing_runs_twice(life)
        revision = (life.number, life.engine.jobtable.revision)
        if revision == self._revision:
            return
        self._revision = revision
        self._gpus_are_not_over_held(life)
        self._arrays_keep_their_throttle(life)
        if not life.engine.is_undone and life.engine.gpu_states.is_fresh(self._world.agenda.wall):
            self._waits_are_explained(life)

    def _no_internal_error(self, life: Life) -> None:
        faults = life.engine.faults
        self._must(not faults.count, f"an internal error: {faults.text}")

    def _nothing_runs_twice(self, life: Life) -> None:
        """No attempt runs twice, and no job runs beside itself."""
        host = self._world.host
        fresh = host.runs[self._ran :]
        self._ran = len(host.runs)
        for run in fresh:
            same = [one for one in host.runs if one.job == run.job and one is not run]
            self._must(
                not any(one.attempt == run.attempt for one in same),
                f"attempt {run.job}.{run.attempt} runs twice",
            )
            beside = [one for one in same if one.attempt < run.attempt and one.ended is None]
            self._must(not beside, f"job {run.job} runs beside its attempt {run.attempt}")

    def _gpus_are_not_over_held(self, life: Life) -> None:
        """Neither by the queue nor by the processes of the host."""
        held: Counter[int] = Counter()
        lent = set()
        for job in life.engine.jobtable.holding.values():
            if job.is_suspended_by_preemption:
                lent.add(job.id)
                continue
            for hold in job.holds:
                held[hold.gpu] += hold.share
        self._must(max(held.values(), default=0) <= WHOLE, f"cards are over-held in the queue: {held}")
        used: Counter[int] = Counter()
        for key in self._world.host.alive:
            if key[0] not in lent:
                for gpu, share in self._world.host.attempts[key].gpus:
                    used[gpu] += share
        self._must(max(used.values(), default=0) <= WHOLE, f"cards are over-used on the host: {used}")

    def _arrays_keep_their_throttle(self, life: Life) -> None:
        running: Counter[int] = Counter()
        for job in life.engine.jobtable.holding.values():
            if job.array and job.request.throttle:
                running[job.array] += 1
                self._must(running[job.array] <= job.request.throttle, f"array {job.array} runs too many")

    def _waits_are_explained(self, life: Life) -> None:
        table = life.engine.jobtable
        for job in table.jobs.values():
            if is_waiting(job):
                self._must(table.reason(job) is not Reason.NONE, f"job {job.id} waits for no reason")

    def launching(self, job: Job, given: Sequence[GpuAllocation]) -> None:
        """A card that lists a job which did not leave it in time gets no other job."""
        life = self._world.life
        if life is None:
            return
        for one in self._world.host.still_listed():
            is_held = one.job in life.engine.jobtable.holding or one.life != life.number
            shared = {allocation.gpu for allocation in given if allocation.gpu in one.gpus}
            shared = {gpu for gpu in shared if not self._world.host.tolerated[gpu]}
            said = f"job {job.id} starts on cards that list job {one.job}: {shared}"
            if shared and not is_held:
                self._found = self._found or said  # the engine would contain an exception

    def program_begins(self, program: Program) -> None:
        """A program of the site has its job for itself: no process, and no other program of it, runs."""
        host, name = self._world.host, f"the {program.hook} of {program.job}.{program.attempt}"
        found = host.attempts.get((program.job, program.attempt))
        self._must(found is None or found.run is None, f"{name} begins while the job runs")
        others = [one for one in self._world.programs.all if one.job == program.job]
        self._must(all(one.ended is not None for one in others), f"{name} begins beside another one")
        if program.hook == "prolog":
            ran = any((run.job, run.attempt) == (program.job, program.attempt) for run in host.runs)
            over = self._world.programs.of("epilog", program.job, program.attempt)
            self._must(not ran and not over, f"{name} begins after the attempt")

    def executes(self, key: tuple[int, int]) -> None:
        """No script is executed without its prolog."""
        if self._world.place.config.prolog:
            runs = self._world.programs.of("prolog", *key)
            is_done = any(one.ended is not None and not one.problem and not one.is_killed for one in runs)
            self._must(is_done, f"attempt {key} runs without its prolog: {runs}")

    # -- whenever nothing is left to do ---------------------------------------------------------------

    def rest(self, life: Life) -> None:
        """Check what settles within a moment."""
        self._jobs_stand_still_as_they_should(life)
        self._orders_are_heard(life)
        self._partitions_are_as_acknowledged(life)

    def _jobs_stand_still_as_they_should(self, life: Life) -> None:
        host = self._world.host
        for job in life.engine.jobtable.holding.values():
            found = host.attempts.get((job.id, job.attempt))
            is_known = job.state in (JobState.RUNNING, JobState.SUSPENDED)
            if found is None or found.run is None or not is_known or job.id in life.engine.undelivered:
                continue
            if host.has_supervisor(job):
                stands = found.since is None
                if found.told or job.is_to_end:
                    continue  # ordered to end while it was suspended: it is continued
                said = f"job {job.id} is {job.state.value}, and {'stands still' if stands else 'runs'}"
                self._must(stands is (job.state is JobState.SUSPENDED), said)

    def _orders_are_heard(self, life: Life) -> None:
        """A supervisor knows the orders of its job, unless the controller goes on trying."""
        host, engine = self._world.host, life.engine
        for job in engine.jobtable.holding.values():
            found = host.attempts.get((job.id, job.attempt))
            is_known = (
                job.state in (JobState.RUNNING, JobState.SUSPENDED) and job.id not in engine.undelivered
            )
            if found is None or found.run is None or not is_known or not host.has_supervisor(job):
                continue
            if not found.shepherd and job.id not in engine.orphans:
                continue  # the controller has not heard that the shepherd was killed
            is_to_end = job.is_to_end or job.wish or job.is_being_preempted
            self._must(found.told or not is_to_end, f"job {job.id} is to end, and was not told")
            said = f"job {job.id} may run {job.request.time_limit} s, and was told {found.limit_told}"
            self._must(found.limit_told == job.request.time_limit, said)

    def _partitions_are_as_acknowledged(self, life: Life) -> None:
        users = self._world.users
        if not users.changing:
            for name, state in users.partitions.items():
                found = life.engine.policy.partition(name).state
                self._must(found == state, f"partition {name} was made {state}, and is {found}")

    def idle_turn(self, life: Life, before: dict[int, Job]) -> None:
        """A turn in which nothing happens changes nothing."""
        if life.engine.policy.weights.fairshare:
            return
        after = life.engine.jobtable.jobs
        changed = [number for number, job in after.items() if before.get(number) != job]
        said = [
            (number, before.get(number) and before[number].state.value, after[number].state.value)
            for number in changed
        ]
        self._must(not changed, f"a turn without events changes jobs {said}")

    def signalled(self, job: int, is_delivered: bool) -> None:
        self._must(is_delivered, f"a signal to job {job} was acknowledged, and not delivered")

    def answered(self, asked: Asked, answer: Any) -> None:
        """Whatever a client is told of the host or of jobs of others is in the audit log."""
        lines = [one for one in self._world.place.audit if f" pid={asked.pid} " in one]
        if type(as_call(asked.operation, **asked.arguments)) not in ACTIONS:
            self._must(not lines, f"{asked.operation} is in the audit log: {lines}")
            return
        wrong = [
            one for one in lines if not one.startswith(f"uid={asked.caller.uid} user={asked.caller.name} ")
        ]
        self._must(not wrong, f"the audit log names somebody else: {wrong}")
        jobs = answer.get("jobs") if isinstance(answer, dict) else None
        if jobs is None:
            is_meant = not asked.arguments.get("ids") and "id" not in asked.arguments
            self._must(lines or not is_meant, f"{asked.operation} is not in the audit log")
            return
        for one in jobs:
            if one.get("outcome") not in ("", None, "over"):
                self._must(
                    any(_names(line, one["id"]) and line.endswith("result=done") for line in lines),
                    f"{asked.operation} of job {one['id']} is not in the audit log: {lines}",
                )

    # -- clients and controllers ----------------------------------------------------------------------

    def acknowledged(self, known: Known, answer: Known) -> None:
        """A repeated submission has the same answer."""
        same = (known.first, known.count) == (answer.first, answer.count)
        self._must(same, f"a repeated submission was queued twice: {known} {answer}")
        others = [one for one in self._world.users.known.values() if one is not known]
        clash = [
            one
            for one in others
            if one.first < answer.first + answer.count and answer.first < one.first + one.count
        ]
        self._must(not clash, f"a job id was used again: {answer} {clash[:1]}")

    def started(self, life: Life) -> None:
        """Nothing acknowledged is lost, and the table is what the store makes of it."""
        self._no_internal_error(life)
        for known in self._world.users.known.values():
            for job_id in known.ids:
                if job_id not in self.finals and job_id not in self._world.accounts.lost:
                    try:
                        record = life.store.past(job_id)
                    except Unreadable:  # it has moved
                        self._must(self._world.accounts.is_lost, "the accounts cannot be read")
                        continue
                    self._must(record is not None, f"job {job_id} was acknowledged, and is lost")
                    assert record is not None
                    if record.job.state.is_final:
                        self.finals[job_id] = record.job.state
        self._table_is_of_the_store(life)

    def start_failed(self, error: StorageError) -> None:
        """Only a failing disk prevents a start."""
        self._must(
            self._world.disk.is_full or "disk" in str(error) or "cannot be" in str(error),
            f"a controller does not start: {error}",
        )
        self._must("damaged" not in str(error), f"a controller finds damage: {error}")

    def _table_is_of_the_store(self, life: Life) -> None:
        there = JobTable(life.store.open_jobs(), life.store.tasks.made).jobs
        here = life.engine.jobtable.jobs
        self._must(
            here.keys() == there.keys(), f"table and store differ: {sorted(here.keys() ^ there.keys())}"
        )

    # -- the end --------------------------------------------------------------------------------------

    def is_drained(self) -> bool:
        """Whether no job can end any more."""
        life = self._world.life
        if life is None or self._world.host.alive or self._world.accounts.is_lost:
            return False
        table = life.engine.jobtable
        return all(is_waiting(job) and table.reason(job).value in FOR_EVER for job in table.jobs.values())

    def end(self) -> None:
        """Compare queue, accounts and truth."""
        life = self._world.life
        self._must(life is not None, "no controller runs at the end")
        assert life is not None
        table = life.engine.jobtable
        self._must(
            self.is_drained(), f"jobs never end: {[self._standing(life, job) for job in table.jobs.values()]}"
        )
        self._table_is_of_the_store(life)
        self._must(not life.engine.orphans and not life.engine.undelivered, "orders or orphans are left")
        self._must(not self._world.host.alive, "orphan processes are left")
        left = [key for key, one in self._world.host.attempts.items() if one.claim != "T"]
        self._must(not left, f"claims or results are left: {left}")
        self.jobs = self._all_jobs(life)
        self._every_job_is_accounted_once(life)
        self._ends_are_true()
        self._programs_have_run()
        self._mails_are_sent(life)

    def _standing(self, life: Life, job: Job) -> str:
        return f"{job.id} {job.state.value} {life.engine.jobtable.reason(job).value}"

    def _all_jobs(self, life: Life) -> dict[int, Job]:
        found, after = dict[int, Job](), 0
        while True:
            part = life.store.history(since=0.0, until=1e12, uid=None, after=after, page=500)
            for record in part.records:
                self._must(record.job.id not in found, f"job {record.job.id} is in the history twice")
                found[record.job.id] = record.job
            if part.upto is None:
                return found
            after = part.upto

    def _every_job_is_accounted_once(self, life: Life) -> None:
        ended = {number for number, job in self.jobs.items() if job.state.is_final}
        open_arrays = {job.array for job in life.engine.jobtable.jobs.values() if job.array}
        lost = self._world.accounts.lost
        for known in self._world.users.known.values():
            for job_id in set(known.ids) - lost:
                self._must(job_id in self.jobs, f"job {job_id} was acknowledged, and is lost")
        for job_id in ended:
            job = self.jobs[job_id]
            steps = life.store.steps.of(job_id)
            finals = [step for step in steps if JobState(step[3]).is_final]
            self._must(len(finals) == 1, f"job {job_id} has ended {len(finals)} times: {steps}")
            told = self.finals.setdefault(job_id, job.state)
            self._must(told is job.state, f"job {job_id} was {told.value} and is {job.state.value}")
            moved = life.accounts.past(job_id) is not None
            waits = life.engine.jobtable.wait_index.is_awaited(job_id, job.array, job.task)
            self._must(moved or waits or job.array in open_arrays, f"job {job_id} is not in the accounts")
            if moved:
                self._charge_is_true(life, job)
        for known in self._world.users.known.values():
            if known.tasks and known.first in ended:
                rows = [record.job for record in life.store.tasks.of(known.first)]
                tasks = sorted(row.task for row in rows if row.task is not None)
                self._must(len(tasks) == len(set(tasks)), f"array {known.first} has a task twice: {tasks}")

    def _charge_is_true(self, life: Life, job: Job) -> None:
        """The GPU seconds of all attempts are those of the runs, where each was seen to its end."""
        account = life.accounts._account(job.id)
        runs = [run for run in self._world.host.runs if run.job == job.id]
        is_known = len(runs) == job.attempt and all(
            run.status is not None and not run.is_lost for run in runs
        )
        if account is None or not is_known:
            return
        seconds = sum(max(0.0, (run.ended or 0.0) - run.began) * run.charged for run in runs) / WHOLE
        is_near = abs(account.charged - seconds) <= 1 + 0.01 * seconds
        self._must(
            is_near,
            f"job {job.id} is charged {account.charged:.1f} GPU s for {seconds:.1f}; {runs} {account.steps}",
        )

    def _ends_are_true(self) -> None:
        runs: dict[int, list] = {}
        for run in self._world.host.runs:
            runs.setdefault(run.job, []).append(run)
        for job_id, job in self.jobs.items():
            ran = runs.get(job_id, [])
            self._must(
                len(ran) <= job.restarts + 1, f"job {job_id} ran {len(ran)} times, {job.restarts} restarts"
            )
            if job.state is JobState.FAILED and not ran:
                self._must(job_id in self._world.host.unrun, f"job {job_id} is FAILED, and never ran")
            if job.state is JobState.COMPLETED:
                last = ran[-1] if ran else None
                self._must(last and last.status == 0, f"job {job_id} is called COMPLETED: {last}")
        for job_id in self._world.users.cancelled - self._world.accounts.lost:
            self._must(self.jobs[job_id].state.is_final, f"job {job_id} was cancelled, and is open")

    def _programs_have_run(self) -> None:
        """Each attempt that had a prolog or ran has had its epilog after it."""
        world = self._world
        self._must(all(one.ended is not None for one in world.programs.all), "a program of the site runs on")
        if not world.place.config.epilog:
            return
        ends = {(run.job, run.attempt): run.ended or 0.0 for run in world.host.runs}
        ends |= {
            (one.job, one.attempt): 0.0
            for one in world.programs.all
            if one.hook == "prolog" and (one.job, one.attempt) not in ends
        }
        for key in ends:
            done = [one for one in world.programs.of("epilog", *key) if not one.is_killed]
            self._must(done, f"attempt {key} had no epilog")

    def _mails_are_sent(self, life: Life) -> None:
        """Each mail about an end is sent, to whom it is for; none twice unless the mailer was killed."""
        post = self._world.post
        count = Counter(name for name, _ in post.sent)
        self._must(not list(post.spool.waiting()), f"mails are left: {list(post.spool.waiting())}")
        for name, number in count.items():
            most = 1 + post.deaths[name]
            self._must(number <= most, f"mail {name} was sent {number} times, with {most - 1} deaths")
        for name, letter in post.sent:
            assert isinstance(letter, JobMail)
            job = self.jobs.get(letter.job)
            if letter.job in self._world.accounts.lost:
                continue
            self._must(job is not None, f"mail {name} is about no job")
            assert job is not None
            self._must(letter.event in job.request.mail_type.split(","), f"mail {name} was not asked for")
            to = job.request.mail_user or job.user
            self._must(letter.to == (to,), f"mail {name} is for {to}, and was sent to {letter.to}")
            if letter.event in ("END", "FAIL") and not letter.is_summary:
                said = f"mail {name} says {letter.state} of job {job.id}, which is {job.state.value}"
                self._must(letter.state == job.state.word, said)
        told = {(letter.job, letter.event) for _, letter in post.sent if isinstance(letter, JobMail)}
        for job in self.jobs.values():
            for kind in _mails_of(job):
                self._must((job.id, kind) in told, f"the mail {kind} of job {job.id} was never sent")

    def rows(self) -> str:
        """All jobs as they ended, for the history."""
        return ";".join(
            f"{job.id} {job.state.value} {job.reason.value} {job.attempt} {job.started_at} {job.ended_at}"
            for job in sorted(self.jobs.values(), key=lambda job: job.id)
        )
