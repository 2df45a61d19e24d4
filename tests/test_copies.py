"""Copies of frozen values: the same as dataclasses.replace, and as frozen."""

from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest

from builders import a_job
from fgsched.domain.copies import copier
from fgsched.domain.job import Job, JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A value."""

    x: int
    y: int = 2
    tags: tuple[str, ...] = field(default=())


changed = copier(Point)


def test_a_copy_is_equal_and_another_object():
    point = Point(x=1, tags=("a",))
    copy = changed(point, {})
    assert copy == point
    assert copy is not point
    assert type(copy) is Point
    assert hash(copy) == hash(point)


def test_only_what_is_named_changes():
    assert changed(Point(x=1, y=5), {"x": 7}) == Point(x=7, y=5)


def test_a_copy_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        changed(Point(x=1), {"y": 3}).x = 4


def test_what_it_was_made_of_stays_as_it_is():
    point = Point(x=1)
    changed(point, {"x": 9})
    assert point == Point(x=1)


def test_a_field_that_does_not_exist_is_refused():
    with pytest.raises(AttributeError, match="z"):
        changed(Point(x=1), {"z": 3})


@pytest.mark.parametrize("name", [each.name for each in fields(Job)])
def test_each_field_of_a_job_is_copied(name):
    job = a_job(7, state=JobState.RUNNING)
    other = replace(job, **{name: object()})
    assert getattr(other.changed(), name) is getattr(other, name)
    assert other.changed() == other
