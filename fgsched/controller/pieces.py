"""Long lists as answers: made, encoded and sent in pieces, with other requests served in between."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

Answer = TypeVar("Answer", bound=msgspec.Struct)
PIECE = 100  # rows


@dataclass(frozen=True, slots=True)
class LongAnswer(Generic[Answer]):
    """An answer of the protocol whose field `field` is a long list: its rows are sent as they are made.

    A piece may be made much later than the request came: its client reads slowly, or other users come first.
    So it is made of what existed when the request came, as far as that cannot change. What is wrong with the
    request must be raised before this is returned, or by the first piece.
    """

    field: str
    pieces: Iterable[Sequence[Any]]  # rows of the list
    rest: Callable[[], Answer]  # the answer with an empty list; called after the last piece

    def whole(self) -> Answer:
        """Return the answer in one piece."""
        rows = [row for piece in self.pieces for row in piece]
        return msgspec.structs.replace(self.rest(), **{self.field: rows})


def cut(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split the items into pieces."""
    for start in range(0, len(items), PIECE):
        yield items[start : start + PIECE]
