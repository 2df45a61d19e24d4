"""fgshare: show fair-share shares, usage and the fair-share factor, as sshare does."""

from collections.abc import Sequence

from msgspec import to_builtins

from fgsched import protocol
from fgsched.cli.command import listed, run, write
from fgsched.cli.terminal import listing
from fgsched.client import Client, find_paths
from fgsched.domain.errors import BadUsage, Exit
from fgsched.views import choices, display
from fgsched.views.listing import LEAST_TEXT, Delimited, TableColumn
from fgsched.views.options import SHARE, ShareOptions


def _account(row: protocol.ShareInfo) -> str:
    """Return the account; the users of an account are indented below it."""
    account = row.account or "(null)"
    return f" {account}" if row.user else account


COLUMNS = (
    TableColumn("Account", _account, least=LEAST_TEXT),
    TableColumn("User", lambda row: row.user, least=LEAST_TEXT),
    TableColumn("RawShares", lambda row: str(row.shares)),
    TableColumn("NormShares", lambda row: f"{row.part:.6f}", is_minor=True),
    TableColumn("RawUsage", lambda row: str(round(row.seconds)), is_minor=True),
    TableColumn("EffectvUsage", lambda row: f"{row.used:.6f}", is_minor=True),
    TableColumn("FairShare", lambda row: f"{row.factor:.6f}"),
)


@listed(SHARE, epilog="fgshare --all")
def fgshare(options: ShareOptions) -> int:
    """Show fair-share usage of accounts and users."""
    if options.all_users and options.users:
        raise BadUsage("-a shows all users, -u some; give one of them")
    users = None if options.all_users else choices.users(options.users) or [choices.me()]
    accounts = choices.words(options.accounts)
    with Client(find_paths()) as client:
        answer = client.call(protocol.ListShares())
    rows = [
        row
        for row in answer.shares
        if (not accounts or row.account in accounts)
        and (not row.user or (not options.accounts_only and (users is None or row.user in users)))
    ]
    if options.as_json:
        write(display.document(shares=to_builtins(rows), half_life=answer.half_life))
    else:
        write(_text(rows, options))
    return Exit.DONE


def _text(rows: Sequence[protocol.ShareInfo], options: ShareOptions) -> str:
    header = not options.noheader
    if not (options.parsable or options.parsable2):
        return listing(COLUMNS, rows, header=header)
    delimited = Delimited("|", options.parsable)
    return "".join(f"{line}\n" for line in delimited.lines(rows, COLUMNS, header=header))


def main() -> None:
    run(fgshare)


if __name__ == "__main__":
    main()
