"""fgspawn and the cgroups of a job, of either version; and what the region tells in the end."""

import errno
import os
import struct
from pathlib import Path

import pytest

from fixtures_spawner import NEEDS_SPAWNER
from hierarchies import NEEDS_UNIFIED, UNIFIED, usable
from spawner_driver import Gate, is_gone, spawning

pytestmark = NEEDS_SPAWNER
PATH = {"PATH": os.environ["PATH"]}
MEMORY = usable("memory")
PIDS = usable("pids")
needs_memory = [
    pytest.mark.cgroup,
    pytest.mark.skipif(MEMORY is None, reason="no writable memory cgroup (v1)"),
]


def group(hierarchy: Path) -> str:
    return str(hierarchy / f"fg-test-{os.getpid()}")


@pytest.mark.parametrize(
    "hierarchy", [pytest.param(MEMORY, marks=needs_memory), pytest.param(UNIFIED, marks=NEEDS_UNIFIED)]
)
def test_a_job_runs_in_its_cgroup_which_ends_with_it(spawner, hierarchy):
    directory = group(hierarchy)
    job = spawner.launch("#!/bin/sh\ncat /proc/self/cgroup\n", env=PATH, cgroups=((directory, ()),))
    assert job.result().exit_code == 0
    assert f"/{Path(directory).name}\n" in job.output()
    assert not Path(directory).exists()


@pytest.mark.parametrize(
    "hierarchy", [pytest.param(MEMORY, marks=needs_memory), pytest.param(UNIFIED, marks=NEEDS_UNIFIED)]
)
def test_jobs_can_read_their_cgroup_whatever_the_umask_of_the_controller(tmp_path, hierarchy):
    with spawning(tmp_path, before=("sh", "-c", 'umask 077; exec "$@"', "sh")) as spawner:
        directory = group(hierarchy)
        job = spawner.launch(f"#!/bin/sh\nstat -c %a {directory}\n", env=PATH, cgroups=((directory, ()),))
        assert (job.result().exit_code, job.output()) == (0, "755\n")


@pytest.mark.cgroup
@pytest.mark.skipif(MEMORY is None, reason="no writable memory cgroup (v1)")
def test_a_kill_for_want_of_memory_is_counted(spawner):
    script = "#!/usr/bin/env python3\nblock = bytearray(200 << 20)\n"
    limit = ("memory.limit_in_bytes=33554432",)
    result = spawner.launch(script, env=PATH, cgroups=((group(MEMORY), limit),)).result()
    assert (result.exit_code, result.oom_kills) == (-9, 1)


@pytest.mark.cgroup
@pytest.mark.skipif(MEMORY is None, reason="no writable memory cgroup (v1)")
def test_a_child_that_the_kernel_killed_for_memory_is_counted_and_named_in_the_output(spawner):
    script = "#!/bin/sh\npython3 -c 'block = bytearray(200 << 20)'\nexit 0\n"
    limit = ("memory.limit_in_bytes=33554432",)
    job = spawner.launch(script, env=PATH, cgroups=((group(MEMORY), limit),))
    result = job.result()
    assert (result.exit_code, result.oom_kills) == (0, 1)
    said = "fgsched: the kernel killed 1 process of this job, which used more than its host memory (--mem)"
    assert said in job.output()


@pytest.mark.cgroup
@pytest.mark.skipif(MEMORY is None, reason="no writable memory cgroup (v1)")
def test_a_setting_that_is_not_taken_is_a_launch_that_failed(spawner):
    directory = group(MEMORY)
    result = spawner.launch("#!/bin/sh\n", cgroups=((directory, ("memory.limit_in_bytes=much",)),)).result()
    assert (result.cause, result.errno) == ("launch", errno.EINVAL)
    assert result.detail == f"cgroup {directory}/memory.limit_in_bytes"
    assert not Path(directory).exists()


