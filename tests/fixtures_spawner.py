"""Marks and fixtures: a spawner, and gates by which its jobs tell how far they are or are let go on."""

import pytest

from fgshim import spawner as program
from spawner_driver import Gate, spawning

NEEDS_SPAWNER = [
    pytest.mark.compiler,
    pytest.mark.skipif(not program().exists(), reason="fgspawn is not built"),
]


@pytest.fixture
def spawner(tmp_path):
    with spawning(tmp_path) as one:
        yield one


@pytest.fixture
def gate(tmp_path):
    return Gate(tmp_path / "gate")


@pytest.fixture
def go(tmp_path):
    return Gate(tmp_path / "go")
