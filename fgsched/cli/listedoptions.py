"""Show the options of a listing to click, for help, completion, errors and shortened names.

A line with whole names is parsed by `views/table.py`.
"""

from collections.abc import Iterable
from typing import Any

import click

from fgsched.domain.units import parse_count
from fgsched.views.table import COUNT, FLAG, LIST, Option


def listed_options(options: Iterable[Option]) -> list[click.Parameter]:
    """Return the options of a listing as click options."""
    return [
        click.Option(
            [*option.spelled.split(), *([option.name] if option.name else [])],
            is_flag=option.kind == FLAG,
            multiple=option.kind == LIST,
            type=_type(option),
            default=False if option.kind == FLAG else option.default,
            metavar=option.metavar or None,
            expose_value=bool(option.name),
            help=option.help,
            hidden=option.hidden,
        )
        for option in options
    ]


def _type(option: Option) -> Any:
    if option.values:
        return click.Choice(option.values)
    return parse_count if option.kind == COUNT else None
