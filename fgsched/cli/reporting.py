"""Make the report that a command line asks for, and write it to the terminal or to a folder."""

import grp
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import structs

from fgsched import protocol
from fgsched.accounting import guard
from fgsched.accounting.periods import Choice, chosen
from fgsched.cli.command import write
from fgsched.client import Client, NotRunning, find_paths
from fgsched.config.load import load
from fgsched.config.schema import Config
from fgsched.domain.errors import BadUsage, NotPermitted, StorageError
from fgsched.domain.units import parse_count
from fgsched.reports import folder
from fgsched.reports.facts import Facts, FailedJob, ReportReader
from fgsched.reports.model import Report
from fgsched.reports.registry import (
    ALIASES,
    FORMATS,
    Style,
    Wish,
    blank,
    empty_accounts,
    kind,
    records_of,
    written,
)
from fgsched.reports.request import WITHOUT_NAMES, Records
from fgsched.system.outputs import last_lines
from fgsched.views import choices
from fgsched.views.display import ascii_only, host_name

_PATIENCE = 300.0  # seconds that a report of the controller may take, with those before it
_TAIL = 5  # lines of the output of a failed job
_TAILS = 15.0  # seconds for all of them, if file systems do not answer
_LATE = 60.0  # seconds after its end in which a job's output may still change


def deliver(
    finished: Report, records: Records, formats: Sequence[str], style: Style, options: Mapping[str, Any]
) -> None:
    """Write a report as the options ask for, unless --only-if finds nothing to report. Raises FgschedError.

    Text on standard output about a period without records is one sentence; files and mails are whole.
    """
    if options["only_if"] and finished.quiet:
        return
    is_shown = not (options["output"] or options["to"])
    if is_shown and (lines := blank(finished, records, options["user"] or choices.me(), time.time())):
        if list(formats) == ["text"]:
            write(ascii_only(lines) if style.ascii else lines)
            return
        click.echo(f"fgreport: note: {lines}", err=True, nl=False)
    texts = {name: written(finished, name, style) for name in formats}
    if options["output"]:
        by_suffix = {FORMATS[name].suffix: text for name, text in texts.items()}
        keep = parse_count(options["keep"]) if options["keep"] else 0
        folder.add(Path(options["output"]), finished, by_suffix, keep)
    if options["to"]:
        from fgsched.cli.posting import post

        post(finished, texts, options, time.time())
    for text in texts.values() if is_shown else ():
        write(text)


def report(options: Mapping[str, Any]) -> None:
    """Make a report and write it, unless --only-if finds nothing to report. Raises FgschedError."""
    _refuse_contradictions(options)
    formats, style = _formats(options), Style(ascii=options["as_ascii"], section=options["section"])
    if not options["output"]:
        deliver(*made(options, time.time()), formats, style, options)
        return
    with folder.locked(Path(options["output"])):
        deliver(*made(options, time.time()), formats, style, options)


def made(options: Mapping[str, Any], now: float) -> tuple[Report, Records]:
    """Make the report that the options ask for; `now` is in epoch seconds. Raises FgschedError."""
    which = kind(options["report"])
    if _is_of_others(options):
        return _asked(options)
    choice = Choice(**{name: options[name] for name in Choice.__struct_fields__})
    period = chosen(choice, which.default, now)
    with _accounts(options) as path:
        reader = ReportReader(path)
        try:
            with reader.reading():
                facts = Facts(reader, period, host=host_name(), user=_user(options))
                return which.make(facts, _wish(options, facts, now)), records_of(facts)
        finally:
            reader.close()


def _is_of_others(options: Mapping[str, Any]) -> bool:
    """Tell whether the accounts belong to the host's controller, and only root may read them."""
    return not options["file"] and os.geteuid() != 0 and find_paths().mode == "system"


def _asked(options: Mapping[str, Any]) -> tuple[Report, Records]:
    """Have the controller make the report. Raises FgschedError."""
    _user(options)
    call = protocol.MakeReport(
        report=ALIASES.get(options["report"], options["report"]),
        by=options["by"],
        rows=parse_count(options["number"]),
        user=options["user"],
        **{name: options[name] for name in Choice.__struct_fields__},
    )
    try:
        with Client(find_paths(), may_start=False) as client:
            answer = client.call(call, patience=_PATIENCE)
    except NotRunning as error:
        raise NotRunning(error.cause, _as_root(call)) from None
    records = Records(is_empty=answer.is_empty, begin=answer.begin)
    return msgspec.json.decode(answer.report, type=Report), records


def _as_root(call: protocol.MakeReport) -> str:
    """Return what a user can do without a controller."""
    about = f" --user {call.user or choices.me()}" if call.report == "me" else ""
    return (
        "It makes the reports of users, because only root may read the accounts. Repeat the command when it\n"
        f"runs, or ask an administrator for the report: as root, 'fgreport {call.report}{about}' works now."
    )


