"""Show the options of a submission to click, for help and completion.

They are parsed by `submission/options.py`, because errors in a header must name the line, and a batch has up
to ten thousand lines.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import click

from fgsched.submission import table
from fgsched.submission.options import HelpAsked, read
from fgsched.submission.table import AnyOption


def click_options(
    more: Iterable[AnyOption], left_out: Collection[str], helps: Mapping[str, str]
) -> list[click.Parameter]:
    """Return options as click options: those of the table in its order, without some, and `more`.

    Args:
        helps: {name of an option: its line in the help, in place of that in the table}
    """
    return [
        click.Option(
            [f"--{option.name}", *([f"-{option.short}"] if option.short else [])],
            is_flag=option.is_flag,
            metavar=option.metavar or None,
            help=helps.get(option.name, option.help),
            hidden=option.hidden,
        )
        for option in (*more, *table.OPTIONS)
        if option.name not in left_out
    ]


class OptionsCommand(click.Command):
    """A click command with the table's options; its callback gets `settings` and `words`."""

    more: Mapping[str, AnyOption] = {}  # options beside those of the table
    left_out: Collection[str] = ()  # names of options of the table that it does not have
    helps: Mapping[str, str] = {}  # lines of the help in place of those in the table, by name

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*click_options(self.more.values(), self.left_out, self.helps), *self.params]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # completion
            return super().parse_args(ctx, args)
        try:
            settings, words = read(args, self.more)
        except HelpAsked as asked:
            return super().parse_args(ctx, [f"--{asked.answer}"])
        ctx.params = {"settings": settings, "words": words}
        return []
