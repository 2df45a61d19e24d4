"""The hook on pools that are named, made and destroyed, and on what a pool grows by."""

import pytest

pytestmark = pytest.mark.compiler
MIB, GIB = 1 << 20, 1 << 30
OK, OOM = 0, 2
FULL, FREE = (OK, 0, GIB), (OK, GIB, GIB)
KEPT = (OK, 768 * MIB, GIB)
WAYS = [{}, {"FAKEJOB_VIA": "lookup"}, {"FAKEJOB_VIA": "lookup", "FAKEJOB_TWINS": "1"}]
ids = {"ids": ["dlsym", "look-up", "twins"]}


@pytest.mark.parametrize("way", WAYS, **ids)
def test_a_pool_by_name_is_charged_like_the_devices_own(job, way):
    said = job.run("pool", "from 0 256M", "info", "from 0 1G", "free 1", "sync", "info", **way)
    assert said == [(OK,), (OK,), KEPT, (OOM,), (OK,), (OK,), FREE]


def test_all_pools_count_together(job):
    commands = [
        "pool",
        "pool",
        "from 0 512M",
        "from 1 256M",
        "async 256M",
        "from 0 2M",
        "async 2M",
        "alloc 1",
    ]
    assert job.run(*commands) == [(OK,)] * 5 + [(OOM,)] * 3


def test_the_pool_that_is_set_for_a_device_serves_it(job):
    commands = ["pool", "pool-threshold 0 1G", "set-pool 0", "async 256M", "afree 1", "sync", "info"]
    assert job.run(*commands)[-1] == KEPT
    assert job.run(*commands, "pool-destroy 0", "info", "async 1G", "info")[-4:] == [(OK,), FREE, (OK,), FULL]


def test_the_default_pool_is_known_by_name_too(job):
    assert job.run("default-pool", "from 0 256M", "info", "from 0 769M")[1:] == [(OK,), KEPT, (OOM,)]


@pytest.mark.parametrize("made", ["pool 6", "local-pool"])
def test_a_pool_of_a_locality_domain_is_its_cards(job, made):
    assert job.run(made, "from 0 256M", "info", "from 0 769M")[1:] == [(OK,), KEPT, (OOM,)]


