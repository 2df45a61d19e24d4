"""Take a command line apart as getopt_long does: beginnings of names, values, flags in one word, operands.

All commands use it, each with its own table of options and its own words for what is wrong.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

Trouble = Literal["unknown", "unknown letter", "ambiguous", "takes no value", "needs a value"]


class UnreadableWord(Exception):
    """Raised for a word that the options of a command do not allow."""

    def __init__(
        self, trouble: Trouble, name: str, *, letter: str = "", candidates: Sequence[str] = (), word: str = ""
    ) -> None:
        """Describe the word.

        Args:
            name: of the option, as far as it is known; for an unknown one as it was typed.
            letter: by which the option was named; "": by its name.
            candidates: the names of which `name` is the beginning.
            word: the whole word.
        """
        super().__init__(f"{trouble}: {name or letter}")
        self.trouble, self.name, self.letter = trouble, name, letter
        self.candidates, self.word = candidates, word


class Known(Struct, frozen=True):
    """The options of a command."""

    long: Mapping[str, str]  # name -> "": a flag; "=": takes a value; "?": can have one
    short: Mapping[str, str]  # letter -> name
    same: Mapping[str, str] = {}  # name -> what it sets, if several names set it
    never: Collection[str] = ()  # words that are no beginnings of a name

    def whole(self, beginning: str) -> str:
        """Return the name that a unique beginning means. Raises UnreadableWord."""
        if beginning in self.long:
            return beginning
        candidates = (
            [] if beginning in self.never else [name for name in self.long if name.startswith(beginning)]
        )
        if len({self.same.get(name, name) for name in candidates}) == 1:
            return min(candidates, key=len)
        raise UnreadableWord("ambiguous" if candidates else "unknown", beginning, candidates=candidates)


def taken(
    known: Known,
    words: Sequence[str],
    operands: list[str],
    *,
    permute: bool,
    is_value: Callable[[str], bool] = lambda word: True,
) -> Iterator[tuple[str, str | None]]:
    """Yield (name, value) of each option in its order; None: it has no value.

    Args:
        operands: takes the other words.
        permute: options can follow operands; otherwise the first operand ends the options.
        is_value: whether the word behind an option that takes a value can be this value.

    Raises: UnreadableWord for the first word that the options do not allow.
    """
    following = iter(words)
    for word in following:
        if word == "--":
            operands += following
        elif word.startswith("--"):
            yield _long(known, word, following, is_value)
        elif len(word) > 1 and word[0] == "-":
            yield from _short(known, word, following, is_value)
        else:
            operands.append(word)
            if not permute:
                operands += following


def _long(
    known: Known, word: str, following: Iterator[str], is_value: Callable[[str], bool]
) -> tuple[str, str | None]:
    name_part, equals, value = word[2:].partition("=")
    name = known.whole(name_part)
    kind = known.long[name]
    if equals and not kind:
        raise UnreadableWord("takes no value", name, word=word)
    if kind == "=" and not equals:
        return name, _following(following, is_value, UnreadableWord("needs a value", name, word=word))
    return name, value if equals else None


def _short(
    known: Known, word: str, following: Iterator[str], is_value: Callable[[str], bool]
) -> Iterator[tuple[str, str | None]]:
    for at, letter in enumerate(word[1:], start=2):
        name = known.short.get(letter)
        if name is None:
            raise UnreadableWord("unknown letter", "", letter=letter, word=word)
        kind, value = known.long[name], word[at:]
        if not kind:
            yield name, None
            continue
        if kind == "=" and not value:
            value = _following(
                following, is_value, UnreadableWord("needs a value", name, letter=letter, word=word)
            )
        yield name, value if value or kind == "=" else None
        return


def _following(following: Iterator[str], is_value: Callable[[str], bool], trouble: UnreadableWord) -> str:
    word = next(following, None)
    if word is None or not is_value(word):
        raise trouble
    return word
