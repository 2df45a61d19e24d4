"""What pages read: of the controller over its socket, as the user, and of the job's own files.

Functions here do I/O and run in threads; `pages` make contexts of what they return.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fgsched import protocol
from fgsched.accounting.periods import Choice
from fgsched.cli import hint, reporting
from fgsched.cli.top.snapshot import FIELDS, Frame, LookHistory
from fgsched.client import Client
from fgsched.domain.errors import BadUsage, FgschedError, NoSuchJob, NotPermitted, Refused, Unreachable
from fgsched.domain.text import shown as plain
from fgsched.domain.waiting import ExpectedStart, Explanation
from fgsched.protocol import About, Call, GpuInfo, GpuProcessInfo, JobInfo
from fgsched.reports.model import Report
from fgsched.reports.registry import NAMES, Style, blank, written
from fgsched.reports.request import Records
from fgsched.system.paths import Paths
from fgsched.system.process import TreeUse, use_of
from fgsched.views import job as view
from fgsched.views.display import host_name
from fgsched.web.output import FileTail, tail_of
from fgsched.web.visit import Viewer, Visit

PATIENCE = 5.0  # seconds for an answer of the controller
FRESH = 1.0  # seconds for which a look is shown again
_ABOUT = 60.0  # seconds between two questions about the controller
_DAY_FRESH = 10.0  # seconds for which the ended jobs of a day are shown again
_REPORT_PATIENCE = 60.0  # seconds that a report may take
_LONGEST_TIME = 64  # characters of the begin of a period
_MOST_SCRIPTS = 16  # in memory
_REPORT_FRESH = 300.0  # seconds for which a report is shown again
DAY_OPTIONS = {  # options of fgreport
    **dict.fromkeys(Choice.__struct_fields__, ""),
    **{"report": "utilization", "since": "-24h", "yesterday": False, "file": "", "user": "", "by": "user"},
    "number": "10",
}
_MOST_ENDED = 10_000  # jobs of a day that are counted
QUEUE_FIELDS = view.attributes(
    *FIELDS,
    view.time_left,
    view.oom_kind,
    "cause elapsed time_limit started_at ended_at host_memory cpus held",
)
ENDED_FIELDS = view.attributes(
    view.label, view.oom_kind, "name user uid share gpus memory elapsed ended_at started_at indices allocated"
)
Answer = TypeVar("Answer")


class HostLook(Struct, frozen=True, kw_only=True):
    """The host at one time, or the last one that is known."""

    frame: Frame
    history: LookHistory
    about: About
    starts: Mapping[int, ExpectedStart] = {}  # of pending jobs, by id
    trouble: str = ""  # why the controller does not answer; "": it does
    since: float = 0.0  # epoch seconds from which on it does not

    def of(self, job: int) -> ExpectedStart:
        """Return the expected start of a job; its times are None if it is not known."""
        return self.starts.get(job, _UNKNOWN)


_UNKNOWN = ExpectedStart()


class HostReader:
    """Questions to the controller for all pages. A look is shared by pages that are read at the same time."""

    def __init__(self, paths: Paths, clock: Callable[[], float] = time.time, *, umask: int = 0o077) -> None:
        """`umask`: of the jobs that the form submits."""
        self._paths, self._clock, self.umask = paths, clock, umask
        self._history = LookHistory()
        self._lock = Lock()
        self._look: HostLook | None = None
        self._is_stale = False
        self._asked_about = 0.0
        self._scripts: dict[int, str] = {}  # of the last jobs that were shown
        self._hints: dict[int, str] = {}  # about them
        self._report: tuple[float, Report | None] = (0.0, None)  # when, on the utilization of a day
        self._ended: tuple[float, float, list[JobInfo]] = (0.0, 0.0, [])  # when, since, jobs

    def ask(self, call: Call[Answer], *, patience: float = PATIENCE) -> Answer:
        """Return the answer to a request; `patience`: seconds for it. Raises FgschedError."""
        with self._client() as client:
            return client.call(call, patience=patience)

    def _client(self) -> Client:
        return Client(self._paths, may_start=False, is_prompt=True, names_variables=False)

    def is_changed(self) -> None:
        """Read the next look again, whatever its age: a form has changed the queue."""
        self._is_stale = True

    def look(self, age: float = FRESH) -> HostLook:
        """Return a look of at most this age, in seconds, or the last one with the controller's trouble.

        Raises: FgschedError, if the controller does not answer and never did.
        """
        with self._lock:
            last, now = self._look, self._clock()
            if last is not None and not self._is_stale and not last.trouble and now - last.frame.at <= age:
                return last
            self._is_stale = False
            try:
                self._look = self._taken(last, now)
            except Unreachable as error:
                if last is None:
                    raise
                self._look = replace(last, trouble=error.cause, since=last.since or now)
            return self._look

    def _taken(self, last: HostLook | None, now: float) -> HostLook:
        with self._client() as client:
            about = last.about if last is not None and not last.trouble else None
            if about is None or now - self._asked_about > _ABOUT:
                about, self._asked_about = client.call(protocol.Ping(), patience=PATIENCE), now
            gpus = client.call(protocol.ListGpus(), patience=PATIENCE).gpus
            call = protocol.ListQueue(fields=QUEUE_FIELDS, recent=True)
            jobs = client.call(call, patience=PATIENCE).jobs
            is_waiting = any(job.started_at is None and not job.state.is_final for job in jobs)
            starts = client.call(protocol.ListStarts(), patience=PATIENCE).starts if is_waiting else []
        frame = self._history.frame(gpus, jobs, now, host_name())
        return HostLook(frame=frame, history=self._history, about=about, starts=dict(starts))

    def script(self, job: int) -> str:
        """Return the script of a job as it was submitted; "": it is no longer kept."""
        if job not in self._scripts:
            while len(self._scripts) >= _MOST_SCRIPTS:
                self._scripts.pop(next(iter(self._scripts)))
            with suppress(NotPermitted, Refused):
                self._scripts[job] = self.ask(protocol.ShowScript(id=job)).script
        return self._scripts.get(job, "")

    def hint(self, job: JobInfo) -> str:
        """Return what earlier runs of this name used less than the job asks for, as `fgsub` does; or ""."""
        if job.id not in self._hints:
            while len(self._hints) >= _MOST_SCRIPTS:
                self._hints.pop(next(iter(self._hints)))
            after = max(0, job.id - 1 - hint.BACK)
            page = self.ask(protocol.ListHistory(fields=hint.FIELDS, after=after, uid=job.uid))
            self._hints[job.id] = hint.hint(job.id, job.name, page.jobs).partition("\n")[0]
        return self._hints[job.id]

    def day_of_gpus(self) -> Report | None:
        """Return the report on the utilization of the last 24 hours, at most some minutes old; None: none."""
        now = self._clock()
        if now - self._report[0] > _REPORT_FRESH:
            report = None
            with suppress(FgschedError, OSError):
                report, _ = reporting.made(DAY_OPTIONS, now)
            self._report = (now, report)
        return self._report[1]

    def ended_since(self, since: float) -> Sequence[JobInfo]:
        """Return the jobs that ended since a time, in epoch seconds, the last first. Raises FgschedError."""
        now = self._clock()
        asked, begin, jobs = self._ended
        if not self._is_stale and now - asked <= _DAY_FRESH and begin == since:
            return jobs
        with self._client() as client:
            jobs = _ended(client, since)
        self._ended = (now, since, jobs)
        return jobs


def _ended(client: Client, since: float) -> list[JobInfo]:
    jobs: list[JobInfo] = []
    after = 0
    while len(jobs) < _MOST_ENDED:
        call = protocol.ListHistory(fields=ENDED_FIELDS, since=since, after=after)
        page = client.call(call, patience=PATIENCE)
        jobs += [job for job in page.jobs if job.state.is_final and (job.ended_at or 0.0) >= since]
        if page.next is None:
            break
        after = page.next
    return sorted(jobs, key=lambda job: (-(job.ended_at or 0.0), -job.id))


# -- what each page reads ----------------------------------------------------------------------------------


def confined(look: HostLook, viewer: Viewer) -> HostLook:
    """Return a look without the jobs of others, for a read-only page of a host that keeps users private.

    An operator's page hangs in a corridor then: what others may not see is not shown there. The parts of GPUs
    that these jobs hold stay charged.
    """
    if not (viewer.read_only and look.about.config.get("private_data")):
        return look
    frame = look.frame
    hidden = [job for job in frame.jobs if job.uid != viewer.uid]
    gpus = [replace(info, hidden=info.hidden + _charged(info, hidden)) for info in frame.gpus]
    own = [job for job in frame.jobs if job.uid == viewer.uid]
    return replace(look, frame=replace(frame, gpus=gpus, jobs=own))


def _charged(info: GpuInfo, jobs: Sequence[JobInfo]) -> int:
    """Return the ten-thousandths of a GPU that jobs are charged."""
    return sum(
        part.charged
        for job in jobs
        if job.state.holds
        for part in job.allocated
        if part.gpu == info.gpu.index
    )


def look(reader: HostReader, visit: Visit) -> HostLook:
    """Read what the page on the host shows. Raises FgschedError."""
    return confined(reader.look(), visit.viewer)


def nothing(reader: HostReader, visit: Visit) -> None:
    """Read nothing, for a page that shows nothing of the host."""


class QueueData(Struct, frozen=True, kw_only=True):
    """The open jobs, and the jobs of today that have ended."""

    look: HostLook
    ended: Sequence[JobInfo] = ()


def queue(reader: HostReader, visit: Visit) -> QueueData:
    """Read the queue. Raises FgschedError."""
    taken = confined(reader.look(), visit.viewer)
    ended: Sequence[JobInfo] = ()
    with suppress(Unreachable):
        ended = reader.ended_since(visit.midnight)
    if visit.viewer.read_only and taken.about.config.get("private_data"):
        ended = [job for job in ended if job.uid == visit.viewer.uid]
    return QueueData(look=taken, ended=ended)


class JobData(Struct, frozen=True, kw_only=True):
    """All about one job."""

    look: HostLook
    job: JobInfo
    explanation: Explanation | None = None  # of a pending job
    use: TreeUse | None = None  # of the processes of a running job of this user
    tail: FileTail | None = None  # of the file that is shown; None: it is hidden
    hint: str = ""  # what earlier runs of its name used; "": nothing to say
    script: str = ""  # as it was submitted; "": hidden, or no longer kept


def job(reader: HostReader, visit: Visit) -> JobData:
    """Read one job. Raises FgschedError: NoSuchJob, if the site hides it from the reader."""
    name = visit.job
    found = reader.ask(protocol.ShowJob(id=name))
    taken = confined(reader.look(), visit.viewer)
    is_own = found.uid == visit.viewer.uid
    if visit.viewer.read_only and taken.about.config.get("private_data") and not is_own:
        raise NoSuchJob(f"Invalid job id specified: {name}")
    explanation = None
    if not found.state.holds and not found.state.is_final:
        explanations = reader.ask(protocol.ExplainJobs(ids=[name])).jobs
        explanation = explanations[0] if explanations else None
    is_shown = is_own and not visit.viewer.read_only
    return JobData(
        look=taken,
        job=found,
        explanation=explanation,
        use=_use(reader, found) if is_own and found.state.holds else None,
        tail=tail_of(found, visit.file, visit.viewer.uid) if is_shown and found.attempt else None,
        hint=reader.hint(found) if is_own and found.state.holds else "",
        script=reader.script(found.id) if is_shown else "",
    )


class GpuData(Struct, frozen=True, kw_only=True):
    """All about one GPU."""

    look: HostLook
    processes: Sequence[GpuProcessInfo] = ()
    report: Report | None = None  # on utilization; None: the reader may not see it, or nothing is recorded


def gpu(reader: HostReader, visit: Visit) -> GpuData:
    """Read what the page on a GPU shows. Raises FgschedError."""
    taken = confined(reader.look(), visit.viewer)
    processes: Sequence[GpuProcessInfo] = ()
    if not visit.viewer.read_only:  # they have names of users
        with suppress(FgschedError):
            processes = reader.ask(protocol.ListGpuProcesses()).processes
    return GpuData(look=taken, processes=processes, report=reader.day_of_gpus())


class ArrayData(Struct, frozen=True, kw_only=True):
    """The tasks of an array."""

    look: HostLook
    jobs: Sequence[JobInfo]


def array(reader: HostReader, visit: Visit) -> ArrayData:
    """Read the tasks of an array. Raises FgschedError: NoSuchJob, if the site hides it from the reader."""
    name = visit.job
    jobs = reader.ask(protocol.ShowJobs(id=name)).jobs
    taken = confined(reader.look(), visit.viewer)
    is_private = visit.viewer.read_only and taken.about.config.get("private_data")
    if not jobs or (is_private and jobs[0].uid != visit.viewer.uid):
        raise NoSuchJob(f"Invalid job id specified: {name}")
    return ArrayData(look=taken, jobs=jobs)


class ReportData(Struct, frozen=True, kw_only=True):
    """A report as text; "": the list of reports."""

    name: str = ""
    text: str = ""


def report(reader: HostReader, visit: Visit) -> ReportData:
    """Make a report. Raises BadUsage, or NotPermitted if the host keeps the users that it names private."""
    name = visit.params.get("report", "")
    if not name:
        return ReportData()
    if name not in NAMES:
        raise BadUsage(f"there is no report {plain(name[:40])}", "The page of reports lists them.")
    call = protocol.MakeReport(report=name, since=visit.query.get("since", "")[:_LONGEST_TIME])
    made = reader.ask(call, patience=_REPORT_PATIENCE)
    records = Records(is_empty=made.is_empty, begin=made.begin)
    shown = msgspec.json.decode(made.report, type=Report)
    text = blank(shown, records, visit.viewer.name, visit.now) or written(shown, "text", Style())
    return ReportData(name=name, text=text)


def _use(reader: HostReader, job: JobInfo) -> TreeUse | None:
    with suppress(FgschedError):
        return use_of(reader.ask(protocol.ListPids(id=job.id)).pids)
    return None
