"""A host in virtual time: what is replayed, what becomes of it, and what is said of that."""

import io
import json
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fgsched.cli import simulating
from fgsched.config.load import Config
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import WHOLE, Demand, HostLimits
from fgsched.domain.policy import Limits, Partition, Policy
from fgsched.gpus.simulated import parse
from fgsched.simulate import SimHost, Task, replay
from fgsched.simulate.metrics import measure, percentile, svg
from fgsched.simulate.workload import generate, known, read, runnable
from live_host import zone_at_noon

HOST = HostLimits(cpus=64, host_memory=1 << 50)


def a_task(share=WHOLE, *, at=0.0, run=10.0, gpus=1, **more):
    return Task(demand=Demand(gpus=gpus, share=share), submitted=at, run=run, **more)


def simulated(*tasks, gpus="sim:1x16G", limits=HOST):
    return replay(tasks, SimHost(gpus=parse(gpus), limits=limits))


def spans(result):
    return [(one.started, one.ended) for one in result.outcomes]


# -- the host -----------------------------------------------------------------------------------


def test_a_job_starts_when_the_one_before_it_ends():
    assert spans(simulated(a_task(), a_task(at=3.0))) == [(0, 10), (10, 20)]


def test_jobs_that_come_at_one_moment_are_all_taken_in():
    assert spans(simulated(*[a_task(5000)] * 4)) == [(0, 10), (0, 10), (10, 20), (10, 20)]


def test_a_time_limit_ends_a_job():
    assert spans(simulated(a_task(time_limit=4), a_task())) == [(0, 4), (4, 14)]


def test_a_job_that_is_short_enough_passes_the_first_that_waits():
    tasks = [
        a_task(5000, time_limit=10),
        a_task(at=1.0),
        a_task(5000, at=2.0, run=5.0, time_limit=5),
        a_task(5000, at=2.0, run=9.0, time_limit=9),
    ]
    assert spans(simulated(*tasks)) == [(0, 10), (10, 20), (2, 7), (20, 29)]


def test_of_jobs_that_come_together_one_may_start_though_the_last_may_not():
    long = {"run": 100.0, "time_limit": 100}
    tasks = [a_task(5000, **long), a_task(at=1.0), a_task(5000, at=2.0, run=5, time_limit=5), a_task(at=2.0)]
    assert simulated(*tasks).outcomes[2].started == 2


def test_what_can_never_run_here_is_told_apart():
    few = HostLimits(cpus=2, host_memory=1 << 50)
    tasks = [a_task(), a_task(gpus=3), Task(demand=Demand(cpus=4), submitted=0, run=1)]
    assert runnable(tasks, parse("sim:2x16G"), few) == (tasks[:1], 2)


sizes = st.one_of(
    st.tuples(st.just(1), st.integers(1, 10).map(lambda tenth: tenth * 1000)),
    st.tuples(st.integers(2, 3), st.just(WHOLE)),
)
workloads = st.lists(
    st.builds(
        lambda size, at, run, limit: a_task(size[1], gpus=size[0], at=at, run=run, time_limit=limit),
        sizes,
        st.integers(0, 50).map(float),
        st.integers(1, 30).map(float),
        st.integers(0, 30),
    ),
    max_size=25,
).map(lambda tasks: sorted(tasks, key=lambda task: task.submitted))


@given(tasks=workloads, spread=st.booleans())
@settings(max_examples=60)
def test_every_task_runs_once_and_no_card_is_given_out_twice(tasks, spread):
    limits = HostLimits(cpus=64, host_memory=1 << 50, spread=spread)
    result = simulated(*tasks, gpus="sim:3x16G", limits=limits)
    assert result.unstarted == 0
    assert [one.task for one in result.outcomes] == tasks
    for one in result.outcomes:
        assert one.started >= one.task.submitted
        assert one.ended == one.started + one.task.lasts
        beside = [other for other in result.outcomes if other.started <= one.started < other.ended]
        assert sum(other.share for other in beside) <= 3 * WHOLE


# -- what is replayed ---------------------------------------------------------------------------

