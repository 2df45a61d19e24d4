"""Rows and tables of results: check, verdict, observation."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any


class NotHere(Exception):
    """Raised if this host cannot make a check, with the reason."""


@dataclass(frozen=True)
class Row:
    """A result. `holds` None: not checked, for the reason in `seen`."""

    what: str
    holds: bool | None
    seen: str

    @property
    def word(self) -> str:
        return {True: "holds", False: "FAILS", None: "not checked:"}[self.holds]


def row(what: str, holds: bool | None, seen: object) -> Row:
    return Row(what, holds, str(seen).strip())


def figure(what: str, seen: object) -> Row:
    """A measurement without a required value."""
    return Row(what, True, f"measured {seen}")


def rows_of(section: Callable[[Any], Iterator[Row]], place: Any) -> Iterator[Row]:
    """Yield the rows of a section; a section that cannot continue ends with a row that has the reason."""
    name = (section.__doc__ or "").rstrip(".\n")
    try:
        yield from section(place)
    except NotHere as reason:
        yield Row(name, None, str(reason))
    except Exception as error:  # the other sections are still made
        yield Row(name, False, f"it broke off: {type(error).__name__}: {error}")


def show(number: str, title: str, rows: Iterable[Row]) -> list[Row]:
    """Print the table of a section, each row when it is known; return the rows."""
    print(f"\n{number}  {title}", flush=True)
    found = []
    for one in rows:
        print(f"   {one.word:<12} {one.what:<46} {one.seen}", flush=True)
        found.append(one)
    return found
