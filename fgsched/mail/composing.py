"""Compose a message in the Internet Message Format."""

import email.policy
import email.utils
from collections.abc import Iterable
from email.message import EmailMessage

from fgsched.domain.text import storable
from fgsched.mail.addresses import sender_of
from fgsched.mail.letters import MailSettings, Message

_POLICY = email.policy.SMTP.clone(max_line_length=998)  # filters read subjects line by line
_LONGEST_SUBJECT = 400  # characters


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
    for one in message.attachments:
        main, _, sub = one.kind.partition("/")
        mail.add_attachment(one.data, maintype=main, subtype=sub, filename=one.name)
    return mail.as_bytes()


def _header(text: str) -> str:
    """Return a text for a header: on one line, without control characters."""
    shown = "".join(char if char.isprintable() else " " for char in storable(text))
    return " ".join(shown[:_LONGEST_SUBJECT].split())
