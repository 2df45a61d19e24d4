"""scripts/pythons: each interpreter tests the last commit, also after a failure with another one."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
VERSION = platform.python_version()
TEST = """#!/bin/sh
"$PYTHON" -c 'print("warming up")'
echo "FAILED tests/test_a.py::test_b"
echo "$0 $*"
exit {status}
"""

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="there is no git")


@pytest.fixture
def checkout(tmp_path):
    """Return a function that makes a checkout whose tests end with a status."""

    def make(status: int) -> Path:
        place = tmp_path / "checkout"
        (place / "scripts").mkdir(parents=True)
        for name in ("pythons", "usage"):
            shutil.copy(SCRIPTS / name, place / "scripts")
        test = place / "scripts/test"
        test.write_text(TEST.format(status=status))
        test.chmod(0o755)
        for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "all")):
            git(place, *words)
        test.write_text("exit 7\n")  # is not committed, and not tested
        return place

    return make


def git(place: Path, *words: str) -> None:
    who = {"GIT_CONFIG_GLOBAL": "/dev/null"}
    for role in ("AUTHOR", "COMMITTER"):
        who |= {f"GIT_{role}_NAME": "ann", f"GIT_{role}_EMAIL": "ann@example.org"}
    subprocess.run(["git", *words], cwd=place, env=os.environ | who, check=True)


def pythons(place: Path, *words: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [place / "scripts/pythons", *words], capture_output=True, text=True, check=False, cwd="/"
    )
    return done.returncode, done.stdout.splitlines()


def test_each_interpreter_runs_the_tests_of_the_last_commit(checkout):
    place = checkout(0)
    line = f"Python {VERSION}: build/pythons/{VERSION}/scripts/test -k x"
    assert pythons(place, sys.executable, sys.executable, "--", "-k", "x") == (0, [line, line])
    assert [one.name for one in (place / "build/pythons").iterdir()] == [f"{VERSION}.log"]


def test_failures_are_listed_and_the_clone_stays(checkout):
    place = checkout(1)
    status, lines = pythons(place, "/no/python", sys.executable)
    log = f"build/pythons/{VERSION}.log"
    assert (status, lines) == (
        1,
        [f"Python {VERSION}: failed, see {log}", "FAILED tests/test_a.py::test_b"],
    )
    assert (place / log).read_text().startswith("warming up\n")
    assert (place / "build/pythons" / VERSION / "scripts/test").exists()


def test_without_an_interpreter_nothing_is_run(checkout):
    assert pythons(checkout(0)) == (2, [])
