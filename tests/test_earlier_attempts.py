"""What an earlier attempt left counts for it, and once: late answers, holds, charges, suspensions, ends."""

from dataclasses import dataclass, field

import pytest

from builders import World, a_demand, a_gpu, a_job, a_result
from fgsched.controller.turn import EpilogDone, HostShort
from fgsched.domain.job import WHOLE
from fgsched.domain.states import JobState
from fgsched.lifecycle.dependencies import ConditionState, Term, judge, target_state
from fgsched.lifecycle.transitions import charged_period
from test_arrays import outcomes
from test_dependencies import a_world
from test_engine import a_world_that_tries_again
from test_hooks import with_epilogs


def a_requeued_attempt_in_its_epilog() -> World:
    """The second attempt of a job has ended, and its epilog runs; the first one was withdrawn."""
    world = with_epilogs(a_gpu(0))
    world.submit([a_demand(WHOLE)])
    world.host.inbox.clear()
    world.host.attempts.clear()
    world.start()
    world.turn()
    world.epilogs.end()
    world.settle()
    world.host.finish(1, 2, a_result())
    world.settle()
    assert (world.job(1).state, world.job(1).attempt) == (JobState.COMPLETING, 2)
    return world


def test_the_epilog_of_an_earlier_attempt_does_not_end_the_present_one():
    world = a_requeued_attempt_in_its_epilog()
    world.turn(EpilogDone(1, 1))
    assert (world.job(1).state, len(world.holds())) == (JobState.COMPLETING, 1)
    world.turn(EpilogDone(1, 1, "exited with status 1"))
    assert world.engine.gpu_states.gpu(0).note == "", "the GPU is drained for an epilog that is long over"
    world.epilogs.end()
    assert (world.job(1).state, world.holds()) == (JobState.COMPLETED, [])


def test_a_shortage_of_the_host_for_an_earlier_attempt_does_not_return_the_present_one():
    world = a_world_that_tries_again()
    world.turn(HostShort(1, 1, "no memory"))
    assert (world.job(1).state, world.job(1).attempt) == (JobState.STARTING, 2)


def test_an_attempt_that_is_requeued_after_it_ran_has_its_epilog_first():
    world = with_epilogs(a_gpu(0))
    world.submit([a_demand(WHOLE)])
    world.settle()
    world.host.boot = "boot-2"  # the host was restarted
    world.host.attempts[1, 1].shepherd = False
    world.start()
    world.turn()
    assert (world.job(1).state, world.epilogs.asked) == (JobState.COMPLETING, [(1, 1)])
    assert len(world.holds()) == 1
    world.epilogs.end()
    world.settle()
    assert (world.job(1).state, world.job(1).attempt) == (JobState.RUNNING, 2)


@dataclass
class Ledger:
    """The charges of fair share: (job, attempt, epoch seconds of the end)."""

    charged: list[tuple[int, int, float]] = field(default_factory=list)

    def watch(self, world: World) -> None:
        charge = world.engine.charges.charge

        def noted(job, given, now, policy):
            self.charged.append((job.id, job.attempt, charged_period(job, now)[1]))
            charge(job, given, now, policy)

        world.engine.charges.charge = noted


def test_the_holds_of_a_job_that_is_requeued_while_its_gpu_is_cleaned_are_released_once():
    world, ledger = a_world(), Ledger()
    ledger.watch(world)
    states = world.engine.gpu_states
    states.needs_cleaning = True
    outcomes(world, "requeue", 1)
    world.settle()
    assert (world.job(1).state, ledger.charged) == (JobState.COMPLETING, [])
    states.needs_cleaning = False
    world.settle()
    job = world.job(1)
    assert (job.state, job.attempt, len(world.holds())) == (JobState.RUNNING, 2, 1)
    assert [charge[:2] for charge in ledger.charged] == [(1, 1)]
    assert list(world.engine.jobtable.holding[1].holds) == world.holds()


@pytest.mark.parametrize("cleaning", [0, 1000], ids=["at once", "after 1000 s"])
def test_an_attempt_is_charged_until_the_end_in_its_result_and_not_until_its_gpu_is_clean(cleaning):
    world, ledger = World([a_gpu(0)]), Ledger()
    ledger.watch(world)
    world.submit([a_demand(WHOLE)])
    world.settle()
    world.engine.gpu_states.needs_cleaning = True
    world.now += 500
    world.host.finish(1, 1, a_result(started_at=1010.0, ended_at=1110.0))
    world.turn()
    world.now += cleaning
    world.engine.gpu_states.needs_cleaning = False
    world.settle()
    assert world.job(1).state is JobState.COMPLETED
    assert ledger.charged == [(1, 1, 1110.0)]


