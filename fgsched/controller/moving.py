"""Move ended jobs from the queue to the accounts, and look up moved jobs.

A settled job is sent to the accountant, and deleted from the queue after the accountant has committed it. If
either process is killed in between, the job is in both files. It is sent again, and the accounts keep the
first copy. A look-up reads the queue first, so an answer contains a job once.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from fgsched.accounting import guard
from fgsched.accounting.ledger import LedgerReader
from fgsched.accounting.records import JobAccount, Owner
from fgsched.controller.jobtable import JobTable, eligible
from fgsched.controller.usage import charged_seconds
from fgsched.crash import point
from fgsched.domain.errors import StorageError
from fgsched.domain.job import Ended, Job, JobUsage
from fgsched.domain.states import JobState, Reason
from fgsched.lifecycle.filenames import output_path
from fgsched.scheduling.runtimes import CompletedRun, completed_run, work_of_request
from fgsched.store import JobRecord, StorageBroken, Store
from fgsched.store.rows import ArraySum, record_of, row_of
from fgsched.store.store import HistoryPart, Step, Unreadable

log = logging.getLogger("fgsched.controller")
_REMEMBERED = 2000  # runs, for forecasts
_EXAMINED = 200  # ended jobs of a step
_MOVED = 30  # jobs of a message
_BYTES = 64 << 10  # of their requests
_STEP = 0.05  # seconds between two steps
_AFTER_NOTES = 1.5  # seconds in which upkeep.Pruner notes the scripts of ended jobs
_SOON = 1.0  # seconds until the next try on a busy host
_PATIENCE = 600.0  # seconds for which a busy host puts the move off
_ROUND = 60.0  # seconds between two rounds
_PATIENCE_OF_READER = 0.05  # seconds for a file that is being recovered

# -- a job as the accounts have it ---------------------------------------------------------------------

_OOM = {Reason.OUT_OF_MEMORY: "host", Reason.GPU_OUT_OF_MEMORY: "gpu"}


def account_of(
    record: JobRecord, steps: Iterable[Step], *, material: tuple[str, str] = ("", ""), host: str = ""
) -> JobAccount:
    """Return the record of an ended job for the accounts, with all that the queue stores about it.

    Args:
        steps: the state changes of the job.
        material: references to its script and environment.
        host: name of the host, for the path of its output.
    """
    job, demand = record.job, record.job.request.demand
    end = job.ended or Ended(status=0)
    gpu_allocation = record.allocated[0] if record.allocated else None
    since = eligible(job)
    return JobAccount(
        row=row_of(record),
        owner=owner_of(job),
        eligible_at=job.submitted_at if since is None else since,
        time_limit=job.request.time_limit,
        share=gpu_allocation.share if gpu_allocation else demand.share,
        memory=gpu_allocation.memory if gpu_allocation else demand.memory,
        cpus=demand.cpus,
        host_memory=demand.host_memory,
        model=gpu_allocation.model if gpu_allocation else "",
        exit_code=end.exit_code,
        signal=end.signal,
        oom=_OOM.get(job.reason, ""),
        refused=job.post_mortem.asked if job.post_mortem else 0,
        charged=job.charged_before + charged_seconds(job, record.allocated, job.ended_at or job.submitted_at),
        usage=record.usage,
        output=output_path(job, job.request.output, host),
        steps=tuple(steps),
        script=" ".join(reference or "-" for reference in material) if any(material) else "",
    )


def owner_of(job: Job) -> Owner:
    """Return the owner that a job's use is charged to."""
    request = job.request
    partition = job.partition or request.partition
    return Owner(
        uid=job.uid,
        user=job.user,
        account=request.account,
        partition=partition,
        qos=request.qos,
        tag=request.wckey,
    )


def _record(account: JobAccount) -> JobRecord:
    """Return the record of the queue from which `account_of` made an account."""
    return replace(record_of(account.row), usage=account.usage)


# -- jobs that have moved ------------------------------------------------------------------------------


