"""The options of fgq and squeue, and the parser of lines with options in their whole form.

`OPTIONS` is the only declaration: click shows the options in help and completion (`cli/clickoptions.py`), and
it parses each line that `read` leaves alone: shortened names, and lines that it refuses.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from fgsched.domain.units import parse_count

LIST, TEXT, FLAG, COUNT = "list", "text", "flag", "count"
COLOURS = ("auto", "always", "never")
OPERANDS = "named"  # words that are no options


class Unread(Exception):
    """Raised for a line that only click parses."""


class Option(Struct, frozen=True):
    """An option: its spellings, its kind, and the name of its value ("": accepted and ignored)."""

    spelled: str  # "-u --user"
    kind: str
    name: str
    help: str = "Accepted and ignored."
    metavar: str = ""
    hidden: bool = False
    values: tuple[str, ...] = ()  # the permitted ones; empty: all
    default: str | None = None

    def parse(self, text: str) -> Any:
        """Return the value of an option. Raises Unread for an invalid one."""
        if self.values and text not in self.values:
            raise Unread
        if self.kind != COUNT:
            return text
        try:
            return parse_count(text)
        except Exception:
            raise Unread from None


def _ignored(flags: str = "", values: str = "") -> Iterator[Option]:
    for text, kind in ((flags, FLAG), (values, TEXT)):
        for spelled in text.split(",") if text else ():
            yield Option(spelled, kind, "", hidden=True)


OPTIONS = (
    Option("-u --user", LIST, "user", "Jobs of these users.", "LIST"),
    Option("-w --nodelist", TEXT, "nodelist", "Only jobs on the host: no pending ones.", "LIST", hidden=True),
    Option("-M --clusters --cluster", TEXT, "", metavar="LIST", hidden=True),
    *_ignored("--local,--hide,--federation,--sibling,--noconvert,--array-unique,-P --priority,-v --verbose"),
    Option("--me", FLAG, "me", "Your own jobs."),
    Option("-j --jobs", LIST, "jobs", "Jobs with these ids: 7,10-14.", "LIST"),
    Option("-t --states", LIST, "states", "Jobs in these states: R,PD, or all.", "LIST"),
    Option("-p --partition", LIST, "partition", "Jobs of these partitions.", "LIST"),
    Option("-A --account", LIST, "account", "Jobs of these accounts.", "LIST"),
    Option("-q --qos", LIST, "qos", "Jobs of these qualities of service.", "LIST", hidden=True),
    Option("-n --name", LIST, "name", "Jobs with these names.", "LIST", hidden=True),
    Option("--recent", FLAG, "recent", "Also jobs that ended in the last 5 minutes.", hidden=True),
    Option("-l --long", FLAG, "long", "Print more columns."),
    Option("-o --format", TEXT, "form", "Columns by letter, as squeue -o: '%.8i %j %T'.", "FORMAT"),
    Option("-O --Format", TEXT, "names", "Columns by name: JobID:8,Why:60.", "LIST"),
    Option("-S --sort", TEXT, "sort", "Sort by these columns; - for descending order.", "KEYS"),
    Option("-h --noheader", FLAG, "noheader", "Print no header."),
    Option("-i --iterate", COUNT, "iterate", "Repeat at this interval.", "SECONDS"),
    Option("--slurm-columns", FLAG, "as_slurm", "Print exactly the columns of squeue."),
    Option("--color", TEXT, "colour", "Colours.", hidden=True, values=COLOURS, default="auto"),
    Option("--json", FLAG, "as_json", "Print all fields as a JSON object."),
    Option("--slurm-json", FLAG, "slurm_json", "Print Slurm's JSON.", hidden=True),
    Option("-a --all", FLAG, "", "Accepted; no partition is hidden.", hidden=True),
    Option("-r --array", FLAG, "expand", "Print one line for each array task."),
    Option("--start", FLAG, "start", "Print expected start times of pending jobs."),
    Option("--why", FLAG, "why", "Print all reasons why jobs are pending, and remedies."),
)
_BY_SPELLING = {word: option for option in OPTIONS for word in option.spelled.split()}
_NOTHING = {LIST: (), FLAG: False, TEXT: None, COUNT: None}


def read(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of all options, and of the operands, as click does. Raises Unread."""
    found: dict[str, Any] = {
        option.name: option.default if option.default is not None else _NOTHING[option.kind]
        for option in OPTIONS
        if option.name
    }
    operands = list[str]()
    rest = iter(words)
    for word in rest:
        if len(word) > 1 and word[0] == "-":
            for option, text in _taken(word, rest):
                _put(found, option, text)
        else:
            operands.append(word)
    return found | {OPERANDS: tuple(operands)}


def _put(found: dict[str, Any], option: Option, text: str | None) -> None:
    """Store the value of an option; the last one counts, and lists grow."""
    value = True if text is None else option.parse(text)
    if option.name:
        found[option.name] = (*found[option.name], value) if option.kind == LIST else value


def _taken(word: str, rest: Iterator[str]) -> Iterator[tuple[Option, str | None]]:
    """Yield the options of a word with their values; None: the option takes none. Raises Unread."""
    if word[1] == "-":
        name, equals, text = word.partition("=")
        option = _known(name)
        if option.kind == FLAG and equals:
            raise Unread
        yield option, None if option.kind == FLAG else text if equals else _following(rest)
        return
    for at, letter in enumerate(word[1:], start=2):
        option = _known(f"-{letter}")
        if option.kind != FLAG:
            yield option, word[at:] or _following(rest)
            return
        yield option, None


def _known(spelled: str) -> Option:
    option = _BY_SPELLING.get(spelled)
    if option is None:
        raise Unread
    return option


def _following(rest: Iterator[str]) -> str:
    """Return the next word as a value. Raises Unread, if there is none or it looks like a long option."""
    word = next(rest, None)
    if word is None or word[:2] == "--":
        raise Unread
    return word