@pytest.mark.parametrize("cleaning", [0, 1000], ids=["at once", "after 1000 s"])
def test_a_requeued_attempt_is_charged_until_its_end_in_the_accounts(cleaning):
    world = a_world()
    world.host.requeue = lambda job: True
    world.engine.gpu_states.needs_cleaning = True
    outcomes(world, "requeue", 1)
    world.now += 500
    began = world.now - 400
    world.host.finish(1, 1, a_result(15, "requeue", started_at=began, ended_at=began + 100))
    world.turn()
    world.now += cleaning
    world.engine.gpu_states.needs_cleaning = False
    world.settle()
    assert world.job(1).attempt == 2
    share = sum(one.charged for one in world.engine.jobtable.allocations[1]) / WHOLE
    assert world.job(1).charged_before == pytest.approx(100 * share)


def test_the_time_limit_stands_still_while_a_job_is_suspended_also_the_second_time():
    world = a_world(a_demand(WHOLE), time_limit=600)
    before = world.job(1).deadline
    for seconds in (50, 70):
        outcomes(world, "suspend", 1)
        world.now += seconds
        outcomes(world, "resume_jobs", 1)
    assert world.job(1).deadline - before == 50 + 70 + 2
    world.start()
    world.settle()
    assert world.engine.jobtable.holding[1].deadline - before == 50 + 70 + 2


ENDS = [state for state in JobState if state.is_final]


@pytest.mark.parametrize("state", ENDS, ids=lambda state: state.value)
def test_only_a_completed_job_satisfies_afterok_and_only_another_end_afternotok(state):
    fact = target_state(a_job(1, state=state))
    has_completed = state is JobState.COMPLETED
    judged = {
        kind: judge(Term(kind, 1), fact, 0.0) for kind in ("afterok", "aftercorr", "afternotok", "afterany")
    }
    assert judged == {
        "afterok": ConditionState.MET if has_completed else ConditionState.NEVER,
        "aftercorr": ConditionState.MET if has_completed else ConditionState.NEVER,
        "afternotok": ConditionState.NEVER if has_completed else ConditionState.MET,
        "afterany": ConditionState.MET,
    }


def test_a_job_that_waits_for_the_success_of_a_cancelled_one_never_starts():
    world = a_world(a_demand(WHOLE), a_demand(WHOLE))
    world.submit([a_demand(100)], dependency="afterok:2")
    outcomes(world, "cancel", 2)
    world.settle()
    assert world.job(2).state is JobState.CANCELLED
    assert world.job(3).state is JobState.PENDING
    assert 3 not in world.host.runs


def test_a_gpu_that_is_clean_after_its_job_was_requeued_releases_nothing_again():
    """An epilog that an earlier controller began ended the attempt while its GPU was cleaned."""
    world, ledger = a_world(), Ledger()
    ledger.watch(world)
    states = world.engine.gpu_states
    states.needs_cleaning = True
    outcomes(world, "requeue", 1)
    world.settle()
    assert (world.job(1).state, states.is_cleaning, ledger.charged) == (JobState.COMPLETING, True, [])
    world.turn(EpilogDone(1, 1))
    assert [charge[:2] for charge in ledger.charged] == [(1, 1)]
    world.settle()
    states.needs_cleaning = False
    world.settle()
    job = world.job(1)
    assert (job.state, job.attempt, job.held, job.warning) == (JobState.RUNNING, 2, "", "")
    assert (len(world.holds()), [charge[:2] for charge in ledger.charged]) == (1, [(1, 1)])


def test_an_attempt_that_is_withdrawn_keeps_its_gpu_until_its_epilog_has_run():
    """The host lacked something for its first process, after the prolog had run."""
    world = with_epilogs(a_gpu(0))
    world.submit([a_demand(WHOLE)])
    world.host.inbox.clear()
    world.turn(HostShort(1, 1, "no memory"))
    assert (world.job(1).state, len(world.holds())) == (JobState.COMPLETING, 1)
    assert world.epilogs.asked == [(1, 1)]
    world.epilogs.end()
    assert world.job(1).state is JobState.PENDING
