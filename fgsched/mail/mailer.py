"""Process beside the controller that sends the letters of the queue on disk.

It reads descriptor 0: any byte means that there are new letters, its end that the controller ends. It writes
the name of each letter that survives a power failure to descriptor 1. A letter leaves the queue when a mail
server has accepted it; until then it is tried again, after a kill at any point, too.
"""

import email.policy
import email.utils
import os
import select
import signal
import smtplib
import ssl
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from email.message import EmailMessage
from pathlib import Path
from types import FrameType

import msgspec
from msgspec.structs import replace

from fgsched.accounting.ledger import LedgerReader
from fgsched.crash import point
from fgsched.domain.errors import Refused, StorageError
from fgsched.domain.job import JobUsage
from fgsched.domain.text import clean, storable
from fgsched.mail.letters import (
    JobMail,
    Letter,
    MailSettings,
    Message,
    from_bytes,
    host_name,
    is_cut_short,
    resolved,
    sender_of,
    to_bytes,
)
from fgsched.mail.spool import Spool
from fgsched.system import capture, locks
from fgsched.system.outputs import tail

# -- one message to sendmail or to an SMTP server ------------------------------------------------------


_TEMPORARY = 75  # exit status of sendmail, from sysexits.h
_PERMANENT = {64, 65, 67, 68}  # usage, data, no such user, no such host
_ABOUT_MESSAGE = (smtplib.SMTPSenderRefused, smtplib.SMTPDataError)  # other refusals are of the server
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_POLICY = email.policy.SMTP.clone(max_line_length=998)  # filters read subjects line by line
_LONGEST_SUBJECT = 400  # characters


class Later(Exception):
    """The message was not accepted now, and is tried again.

    `recipients` do not have it; (): none has it. `is_of_server`: other messages fail, too.
    """

    def __init__(self, why: str, *, recipients: Sequence[str] = (), is_of_server: bool = True) -> None:
        super().__init__(why)
        self.recipients, self.is_of_server = tuple(recipients), is_of_server


class Never(Exception):
    """The message is refused for good."""


