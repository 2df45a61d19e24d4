"""The reader of all command lines: it takes a line apart as getopt_long does."""

import getopt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgsched.views.getopt import Known, UnreadableWord, taken


def known_of(names: str, short: str) -> Known:
    """Return options from 'ntasks= label kill-on-bad-exit?' and 'n:ntasks l:label'."""
    long = {name.rstrip("=?"): name[len(name.rstrip("=?")) :] for name in names.split()}
    return Known(long, dict(pair.split(":") for pair in short.split()))


KNOWN = known_of("jobs= job-name= label long iterate=", "j:jobs l:label L:long i:iterate")
LONG = [f"{name}{kind}" for name, kind in KNOWN.long.items()]
SHORT = "j:lLi:"
WORDS = [
    "--jobs",
    "--jobs=7",
    "--job",
    "--job-",
    "--job-name=x",
    "--lab",
    "--l",
    "--label=x",
    "--iter",
    "--it=3",
]
WORDS += [
    "-j",
    "-j7",
    "-l",
    "-lL",
    "-Lj8",
    "-li",
    "-z",
    "-lz",
    "-",
    "--",
    "",
    "7",
    "a",
    "--nope",
    "--=x",
    "-j=",
]


def read(words: list[str], *, permute: bool) -> tuple[list[tuple[str, str]], list[str]] | None:
    """Options and operands; None: the line is refused."""
    operands = list[str]()
    try:
        found = list(taken(KNOWN, words, operands, permute=permute))
    except UnreadableWord:
        return None
    return [(name, value or "") for name, value in found], operands


def by_python(words: list[str], *, permute: bool) -> tuple[list[tuple[str, str]], list[str]] | None:
    """The same by Python's own getopt, which has no optional values."""
    reader = getopt.gnu_getopt if permute else getopt.getopt
    try:
        found, operands = reader(words, SHORT, LONG)
    except getopt.GetoptError:
        return None
    names = {f"-{letter}": name for letter, name in KNOWN.short.items()}
    return [(names.get(option, option[2:]), value) for option, value in found], operands


@pytest.mark.parametrize("permute", [True, False])
@given(words=st.lists(st.sampled_from(WORDS), max_size=5))
def test_a_line_is_taken_apart_as_getopt_long_does(permute, words):
    assert read(words, permute=permute) == by_python(words, permute=permute)


def test_names_that_mean_one_option_make_no_beginning_ambiguous():
    known = Known(long={"ntasks-per-node": "=", "ntasks": "="}, short={}, same={"ntasks-per-node": "ntasks"})
    assert list(taken(known, ["--nt=3"], [], permute=False)) == [("ntasks", "3")]


@pytest.mark.parametrize("words", [["-j", ""], ["--jobs", ""], ["--jobs="]])
def test_an_empty_value_is_a_value(words):
    assert list(taken(KNOWN, words, [], permute=False)) == [("jobs", "")]


def test_an_optional_value_stands_in_the_word():
    known = known_of("nice? hold", "n:nice H:hold")
    words = ["--nice", "--nice=7", "-n5", "-Hn", "-H", "x"]
    found = [("nice", None), ("nice", "7"), ("nice", "5"), ("hold", None), ("nice", None), ("hold", None)]
    assert list(taken(known, words, [], permute=False)) == found


@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        (["--nope"], ("unknown", "nope", "")),
        (["-z"], ("unknown letter", "", "z")),
        (["--l"], ("ambiguous", "l", "")),
        (["--label=x"], ("takes no value", "label", "")),
        (["--jobs"], ("needs a value", "jobs", "")),
        (["-lj"], ("needs a value", "jobs", "j")),
        (["-j", "--label"], ("needs a value", "jobs", "j")),
    ],
)
def test_the_trouble_with_a_word_is_named(words, trouble):
    with pytest.raises(UnreadableWord) as raised:
        list(taken(KNOWN, words, [], permute=True, is_value=lambda word: word[:2] != "--"))
    error = raised.value
    assert (error.trouble, error.name, error.letter) == trouble
