"""fgshare: show fair-share shares, usage and the fair-share factor, as sshare does."""

from msgspec import to_builtins

from fgsched import protocol
from fgsched.cli.command import run, write
from fgsched.cli.listedoptions import listed
from fgsched.cli.terminal import listing
from fgsched.client import Client, find_places
from fgsched.domain.errors import BadUsage, Exit
from fgsched.views import choices, display
from fgsched.views.table import SHARE, ShareOptions

_HEADINGS = ("Account", "User", "RawShares", "NormShares", "RawUsage", "EffectvUsage", "FairShare")
_MINOR = ("NormShares", "RawUsage", "EffectvUsage")  # a narrow window leaves them out


@listed(SHARE, epilog="fgshare --all")
def fgshare(options: ShareOptions) -> int:
    """Show fair-share usage of accounts and users."""
    if options.all_users and options.users:
        raise BadUsage("-a shows all users, -u some; give one of them")
    users = None if options.all_users else choices.users(options.users) or [choices.me()]
    accounts = choices.words(options.accounts)
    with Client(find_places()) as client:
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
        write(_text([_cells(row) for row in rows], options))
    return Exit.DONE


def _cells(row: protocol.ShareInfo) -> list[str]:
    """Return a row; the users of an account are indented below it."""
    account = row.account or "(null)"
    return [
        f" {account}" if row.user else account,
        row.user,
        str(row.shares),
        f"{row.part:.6f}",
        str(round(row.seconds)),
        f"{row.used:.6f}",
        f"{row.factor:.6f}",
    ]


def _text(rows: list[list[str]], options: ShareOptions) -> str:
    if not (options.parsable or options.parsable2):
        return listing(_HEADINGS, rows, header=not options.noheader, cut=_HEADINGS[:2], minor=_MINOR)
    lines = [*([] if options.noheader else [list(_HEADINGS)]), *rows]
    end = "|" if options.parsable else ""
    return "".join("|".join(cells) + f"{end}\n" for cells in lines)


def main() -> None:
    run(fgshare)


if __name__ == "__main__":
    main()
