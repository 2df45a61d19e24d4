"""A simulated GPU that jobs share in time slices: without pacing, and in exclusive turns."""

import pytest

from gpusim import Simulator
from gpusim.mixes import GRAPH, MIXES, PRODUCT, PRODUCTS, REQUESTS, THINKING, TRAINING, UNEVEN, Mix, sharing

pytestmark = pytest.mark.compiler


@pytest.fixture(scope="module")
def simulator(tmp_path_factory):
    return Simulator.build(tmp_path_factory.mktemp("gpusim"))


UNPACED = [  # time that jobs have without pacing, per cent; from an independent model of an H100
    (sharing("10 90", PRODUCT), (43, 43)),
    (sharing("25 75", PRODUCTS), (41, 41)),
    (sharing("25 75", "kernel=5"), (44, 43)),
    (sharing("25 75", "kernel=20,wait=1"), (5.9, 5.9)),
    (sharing("25 75", TRAINING), (43, 43)),
    (sharing("25 75", GRAPH), (43, 43)),
    (sharing("75 25", "kernel=5000", "kernel=50"), (43, 44)),
    (sharing("25 75", "kernel=5000", "kernel=50"), (44, 43)),
    (sharing("25 75", "kernel=50000", PRODUCTS), (64, 22)),
    (sharing("25 75", "kernel=500000", PRODUCT), (44, 43)),
    (sharing("50 50", "kernel=500000"), (43.5, 43.5)),
    (sharing("50 50", UNEVEN, "kernel=50"), (43.5, 43.5)),
    (sharing("25 25 25 25", PRODUCT), (21.7,) * 4),
    (sharing("25 25 25 25", PRODUCTS), (20.5,) * 4),
    (sharing("25 25 25 25", "kernel=20", "kernel=1000", "kernel=5000", "kernel=50000"), (21.7,) * 4),
    (sharing("25 25 25 25", THINKING), (18.8,) * 4),
    (sharing("50 50", "streams=4,kernel=400,width=0.33", PRODUCT), (43.5, 43.5)),
    (sharing("50 50", f"processes=4,{PRODUCT}", PRODUCT), (70, 17)),
    (sharing("25 75", "processes=4,kernel=5000", PRODUCT), (70, 17)),
    (sharing("50 50", PRODUCT, f"{PRODUCT},on=1e6,off=1e6"), (60, 31)),
]


@pytest.mark.parametrize(("jobs", "expected"), UNPACED, ids=lambda value: " ".join(map(str, value)))
def test_jobs_without_pacing_have_the_time_that_slices_and_changes_leave(simulator, jobs, expected):
    assert [job.gpu for job in simulator.run(jobs)] == pytest.approx(expected, abs=3)


def test_a_job_alone_has_the_gpu_while_it_has_work(simulator):
    (products,) = simulator.run(sharing("50", PRODUCT))
    (waiting,) = simulator.run(sharing("50", "kernel=20,wait=1"))
    assert (products.gpu, waiting.gpu) == (pytest.approx(100, abs=0.1), pytest.approx(55.6, abs=1))


def test_requests_without_pacing_wait_for_the_rest_of_a_slice(simulator):
    latencies = [
        (requests.p50, requests.p99)
        for seed in range(5)
        for requests in simulator.run(sharing("75 25", PRODUCT, REQUESTS), seed=seed, seconds=20)[1:]
    ]
    p50, p99 = (sorted(values)[2] for values in zip(*latencies, strict=True))
    assert (p50, p99) == (pytest.approx(2.4, abs=0.3), pytest.approx(6.6, abs=1))


def test_streams_share_the_gpu_up_to_its_width(simulator):
    one, four = (
        simulator.run((f"share=50,kernel=1000,wait=4,streams={streams},width={width}",))[0]
        for streams, width in ((1, 0.25), (4, 0.25))
    )
    assert four.launches == pytest.approx(4 * one.launches, rel=0.06)


def test_copies_take_no_time_of_the_kernels(simulator):
    (job, other) = simulator.run(sharing("50 50", "kernel=171,wait=8,copy=20000", PRODUCT))
    assert (job.gpu + other.gpu, other.gpu) == (pytest.approx(97, abs=3), pytest.approx(92, abs=3))


def test_a_late_host_leaves_the_gpu_to_others(simulator):
    jobs = sharing("50 50", "kernel=171,wait=4,pause=100", PRODUCT)
    prompt, late = (simulator.run(jobs, late=time)[0].gpu for time in (60, 2000))
    assert late < 0.85 * prompt


