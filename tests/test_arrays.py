"""Lists of indices, and the rows of an array: made as tasks start, limited, cancelled, never lost."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import ROOT, World, a_demand, a_gpu, a_result
from crashing import Power, power_cuts
from fgsched.controller.handlers.jobref import References
from fgsched.domain.errors import FgschedError
from fgsched.domain.job import WHOLE
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import BadValue
from fgsched.lifecycle.arrays import (
    bits_from,
    format_array,
    lowest,
    parse_array,
    parse_tasks,
    tasks,
    variables,
)
from fgsched.store.schema import SQL

# -- lists ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "listed", "most"),
    [
        ("3", "3", 0),
        ("0-15", "0-15", 0),
        ("0-15:4", "0-12:4", 0),
        ("0-15:4%2", "0-12:4", 2),
        ("5,1-3,2", "1-3,5", 0),
        ("[1,9]%1", "1,9", 1),
        ("1-9:9", "1", 0),
        ("0-4:2,5", "0,2,4-5", 0),
        ("100000", "100000", 0),
    ],
)
def test_a_list_of_indices_has_one_shortest_form(text, listed, most):
    assert parse_array(text) == (listed, most)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("5-1", "'5-1' runs backwards"),
        ("1-", "'1-' is not an index or a range"),
        ("a-b", "'a-b' is not an index or a range"),
        ("1,,2", "'' is not an index or a range"),
        ("", "'' is not an index or a range"),
        ("1-9:0", "the step of '1-9:0' is 0"),
        ("0-9%0", "'%0' is not a number of tasks"),
        ("0-9%", "'%' is not a number of tasks"),
        ("-1", "'-1' is not an index or a range"),
        ("0-9999999999", "is an array of 10000000000 tasks; limit 100000"),
        ("100001", "an index is at most 100000"),
        ("٣", "is not an index or a range"),
    ],
)
def test_a_bad_list_is_refused_and_its_part_named(text, why):
    with pytest.raises(BadValue) as error:
        parse_array(text)
    assert why in error.value.why


@given(st.sets(st.integers(0, 5000), min_size=1, max_size=300))
def test_what_is_written_of_a_set_is_read_as_the_same(indices):
    bits = bits_from(indices)
    assert list(tasks(bits)) == sorted(indices)
    assert lowest(bits) == min(indices)
    assert parse_tasks(format_array(bits)) == bits


def test_a_task_is_told_of_its_array_what_slurm_tells():
    assert variables("0-12:4") == {"COUNT": 4, "MIN": 0, "MAX": 12, "STEP": 4}
    assert variables("1,5-6") == {"COUNT": 3, "MIN": 1, "MAX": 6, "STEP": 1}


# -- rows -----------------------------------------------------------------------------------------


def outcomes(world, name, *ids, **more):
    """Return (id, outcome or refusal) of each job of a request."""
    answers = world.ask(ROOT, name, ids=list(ids), **more)["jobs"]
    return [(answer["id"], answer.get("outcome") or answer["error"]["cause"]) for answer in answers]


def rows(world):
    """Return (task, state) of each row of the first job, an array; the rest comes last."""
    return [(past.job.task, past.job.state.code) for past in world.store.tasks.of(1)]


def end(world, *tasks, status=0):
    """End tasks of the first job."""
    for task in tasks:
        job = world.store.tasks.get(1, task).job
        world.host.finish(job.id, job.attempt, a_result(status))
    world.settle()


def an_array(listed="0-7", throttle=0, share=2500, **more):
    world = World([a_gpu(0)])
    world.submit([a_demand(share)], array=listed, throttle=throttle, **more)
    world.settle()
    return world


def test_an_array_is_one_row_until_its_tasks_start():
    world = an_array()
    assert rows(world) == [(0, "R"), (1, "R"), (2, "R"), (3, "R"), (None, "PD")]
    assert world.store.last_id() == 5
    end(world, 1)
    assert rows(world)[-2:] == [(4, "R"), (None, "PD")]


def test_an_array_is_found_by_its_number_as_long_as_one_of_its_tasks_is_open():
    world = an_array("0-2")
    end(world, 2)  # it has the first row
    assert (1 in world.engine.jobtable.jobs, world.engine.jobtable.named(1).array) == (False, 1)
    end(world, 0, 1)
    assert world.engine.jobtable.named(1) is None


def test_the_last_task_takes_the_row_of_its_array():
    world = an_array("3,8")
    assert rows(world) == [(3, "R"), (8, "R")]
    assert world.job(1).task == 8
    assert not world.job(1).is_rest


def test_no_more_tasks_run_than_the_array_allows():
    world = an_array(throttle=2)
    assert rows(world) == [(0, "R"), (1, "R"), (None, "PD")]
    rest = world.engine.jobtable.jobs[1]
    assert world.engine.jobtable.reason(rest) is Reason.ARRAY_TASK_LIMIT
    end(world, 0)
    assert rows(world) == [(0, "CD"), (1, "R"), (2, "R"), (None, "PD")]


def test_how_many_run_can_be_changed_while_they_do():
    world = an_array(throttle=1)
    world.ask(ROOT, "update", id=1, changes={"throttle": 3})
    world.settle()
    assert [task for task, state in rows(world) if state == "R"] == [0, 1, 2]
    world.ask(ROOT, "update", id=1, changes={"throttle": 0})
    world.settle()
    assert [task for task, state in rows(world) if state == "R"] == [0, 1, 2, 3]


def test_a_job_that_is_no_array_has_no_limit_of_tasks():
    world = World([a_gpu(0)])
    world.submit([a_demand(2500)])
    with pytest.raises(FgschedError, match="job 1 is no array"):
        world.ask(ROOT, "update", id=1, changes={"throttle": 3})


def test_waiting_tasks_that_are_cancelled_alone_get_rows_and_the_rest_goes_on():
    world = an_array()
    assert outcomes(world, "cancel", "1_[5-6]") == [("1_5", "cancelled"), ("1_6", "cancelled")]
    end(world, 0, 1, 2, 3)
    assert rows(world) == [
        *((task, "CD") for task in range(4)),
        *((4, "R"), (5, "CA"), (6, "CA"), (7, "R")),
    ]


def test_an_array_that_is_cancelled_is_cancelled_whole():
    world = an_array()
    assert len(outcomes(world, "cancel", 1)) == 5
    world.settle()
    assert {state for _, state in rows(world)} == {"CA"}
    assert world.engine.jobtable.jobs == {}
    assert world.engine.jobtable.arrays.get(1) is None


def test_a_running_task_is_cancelled_alone():
    world = an_array()
    assert outcomes(world, "cancel", "1_2") == [("1_2", "cancelled")]
    world.settle()
    assert rows(world)[2:5] == [(2, "CA"), (3, "R"), (4, "R")]


def test_a_task_that_there_is_not_is_named():
    world = an_array("0-3")
    assert outcomes(world, "cancel", "1_[3-4]") == [("1_[3-4]", "Invalid job id specified: 1_4")]
    assert outcomes(world, "cancel", "2_1") == [("2_1", "Invalid job id specified: 2_1")]


def test_a_held_task_does_not_keep_the_others_back():
    world = an_array()
    assert outcomes(world, "hold", "1_4") == [("1_4", "held")]
    end(world, 0)
    assert rows(world)[4:] == [(4, "PD"), (5, "R"), (None, "PD")]
    outcomes(world, "release", "1_4")
    end(world, 1)
    assert rows(world)[4] == (4, "R")


def test_a_task_that_is_requeued_runs_again_and_counts_in_its_arrays_limit():
    world = an_array(throttle=2)
    assert outcomes(world, "requeue", "1_0") == [("1_0", "requeued")]
    world.settle()
    job = world.store.tasks.get(1, 0).job
    assert (job.restarts, job.attempt) == (1, 2 if job.state is JobState.RUNNING else 1)
    assert sum(state == "R" for _, state in rows(world)) == 2


def test_what_was_started_of_an_array_is_known_to_the_next_controller():
    world = an_array()
    world.start()
    world.settle()
    end(world, 0, 1)
    assert rows(world) == [
        *((0, "CD"), (1, "CD"), (2, "R"), (3, "R"), (4, "R"), (5, "R")),
        (None, "PD"),
    ]
    assert world.engine.jobtable.arrays.get(1).pending_bits == 0b11000000


def test_every_column_of_an_array_goes_to_its_tasks_but_those_of_a_run():
    world = an_array(comment="x", time_limit=60)
    array, task = world.job(1), world.store.tasks.get(1, 0).job
    for name in ("uid", "gid", "user", "request", "submitted_at", "array"):
        assert getattr(task, name) == getattr(array, name)
    assert world.store.material(task.id) == world.store.material(array.id)


def columns(statement):
    """Those that an INSERT writes."""
    listed = re.search(r"INSERT INTO job \((.*?)\)", SQL[statement], re.DOTALL)[1]
    return {name.strip() for name in listed.split(",")}


def test_all_that_a_submission_writes_goes_to_each_task():
    assert columns("add_job") - {"id"} <= columns("make_task")


def six_tasks(effects):
    """Six tasks: one is cancelled, one is requeued; the power fails after some effects."""
    world = World([a_gpu(0)])
    power = Power(world, effects)
    submit = {"array": "0-5", "throttle": 2, "key": "key-of-the-array-0123"}
    power.step(lambda: world.submit([a_demand(2500)], **submit))
    power.step(world.settle)
    power.step(lambda: world.ask(ROOT, "cancel", ids=["1_4"]))
    power.step(lambda: world.ask(ROOT, "requeue", ids=["1_0"]))
    for _ in range(8):
        power.step(world.settle)
        for job, attempt in list(world.host.running):
            world.host.finish(job, attempt, a_result())
    power.step(world.settle)
    return power


@pytest.mark.parametrize("effects", range(70))
def test_a_crash_at_any_effect_loses_no_task_and_makes_none_twice(effects):
    world = six_tasks(effects).world
    states = dict(rows(world))
    assert set(states) == set(range(6)), "each task has a row in the end, and one only"
    assert {task for task, state in states.items() if state == "CA"} == {4}
    assert {state for task, state in states.items() if task != 4} == {"CD"}
    for task in (1, 2, 3, 5):
        assert world.host.runs.count(world.store.tasks.get(1, task).job.id) == 1
    assert world.holds() == []
    assert world.engine.jobtable.arrays.get(1) is None


def test_the_crashes_above_reach_from_the_first_effect_to_the_last():
    cuts = power_cuts(six_tasks, 70)
    assert sum(cuts) >= 30
    assert cuts[69] == 0


def test_every_task_that_waits_is_counted():
    world = an_array("0-99", share=5000)
    assert world.engine.jobtable.tasks(world.job(1)) == 98
    assert sum(world.engine.jobtable._queued.values()) == 98


def test_one_plan_starts_as_many_tasks_as_fit():
    world = an_array("0-99", share=WHOLE // 64 * 1)
    assert sum(state == "R" for _, state in rows(world)) == 64


def test_each_row_of_some_tasks_is_found_once():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)], array="0-5")
    world.settle()
    for _ in ("some tasks wait", "and were cancelled with their array"):
        seen = References(world.engine).seen_parts("1_[0-5]", ROOT)
        assert [record.job.id for part in seen for record in part] == [2, 3, 1]
        world.ask(ROOT, "cancel", ids=[1])