class PastJobs:
    """Looks up ended jobs in the accounts at `path`, which may be missing, unreadable or replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader: LedgerReader | None = None
        self._file: tuple[int, int] | None = None  # device and inode of the open file
        self._runs: deque[tuple[float, CompletedRun]] = deque(
            maxlen=_REMEMBERED
        )  # with their ends, oldest first

    def close(self) -> None:
        """Close the file; the next look-up opens it again."""
        if self._reader is not None:
            self._reader.close()
        self._reader = None

    def read_runs(self, since: float) -> None:
        """Read the last runs that ended after `since` (epoch seconds), for forecasts. Raises Unreadable."""
        with self._reading() as reader:
            rows = reader.runs(since, _REMEMBERED) if reader else []
        self._runs.extend(_run(*row) for row in reversed(rows))

    def moved(self, accounts: Iterable[JobAccount]) -> None:
        """Remember the runs of jobs that were deleted from the queue, for forecasts."""
        for account in accounts:
            job = record_of(account.row).job
            if job.ended_at is not None and (run := completed_run(job)) is not None:
                self._runs.append((job.ended_at, run))

    def last_id(self) -> int:
        """Return the highest id of a job that is or was in the accounts. Raises Unreadable."""
        with self._reading() as reader:
            return reader.last_id() if reader else 0

    def past(self, job_id: int) -> JobRecord | None:
        """Return one job, or None. Raises Unreadable."""
        job_account = self._account(job_id)
        return _record(job_account) if job_account else None

    def task(self, array: int, task: int) -> JobRecord | None:
        """Return one task of an array, or None. Raises Unreadable."""
        with self._reading() as reader:
            job_account = reader.task(array, task) if reader else None
        return _record(job_account) if job_account else None

    def of_array(self, array: int, after: int, page: int) -> list[JobRecord]:
        """Return at most `page` tasks of an array behind the index `after`. Raises Unreadable."""
        with self._reading() as reader:
            return (
                [_record(job_account) for job_account in reader.of_array(array, after, page)]
                if reader
                else []
            )

    def rest_of(self, array: int) -> list[JobRecord]:
        """Return the row of the tasks of an array that ended together. Raises Unreadable."""
        with self._reading() as reader:
            return [_record(job_account) for job_account in reader.rest_of(array)] if reader else []

    def ended(self, array: int) -> dict[int, bool]:
        """Return {index: completed} of the tasks of an array. Raises Unreadable."""
        with self._reading() as reader:
            states = reader.states(array) if reader else {}
        return {task: state == JobState.COMPLETED.word for task, state in states.items()}

    def sum(self, array: int) -> ArraySum:
        """Return the totals of an array. Raises Unreadable."""
        with self._reading() as reader:
            rows, completed, started_at = reader.sum(array) if reader else (0, 0, None)
        return ArraySum(rows, rows, completed, started_at)

    def samples_of(self, jobs: Iterable[int]) -> dict[int, JobUsage]:
        """Return the sums of samples of jobs that are in the queue, by job id. Raises Unreadable."""
        with self._reading() as reader:
            job_usages = {job: reader.sample(job) for job in jobs} if reader else {}
        return {job: usage for job, usage in job_usages.items() if usage is not None}

    def sampled_until(self) -> float | None:
        """Return the end of the last sample, in epoch seconds; None: there is none. Raises Unreadable."""
        with self._reading() as reader:
            return reader.sampled_until() if reader else None

    def last_submission_of(self, uid: int) -> int | None:
        """Return the id of the last submission of a user, or None. Raises Unreadable."""
        with self._reading() as reader:
            return reader.last_submission_of(uid) if reader else None

    def steps(self, job_id: int) -> list[Step]:
        """Return the state changes of a job, in order. Raises Unreadable."""
        job_account = self._account(job_id)
        return list(job_account.steps) if job_account else []

    def material(self, job_id: int) -> tuple[str, str]:
        """Return the references of a job's script and environment in the queue. Raises Unreadable."""
        job_account = self._account(job_id)
        script, _, environment = job_account.script.partition(" ") if job_account else ("", "", "")
        return script, environment

    def history(self, *, since: float, until: float, uid: int | None, after: int, page: int) -> HistoryPart:
        """Return jobs that existed from `since` to `until` (epoch seconds), as Store.history.

        Raises Unreadable.
        """
        with self._reading() as reader:
            if reader is None:
                return HistoryPart([], None)
            job_accounts, upto = reader.history(since=since, until=until, uid=uid, after=after, page=page)
        return HistoryPart([_record(job_account) for job_account in job_accounts], upto)

    def ended_since(self, since: float) -> list[JobRecord]:
        """Return jobs that ended after `since` (epoch seconds), ordered by id. Raises Unreadable."""
        with self._reading() as reader:
            job_accounts = list(reader.jobs(since, float("inf"))) if reader else []
        return sorted(
            (_record(job_account) for job_account in job_accounts), key=lambda record: record.job.id
        )

    def runs_since(self, since: float) -> list[CompletedRun]:
        """Return the runs that completed after `since` (epoch seconds), latest first."""
        return [run for ended_at, run in reversed(self._runs) if ended_at >= since]

    def _account(self, job_id: int) -> JobAccount | None:
        with self._reading() as reader:
            return reader.job(job_id) if reader else None

    @contextmanager
    def _reading(self) -> Iterator[LedgerReader | None]:
        """Open the accounts if they are not open; None if there are none yet. Raises Unreadable."""
        try:
            yield self._opened()
        except StorageError as error:
            self.close()
            cause = f"jobs that have moved cannot be looked up: {error.cause}"
            raise Unreadable(cause, error.remedy) from None

    def _opened(self) -> LedgerReader | None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self.close()
            guard.refuse_missing(self._path)
            return None
        file = status.st_dev, status.st_ino
        if self._reader is None or file != self._file:
            self.close()
            if not status.st_size:
                return None  # it is being made
            self._reader, self._file = LedgerReader(self._path, timeout=_PATIENCE_OF_READER), file
        else:
            self._reader.compare()
        return self._reader


