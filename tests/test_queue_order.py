"""The order of the jobs of a class, however they were added, changed and removed."""

from hypothesis import given
from hypothesis import strategies as st

from builders import a_demand
from fgsched.scheduling.queue import Queue, QueuedJob

DEMAND = a_demand(1)
times = st.integers(0, 5).map(float)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 12), times),
        st.tuples(st.just("remove"), st.integers(0, 12)),
    ),
    max_size=30,
)


def carry_out(change, queue, known):
    """Make one change; `known` is {id: begin of the wait}."""
    match change:
        case ("add", job_id, since):
            known[job_id] = since
            queue.add(QueuedJob(job_id, DEMAND, since=since))
        case ("remove", job_id):
            known.pop(job_id, None)
            queue.remove(job_id)


@given(changes)
def test_the_jobs_of_a_class_are_in_the_order_of_their_times_and_ids(steps):
    queue, known = Queue(), {}
    for step in steps:
        carry_out(step, queue, known)
        expected = sorted((since, job_id) for job_id, since in known.items())
        found = [(list(group.in_order()), group.first, len(group)) for group in queue.groups]
        assert found == ([(expected, expected[0], len(expected))] if expected else [])
        assert len(queue) == len(known)
