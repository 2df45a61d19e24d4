"""scripts/quickstart: on a bare system it says what is missing; it leaves nothing and waits for no zombie."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from awaiting import PATIENCE, until
from fgsched.system.process import children

ROOT = Path(__file__).parent.parent
TOOLS = ("bash", "cat", "dirname", "env", "find", "grep", "id", "mkdir", "rm", "tail")


class Bare:
    """A PATH with little on it, and a copy of the script in a checkout without anything else."""

    def __init__(self, place):
        self.bin = place / "bin"
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.checkout = place / "checkout"
        (self.checkout / "scripts").mkdir(parents=True)
        for name in ("quickstart", "packages", "usage"):
            shutil.copy(ROOT / "scripts" / name, self.checkout / "scripts")

    def has(self, name, script):
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(f"#!/bin/bash\n{script}\n")
        (self.bin / name).chmod(0o755)

    def quickstart(self):
        done = subprocess.run(
            [self.checkout / "scripts" / "quickstart"],
            env={"PATH": str(self.bin)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1
        assert [path.name for path in self.checkout.iterdir()] == ["scripts"]
        return done.stderr


@pytest.fixture
def bare(tmp_path):
    return Bare(tmp_path)


def test_without_anything_it_names_every_package(bare):
    said = bare.quickstart()
    assert "Python 3.11 or newer (found: none)" in said
    assert "apt-get install python3 python3-venv python3-dev gcc libc6-dev\n" in said


def test_a_python_that_is_too_old_is_named(bare):
    bare.has("python3", 'case "$*" in -V) echo "Python 3.10.12" ;; *) exit 1 ;; esac')
    bare.has("gcc", "exit 0")
    said = bare.quickstart()
    assert "Python 3.11 or newer (found: Python 3.10.12)" in said
    assert "gcc" not in said


@pytest.mark.parametrize(
    ("lacks", "package"),
    [("ensurepip", "python3-venv"), ("Python.h", "python3-dev")],
    ids=["venv", "headers"],
)
def test_a_part_of_python_that_is_missing_is_named_with_its_package(bare, lacks, package):
    bare.has("python3", f'case "$*" in *{lacks}*) exit 1 ;; esac')
    bare.has("gcc", "exit 0")
    said = bare.quickstart()
    assert said.splitlines()[-1] == f"On Debian and Ubuntu: sudo apt-get install {package}"


@pytest.mark.parametrize(
    ("gcc", "packages"), [("", "gcc libc6-dev"), ("exit 1", "libc6-dev")], ids=["no gcc", "no headers"]
)
def test_a_missing_compiler_is_named_with_its_packages(bare, gcc, packages):
    bare.has("python3", "exit 0")
    if gcc:
        bare.has("gcc", gcc)
    assert bare.quickstart().splitlines()[-1] == f"On Debian and Ubuntu: sudo apt-get install {packages}"


def can_make_a_pid_namespace():
    made = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True)
    return made.returncode == 0


@pytest.mark.root
@pytest.mark.skipif(not can_make_a_pid_namespace(), reason="no pid namespace can be made here")
def test_it_ends_where_the_first_process_waits_for_no_child(tmp_path):
    keeper = subprocess.Popen(
        [
            "unshare",
            "--pid",
            "--fork",
            "--mount-proc",
            "sh",
            "-c",
            f"echo >{tmp_path}/up; exec sleep infinity",
        ]
    )
    try:
        until(tmp_path, lambda: (tmp_path / "up").exists())
        (first,) = children(keeper.pid)
        inside = ("nsenter", f"--target={first}", "--pid", "--mount", ROOT / "scripts" / "quickstart")
        done = subprocess.run(
            inside,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env=os.environ | {"FG_DEVICES": "sim:2x16G"},
        )
        assert (done.returncode, "all jobs completed" in done.stdout) == (0, True), done.stdout + done.stderr
        assert not (ROOT / ".quickstart").exists()
    finally:
        for pid in children(keeper.pid):
            os.kill(pid, signal.SIGKILL)
        keeper.wait(PATIENCE)


def test_as_root_it_installs_what_is_missing(bare):
    bare.has("id", "echo 0")
    bare.has("apt-get", f'echo "$@" >>{bare.bin}/said')
    bare.has("python3", "exit 0")
    bare.quickstart()
    assert (bare.bin / "said").read_text().splitlines() == [
        "update -qq",
        "install -qq -y --no-install-recommends gcc libc6-dev",
    ]
