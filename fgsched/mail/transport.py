"""Compose a message, and give it to the local sendmail or to an SMTP server within a deadline."""

import email.policy
import email.utils
import os
import signal
import smtplib
import ssl
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path
from types import FrameType

from fgsched.domain.text import storable
from fgsched.mail.letters import MailSettings, Message, sender_of
from fgsched.system import capture

_TEMPORARY = 75  # exit status of sendmail, from sysexits.h
_PERMANENT = {64, 65, 67, 68}  # usage, data, no such user, no such host
_ABOUT_MESSAGE = (smtplib.SMTPSenderRefused, smtplib.SMTPDataError)  # other refusals are of the server
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_POLICY = email.policy.SMTP.clone(max_line_length=998)  # filters read subjects line by line
_LONGEST_SUBJECT = 400  # characters


class Later(Exception):
    """The message was not accepted now, and is tried again.

    `left`: the recipients who do not have it; (): all. `is_of_server`: other messages fail, too.
    """

    def __init__(self, why: str, *, left: Sequence[str] = (), is_of_server: bool = True) -> None:
        super().__init__(why)
        self.left, self.is_of_server = tuple(left), is_of_server


class Never(Exception):
    """The message is refused for good."""


def send(settings: MailSettings, sender: str, to: Sequence[str], data: bytes) -> None:
    """Send a message.

    Raises:
        Later: it was not accepted now.
        Never: it is refused for good, for some recipients at least.
    """
    try:
        with _deadline(settings.deadline):
            _WAYS[settings.way](settings, sender, to, data)
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


def _by_sendmail(settings: MailSettings, sender: str, to: Sequence[str], data: bytes) -> None:
    command = [settings.sendmail, "-i", "-f", sender, "--", *to]
    unix = data.replace(b"\r\n", b"\n")
    done = capture.run(command, data=unix, seconds=2 * settings.deadline)  # _deadline comes first
    if done.status in _PERMANENT:
        raise Never(f"{settings.sendmail}: exit status {done.status}: {_text(done.errors)}")
    if done.status:
        why = f"{settings.sendmail}: exit status {done.status}: {_text(done.errors)}"
        raise Later(why, is_of_server=done.status != _TEMPORARY)


# -- SMTP ----------------------------------------------------------------------------------------------


def _by_smtp(settings: MailSettings, sender: str, to: Sequence[str], data: bytes) -> None:
    with _connected(settings) as server:
        if settings.tls == "starttls":
            server.starttls(context=ssl.create_default_context())
        if settings.user:
            server.login(settings.user, _password(settings))
        refused = server.sendmail(sender, to, data)
    if refused:
        _judge(refused, to)


def _connected(settings: MailSettings) -> smtplib.SMTP:
    if settings.tls == "tls":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(settings.host, settings.port, timeout=settings.deadline, context=context)
    return smtplib.SMTP(settings.host, settings.port, timeout=settings.deadline)


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
    answers = "; ".join(f"{who}: {code} {_text(text)}" for who, (code, text) in refused.items())
    whos = [who for who in to if who in refused and 400 <= refused[who][0] < 500]
    if whos:
        raise Later(answers, left=whos, is_of_server=False)
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