def send(settings: MailSettings, host: str, sender: str, to: Sequence[str], data: bytes) -> None:
    """Send a message from the host of this name.

    Raises:
        Later: it was not accepted now.
        Never: it is refused for good, for some recipients at least.
    """
    try:
        with _deadline(settings.deadline):
            _WAYS[settings.way](settings, host, sender, to, data)
    except smtplib.SMTPRecipientsRefused as error:
        _judge(error.recipients, to)
    except smtplib.SMTPResponseException as error:
        answer = f"{error.smtp_code} {_text(error.smtp_error)}"
        if 500 <= error.smtp_code < 600 and isinstance(error, _ABOUT_MESSAGE):
            raise Never(answer) from error
        raise Later(answer, is_of_server=not isinstance(error, smtplib.SMTPDataError)) from error
    except (OSError, smtplib.SMTPException) as error:
        raise Later(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from error


class _Late(OSError):
    """The deadline has passed."""


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise _Late in the main thread after some seconds: a server may answer one byte at a time."""

    def end(number: int, frame: FrameType | None) -> None:
        raise _Late(f"the mail server did not answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- sendmail ------------------------------------------------------------------------------------------


def _by_sendmail(settings: MailSettings, host: str, sender: str, to: Sequence[str], data: bytes) -> None:
    command = [settings.sendmail, "-i", "-f", sender, "--", *to]
    unix = data.replace(b"\r\n", b"\n")
    done = capture.run(command, data=unix, seconds=2 * settings.deadline)  # _deadline comes first
    if done.status in _PERMANENT:
        raise Never(f"{settings.sendmail}: exit status {done.status}: {_text(done.errors)}")
    if done.status:
        why = f"{settings.sendmail}: exit status {done.status}: {_text(done.errors)}"
        raise Later(why, is_of_server=done.status != _TEMPORARY)


# -- SMTP ----------------------------------------------------------------------------------------------


def _by_smtp(settings: MailSettings, host: str, sender: str, to: Sequence[str], data: bytes) -> None:
    with _connected(settings, host) as server:
        if settings.tls == "starttls":
            server.starttls(context=ssl.create_default_context())
        if settings.user:
            server.login(settings.user, _password(settings))
        refused = server.sendmail(sender, to, data)
    if refused:
        _judge(refused, to)


def _connected(settings: MailSettings, host: str) -> smtplib.SMTP:
    """Connect. Without a name, smtplib asks the name service, which may take longer than the deadline."""
    name = host if "." in host else "[127.0.0.1]"  # servers refuse a name without a domain
    if settings.tls == "tls":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(
            settings.host, settings.port, name, timeout=settings.deadline, context=context
        )
    return smtplib.SMTP(settings.host, settings.port, name, timeout=settings.deadline)


def _password(settings: MailSettings) -> str:
    """Return the password. Raises OSError if others could read it."""
    if settings.tls == "none" and settings.host not in _LOOPBACK:
        raise OSError("a password is sent only over TLS: set `tls` in [mail]")
    path = Path(settings.password_file)
    with path.open() as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise OSError(f"{path} can be read by others: chmod go= {path}")
        return file.read().strip()


def _judge(refused: Mapping[str, tuple[int, bytes]], to: Sequence[str]) -> None:
    """Raise Later or Never for refused recipients: temporarily refused ones are tried again."""
    answers = "; ".join(f"{name}: {code} {_text(text)}" for name, (code, text) in refused.items())
    recipients = [name for name in to if name in refused and 400 <= refused[name][0] < 500]
    if recipients:
        raise Later(answers, recipients=recipients, is_of_server=False)
    raise Never(answers)


def _text(answer: bytes | str) -> str:
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else answer
    return " ".join(text.split())[:300]


_WAYS = {"sendmail": _by_sendmail, "smtp": _by_smtp}


def compose(name: str, message: Message, to: Iterable[str], settings: MailSettings, host: str) -> bytes:
    """Return the bytes of a message. `name` becomes its Message-ID, so that a repetition has the same one."""
    mail = EmailMessage(policy=_POLICY)
    mail["From"] = f"fgsched <{sender_of(settings, host)}>"
    mail["To"] = ", ".join(to)
    mail["Subject"] = _header(message.subject)
    mail["Date"] = email.utils.formatdate(message.at, localtime=True)
    mail["Message-ID"] = f"<{name}@{host}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(storable(message.text), cte="quoted-printable")
    if message.html:
        mail.add_alternative(storable(message.html), subtype="html", cte="quoted-printable")
    for attachment in message.attachments:
        main, _, sub = attachment.kind.partition("/")
        mail.add_attachment(attachment.data, maintype=main, subtype=sub, filename=attachment.name)
    return mail.as_bytes()


def _header(text: str) -> str:
    """Return a text for a header: on one line, without control characters."""
    shown = "".join(char if char.isprintable() else " " for char in storable(text))
    return " ".join(shown[:_LONGEST_SUBJECT].split())


_PAUSE = 2.0  # seconds after a first failure; it doubles with each further one
_LONGEST_PAUSE = 600.0
_CUT_SHORT = 10  # tries, in 34 minutes, in which the controller writes a letter again that is cut short
_UNREADABLE = 60.0  # seconds until a directory that cannot be read is read again
_OTHERS = 600.0  # seconds between two looks for mails of reports
_LATE = 600.0  # seconds for which no output of a user is read whose file did not answer
_NICE = 5


class Mailer:
    """Sends the letters of `spool`. Times are in epoch seconds."""

    def __init__(self, spool: Spool, settings: MailSettings, host: str) -> None:
        self._spool, self._settings, self._host = spool, settings, host
        self._durable: set[str] = set()  # letters that are durable
        self._waits: dict[str, tuple[float, int]] = {}  # letter -> (not before, failures)
        self._ended: dict[str, bool] = {}  # letter that could not be moved -> whether it was sent
        self._recipients_left: dict[str, tuple[str, ...]] = {}  # letter -> recipients who do not have it
        self._late: dict[int, float] = {}  # uid -> until when no output of the user is read
        self._settled: list[str] = []  # letters that left the queue before they were durable in it
        self._server_waits, self._failures = 0.0, 0
        self._is_unreadable = False

    def kept(self) -> list[str]:
        """Make new letters durable; return their names, and those of letters that have been sent before."""
        settled, self._settled = self._settled, []
        return [
            *settled,
            *(name for name in self._waiting() if name not in self._durable and self._keep(name)),
        ]

    def _keep(self, name: str) -> bool:
        try:
            if not self._spool.is_whole(name):
                return False  # the controller, which still has it, writes it again
            self._spool.keep(name)
        except OSError as error:
            _log(f"mail {name} is not durable: {error}")
            return False
        self._durable.add(name)
        return True

    def due(self, now: float) -> float | None:
        """Return the seconds until the next attempt; None if no letter waits."""
        times = [self._not_before(name) for name in self._waiting()]
        if self._is_unreadable:
            return _UNREADABLE
        return max(0.0, min(times) - now) if times else None

    def _not_before(self, name: str) -> float:
        server = 0.0 if name in self._ended else self._server_waits
        return max(server, self._waits.get(name, (0.0, 0))[0])

    def _waiting(self) -> list[str]:
        """Return the letters that wait; none while their directory cannot be read."""
        try:
            names = list(self._spool.waiting())
        except OSError as error:
            if not self._is_unreadable:
                _log(f"the queue of mails cannot be read: {error}")
            self._is_unreadable = True
            return []
        self._is_unreadable = False
        return names

    def work(self, now: float) -> None:
        """Send the letters whose pause has ended. A failure of the mail server postpones all of them."""
        for name in self._waiting():
            if self._not_before(name) > now:
                continue
            if name in self._ended:
                self._end(name, now, is_sent=self._ended[name])
            else:
                self._try(name, now)

    def work_alone(self, now: float, *, waits: bool = False) -> None:
        """Send letters as `work` does, unless another process does; with `waits`, after that process.

        Raises:
            OSError: the lock cannot be opened.
        """
        place = self._spool.path / "lock"
        with place.open("w") as file:
            if waits:
                locks.lock(file.fileno(), place, "another mailer")
            elif not locks.is_free(file.fileno()):
                return
            self.work(now)

    def _try(self, name: str, now: float) -> None:
        letter = self._read(name, now)
        if letter is None:
            return
        letter = replace(letter, to=self._recipients_left.get(name, letter.to))
        try:
            to, data = self._composed(name, letter, now)
        except Refused as error:
            self._give_up(name, " ".join(str(error).split()), now)
            return
        except Exception as error:  # a defect of ours: the other letters are sent
            self._give_up(name, f"internal error: {type(error).__name__}: {error}", now)
            return
        self._send(name, letter, to, data, now)

    def _read(self, name: str, now: float) -> Letter | None:
        """Return a letter; None: it cannot be sent now."""
        try:
            data = self._spool.read(name)
            return from_bytes(data)
        except FileNotFoundError:  # removed by a person
            self._forget(name)
        except OSError as error:
            self._pause(name, str(error), now)
        except msgspec.MsgspecError as error:
            if is_cut_short(data) and self._waits.get(name, (0.0, 0))[1] < _CUT_SHORT:
                self._pause(name, "a loss of power cut it short", now)
            else:
                self._give_up(name, f"it cannot be read: {error}", now)
        return None

    def _send(self, name: str, letter: Letter, to: list[str], data: bytes, now: float) -> None:
        point("mail_before_sending")
        try:
            send(self._settings, self._host, sender_of(self._settings, self._host), to, data)
        except Never as error:
            self._give_up(name, " ".join(str(error).split()), now)
        except Later as error:
            if error.recipients:
                self._note_left(name, replace(letter, to=error.recipients))
            self._put_off(name, letter, error, now)
        else:
            point("mail_after_sending")
            self._failures = 0
            self._end(name, now, is_sent=True)

    def _note_left(self, name: str, letter: Letter) -> None:
        """Note the recipients who do not have a letter, in memory if the file cannot be written."""
        self._recipients_left[name] = letter.to
        try:
            self._spool.replace(name, to_bytes(letter))
        except OSError as error:
            _log(f"mail {name}: its recipients cannot be noted: {error}")

    def _end(self, name: str, now: float, *, is_sent: bool) -> None:
        """Move a letter out of the queue. If it cannot be moved, try that again later, and never send it."""
        try:
            if is_sent:
                self._spool.sent(name)
            else:
                self._spool.failed(name)
        except OSError as error:
            self._ended[name] = is_sent
            self._pause(name, f"it is {'sent' if is_sent else 'given up'}, but cannot be moved: {error}", now)
            return
        point("mail_after_noting")
        if (
            name not in self._durable
        ):  # the controller still has it: a full disk refused the letter a second write
            self._settled.append(name)
        self._forget(name)
        with suppress(OSError):
            self._spool.prune()

    def _composed(self, name: str, letter: Letter, now: float) -> tuple[list[str], bytes]:
        """Return recipients and message. Raises Refused if a recipient is not allowed."""
        to = resolved(letter.to, self._settings, self._host)
        return to, compose(name, self._message(letter, now), to, self._settings, self._host)

    def _message(self, letter: Letter, now: float) -> Message:
        if isinstance(letter, Message):
            return letter
        has_output = letter.event in ("END", "FAIL", "TIME_LIMIT") and letter.started_at is not None
        is_read = has_output and not letter.is_summary and self._late.get(letter.uid, 0.0) <= now
        count = self._settings.tail if is_read else 0
        output = tail(
            letter.output, count, uid=letter.uid, gid=letter.gid, unless_changed_after=letter.ended_at
        )
        if output.is_late:  # the mails of others would wait for each further one
            self._late[letter.uid] = now + _LATE
        from fgsched.mail import jobtext
        from fgsched.reports.mail import notice_mail  # needs Jinja, of several MiB

        host, usage = self._host.partition(".")[0], self._usage(letter)
        notice = jobtext.notice(letter, usage, output.lines, host, is_changed=output.is_changed)
        mail_content = notice_mail(notice)
        return Message(
            at=letter.at,
            to=letter.to,
            subject=mail_content.subject,
            text=mail_content.text,
            html=mail_content.html,
        )

    def _usage(self, letter: JobMail) -> JobUsage | None:
        """Return the samples of a job, from the letter or else from the accounts; None: there are none."""
        path = self._spool.path.with_name("accounts.db")
        if letter.usage is not None:
            return letter.usage
        if not letter.gpus or letter.ended_at is None or not path.exists():
            return None
        with suppress(StorageError):
            reader = LedgerReader(path)
            try:
                return reader.sample(letter.job)
            finally:
                reader.close()
        return None

    def _put_off(self, name: str, letter: Letter, error: Later, now: float) -> None:
        if now - letter.at > self._settings.give_up:
            self._give_up(name, str(error), now)
            return
        if error.is_of_server:
            self._server_waits = now + min(_LONGEST_PAUSE, _PAUSE * 2**self._failures)
            self._failures = min(self._failures + 1, 20)
        self._pause(name, str(error), now)

    def _pause(self, name: str, why: str, now: float) -> None:
        """Wait before the next try of a letter; the pause doubles with each failure in a row."""
        failures = self._waits.get(name, (0.0, 0))[1]
        self._waits[name] = (now + min(_LONGEST_PAUSE, _PAUSE * 2**failures), min(failures + 1, 20))
        _log(f"mail {name} waits: {why}")

    def _give_up(self, name: str, why: str, now: float) -> None:
        _log(f"mail {name} is not sent: {why}")
        self._end(name, now, is_sent=False)

    def _forget(self, name: str) -> None:
        self._durable.discard(name)
        for notes in (self._waits, self._ended, self._recipients_left):
            notes.pop(name, None)


def _log(text: str) -> None:
    print(clean(text), file=sys.stderr, flush=True)  # a server or a program may have said it


# -- the process ---------------------------------------------------------------------------------------


def serve(
    mailer: Mailer, source: int, sink: int, others: Mailer, clock: Callable[[], float] = time.time
) -> None:
    """Send letters until the other end of descriptor `source` is closed.

    `others` sends the mails of reports that fgreport could not send. `clock` returns epoch seconds.
    """
    others_at = 0.0
    with suppress(ConnectionError):
        while True:
            _tell(sink, mailer.kept())
            mailer.work(clock())
            if clock() >= others_at:
                _work_alone(others, clock())
                others_at = clock() + _OTHERS
            due = mailer.due(clock())
            pause = _OTHERS if due is None else min(_OTHERS, due)
            if select.select([source], [], [], pause)[0] and not os.read(source, 1 << 16):
                return


def _work_alone(mailer: Mailer, now: float) -> None:
    try:
        mailer.work_alone(now)
    except OSError as error:
        _log(f"mails of reports wait: {error}")


def _tell(sink: int, names: list[str]) -> None:
    data = "".join(f"{name}\n" for name in names).encode()
    while data:
        data = data[os.write(sink, data) :]


def main() -> None:
    """Run the mailer. The arguments are the path of the queue and the descriptor of the settings as JSON."""
    path = Path(sys.argv[1])
    with open(int(sys.argv[2]), "rb") as file:
        settings = msgspec.json.decode(file.read(), type=MailSettings)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    os.umask(0o077)
    host = host_name()
    with (path / "lock").open("w") as file:
        locks.lock(file.fileno(), path / "lock", "an earlier mailer, which may be sending")
        serve(Mailer(Spool(path), settings, host), 0, 1, Mailer(Spool(path / "reports"), settings, host))
