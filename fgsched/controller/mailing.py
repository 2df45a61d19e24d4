"""Create the mails of jobs, and put each into the queue of mails exactly once.

A mail is stored in the transaction of its event, under a name that identifies the event. After the commit it
is put into the queue of mails, which refuses a name that it had before. It is deleted from the store when
the mailer has reported that it is durable in the queue of mails.
"""

import logging
import socket
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from fgsched.controller.turn import EngineContext, Mail
from fgsched.controller.waitindex import eligible
from fgsched.domain.job import Ended, Job, JobState
from fgsched.domain.usage import JobUsage
from fgsched.jobs import mail
from fgsched.jobs.filenames import output_path
from fgsched.mail.letters import JobMail, Settings, to_bytes
from fgsched.mail.process import MailerProcess

log = logging.getLogger("fgsched.controller")
RETRY = 10.0  # seconds until a mail that could not be put into the queue of mails is tried again
_MOST = 10_000  # such mails that are tried again by this controller; further ones by the next
_LONGEST = 300.0  # seconds until the clock, which may be set, is read again


class MailDesk:
    """The mails of an engine. Times are in epoch seconds."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._put: Callable[[str, bytes], bool] | None = None
        self._host = ""
        self._kept: set[str] = set()  # durable in the queue of mails
        self._dropped: set[str] = set()  # deleted by the open transaction
        self._unposted: dict[str, bytes] = {}
        self._begun: set[int] = set()  # arrays with a mail about their start; names prevent a second mail
        self._timed: dict[int, tuple[float, str]] = {}  # job -> next mail about its time limit
        self.usage: Callable[[Job], JobUsage | None] = lambda job: None  # sums of samples

    def connect(self, put: Callable[[str, bytes], bool] | None, host: str) -> None:
        """Set the function that puts a mail into the queue of mails; None: mails are off.

        `put(name, data)` returns False if the queue of mails had it before.
        """
        self._put, self._host = put, host

    # -- in the transaction ---------------------------------------------------------------------

    def note(self, before: Job, after: Job, now: float) -> None:
        """Create the mails about a change of a job."""
        if not after.request.mail_type or self._put is None:
            return
        if after.array and not mail.wants(after, mail.ARRAY_TASKS):
            self._note_array(before, after, now)
        else:
            for kind in mail.events(before, after):
                self._add(kind, before, after, now)
        if mail.PARTS.keys() & after.request.mail_type.split(","):
            self._follow(after, since=0.0 if before.state is JobState.STARTING else now)

    def _note_array(self, before: Job, after: Job, now: float) -> None:
        """Create mails about an array as a whole: its first start, and the end of its last task."""
        array = self._engine.jobtable.arrays.get(after.array)
        for kind in mail.events(before, after):
            if kind == mail.BEGIN:
                if after.array in self._begun:
                    continue
                self._begun.add(after.array)
            if kind not in (mail.END, mail.FAIL, mail.TIME_LIMIT):
                self._add(kind, before, after, now, is_summary=True)
        if after.state.is_final and array is None:
            self._begun.discard(after.array)
            total = self._engine.store.tasks.sum(after.array)
            has_failed = total.completed < total.over and mail.wants(after, mail.FAIL)
            kind = mail.FAIL if has_failed else mail.END
            if mail.wants(after, kind):
                self._add(kind, before, after, now, is_summary=True)

    def _follow(self, job: Job, *, since: float) -> None:
        """Note the time of the next mail about the time limit of a running job, after `since`."""
        self._timed.pop(job.id, None)
        is_whole = bool(job.array) and not mail.wants(job, mail.ARRAY_TASKS)
        if job.state is JobState.RUNNING and not is_whole and (found := mail.next_part(job, since)):
            self._timed[job.id] = found

    def ring(self, now: float) -> None:
        """Create the mails about jobs that have used a certain part of their time limit."""
        for job_id, (at, kind) in list(self._timed.items()):
            job = self._engine.jobtable.jobs.get(job_id)
            if at > now and job is not None:
                continue
            self._timed.pop(job_id)
            if job is not None and job.state is JobState.RUNNING:
                self._ring(job, at, kind, now)

    def _ring(self, job: Job, at: float, kind: str, now: float) -> None:
        if mail.part_at(job, kind) > now:  # the limit was raised
            self._follow(job, since=now)
            return
        self._add(kind, job, job, now)
        self._follow(job, since=at)

    def tidy(self) -> None:
        """Delete the mails that are durable in the queue of mails."""
        self._dropped = set(self._kept)
        for name in self._dropped:
            self._engine.store.outbox.drop(name)

    def _add(self, kind: str, before: Job, after: Job, now: float, *, is_summary: bool = False) -> None:
        letter = self._letter(kind, before, after, now, is_summary=is_summary)
        job, attempt = (after.array, 0) if is_summary else (after.id, before.attempt)
        name = f"{self._engine.store.name}-{job}.{attempt}.{kind}"
        data = to_bytes(letter)
        self._engine.store.outbox.put(name, data.decode())
        self._engine.then(Mail(name, data))

    def _letter(self, kind: str, before: Job, after: Job, now: float, *, is_summary: bool) -> JobMail:
        job = before if kind == mail.REQUEUE else after
        holds = before.holds or job.holds
        cards = [self._engine.cards.gpu(hold.gpu) for hold in holds]
        letter = JobMail(
            at=now,
            to=tuple((after.request.mail_user or after.user).split(",")),
            event=kind,
            types=after.request.mail_type,
            state=after.state.word,
            gpus=tuple(hold.gpu for hold in holds),
            model=cards[0].model if cards else "",
            total=min((gpu.total for gpu in cards), default=0),
            share=holds[0].share if holds else job.request.demand.share,
            memory=holds[0].memory if holds else job.request.demand.memory,
            output=output_path(job, job.request.output, self._host),
            errors=output_path(job, job.request.error, self._host) if job.request.error else "",
            usage=self.usage(job) if after.state.is_final else None,
            **_of_job(job),
            **_of_end(job),
        )
        return self._summary(letter) if is_summary else letter

    def _summary(self, letter: JobMail) -> JobMail:
        total, exits = (
            self._engine.store.tasks.sum(letter.array),
            self._engine.store.outbox.exits(letter.array),
        )
        numbers = {"tasks": total.rows, "completed": total.completed, "exits": exits}
        return replace(letter, is_summary=True, task=None, **numbers)

    # -- outside of a transaction ---------------------------------------------------------------

    def committed(self) -> None:
        """Note that the transaction of `tidy` is committed."""
        self._kept -= self._dropped
        self._dropped = set()

    def kept(self, names: list[str]) -> None:
        """Note the mails that are durable in the queue of mails, and are to be deleted from the store."""
        self._kept.update(names)

    def resume(self) -> None:
        """Compute the times of mails again from the open jobs."""
        self._timed, self._dropped, self._begun = {}, set(), set()
        for job in self._engine.jobtable.holding.values():
            if job.request.mail_type and self._put is not None:
                self._follow(job, since=0.0)

    def resend(self) -> None:
        """Post the mails that an earlier controller had committed."""
        for name, text in self._engine.store.outbox.all() if self._put is not None else ():
            self._engine.then(Mail(name, text.encode()))

    def post(self, name: str, data: bytes) -> None:
        """Put a mail into the queue of mails, or keep it for `retry`."""
        if self._put is None:
            return
        try:
            is_new = self._put(name, data)
        except OSError as error:
            if len(self._unposted) < _MOST:
                self._unposted[name] = data
            log.warning("mail %s waits in the queue: %s", name, error)
            return
        if not is_new:
            self._kept.add(name)

    def retry(self) -> None:
        """Try mails again that could not be put into the queue of mails."""
        waiting, self._unposted = self._unposted, {}
        for name, data in waiting.items():
            self.post(name, data)

    @property
    def has_unposted(self) -> bool:
        """Tell whether mails wait for `retry`."""
        return bool(self._unposted)

    def due(self, now: float) -> float | None:
        """Return the seconds until the next mail about a time limit; None: there is none."""
        if not self._timed:
            return None
        return min(_LONGEST, max(0.0, min(self._timed.values())[0] - now))


class MailRoom:
    """The controller's side of the mailer. Times are in monotonic seconds."""

    def __init__(self, desk: MailDesk, mailer: MailerProcess | None) -> None:
        """`mailer`: None if there are no mails."""
        self._desk, self._mailer = desk, mailer
        self._retry_at = 0.0
        self._connect()

    def _connect(self) -> None:
        is_on = self._mailer is not None and self._mailer.settings.way != "off"
        put = self._mailer.post if self._mailer is not None and is_on else None
        self._desk.connect(put, socket.gethostname())

    def obey(self, settings: Settings) -> None:
        """Use changed settings."""
        if self._mailer is not None:
            self._mailer.obey(settings)
        self._connect()

    def receive(self) -> None:
        """Take in the reports of the mailer."""
        if self._mailer is not None:
            self._desk.kept(self._mailer.receive())

    def due(self, now: float) -> float | None:
        """Return the seconds until `look` has something to do; None: nothing is due."""
        start = self._mailer.due(now) if self._mailer is not None else None
        again = max(0.0, self._retry_at - now) if self._desk.has_unposted else None
        return min((one for one in (start, again) if one is not None), default=None)

    def look(self, now: float) -> None:
        """Start the mailer again if it has ended, and post mails again that could not be posted."""
        if self._mailer is not None:
            self._mailer.look(now)
        if self._desk.has_unposted and now >= self._retry_at:
            self._retry_at = now + RETRY
            self._desk.retry()


def _of_job(job: Job) -> dict[str, Any]:
    request = job.request
    return {
        "job": job.id,
        "uid": job.uid,
        "gid": job.gid,
        "user": job.user,
        "name": request.name,
        "array": job.array,
        "task": job.task,
        "submitted_at": job.submitted_at,
        "eligible_at": eligible(job) or 0.0,
        "time_limit": request.time_limit,
        "cpus": request.demand.cpus,
        "host_memory": request.demand.host_memory,
        "chdir": request.chdir,
        "command": request.submit_line,
        "restarts": job.restarts,
    }


def _of_end(job: Job) -> dict[str, Any]:
    ended = job.ended or Ended(status=0)
    return {
        "reason": job.reason.word,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "suspended": job.suspended,
        "exit_code": ended.exit_code,
        "signal": ended.signal,
        "gpu_peak": ended.gpu_peak,
        "max_rss": ended.max_rss,
        "cpu_seconds": ended.cpu_seconds,
        "detail": ended.detail,
        "warning": job.warning,
        "oom": job.post_mortem,
    }
