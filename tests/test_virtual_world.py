"""Whole sites in virtual time: whatever dies, whenever, no controller breaks a promise."""

import logging

import pytest

from faultydisk import why_not
from virtualworld import World

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
SEEDS = range(8)
DAYS = 2.0


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Let the many controllers log nothing."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def lived(seed, directory, days=DAYS, **more):
    directory.mkdir()
    with World(seed, directory, **more) as world:
        world.run(days)
        world.finish()
        return world


def test_no_promise_is_broken_in_any_of_these_histories(tmp_path):
    worlds = [lived(seed, tmp_path / str(seed)) for seed in SEEDS]
    for kind in ("kills", "power cuts", "stops", "reboots", "disk errors", "disk full", "accountants killed"):
        assert any(world.counts[kind] for world in worlds), f"no history has {kind}"
    assert sum(len(world.host.runs) for world in worlds) > 100


def test_one_seed_is_one_history(tmp_path):
    first, again, other = (lived(seed, tmp_path / name, 1.0) for seed, name in ((3, "a"), (3, "b"), (4, "c")))
    assert first.history == again.history != other.history
    assert first.counts == again.counts
