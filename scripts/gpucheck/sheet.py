"""Rows and tables: what was checked, whether it holds, what was seen."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


class NotHere(Exception):
    """This host cannot check it; the text says why."""


@dataclass(frozen=True)
class Row:
    """`holds` None: not checked, `seen` says why."""

    what: str
    holds: bool | None
    seen: str

    @property
    def word(self) -> str:
        return {True: "holds", False: "FAILS", None: "not checked:"}[self.holds]


def row(what: str, holds: bool | None, seen: object) -> Row:
    return Row(what, holds, str(seen).strip())


def figure(what: str, seen: object) -> Row:
    """A measurement, which nothing is demanded of."""
    return Row(what, True, f"measured {seen}")


def rows_of(section: Callable[[Any], Iterator[Row]], place: Any) -> Iterator[Row]:
    """What a section yields; one that cannot go on says why in a last row."""
    name = (section.__doc__ or "").rstrip(".\n")
    try:
        yield from section(place)
    except NotHere as reason:
        yield Row(name, None, str(reason))
    except (OSError, ImportError, ValueError, KeyError, IndexError, subprocess.SubprocessError) as error:
        yield Row(name, False, f"it broke off: {type(error).__name__}: {error}")


def show(number: str, title: str, rows: list[Row]) -> int:
    """Print the table of a section; how many rows fail."""
    print(f"\n{number}  {title}")
    for one in rows:
        print(f"   {one.word:<12} {one.what:<46} {one.seen}", flush=True)
    return sum(one.holds is False for one in rows)
