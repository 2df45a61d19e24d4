"""Check the text of a job script, and read its header lines."""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from fgsched.domain.errors import BadUsage
from fgsched.domain.text import lazy_regex, shown
from fgsched.domain.units import MIB

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
    while tail := text[at:].lstrip():
        at = len(text) - len(tail)
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

_FG = lazy_regex(rb"#FG(?=[\s-]|$)")  # short, so it must match more strictly than #SBATCH
_SBATCH = lazy_regex(rb"#SBATCH")
_UNSEEN = rb"\xc2\xa0|\xe2\x80[\x80-\x8f\xaf]|\xe3\x80\x80|\xef\xbb\xbf"  # blanks of Unicode, and marks
_MISSPELT = lazy_regex(
    rb"#(?:[ \t]|%b)*(?:(FG)|SBATCH)(?:[ \t]|%b)*(?:-|(?(1)$|(?!)))" % (_UNSEEN, _UNSEEN), re.IGNORECASE
)
_NEAR = lazy_regex(rb"#?!?([A-Za-z_]{2,10}):?[ \t]+-{1,2}[A-Za-z]")
_PREFIXES_MEANT = {
    b"FG": "#FG",
    b"FGSCHED": "#FG",
    b"FGSUB": "#FG",
    b"SBATCH": "#SBATCH",
    b"SLURM": "#SBATCH",
}
_SCHEDULERS = {  # prefix of a directive -> the scheduler that reads it
    "#PBS": "PBS",
    "#BSUB": "LSF",
    "#$": "Grid Engine",
    "#HQ": "HyperQueue",
    "#GFLOW": "gflow",
    "#COBALT": "Cobalt",
    "#OAR": "OAR",
    "#MSUB": "Moab",
    "#PJM": "PJM",
    "#QSUB": "NQS",
    "#flux:": "Flux",
    "#@": "LoadLeveler",
}
_MARKS = b"|".join(re.escape(mark.encode()) for mark in _SCHEDULERS)
_FOREIGN = lazy_regex(rb"(?:%b|(#[ \t]*(?:flux|FLUX):))(?=[ \t]+[-\w])" % _MARKS)
_READ_BY_SLURM = ("#PBS", "#BSUB")
_BEHIND_UNSEEN = lazy_regex(rb"(?:[ \t]*(?:%b))+[ \t]*#(?:FG|SBATCH)[ \t-]" % _UNSEEN)


class HeaderWords(Struct, frozen=True, gc=False):
    """The words of one header line."""

    number: int
    words: tuple[str, ...]


class UnreadLine(Struct, frozen=True, gc=False):
    """A line that looks like a request, and that is not read."""

    number: int
    mark: str  # such as "#$"; of a slip the mark that was probably meant
    text: str  # behind the mark
    scheduler: str = ""  # that would read it; "": it is a slip
    is_comment: bool = False  # a blank behind the '#': it may have been disabled


class Directives(Struct, frozen=True, gc=False):
    """The header lines of a script."""

    family: str = ""  # "FG", "SBATCH", "#PBS", "#BSUB", or "" where there is none
    lines: tuple[HeaderWords, ...] = ()
    warnings: tuple[str, ...] = ()
    unread: tuple[UnreadLine, ...] = ()


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
            _advice_for_command(name),
        )
    if b"\r" in data.split(b"\n", 1)[0]:
        raise BadUsage(f"{name}: line 1 ends with CR (old Mac); run mac2unix")


def _advice_for_command(name: str) -> str:
    """Return how to submit a file that has no interpreter line."""
    runner = next((program for suffix, program in _RUNNERS.items() if name.endswith(suffix)), "")
    if not runner:
        return "A command without a script: fgsub --wrap='COMMAND'"
    return f"Run it by a command: fgsub --wrap='{runner} {name}'"


def too_large(name: str, size: str) -> BadUsage:
    return BadUsage(f"{name}: script is {size}; limit {SIZE_LIMIT // MIB} MiB")


