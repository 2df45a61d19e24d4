"""Jobs that are moved so that one can start: which, and only where all of them find a place."""

from hypothesis import given
from hypothesis import strategies as st

from builders import GIB, LIMITS, World, a_demand, a_gpu, a_result
from fgsched.domain.job import WHOLE, Hold, HostLimits
from fgsched.domain.states import JobState
from fgsched.scheduling.fragmentation import Movable, Place, moves
from fgsched.scheduling.placement import Host, rooms
from live_host import living

PLENTY = Host(100, 1 << 50)


def a_job(number, share, gpu, loss=10.0):
    hold = Hold(gpu=gpu, share=share, memory=16 * GIB * share // WHOLE)
    return Movable(number, a_demand(share), (hold,), loss)


def place(*jobs, cards=2, host=PLENTY, limits=LIMITS):
    held = [(hold, False) for job in jobs for hold in job.holds]
    return Place(tuple(rooms([a_gpu(index) for index in range(cards)], held, {})), host, limits)


def moved(demand, jobs, *, most=1e9, **about):
    return [job.id for job in moves(demand, jobs, place(*jobs, **about), most=most)]


def test_of_two_half_cards_one_is_emptied_for_a_whole_one():
    jobs = [a_job(1, 5000, 0), a_job(2, 5000, 1, loss=5.0)]
    assert moved(a_demand(WHOLE), jobs) == [2], "the one that loses less"


def test_nothing_is_moved_for_a_job_that_fits_or_never_would():
    assert moved(a_demand(5000), [a_job(1, 5000, 0)]) == []
    assert moved(a_demand(WHOLE), [a_job(1, 6000, 0), a_job(2, 5000, 1)]) == []
    assert moved(a_demand(WHOLE, gpus=3), [a_job(1, 1000, 0)]) == []


def test_no_more_is_lost_than_is_allowed():
    jobs = [a_job(1, 5000, 0), a_job(2, 5000, 1)]
    assert moved(a_demand(WHOLE), jobs, most=9.9) == []
    assert moved(a_demand(WHOLE), jobs, most=10.0) == [1]


def test_a_job_that_may_not_be_moved_stays():
    there = place(a_job(1, 5000, 0), a_job(2, 5000, 1))
    assert [job.id for job in moves(a_demand(WHOLE), [a_job(2, 5000, 1)], there, most=1e9)] == [2]
    assert moves(a_demand(WHOLE), [], there, most=1e9) == ()


def test_the_cheaper_of_two_jobs_stays_if_the_dearer_has_to_go_anyway():
    jobs = [a_job(1, 1000, 0, loss=1.0), a_job(2, 5000, 0, loss=5.0), a_job(3, 4000, 1, loss=99.0)]
    assert moved(a_demand(9000), jobs) == [2]


def test_jobs_of_two_cards_make_room_for_one_that_needs_two():
    jobs = [a_job(1, 2000, 0), a_job(2, 3000, 1, loss=11.0), a_job(3, 2000, 2)]
    assert moved(a_demand(WHOLE, gpus=2), jobs, cards=3) == [1, 3]


def test_a_job_of_several_cards_is_not_moved():
    holds = tuple(Hold(gpu=index, share=WHOLE, memory=16 * GIB) for index in (0, 1))
    pair = Movable(1, a_demand(WHOLE, gpus=2), holds, 1.0)
    assert moved(a_demand(WHOLE), [pair], cards=3) == []
    assert moves(a_demand(WHOLE), [pair], place(pair), most=1e9) == ()


def test_a_job_that_might_go_back_to_where_it_was_is_not_moved():
    spread = HostLimits(cpus=64, host_memory=1 << 50, spread=True)
    jobs = [a_job(1, 5000, 0), a_job(2, 5000, 1)]
    assert moved(a_demand(WHOLE), jobs, limits=spread) == [], "the emptiest card is the one it left"


def test_cpus_that_are_short_are_no_reason_to_move_anything():
    jobs = [a_job(1, 5000, 0), a_job(2, 5000, 1)]
    assert moved(a_demand(WHOLE, cpus=2), jobs, host=Host(1, 1 << 50)) == []


shares = st.integers(1, 9).map(lambda tenth: tenth * 1000)
states = st.lists(st.tuples(shares, st.integers(0, 3), st.integers(1, 100)), max_size=10)


def _fitting(found):
    """The jobs that fit on their cards, one after another."""
    left, jobs = [WHOLE] * 4, []
    for number, (share, gpu, loss) in enumerate(found):
        if left[gpu] >= share:
            left[gpu] -= share
            jobs.append(a_job(number, share, gpu, float(loss)))
    return jobs


@given(found=states, share=st.integers(1, 10), gpus=st.integers(1, 2), spread=st.booleans())
def test_whoever_is_moved_finds_a_place_and_so_does_the_one_that_waits(found, share, gpus, spread):
    jobs, limits = _fitting(found), HostLimits(cpus=64, host_memory=1 << 50, spread=spread)
    demand = a_demand(WHOLE if gpus > 1 else share * 1000, gpus=gpus)
    here = place(*jobs, cards=4, limits=limits)
    chosen = moves(demand, jobs, here, most=150.0)
    assert set(chosen) <= set(jobs)
    if chosen:
        assert sum(job.loss for job in chosen) <= 150
        assert here.start(demand) is None
        left = here.without(chosen)
        for each in (demand, *(job.demand for job in chosen)):
            left = left.start(each)
            assert left is not None


# -- by the conductor ---------------------------------------------------------------------------


def card_of(world, job):
    return world.engine.jobtable.jobs[job].holds[0].gpu


def halved(*, defragment=3600, **more):
    """Two cards, on each a job that holds a half: 2 on the first, 4 on the second."""
    limits = HostLimits(cpus=64, host_memory=1 << 50, defragment=defragment)
    world = World([a_gpu(0), a_gpu(1)], limits=limits)
    world.submit([a_demand(5000)] * 4, **({"time_limit": 7 * 86_400} | more))
    world.settle()
    for job in (1, 3):
        world.host.finish(job, 1, a_result())
    world.settle()
    assert [card_of(world, job) for job in (2, 4)] == [0, 1]
    return world


def wanting(world, *demands, **more):
    """The same once jobs with these demands have come."""
    world.submit(demands, **more)
    world.settle()
    return world


def restarts(world):
    return [world.job(job).restarts for job in (2, 4)]


def test_a_half_is_moved_and_the_whole_card_job_runs():
    world = wanting(halved(), a_demand(WHOLE))
    assert sorted(restarts(world)) == [0, 1]
    assert world.job(5).state is JobState.RUNNING
    assert len({card_of(world, job) for job in (2, 4)}) == 1


def test_a_job_that_may_not_run_again_is_not_moved():
    world = wanting(halved(requeue=False), a_demand(WHOLE))
    assert restarts(world) == [0, 0]
    assert world.job(5).state is JobState.PENDING


def test_more_work_than_the_site_allows_is_not_lost():
    assert restarts(wanting(halved(defragment=1), a_demand(WHOLE))) == [0, 0]


def test_nothing_is_moved_for_a_job_that_starts_soon_anyway():
    world = halved(time_limit=20)
    world.now += 13
    assert restarts(wanting(world, a_demand(WHOLE))) == [0, 0]


def test_no_job_is_moved_twice():
    world = wanting(halved(), a_demand(WHOLE))
    moved, stays = sorted((2, 4), key=lambda job: -world.job(job).restarts)
    world.host.finish(5, 1, a_result())
    wanting(world, a_demand(5000), requeue=False)
    world.host.finish(stays, 1, a_result())
    wanting(world, a_demand(WHOLE))
    assert world.job(7).state is JobState.PENDING, "of two halves one may not run again, and one was moved"
    assert world.job(moved).restarts == 1


def test_none_is_moved_while_another_is_on_its_way():
    world, asked = halved(), []
    world.host.requeue = lambda job: asked.append(job) is None
    wanting(world, a_demand(WHOLE), a_demand(WHOLE))
    world.settle()
    assert len(asked) == 1


# -- on a host ----------------------------------------------------------------------------------


def fragmented(home):
    """Four halves on two cards, of which one of each card ends: the ids of those that stay."""
    ids = [home.running(share=5000, time_limit=7 * 86400) for _ in range(4)]
    cards = {job: home.job(job)["allocated"][0]["gpu"] for job in ids}
    over = [next(job for job in ids if cards[job] == card) for card in (0, 1)]
    home.client.ask("cancel", ids=over)
    home.wait(*over)
    return [job for job in ids if job not in over]


def test_a_whole_card_job_starts_because_a_half_is_moved(tmp_path):
    config = '[host]\ncpus = 64\n[gpus]\ndefragment = "1:00:00"\n'
    with living(tmp_path / "home", config=config) as home:
        halves = fragmented(home)
        home.running(share=WHOLE)
        shown = [home.job(job) for job in halves]
        assert sorted(job["restarts"] for job in shown) == [0, 1]


def test_nothing_is_moved_unless_the_site_says_so(home):
    halves = fragmented(home)
    waits = home.submit(share=WHOLE)
    assert home.job(waits)["state"] == "PENDING"
    assert [home.job(job)["state"] for job in halves] == ["RUNNING"] * 2
