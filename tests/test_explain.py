"""What keeps a job from being considered, in words."""

from dataclasses import replace

import pytest

from builders import a_job
from fgsched.domain.job import Reason
from fgsched.scheduling.explain.explain import gate

KEPT = [
    *(Reason.HELD_USER, Reason.HELD_ADMIN, Reason.HELD_MAX_REQUEUE, Reason.INTERNAL_ERROR),
    *(Reason.DEPENDENCY, Reason.DEPENDENCY_NEVER, Reason.BEGIN_TIME, Reason.ARRAY_TASK_LIMIT),
]


@pytest.mark.parametrize("reason", KEPT)
def test_whatever_keeps_a_job_from_being_considered_has_a_sentence(reason):
    assert " " in gate(a_job(depends="afterok:3"), reason)


def test_a_failure_of_the_host_is_counted_in_words():
    once = replace(a_job(), failures=1)
    assert gate(once, Reason.HELD_MAX_REQUEUE).startswith("the host failed it once;")
    assert gate(replace(once, failures=2), Reason.HELD_MAX_REQUEUE).startswith("the host failed it 2 times;")
