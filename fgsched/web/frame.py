"""What the frame of every page shows, and the templates."""

import hashlib
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from fgsched import __version__
from fgsched.reports import html
from fgsched.reports.html import shown
from fgsched.views.display import host_name
from fgsched.web.guard import WebSession
from fgsched.web.pages import words
from fgsched.web.visit import Visit

HERE = Path(__file__).parent
STATIC = HERE / "static"
NAV = (("/", "Now"), ("/queue", "Queue"), ("/submit", "Submit"), ("/reports", "Reports"))
READ_ONLY_NAV = NAV[:2]


class FormNotice(Struct, frozen=True):
    """What a change has led to, shown once."""

    text: str = ""
    has_failed: bool = False


class PageFrame(Struct, frozen=True, kw_only=True):
    """What stands around a page."""

    host: str
    user: str
    read_only: bool
    path: str  # of the entry of the navigation
    url: str  # of the page, to which a form returns
    nav: tuple[tuple[str, str], ...]
    token: str
    live: bool  # the page changes while it is open
    note: FormNotice
    trouble: str  # why the controller does not answer; "": it does
    trouble_since: str
    clock: str
    zone: str
    release: str
    version: str  # of the static files


@cache
def static_version() -> str:
    """Return a word that changes with the static files: browsers keep them."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def templates() -> Any:
    """Return the templates: those of the pages, with the filters of the reports."""
    made = html.environment(HERE / "templates")
    made.filters.update(printable=printable, capital=words.capital)
    return made


def printable(text: str) -> str:
    """Return a text of several lines without characters that a page must not hold."""
    return "\n".join("\t".join(map(shown, line.split("\t"))) for line in text.splitlines())


def frame_of(
    visit: Visit, *, nav: str, live: bool, note: FormNotice, trouble: str = "", since: float = 0.0
) -> PageFrame:
    """Return the frame of a page; `nav`: its entry of the navigation; `since`: epoch seconds of a trouble."""
    local = time.localtime(visit.now)
    return PageFrame(
        host=host_name(),
        user=visit.viewer.name,
        read_only=visit.viewer.read_only,
        path=nav,
        url=visit.url,
        nav=READ_ONLY_NAV if visit.viewer.read_only else NAV,
        token=visit.token,
        live=live,
        note=note,
        trouble=trouble,
        trouble_since=words.clock(since) if trouble else "",
        clock=words.clock(visit.now),
        zone=local.tm_zone,
        release=__version__,
        version=static_version(),
    )


def taken_note(session: WebSession) -> FormNotice:
    """Return the message of a session, and forget it."""
    note = FormNotice(session.message, session.has_failed)
    session.message, session.has_failed = "", False
    return note


def render(template: str, values: Mapping[str, Any]) -> str:
    """Return a page."""
    return str(templates().get_template(template).render(values))


def plain_page(title: str, sentence: str, **values: Any) -> str:
    """Return a page without a session."""
    usual = {"form": None, "remarks": (), "host": host_name(), "version": static_version()}
    return render("plain.html.j2", {"title": title, "sentence": sentence, **usual, **values})
