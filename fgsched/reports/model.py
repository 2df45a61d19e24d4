"""The model of a report: sections of figures, bars and tables, without any markup.

A report is computed once and then written in every format. A number carries its one printed text, which
every format shows. A text from a user (a name, a command) is always `Given`, never part of a sentence.
"""

from typing import Literal

from msgspec import Struct

SCHEMA = 1  # version of the JSON form; fields are added, never renamed

TimeClass = Literal["active", "held-idle", "reserved-empty", "free", "external", "down"]
CLASSES: tuple[TimeClass, ...] = ("active", "held-idle", "reserved-empty", "free", "external", "down")
CHARGED = CLASSES[:3]
DASH = "–"  # not applicable, or unknown


# -- the parts of a cell -----------------------------------------------------------------------------


class Number(Struct, frozen=True, tag="number", tag_field="type"):
    """A number with its unit and its printed text. The text has a unit unless the column head names it."""

    value: float | None  # None: unknown or not applicable
    unit: str  # of the value: "GPU-hours", "hours", "%", "seconds", "bytes", "GiB-hours", "jobs", …
    text: str  # such as "239.5", "71.0 %" or "4 h 47 min"; a space before a unit


Tone = Literal["good", "bad", ""]


class Change(Struct, frozen=True, tag="change", tag_field="type"):
    """The difference from the earlier period."""

    value: float
    unit: str
    direction: Literal["up", "down", "same"]
    text: str  # such as "12.5 points"; "unchanged"
    tone: Tone = ""


class Words(Struct, frozen=True, tag="words", tag_field="type"):
    """A text of the report itself."""

    text: str


class Given(Struct, frozen=True, tag="given", tag_field="type"):
    """A text that a user or a process gave: to be escaped, isolated and shortened by each format."""

    text: str


PieceKind = Literal[TimeClass, "used", "unused", "count"]  # used and unused: parts of the class active


class Piece(Struct, frozen=True):
    """A part of a bar."""

    kind: PieceKind
    part: float  # of the whole scale, from 0 to 1


class Bar(Struct, frozen=True, tag="bar", tag_field="type"):
    """A bar on the scale that all bars of its column share."""

    pieces: tuple[Piece, ...]


class Line(Struct, frozen=True, tag="line", tag_field="type"):
    """A header line to paste into a job script. A token is never broken."""

    tokens: tuple[str, ...]  # such as "#FG", "--gpus=0.25"

    @property
    def text(self) -> str:
        return " ".join(self.tokens)


class Event(Struct, frozen=True, tag="time", tag_field="type"):
    """A point in time."""

    at: float  # epoch seconds
    text: str  # such as "Wed 11 Nov 14:10"
    iso: str  # such as "2026-11-11T14:10:00+0100"


class Phrase(Struct, frozen=True, tag="phrase", tag_field="type"):
    """Texts of the report and of users in one sentence or cell, to be joined without blanks."""

    parts: tuple[Words | Given, ...]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)


Cell = Number | Change | Words | Given | Bar | Line | Event | Phrase


# -- the parts of a section --------------------------------------------------------------------------


class Headline(Struct, frozen=True):
    """One of the figures at the top of a report."""

    key: str
    label: str
    number: Number
    note: str  # the fraction behind the number, such as "1,074 of 1,328 GPU-hours"
    change: Change | None = None


class Figures(Struct, frozen=True, tag="figures", tag_field="kind"):
    """The figures at the top of a report."""

    items: tuple[Headline, ...]
    key: str = "figures"
    title: str = ""


class ClassShare(Struct, frozen=True):
    """The hours of one time class, and their part of the hours measured."""

    name: TimeClass
    meaning: str
    hours: Number
    share: Number  # per cent; the six add up to 100.0
    change: Change | None = None


class ClassBar(Struct, frozen=True, tag="classes", tag_field="kind"):
    """One stacked bar of the six time classes, and their table."""

    classes: tuple[ClassShare, ...]
    hours: Number  # total
    share: Number  # 100.0 %
    lost: Number  # hours without samples
    key: str = "classes"
    title: str = ""


class Step(Struct, frozen=True, array_like=True):
    """What a GPU did in one step of a row: parts from 0 to 1; the rest is free."""

    active: float
    held: float
    empty: float
    external: float
    down: float

    @property
    def charged(self) -> float:
        return self.active + self.held + self.empty


class Mark(Struct, frozen=True):
    """A labelled place on an axis."""

    at: float  # from 0 to 1
    label: str


class GpuRow(Struct, frozen=True):
    """One GPU over time."""

    gpu: int
    uuid: str
    model: str
    notes: tuple[Phrase, ...]  # times when it was down or used from outside
    charged: Number  # per cent of the hours measured
    active: Number  # per cent
    peak: Number  # bytes; such as "72 / 80 GiB"
    steps: tuple[Step | None, ...]  # None: no samples


class GpuRows(Struct, frozen=True, tag="gpus", tag_field="kind"):
    """All GPUs over time, on one axis."""

    rows: tuple[GpuRow, ...]
    since: float  # begin of the first step, in epoch seconds
    step: int  # seconds
    days: tuple[Mark, ...]  # midnights: a line and the name of the day
    note: str  # what the axis shows
    key: str = "gpus"
    title: str = ""


ABSENT = -1  # level of an hour that is not in the period


class HeatRow(Struct, frozen=True):
    """One day of the week: 24 hours and their mean. A cell without samples has no value.

    An hour that is not in the period has neither a value nor a text.
    """

    label: str
    cells: tuple[Number, ...]
    levels: tuple[int | None, ...]  # 0 to 5; None: no samples; ABSENT: not in the period
    mean: Number


