"""Host memory: counted for every job, and held by a cgroup where the host lets us make one."""

import os
from pathlib import Path

import pytest

from builders import a_job
from fgsched.domain.job import Demand, Request
from fgsched.launch.launcher import Cgroups
from fgsched.system.cgroups import MemoryCgroup, find, probe, remove_if_empty
from live_host import living

HERE = probe()
EATS = "python3 -c 'x = bytearray(300 << 20)'"
needs_cgroup = pytest.mark.skipif(not HERE.kind, reason=f"no cgroup for memory can be made: {HERE.note}")


@pytest.mark.cgroup
@needs_cgroup
def test_a_job_that_takes_more_than_it_asked_for_is_out_of_memory(home):
    job = home.ended(EATS, demand={"cpus": 1, "host_memory": 50 << 20})
    record = home.job(job)
    assert (record["state"], record["reason"]) == ("OUT_OF_MEMORY", "OutOfMemory")


@pytest.mark.cgroup
@needs_cgroup
def test_a_job_that_stays_within_it_completes_and_its_cgroup_is_gone(home):
    job = home.ended(EATS, demand={"cpus": 1, "host_memory": 500 << 20})
    assert home.job(job)["state"] == "COMPLETED"
    queue = (home.paths.run / "claim").resolve().parent.name
    own = {
        "v1": HERE.root / f"fgsched-{job}.1-{queue}",
        "v2": HERE.root.with_name(f"fgsched-{queue}") / f"fgsched-{job}.1",
    }
    assert not own[HERE.kind].exists()


@pytest.mark.cgroup
@needs_cgroup
def test_jobs_of_two_controllers_with_the_same_id_have_cgroups_of_their_own():
    job = a_job(request=Request(name="x", demand=Demand(host_memory=50 << 20)))
    found = [find(f"{queue}-{os.getpid()}") for queue in ("one", "two")]
    places = [place for memory in found for place, _ in Cgroups(memory).of_job(job)]
    assert len(set(places)) == 2
    for memory in found if HERE.kind == "v2" else ():
        remove_if_empty(memory.root)


def test_memory_that_is_taken_is_not_given_out_again(tmp_path):
    with living(tmp_path / "home", config='[host]\ncpus = 64\nmemory = "1G"\n') as home:
        first = home.running(demand={"cpus": 1, "host_memory": 700 << 20})
        second = home.submit("true", demand={"cpus": 1, "host_memory": 400 << 20})
        waiting = home.job(second)
        assert (waiting["state"], home.why(second)) == (
            "PENDING",
            "needs 400M of host memory; 324M of 1024M is free",
        )
        home.client.ask("cancel", ids=[first])
        home.wait(second)
        assert home.job(second)["state"] == "COMPLETED"


def test_without_a_cgroup_nothing_is_promised():
    root = Path("/sys/fs/cgroup/here")
    assert MemoryCgroup("", root).of_job("x", 1) is None
    assert MemoryCgroup("v2", root).of_job("x", 5) == ("/sys/fs/cgroup/here/x", ("memory.max=5",))


@pytest.mark.parametrize(
    ("kind", "file", "settings"),
    [
        ("v2", "memory.swap.max", ("memory.max=5", "memory.swap.max=0")),
        ("v1", "memory.memsw.limit_in_bytes", ("memory.limit_in_bytes=5", "memory.memsw.limit_in_bytes=5")),
    ],
)
def test_a_job_above_its_limit_does_not_swap_instead(tmp_path, kind, file, settings):
    (tmp_path / file).touch()
    assert MemoryCgroup(kind, tmp_path).of_job("x", 5) == (str(tmp_path / "x"), settings)


def test_the_cgroup_below_which_the_driver_limits_jobs_is_removed_when_no_job_is_in_it(tmp_path):
    (devices := tmp_path / "devices").mkdir()
    Cgroups(MemoryCgroup("", tmp_path), devices).leave()
    assert not devices.exists()