@contextmanager
def _accounts(options: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the path of the accounts; of empty ones if they have not begun.

    Raises:
        NotPermitted: this user may not read them.
        StorageError: they are missing.
    """
    path = _readable(options["file"])
    if path is None:
        with empty_accounts() as empty:
            yield empty
        return
    if path.stat().st_uid != os.geteuid() != 0:
        refuse_private(options["report"], options["user"], choices.me(), load(find_paths()))
    yield path


def refuse_private(report: str, about: str, caller: str, config: Config) -> None:
    """Refuse a report that names other users, if the site keeps them private.

    `about` is the user of the report on one user, "" for the caller. Raises NotPermitted.
    """
    is_own = report == "me" and about in ("", caller)
    if config.private_data and not is_own and report not in WITHOUT_NAMES and not _operates(caller, config):
        raise NotPermitted(
            f"the report {report} shows other users, and this host keeps them private",
            f"You may use: me, {', '.join(WITHOUT_NAMES)}.",
        )


def _operates(caller: str, config: Config) -> bool:
    """Return whether the caller is an operator by name, or this process by one of its groups."""
    groups = {group.gr_name for gid in os.getgroups() if (group := _group(gid))}
    return caller in config.operators or not groups.isdisjoint(config.operator_groups)


def _group(gid: int) -> grp.struct_group | None:
    with suppress(KeyError):
        return grp.getgrgid(gid)
    return None


def _user(options: Mapping[str, Any]) -> str:
    """Return the user to whom the jobs of a report are restricted; "": none."""
    if options["report"] != "me":
        if options["user"]:
            raise BadUsage("--user belongs to the report me", "The other reports are about all users.")
        return ""
    return options["user"] or choices.me()


def _wish(options: Mapping[str, Any], facts: Facts, now: float) -> Wish:
    """Return what the report needs beside the accounts."""
    wish = Wish(now=now, by=options["by"], number=parse_count(options["number"]))
    if options["report"] == "failures":
        return structs.replace(wish, tail=tails(load(find_paths()).mails.tail))
    if options["report"] == "charge":
        config = load(find_paths())
        quotas = {
            name: 60.0 * account.gpu_minutes
            for name, account in config.accounts.items()
            if account.gpu_minutes
        }
        return structs.replace(wish, quotas=quotas, weights=dict(config.weights))
    if options["report"] == "capacity":
        from fgsched.simulate.replay import one_more_gpu  # it costs time that the other reports do not need

        return structs.replace(wish, replays=one_more_gpu(facts, load(find_paths()).limits))
    return wish


def tails(most: int) -> Callable[[FailedJob], list[str]]:
    """Return a function that returns the last lines of a failed job's output, `most` at most.

    A file that was changed later has the lines of another job.
    """
    until = time.monotonic() + _TAILS

    def tail(job: FailedJob) -> list[str]:
        if time.monotonic() > until or not job.output:
            return []
        count = min(most, _TAIL)
        return last_lines(job.output, count, uid=job.uid, unless_changed_after=job.ended_at + _LATE)

    return tail


def _formats(options: Mapping[str, Any]) -> list[str]:
    """Return the formats to write. Raises BadUsage."""
    names = [name.strip() for name in options["formats"].split(",") if name.strip()] or ["text"]
    for name in names:
        if name not in FORMATS:
            raise BadUsage(f"there is no format '{name[:40]}'", f"Formats: {', '.join(FORMATS)}.")
    if len(names) > 1 and not options["output"] and not options["to"]:
        raise BadUsage("several formats need --output or --to", "Choose one, or a folder.")
    return list(dict.fromkeys(names))


def _refuse_contradictions(options: Mapping[str, Any]) -> None:
    if options["to"]:
        from fgsched.cli.posting import recipients  # needs Jinja, as HTML does

        recipients(options["to"])
    elif options["subject"]:
        raise BadUsage("--subject needs --to", "It is the subject of a mail.")
    if options["keep"]:
        parse_count(options["keep"])
    if options["keep"] and not options["output"]:
        raise BadUsage("--keep needs --output", "It limits the number of reports in a folder.")
    if options["section"] and "csv" not in options["formats"]:
        raise BadUsage("--section needs --format csv", "The other formats write all sections.")


def _readable(path_text: str) -> Path | None:
    """Return the path of the accounts; None if there never were any in their usual place.

    Raises:
        NotPermitted: this user may not read them.
        StorageError: they are missing.
    """
    path = Path(path_text) if path_text else find_paths().accounts
    try:
        is_there = path.exists()
        if not is_there and not path_text:
            guard.refuse_missing(path)
            return None
    except PermissionError:
        is_there = True  # in a directory that this user may not enter
    if not is_there:
        raise StorageError(f"there are no accounts: {path} does not exist", "Name another file with --file.")
    if not os.access(path, os.R_OK):
        raise NotPermitted(
            f"you may not read the accounts {path}",
            "Run fgreport as the user of the controller (on a shared host: root), or ask for the report.",
        )
    return path