OPENB = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,\
deletion_time,scheduled_time
a,1500,1024,1,250,,LS,Running,10,40,20
b,8000,2048,8,1000,V100M32,LS,Running,5,50,
c,100,10,0,0,,BE,Running,7,9,8
d,100,10,1,500,,BE,Pending,7,,
"""


def test_the_openb_format_is_understood():
    found = read("tasks.csv", OPENB)
    assert [(task.name, task.submitted, task.run) for task in found.tasks] == [
        ("b", 5, 45),
        ("c", 7, 1),
        ("a", 10, 20),
    ]
    assert found.tasks[2].demand == Demand(gpus=1, share=2500, cpus=2, host_memory=1 << 30)
    assert found.tasks[0].demand.gpus == 8
    assert (found.left_out, found.source) == (1, "3 tasks of tasks.csv")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no column cpu_milli"),
        ("a,b\n1,2\n", "no column cpu_milli"),
        ("{", "not the output of fgacct --json"),
        ('{"jobs": [{}]}', "not the output of fgacct --json"),
        (OPENB.replace("1500", "many"), "many"),
    ],
)
def test_what_is_no_log_is_refused_with_what_is_missing(text, says):
    with pytest.raises(BadUsage, match=says):
        read("log", text)


def test_the_same_seed_makes_the_same_jobs_and_they_ask_for_the_load():
    one = generate(seed=3, hours=24, load=0.5, gpus=4)
    assert one == generate(seed=3, hours=24, load=0.5, gpus=4)
    assert one != generate(seed=4, hours=24, load=0.5, gpus=4)
    asked = sum(task.lasts * task.demand.gpus * task.demand.share / WHOLE for task in one.tasks)
    assert 0.5 <= asked / (24 * 3600 * 4) < 0.75
    assert max(task.demand.gpus for task in one.tasks) <= 4


def test_the_rules_of_the_site_hold():
    """Two users of one partition that runs one job at a time: whoever used less comes first."""
    policy = Policy(partitions=(Partition(name="night", total=Limits(running=1)), Partition(name="day")))
    tasks = [a_task(1000, at=at, run=100.0, partition="night", user=user) for at, user in enumerate("aaab")]
    tasks.append(a_task(1000, at=3.0, run=100.0, partition="gone", user="a"))
    site = SimHost(gpus=parse("sim:1x16G"), limits=HOST, policy=policy)
    ordered = known(tasks, policy)
    assert [task.partition for task in ordered] == ["night"] * 5
    result = replay(ordered, site)
    assert sorted(one.started for one in result.outcomes) == [0, 100, 200, 300, 400]
    assert result.outcomes[3].started == 100, "the others are of a user who has had something"


# -- figures ------------------------------------------------------------------------------------


def test_waits_are_told_by_size():
    found = measure(simulated(a_task(), a_task(2500), a_task(2500, at=4.0)))
    rows = {row.name: (row.jobs, row.mean, row.longest) for row in found.waits}
    assert rows == {"to 1/4": (2, 8, 10), "1": (1, 0, 0), "all": (3, 16 / 3, 10)}
    assert found.waits[-1].slowdown == pytest.approx((1 + 2 + 1.6) / 3)


def test_the_slowdown_of_a_very_short_job_is_that_of_ten_seconds():
    (row, _) = measure(simulated(a_task(run=1.0), a_task(run=1.0))).waits
    assert row.slowdown == pytest.approx((1 + 1.1) / 2)


def test_beside_what_would_have_been_stands_what_was():
    result = simulated(a_task(waited=7.0), a_task(waited=3.0), a_task())
    was = measure(result).was
    assert (was.jobs, was.mean, was.longest, was.slowdown) == (2, 5, 7, 1.5)
    assert measure(simulated(a_task())).was is None


def test_a_percentile_is_a_value_that_was_there():
    assert [percentile([1, 2, 3, 4], part) for part in (1, 50, 75, 99)] == [1, 2, 3, 4]
    assert percentile([7], 50) == 7


def test_the_job_that_was_overtaken_most_is_named():
    tasks = [a_task(5000, time_limit=10), a_task(at=1.0), *[a_task(1000, at=2.0, run=5, time_limit=5)] * 3]
    found = measure(simulated(*tasks))
    assert (found.most.job, found.most.by, found.most.wait) == (2, 3, 9)
    assert (found.longest.job, found.longest.wait) == (2, 9)


def test_the_curve_covers_what_was_held():
    found = measure(simulated(a_task(5000), a_task(2500, at=7.0, run=20), gpus="sim:2x16G"))
    assert found.gpu_hours == pytest.approx(10 / 3600)
    held = sum(moment.allocated for moment in found.curve) / len(found.curve) * 2 * found.hours
    assert held == pytest.approx(found.gpu_hours)
    assert found.allocated == pytest.approx(0.25)
    assert found.overall == pytest.approx(10 / 54)


def test_nothing_has_figures_too():
    assert measure(simulated()).waits == ()


def test_the_picture_is_well_formed_whatever_the_title():
    text = svg(measure(simulated(a_task(), a_task(at=3.0))), "<log> & more")
    picture = ElementTree.fromstring(text)
    assert "<log> & more" in [element.text for element in picture.iter()]


# -- the command --------------------------------------------------------------------------------


def test_the_log_of_a_host_can_be_replayed_with_one_card_more(home):
    ids = [home.ended(share=share) for share in (2500, WHOLE)]
    log = home.path / "log.json"
    log.write_text(home.run("fgacct", "--json", env=zone_at_noon()).out)
    done = home.run("fgsched", "simulate", str(log), "--gpus=+1x80G:A100", "--json")
    assert (done.status, done.err) == (0, "")
    assert done.json["jobs"] == len(ids)
    assert [gpu["model"] for gpu in done.json["gpus"]][-1] == "A100"
    assert [row["name"] for row in done.json["waits"]] == ["to 1/4", "1", "all"]
    assert done.json["was"]["jobs"] == len(ids)


def test_the_cards_of_the_running_controller_are_those_that_others_are_added_to(home):
    home.run("fgsched", "start", "--gpus=sim:3x24G:L4")
    done = home.run("fgsched", "simulate", "--gpus=+1x80G:A100", "--hours=1", "--json")
    assert [gpu["model"] for gpu in done.json["gpus"]] == ["L4", "L4", "L4", "A100"]


def test_cards_that_are_added_are_near_to_each_other_and_to_no_others(monkeypatch):
    monkeypatch.delenv("FG_DEVICES", raising=False)
    config = Config(devices="sim:2x16G:V100:nvlink")
    links = [gpu.links for gpu in simulating._gpus("+2x80G:A100:switch", config)]
    assert links == [((1, 3),), ((0, 3),), ((3, 2),), ((2, 2),)]


def test_a_made_up_day_is_shown_as_a_table_and_drawn(home):
    words = ("--gpus=2x16G", "--hours=2", "--policy=spread", "--svg", "out.svg")
    done = home.run("fgsched", "simulate", *words, cwd=home.path)
    assert done.status == 0
    assert done.lines[0].endswith("generated jobs (seed 1), 2 GPUs, spread")
    assert done.lines[2].split() == ["GPUS", "JOBS", "WAIT", "P50", "P90", "P99", "LONGEST", "SLOWDOWN"]
    assert [line.partition("  ")[0] for line in done.lines[-4:]] == [
        "allocated",
        "used",
        "longest wait",
        "most overtaken",
    ]
    assert (home.path / "out.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["nothing.json"], 2, "nothing.json: cannot be read: No such file or directory."),
        (["/dev/null"], 2, "/dev/null: neither the output of fgacct --json nor a list of tasks"),
        (["--partition=main"], 2, "--partition selects jobs of a FILE"),
        (["--gpus=4x"], 2, "does not describe simulated GPUs"),
        (["--gpus=2x16G", "--mem=much"], 2, "much"),
        (["--gpus=2x16G", "--policy=best"], 2, "--policy=best is not pack or spread"),
        (["--gpus=2x16G", "--hours=1", "--svg", "/nowhere/a.svg"], 2, "/nowhere/a.svg: cannot be written"),
    ],
)
def test_what_cannot_be_simulated_is_said_without_a_traceback(home, words, status, says):
    done = home.run("fgsched", "simulate", *words)
    assert (done.status, done.out) == (status, "")
    assert says in done.err


def test_a_log_may_come_from_standard_input(home):
    home.ended()
    log = home.run("fgacct", "--json", env=zone_at_noon()).out
    done = home.run("fgsched", "simulate", "-", input=log)
    assert done.lines[0] == "1 job of standard input, 2 GPUs, pack"
    done = home.run("fgsched", "simulate", "-", input="{")
    assert done.err.startswith("fgsched: error: standard input: this is not the output of fgacct --json")


def test_only_the_jobs_of_a_partition_are_replayed_when_asked(home):
    home.ended()
    log = home.path / "log.json"
    log.write_text(home.run("fgacct", "--json", env=zone_at_noon()).out)
    assert home.run("fgsched", "simulate", str(log), "--partition=main", "--json").json["jobs"] == 1
    done = home.run("fgsched", "simulate", str(log), "--partition=night,day")
    assert (done.status, done.err) == (1, f"fgsched: error: {log}: it has no job that ran in night,day\n")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_long_run_tells_a_terminal_how_far_it_is(monkeypatch):
    monkeypatch.setattr(simulating.sys, "stderr", Terminal())
    progress = simulating._Progress(9)
    progress.update(4)
    assert simulating.sys.stderr.getvalue() == "", "not within the first two seconds"
    monkeypatch.setattr(simulating, "_PROGRESS_AFTER", 0.0)
    progress = simulating._Progress(9)
    progress.update(5)
    progress.clear()
    shown = "5 of 9 jobs started"
    assert simulating.sys.stderr.getvalue() == f"\r{shown}\r{' ' * len(shown)}\r"


def test_a_log_of_accounting_says_what_its_jobs_held(tmp_path):
    job = {
        **{
            "job_id": 17,
            "name": "train",
            "user": "ann",
            "uid": 7,
            "partition": "main",
            "time_limit": 60,
            "elapsed": 5.5,
        },
        **{"submit_time": 1.0, "start_time": 2.0, "req_gpu": 0.5, "req_gpu_mem": 4 << 30},
        **{"req_cpus": 2, "req_mem": None},
    }
    pair = job | {"req_gpu": 2.0}
    never = job | {"start_time": None}
    found = read("log.json", json.dumps({"jobs": [job, pair, never]}))
    half = Demand(gpus=1, share=5000, memory=4 << 30, cpus=2)
    assert [task.demand for task in found.tasks] == [half, Demand(gpus=2, share=WHOLE, cpus=2)]
    assert (found.tasks[0].waited, found.tasks[0].id) == (1, 17)
    assert measure(simulated(found.tasks[0])).longest.job == 17
    assert (found.tasks[0].run, found.tasks[0].time_limit, found.left_out) == (5.5, 60, 1)
