"""What the planner is told of running jobs: kept while it is true, and no longer."""

import math

import pytest
from msgspec.structs import replace

from builders import a_job
from fgsched.controller.jobtable import RunningJobs
from fgsched.domain.states import JobState


def limited(seconds=100, **more):
    job = a_job(1, state=JobState.RUNNING, **more)  # since 1.0
    return replace(job, request=replace(job.request, time_limit=seconds))


@pytest.fixture
def runs():
    return RunningJobs()


def test_nothing_is_made_twice_of_a_job_that_stays_as_it_is(runs):
    (first,) = runs.of([limited()], 5.0)
    (second,) = runs.of([limited()], 50.0)
    assert first.until == 101.0
    assert second is first


def test_a_job_that_has_changed_is_seen_as_it_is_now(runs):
    runs.of([limited()], 5.0)
    runs.changed(1)
    assert [one.until for one in runs.of([limited(300)], 5.0)] == [301.0]


def test_a_job_past_its_time_may_end_at_each_moment(runs):
    job = limited()
    assert [one.until for one in runs.of([job], 5.0)] == [101.0]
    assert [one.until for one in runs.of([job], 150.0)] == [150.0]
    assert [one.until for one in runs.of([job], 160.0)] == [160.0]


def test_a_clock_that_is_set_back_makes_nothing_last_longer(runs):
    job = limited()
    runs.of([job], 1000.0)
    assert [one.until for one in runs.of([job], 50.0)] == [101.0]
    cleaning = a_job(2, state=JobState.COMPLETING)
    runs.of([cleaning], 1000.0)
    assert [one.until for one in runs.of([cleaning], 50.0)] == [50.0]


def test_a_job_without_a_limit_never_surely_ends(runs):
    assert [one.until for one in runs.of([a_job(1, state=JobState.RUNNING)], 5.0)] == [math.inf]