@pytest.mark.parametrize("way", WAYS, **ids)
@pytest.mark.parametrize("made", ["pool 1 2", "pool 0 2", "pool 2 2", "managed-pool 1", "managed-pool 0"])
def test_a_pool_of_managed_memory_is_charged_like_managed_memory(job, driver, made, way):
    """It moves to the GPU when it is used there, and evicts what other jobs hold."""
    if made.startswith("managed-pool") and way:
        pytest.skip("the program looks names of CUDA 12 up; default pools of managed memory came with 13")
    said = job.run(made, "from 0 256M", "info", "from 0 769M", "alloc 768M", "free 1", "sync", "info", **way)
    assert said == [(OK,), (OK,), KEPT, (OOM,), (OK,), (OK,), (OK,), (OK, GIB // 4, GIB)]
    assert driver.high()[0] == GIB


def test_the_pool_of_a_device_is_not_exchanged_before_an_allocation_that_it_has_room_for(job, driver):
    """A thread sets an empty pool after the question which one serves: it waits for the allocation."""
    filled = ["pool", "threshold 1G", "async 256M", "afree 1", "alloc 768M"]
    said = job.run(*filled, "meanwhile cuMemAllocAsync set-pool 0", "async 256M", "info")
    assert [status for status, *_ in said] == [OK] * 9
    assert said[-1] == FULL
    assert driver.high()[0] == GIB


API = "FAKE_CUDA_API"
DRIVERS = {"460": "11020", "580": "13000", "590": "13010", "595": "13020"}  # branch and version of CUDA
WAYS_TO_A_POOL = {
    "default-of-device": ["default-pool"],
    "created": ["pool"],
    "created-managed": ["pool 1 2"],
    "default-managed": ["managed-pool 0"],
    "default-managed-of-device": ["managed-pool 1"],
    "serving": ["current-pool 1 1"],
    "serving-managed": ["current-pool 0 2"],
    "serving-managed-that-was-set": ["pool 1 2", "serve-pool 0 1 2", "current-pool 1 2"],
}


@pytest.mark.parametrize("branch", DRIVERS)
@pytest.mark.parametrize("way", WAYS_TO_A_POOL)
def test_a_pool_is_held_to_the_limit_whatever_its_driver_tells_of_it(job, driver, way, branch):
    """Attributes 5 to 8 came with CUDA 11.3, the type and location of a pool with 13.2."""
    to_pool = WAYS_TO_A_POOL[way]
    if branch == "460" and ("serving" in way or "default-managed" in way):
        pytest.skip("this driver has no such call")
    given = job.run(*to_pool, *["from 0 64M"] * 64, "info", **{API: DRIVERS[branch]})[len(to_pool) :]
    assert given == [(OK,)] * 16 + [(OOM,)] * 48 + [FULL]
    assert driver.high()[0] <= GIB


@pytest.mark.parametrize("branch", DRIVERS)
def test_what_is_freed_into_a_pool_serves_again_and_others_after_a_trim(job, branch):
    made = ["pool", "pool-threshold 0 1G"]
    commands = [*made, "from 0 512M", "free 1", "sync", "from 0 512M", "free 2", "sync"]
    said = job.run(*commands, "alloc 1G", "info", **{API: DRIVERS[branch]})
    assert said == [(OK,)] * 9 + [FULL]


@pytest.mark.parametrize("branch", ["580", "590", "595"])
@pytest.mark.parametrize("made", ["pool 2", "pool 3", "current-pool 2 1", "current-pool 3 1"])
def test_a_pool_of_host_memory_is_not_charged_on_any_driver(job, made, branch):
    assert job.run(made, "from 0 4G", "info", **{API: DRIVERS[branch]}) == [(OK,), (OK,), FREE]


@pytest.mark.parametrize("props", ["pool 2", "pool 3 1"])
def test_a_pool_of_host_memory_is_not_charged(job, props):
    assert job.run(props, "from 0 4G", "info", "free 1", "pool-destroy 0", "info") == [
        (OK,),
        (OK,),
        FREE,
        (OK,),
        (OK,),
        FREE,
    ]


def test_a_destroyed_pool_gives_back_what_it_kept(job):
    commands = ["pool", "pool-threshold 0 1G", "from 0 256M", "free 1", "info", "pool-destroy 0", "info"]
    assert job.run(*commands)[-3:] == [KEPT, (OK,), FREE]


def test_a_destroyed_pool_is_charged_until_the_last_of_its_memory_is_freed(job):
    commands = ["pool", "from 0 256M", "from 0 256M", "pool-destroy 0", "info", "free 1", "info", "afree 2"]
    half = (OK, GIB // 2, GIB)
    assert job.run(*commands, "info")[3:] == [(OK,), half, (OK,), half, (OK,), FREE]


def test_a_destroyed_pools_place_is_taken_by_another(job):
    churn = [
        c
        for at in range(0, 200, 2)
        for c in ("pool", f"from {at} 256M", f"pool-destroy {at}", f"afree {at + 1}")
    ]
    assert job.run(*churn, "info")[-1] == FREE


def test_trimming_gives_back_at_once(job):
    commands = ["pool", "pool-threshold 0 1G", "from 0 512M", "afree 1", "pool-trim 0 256M", "info"]
    assert job.run(*commands)[-1] == KEPT


@pytest.mark.parametrize("wait", ["sync", "sync-all", "sync-event"])
def test_after_a_wait_others_find_what_a_pool_has_given_up(job, wait):
    """The process that freed it does nothing more: the wait itself must have told."""
    live = job.start()
    assert live.say("async 1G") == (OK,)
    assert live.say("afree 0") == (OK,)
    assert job.run("alloc 2M") == [(OOM,)]
    assert live.say(wait) == (OK,)
    assert job.run("alloc 1G") == [(OK,)]
    live.end()


@pytest.mark.parametrize(
    ("step", "commands", "refused"),
    [
        (32 * MIB, ["alloc 1000M", "async 2M"], 1),  # never seen to grow: as much as drivers grow by
        (32 * MIB, ["alloc 960M", "async 40M", "async 2M"], 0),
        (32 * MIB, ["alloc 992M", "async 2M", "async 30M", "async 2M"], 1),
        (640 * MIB, ["async 2M", "async 640M", "async 638M"], 1),  # seen to grow by 640 MiB for 2
    ],
)
def test_a_pool_that_grows_in_big_steps_never_passes_the_limit(job, driver, step, commands, refused):
    said = job.run(*commands, FAKE_CUDA_POOL_STEP=str(step))
    assert sum(status == OOM for status, *_ in said) == refused
    assert driver.high()[0] <= GIB


def test_a_step_that_one_process_has_seen_is_known_to_the_others_of_the_job(job, driver):
    live = job.start(FAKE_CUDA_POOL_STEP=str(640 * MIB))
    assert live.say("async 2M") == (OK,)
    assert job.run("async 2M", FAKE_CUDA_POOL_STEP=str(640 * MIB)) == [(OOM,)]
    assert driver.high()[0] == 640 * MIB
    live.end()


def test_a_step_that_nobody_could_know_of_is_taken_back_at_once(job, driver):
    """More than 32 MiB at a time, and not seen before: beyond the limit for as long as the call takes."""
    said = job.run("async 640M", "async 2M", "async 2M", "info", FAKE_CUDA_POOL_STEP=str(640 * MIB))
    assert said == [(OK,), (OOM,), (OOM,), (OK, 384 * MIB, GIB)]
    assert driver.used() == [0, 0, 0, 0]


def test_a_pool_reuses_what_it_has_though_nothing_is_left_of_the_limit(job):
    """Neither trimmed nor refused: what it keeps is enough."""
    loop = [c for at in range(2, 40, 2) for c in ("async 512M", f"afree {at}", "async 2M", f"afree {at + 1}")]
    said = job.run("pool", "threshold 1G", "async 1G", "afree 1", *loop, "info")
    assert all(status == OK for status, *_ in said)


def test_memory_of_a_pool_that_is_freed_by_another_thread_or_twice_stays_exact(job):
    said = job.run("pool", "from 0 256M", "afree 1", "afree 1", "free 1", "pool-destroy 0", "info")
    assert [status for status, *_ in said] == [OK, OK, OK, 1, 1, OK, OK]
    assert said[-1] == FREE
