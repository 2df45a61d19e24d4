"""fgq and fgacct on a terminal: no line wraps, and states and reasons have colours."""

import os
import pwd
import re

import pytest

from fgsched.cli import terminal
from fgsched.cli.terminal import Cell, Head, table
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import width_of
from live_host import Home, living, zone_at_noon
from terminals import on_terminal

ME = pwd.getpwuid(os.geteuid()).pw_name
CODES = re.compile("\033\\[[0-9;]*m")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """1 failed, 2 runs, 3 is held and has long names, 4 waits for 3 and never starts."""
    with living(tmp_path_factory.mktemp("terminal") / "home") as found:
        found.ended("exit 3", name="over")
        found.running(name="train", share=5000)
        found.submit(name="a-name-of-a-job-that-is-longer-than-a-line-of-a-terminal-can-be-xxxx", hold=True)
        found.submit(name="火" * 30, hold=True, array="1-4000:3")
        yield found


def bare(lines):
    return [CODES.sub("", line) for line in lines]


@pytest.mark.parametrize("words", [(), ("-l",), ("--start", "-t", "all"), ("--recent",)])
@pytest.mark.parametrize("columns", [72, 80, 132])
def test_no_line_of_fgq_wraps(home: Home, words, columns):
    lines = bare(on_terminal(home, "fgq", *words, columns=columns))
    assert len(lines) >= 4
    assert [line for line in lines if width_of(line) > columns] == []
    held = [line for line in lines if line.split()[0].startswith(("3", "4"))]
    assert [line.split()[-1][:7] for line in held] == ["(JobHel", "(JobHel"]


@pytest.mark.parametrize("columns", [72, 80, 132])
def test_no_line_of_fgacct_wraps(home: Home, columns):
    lines = bare(on_terminal(home, "fgacct", columns=columns, env=zone_at_noon()))
    assert len(lines) == 5
    assert [line for line in lines if width_of(line) > columns] == []
    assert lines[1].split()[:2] == ["1", "over"]


def test_a_terminal_shows_names_as_far_as_there_is_room(home: Home):
    lines = bare(on_terminal(home, "fgq", "-j", "2", columns=80))
    assert [line.split() for line in lines] == [
        ["JOBID", "PARTITION", "NAME", "USER", "ST", "TIME", "GPUS", "GPUMEM", "GPU(REASON)"],
        ["2", "main", "train", ME, "R", lines[1].split()[5], "0.5", "8192M", "0"],
    ]


def test_states_and_reasons_have_colours_on_a_terminal(home: Home):
    lines = on_terminal(home, "fgq", "--recent")
    assert "\033[94mR\033[0m" in lines[3]
    assert lines[1].endswith("\033[33m(JobHeldUser)\033[0m")
    assert "\033[31mF\033[0m" in lines[4]
    assert any("\033[31mFAILED\033[0m" in line for line in on_terminal(home, "fgacct", env=zone_at_noon()))


@pytest.mark.parametrize(
    ("words", "env"), [((), {"NO_COLOR": "1"}), ((), {"TERM": "dumb"}), (("--color=never",), {})]
)
@pytest.mark.parametrize("command", ["fgq", "fgacct"])
def test_colours_can_be_switched_off(home: Home, command, words, env):
    lines = on_terminal(home, command, *words, env=env | zone_at_noon())
    assert len(lines) > 2
    assert "\033" not in "".join(lines)


@pytest.mark.parametrize("command", ["fgq", "fgacct"])
def test_a_program_that_reads_the_table_sees_fixed_widths_without_colours(home: Home, command):
    plain = home.run(command, "-j", "3").lines
    assert bare(home.run(command, "-j", "3", "--color=always").lines) == plain
    assert "\033[" in home.run(command, "-j", "3", "--color=always", env={"NO_COLOR": "1"}).out
    assert "\033[" not in "".join(plain)
    assert max(map(len, plain)) > 80


