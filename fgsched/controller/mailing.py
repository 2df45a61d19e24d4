"""Create the mails of jobs, put each into the queue of mails exactly once, and wake the mailer.

A mail is stored in the transaction of its event, under a name that identifies the event. After the commit it
is put into the queue of mails, which refuses a name that it had before. It is deleted from the store when
the mailer has reported that it is durable in the queue of mails.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fgsched.controller.jobtable import eligible
from fgsched.controller.turn import EngineContext, QueueMail
from fgsched.domain.job import Job, JobUsage, getter_of
from fgsched.domain.states import JobState
from fgsched.domain.times import HOUR
from fgsched.lifecycle import mail
from fgsched.lifecycle.filenames import output_path
from fgsched.mail.letters import JobMail, Letter, MailedJob, MailSettings, Message, to_bytes
from fgsched.mail.spool import Spool
from fgsched.store.rows import ArraySum
from fgsched.store.store import Unreadable
from fgsched.system.helper import Helper
from fgsched.views.display import host_name

# -- the mailer ----------------------------------------------------------------------------------------


class MailerProcess(Helper):
    """The queue, and the process that sends. A letter that an ended process was sending is sent again."""

    def __init__(self, path: Path, settings: MailSettings) -> None:
        """Create it without a process, for the queue at `path`. Raises OSError."""
        super().__init__("fgsched.mail.mailer", pause=5.0)
        self._spool, self._path = Spool(path), path
        self._settings = settings

    @property
    def settings(self) -> MailSettings:
        """The settings in force."""
        return self._settings

    def configure(self, settings: MailSettings) -> None:
        """Restart the process with changed settings."""
        if settings != self._settings:
            self._settings = settings
            self.stop()

    def post(self, name: str, data: bytes) -> bool:
        """Put a letter into the queue; return False if it was there before. Raises OSError."""
        is_new = self._spool.put(name, data)
        if self.flush():  # a full socket has woken it already
            self.send(b"\n")
        return is_new

    def due(self, now: float) -> float | None:
        """Return the seconds until the process is to be started again; None: it runs. `now`: monotonic."""
        return None if self._settings.way == "off" or self.is_running else self.pause_left(now)

    def look(self, now: float) -> None:
        """Start the process unless it runs. `now` is in monotonic seconds."""
        if self.due(now) == 0.0:
            try:
                self.start(now)
            except OSError as error:
                log.warning("the mailer cannot be started: %s", error)

    def start(self, now: float) -> None:
        """Start the process. `now` is in monotonic seconds.

        The settings are in a file in memory: every user of the host can read the arguments of a process.

        Raises:
            OSError: the process cannot be started.
        """
        with open(os.memfd_create("settings"), "r+b", buffering=0) as file:
            file.write(msgspec.json.encode(self._settings))
            file.seek(0)
            self.launch(str(self._path), str(file.fileno()), now=now, pass_fds=(file.fileno(),))

    def receive(self) -> list[str]:
        """Return the names of the letters that are durable in the queue; never blocks."""
        return [line.decode() for line in self.lines() if line]


log = logging.getLogger("fgsched.controller")
_STORED = {name: getter_of(name) for name in MailedJob.__struct_fields__}
_OF_ENDS = (mail.END, mail.FAIL, mail.TIME_LIMIT)
RETRY = 10.0  # seconds until a mail that could not be put into the queue of mails is tried again
_MOST = 10_000  # such mails in memory; further ones are read from the store after them
_BATCH = 200  # of these in one round
_AGAIN = 0.1  # seconds between two rounds without a failure
_LONGEST = 300.0  # seconds until the clock, which may be set, is read again


class Hour(Struct):
    """The mails about the jobs of one user in an hour that begins with the first one."""

    ends_at: float
    recipients: tuple[str, ...] = ()  # recipients of the first mail that was left out
    count: int = 0  # due, whether sent or left out
    left_out: int = 0  # left out


class HourlyLimit:
    """Counts mails by uid in memory: a restarted controller begins new hours."""

    def __init__(self) -> None:
        self.max_per_hour = 0  # 0: no limit
        self._hours: dict[int, Hour] = {}

    def count(self, uid: int, to: tuple[str, ...], now: float) -> Hour | None:
        """Count a mail; return None if it may be sent, else the hour, with the mail among those left out."""
        if not self.max_per_hour:
            return None
        hour = self._hours.get(uid)
        if hour is None or (now >= hour.ends_at and not hour.left_out):
            hour = self._hours[uid] = Hour(ends_at=now + HOUR)
        hour.count += 1
        if hour.count <= self.max_per_hour:
            return None
        hour.recipients = hour.recipients or to
        hour.left_out += 1
        return hour

    def ended(self, now: float) -> Iterator[tuple[int, Hour]]:
        """Remove the hours that have ended; yield (uid, hour) of those in which mails were left out."""
        for uid, hour in [(uid, hour) for uid, hour in self._hours.items() if hour.ends_at <= now]:
            del self._hours[uid]
            if hour.left_out:
                yield uid, hour

    def due(self) -> float | None:
        """Return when the first hour ends in which mails were left out; None: there is none."""
        return min((hour.ends_at for hour in self._hours.values() if hour.left_out), default=None)

    def forget(self) -> None:
        """Begin new hours for all users: the mails of a turn were not stored."""
        self._hours = {}

    def first(self, hour: Hour, now: float) -> Message:
        """Return the mail that says that further ones are left out."""
        text = (
            f"{self.max_per_hour} mails about your jobs were due within an hour. Further ones are left out "
            f"until {_clock(hour.ends_at)}; another mail then says how many.\n\n"
            "fgacct lists your jobs and their ends. Without ARRAY_TASKS in --mail-type, an array has one\n"
            "mail about its start and one about its end. The limit: max_per_hour in fgsched.toml, [mail].\n"
        )
        subject = f"fgsched leaves out mails about your jobs until {_clock(hour.ends_at)}"
        return Message(at=now, to=hour.recipients, subject=subject, text=text)

    def last(self, hour: Hour, now: float) -> Message:
        """Return the mail that says how many were left out."""
        between = f"{_clock(hour.ends_at - HOUR)} and {_clock(hour.ends_at)}"
        subject = f"fgsched left out {hour.left_out} mails about your jobs"
        text = f"They were due between {between}. fgacct lists your jobs and their ends.\n"
        return Message(at=now, to=hour.recipients, subject=subject, text=text)


def _clock(at: float) -> str:
    return time.strftime("%H:%M", time.localtime(at))


def no_usage(job: Job) -> JobUsage | None:
    """Return None: there are no samples."""
    return None


class JobMails:
    """The mails of an engine. Times are in epoch seconds."""

    def __init__(self, engine: EngineContext, usage: Callable[[Job], JobUsage | None]) -> None:
        """`usage` returns the sums of samples of a job."""
        self._engine, self._usage = engine, usage
        self._put: Callable[[str, bytes], bool] | None = None
        self._host = ""
        self._durable: set[str] = set()  # durable in the queue of mails
        self._dropped: set[str] = set()  # deleted by the open transaction
        self._unposted: dict[str, bytes] = {}
        self._are_more_unposted = False  # than _MOST: the others are in the store
        # (array, type) of mails about an array as a whole; after a restart, names prevent a second mail
        self._noted: set[tuple[int, str]] = set()
        self._limit = HourlyLimit()
        self._timed: dict[int, tuple[float, str]] = {}  # job -> next mail about its time limit

    def connect(self, put: Callable[[str, bytes], bool] | None, host: str, *, most_per_hour: int = 0) -> None:
        """Set the function that puts a mail into the queue of mails; None: mails are off.

        `put(name, data)` returns False if the queue of mails had it before. At most `most_per_hour` mails
        about the jobs of one user are made in an hour; 0: all.
        """
        self._put, self._host, self._limit.max_per_hour = put, host, most_per_hour

    # -- in the transaction ---------------------------------------------------------------------

    def note(self, before: Job, after: Job, now: float) -> None:
        """Create the mails about a change of a job."""
        if not mail.types_of(after) or self._put is None:
            return
        if after.array and not mail.wants(after, mail.ARRAY_TASKS):
            self._note_array(before, after, now)
        else:
            for kind in mail.events(before, after):
                self._add(kind, before, after, now)
        if not mail.PARTS.keys().isdisjoint(mail.types_of(after)):
            self._follow(after, since=0.0 if before.state is JobState.STARTING else now)

    def _note_array(self, before: Job, after: Job, now: float) -> None:
        """Create mails about an array as a whole: its first start, and the end of its last task."""
        array = self._engine.jobtable.arrays.get(after.array)
        for kind in mail.events(before, after):
            if kind in _OF_ENDS or (after.array, kind) in self._noted:
                continue
            self._noted.add((after.array, kind))
            self._add(kind, before, after, now, is_summary=True)
        if after.state.is_final and array is None:
            self._noted -= {(after.array, kind) for kind in mail.TYPES}
            total = self._sum(after.array)
            has_failed = total.completed < total.over and mail.wants(after, mail.FAIL)
            kind = mail.FAIL if has_failed else mail.END
            if mail.wants(after, kind):
                self._add(kind, before, after, now, is_summary=True)

    def _follow(self, job: Job, *, since: float) -> None:
        """Note the time of the next mail about the time limit of a running job, after `since`."""
        self._timed.pop(job.id, None)
        is_whole = bool(job.array) and not mail.wants(job, mail.ARRAY_TASKS)
        if job.state is JobState.RUNNING and not is_whole and (next_part := mail.next_part(job, since)):
            self._timed[job.id] = next_part

    def create_due_mails(self, now: float) -> None:
        """Create the mails about used parts of time limits, and about mails that were left out."""
        for uid, hour in self._limit.ended(now):
            self._store(f"{uid}.{hour.ends_at:.0f}.LEFT_OUT", self._limit.last(hour, now))
        for job_id, (at, kind) in list(self._timed.items()):
            job = self._engine.jobtable.jobs.get(job_id)
            if at > now and job is not None:
                continue
            self._timed.pop(job_id)
            if job is not None and job.state is JobState.RUNNING:
                self._create_part_mail(job, at, kind, now)

    def _create_part_mail(self, job: Job, at: float, kind: str, now: float) -> None:
        if mail.part_at(job, kind) > now:  # the limit was raised
            self._follow(job, since=now)
            return
        self._add(kind, job, job, now)
        self._follow(job, since=at)

    def tidy(self) -> None:
        """Delete the mails that are durable in the queue of mails."""
        self._dropped = set(self._durable)
        for name in self._dropped:
            self._engine.store.outbox.drop(name)

    def _add(self, kind: str, before: Job, after: Job, now: float, *, is_summary: bool = False) -> None:
        if hour := self._limit.count(after.uid, mail.recipients(after), now):
            if hour.left_out == 1:
                log.warning("mails about jobs of uid %d are left out for an hour", after.uid)
                self._store(f"{after.uid}.{hour.ends_at:.0f}.LIMIT", self._limit.first(hour, now))
            return
        letter = self._letter(kind, before, after, now, is_summary=is_summary)
        job, attempt = (after.array, 0) if is_summary else (after.id, before.attempt)
        self._store(f"{job}.{attempt}.{kind}", letter)

    def _store(self, name: str, letter: Letter) -> None:
        name, data = f"{self._engine.store.name}-{name}", to_bytes(letter)
        self._engine.store.outbox.put(name, data.decode())
        self._engine.then(QueueMail(name, data))

    def _letter(self, kind: str, before: Job, after: Job, now: float, *, is_summary: bool) -> JobMail:
        job = before if kind == mail.REQUEUE else after
        holds = before.holds or job.holds
        gpus = [self._engine.gpu_states.gpu(hold.gpu) for hold in holds]
        letter = JobMail(
            at=now,
            to=mail.recipients(after),
            event=kind,
            types=",".join(mail.types_of(after)),
            state=after.state.word,
            gpus=tuple(hold.gpu for hold in holds),
            model=gpus[0].model if gpus else "",
            total=min((gpu.total for gpu in gpus), default=0),
            share=holds[0].share if holds else job.request.demand.share,
            memory=holds[0].memory if holds else job.request.demand.memory,
            output=output_path(job, job.request.output, self._host),
            errors=output_path(job, job.request.error, self._host) if job.request.error else "",
            usage=self._usage(job) if after.state.is_final else None,
            job=job.id,
            reason=job.reason.word,
            eligible_at=eligible(job) or 0.0,
            cpus=job.request.demand.cpus,
            ntasks=job.request.tasks,
            **{name: get(job) for name, get in _STORED.items()},
        )
        return self._summary(letter) if is_summary else letter

    def _sum(self, array: int) -> ArraySum:
        """Return the totals of an array, without tasks in accounts that cannot be read."""
        tasks = self._engine.store.tasks
        try:
            return tasks.sum(array)
        except Unreadable:  # a mail must not prevent the turn: all ends are stored with this one
            return tasks.sum_of_queue(array)

    def _summary(self, letter: JobMail) -> JobMail:
        total, exits = (
            self._sum(letter.array),
            self._engine.store.outbox.exits(letter.array),
        )
        numbers = {"tasks": total.rows, "completed": total.completed, "exits": exits}
        return replace(letter, is_summary=True, task=None, **numbers)

    # -- outside of a transaction ---------------------------------------------------------------

    def committed(self) -> None:
        """Note that the transaction of `tidy` is committed."""
        self._durable -= self._dropped
        self._dropped = set()

    def kept(self, names: list[str]) -> None:
        """Note the mails that are durable in the queue of mails, and are to be deleted from the store."""
        self._durable.update(names)

    def resume(self) -> None:
        """Compute the times of mails again from the open jobs."""
        self._timed, self._dropped, self._noted = {}, set(), set()
        self._limit.forget()
        for job in self._engine.jobtable.holding.values():
            if mail.types_of(job) and self._put is not None:
                self._follow(job, since=0.0)

    def resend(self) -> None:
        """Post the mails that an earlier controller had committed."""
        for name, text in self._engine.store.outbox.all() if self._put is not None else ():
            self._engine.then(QueueMail(name, text.encode()))

    def post(self, name: str, data: bytes) -> None:
        """Put a mail into the queue of mails, or keep it for `retry_unposted`."""
        if self._put is None:
            return
        try:
            is_new = self._put(name, data)
        except OSError as error:
            if len(self._unposted) < _MOST:
                self._unposted[name] = data
            else:
                self._are_more_unposted = True
            log.warning("mail %s waits in the queue: %s", name, error)
            return
        if not is_new:
            self._durable.add(name)

    def retry_unposted(self) -> float:
        """Try mails again that could not be put into the queue of mails; return the pause in seconds.

        After the first failure the others wait, too: most often the queue of mails or its disk is full.
        """
        for name in list(self._unposted)[:_BATCH]:
            self.post(name, self._unposted.pop(name))
            if name in self._unposted:
                return RETRY
        if self._are_more_unposted and not self._unposted:
            mails = (
                (name, text) for name, text in self._engine.store.outbox.all() if name not in self._durable
            )
            self._unposted = {name: text.encode() for name, text in islice(mails, _MOST)}
            self._are_more_unposted = len(self._unposted) == _MOST
        return _AGAIN

    @property
    def has_unposted(self) -> bool:
        """Tell whether mails wait for `retry_unposted`."""
        return bool(self._unposted)

    def due(self, now: float) -> float | None:
        """Return the seconds until `ring` has something to do; None: nothing is due."""
        times = [at for at, _ in self._timed.values()]
        if (ends_at := self._limit.due()) is not None:
            times.append(ends_at)
        return min(_LONGEST, max(0.0, min(times) - now)) if times else None


class MailerControl:
    """The controller's side of the mailer. Times are in monotonic seconds."""

    def __init__(self, desk: JobMails, mailer: MailerProcess | None) -> None:
        """`mailer`: None if there are no mails."""
        self._job_mails, self._mailer = desk, mailer
        self._retry_at = 0.0
        self._connect()

    def _connect(self) -> None:
        is_on = self._mailer is not None and self._mailer.settings.way != "off"
        put = self._mailer.post if self._mailer is not None and is_on else None
        most = self._mailer.settings.most_per_hour if self._mailer is not None else 0
        self._job_mails.connect(put, host_name(), most_per_hour=most)

    def configure(self, settings: MailSettings) -> None:
        """Use changed settings."""
        if self._mailer is not None:
            self._mailer.configure(settings)
        self._connect()

    def receive(self) -> None:
        """Take in the reports of the mailer."""
        if self._mailer is not None:
            self._job_mails.kept(self._mailer.receive())

    def due(self, now: float) -> float | None:
        """Return the seconds until `look` has something to do; None: nothing is due."""
        start = self._mailer.due(now) if self._mailer is not None else None
        again = max(0.0, self._retry_at - now) if self._job_mails.has_unposted else None
        return min((pause for pause in (start, again) if pause is not None), default=None)

    def look(self, now: float) -> None:
        """Start the mailer again if it has ended, and post mails again that could not be posted."""
        if self._mailer is not None:
            self._mailer.look(now)
        if self._job_mails.has_unposted and now >= self._retry_at:
            self._retry_at = now + self._job_mails.retry_unposted()
