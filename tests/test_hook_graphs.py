"""The hook on graph memory: taken at the launch, kept until it is trimmed."""

import pytest

pytestmark = pytest.mark.compiler
MIB, GIB = 1 << 20, 1 << 30
OK, OOM = 0, 2
FREE, FULL = (OK, GIB, GIB), (OK, 0, GIB)
TWINS = {"FAKEJOB_VIA": "lookup", "FAKEJOB_TWINS": "1"}
WAYS = [{}, {"FAKEJOB_VIA": "lookup"}, TWINS]
ids = {"ids": ["dlsym", "look-up", "twins"]}


def graph(size, at=0):
    """A graph that takes memory and gives it back: things at, at + 1, and at + 2, which is instantiated."""
    return ["stream", "capture", f"async {size}", f"afree {at}", "graph", f"instantiate {at + 1}"]


@pytest.mark.parametrize("way", WAYS, **ids)
def test_a_graph_is_charged_when_it_is_launched_and_until_it_is_trimmed(job, driver, way):
    said = job.run(*graph("1G"), "info", "launch 2", "info", "sync", "info", "trim-graphs", "info", **way)
    assert said[6:] == [FREE, (OK,), FULL, (OK,), FULL, (OK,), FREE]
    assert driver.high()[0] == GIB


@pytest.mark.parametrize("way", WAYS, **ids)
def test_a_graph_that_takes_more_than_is_left_is_refused_at_its_launch(job, driver, way):
    said = job.run(*graph("512M"), "alloc 768M", "launch 2", "upload 2", "free 3", "launch 2", "info", **way)
    assert said[6:] == [(OK,), (OOM,), (OOM,), (OK,), (OK,), (OK, GIB // 2, GIB)]
    assert driver.high()[0] <= GIB
    assert job.region().gpus[0].refusals == 2


@pytest.mark.parametrize("way", WAYS, **ids)
def test_an_upload_takes_the_memory_of_a_launch(job, way):
    said = job.run(*graph("512M"), "upload 2", "info", "launch 2", "info", **way)
    assert said[6:] == [(OK,), (OK, GIB // 2, GIB), (OK,), (OK, GIB // 2, GIB)]


def test_a_graph_that_is_uploaded_as_it_is_instantiated_can_be_refused(job, driver):
    commands = [
        "stream",
        "capture",
        "async 512M",
        "afree 0",
        "graph",
        "alloc 768M",
        "instantiate-with 1 2",
        "info",
    ]
    assert job.run(*commands)[5:] == [(OK,), (OOM,), (OK, 256 * MIB, GIB)]
    assert job.run(*commands[:5], "instantiate-with 1 2", "info")[5:] == [(OK,), (OK, GIB // 2, GIB)]
    assert driver.high()[0] <= GIB


def test_graphs_on_one_stream_share_their_memory(job):
    """Each alone takes more than half of the limit, and one runs behind the other."""
    said = job.run(*graph("768M"), *graph("768M", 3)[1:], "launch 2", "launch 5", "launch 2", "info")
    assert [status for status, *_ in said[-4:]] == [OK] * 4
    assert said[-1] == (OK, 256 * MIB, GIB)


def test_graphs_side_by_side_have_their_own(job, driver):
    said = job.run(*graph("640M"), "launch 2", "stream", "launch 2", "sync-all", "launch 2", "info")
    assert [status for status, *_ in said[6:]] == [OK, OK, OOM, OK, OK, OK]
    assert driver.high()[0] <= GIB


def test_memory_that_graphs_only_keep_is_given_up_before_a_refusal(job):
    said = job.run(*graph("1G"), "launch 2", "sync", "alloc 1G", "free 3", "async 1G")
    assert [status for status, *_ in said[6:]] == [OK] * 5


def test_what_a_graph_leaves_behind_is_charged_until_it_is_freed(job, driver):
    commands = [
        "stream",
        "capture",
        "async 512M",
        "graph",
        "instantiate 1",
        "launch 2",
        "sync",
        "trim-graphs",
    ]
    said = job.run(*commands, "info", "alloc 768M", "afree 0", "sync", "trim-graphs", "info", "alloc 1G")
    assert said[8:] == [(OK, GIB // 2, GIB), (OOM,), (OK,), (OK,), (OK,), FREE, (OK,)]
    assert driver.high()[0] <= GIB


def test_graphs_that_leave_memory_behind_are_counted_one_by_one(job, driver):
    one = ["capture", "async 512M", "graph"]
    said = job.run(
        "stream",
        *one,
        "instantiate 1",
        *one,
        "instantiate 4",
        *one,
        "instantiate 7",
        *map("launch {}".format, (2, 5, 8)),
    )
    assert [status for status, *_ in said[-3:]] == [OK, OK, OOM]
    assert driver.high()[0] <= GIB


def test_the_memory_of_a_graph_within_a_graph_counts(job, driver):
    said = job.run(
        "stream",
        "capture",
        "async 768M",
        "afree 0",
        "graph",
        "within 1",
        "instantiate 2",
        "alloc 512M",
        "launch 3",
    )
    assert [status for status, *_ in said[-3:]] == [OK, OK, OOM]
    assert driver.high()[0] <= GIB


def test_a_destroyed_graph_is_forgotten(job):
    said = job.run(*graph("512M"), "launch 2", "exec-end 2", "sync", "trim-graphs", "info", "exec-end 2")
    assert said[6:] == [(OK,), (OK,), (OK,), (OK,), FREE, (400,)]


def test_a_recording_that_is_never_launched_takes_nothing(job):
    said = job.run("stream", "capture", "async 4G", "graph", "instantiate 1", "info", "launch 2", "info")
    assert [status for status, *_ in said] == [OK, OK, OK, OK, OK, OK, OOM, OK]
    assert said[-1] == FREE
