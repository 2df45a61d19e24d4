"""Check the text of a job script, and read its header lines."""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from fgsched.domain.errors import BadUsage
from fgsched.domain.text import lazy_regex, shown

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


def command_line(words: Sequence[str]) -> str:
    """Join words into a line that a shell splits into the same words."""
    return " ".join(quoted(word) for word in words)


_RUNNERS = {".py": "python3", ".R": "Rscript", ".jl": "julia", ".pl": "perl", ".rb": "ruby", ".lua": "lua"}
SIZE_LIMIT = 4 << 20  # bytes, as in Slurm
_MEBIBYTE = 1 << 20

_FG = lazy_regex(rb"#FG(?=[\s-]|$)")  # short, so it must match more strictly than #SBATCH
_SBATCH = lazy_regex(rb"#SBATCH")
_UNSEEN = rb"\xc2\xa0|\xe2\x80[\x80-\x8f\xaf]|\xe3\x80\x80|\xef\xbb\xbf"  # blanks of Unicode, and marks
_MISSPELT = lazy_regex(rb"#(?:[ \t]|%b)*FG(?:[ \t]|%b)*(?:-|$)" % (_UNSEEN, _UNSEEN), re.IGNORECASE)
_BEHIND_UNSEEN = lazy_regex(rb"(?:[ \t]*(?:%b))+[ \t]*#(?:FG|SBATCH)[ \t-]" % _UNSEEN)


class Line(Struct, frozen=True, gc=False):
    """The words of one header line."""

    number: int
    words: tuple[str, ...]


class Directives(Struct, frozen=True, gc=False):
    """The header lines of a script."""

    family: str = ""  # "FG", "SBATCH", or "" where there is none
    lines: tuple[Line, ...] = ()
    warnings: tuple[str, ...] = ()


def accept(name: str, data: bytes) -> None:
    """Check that a text can be executed as a job script. Raises BadUsage, which names the file."""
    if not data:
        raise BadUsage(f"{name} is empty")
    if len(data) > SIZE_LIMIT:
        raise too_large(name, f"{mebibytes(len(data))} MiB")
    if data.startswith((b"\xff\xfe", b"\xfe\xff", b"#\0!\0", b"\0#\0!")):
        raise BadUsage(f"{name} looks like UTF-16", "Save it as UTF-8.")
    if data.startswith(b"\xef\xbb\xbf"):
        raise BadUsage(f"{name}: file starts with a byte order mark", "Save it as UTF-8 without one.")
    if not data.strip():
        raise BadUsage(f"{name} contains only white space")
    if (nul := data.find(b"\0")) >= 0:
        line = data.count(b"\n", 0, nul) + 1
        raise BadUsage(f"{name}: NUL byte at line {line}")
    if (end := data.find(b"\r\n")) >= 0:
        line = data.count(b"\n", 0, end) + 1
        raise BadUsage(f"{name}: line {line} ends with CR LF (DOS); run dos2unix")
    if not data.startswith(b"#!") or not data[2:].split(b"\n", 1)[0].strip():
        raise BadUsage(
            f"{name} is not a script: its first line must start with #! and the path of an interpreter,"
            " for example #!/bin/bash",
            _as_command(name),
        )
    if b"\r" in data.split(b"\n", 1)[0]:
        raise BadUsage(f"{name}: line 1 ends with CR (old Mac); run mac2unix")


def _as_command(name: str) -> str:
    """Return how to submit a file that has no interpreter line."""
    runner = next((program for suffix, program in _RUNNERS.items() if name.endswith(suffix)), "")
    if not runner:
        return "A command without a script: fgsub --wrap='COMMAND'"
    return f"Run it by a command: fgsub --wrap='{runner} {name}'"


def too_large(name: str, size: str) -> BadUsage:
    return BadUsage(f"{name}: script is {size}; limit {SIZE_LIMIT // _MEBIBYTE} MiB")