def _run(
    ended_at: float, uid: int, name: str, elapsed: float, time_limit: int, request: str
) -> tuple[float, CompletedRun]:
    return ended_at, CompletedRun(uid, work_of_request(name, request), elapsed, time_limit)


# -- the move ------------------------------------------------------------------------------------------


class Site(NamedTuple):
    """The parts of the controller that the move uses."""

    jobtable: Callable[[], JobTable]
    host: str


class Mover:
    """The source of the accountant's jobs. `stored` or `back` follows each `next_jobs`."""

    def __init__(self, store: Store, accounts: PastJobs, site: Site, move_after: float) -> None:
        """`move_after`: seconds from the end of a job to its move."""
        self._store, self._accounts, self._site = store, accounts, site
        self.move_after = move_after
        self._due: float | None = 0.0
        self._place = (0.0, 0)  # (end, id) of the last examined job of this round
        self._has_moved = False  # in this round
        self._since: float | None = None  # when the round was put off first; None: it was not
        self._is_overdue = False  # the round was put off for the longest time, and is not put off again
        self._revision: int | None = None  # of the queue, at the last step
        self._under_way: dict[int, JobAccount] = {}
        self._stored: dict[int, JobAccount] = {}  # in the accounts, and to be deleted from the queue
        self._unmovable: set[int] = set()  # jobs that the accounts refuse, and damaged ones

    def due(self, now: float) -> float | None:
        """Return the seconds until the next step; None: nothing is due."""
        return None if self._due is None else max(0.0, self._due - now)

    def ended(self, now: float) -> None:
        """Note that a job has ended. `now` in monotonic seconds."""
        at = now + self.move_after + _AFTER_NOTES
        if self._due is None or self._due > at:
            self._due = at

    def next_jobs(self, now: float, wall: float) -> Sequence[JobAccount]:
        """Return the next jobs for the accounts, or delete stored jobs from the queue and return none.

        `now` is in monotonic seconds, `wall` in epoch seconds.
        """
        if self._due is None or now < self._due or self._is_put_off(now):
            return ()
        self._due = now + _STEP
        if self._stored:
            self._delete(now)
            return ()
        chosen = self._chosen(now, wall)
        self._under_way = {job_account.id: job_account for job_account in chosen}
        if chosen:
            point("controller_before_sending_jobs")
        return chosen

    def stored(self, jobs: Sequence[int], refused: Sequence[int]) -> None:
        """Note that jobs are in the accounts, except for the refused ones."""
        sent, self._under_way = self._under_way, {}
        for job_id in refused:
            log.warning("job %d stays in the queue: the accounts refuse it", job_id)
        self._unmovable.update(refused)
        self._stored |= {job: sent[job] for job in jobs if job in sent and job not in refused}

    def back(self) -> None:
        """Note that the jobs under way were not stored; they are found again in the next round."""
        self._under_way = {}
        self._place = (0.0, 0)

    def _is_put_off(self, now: float) -> bool:
        """Put the steps of a round off while the queue changes, for ten minutes at most."""
        before, self._revision = self._revision, self._site.jobtable().revision
        if self._is_overdue:
            return False
        if before in (None, self._revision):
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        if now - self._since >= _PATIENCE:
            self._is_overdue = True
            return False
        self._due = now + _SOON
        return True

    def _chosen(self, now: float, wall: float) -> list[JobAccount]:
        rows = self._store.settled.after(self._place, wall - self.move_after, _EXAMINED)
        chosen: list[JobAccount] = []
        size = 0
        for row in rows:
            if len(chosen) == _MOVED or size > _BYTES:
                return chosen
            self._place = row.ended_at, row.id
            if row.id in self._unmovable or not self._may_leave(row.id, row.array, row.task):
                continue
            account = self._account(row.id)
            if account is not None:
                chosen.append(account)
                size += sum(len(str(account.row.get(name, ""))) for name in ("request", "srun_steps"))
        if len(rows) < _EXAMINED and not chosen:
            self._end_round(now, wall)
        return chosen

    def _may_leave(self, job_id: int, array: int, task: int | None) -> bool:
        """Tell whether a row can be deleted: no open array, dependency or other row refers to it."""
        jobtable = self._site.jobtable()
        if array and jobtable.arrays.get(array) is not None:
            return False
        if jobtable.wait_index.is_awaited(job_id, array, task):
            return False
        return array != job_id or not self._store.settled.is_referred_to(job_id)

    def _account(self, job_id: int) -> JobAccount | None:
        record = self._store.past(job_id)
        if record is None or record.damage:
            self._unmovable.add(job_id)
            return None
        material = self._store.settled.material(job_id)
        return account_of(record, self._store.steps.of(job_id), material=material, host=self._site.host)

    def _end_round(self, now: float, wall: float) -> None:
        has_moved, self._has_moved, self._place = self._has_moved, False, (0.0, 0)
        if has_moved:  # the row of an array can follow those of its tasks
            self._due = now + _SOON
            return
        self._since, self._is_overdue = None, False
        first = self._store.settled.first_end()
        self._due = None if first is None else now + max(_ROUND, first + self.move_after - wall)

    def _delete(self, now: float) -> None:
        """Delete the stored jobs from the queue."""
        point("controller_before_deleting_jobs")
        try:
            with self._store.write():
                self._store.settled.remove(self._stored)
        except StorageBroken:
            raise
        except StorageError as error:  # a full disk is reported to jobs and requests
            log.warning("ended jobs cannot be deleted from the queue now: %s", error.cause)
            self._due = now + _ROUND
            return
        point("controller_after_deleting_jobs")
        self._accounts.moved(self._stored.values())
        self._stored, self._has_moved = {}, True
