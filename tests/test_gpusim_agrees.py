"""Two simulators of a shared GPU, written apart from each other, give jobs the same time."""

import subprocess
from statistics import mean

import pytest

from gpusim import Simulator
from gpusim.mixes import MIXES, PROCESSES

pytestmark = pytest.mark.compiler

COMMON = {"wait": "sync", "pause": "pause", "tail": "tail", "streams": "streams", "rate": "rate"}
FIRST = 20  # rows of 0.1 s that are not counted


@pytest.fixture(scope="module")
def simulator(tmp_path_factory):
    return Simulator.build(tmp_path_factory.mktemp("gpusim"))


def translated(job):
    """A job of gpusim in the words of turnsim; None: turnsim has no such job."""
    keys = dict(word.split("=") if "=" in word else (word, "") for word in job.split(","))
    if keys.keys() & {"copy", "on"}:
        return None
    policy = "fair" if "fair" in keys else "hard"
    kernel = float(keys["kernel"]) * float(keys.get("graph", 1))  # a graph is a kernel of its length
    words = [f"{float(keys['share']) * 100:.0f}", policy, keys.get("processes", "1"), f"{kernel:.0f}"]
    words += [f"{name}={keys[key]}" for key, name in COMMON.items() if key in keys]
    if "width" in keys:
        words.append(f"width={float(keys['width']) * 100:.0f}")
    if "launch" in keys and "graph" not in keys:
        words.append(f"gap={keys['launch']}")
    if keys.get("wait") == "1":
        words.append("gap=4")  # its wait takes 4 us less: a job alone has the same part of the GPU then
    return ",".join(words)


def by_turnsim(program, jobs, seconds, *options):
    """Per cent of the GPU's time that jobs had."""
    if any("rate=" in job for job in jobs):
        options = *options, "late"  # as in gpusim: requests come at random times, and every wake is late
    words = [program, str(seconds), *options, *map(translated, jobs)]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [list(map(int, line.split())) for line in said if not line.startswith("requests")]
    return [mean(column) / 1e6 for column in zip(*rows[FIRST:], strict=True)]


ALIKE = [name for name, mix in MIXES.items() if None not in map(translated, mix.jobs)]
ALWAYS_AT_WORK = [name for name in ALIKE if MIXES[name].points is not None]
LATE = {"late": 200, "very_often": 0.05, "very_late": 4000}
SO_LATE = ("late", "sleeps=200", "very_often=5", "very_late=4000")


@pytest.mark.parametrize("name", ALIKE)
def test_both_simulators_give_unpaced_jobs_the_same_time(simulator, built_driver, name):
    mix = MIXES[name]
    expected = by_turnsim(built_driver.turnsim, mix.jobs, max(14, mix.seconds), "none")
    found = simulator.outcome(mix, range(2), seconds=max(14, mix.seconds)).gpu
    assert found == pytest.approx(expected, abs=1.5)


@pytest.mark.parametrize("name", ALIKE)
def test_both_simulators_give_jobs_in_turns_the_same_time(simulator, built_driver, name):
    mix = MIXES[name]
    expected = by_turnsim(built_driver.turnsim, mix.jobs, max(14, mix.seconds))
    found = simulator.outcome(mix, range(2), turns=1, seconds=max(14, mix.seconds)).gpu
    assert found == pytest.approx(expected, abs=3)


@pytest.mark.parametrize("name", ALWAYS_AT_WORK)
def test_both_simulators_give_jobs_the_same_time_on_a_host_that_wakes_threads_very_late(
    simulator, built_driver, name
):
    mix = MIXES[name]
    expected = by_turnsim(built_driver.turnsim, mix.jobs, max(14, mix.seconds), *SO_LATE)
    found = simulator.outcome(mix, range(2), turns=1, seconds=max(14, mix.seconds), **LATE).gpu
    assert found == pytest.approx(expected, abs=5 if name in PROCESSES else 3)
