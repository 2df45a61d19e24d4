"""The options of fgq and squeue, and the parser of lines with options in their whole form.

`OPTIONS` is the only declaration: click shows the options in help and completion (`cli/clickoptions.py`), and
it parses each line that `read` leaves alone: shortened names, and lines that it refuses.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from fgsched.domain.units import parse_count
from fgsched.views.getopt import Known, Unreadable, taken

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
_LONG = {word[2:]: option for option in OPTIONS for word in option.spelled.split() if word[1] == "-"}
KNOWN = Known(
    long={name: "" if option.kind == FLAG else "=" for name, option in _LONG.items()},
    short={
        word[1]: next(name[2:] for name in option.spelled.split() if name[1] == "-")
        for option in OPTIONS
        for word in option.spelled.split()
        if word[1] != "-"
    },
    same={name: option.spelled for name, option in _LONG.items()},
    never=("help",),
)
_NOTHING = {LIST: (), FLAG: False, TEXT: None, COUNT: None}


def read(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of all options, and of the operands, as click does. Raises Unread."""
    found: dict[str, Any] = {
        option.name: option.default if option.default is not None else _NOTHING[option.kind]
        for option in OPTIONS
        if option.name
    }
    operands = list[str]()
    try:
        for name, text in taken(KNOWN, words, operands, permute=True, is_value=_is_value):
            _put(found, _LONG[name], text)
    except Unreadable:
        raise Unread from None
    return found | {OPERANDS: tuple(operands)}


def _put(found: dict[str, Any], option: Option, text: str | None) -> None:
    """Store the value of an option; the last one counts, and lists grow."""
    value = True if text is None else option.parse(text)
    if option.name:
        found[option.name] = (*found[option.name], value) if option.kind == LIST else value


def _is_value(word: str) -> bool:
    return word[:2] != "--"
