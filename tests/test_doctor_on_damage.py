"""`fgsched doctor` examines damaged files of the queue and the accounts, and never fails itself."""

import os
import random
import shutil
from datetime import UTC
from pathlib import Path

import pytest

from endedjobs import changed
from fgsched.accounting.accountant import Accountant
from fgsched.cli import doctor
from fgsched.domain.errors import FgschedError
from fgsched.store import Store
from fgsched.system.paths import Paths
from test_accountant import CARD, JOB, KEEP, batch, minute
from test_sums import submit

PAGE = 4096
CHECKS = (doctor._queue, doctor._accounts, doctor._private, doctor._space)
NOBODY = doctor._Seen(None, "", frozenset(), "no controller runs")


@pytest.fixture
def paths(tmp_path):
    """The files of a killed controller and accountant, with logs."""
    paths = Paths.find({"FG_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}, os.geteuid())
    paths.queue.parent.mkdir(parents=True)
    Store(paths.queue).close()
    store, accountant = Store(paths.queue), Accountant(paths.accounts, UTC, KEEP)
    for number in range(1, 9):
        submit(store, number, 3)
        accountant.answer(batch(CARD, changed(JOB, id=number), minute(60 * number)), 1.0)
    shutil.copytree(paths.queue.parent, tmp_path / "kept")
    store.close()
    accountant.close()
    return paths


def damaged(data: bytearray, draw: random.Random) -> bytearray:
    """Return the content of a file after something has happened to it."""
    at = draw.randrange(len(data) + 1)
    kind = draw.choice(["flip", "cut", "page", "text", "empty"])
    if kind == "flip" and at < len(data):
        data[at] ^= 1 << draw.randrange(8)
    elif kind == "page":
        data[at : at + PAGE] = draw.choice([bytes(PAGE), draw.randbytes(PAGE)])
    return {"cut": data[:at], "text": bytearray(draw.randbytes(60)), "empty": bytearray()}.get(kind, data)


@pytest.mark.parametrize("seed", range(25))
def test_each_check_of_doctor_ends_with_words_whatever_is_damaged(paths, tmp_path, seed):
    draw, state, kept = random.Random(seed), paths.queue.parent, tmp_path / "kept"
    shutil.rmtree(state)
    shutil.copytree(kept, state)
    files = sorted(file for file in state.iterdir() if file.is_file())
    for file in draw.sample(files, draw.choice([1, 1, 2, 3])):
        spoil(file, draw)
    for check in CHECKS:
        try:
            finding = check(paths, NOBODY)
        except (FgschedError, OSError):  # `examine` shows these
            continue
        assert "internal error" not in str(finding)


def spoil(file: Path, draw: random.Random) -> None:
    if draw.random() < 0.15:
        file.unlink()
    else:
        file.write_bytes(damaged(bytearray(file.read_bytes()), draw))
