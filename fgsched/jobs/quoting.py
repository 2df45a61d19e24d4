"""Split header lines, batch lines and command lines into words."""

import re

from fgsched.domain.regex import lazy_regex

_BLANKS = " \t\r\f\v"
_PLAIN = lazy_regex(r"[A-Za-z0-9_@%+=:,./-]+")
_WORD = lazy_regex(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+""", re.DOTALL)
_PIECE = lazy_regex(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)|([^\s'"\\]+)""", re.DOTALL)
_IN_DOUBLE = lazy_regex(r"""\\(["\\$`])""")


class Unclosed(ValueError):
    """Raised for a quote that is not closed, or a backslash at the end."""


def header_words(text: str) -> list[str]:
    """Split a header line by Slurm's rule: quotes group, a backslash escapes, '#' begins a comment.

    Raises Unclosed.
    """
    words: list[str] = []
    word: list[str] | None = None  # None: between words
    quote = ""
    chars = iter(text)
    for char in chars:
        if not quote and char == "#":
            break
        if not quote and char in _BLANKS:
            words.extend([] if word is None else ["".join(word)])
            word = None
            continue
        word = [] if word is None else word
        if char == "\\":
            word.append(next(chars, ""))
        elif char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        else:
            word.append(char)
    if quote:
        raise Unclosed
    return words if word is None else [*words, "".join(word)]


def shell_words(text: str) -> list[str]:
    """Split a line as a shell does, without expansion. Raises Unclosed."""
    if not any(char in text for char in "'\"\\"):
        return text.split()
    words: list[str] = []
    at = 0
    while rest := text[at:].lstrip():
        at = len(text) - len(rest)
        match = _WORD.match(text, at)
        if not match:
            raise Unclosed
        words.append(_PIECE.sub(_unquoted, match[0]))
        at = match.end()
        if at < len(text) and not text[at].isspace():
            raise Unclosed
    return words


def _unquoted(piece: re.Match[str]) -> str:
    single, double, escaped, plain = piece.groups()
    if double is not None:
        return _IN_DOUBLE.sub(r"\1", double)
    return single or escaped or plain or ""


def quoted(word: str) -> str:
    """Quote a word so that a shell reads it back unchanged."""
    if _PLAIN.fullmatch(word):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def command_line(words: list[str] | tuple[str, ...]) -> str:
    """Join words into a line that a shell splits into the same words."""
    return " ".join(quoted(word) for word in words)
