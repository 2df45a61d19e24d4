"""A GPU in virtual time, whose jobs take turns by the very code of hook and arbiter."""

import subprocess

import pytest


@pytest.fixture
def take_turns(built_driver):
    """take_turns(seconds, word or job, …) -> (parts of each 100 ms, [(p50, p99) of requests in ms])."""

    def run(seconds, *words):
        command = [built_driver.turnsim, str(seconds), *words]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        rows = [line for line in said if not line.startswith("requests")]
        late = [tuple(int(word) / 1000 for word in line.split()[2:]) for line in said[len(rows) :]]
        return [[int(word) / 1e8 for word in line.split()] for line in rows], late

    return run


def windows(rows, job, *, skip=2, length=10):
    """What a job had of the card in each window of so many seconds, after the first `skip`."""
    had = [row[job] for row in rows[skip * 10 :]]
    step = length * 10
    return [sum(had[at : at + step]) / step for at in range(0, len(had) - step + 1, step)]


def mean(figures):
    return sum(figures) / len(figures)
