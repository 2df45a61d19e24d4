"""What the commands that are called most import beside click and msgspec: each module delays their start."""

import os
import subprocess
import sys

import pytest

from fgsched.domain.errors import Exit

# What a client of a socket needs, in Python's own library; selectors imports math.
SOCKET = {"array", "pwd", "select", "selectors", "signal", "socket", "struct", "gc", "locale", "fcntl"}
SOCKET |= {"math"}
ALLOWED = {
    "fgsub": {"fgsub", "command"},
    "fgq": {"fgq", "command"},
    "fgctl": {"fgctl", "command", "reservation", "show"},
}
OF_THE_LIBRARY = {"fgsub": {"resource", "hashlib"}, "fgq": set(), "fgctl": set()}


def modules(program: str) -> set[str]:
    command = [sys.executable, "-c", f"{program}; import sys; print(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.fixture(scope="module")
def usual() -> set[str]:
    """What click and msgspec import."""
    return modules("import click, msgspec")


@pytest.mark.parametrize("command", ALLOWED)
def test_a_command_imports_no_other_module_of_the_commands(command):
    prefix = "fgsched.cli."
    names = modules(f"import fgsched.cli.{command}")
    assert {name.removeprefix(prefix) for name in names if name.startswith(prefix)} <= ALLOWED[command]


@pytest.mark.parametrize("command", ALLOWED)
def test_a_command_imports_little_of_pythons_own_library(command, usual):
    found = {
        name for name in modules(f"import fgsched.cli.{command}") - usual if not name.startswith("fgsched")
    }
    public = {name for name in found if not name.startswith("_") and "." not in name}
    assert public <= SOCKET | OF_THE_LIBRARY[command]


# For lines that the controller does not read, and for the files of jobs: half a millisecond or more each.
SELDOM = (
    "fgsched.gpus",
    "fgsched.submission.prepare",
    "fgsched.lifecycle.launchspec",
    "fgsched.lifecycle.mps",
)


@pytest.mark.parametrize("command", ALLOWED)
def test_a_command_imports_nothing_that_it_seldom_needs(command):
    assert not [name for name in modules(f"import fgsched.cli.{command}") if name.startswith(SELDOM)]


def test_to_stop_a_controller_neither_settings_nor_the_queue_are_imported():
    names = modules("import fgsched.cli.fgsched, fgsched.cli.stopping")
    assert not {
        name for name in names if name.startswith(("fgsched.config", "fgsched.store", "fgsched.launch"))
    }


# An idle controller does without them; each would take 0.1 to 0.9 MiB.
UNNEEDED = {
    *("dataclasses", "inspect", "typing_extensions", "importlib.resources", "zipfile", "tempfile", "shutil"),
    *("random", "secrets", "hashlib", "ssl", "difflib", "email", "http", "argparse", "jinja2", "pynvml"),
    *("fgsched.reports.facts", "fgsched.reports.registry", "fgsched.accounting.backup"),
}


def test_the_controller_imports_nothing_that_an_idle_one_does_not_need():
    before = modules("pass")
    assert not (modules("import fgsched.controller.__main__") - before) & UNNEEDED


def test_a_package_that_msgspec_could_import_is_not_hidden_from_other_modules():
    assert "typing_extensions" in modules("import fgsched.controller, typing_extensions")


def test_the_controller_does_not_load_openssl_for_its_lock(tmp_path):
    program = (
        "from fgsched.controller.__main__ import main; print(main()); "
        "import filelock; print('libcrypto' in open('/proc/self/maps').read())"
    )
    (tmp_path / "fgsched.toml").write_text("no settings")
    environ = os.environ | {"FG_HOME": str(tmp_path), "FGSCHED_CONFIG": str(tmp_path / "fgsched.toml")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == [str(int(Exit.USAGE)), "False"]