def mebibytes(size: int) -> str:
    """Format a number of bytes in MiB, rounded up to a tenth."""
    tenths = -(-size * 10 // MIB)
    return f"{tenths // 10}.{tenths % 10}".removesuffix(".0")


def directives(
    text: bytes | str, name: str = "script", *, ignore_sbatch: bool = False, ignore_pbs: bool = False
) -> Directives:
    """Return the #FG header lines of a script, or its #SBATCH lines if it has no #FG line.

    A script with neither has the #PBS or #BSUB lines, as in Slurm, unless `ignore_pbs`.
    """
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    header, body_at = _header(data)
    has_fg = any(_FG.match(line) for _, line in header)
    has_sbatch = any(_SBATCH.match(line) for _, line in header)
    warnings: list[str] = []
    family = "FG" if has_fg else "SBATCH" if has_sbatch and not ignore_sbatch else ""
    unread = list(_slips(header))
    if not family and not (has_sbatch and ignore_sbatch):
        strangers = [] if ignore_pbs else list(_foreign(header))
        family = next((line.mark for line in strangers if line.mark in _READ_BY_SLURM), "")
        unread += [line for line in strangers if line.mark != family]
    if has_fg and has_sbatch and not ignore_sbatch:
        warnings.append(f"{name}: #SBATCH headers are ignored because #FG headers are present")
    lines = [] if not family else list(_lines(header, family, name, warnings))
    warnings.extend(_after(data, body_at, family, name, sbatch=not ignore_sbatch))
    if family in _READ_BY_SLURM or any(line.scheduler for line in unread):
        warnings.extend(_foreign_variables(data, name))
    return Directives(family=family, lines=tuple(lines), warnings=tuple(warnings), unread=tuple(unread))


def _slips(header: list[tuple[int, bytes]]) -> Iterator[UnreadLine]:
    """Yield the lines that are nearly a header of #FG or #SBATCH."""
    for number, line in header[1:] if header and header[0][1].startswith(b"#!") else header:
        if _FG.match(line) or _SBATCH.match(line) or line.startswith(b"##"):
            continue
        mark, at = _meant(line)
        if mark:
            text = line[at:].decode(errors="replace").strip()
            yield UnreadLine(number, mark, text, is_comment=line[1:2] in (b" ", b"\t"))


def _meant(line: bytes) -> tuple[str, int]:
    """Return the mark that a line nearly begins with, or "", and where its options begin."""
    if match := _MISSPELT.match(line):
        is_advice = line.startswith((b"# sbatch", b"# fgsub"))  # a usage in a comment
        return "" if is_advice else "#FG" if match[1] else "#SBATCH", match.end() - 1
    if not (match := _NEAR.match(line)):
        return "", 0
    word = match[1].upper()
    mark = _PREFIXES_MEANT.get(word, "")
    if not mark and 5 <= len(word) <= 8 and _is_near(word, b"SBATCH"):
        mark = "#SBATCH"
    return mark, match.end(1)


def _is_near(word: bytes, goal: bytes) -> bool:
    """Tell whether two words differ by one letter, or by the order of two neighbours."""
    if sorted(word) == sorted(goal):
        return sum(letter != goal_letter for letter, goal_letter in zip(word, goal, strict=True)) <= 2
    if len(word) == len(goal):
        return sum(letter != goal_letter for letter, goal_letter in zip(word, goal, strict=True)) == 1
    long, short = (word, goal) if len(word) > len(goal) else (goal, word)
    return len(long) - len(short) == 1 and any(long[:at] + long[at + 1 :] == short for at in range(len(long)))


def _foreign(header: list[tuple[int, bytes]]) -> Iterator[UnreadLine]:
    """Yield the directives of other schedulers."""
    for number, line in header:
        if match := _FOREIGN.match(line):
            mark = "#flux:" if match[1] else match[0].decode()  # Flux reads # flux: and #FLUX:, too
            text = line[match.end() :].decode(errors="replace").strip()
            yield UnreadLine(number, mark, text, _SCHEDULERS[mark])


_FOREIGN_VARIABLE = lazy_regex(rb"\$\{?((?:PBS|LSB|LS|SGE|COBALT|PJM|HQ)_[A-Z_]+)")
_OWN_VARIABLES = {
    **dict.fromkeys(("PBS_O_WORKDIR", "LS_SUBCWD", "SGE_O_WORKDIR"), "FG_SUBMIT_DIR"),
    **dict.fromkeys(("PBS_JOBID", "LSB_JOBID", "COBALT_JOBID", "HQ_JOB_ID"), "FG_JOB_ID"),
    **dict.fromkeys(
        ("PBS_ARRAYID", "PBS_ARRAY_INDEX", "LSB_JOBINDEX", "SGE_TASK_ID", "HQ_TASK_ID"), "FG_ARRAY_TASK_ID"
    ),
    **dict.fromkeys(("PBS_JOBNAME", "LSB_JOBNAME"), "FG_JOB_NAME"),
}


def _foreign_variables(data: bytes, name: str) -> Iterator[str]:
    """Yield a warning about each variable of another scheduler that a script uses: it is not set."""
    variables: set[str] = set()
    for number, line in enumerate(data.split(b"\n"), 1):
        for match in () if line.lstrip().startswith(b"#") else _FOREIGN_VARIABLE.finditer(line):
            variable = match[1].decode()
            if variable not in variables:
                variables.add(variable)
                replacement = _OWN_VARIABLES.get(variable)
                yield f"{name}: line {number}: ${variable} is not set here" + (
                    f"; use ${replacement}" if replacement else ""
                )


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


def _lines(
    header: list[tuple[int, bytes]], family: str, name: str, warnings: list[str]
) -> Iterator[HeaderWords]:
    prefix = (
        _FG if family == "FG" else _SBATCH if family == "SBATCH" else re.compile(re.escape(family.encode()))
    )
    offset = 0
    for number, line in header:
        match = prefix.match(line)
        if match:
            words = _words(line[match.end() :], place=f"{name}:{number}", offset=offset + match.end())
            if words:
                yield HeaderWords(number, tuple(words))
            else:
                warnings.append(f"{name}: line {number}: #{family.lstrip('#')} without an option is ignored")
        offset += len(line) + 1


def _words(header: bytes, *, place: str, offset: int) -> list[str]:
    try:
        return header_words(header.decode("utf-8"))
    except UnicodeDecodeError as error:
        bad, at = header[error.start], offset + error.start
        raise BadUsage(f"{place}: byte {bad:#04x} at offset {at} of the file is not UTF-8") from None
    except Unclosed:
        raise BadUsage(f"{place}: no closing quotation in {shown(header.decode().strip())}") from None


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
    prefixes = [(b"#FG", _FG), *([(b"#SBATCH", _SBATCH)] if sbatch else [])]
    for mark, prefix in prefixes:
        below = (n for n, line in enumerate(lines, 1) if n > body_at and prefix.match(line))
        if number := next(below, 0):
            yield (
                f"{name}: line {number}: {mark.decode()} after the first command (line {body_at}) is ignored"
                + ("" if family else "; no header is above it, so the job asks for nothing by headers")
            )
