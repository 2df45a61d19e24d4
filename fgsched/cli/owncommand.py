"""Show click the options of a program that reads them itself, for their list and for completion."""

from collections.abc import Iterable, Sequence
from itertools import count

import click

from fgsched.cli.command import Command

Operand = str | tuple[str, ...]  # several of a kind, such as JOB; or one of some words


class OwnCommand(Command):
    """A command that is never called: it prints the list of options, and completes them."""

    def __init__(
        self,
        name: str,
        *,
        about: str,
        usage: str,
        page: str,
        options: Iterable[tuple[Sequence[str], bool]],
        operands: Iterable[Operand],
    ) -> None:
        """Describe a program.

        Args:
            usage: what follows the name.
            page: the page of the manual.
            options: the spellings of each option, and whether it takes a value.
        """
        arguments = map(_argument, count(1), operands)
        super().__init__(name, params=[*map(_option, options), *arguments], help=about)
        self.manual, self._usage = page, usage

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return what follows the name."""
        return [self._usage]


def _option(option: tuple[Sequence[str], bool]) -> click.Parameter:
    spelled, takes_value = option
    return click.Option(spelled, is_flag=not takes_value, metavar="VALUE" if takes_value else None)


def _argument(number: int, operand: Operand) -> click.Parameter:
    name = [f"operand_{number}"]  # no option has this name
    if isinstance(operand, str):
        return click.Argument(name, nargs=-1, metavar=operand)
    return click.Argument(name, type=click.Choice(operand))
