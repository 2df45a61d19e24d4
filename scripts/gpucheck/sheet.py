"""Rows and tables of results: check, verdict, observation."""

import signal
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
    decides: str = ""  # the question that the result answers

    @property
    def word(self) -> str:
        return {True: "holds", False: "FAILS", None: "not checked:"}[self.holds]

    @property
    def result(self) -> str:
        return f"{self.seen} [decides {self.decides}]" if self.decides else self.seen


def row(what: str, holds: bool | None, seen: object, *, decides: str = "") -> Row:
    return Row(what, holds, str(seen).strip(), decides)


def figure(what: str, seen: object, *, decides: str = "") -> Row:
    """A measurement without a required value."""
    return Row(what, True, f"measured {seen}", decides)


def rows_of(section: Callable[[Any], Iterator[Row]], place: Any) -> Iterator[Row]:
    """Yield the rows of a section; a section that cannot continue ends with a row that has the reason."""
    name = (section.__doc__ or "").rstrip(".\n")
    try:
        yield from section(place)
    except NotHere as reason:
        yield Row(name, None, str(reason))
    except Exception as error:  # the other sections are still made
        yield Row(name, False, f"it broke off: {type(error).__name__}: {error}")


class _Timer:
    """Ends a check that is being made after a time, by an exception in it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_made = False  # a check
        self.is_over = False

    def _stop(self, number: int, frame: object) -> None:
        self.is_over = True
        if self._is_made:
            raise NotHere(f"not ended in the {self._seconds:.0f} s of its section (--seconds)")

    def __enter__(self) -> "_Timer":
        self._before = signal.signal(signal.SIGALRM, self._stop)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        return self

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def next(self, rows: Iterator[Row]) -> Row | None:
        """Return the next row; None: there is none."""
        self._is_made = True
        try:
            return next(rows, None)
        finally:
            self._is_made = False


def in_time(rows: Iterator[Row], seconds: float, title: str) -> Iterator[Row]:
    """Yield rows for at most `seconds`. A check that takes longer is ended, with its programs."""
    with _Timer(seconds) as timer:
        while not timer.is_over and (found := timer.next(rows)) is not None:
            yield found
        if timer.is_over:
            yield Row(f"the rest: {title}", None, f"the {seconds:.0f} s of the section are spent (--seconds)")


def show(number: str, title: str, rows: Iterable[Row]) -> list[Row]:
    """Print the table of a section, each row when it is known; return the rows."""
    print(f"\n{number}  {title}", flush=True)
    found = []
    for one in rows:
        print(f"   {one.word:<12} {one.what:<46} {one.result}", flush=True)
        found.append(one)
    return found
