"""The pages name only options, settings, variables, reasons and messages that exist."""

import re
import shlex

import pytest

from fgsched.config import keys
from fgsched.domain.states import JobState, Reason
from fgsched.submission.table import BY_NAME
from pagecommands import OURS, ROOT, command_of, lines, pages, reason
from test_manual import command_of as click_command_of
from test_manual import options

MARKDOWN = {path.name: path.read_text() for path in pages() if path.suffix == ".md"}
SOURCES = "\n".join(
    path.read_text(errors="replace")
    for folder in ("fgsched", "fgshim", "scripts")
    for path in ROOT.glob(f"{folder}/**/*")
    if path.suffix in (".py", ".c", ".h", ".pyx", ".pxi", ".pxd", ".sh", "")
    and path.is_file()
    and "__pycache__" not in str(path)
)
JOINED = re.sub(r'"\s*\n\s*f?"', "", SOURCES)  # texts that are written on two lines
TROUBLE = MARKDOWN["troubleshooting.md"]
LAUNCHING = ("fgsub", "fgrun", "fgfence")  # the words after a program or a script are its own

every_page = pytest.mark.parametrize("page", MARKDOWN)


def spelled_options(line):
    """The long options of a command line, without those of the program that it runs."""
    whole = re.sub(r"\$\(.*?\)", "", line.partition("|")[0])
    command, words = command_of(whole), shlex.split(whole, comments=True)
    for word in words:
        if command in LAUNCHING and re.search(r"\.(sh|py|sbatch)$|^(python3?|jupyter|nvidia-smi)$", word):
            return
        if match := re.match(r"--[a-z][\w-]*", word):
            yield match[0]


def test_pages_have_command_lines_and_most_of_them_are_run():
    found = lines()
    run = [line for line in found if not reason(line.text)]
    assert len(found) > 150
    assert len(run) > len(found) / 2
    assert len({line.text for line in found}) == len(found)


def test_each_option_of_a_command_line_exists():
    known = {name: {*options(click_command_of(name)), "--help", "--version"} for name in OURS}
    unknown = [
        (line.page, line.text, option)
        for line in lines()
        if (command := command_of(line.text)) in OURS and "placeholders" not in reason(line.text)
        for option in spelled_options(line.text)
        if option not in known[command]
    ]
    assert unknown == []


@every_page
def test_each_setting_of_a_page_exists(page):
    settings = {key.name for key in keys.KEYS.values()} | {
        name for table in keys.SECTIONS.values() for name in table
    }
    spans = re.findall(r"`(?:\w+\.\w+\.)?([a-z][a-z_]+) = [^`]*`", MARKDOWN[page])
    assert [name for name in spans if name not in settings] == []


def test_each_variable_of_a_page_exists():
    options_of_fgsub = {f"FGSUB_{name.upper().replace('-', '_')}" for name in BY_NAME} | {"FGSUB_TIMELIMIT"}
    texts = {path.name: path.read_text().replace("\\-", "-") for path in pages()}
    named = {
        (page, name)
        for page, text in texts.items()
        for name in re.findall(r"\bFG(?:SUB|SCHED)?_[A-Z_]*[A-Z]\b", text)
    }
    made = re.compile(
        r"FG_GRES_\w+|FG_ARRAY_(JOB_ID|TASK_(ID|COUNT|MIN|MAX|STEP))"
    )  # their names are put together
    assert [
        one
        for one in sorted(named)
        if one[1] not in options_of_fgsub and one[1] not in SOURCES and not made.fullmatch(one[1])
    ] == []


def test_each_reason_and_state_of_the_tables_exists():
    known = (
        {reason.value for reason in Reason}
        | {state.value for state in JobState}
        | {state.name for state in JobState}
    )
    rows = re.findall(r"^\| ([A-Z][A-Za-z_, ]*?)(?:[:|,] ?[a-z`/].*?)? \|", TROUBLE, re.MULTILINE)
    words = {
        word
        for row in rows
        for word in re.split(r", ", row)
        if re.fullmatch(r"[A-Z][a-z]+[A-Z]\w+|[A-Z]+_?[A-Z]+", word)
    }
    assert len(words) > 15
    assert sorted(words - {word.upper() for word in known} - known) == []


OF_THE_SYSTEM = {"database or disk is full", "No space left on device"}  # what SQLite and the kernel say


def test_each_message_of_the_troubleshooting_page_is_a_message_of_the_program():
    rows = TROUBLE.partition("## Commands fail")[2].partition("\n## ")[0]
    quoted = re.findall(r"^\|[^|\n]*?`([^`]+)`", rows, re.MULTILINE)
    pieces = [piece.strip(" :") for text in quoted for piece in re.split(r"…|: | \(.*?\)", text)]
    parts = [piece for piece in pieces if len(piece) > 8 and piece not in OF_THE_SYSTEM]
    assert len(parts) > 5
    assert [part for part in parts if part not in JOINED] == []
