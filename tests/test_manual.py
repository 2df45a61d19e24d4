"""The manual and --help tell the truth, and all of it."""

import importlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import pytest

from fgsched.config.keys import KEYS
from fgsched.domain.errors import Exit
from fgsched.domain.states import JobState, Reason
from fgsched.views.fields import ACCOUNTS, COLUMNS

ROOT = Path(__file__).parent.parent
MAN = ROOT / "man"
PAGES = sorted(path.name for path in MAN.glob("*.[1-9]"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMMANDS = {name: f"fgsched.cli.{name}:main" for name in PYPROJECT["tool"]["fgsched"]["native-commands"]}
SECTIONS = ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "EXAMPLES", "SEE ALSO"]
HELP_OPTIONS = {"--help"}  # click's own
OPTION = re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]*)")
WORD = re.compile(r'"([^"]*)"|(\S+)')

every_command = pytest.mark.parametrize("command", COMMANDS)


def page_of(command: str) -> str:
    """Commands of the administrator are in section 8."""
    return f"{command}.8" if (MAN / f"{command}.8").exists() else f"{command}.1"


def source(page: str) -> str:
    """A page without its comments, with plain hyphens and no fonts."""
    text = (MAN / page).read_text().replace("\\-", "-")
    text = re.sub(r"^[.'\\]*\\\".*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\\f(\[\w*\]|\w)|\\&", "", text)


def section(text: str, name: str) -> str:
    """What stands below a heading; '' if there is no such heading."""
    found = re.search(rf'^\.SH "?{name}"?$(.*?)(?=^\.SH|\Z)', text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def plain(markup: str) -> str:
    """The words of a piece of markup."""
    lines = []
    for line in markup.splitlines():
        macro, _, words = line.partition(" ")
        if macro in (".BR", ".RB", ".IR", ".RI", ".BI", ".IB"):
            lines.append("".join(quoted or bare for quoted, bare in WORD.findall(words)))
        elif macro in (".B", ".I"):
            lines.append(words.strip('"'))
        elif not line.startswith("."):
            lines.append(line)
    return " ".join(" ".join(lines).split())


def command_of(name: str) -> click.Command:
    module = importlib.import_module(f"fgsched.cli.{name}")
    command = getattr(module, name)
    assert isinstance(command, click.Command)
    return command


def options(command: click.Command) -> Iterator[str]:
    """Every spelling of every option, of subcommands too."""
    for param in command.params:
        if isinstance(param, click.Option):
            yield from (*param.opts, *param.secondary_opts)
    for below in getattr(command, "commands", {}).values():
        yield from options(below)


def told(page: str) -> set[str]:
    """The options that a page explains: those in the tags of its lists."""
    lines = source(page).splitlines()
    tags = [line for before, line in pairwise(lines) if before.startswith((".TP", ".TQ"))]
    return {option for tag in tags for option in OPTION.findall(tag.replace('"', ""))}


@every_command
def test_every_command_of_the_project_is_there(command):
    module, _, function = COMMANDS[command].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert (MAN / page_of(command)).exists()


@every_command
def test_every_option_is_in_the_manual(command):
    missing = set(options(command_of(command))) - set(OPTION.findall(source(page_of(command))))
    assert not missing, f"man/{page_of(command)} does not tell of {sorted(missing)}"


@every_command
def test_every_option_of_the_manual_exists(command):
    unknown = told(page_of(command)) - set(options(command_of(command))) - HELP_OPTIONS
    assert not unknown, f"man/{page_of(command)} tells of {sorted(unknown)}"


@every_command
def test_every_subcommand_is_in_the_manual(command):
    text = source(page_of(command))
    for name in getattr(command_of(command), "commands", {}):
        assert re.search(rf"\b{name}\b", text), f"man/{page_of(command)} does not tell of {name}"


@every_command
def test_a_page_has_the_sections_that_readers_look_for(command):
    text = source(page_of(command))
    own = "COMMANDS" if hasattr(command_of(command), "commands") else "OPTIONS"
    assert [name for name in [*SECTIONS, own] if not section(text, name).strip()] == []


@every_command
def test_the_manual_begins_as_the_help_does(command):
    first = (command_of(command).help or "").splitlines()[0]
    assert len(first) <= 72
    assert plain(section(source(page_of(command)), "DESCRIPTION")).startswith(first.rstrip("."))


@every_command
def test_the_help_fits_on_a_screen_and_names_the_manual(command):
    module = f"fgsched.cli.{command}"
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    lines = done.stdout.splitlines()
    assert len(lines) <= 25
    assert f"man {command}" in lines[-1]
    assert [line for line in lines if line.endswith("...") and "Usage:" not in line] == [], "cut off"


def test_the_help_of_fgrun_tells_its_own_defaults():
    helps = {param.name: getattr(param, "help", None) for param in command_of("fgrun").params}
    assert [helps[name] for name in ("job_name", "output", "error", "input")] == [
        "Job name; default: the command's name.",
        "Standard output; default: that of fgrun.",
        "Standard error; default: that of fgrun.",
        "Standard input; default: that of fgrun.",
    ]


@pytest.mark.parametrize("state", JobState, ids=lambda state: state.name)
def test_every_state_of_a_job_is_in_the_manual(state):
    states = plain(section(source("fgq.1"), "JOB STATES")).split()
    assert {state.value, state.code} <= {word.strip("(),.") for word in states}


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_every_reason_is_in_the_manual(reason):
    assert reason.value in plain(section(source("fgq.1"), "REASONS")).split()


@pytest.mark.parametrize("code", Exit, ids=lambda code: code.name)
def test_every_exit_code_is_in_the_manual(code):
    assert str(int(code)) in plain(section(source("fgq.1"), "EXIT STATUS")).split()


def test_every_setting_is_in_the_manual():
    text = source("fgsched.toml.5")
    for key in KEYS.values():
        assert re.search(rf"\b{key.name}\b", section(text, "SETTINGS")), f"{key.table}.{key.name}"
        assert f"[{key.table}]" in text


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("fgacct.1", [column.heading for column in ACCOUNTS]),
        ("fgq.1", [name for column in COLUMNS for name in column.names]),
    ],
)
def test_every_field_is_in_the_manual(page, names):
    text = source(page)
    told = {word.lower() for word in re.findall(r"[\w-]+", text)}
    assert {name.lower() for name in names} <= told


def examples(page: str) -> list[list[str]]:
    """The commands of the examples of a page, in words."""
    shown = "".join(
        re.findall(r"^\.nf$(.*?)^\.fi$", section(source(page), "EXAMPLES"), re.MULTILINE | re.DOTALL)
    )
    calls = re.findall(rf"(?<![\w.])(?:{'|'.join(COMMANDS)}) [^|;&<>()\n]*", shown)
    return [shlex.split(call) for call in calls]


@every_command
def test_every_example_of_a_page_is_understood(command):
    found = examples(page_of(command))
    assert found
    for name, *words in found:
        command_of(name).make_context(name, words, resilient_parsing=False)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_refers_only_to_pages_that_there_are(page):
    named = {f"{name}.{part}" for name, part in re.findall(r"\b(fg[\w.]+) ?\((\d)\)", source(page))}
    assert named <= set(PAGES)


@pytest.mark.groff
@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff")
@pytest.mark.parametrize("page", PAGES)
def test_groff_has_nothing_to_say_of_a_page(page):
    done = subprocess.run(["groff", "-man", "-ww", "-z", MAN / page], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
