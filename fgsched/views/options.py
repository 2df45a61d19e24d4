"""The options of commands about jobs, which their names of Slurm have too, and the reader of their lines.

`OPTIONS` is the only declaration. A row has the line of the help of each command that has the option. click
shows the options in help and completion (`cli/listedoptions.py`), and reports the lines that `read` refuses.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Generic, TypeVar

from msgspec import Struct

from fgsched.domain.units import parse_count
from fgsched.views.getopt import Known, UnreadableWord, taken

LIST, TEXT, FLAG, COUNT = "list", "text", "flag", "count"
COLOURS = ("auto", "always", "never")
_IGNORED = "Accepted and ignored."
_QUEUE, _CANCEL = {"fgq": _IGNORED}, {"fgcancel": _IGNORED}


class Unread(Exception):
    """Raised for a line that click reports."""


class ListOption(Struct, frozen=True):
    """An option: its spellings, its kind, and the field of the record that takes its value ("": ignored)."""

    spelled: str  # "-u --user"
    kind: str
    name: str
    helps: Mapping[str, str]  # of each command that has the option, its line in the help
    metavar: str = ""
    hidden: bool = False
    values: tuple[str, ...] = ()  # the permitted ones; empty: all
    default: str | None = None

    @property
    def empty(self) -> Any:
        """The value of an option that is not given."""
        if self.default is not None:
            return self.parse(self.default)
        return {LIST: (), FLAG: False, TEXT: None, COUNT: None}[self.kind]

    @property
    def longs(self) -> list[str]:
        """Its long names, without dashes."""
        return [word[2:] for word in self.spelled.split() if word[1] == "-"]

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


def _ignored(helps: Mapping[str, str], flags: str, values: str = "") -> list[ListOption]:
    """Return options without a meaning on one host: "--local,-P --priority"."""
    rows = [ListOption(spelled, FLAG, "", helps, hidden=True) for spelled in flags.split(",")]
    return rows + [
        ListOption(spelled, TEXT, "", helps, hidden=True) for spelled in values.split(",") if spelled
    ]


class QueueOptions(Struct, frozen=True):
    """The options of fgq."""

    user: tuple[str, ...]
    nodelist: str | None
    me: bool
    jobs: tuple[str, ...]
    states: tuple[str, ...]
    partition: tuple[str, ...]
    account: tuple[str, ...]
    qos: tuple[str, ...]
    name: tuple[str, ...]
    recent: bool
    long: bool
    form: str | None  # columns by letter
    names: str | None  # columns by name
    sort: str | None
    noheader: bool
    iterate: int | None  # seconds
    as_slurm: bool
    colour: str
    as_json: bool
    slurm_json: bool
    expand: bool
    start: bool
    why: bool


class CancelOptions(Struct, frozen=True):
    """The options of fgcancel."""

    signal: str | None
    batch: bool
    full: bool
    children: bool
    states: tuple[str, ...]
    name: tuple[str, ...]
    user: tuple[str, ...]
    me: bool
    partition: tuple[str, ...]
    account: tuple[str, ...]
    qos: tuple[str, ...]
    interactive: bool
    dry_run: bool
    verbose: bool
    strict: bool
    reason: str


class PriorityOptions(Struct, frozen=True):
    """The options of fgprio."""

    jobs: tuple[str, ...]
    user: tuple[str, ...]
    partition: tuple[str, ...]
    long: bool
    norm: bool
    weights: bool
    noheader: bool
    as_json: bool


class ShareOptions(Struct, frozen=True):
    """The options of fgshare."""

    all_users: bool
    users: tuple[str, ...]
    accounts: tuple[str, ...]
    accounts_only: bool
    parsable: bool
    parsable2: bool
    noheader: bool
    as_json: bool


class UseOptions(Struct, frozen=True):
    """The options of fgstat."""

    own: bool  # the job in which the command runs
    allusers: bool
    noheader: bool
    as_json: bool


class EfficiencyOptions(Struct, frozen=True):
    """The options of fgeff."""

    name: tuple[str, ...]
    user: tuple[str, ...]
    starttime: str | None
    last: int  # runs of a name
    as_ascii: bool
    as_json: bool


class ScreenOptions(Struct, frozen=True):
    """The options of fgtop."""

    interval: int  # seconds
    read_only: bool
    filter: str
    me: bool
    once: bool
    as_ascii: bool
    as_json: bool


_EVERYTHING = "Print everything as a JSON object."
OPTIONS = (
    ListOption("-j --jobs", LIST, "jobs", {"fgprio": "Jobs with these ids: 7,10-14."}, "LIST"),
    ListOption("-n --name", LIST, "name", {"fgeff": "Compare the runs of jobs with these names."}, "LIST"),
    ListOption("-i --interval", COUNT, "interval", {"fgtop": "Default: 2."}, "SECONDS", default="2"),
    ListOption("--read-only", FLAG, "read_only", {"fgtop": "Jobs cannot be cancelled from the screen."}),
    ListOption("-u --user", TEXT, "filter", {"fgtop": "Begin with this filter."}, "TEXT", default=""),
    ListOption("-a --all", FLAG, "all_users", {"fgshare": "Show all users, not only yourself."}),
    ListOption("-u --users", LIST, "users", {"fgshare": "Show these users."}, "LIST"),
    ListOption("-A --accounts", LIST, "accounts", {"fgshare": "Show these accounts."}, "LIST"),
    ListOption("-m --accounts-only", FLAG, "accounts_only", {"fgshare": "Show accounts without users."}),
    ListOption("-p --parsable", FLAG, "parsable", {"fgshare": "Separate columns with |, also at the end."}),
    ListOption("-P --parsable2", FLAG, "parsable2", {"fgshare": "Separate columns with |."}),
    ListOption("-h -n --noheader", FLAG, "noheader", {"fgshare": "Print no header."}),
    ListOption("--self", FLAG, "own", {"fgstat": "The job in which the command runs."}),
    ListOption("-a --allusers", FLAG, "allusers", {"fgstat": "Jobs of all users."}),
    ListOption(
        *("-w --nodelist", TEXT, "nodelist", {"fgq": "Only jobs on the host: no pending ones."}, "LIST"),
        hidden=True,
    ),
    ListOption("-w --nodelist", TEXT, "", {"fgcancel": "Accepted; one host."}, "LIST", hidden=True),
    ListOption("-M --clusters --cluster", TEXT, "", _QUEUE | _CANCEL, "LIST", hidden=True),
    ListOption("--sibling", FLAG, "", _QUEUE, hidden=True),
    *_ignored(_QUEUE, "--local,--hide,--federation,--noconvert,--array-unique,-P --priority,-v --verbose"),
    *_ignored(_CANCEL, "-Q --quiet,-H --hurry,-c --ctld", "-R --reservation,--wckey,--sibling"),
    ListOption(
        "-s --signal", TEXT, "signal", {"fgcancel": "Send SIG instead; only TERM and KILL cancel."}, "SIG"
    ),
    ListOption("-b --batch", FLAG, "batch", {"fgcancel": "Signal only the shell of the script."}),
    ListOption("-f --full", FLAG, "full", {"fgcancel": "Signal the shell and its children (default)."}),
    ListOption(
        "--children", FLAG, "children", {"fgcancel": "Signal only the processes that the shell started."}
    ),
    ListOption("-t --state", LIST, "states", {"fgcancel": "Select jobs in these states."}, "LIST"),
    ListOption("-n --name --jobname", LIST, "name", {"fgcancel": "Select jobs with these names."}, "LIST"),
    ListOption(
        *("-u --user", LIST, "user"),
        {
            "fgq": "Jobs of these users.",
            "fgcancel": "Select jobs of these users.",
            "fgprio": "Jobs of these users.",
            "fgeff": "Sum up the jobs of these users by name; default: your own.",
        },
        "LIST",
    ),
    ListOption(
        "--me",
        FLAG,
        "me",
        {"fgq": "Your own jobs.", "fgcancel": "Select your own jobs.", "fgtop": "Begin with your own jobs."},
    ),
    ListOption("-j --jobs", LIST, "jobs", {"fgq": "Jobs with these ids: 7,10-14."}, "LIST"),
    ListOption("-t --states", LIST, "states", {"fgq": "Jobs in these states: R,PD, or all."}, "LIST"),
    ListOption(
        *("-p --partition", LIST, "partition"),
        {
            "fgq": "Jobs of these partitions.",
            "fgcancel": "Select jobs in these partitions.",
            "fgprio": "Jobs of these partitions.",
        },
        "LIST",
    ),
    ListOption(
        *("-A --account", LIST, "account"),
        {"fgq": "Jobs of these accounts.", "fgcancel": "Select jobs of these accounts."},
        "LIST",
    ),
    ListOption("-q --qos", LIST, "qos", {"fgq": "Jobs of these qualities of service."}, "LIST", hidden=True),
    ListOption("-q --qos", LIST, "qos", {"fgcancel": "Select jobs with these QOS."}, "LIST"),
    ListOption("-n --name", LIST, "name", {"fgq": "Jobs with these names."}, "LIST", hidden=True),
    ListOption(
        "--recent", FLAG, "recent", {"fgq": "Also jobs that ended in the last 5 minutes."}, hidden=True
    ),
    ListOption("-i --interactive", FLAG, "interactive", {"fgcancel": "Ask for confirmation of each job."}),
    ListOption("--dry-run", FLAG, "dry_run", {"fgcancel": "Print the selected jobs and do nothing."}),
    ListOption("-v --verbose", FLAG, "verbose", {"fgcancel": "Report every job on standard error."}),
    ListOption("--strict", FLAG, "strict", {"fgcancel": "Treat an ended job as an error."}),
    ListOption(
        "--reason", TEXT, "reason", {"fgcancel": "Reason, recorded with the job."}, "TEXT", default=""
    ),
    ListOption(
        "-l --long",
        FLAG,
        "long",
        {"fgq": "Print more columns.", "fgprio": "Also print user, account and QOS."},
    ),
    ListOption(
        "-o --format", TEXT, "form", {"fgq": "Columns by letter, as squeue -o: '%.8i %j %T'."}, "FORMAT"
    ),
    ListOption("-O --Format", TEXT, "names", {"fgq": "Columns by name: JobID:8,Why:60."}, "LIST"),
    ListOption("-S --sort", TEXT, "sort", {"fgq": "Sort by these columns; - for descending order."}, "KEYS"),
    ListOption("-n --norm", FLAG, "norm", {"fgprio": "Print factors from 0 to 1, without weights."}),
    ListOption("-w --weights", FLAG, "weights", {"fgprio": "Print the weights."}),
    ListOption(
        *("-h --noheader", FLAG, "noheader"), dict.fromkeys(("fgq", "fgprio", "fgstat"), "Print no header.")
    ),
    ListOption("-S --starttime", TEXT, "starttime", {"fgeff": "Jobs since then; default: -30d."}, "TIME"),
    ListOption("--last", COUNT, "last", {"fgeff": "Runs of a name; default: 20."}, "N", default="20"),
    ListOption("--once", FLAG, "once", {"fgtop": "Print the screen once, with all jobs, and exit."}),
    ListOption("--ascii", FLAG, "as_ascii", dict.fromkeys(("fgeff", "fgtop"), "Use ASCII characters only.")),
    ListOption("-i --iterate", COUNT, "iterate", {"fgq": "Repeat at this interval."}, "SECONDS"),
    ListOption("--slurm-columns", FLAG, "as_slurm", {"fgq": "Print exactly the columns of squeue."}),
    ListOption("--color", TEXT, "colour", {"fgq": "Colours."}, hidden=True, values=COLOURS, default="auto"),
    ListOption(
        "--json",
        FLAG,
        "as_json",
        {
            "fgq": "Print all fields as a JSON object.",
            **dict.fromkeys(("fgprio", "fgshare", "fgstat"), _EVERYTHING),
            "fgeff": "Print a JSON object.",
            "fgtop": "Print GPUs and jobs as a JSON object, and exit.",
        },
    ),
    ListOption("--slurm-json", FLAG, "slurm_json", {"fgq": "Print Slurm's JSON."}, hidden=True),
    ListOption("-a --all", FLAG, "", {"fgq": "Accepted; no partition is hidden."}, hidden=True),
    ListOption("-r --array", FLAG, "expand", {"fgq": "Print one line for each array task."}),
    ListOption("--start", FLAG, "start", {"fgq": "Print expected start times of pending jobs."}),
    ListOption("--why", FLAG, "why", {"fgq": "Print all reasons why jobs are pending, and remedies."}),
)
Record = TypeVar("Record")


class TableCommand(Struct, Generic[Record], frozen=True):
    """A command of the table, and the record of its options."""

    name: str
    record: type[Record]

    @property
    def options(self) -> list[ListOption]:
        """The options that the command has."""
        return [option for option in OPTIONS if self.name in option.helps]

    def read(self, words: Sequence[str]) -> tuple[Record, list[str]]:
        """Return the options and the operands of a line, as click reads them. Raises Unread."""
        known, by_name = known_of(self.name), {long: row for row in self.options for long in row.longs}
        values = {row.name: row.empty for row in self.options if row.name}
        operands = list[str]()
        try:
            for name, text in taken(known, words, operands, permute=True, is_value=_is_value):
                _put(values, by_name[name], text)
        except UnreadableWord:
            raise Unread from None
        return self.record(**values), operands


def _put(values: dict[str, Any], option: ListOption, text: str | None) -> None:
    """Store the value of an option; the last one counts, and lists grow."""
    value = True if text is None else option.parse(text)
    if option.name:
        values[option.name] = (*values[option.name], value) if option.kind == LIST else value


def _is_value(word: str) -> bool:
    return word[:2] != "--"


@cache
def known_of(command: str) -> Known:
    """Return how a command of the table is read."""
    rows = [option for option in OPTIONS if command in option.helps]
    return Known(
        long={name: "" if row.kind == FLAG else "=" for row in rows for name in row.longs},
        short={word[1]: row.longs[0] for row in rows for word in row.spelled.split() if word[1] != "-"},
        same={name: row.spelled for row in rows for name in row.longs},
        never=("help",),
    )


QUEUE = TableCommand("fgq", QueueOptions)
CANCEL = TableCommand("fgcancel", CancelOptions)
PRIORITY = TableCommand("fgprio", PriorityOptions)
SHARE = TableCommand("fgshare", ShareOptions)
USE = TableCommand("fgstat", UseOptions)
EFFICIENCY = TableCommand("fgeff", EfficiencyOptions)
SCREEN = TableCommand("fgtop", ScreenOptions)
