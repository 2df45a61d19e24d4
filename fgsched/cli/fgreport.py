"""fgreport: report the use of the GPUs, by user, and waste."""

from typing import Any

import click

from fgsched.cli.command import Command, run
from fgsched.domain.errors import Exit

REPORTS = (
    *("overview", "users", "top", "waits", "failures", "utilization", "waste", "strangers", "intruders"),
    *("health", "capacity", "charge", "me", "status"),
)


def _names(ctx: click.Context, param: click.Parameter, begun: str) -> list[str]:
    """Complete the name of a report."""
    return [name for name in REPORTS if name.startswith(begun)]


@click.command(cls=Command, epilog="fgreport overview --week 2026-W46")
@click.argument("report", metavar="REPORT", shell_complete=_names)
@click.option("--since", default="", metavar="TIME", help="Begin of the period, such as 2026-11-09 or -7d.")
@click.option("--until", default="", metavar="TIME", help="End of the period; default: now.")
@click.option("--yesterday", is_flag=True, help="The whole last day.")
@click.option("--week", default="", metavar="WEEK", help="A week of ISO 8601, such as 2026-W46.")
@click.option("--month", default="", metavar="MONTH", help="A month, such as 2026-10.")
@click.option("--by", default="user", metavar="WHAT", help="users: user, account, partition, type or tag.")
@click.option("--number", default="10", metavar="N", help="Rows of a list of the largest; default: 10.")
@click.option("--user", default="", metavar="NAME", help="me: this user instead of yourself.")
@click.option("--format", "formats", default="", metavar="LIST", help="text, html, csv, json, markdown.")
@click.option("--ascii", "as_ascii", is_flag=True, help="Text in ASCII only.")
@click.option("--section", default="", metavar="NAME", help="The table that CSV writes.")
@click.option("--only-if", is_flag=True, help="Write nothing if there is nothing to report.")
@click.option("--output", default="", metavar="DIR", help="Write dated files and an index to a folder.")
@click.option("--keep", default="", metavar="N", help="Periods of this report to keep there.")
@click.option("--to", default="", metavar="ADDRESS", help="Send the report by mail.")
@click.option("--subject", default="", metavar="TEXT", help="Subject of the mail.")
@click.option("--file", default="", metavar="FILE", help="Read these accounts, such as a backup.")
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