def mebibytes(size: int) -> str:
    """Format a number of bytes in MiB, rounded up to a tenth."""
    tenths = -(-size * 10 // _MEBIBYTE)
    return f"{tenths // 10}.{tenths % 10}".removesuffix(".0")


def directives(text: bytes | str, name: str = "script", *, ignore_sbatch: bool = False) -> Directives:
    """Return the #FG header lines of a script, or its #SBATCH lines if it has no #FG line."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    header, body_at = _header(data)
    has_fg = any(_FG.match(line) for _, line in header)
    has_sbatch = any(_SBATCH.match(line) for _, line in header)
    warnings: list[str] = []
    for number, line in header:
        if _MISSPELT.match(line) and not _FG.match(line):
            warnings.append(f"{name}: line {number} looks like an #FG header but is a comment; write #FG")
    family = "FG" if has_fg else "SBATCH" if has_sbatch and not ignore_sbatch else ""
    if has_fg and has_sbatch and not ignore_sbatch:
        warnings.append(f"{name}: #SBATCH headers are ignored because #FG headers are present")
    lines = [] if not family else list(_lines(header, family, name, warnings))
    warnings.extend(_after(data, body_at, family, name, sbatch=not ignore_sbatch))
    return Directives(family=family, lines=tuple(lines), warnings=tuple(warnings))


def carries_headers(data: bytes) -> bool:
    """Tell whether a script has #FG or #SBATCH header lines."""
    return any(_FG.match(line) or _SBATCH.match(line) for _, line in _header(data)[0])


def _header(data: bytes) -> tuple[list[tuple[int, bytes]], int]:
    """Return the numbered lines before the first command, and that command's line number or 0."""
    header: list[tuple[int, bytes]] = []
    start, number = 0, 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        line = data[start:end]
        number += 1
        if line.strip() and not line.startswith(b"#"):
            return header, number
        header.append((number, line))
        start = end + 1
    return header, 0


def _lines(header: list[tuple[int, bytes]], family: str, name: str, warnings: list[str]) -> Iterator[Line]:
    prefix = _FG if family == "FG" else _SBATCH
    offset = 0
    for number, line in header:
        match = prefix.match(line)
        if match:
            words = _words(line[match.end() :], place=f"{name}:{number}", offset=offset + match.end())
            if words:
                yield Line(number, tuple(words))
            else:
                warnings.append(f"{name}: line {number}: #{family} without an option is ignored")
        offset += len(line) + 1


def _words(rest: bytes, *, place: str, offset: int) -> list[str]:
    try:
        return header_words(rest.decode("utf-8"))
    except UnicodeDecodeError as error:
        bad, at = rest[error.start], offset + error.start
        raise BadUsage(f"{place}: byte {bad:#04x} at offset {at} of the file is not UTF-8") from None
    except Unclosed:
        raise BadUsage(f"{place}: no closing quotation in {shown(rest.decode().strip())}") from None


def _after(data: bytes, body_at: int, family: str, name: str, *, sbatch: bool) -> Iterator[str]:
    """Yield a warning about the first header line of each kind after the first command."""
    if not body_at:
        yield f"{name}: no commands after the headers"
        return
    if b"#FG" not in data and b"#SBATCH" not in data:
        return
    lines = data.split(b"\n")
    if _BEHIND_UNSEEN.match(lines[body_at - 1]):
        yield f"{name}: line {body_at} looks like a header but begins with an invisible character; remove it"
    wanted = [(b"#FG", _FG), *([(b"#SBATCH", _SBATCH)] if sbatch else [])]
    for mark, prefix in wanted:
        below = (n for n, line in enumerate(lines, 1) if n > body_at and prefix.match(line))
        if number := next(below, 0):
            yield (
                f"{name}: line {number}: {mark.decode()} after the first command (line {body_at}) is ignored"
                + ("" if family else "; no header is above it, so the job asks for nothing by headers")
            )
