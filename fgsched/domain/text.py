"""Convert text from outside for storage and display, match it, and report bad values.

Python decodes a byte that is not UTF-8 to half a surrogate pair. Neither SQLite nor a terminal accepts one.
"""

import math
import re
from typing import Any, AnyStr, cast

from fgsched.domain.errors import BadUsage


class _Pattern:
    def __init__(self, text: Any, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        """Compile, and keep the methods of the compiled expression as attributes."""
        compiled = re.compile(self._text, self._flags)
        for method in ("fullmatch", "match", "search", "sub", "split", "finditer", "findall"):
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


def lazy_regex(text: AnyStr, flags: int = 0) -> "re.Pattern[AnyStr]":
    """Return a regular expression as `re.compile` does, compiled at its first use.

    Raises: re.error at the first use, if `text` is not a regular expression.
    """
    return cast("re.Pattern[AnyStr]", _Pattern(text, flags))


_LONGEST = 80  # characters of a bad value that are worth showing
_LONGEST_STORED = 64 * 1024  # characters
_UNSTORABLE = lazy_regex("[\0\ud800-\udfff]")
_BYTE = lazy_regex("[\udc80-\udcff]")  # a byte that is not UTF-8, as surrogateescape keeps it
_ESCAPED_BYTE = lazy_regex("\0([89a-f][0-9a-f])?")
_FOREIGN = lazy_regex("[\0\ud800-\udc7f\udd00-\udfff]")
_SURROGATE = lazy_regex("[\ud800-\udfff]")
_NOT_PLAIN = lazy_regex("[\0-\x1f\x7f\ud800-\udfff]")


def word_list(text: str) -> tuple[str, ...]:
    """Return the words of a text: the form of long tables of words."""
    return tuple(text.split())


def storable(text: str) -> str:
    """Return `text` as UTF-8: a byte that is not UTF-8, and NUL, become \\xe9; at most 64 Ki characters."""
    text = text[:_LONGEST_STORED]
    return text if text.isprintable() else _UNSTORABLE.sub(lambda match: _escaped(match[0]), text)


def escape_bytes(text: str) -> str:
    """Return `text` as valid UTF-8: NUL and two hexadecimal digits for each byte that is not UTF-8."""
    return _BYTE.sub(lambda match: f"\0{ord(match[0]) & 0xFF:02x}", text)


def without_halves(text: str) -> str:
    """Return `text` with each half of a surrogate pair as its escape, such as \\ud83d: it has no UTF-8."""
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def has_no_utf8(value: object) -> bool:
    """Return whether a text in `value`, of a foreign JSON parser, has a NUL or half of a surrogate pair.

    A byte that is not UTF-8 is allowed in the form of surrogateescape.
    """
    if isinstance(value, str):
        return _FOREIGN.search(value) is not None
    if isinstance(value, dict):
        return any(map(has_no_utf8, value)) or any(map(has_no_utf8, value.values()))
    return isinstance(value, list) and any(map(has_no_utf8, value))


def read_json(text: str | bytes) -> Any:
    """Parse JSON that another program or a person has written.

    Raises: ValueError, if it is no JSON, or has what cannot be stored: a number that is not finite, a text
    with a NUL or half of a surrogate pair, too many levels.
    """
    import json  # commands that parse nothing start without it

    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite)
        if has_no_utf8(value):
            raise ValueError("a text has a NUL, or half of a surrogate pair")
    except RecursionError:
        raise ValueError("it has too many levels") from None
    return value


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:_LONGEST]} is no number of JSON")
    return number


def restore_bytes(text: str) -> str:
    """Undo `escape_bytes`.

    Raises: ValueError, if `text` has a NUL that is not part of an escaped byte.
    """
    return _ESCAPED_BYTE.sub(_restored_byte, text) if "\0" in text else text


def _restored_byte(match: "re.Match[str]") -> str:
    if match[1] is None:
        raise ValueError("NUL")
    return chr(0xDC00 + int(match[1], 16))


def is_half(text: str) -> bool:
    """Tell whether `text` contains half of a surrogate pair, which is not a valid character."""
    return _SURROGATE.search(text) is not None


def is_plain(text: str) -> bool:
    """Tell whether `text` is valid UTF-8 without control characters."""
    return _NOT_PLAIN.search(text) is None


def shown(text: str) -> str:
    """Return `text` on one line for a message: control characters escaped, at most 80 characters.

    The text is quoted if its limits could be mistaken.
    """
    cut = _cut(text)
    safe = _safe(cut)
    return f"'{safe}'" if not text or " " in text or safe != cut else safe


def quoted(text: str) -> str:
    """Return `text` like `shown`, always quoted, for use within a sentence."""
    return f"'{_safe(_cut(text))}'"


def _cut(text: str) -> str:
    return text[:_LONGEST] + ("…" if len(text) > _LONGEST else "")


def _safe(text: str) -> str:
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as surrogateescape keeps it
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class BadValue(BadUsage):
    """An invalid value. `why` follows the value: ' is not a number', ': smallest share is …'."""

    def __init__(self, text: str, why: str, *, label: str = "") -> None:
        """`label` precedes the value in the message, such as '--gpus='."""
        super().__init__(f"{label}{shown(text)}{why}")
        self.why = why


def clean(text: str) -> str:
    """Replace unprintable characters by '?': they could control a terminal or reverse a line."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "?" for char in text)


_WIDEST = 10_000  # characters of a column


def column_width(digits: str) -> int:
    """Return the width of a column that a format asks for; 0 for none, and at most 10,000 characters.

    Each row is filled to its width: a larger number could use all memory.
    """
    return min(int(digits[:12] or 0), _WIDEST)


def width_of(text: str) -> int:
    """Return the number of terminal columns of a text: 2 for a wide character, 0 for a combining one."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # only names that are not ASCII pay for it

    return sum(
        0 if combining(char) or "\ufe00" <= char <= "\ufe0f" else 2 if east_asian_width(char) in "WF" else 1
        for char in text
    )
