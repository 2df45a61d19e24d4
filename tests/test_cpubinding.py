"""Which CPUs jobs with cards are bound to: as a rule, as data, and in a real job."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from builders import World, a_demand, a_gpu, a_job
from fgsched.domain.states import JobState
from fgsched.domain.units import format_indices
from fgsched.gpus.nvidia import FACTS
from fgsched.launch.spawner import cpu_words, pack
from fgsched.lifecycle.launchspec import CpuBinding, JobOwner, LaunchContext, launch
from fgsched.system.nice import cpu_binding
from live_host import living

HERE = sorted(os.sched_getaffinity(0))
EIGHT = CpuBinding(allowed=frozenset(range(8)))
LOW, HIGH = (0, 1, 2, 3), (4, 5, 6, 7)


def test_a_job_is_bound_to_the_cpus_near_its_card():
    assert EIGHT.of((LOW,), 1, ()) == "0-3"
    assert EIGHT.of((LOW,), 4, ()) == "0-3"


def test_a_job_that_asked_for_more_than_are_near_may_use_all():
    assert EIGHT.of((LOW,), 5, ()) == ""


def test_jobs_share_the_cpus_near_a_card_until_they_are_given_out():
    assert EIGHT.of((LOW,), 2, [("0-3", 1), ("4-7", 4), ("0-1", 1)]) == "0-3"
    assert EIGHT.of((LOW,), 2, [("0-3", 2), ("0-1", 1)]) == ""


def test_of_several_cards_the_cpus_near_any_count():
    sixteen = CpuBinding(allowed=frozenset(range(16)))
    assert sixteen.of((LOW, HIGH), 6, ()) == "0-7"


@pytest.mark.parametrize(
    ("near", "why"),
    [
        ((), "it has no card"),
        (((),), "the driver does not say"),
        ((LOW, ()), "it does not say of one of them"),
        (((8, 9),), "none of them may be used"),
        ((LOW, HIGH), "they are all there are"),
        (((*LOW, *HIGH, 9),), "they are more than there are"),
    ],
)
def test_a_job_is_not_bound_where_it_would_mean_nothing(near, why):
    assert EIGHT.of(near, 1, ()) == "", why


def test_nobody_is_bound_where_the_site_says_none():
    assert cpu_binding("none").of((LOW,), 1, ()) == ""
    assert cpu_binding("near").allowed == frozenset(HERE)


@given(st.sets(st.integers(0, 2047), max_size=64))
def test_the_bits_of_a_message_are_those_of_the_list(cpus):
    words = cpu_words(format_indices(cpus))
    assert len(words) % 8 == 0
    assert {cpu for cpu in range(len(words) * 8) if words[cpu // 8] >> cpu % 8 & 1} == cpus


def test_cpus_beyond_those_of_any_kernel_are_left_out_of_the_message():
    assert cpu_words("0,8191-99999") == (1 | 1 << 8191).to_bytes(1024, "little")
    assert cpu_words("") == b""


def test_the_launch_has_the_binding_of_the_job_and_the_times_of_the_site_in_milliseconds():
    site = LaunchContext(
        vendor=FACTS, host="h", run="/run/fg", hook="/hook", tmp="/tmp/fg-", kill_wait=5, become_user=False
    )
    job = replace(a_job(state=JobState.RUNNING), cpus="0,65")
    spec = launch(job, (), b"", site=site, owner=JobOwner(home="/", gid=1, groups=()))
    assert (spec.cpus, spec.grace, spec.leftover_grace) == ("0,65", 5000, 2000)
    bound, free = (pack(spec._replace(cpus=cpus), b"x", b"") for cpus in ("0,65", ""))
    assert len(bound) - len(free) == 16
    assert (1).to_bytes(8, "little") + (2).to_bytes(8, "little") in bound


def test_the_binding_is_durable_with_the_start_and_chosen_anew_with_the_next():
    world = World([a_gpu(0, cpus=LOW), a_gpu(1, cpus=HIGH)])
    world.engine.binding = EIGHT
    world.submit([a_demand(10_000, cpus=3), a_demand(10_000, cpus=5), a_demand(cpus=1)])
    assert [world.job(number).cpus for number in (1, 2, 3)] == ["0-3", "", ""]
    world.start()
    assert world.engine.jobtable.jobs[1].cpus == "0-3"
    world.submit([a_demand(10_000, cpus=2)])
    world.engine.binding = CpuBinding()
    assert world.job(4).cpus == "", "it waits"


def test_a_second_job_beside_a_bound_one_finds_fewer_cpus_near_the_card():
    world = World([a_gpu(0, cpus=LOW)])
    world.engine.binding = EIGHT
    world.submit([a_demand(2500, cpus=3), a_demand(2500, cpus=1), a_demand(2500, cpus=1)])
    assert [world.job(number).cpus for number in (1, 2, 3)] == ["0-3", "0-3", ""]


@pytest.fixture
def host(tmp_path):
    """Two cards, each near to one of the CPUs that there are."""
    if len(HERE) < 2:
        pytest.skip("only one CPU may be used here")
    devices = ",".join(f"1x16G:cpus={cpu}" for cpu in HERE[:2])
    with living(tmp_path / "home", devices=f"sim:{devices}") as home:
        yield home


def told(home, *options):
    """What a job says of its CPUs, and what is said of it."""
    line = "sed -n 's/Cpus_allowed_list:.//p' /proc/self/status"
    done = home.run("fgsub", "--parsable", "--wait", "--output=cpus", *options, "--wrap", line)
    assert (done.status, done.err) == (0, "")
    shown = home.run("fgctl", "show", "job", done.out.strip())
    lines = [one.strip() for one in shown.out.splitlines() if one.strip().startswith("CPUs=")]
    return (home.path / "cpus").read_text().strip(), *lines


def test_a_real_job_is_bound_and_fgctl_says_to_what(host):
    everywhere = format_indices(HERE)
    near, far = str(HERE[0]), str(HERE[1])
    assert told(host, "--gpus=0.5") == (near, f"CPUs={near} (near GPU 0)")
    assert told(host, "--gpus=0.5", f"--cpus-per-task={2}") == (everywhere, "CPUs=any")
    assert told(host) == (everywhere,)
    host.running(share=10_000)
    assert told(host, "--gpus=1") == (far, f"CPUs={far} (near GPU 1)")


def test_a_site_can_turn_the_binding_off_while_the_controller_runs(host):
    assert told(host, "--gpus=0.5")[0] == str(HERE[0])
    (host.path / "fgsched.toml").write_text('[host]\ncpus = 64\ncpu_binding = "none"\n')
    assert host.run("fgctl", "reconfigure").status == 0
    assert told(host, "--gpus=0.5") == (format_indices(HERE), "CPUs=any")
