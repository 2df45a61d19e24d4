"""fgreport: report the use of the GPUs, by user, and waste."""

from typing import Any

import click

from fgsched.cli.command import Command, options_of, run
from fgsched.domain.errors import Exit
from fgsched.domain.text import word_list

REPORTS = word_list(
    """overview users top waits failures utilization waste strangers intruders health capacity charge me
    status"""
)


def _names(ctx: click.Context, param: click.Parameter, begun: str) -> list[str]:
    """Complete the name of a report."""
    return [name for name in REPORTS if name.startswith(begun)]


@click.command(cls=Command, epilog="fgreport overview --week 2026-W46")
@click.argument("report", metavar="REPORT", shell_complete=_names)
@options_of("fgreport")
def fgreport(**options: Any) -> int:
    """Report the use of the GPUs, by user, and waste."""
    if options["report"] == "status":
        from fgsched.cli.statuspage import status  # each needs SQLite, which --help does not

        status(options)
        return Exit.DONE
    from fgsched.cli.reporting import report

    report(options)
    return Exit.DONE


def main() -> None:
    run(fgreport)


if __name__ == "__main__":
    main()
