"""A request for a page, as a value: who reads it, what it asks for, and when."""

import time
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from msgspec import Struct

from fgsched.domain.errors import BadUsage
from fgsched.domain.text import shown
from fgsched.protocol import Reference
from fgsched.views import choices


class Viewer(Struct, frozen=True, kw_only=True):
    """The user whose page it is."""

    uid: int
    name: str
    read_only: bool = False  # no forms, no output


class Visit(Struct, frozen=True, kw_only=True):
    """A request for a page."""

    path: str  # such as /job/7
    query: Mapping[str, str] = {}
    params: Mapping[str, str] = {}  # parts of the path, by name
    viewer: Viewer
    token: str = ""  # of the session, for forms
    now: float  # epoch seconds

    @property
    def url(self) -> str:
        """The address of the page below the host."""
        return "?".join([quote(self.path, errors="replace"), *self._query()])

    def _query(self) -> list[str]:
        return [urlencode(self.query, errors="replace")] if self.query else []

    @property
    def job(self) -> Reference:
        """The job that the path names. Raises BadUsage."""
        text = self.params["job"]
        names = choices.ids([text], 1)
        if len(names) != 1:
            raise BadUsage(f"{shown(text)} names no single job")
        return names[0]

    @property
    def file(self) -> str:
        """The file of the job that is shown: "output" or "errors"."""
        return "errors" if self.query.get("file") == "errors" else "output"

    @property
    def midnight(self) -> float:
        """The begin of the day, in epoch seconds."""
        local = time.localtime(self.now)
        return time.mktime((local.tm_year, local.tm_mon, local.tm_mday, 0, 0, 0, 0, 0, -1))
