"""Whole sites in virtual time: whatever dies, whenever, no controller breaks a promise."""

import logging
import random
import sqlite3

import pytest

from faultydisk import FaultyDisk, why_not
from virtualworld import Weather, World

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
BUSY, QUIET = range(4), (101,)  # seeds
FAULTS = ("kills", "power cuts", "stops", "reboots", "disk errors", "disk full", "accountants killed")


@pytest.fixture(autouse=True)
def quiet():
    """Let the many controllers log nothing."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def lived(seed, directory, days, *, pace=1.0):
    directory.mkdir()
    with World(seed, directory, Weather().paced(pace)) as world:
        world.run(days)
        world.finish()
        return world


def test_no_promise_is_broken_in_any_of_these_histories(tmp_path):
    worlds = [lived(seed, tmp_path / str(seed), 2.0) for seed in BUSY]
    worlds += [lived(seed, tmp_path / str(seed), 40.0, pace=0.1) for seed in QUIET]
    assert [kind for kind in FAULTS if not any(world.counts[kind] for world in worlds)] == []
    assert sum(len(world.host.runs) for world in worlds) > 100


def test_one_seed_is_one_history(tmp_path):
    first, again, other = (lived(seed, tmp_path / name, 1.0) for seed, name in ((3, "a"), (3, "b"), (4, "c")))
    assert first.history == again.history != other.history
    assert first.counts == again.counts


def written(path, number):
    """Commit the next numbers until the power fails, and return the last committed one."""
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        try:
            db.execute("CREATE TABLE IF NOT EXISTS n (n)")
            for _ in range(20):
                db.execute("INSERT INTO n VALUES (?)", (number + 1,))
                number += 1
        except sqlite3.OperationalError:
            pass
    db.close()
    return number


def test_a_power_cut_loses_no_synchronised_write_and_can_lose_the_others(tmp_path):
    path, lost = tmp_path / "a.db", 0
    with FaultyDisk(tmp_path, random.Random(1)) as disk:
        last = written(path, 0)
        for calls in range(2, 38, 2):
            disk.arm(calls, "cut")
            last = written(path, last)
            disk.disarm()
            lost += len(disk.unsynced)
            disk.restore(is_power=True)
            with sqlite3.connect(path) as db:
                here = [row[0] for row in db.execute("SELECT n FROM n ORDER BY n")]
            db.close()
            assert here[:last] == list(range(1, last + 1))
            last = len(here)
    assert lost > 5, "the power was never cut between a write and its sync"
