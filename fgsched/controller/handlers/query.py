"""Handle requests that only read: queue, jobs, history, GPUs. Long answers are sent in pieces.

A program without a parser of its own (`fgshim/front`) sends its command line and gets text.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any
from weakref import ref

from msgspec.structs import replace

from fgsched import protocol
from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.controller.handlers.about import log_lines
from fgsched.controller.handlers.fields import (
    FIELDS,
    AttributeFilter,
    CallerView,
    Live,
    count_rows,
    getters,
)
from fgsched.controller.handlers.jobref import References
from fgsched.controller.handlers.registration import reads
from fgsched.controller.jobtable import JobTable
from fgsched.domain.errors import NoSuchJob, NotPermitted, Refused
from fgsched.domain.job import Job, Request
from fgsched.lifecycle.arrays import split_reference
from fgsched.protocol import JobInfo, QueueLines
from fgsched.scheduling.placement import Room, charged
from fgsched.server import LongAnswer, cut
from fgsched.store import JobRecord
from fgsched.views import choices
from fgsched.views import options as table
from fgsched.views.columns import OF_FGQ, OF_SQUEUE, expanded, order_of
from fgsched.views.options import QueueOptions
from fgsched.views.query import Query, absent, query

_CHECKED = 60.0  # seconds for which other users get the result of the last check
_ROWS = 25  # of history, in one piece: some milliseconds
_WITH_FILES = 2  # rows in one piece whose user can make each take 10 ms, by a full table of steps
_TASKS = 1000  # of a reference to one job: they are looked up at once
_RECENT = 300.0  # seconds for which the queue can show an ended job
Getters = dict[str, Callable[[CallerView, Job], Any]]


class QueryHandlers:
    """Answer the requests of `calls`: `calls[type(call)](caller, call, now)`."""

    def __init__(
        self,
        engine: Engine,
        pids: Callable[[Job], list[int]],
        live: Live | None = None,
    ) -> None:
        self._engine = engine
        self._references = References(engine)
        self._pids = pids
        self._live = live or Live()
        self._verdict, self._checked_at = "", 0.0  # of the queue file
        self._last: Callable[[], _Snapshot | None] = lambda: None

    def knows(self, attributes: protocol.Where) -> bool:
        """Tell whether jobs can have the partitions, accounts and qualities of service of a filter."""
        policy = self._engine.policy
        knows = ([name.name for name in names] for names in (policy.partitions, policy.accounts, policy.qos))
        return choices.unknown(attributes, *knows) is None

    # -- jobs -----------------------------------------------------------------------------------

    @reads(protocol.ListQueue)
    def queue(self, caller: Caller, call: protocol.ListQueue, now: float) -> LongAnswer[protocol.JobInfos]:
        """Return the wanted attributes of the open jobs and, with `recent`, of jobs that have just ended."""
        return LongAnswer("jobs", self.rows(caller, call, now), lambda: protocol.JobInfos(jobs=[]))

    def rows(
        self, caller: Caller, question: protocol.ListQueue, now: float
    ) -> Iterator[list[protocol.JobInfo]]:
        """Return the same jobs in pieces. Raises BadUsage before the first piece."""
        attributes, look = getters(question.fields), self._look(caller, now)
        open_jobs, ended = self._snapshot(), list[Job]()
        if question.recent:
            ended = [look.know(record) for record in self._engine.store.ended_since(now - _RECENT)]
        choice = AttributeFilter(question.where, look)

        def pieces() -> Iterator[list[protocol.JobInfo]]:
            for piece in chain(cut(open_jobs.jobs), cut(ended)):
                visible = [job for job in piece if caller.may_see(job)] if caller.is_confined else piece
                yield from self._infos(look, list(self._chosen(choice, visible)), attributes)

        return pieces()

    def _infos(
        self, look: CallerView, jobs: Sequence[Job], attributes: Getters
    ) -> Iterator[list[protocol.JobInfo]]:
        """Yield the attributes of jobs in one piece, or in several if an attribute is read from files."""
        size = _WITH_FILES if "srun_steps" in attributes else len(jobs)
        for part in cut(jobs, size) if jobs else [jobs]:
            yield [self._info(look, job, attributes) for job in part]

    @property
    def size(self) -> int:
        """Return the number of open jobs."""
        return len(self._engine.jobtable.jobs)

    @property
    def pending_tasks(self) -> int:
        """Return the number of pending tasks of all arrays."""
        return self._engine.jobtable.arrays.pending

    def _look(self, caller: Caller, now: float) -> CallerView:
        return CallerView(self._engine, caller, now, self._live)

    def _info(self, look: CallerView, job: Job, attributes: Getters) -> protocol.JobInfo:
        """Return the selected attributes of a job; if that fails, those of the job with an empty request."""
        try:
            return protocol.JobInfo(**{name: get(look, job) for name, get in attributes.items()})
        except Exception as error:
            self._engine.faults.note(f"the record of job {job.id}", error)
            bare = _bare(job)
            return protocol.JobInfo(**{name: get(look, bare) for name, get in attributes.items()})

    def _chosen(self, choice: AttributeFilter, jobs: Sequence[Job]) -> Iterable[Job]:
        """Return the jobs that match the filter; a job that causes an exception is omitted."""
        try:
            return choice.of(jobs)
        except Exception as error:
            self._engine.faults.note("the choice of jobs", error)
            return (
                []
                if len(jobs) == 1
                else [chosen_job for job in jobs for chosen_job in self._chosen(choice, [job])]
            )

    def _snapshot(self) -> "_Snapshot":
        """Return a snapshot of all open jobs, cached until a job changes."""
        jobtable, last = self._engine.jobtable, self._last()
        if last is None or last.jobtable is not jobtable or last.revision != jobtable.revision:
            last = _Snapshot(jobtable)
            self._last = ref(last)
        return last

    @reads(protocol.ShowJob)
    def job(self, caller: Caller, call: protocol.ShowJob, now: float) -> protocol.JobInfo:
        """Return all attributes of one job."""
        return self._full(self._one(call.id, caller), caller, now)

    @reads(protocol.ShowJobs)
    def jobs(
        self, caller: Caller, call: protocol.ShowJobs, now: float
    ) -> LongAnswer[protocol.JobInfos] | protocol.JobInfos:
        """Return all attributes of the jobs that a reference names."""
        parts = self._references.seen_parts(call.id, caller)
        first = next(parts)
        records = chain(first, chain.from_iterable(parts))
        rows = ([self._full(record, caller, now)] for record in records)
        return LongAnswer("jobs", rows, lambda: protocol.JobInfos(jobs=[]))

    def _full(self, record: JobRecord, caller: Caller, now: float) -> protocol.JobInfo:
        look = self._look(caller, now)
        return self._info(look, look.know(record), FIELDS)

    def _one(self, name: protocol.Reference, caller: Caller) -> JobRecord:
        """Return the job that a reference names.

        Raises:
            NoSuchJob: there is no such job, or the site hides it from the caller.
            Refused: it names several jobs.
        """
        job_records: list[JobRecord] = []
        number, task_bits = split_reference(name)
        if (task_bits or 0).bit_count() > _TASKS:
            raise Refused(
                f"{name} are {(task_bits or 0).bit_count()} tasks", f"Name one task, such as {number}_0."
            )
        for part in self._references.seen_parts(name, caller):
            job_records += part
            if len(job_records) > 1:
                rows = self._engine.store.tasks.sum(number).rows
                raise Refused(f"{name} is an array of {rows} rows", f"Name one task, such as {name}_0.")
        return job_records[0]

    @reads(protocol.ShowScript)
    def script(self, caller: Caller, call: protocol.ShowScript, now: float) -> protocol.Script:
        """Return the script as it was submitted.

        Raises:
            NotPermitted: the caller is neither the owner nor an operator.
            Refused: the script is no longer kept.
        """
        job = self._one(call.id, caller).job
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
        return protocol.Script(script=script.decode(errors="surrogateescape"))

    @reads(protocol.ListPids)
    def pids(self, caller: Caller, call: protocol.ListPids, now: float) -> protocol.Pids:
        """Return the processes of a job. Raises NotPermitted for all but the owner and operators."""
        job = self._one(call.id, caller).job
        caller.must_own(job)
        return protocol.Pids(pids=self._pids(job) if job.state.holds else [])

    @reads(protocol.ShowLog)
    def log(self, caller: Caller, call: protocol.ShowLog, now: float) -> protocol.LogLines:
        """Return the lines of the log of decisions in memory that the caller may see."""
        return log_lines(self._engine.log, caller, call)

    # -- history --------------------------------------------------------------------------------

    @reads(protocol.ListHistory)
    def history(
        self, caller: Caller, call: protocol.ListHistory, now: float
    ) -> LongAnswer[protocol.HistoryPage]:
        """Return a page of the jobs that existed in a window of time, by id, or of the named jobs."""
        attributes, look = getters(call.fields), self._look(caller, now)
        page = _Page()
        if call.ids is not None:
            pieces = self._named(call.ids, page, caller)
        else:
            pieces = self._window(call, page, caller.uid if caller.is_confined else call.uid)
        rows = (
            [
                self._info(look, look.know(job_record), attributes)
                for job_record in piece
                if caller.may_see(job_record.job)
            ]
            for piece in pieces
        )
        return LongAnswer("jobs", rows, page.rest)

    def _window(
        self, call: protocol.ListHistory, page: "_Page", uid: int | None
    ) -> Iterator[list[JobRecord]]:
        rows_left, after = protocol.PAGE, call.after
        while rows_left:
            history = self._engine.store.history(
                since=call.since, until=call.until, uid=uid, after=after, page=min(rows_left, _ROWS)
            )
            yield [self._with_holds(record) for record in history.records]
            rows_left -= len(history.records)
            if history.upto is None:
                return
            after = history.upto
        page.next = after

    def _with_holds(self, record: JobRecord) -> JobRecord:
        """Return the record of an open job with what it holds, which a page of history does not read."""
        job = self._engine.jobtable.jobs.get(record.job.id)
        return record if job is None else replace(record, job=job)

    def _named(
        self, ids: Sequence[protocol.Reference], page: "_Page", caller: Caller
    ) -> Iterator[list[JobRecord]]:
        """Return the records of named jobs; a job that the site hides from the caller is missing."""
        for reference in ids:
            split_reference(reference)

        def records() -> Iterator[list[JobRecord]]:
            for job_id in ids:
                try:
                    yield from self._references.seen_parts(job_id, caller)
                except NoSuchJob:
                    page.missing.append(job_id)

        return records()

    # -- the host -------------------------------------------------------------------------------

    @reads(protocol.ListGpus)
    def gpus(self, caller: Caller, call: protocol.ListGpus, now: float) -> protocol.Gpus:
        """Return all GPUs with their free capacity, last reading and the jobs that the caller may see."""
        engine = self._engine
        host = engine.jobtable.host(engine.limits)
        rooms = engine.jobtable.rooms(engine.gpu_states.gpus, engine.gpu_states.readings)
        return protocol.Gpus(
            gpus=[self._gpu(room, caller, now) for room in rooms],
            enforce=engine.tier,
            preload=engine.mounts.word,
            preload_note=engine.mounts.note,
            other_gpus=engine.mounts.others,
            cpus=protocol.ResourceAmount(free=host.cpus, total=engine.limits.cpus),
            memory=protocol.ResourceAmount(free=host.memory, total=engine.limits.host_memory),
            jobs=self._counts(caller),
        )

    def _gpu(self, room: Room, caller: Caller, now: float) -> protocol.GpuInfo:
        index = room.gpu.index
        holding = [
            job
            for job in self._engine.jobtable.holding.values()
            if any(hold.gpu == index for hold in job.holds)
        ]
        reading = self._engine.gpu_states.readings.get(index)
        if reading and caller.is_confined:
            reading = replace(reading, processes=(), past=())
        return protocol.GpuInfo(
            gpu=room.gpu,
            usable=room.gpu.usable,
            free_share=room.share,
            free_memory=max(0, room.memory),
            external=room.external,
            allocated_memory=sum(hold.memory for job in holding for hold in job.holds if hold.gpu == index),
            jobs=[job.id for job in holding if caller.may_see(job)],
            seen=reading,
            hidden=sum(
                charged(hold, room.gpu.usable)
                for job in holding
                if not caller.may_see(job)
                for hold in job.holds
                if hold.gpu == index
            ),
            kept_as=self._engine.policy.kept_as(index, now),
        )

    def _counts(self, caller: Caller) -> dict[str, int]:
        """Return the number of rows of fgq in each state, without the jobs that the caller may not see."""
        states: Counter[str] = Counter()
        for (_, state), count in count_rows(self._engine.jobtable, caller).items():
            states[state] += count
        return dict(states)

    @reads(protocol.CheckQueue)
    def check(self, caller: Caller, call: protocol.CheckQueue, now: float) -> protocol.QueueCheck:
        """Check the queue file. Requests during a check, which can take long, get the previous result."""
        if caller.is_operator or not self._verdict or not 0 <= now - self._checked_at < _CHECKED:
            self._verdict, self._checked_at = self._engine.store.check(), now
        return protocol.QueueCheck(queue=self._verdict)


class _Page:
    """The totals of a page of history after all of it was produced."""

    def __init__(self) -> None:
        self.next: int | None = None
        self.missing: list[protocol.Reference] = []

    def rest(self) -> protocol.HistoryPage:
        return protocol.HistoryPage(jobs=[], next=self.next, missing=self.missing)


class _Snapshot:
    """The open jobs at one time, kept while an answer is produced from them."""

    def __init__(self, jobtable: JobTable) -> None:
        self.jobtable, self.revision = jobtable, jobtable.revision
        self.jobs = jobtable.in_order()


def _bare(job: Job) -> Job:
    """Return a job without the attributes that have their own encoding in the store."""
    nothing: dict[str, Any] = {"array": 0, "task": None, "depends": "", "resources": (), "cpus": ""}
    return job.changed(request=Request(name=job.request.name), preemption=None, post_mortem=None, **nothing)


# -- the queue for a program without a parser of its own -----------------------------------------------


_MOST = 20_000  # open jobs: they are sorted at once, which takes some 20 ms
_MOST_TASKS = 5_000  # rows of single tasks: those of one array are formatted at once
_MOST_NAMED = 500  # jobs by id: they are looked up at once
_LONGEST_LINE = 4096  # characters of all words: lists of jobs are parsed at once
_MOST_CELLS = 64  # columns, each of them once, as a user's texts can be long
_WIDEST = 4096  # characters of a row without the texts of the job
_MOST_KEYS = 16  # by which rows are sorted, one after the other


class _ForReader(Exception):
    """Raised if only the reading process knows what a line means."""


class _QueueCaller:
    """The caller, as a reader of the queue."""

    def __init__(self, caller: Caller, call: protocol.QueueLine) -> None:
        self._caller = caller
        self.name: str = call.name
        self.default_format = call.usual
        self.columns = OF_FGQ if call.name == "fgq" else OF_SQUEUE._replace(refuse=_leave_to_reader)

    def users(self, texts: Iterable[str]) -> list[str]:
        """Return the caller for its own name or uid. Raises _ForReader for a user who is to be looked up."""
        own = {self._caller.name, str(self._caller.uid)}
        words = choices.words(texts)
        if not own.issuperset(words):
            raise _ForReader
        return [self._caller.name for _ in words]

    def me(self) -> str:
        return self._caller.name


def _leave_to_reader(name: str) -> None:
    """Leave the report of an unknown column to the reader."""
    raise _ForReader


class QueueLineHandlers:
    """The handler of command lines of fgq."""

    def __init__(self, answers: QueryHandlers) -> None:
        self._answers = answers

    @reads(protocol.QueueLine)
    def queue_line(self, caller: Caller, call: protocol.QueueLine, now: float) -> LongAnswer[QueueLines]:
        """Return the rows of a line, or say that it is read elsewhere. Raises BadUsage for a wrong line."""
        try:
            pieces: Iterable[list[str]] = self._pieces(caller, call, now)
        except (table.Unread, _ForReader):
            return LongAnswer("lines", (), lambda: QueueLines(lines=[], elsewhere=True))
        return LongAnswer("lines", pieces, lambda: QueueLines(lines=[]))

    def _pieces(self, caller: Caller, call: protocol.QueueLine, now: float) -> Iterator[list[str]]:
        if sum(map(len, call.words)) > _LONGEST_LINE:
            raise _ForReader
        options, operands = table.QUEUE.read(call.words)
        wanted = query(options, operands, _QueueCaller(caller, call))
        named = wanted.call.where.id or ()
        if call.name == "fgq" and not self._answers.knows(wanted.call.where):
            raise _ForReader
        if self._is_long(len(named), options) or _is_costly(wanted) or _is_local(wanted, options):
            raise _ForReader
        rows: Iterable[list[JobInfo]] = self._answers.rows(caller, wanted.call, now)
        if named:
            rows = list(rows)
            if absent(named, [job for piece in rows for job in piece]):
                raise _ForReader
        return _lines(rows, wanted, options)

    def _is_long(self, named: int, options: QueueOptions) -> bool:
        """Tell whether the answer would take the controller so long that other users would notice."""
        if self._answers.size > _MOST or named > _MOST_NAMED:
            return True
        return options.expand and self._answers.pending_tasks > _MOST_TASKS


def _is_costly(wanted: Query) -> bool:
    """Tell whether the rows of a line would take the controller much memory or time."""
    pieces = wanted.form.pieces
    different = {piece.column for piece in pieces}
    size = len(wanted.form.before) + sum(piece.width + len(piece.after) for piece in pieces)
    is_large = len(pieces) > _MOST_CELLS or len(different) < len(pieces) or size > _WIDEST
    return is_large or len(wanted.keys) > _MOST_KEYS


def _is_local(wanted: Query, options: QueueOptions) -> bool:
    """Tell whether the text depends on the reader: on its time zone, its terminal, or further requests."""
    local = any(piece.column.is_local for piece in wanted.form.pieces)
    other_form = options.why or options.start or options.as_json or bool(options.slurm_json)
    repeats = options.iterate is not None
    return local or wanted.starts or other_form or repeats or options.colour == "always"


def _lines(rows: Iterable[list[JobInfo]], wanted: Query, options: QueueOptions) -> Iterator[list[str]]:
    """Yield the table in pieces; nothing in the steps in which rows are collected."""
    orders = [order_of(column) for column, _ in wanted.keys]
    form = wanted.form.formatter()
    keyed_lines: list[tuple[Any, ...]] = []
    for piece in rows:
        for job in piece:
            shown = expanded([job]) if options.expand else (job,)
            text = "".join([f"{form(each)}\n" for each in shown])
            keyed_lines.append((*[order(job) for order in orders], text))
        yield []
    for place, (_, is_descending) in reversed(list(enumerate(wanted.keys))):
        keyed_lines.sort(key=itemgetter(place), reverse=is_descending)
    if not options.noheader:
        yield [f"{wanted.form.header()}\n"]
    for part in cut(keyed_lines):
        yield ["".join([row[-1] for row in part])]
