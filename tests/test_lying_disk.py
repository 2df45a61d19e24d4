"""A disk whose sync fails once and then lies: real processes lose nothing acknowledged with the power."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fgsched.store import Store
from live_host import ROOT

pytestmark = pytest.mark.compiler
PROGRAM = """
import os, sys
from pathlib import Path
sys.path.append("tests")
from fgsched.store import StorageBroken, Store
from test_sums import submit
store = Store(Path(sys.argv[1]))
for number in map(int, sys.argv[3:]):
    submit(store, number)
if sys.argv[2]:
    Path(sys.argv[2]).touch()
    try:
        submit(store, 99)
    except StorageBroken:
        os._exit(6)
os._exit(0)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("library") / "lyingdisk.so"
    source = ROOT / "tests" / "lyingdisk.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-o", path, source], check=True)
    return path


@pytest.fixture
def controller(tmp_path, library):
    """Run a process that opens the queue, submits jobs, perhaps fails to store another one, and is gone."""
    for name in ("queue", "disk"):
        (tmp_path / name).mkdir()
    places = {"LYING_OF": str(tmp_path / "queue"), "LYING_DISK": str(tmp_path / "disk")}
    environment = os.environ | places | {"LD_PRELOAD": str(library)}

    def run(*keys: int, fails: bool = False) -> int:
        trigger = str(tmp_path / "disk" / "fail") if fails else ""
        words = [
            sys.executable,
            "-c",
            PROGRAM,
            str(tmp_path / "queue" / "queue.db"),
            trigger,
            *map(str, keys),
        ]
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 6), done.stderr
        return done.returncode

    return run


def cut(directory: Path, shadows: Path) -> None:
    """Let the files have what the disk has."""
    for file in [one for one in directory.iterdir() if one.is_file()]:
        shadow = shadows / str(file.stat().st_ino)
        if shadow.exists():
            file.write_bytes(shadow.read_bytes())


def test_a_commit_behind_one_whose_sync_failed_survives_a_loss_of_power(tmp_path, controller):
    assert controller(1) == 0
    assert controller(fails=True) == 6
    assert controller(3) == 0
    assert controller(4) == 0
    cut(tmp_path / "queue", tmp_path / "disk")
    store = Store(tmp_path / "queue" / "queue.db")
    assert store.last_id() == 4  # 1, 3 and 4, and the one that was not acknowledged
    store.close()
