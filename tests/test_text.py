"""What a user typed, as it is told again in errors."""

import os

import pytest

from fgsched.config.keys import decode_values
from fgsched.domain.errors import BadUsage
from fgsched.domain.text import quoted, shown
from fgsched.lifecycle.arrays import parse_array
from fgsched.lifecycle.dependencies import parse_dependency
from fgsched.submission.table import early_signal

ODD = os.fsdecode(b"a\xffb")  # as a word of the command line that is not UTF-8


@pytest.mark.parametrize(
    ("text", "plain", "in_quotes"),
    [
        ("abc", "abc", "'abc'"),
        ("", "''", "''"),
        ("a b", "'a b'", "'a b'"),
        (ODD, r"'a\xffb'", r"'a\xffb'"),
        ("a\nb", r"'a\x0ab'", r"'a\x0ab'"),
        ("x" * 99, "x" * 80 + "…", f"'{'x' * 80}…'"),
    ],
)
def test_a_value_is_told_on_one_line_and_cut(text, plain, in_quotes):
    assert (shown(text), quoted(text)) == (plain, in_quotes)


@pytest.mark.parametrize("read", [parse_array, parse_dependency, lambda text: early_signal(f"{text}:TERM")])
def test_the_part_that_is_wrong_is_told_as_the_whole_is(read):
    with pytest.raises(BadUsage) as raised:
        read(ODD)
    assert raised.value.cause.count(r"a\xffb") == 2
    assert raised.value.cause.isprintable()


def test_a_value_of_a_partition_is_told_so_too():
    with pytest.raises(BadUsage) as raised:
        decode_values({"state": "up\x1b[31m"})
    assert raised.value.cause.startswith(r"state='up\x1b[31m' is not ")