@pytest.mark.cgroup
@pytest.mark.skipif(UNIFIED is None, reason="no writable cgroup v2")
def test_what_is_left_in_a_cgroup_is_killed_with_it(spawner, tmp_path):
    gate = Gate(tmp_path / "gate")
    script = "#!/bin/sh\n(trap '' TERM; setsid sleep 1000 & echo $! >gate)\n"
    job = spawner.launch(script, env=PATH, cgroups=((group(UNIFIED), ()),), leftover_grace=10)
    pid = gate.number()
    assert job.result().exit_code == 0
    assert is_gone(pid)


def test_a_cgroup_that_is_no_cgroup_is_a_launch_that_failed(spawner, tmp_path):
    directory = str(tmp_path / "plain")
    result = spawner.launch("#!/bin/sh\n", cgroups=((directory, ()),)).result()
    assert (result.cause, result.errno, result.detail) == ("launch", errno.ENOENT, f"join cgroup {directory}")


FIRST_CARD = 104  # where it begins in a region


def test_a_region_full_of_noise_is_read_without_harm(spawner):
    script = '#!/bin/sh\ncd "${0%/*}"; head -c 100000 /dev/urandom >region\n'
    result = spawner.launch(script, env=PATH, region_size=100_000).result()
    assert (result.exit_code, result.peak, result.refusals) == (0, 0, 0)


def test_a_region_that_the_job_puts_in_place_of_its_own_is_not_read(spawner, tmp_path):
    region = pytest.importorskip("fgshim.region", reason="the region module is not built")
    data = bytearray(region.pack(1, 1, [(0, "GPU-00000000-0000-0000-0000-000000000000", 1 << 30)]))
    forged = bytearray(data)
    struct.pack_into("<QQ", forged, FIRST_CARD + 32, 5000, 2)
    (tmp_path / "forged").write_bytes(forged + bytes(region.SIZE - len(forged)))
    script = '#!/bin/sh\nmv forged "${0%/*}/region"\n'
    result = spawner.launch(script, env=PATH, region=bytes(data), region_size=region.SIZE).result()
    assert (result.exit_code, result.peak, result.refusals) == (0, 0, 0)


def test_peak_and_refusals_are_read_from_the_region(spawner):
    region = pytest.importorskip("fgshim.region", reason="the region module is not built")
    gpus = [(index, f"GPU-{index:08x}-0000-0000-0000-000000000000", 1 << 30) for index in range(2)]
    data = bytearray(region.pack(1, 1, gpus))
    for gpu, (peak, refused) in enumerate([(5000, 2), (7000, 3)]):
        struct.pack_into("<QQ", data, FIRST_CARD + 80 * gpu + 32, peak, refused)
        struct.pack_into("<QQ", data, FIRST_CARD + 80 * gpu + 56, 100 + gpu, 200 + gpu)
    result = spawner.launch("#!/bin/sh\n", region=bytes(data), region_size=region.SIZE).result()
    assert (result.peak, result.refusals) == (7000, 5)
    assert (result.refusing, result.asked, result.held) == (1, 101, 201)


@pytest.mark.cgroup
@pytest.mark.skipif(PIDS is None, reason="no writable pids cgroup (v1)")
def test_a_cgroup_that_others_are_in_is_joined_and_left_as_it_is(spawner):
    shared = Path(group(PIDS))
    shared.mkdir()
    (shared / "pids.max").write_text("5")
    try:
        script = "#!/bin/sh\nfor one in 1 2 3 4 5 6 7; do sleep 1000 & done\necho all\n"
        assert spawner.launch(script, env=PATH, shared=str(shared), leftover_grace=20).result().exit_code == 2
        other = spawner.launch("#!/bin/sh\n", job=2, shared=str(shared), stdout="other")
        assert other.result().exit_code == 0
        assert "max 1\n" in (shared / "pids.events").read_text()
    finally:
        shared.rmdir()
    assert "fork" in spawner.run.parent.joinpath("out").read_text()


def test_a_shared_cgroup_that_is_gone_starts_no_job(spawner):
    result = spawner.launch("#!/bin/sh\n", shared="/no/such/group").result()
    assert (result.cause, result.detail) == ("launch", "join cgroup /no/such/group")