class HeatMap(Struct, frozen=True, tag="heat", tag_field="kind"):
    """The charged part of the GPUs by weekday and hour, in per cent."""

    caption: str
    rows: tuple[HeatRow, ...]  # the days of the period, Monday first
    means: HeatRow  # of each hour over the days
    bounds: tuple[str, ...]  # of the six levels: "below 10", …
    key: str = "heat"
    title: str = ""


class Column(Struct, frozen=True):
    """A column of a table."""

    key: str  # name in CSV and JSON
    head: str
    short: str = ""  # head in text, if it differs
    right: bool = False  # aligned to the right
    minor: bool = False  # left out on a phone
    in_text: bool = True  # shown in the 78 columns of text
    unit: str = ""  # of the values, if all cells share it

    @property
    def is_bar(self) -> bool:
        """Whether its cells are bars, which Markdown, mails and CSV do not have."""
        return self.key in ("bar", "classes")


class Table(Struct, frozen=True, tag="table", tag_field="kind"):
    """A table. Its rows have one cell for each column."""

    key: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total: tuple[Cell, ...] = ()
    title: str = ""  # heading, if the section has several parts
    caption: str = ""
    empty: str = ""  # the sentence in place of a table without rows

    @property
    def caption_without_bars(self) -> str:
        """Return the caption for a form that has no bars: "" if it is about them."""
        return "" if any(column.is_bar for column in self.columns) else self.caption


class WaitRow(Struct, frozen=True):
    """The waits of one size class. Dots are at 2.5, 7.5 … 97.5 %; up to 20 jobs, one dot is one job."""

    name: str
    jobs: Number
    dots: tuple[float, ...]  # seconds, ascending
    median: Number
    ninety: Number
    longest: Number
    is_given: bool = False  # the name is a text of the site or of a user


class Quantiles(Struct, frozen=True, tag="waits", tag_field="kind"):
    """The distribution of waits by size class, on one logarithmic axis that begins with "at once"."""

    rows: tuple[WaitRow, ...]
    ticks: tuple[Mark, ...]  # `at` is in seconds here
    caption: str
    key: str = "waits"
    title: str = ""
    head: str = "Size"  # of the column of names


class UseRow(Struct, frozen=True):
    """The request and the use of the jobs of one name."""

    user: Given
    job: Given
    jobs: Number
    cost: Number  # the difference over time, such as GiB-hours
    full: float  # part of the scale that was used, from 0 to 1: the peak, or the median
    pale: float | None  # as `full`, for nine of ten jobs
    outline: float  # part of the scale that was requested
    used: Number
    asked: Number
    line: Line
    most: Number | None = None  # the longest run, beside the median


class UseBars(Struct, frozen=True, tag="used", tag_field="kind"):
    """Bars of requested and used amounts, on one scale."""

    key: str
    rows: tuple[UseRow, ...]
    ticks: tuple[Mark, ...]
    heads: tuple[str, str, str, str]  # of cost, used, most ("" if no row has it) and asked
    title: str = ""
    caption: str = ""
    empty: str = ""


class WasteItem(Struct, frozen=True):
    """Jobs of one name that were charged more than they needed, and the line that would have prevented it."""

    rank: int
    user: Given
    job: Given
    jobs: Number  # "14 jobs"
    asked: str  # "asked 1 GPU"
    evidence: str  # one sentence
    line: Line
    returned: Number  # GPU-hours that the line would have returned
    charged: Number  # GPU-hours
    warned: str = ""  # "warned twice, last 3 days ago"


class Wastes(Struct, frozen=True, tag="wastes", tag_field="kind"):
    """Jobs with the most hours that a header line would have returned."""

    items: tuple[WasteItem, ...]
    key: str = "wastes"
    title: str = ""
    empty: str = ""


class Paragraphs(Struct, frozen=True, tag="paragraphs", tag_field="kind"):
    """Sentences, such as that there is nothing to report."""

    texts: tuple[Phrase, ...]
    key: str = "paragraphs"
    title: str = ""


Part = Figures | ClassBar | GpuRows | HeatMap | Table | Quantiles | UseBars | Wastes | Paragraphs


# -- the report --------------------------------------------------------------------------------------


class Section(Struct, frozen=True):
    """A section of a report. It keeps its place when it has nothing to show."""

    key: str  # as in --section and in JSON
    title: str
    say: str  # the sentence below the title; "": none
    parts: tuple[Part, ...]


class Definition(Struct, frozen=True):
    """A term of the report."""

    term: str
    text: str


class Span(Struct, frozen=True):
    """The period of a report, in local time of the host."""

    since: float  # epoch seconds
    until: float  # epoch seconds, exclusive
    since_iso: str
    until_iso: str
    name: str  # "2026-W46", "2026-10", "2026-11-15", or the two dates
    label: str  # "9 to 15 November 2026", with a dash
    noun: str  # "week", "month", "day" or "period"; "moment": the present
    closed: bool  # it has ended: the report comes out the same when it is made again


class Report(Struct, frozen=True):
    """A whole report."""

    kind: str  # "overview", "users", …
    title: str  # "GPU report"
    host: str
    period: Span
    lede: tuple[str, ...]  # sentences: result, change, what to do
    figures: Figures
    sections: tuple[Section, ...]
    definitions: tuple[Definition, ...]
    notes: tuple[str, ...]  # sentences of the footer: origin, closed period, hours without samples
    main: str = ""  # key of the part that CSV writes if none is named
    quiet: bool = False  # nothing to report: --only-if writes nothing
    schema: int = SCHEMA
