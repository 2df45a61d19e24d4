"""Show the queue to a program without a parser of its own (`fgshim/front`): its command line in, text out."""

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

from fgsched import protocol
from fgsched.controller.caller import Caller
from fgsched.controller.handlers.query import QueryHandlers
from fgsched.controller.handlers.registration import reads
from fgsched.protocol import JobInfo, QueueLines
from fgsched.server import LongAnswer, cut
from fgsched.views import choices
from fgsched.views import options as table
from fgsched.views.columns import expanded, order_of
from fgsched.views.options import QueueOptions
from fgsched.views.query import Query, absent, query

_MOST = 20_000  # open jobs: they are sorted at once, which takes some 20 ms
_MOST_TASKS = 5_000  # rows of single tasks: those of one array are formatted at once
_MOST_NAMED = 500  # jobs by id: they are looked up at once
_LONGEST_LINE = 4096  # characters of all words: lists of jobs are parsed at once
_MOST_CELLS = 64  # columns, each of them once, as a user's texts can be long
_WIDEST = 4096  # characters of a row without the texts of the job
_MOST_KEYS = 16  # by which rows are sorted, one after the other


class _ForReader(Exception):
    """Raised if only the reading process knows what a line means."""


class _QueueCaller:
    """The caller, as a reader of the queue."""

    def __init__(self, caller: Caller, call: protocol.QueueLine) -> None:
        self._caller = caller
        self.name: str = call.name
        self.usual = call.usual

    def users(self, texts: Iterable[str]) -> list[str]:
        """Return the caller for its own name or uid. Raises _ForReader for a user who is to be looked up."""
        own = {self._caller.name, str(self._caller.uid)}
        words = choices.words(texts)
        if not own.issuperset(words):
            raise _ForReader
        return [self._caller.name for _ in words]

    def me(self) -> str:
        return self._caller.name


class QueueLineHandlers:
    """The handler of command lines of fgq."""

    def __init__(self, answers: QueryHandlers) -> None:
        self._answers = answers

    @reads(protocol.QueueLine)
    def queue_line(self, caller: Caller, call: protocol.QueueLine, now: float) -> LongAnswer[QueueLines]:
        """Return the rows of a line, or say that it is read elsewhere. Raises BadUsage for a wrong line."""
        try:
            pieces: Iterable[list[str]] = self._pieces(caller, call, now)
        except (table.Unread, _ForReader):
            return LongAnswer("lines", (), lambda: QueueLines(lines=[], elsewhere=True))
        return LongAnswer("lines", pieces, lambda: QueueLines(lines=[]))

    def _pieces(self, caller: Caller, call: protocol.QueueLine, now: float) -> Iterator[list[str]]:
        if sum(map(len, call.words)) > _LONGEST_LINE:
            raise _ForReader
        options, operands = table.QUEUE.read(call.words)
        wanted = query(options, operands, _QueueCaller(caller, call))
        named = wanted.call.where.id or ()
        if call.name == "fgq" and not self._answers.knows(wanted.call.where):
            raise _ForReader
        if self._is_long(len(named), options) or _is_costly(wanted) or _is_local(wanted, options):
            raise _ForReader
        rows: Iterable[list[JobInfo]] = self._answers.rows(caller, wanted.call, now)
        if named:
            rows = list(rows)
            if absent(named, [job for piece in rows for job in piece]):
                raise _ForReader
        return _lines(rows, wanted, options)

    def _is_long(self, named: int, options: QueueOptions) -> bool:
        """Tell whether the answer would take the controller so long that other users would notice."""
        if self._answers.size > _MOST or named > _MOST_NAMED:
            return True
        return options.expand and self._answers.pending_tasks > _MOST_TASKS


def _is_costly(wanted: Query) -> bool:
    """Tell whether the rows of a line would take the controller much memory or time."""
    pieces = wanted.form.pieces
    different = {piece.column for piece in pieces}
    size = len(wanted.form.before) + sum(piece.width + len(piece.after) for piece in pieces)
    is_large = len(pieces) > _MOST_CELLS or len(different) < len(pieces) or size > _WIDEST
    return is_large or len(wanted.keys) > _MOST_KEYS


def _is_local(wanted: Query, options: QueueOptions) -> bool:
    """Tell whether the text depends on the reader: on its time zone, its terminal, or further requests."""
    local = any(piece.column.is_local for piece in wanted.form.pieces)
    other_form = options.why or options.start or options.as_json or options.slurm_json
    repeats = options.iterate is not None
    return local or wanted.starts or other_form or repeats or options.colour == "always"


def _lines(rows: Iterable[list[JobInfo]], wanted: Query, options: QueueOptions) -> Iterator[list[str]]:
    """Yield the table in pieces; nothing in the steps in which rows are collected."""
    orders = [order_of(column) for column, _ in wanted.keys]
    form = wanted.form.formatter()
    found: list[tuple[Any, ...]] = []
    for piece in rows:
        for job in piece:
            shown = expanded([job]) if options.expand else (job,)
            text = "".join([f"{form(each)}\n" for each in shown])
            found.append((*[order(job) for order in orders], text))
        yield []
    for place, (_, is_descending) in reversed(list(enumerate(wanted.keys))):
        found.sort(key=itemgetter(place), reverse=is_descending)
    if not options.noheader:
        yield [f"{wanted.form.header()}\n"]
    for part in cut(found):
        yield ["".join([row[-1] for row in part])]
