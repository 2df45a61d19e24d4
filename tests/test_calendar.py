"""Reservations that operators make: who may have the cards, when, and what is said of it."""

import math

from hypothesis import given
from hypothesis import strategies as st

from builders import GIB, LIMITS, a_demand, a_gpu
from fgsched.domain.job import WHOLE, Hold
from fgsched.domain.policy import Policy, Reservation
from fgsched.domain.states import Reason
from fgsched.scheduling.placement import HostRoom, rooms
from fgsched.scheduling.planner import JobClass, Queue, QueuedJob, Running, plan
from fgsched.scheduling.queue import PriorityBasis
from fgsched.scheduling.reservations import Calendar, conflicting_jobs, find_overbooking

PLENTY = HostRoom(cpus=1000, memory=2**50)
CARDS = [a_gpu(0), a_gpu(1)]
USABLE = {gpu.index: gpu.usable for gpu in CARDS}


def a_hold(share, gpu=0):
    return Hold(gpu=gpu, share=share, memory=USABLE[gpu] * share // WHOLE)


def a_booking(name="r", *, start=100, end=200, share=WHOLE, gpus=(0,)):
    return Reservation(name=name, start=start, end=end, holds=tuple(a_hold(share, gpu) for gpu in gpus))


def decide(queue, reservations, *, running=(), now=0.0, gpus=CARDS[:1], order=None):
    free = rooms(gpus, [(hold, False) for job in running for hold in job.holds], {})
    order = order or PriorityBasis(policy=Policy(reservations=tuple(reservations)))
    return plan(Queue(queue, order), list(running), free, PLENTY, limits=LIMITS, now=now)


def started(decided):
    return [start.job_id for start in decided.starts]


def running(share, *, until=math.inf, gpu=0, reservation="", job=9):
    return Running(a_demand(share), (a_hold(share, gpu),), until, id=job, reservation=reservation)


def test_a_job_that_would_run_into_a_reservation_waits_and_a_shorter_one_does_not():
    queue = [QueuedJob(1, a_demand(5000), 101), QueuedJob(2, a_demand(5000), 100)]
    decided = decide(queue, [a_booking()])
    assert started(decided) == [2]
    shortfall = decided.shortfall(JobClass(a_demand(5000), 101))
    assert (shortfall.reason, shortfall.what, shortfall.scope) == (Reason.RESERVATION, "room", "r")


def test_a_job_without_a_limit_runs_into_every_reservation():
    assert started(decide([QueuedJob(1, a_demand(5000))], [a_booking(start=10**9, end=10**9 + 1)])) == []


def test_what_a_reservation_leaves_of_a_card_is_everybodys():
    queue = [QueuedJob(1, a_demand(5000)), QueuedJob(2, a_demand(2500))]
    assert started(decide(queue, [a_booking(share=5000)])) == [1]


def test_a_job_that_will_have_ended_by_then_is_not_in_the_way():
    queue = [QueuedJob(1, a_demand(5000), 500)]
    first = running(5000, until=90.0)
    assert started(decide(queue, [a_booking(share=5000)], running=[first])) == [1]
    stays = running(5000, until=101.0)
    assert started(decide(queue, [a_booking(share=5000)], running=[stays])) == []


def test_a_reservation_is_for_its_own_jobs_from_its_beginning_to_its_end():
    of_it = QueuedJob(1, a_demand(WHOLE), 50, reservation="r")
    for now, starts in ((99, []), (100, [1]), (150, [1]), (151, []), (200, [])):
        decided = decide([of_it], [a_booking()], now=float(now))
        assert started(decided) == starts, now
    assert decided.shortfall(of_it.kind).what == "gone"
    assert decide([of_it], [a_booking()]).shortfall(of_it.kind).what == "begin"
    assert decide([of_it], [a_booking()], now=160.0).shortfall(of_it.kind).what == "end"


def test_its_jobs_have_no_more_than_it_keeps():
    queue = [QueuedJob(number, a_demand(2500), 50, reservation="r") for number in (1, 2, 3)]
    assert started(decide(queue, [a_booking(share=5000)], now=100.0)) == [1, 2]
    busy = [running(2500, reservation="r", until=150.0)]
    assert started(decide(queue, [a_booking(share=5000)], now=100.0, running=busy)) == [1]


def test_what_a_job_of_a_reservation_takes_it_takes_of_that_alone():
    queue = [QueuedJob(1, a_demand(5000), 50, reservation="r"), QueuedJob(2, a_demand(5000), 60, since=1.0)]
    assert started(decide(queue, [a_booking(share=5000)], now=100.0)) == [1, 2]


def test_a_job_of_a_reservation_that_is_full_keeps_nobody_else_back():
    queue = [QueuedJob(1, a_demand(5000), 50, reservation="r"), QueuedJob(2, a_demand(5000), 500)]
    busy = [running(2500, reservation="r", until=190.0)]
    assert started(decide(queue, [a_booking(share=5000)], now=100.0, running=busy)) == [2]


def test_within_a_reservation_a_large_job_does_not_starve():
    queue = [QueuedJob(1, a_demand(WHOLE), 20, reservation="r")]
    queue += [QueuedJob(2, a_demand(2500), 80, reservation="r", since=1.0)]
    busy = [running(5000, reservation="r", until=150.0)]
    decided = decide(queue, [a_booking()], now=110.0, running=busy)
    assert started(decided) == []
    assert decided.reserved["main@r"].at == 150.0


def test_the_first_job_that_does_not_fit_starts_once_the_reservation_is_over():
    decided = decide([QueuedJob(1, a_demand(WHOLE), 500)], [a_booking()])
    assert decided.reserved["main"].at == 200.0


def test_reservations_may_share_a_card_and_no_more():
    half, quarter = a_booking("h", share=5000), a_booking("q", share=2500, start=150, end=300)
    assert find_overbooking(quarter, [half], USABLE) is None
    assert find_overbooking(a_booking("x", share=7500), [half], USABLE) == (0, "h")
    assert find_overbooking(a_booking("x", share=7500, start=200, end=201), [half], USABLE) is None
    assert find_overbooking(a_booking("x", share=5000), [half, quarter], USABLE) == (0, "h")


def test_jobs_that_may_still_run_are_in_the_way_of_a_new_reservation():
    jobs = [running(5000, until=101.0, job=1), running(2500, until=99.0, job=2), running(1000, gpu=1, job=3)]
    free = rooms(CARDS, [(hold, False) for job in jobs for hold in job.holds], {})
    assert conflicting_jobs(a_booking(), [], jobs, free, 0.0) == [1]
    assert conflicting_jobs(a_booking(share=5000), [], jobs, free, 0.0) == []
    assert conflicting_jobs(a_booking(share=5000, start=0), [], jobs, free, 0.0) == [1, 2]


def test_the_calendar_of_a_plan_stays_right_while_jobs_start():
    """What a job takes, it takes of the moments in which it may still run, and of its own reservation."""
    free = rooms(CARDS[:1], [], {})
    calendar = Calendar.of([a_booking(share=5000)], [], free, 0.0)
    calendar.take([a_hold(2500)], 100.0, "")
    assert calendar.rooms("", math.inf)[0].share == 5000
    calendar.take([a_hold(2500)], 101.0, "")
    assert calendar.rooms("", math.inf)[0].share == 2500
    assert calendar.rooms("", 100.0)[0].share == WHOLE, "the stock takes from that"


reservations = st.builds(
    lambda start, length, share, gpus: a_booking(start=start, end=start + length, share=share, gpus=gpus),
    st.integers(0, 200),
    st.integers(1, 100),
    st.sampled_from([2500, 5000, WHOLE]),
    st.sampled_from([(0,), (1,), (0, 1)]),
)
asked = st.tuples(
    st.sampled_from([1000, 2500, 5000, WHOLE]),
    st.sampled_from([0, 10, 40, 90]),  # its limit
    st.integers(0, 250),  # when it comes
    st.sampled_from(["", "", "0", "1"]),  # its reservation
    st.integers(1, 12),  # how long it runs, in twelfths of its limit
)


def accepted(found):
    """Those of the reservations that a controller would have taken, one after the other."""
    kept = []
    for number, reservation in enumerate(found):
        named = a_booking(
            str(number),
            start=reservation.start,
            end=reservation.end,
            share=reservation.holds[0].share,
            gpus=tuple(hold.gpu for hold in reservation.holds),
        )
        if find_overbooking(named, kept, USABLE) is None:
            kept.append(named)
    return kept


@given(found=st.lists(reservations, max_size=4), jobs=st.lists(asked, max_size=12))
def test_nothing_else_has_what_is_reserved_and_its_own_jobs_have_no_more(found, jobs):
    kept = accepted(found)
    order = PriorityBasis(policy=Policy(reservations=tuple(kept)))
    waiting = {
        number: (QueuedJob(number, a_demand(share), limit, reservation=name, since=at), lasts)
        for number, (share, limit, at, name, lasts) in enumerate(jobs, 1)
    }
    busy = {}
    for now in range(0, 400, 2):
        busy = {job: each for job, each in busy.items() if each[1] > now}
        queue = [job for job, _ in waiting.values() if job.since <= now]
        decided = decide(
            queue, (), running=[each for each, _ in busy.values()], now=float(now), gpus=CARDS, order=order
        )
        for start in decided.starts:
            job, lasts = waiting.pop(start.job_id)
            until = now + job.time_limit if job.time_limit else math.inf
            over = now + (job.time_limit * lasts / 12 if job.time_limit else 5 * lasts)
            one = Running(
                job.demand, start.holds, until, id=job.id, owner=job.owner, reservation=job.reservation
            )
            busy[start.job_id] = (one, over)
        check(kept, [each for each, _ in busy.values()], now)
    for job, _ in waiting.values():
        assert job.reservation, "whoever needs no reservation starts at last"


def check(kept, busy, now):
    for gpu in CARDS:
        here = {
            name: sum(
                hold.share
                for job in busy
                if job.reservation == name
                for hold in job.holds
                if hold.gpu == gpu.index
            )
            for name in {"", *(job.reservation for job in busy)}
        }
        reserved = {
            one.name: hold.share
            for one in kept
            if one.start <= now < one.end
            for hold in one.holds
            if hold.gpu == gpu.index
        }
        assert here[""] + sum(reserved.values()) <= WHOLE
        for name, share in here.items():
            assert not name or share <= reserved.get(name, 0)


def test_all_of_it_is_checked_in_bytes_too():
    small = a_demand(memory=USABLE[0] // 2 + GIB)
    assert started(decide([QueuedJob(1, small)], [a_booking(share=5000)])) == []
