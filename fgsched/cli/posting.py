"""Send a report by mail, as the options --to and --subject of fgreport ask."""

import secrets
from collections.abc import Mapping
from typing import Any

import click

from fgsched.client import find_paths
from fgsched.config.load import load
from fgsched.domain.errors import NotPermitted, Refused, StorageError
from fgsched.lifecycle.mail import parse_mail_user
from fgsched.mail.letters import Attachment, MailSettings, Message, check_address, host_name, to_bytes
from fgsched.mail.mailer import Mailer
from fgsched.mail.spool import Spool
from fgsched.reports.mail import report_mail
from fgsched.reports.model import Report
from fgsched.reports.registry import FORMATS


def recipients(text: str) -> tuple[tuple[str, ...], MailSettings]:
    """Return the addresses, and how mails are sent. Raises BadUsage or Refused."""
    settings = load(find_paths()).mails
    if settings.way == "off":
        raise Refused("this host sends no mails", "Set smtp_host in [mail], or install a sendmail.")
    to = tuple(parse_mail_user(text).split(","))
    for address in to:
        check_address(address, settings)
    return to, settings


def post(report: Report, texts: Mapping[str, str], options: Mapping[str, Any], now: float) -> None:
    """Mail a report. A mail that cannot be sent now waits on disk, which a warning says.

    Args:
        report: the report.
        texts: the report in other formats, which are attached, by the name of the format.
        options: of the command line.
        now: epoch seconds.

    Raises:
        NotPermitted: this user may not write to the queue of mails.
        Refused: an address is not allowed, or the mail was refused for good.
        StorageError: the queue of mails cannot be written.
    """
    to, settings = recipients(options["to"])
    post_message(_message(report, texts, options, to, now), settings)


def post_message(message: Message, settings: MailSettings) -> None:
    """Send a message now, or leave it in the queue of mails with a warning.

    Raises:
        NotPermitted: this user may not write to the queue of mails.
        Refused: the mail was refused for good.
        StorageError: the queue of mails cannot be written.
    """
    path = find_paths().mail / "reports"
    name = f"report-{int(message.at)}-{secrets.token_hex(4)}"
    try:
        spool = Spool(path)
        spool.put(name, to_bytes(message))
        spool.keep(name)
        Mailer(spool, settings, host_name()).work_alone(message.at, waits=True)
    except PermissionError:
        raise NotPermitted(
            f"you may not write to {path}", "Run this command as the user of the controller."
        ) from None
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", "Check the space on its disk.") from None
    _warn_if_waiting(spool, name)


def _message(
    report: Report, texts: Mapping[str, str], options: Mapping[str, Any], to: tuple[str, ...], now: float
) -> Message:
    mail_content = report_mail(report, ascii=options["as_ascii"])
    files = {mail_content.page_name: mail_content.page} if mail_content.page else {}
    stem = f"{report.kind}-{report.period.name.replace('..', '_').replace(':', '')}"
    files |= {
        f"{stem}.{FORMATS[name].suffix}": text for name, text in texts.items() if name not in ("text", "html")
    }
    attached = tuple(
        Attachment(name=name, kind=_KINDS[name.rpartition(".")[2]], data=text.encode(errors="replace"))
        for name, text in files.items()
    )
    subject = options["subject"] or mail_content.subject
    return Message(
        at=now, to=to, subject=subject, text=mail_content.text, html=mail_content.html, attachments=attached
    )


_KINDS = {"html": "text/html", "csv": "text/csv", "json": "application/json", "md": "text/markdown"}


def _warn_if_waiting(spool: Spool, name: str) -> None:
    """Warn if the mail waits. Raises Refused if it cannot be sent."""
    if (spool.path / "failed" / name).exists():
        raise Refused("the mail was refused", f"It is in {spool.path}/failed; the reason is above.")
    if name in set(spool.waiting()):
        click.echo(f"fgreport: warning: the mail is not sent yet; it waits in {spool.path / 'new'}", err=True)