@pytest.mark.parametrize("name", MIXES)
def test_turns_give_jobs_their_shares_and_answers_in_time(simulator, name):
    mix = MIXES[name]
    assert mix.misses(simulator.outcome(mix, range(10), turns=1)) == []


HOSTS = [
    {"late": 200, "very_often": 0.05, "very_late": 4000},
    {"slice": 1000},
    {"slice": 6000},
    {"interrupting": 600, "changing": 300},
]


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: " ".join(f"{name}={host[name]}" for name in host))
def test_shares_hold_on_other_gpus_and_hosts_that_wake_threads_late(simulator, host):
    for jobs in (sharing("25 75", PRODUCT), sharing("25 75", "kernel=5000", "kernel=50")):
        small, large = simulator.run(jobs, turns=1, **host)
        assert (small.gpu, large.gpu) == (pytest.approx(25, abs=5), pytest.approx(75, abs=5))


@pytest.mark.parametrize("kernel", [171, 5000, 50_000, 500_000])
def test_requests_beside_dear_changes_are_answered_in_time_as_far_as_the_gpu_allows(simulator, kernel):
    """A kernel that runs for longer than a slice is interrupted by the GPU alone."""
    mix = Mix(jobs=sharing("75 25", f"kernel={kernel}", REQUESTS), seconds=20)
    turns, none = (
        simulator.outcome(mix, range(5), turns=on, interrupting=600, changing=300).jobs[1] for on in (1, 0)
    )
    assert turns.p50 <= none.p50
    assert turns.p99 <= (8 if kernel <= 5000 else none.p99 + 0.3)


def test_the_first_requests_of_a_job_are_answered_in_time(simulator):
    """The hook does not take the wait for a time slice for the length of the first kernel."""
    mix = Mix(jobs=sharing("75 25", "kernel=5000", REQUESTS), seconds=1)
    outcome = simulator.outcome(mix, range(20), turns=1, interrupting=600, changing=300)
    assert outcome.jobs[1].p99 <= 12


LATE = {"late": 200, "very_often": 0.05, "very_late": 4000}


@pytest.mark.parametrize("kernel", [50_000, 500_000])
def test_a_hook_that_wakes_late_keeps_the_turn_for_its_long_kernel(simulator, kernel):
    jobs = sharing("25 75", f"kernel={kernel}", PRODUCTS)
    small, large = simulator.run(jobs, turns=1, seconds=60, **LATE)
    assert (small.gpu, large.gpu) == (pytest.approx(25, abs=3), pytest.approx(71, abs=4))


def test_a_job_that_is_stopped_in_its_turn_leaves_the_gpu_to_the_others(simulator):
    jobs = sharing("50 50", f"fair,{PRODUCT}", f"fair,{PRODUCT},stops=100000")
    assert simulator.run(jobs, turns=1, seconds=3)[0].gpu >= 95


def test_a_hard_job_has_no_more_than_its_share_beside_an_idle_one(simulator):
    job, _ = simulator.run(sharing("25 75", PRODUCT, "kernel=50,wait=20,rate=1"), turns=1)
    assert job.gpu == pytest.approx(25, abs=2)


def test_a_fair_job_has_the_rest_of_the_gpu(simulator):
    hard, fair = simulator.run(sharing("25 25", PRODUCT, f"fair,{PRODUCT}"), turns=1)
    assert (hard.gpu, fair.gpu) == (pytest.approx(25, abs=3), pytest.approx(75, abs=4))


@pytest.mark.parametrize("hard", [1, 2, 3])
@pytest.mark.parametrize("free", [1, 2])
def test_jobs_beside_some_without_turns_have_their_shares_or_what_they_would_have_without_turns(
    simulator, hard, free
):
    jobs = (f"share=25,{PRODUCT}",) * hard + (f"share=25,none,{PRODUCT}",) * free
    turns, none = (simulator.run(jobs, turns=on, seconds=10) for on in (1, 0))
    for job, without in list(zip(turns, none, strict=True))[:hard]:
        assert job.gpu >= min(25, without.gpu) - 4.5


def test_a_hard_job_has_its_share_beside_one_that_takes_no_turns(simulator):
    hard, free = simulator.run(sharing("25 50", "kernel=5000", f"none,{PRODUCT}"), turns=1, seconds=20)
    assert (hard.gpu, free.gpu) == (pytest.approx(25, abs=4), pytest.approx(72, abs=5))
