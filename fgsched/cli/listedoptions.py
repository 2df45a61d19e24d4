"""Commands with the options of `views/options.py`, which click shows in help and completion."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import click

from fgsched.cli.command import Command
from fgsched.domain.units import parse_count
from fgsched.views import options as table
from fgsched.views.options import COUNT, FLAG, LIST, ListOption

OPERANDS = "operands"  # words that are no options


class Listed(Command):
    """A command of the table; its callback gets `options`, a record, and `operands` if it takes any."""

    row: table.TableCommand[Any]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. click parses only the lines that it has to report, and completes others."""
        if not ctx.resilient_parsing:
            with suppress(table.Unread):
                options, operands = self.row.read(args)
                ctx.params = {"options": options} | self._operands(operands)
                return []
        rest = super().parse_args(ctx, args)
        operands = ctx.params.pop(OPERANDS, ())
        ctx.params = {"options": self.row.record(**ctx.params)} | self._operands(operands)
        return rest

    def _operands(self, operands: Sequence[str]) -> dict[str, Any]:
        """Return the parameter of the operands, if there is one. Raises Unread for extra words."""
        if any(isinstance(param, click.Argument) for param in self.params):
            return {OPERANDS: tuple(operands)}
        if operands:
            raise table.Unread
        return {}


def listed(
    row: table.TableCommand[Any], *, epilog: str, operands: str = "", cls: type[Listed] = Listed
) -> Callable[[Callable[..., int]], Listed]:
    """Return a decorator that makes a command of the table; `operands`: how its usage shows them."""

    def made(callback: Callable[..., int]) -> Listed:
        params = list(_options(row))
        if operands:
            params.append(click.Argument([OPERANDS], nargs=-1, metavar=operands))
        command = click.command(cls=cls, params=params, epilog=epilog)(callback)
        command.row = row
        return command

    return made


def _options(row: table.TableCommand[Any]) -> Sequence[click.Parameter]:
    return [
        click.Option(
            [*option.spelled.split(), *([option.name] if option.name else [])],
            is_flag=option.kind == FLAG,
            multiple=option.kind == LIST,
            type=_type(option),
            default=False if option.kind == FLAG else option.default,
            metavar=option.metavar or None,
            expose_value=bool(option.name),
            help=option.helps[row.name],
            hidden=option.hidden,
        )
        for option in row.options
    ]


def _type(option: ListOption) -> Any:
    if option.values:
        return click.Choice(option.values)
    return parse_count if option.kind == COUNT else None
