"""fgtop: watch GPUs and jobs, full screen."""

import locale
import os
import sys
import time

from fgsched import protocol
from fgsched.cli.command import listed, run, write
from fgsched.client import Client, find_paths
from fgsched.domain.errors import BadUsage, Exit
from fgsched.views.options import SCREEN, ScreenOptions

_PLAIN = 120  # columns of --once where there is no terminal


@listed(SCREEN, epilog="fgtop --read-only")
def fgtop(options: ScreenOptions) -> int:
    """Watch GPUs, jobs and the queue."""
    from fgsched.cli.top import plain  # needs the layout, which --help does not
    from fgsched.cli.top.view import View

    view = View(
        interval=options.interval,
        ascii=options.as_ascii or not _is_unicode(),
        filter=options.filter,
        is_mine=options.me,
    )
    if options.as_json:
        with Client(find_paths()) as client:
            write(plain.document(plain.take_documented(client, time.time())))
        return Exit.DONE
    if options.once:
        with Client(find_paths()) as client:
            frame, history, reader = plain.look(client, time.time(), may_change=not options.read_only)
        write(plain.text(frame, history, view, reader, _columns()))
        return Exit.DONE
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadUsage(
            "fgtop needs a terminal", "fgtop --once prints the screen once; --json is for programs."
        )
    with Client(find_paths()) as client:
        client.call(protocol.ListGpus())  # an error is printed before the screen is taken
    from fgsched.cli.top.screen import show  # Textual takes a quarter of a second

    show(view, may_change=not options.read_only)
    return Exit.DONE


def _is_unicode() -> bool:
    """Tell whether the terminal has the characters of the bars."""
    name = (getattr(sys.stdout, "encoding", "") or locale.getpreferredencoding(False)).lower()
    return name.replace("-", "") in ("utf8", "utf16")


def _columns() -> int:
    try:
        return int(os.environ.get("COLUMNS", "")) or _PLAIN
    except ValueError:
        pass
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except OSError:
        return _PLAIN


def main() -> None:
    run(fgtop)


if __name__ == "__main__":
    main()
