"""Write a report to the terminal, to a folder or to a mail."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fgsched.cli.command import write
from fgsched.domain.units import parse_count
from fgsched.reports import folder
from fgsched.reports.layout import ascii_only
from fgsched.reports.making import blank
from fgsched.reports.model import Report
from fgsched.reports.registry import FORMATS, Style, written
from fgsched.reports.request import Records
from fgsched.views import choices


def deliver(
    made: Report, records: Records, formats: Sequence[str], style: Style, options: Mapping[str, Any]
) -> None:
    """Write a report as the options ask for, unless --only-if finds nothing to report. Raises FgschedError.

    Text on standard output about a period without records is one sentence; files and mails are whole.
    """
    if options["only_if"] and made.quiet:
        return
    is_shown = not (options["output"] or options["to"])
    if is_shown and (lines := blank(made, records, options["user"] or choices.me(), time.time())):
        if list(formats) == ["text"]:
            write(ascii_only(lines) if style.ascii else lines)
            return
        click.echo(f"fgreport: note: {lines}", err=True, nl=False)
    texts = {name: written(made, name, style) for name in formats}
    if options["output"]:
        by_suffix = {FORMATS[name].suffix: text for name, text in texts.items()}
        keep = parse_count(options["keep"]) if options["keep"] else 0
        folder.add(Path(options["output"]), made, by_suffix, keep)
    if options["to"]:
        from fgsched.cli.posting import post

        post(made, texts, options, time.time())
    for text in texts.values() if is_shown else ():
        write(text)