@pytest.mark.parametrize(
    ("command", "form"), [("fgq", "%.18i %.9P %.40j %.30u"), ("fgacct", "JobID,JobName%60,User%30")]
)
def test_chosen_columns_have_their_widths_on_a_terminal_too(home: Home, command, form):
    env = zone_at_noon()
    lines = bare(on_terminal(home, command, "-o", form, "--color=never", env=env))
    assert len(lines) > 1
    assert lines == home.run(command, "-o", form, env=env).lines


# -- without a process ---------------------------------------------------------------------------------

HEADS = [Head("ID", right=True), Head("NAME", least=8), Head("WHERE", minor=True), Head("WHY", least=10)]


def rows(*texts):
    return [[Cell(text) for text in row] for row in texts]


@pytest.mark.parametrize(
    ("room", "line"),
    [
        (80, " 7 a-long-name-of-a-job here  because-of-this"),
        (44, " 7 a-long-name-of-a-j+ here  because-of-this"),
        (40, " 7 a-long-name-of+ here  because-of-this"),
        (28, " 7 a-long-+ here  because-o+"),
        (27, " 7 a-long-nam+ because-of-+"),
        (21, " 7 a-long-+ because-+"),
        (16, " 7 a-lon+ becau+"),
    ],
)
def test_columns_are_cut_before_minor_ones_are_left_out(room, line):
    lines = table(HEADS, rows(("7", "a-long-name-of-a-job", "here", "because-of-this")), room)
    assert max(map(len, lines)) <= room
    assert lines[1] == line


def test_wide_letters_count_twice_and_control_characters_are_replaced():
    lines = table([Head("N", least=4), Head("X")], rows(("火" * 20, "x"), ("\033[2J", "y")), 19)
    assert lines == ["N                 X", "火火火火火火火火+ x", "?[2J              y"]


@pytest.mark.parametrize(
    ("state", "reason", "colour"),
    [
        (JobState.PENDING, Reason.RESOURCES, ""),
        (JobState.PENDING, Reason.HELD_USER, terminal.YELLOW),
        (JobState.PENDING, Reason.DEPENDENCY_NEVER, terminal.RED),
        (JobState.OUT_OF_MEMORY, Reason.GPU_OUT_OF_MEMORY, terminal.RED),
        (JobState.COMPLETED, Reason.NONE, ""),
    ],
)
def test_what_failed_or_can_never_start_is_red(state, reason, colour):
    assert terminal.of_reason(state, reason) == colour


def test_every_failure_has_a_colour():
    ends = {state for state in JobState if state.is_final} - {JobState.COMPLETED}
    assert {terminal.of_state(state) for state in ends} == {terminal.RED, terminal.YELLOW}


# -- every listing, in every window ---------------------------------------------------------------------


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize(
    "words",
    [
        *(
            ("fgstat", "-a"),
            ("fginfo",),
            ("fginfo", "-g"),
            ("fginfo", "-l"),
            ("fginfo", "-s"),
            ("fginfo", "-N"),
        ),
        *(("fginfo", "--types"), ("fgprio",), ("fgprio", "-l"), ("fgshare", "--all")),
    ],
    ids=" ".join,
)
def test_a_listing_fits_the_window(home, words, columns):
    lines = on_terminal(home, *words, columns=columns)
    assert lines
    assert max(map(width_of, lines)) <= columns, lines


def test_numbers_of_a_listing_are_at_the_right_and_a_program_reads_all_columns(home):
    head, row = on_terminal(home, "fgstat", "-a", columns=80)
    assert (head[:6], row[:6]) == ("JOBID ", "    2 ")
    assert len(home.run("fgstat", "-a", "-h").out.split()) == 13


def test_the_answer_to_why_is_wrapped_at_the_window_between_words(home):
    narrow, wide = (on_terminal(home, "fgq", "--why", "3", columns=columns) for columns in (40, 300))
    long = [line for line in narrow if width_of(line) > 40]
    assert [line for line in long if " " in line.strip()] == []  # a single long word is not broken
    assert max(map(width_of, wide)) > 40
    assert " ".join(narrow).split() == " ".join(wide).split()
