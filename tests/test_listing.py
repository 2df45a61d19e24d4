"""The options of fgq: the parser that needs no click says what click says."""

import click
from hypothesis import given
from hypothesis import strategies as st

from fgsched.cli.fgq import fgq
from fgsched.listing import table

WORDS = sorted(
    {spelled for option in table.OPTIONS for spelled in option.spelled.split()}
    | {
        "--user=ann",
        "--noheader=1",
        "--sort=-i",
        "-o%i",
        "-hl",
        "-ho",
        "-lj7",
        "--color=never",
        "--color=red",
    }
    | {"--states=", "--jo", "--nope", "-5", "-", "--", "", "7", "ann", "R,PD", "-i3", "-i0", "%i %T", "é"}
)


def by_click(words: list[str]) -> dict[str, object] | None:
    """The values that click reads; None: it refuses the line, or prints help."""
    context = click.Context(fgq, info_name="fgq")
    try:
        super(type(fgq), fgq).parse_args(context, list(words))
    except (click.UsageError, click.exceptions.Exit):
        return None
    return context.params


@given(st.lists(st.sampled_from(WORDS), max_size=5))
def test_a_line_that_is_read_without_click_has_the_values_that_click_reads(words):
    try:
        ours = table.read(words)
    except table.Unread:
        return
    assert ours == by_click(words)


def test_the_lines_of_programs_are_read_without_click():
    read = table.read(["-h", "-o", "%i %T", "--me", "-tR,PD", "-j", "7", "--jobs=8", "-hr", "-S", "-p"])
    usual = {"noheader": True, "form": "%i %T", "me": True, "states": ("R,PD",), "jobs": ("7", "8")}
    assert {name: value for name, value in read.items() if value} == {
        **usual,
        "expand": True,
        "sort": "-p",
        "colour": "auto",
    }
