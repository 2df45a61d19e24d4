"""Report where a configuration file is no valid TOML: the line, its text, and what to write instead."""

import re
import tomllib
from pathlib import Path

from fgsched.domain.errors import BadUsage
from fgsched.domain.text import lazy_regex, quoted

_PLACE = lazy_regex(r" \((?:at line (\d+), column (\d+)|at end of document)\)$")
_TOKEN = lazy_regex(
    r"""(?P<whole>\#[^\n]* | \"{3}(?:\\.|[^\\])*?\"{3} | '{3}.*?'{3} |
        "(?!"")(?:\\.|[^"\\\n])*" | '(?!'')[^'\n]*')
    | (?P<unclosed>["']) | (?P<open>[\[{]) | (?P<close>[\]}]) | (?P<line>\n)""",
    re.DOTALL | re.VERBOSE,
)
_CLOSE_TEXT = "the text is not closed", "End the text with the quotation mark that begins it."
_SPANNING = {  # reasons of the parser about a value that may have begun lines before
    "Unterminated string": _CLOSE_TEXT,
    "Illegal character '\\n'": _CLOSE_TEXT,
    "Found invalid character '\\n'": _CLOSE_TEXT,
    "Expected \"'": _CLOSE_TEXT,
    "Unclosed array": ("the list is not closed", "Separate its values by commas, and end it with ]."),
    "Unclosed inline table": ("the table is not closed", "End it with } on the same line."),
}
_ON_THE_LINE = {
    "Expected ']": ("the name of a table is not closed", "Write it alone on its line, as in [gpus]."),
    "Expected '='": ("Expected '=' after a key", "Write KEY = VALUE."),
    "Expected newline": (
        "the line continues after the value",
        "Write a text between quotation marks, and one key on a line.",
    ),
    "Invalid value": (
        "the value is not one of TOML",
        "Write a text between quotation marks; true, false and numbers have none.",
    ),
    "Invalid statement": ("this is neither a key nor a table", "Write KEY = VALUE, or [TABLE]."),
    "Cannot overwrite": ("Cannot overwrite a value: it is set before this line", "Keep one of the two."),
    "Cannot declare": ("the table is declared before this line", "Write all of its keys in one place."),
}
_MISSING = (
    "the value is missing or not complete",
    'Write a whole value after =, such as true, 30, "2h" or [0, 1].',
)
_LONG_NUMBER = lazy_regex(r"[0-9_]{4300}")  # more digits than Python converts
_OTHER = "man fgsched.toml describes the file."


def unreadable_value(path: Path, text: str) -> BadUsage:
    """Return the error about a value that is nested too deeply, or is a number of thousands of digits."""
    lines = text.split("\n")
    long = [number for number, line in enumerate(lines, 1) if _LONG_NUMBER.search(line)]
    deepest = max(range(len(lines)), key=lambda at: lines[at].count("[") + lines[at].count("{")) + 1
    fault = "has too many digits" if long else "is nested too deeply"
    return BadUsage(f"{path}:{(*long, deepest)[0]}: the value {fault}.", _OTHER)


def syntax_error(path: Path, text: str, error: tomllib.TOMLDecodeError) -> BadUsage:
    """Return the error about a file with this text: `file:line: 'gpus =': what is wrong`, and a remedy."""
    place = _PLACE.search(str(error))
    reason = _PLACE.sub("", str(error))
    lines = text.split("\n")
    at_end = place is None or not place[1]
    number = len(text.rstrip().split("\n")) if place is None or at_end else int(place[1])
    rest = "" if place is None or at_end else lines[number - 1][int(place[2]) - 1 :]
    if at_end or _advice(_SPANNING, reason):
        number = _begin(lines, number)
    if reason.startswith("Invalid value") and rest.partition("#")[0].strip() == "":
        cause, remedy = _MISSING
    else:
        cause, remedy = _advice(_SPANNING | _ON_THE_LINE, reason) or (reason, _OTHER)
    return BadUsage(f"{path}:{number}: {quoted(lines[number - 1].strip())}: {cause}.", remedy)


def _advice(known: dict[str, tuple[str, str]], reason: str) -> tuple[str, str] | None:
    return next((advice for begin, advice in known.items() if reason.startswith(begin)), None)


def _begin(lines: list[str], number: int) -> int:
    """Return the line on which the statement begins that a line belongs to."""
    begin, now, depth = 1, 1, 0
    for token in _TOKEN.finditer("\n".join(lines[:number])):
        now += token[0].count("\n")
        match token.lastgroup:
            case "line" if depth <= 0:
                begin = now
            case "unclosed":
                break
            case "open" | "close":
                depth += 1 if token.lastgroup == "open" else -1
    return begin
