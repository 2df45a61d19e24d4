"""Arrays, dependencies, restarts and suspending under any order of events: what must hold after each."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from builders import ROOT, World, a_demand, a_gpu, a_result
from crashing import Power
from fgsched.controller.jobtable import JobTable
from fgsched.domain.job import WHOLE
from fgsched.domain.states import JobState
from fgsched.lifecycle.arrays import bits_of

GPUS = [a_gpu(0), a_gpu(1)]
SHARES = st.sampled_from([100, 2500, 5000, WHOLE])


class Floor(RuleBasedStateMachine):
    """A world with two cards."""

    @initialize()
    def begin(self):
        self.world = World(GPUS)

    def known(self):
        return list(self.world.acknowledged)

    @rule(share=SHARES)
    def submit(self, share):
        self.world.submit([a_demand(share)])

    @rule(share=SHARES, count=st.integers(1, 9), throttle=st.integers(0, 3))
    def submit_array(self, share, count, throttle):
        self.world.submit([a_demand(share)], array=f"0-{count - 1}" if count > 1 else "0", throttle=throttle)

    @precondition(known)
    @rule(data=st.data(), kind=st.sampled_from(["after", "afterany", "afterok", "afternotok", "aftercorr"]))
    def submit_after(self, data, kind):
        others = data.draw(st.lists(st.sampled_from(self.known()), min_size=1, max_size=2, unique=True))
        joint = data.draw(st.sampled_from([",", "?"]))
        array = data.draw(st.sampled_from(["", "0-2"]))
        kill = data.draw(st.sampled_from(["yes", "no"]))
        dependency = joint.join(f"{kind}:{one}" for one in others)
        self.world.submit([a_demand(100)], dependency=dependency, array=array, kill_invalid=kill)

    @rule()
    def submit_singleton(self):
        self.world.submit([a_demand(100)], dependency="singleton")

    @rule(wait=st.integers(1, 100))
    def submit_for_later(self, wait):
        self.world.submit([a_demand(100)], begin=int(self.world.now) + wait)

    @rule(seconds=st.sampled_from([0, 1, 50, 200]))
    def time_passes(self, seconds):
        self.world.now += seconds
        self.world.turn()

    @precondition(lambda self: self.world.host.running)
    @rule(data=st.data(), status=st.sampled_from([0, 0, 256]))
    def finish(self, data, status):
        job, attempt = data.draw(st.sampled_from(self.world.host.running))
        self.world.host.finish(job, attempt, a_result(status))

    @precondition(known)
    @rule(
        data=st.data(),
        verb=st.sampled_from(["cancel", "requeue", "suspend", "resume_jobs", "hold", "release"]),
        task=st.sampled_from([None, 0, 2, 8]),
    )
    def order(self, data, verb, task):
        job = data.draw(st.sampled_from(self.known()))
        self.world.ask(ROOT, verb, ids=[job if task is None else f"{job}_{task}"])

    @rule()
    def restart(self):
        self.world.start()

    @rule(left=st.integers(0, 8))
    def crash_in_a_turn(self, left):
        power = Power(self.world, left)
        power.step(lambda: (self.world.submit([a_demand(2500)], array="0-3"), self.world.turn()), again=False)
        power.restore()

    @invariant()
    def no_gpu_is_over_held(self):
        for gpu in GPUS:
            on_it = [hold.share for hold in self.world.holds() if hold.gpu == gpu.index]
            assert sum(on_it) <= WHOLE
            assert WHOLE not in on_it or on_it == [WHOLE]

    @invariant()
    def no_array_runs_more_than_it_may(self):
        running = {}
        for job in self.world.store.open_jobs():
            if job.array and job.state.holds and job.request.throttle:
                running[job.array] = running.get(job.array, 0) + 1
                assert running[job.array] <= job.request.throttle

    @invariant()
    def every_task_is_in_one_row(self):
        for job_id in self.world.acknowledged:
            first = self.world.job(job_id)
            if not first.array:
                continue
            rows = [past.job for past in self.world.store.tasks.of(job_id)]
            made = [row.task for row in rows if row.task is not None]
            rest = self.world.store.tasks.rest(first) if first.is_rest else 0
            assert len(made) == len(set(made))
            assert rest | sum(1 << task for task in made) == bits_of(first.request.array)

    @invariant()
    def nothing_runs_whose_dependency_is_open(self):
        for job in self.world.store.open_jobs():
            assert not (job.depends and job.state.holds)

    @invariant()
    def nothing_ran_more_often_than_it_was_to(self):
        for job_id in set(self.world.host.runs):
            assert self.world.host.runs.count(job_id) <= self.world.job(job_id).restarts + 1

    @invariant()
    def the_book_is_what_the_store_would_make_of_it(self):
        here = self.world.engine.jobtable
        fresh = JobTable(self.world.store.open_jobs(), self.world.store.tasks.made)
        assert here.jobs == fresh.jobs
        assert +here._queued == +fresh._queued
        for number, array in fresh.arrays._arrays.items():
            mine = here.arrays.get(number)
            assert (mine.pending_bits, mine.throttle, mine.rows) == (
                array.pending_bits,
                array.throttle,
                array.rows,
            )
            assert (mine.waiting, mine.holding) == (array.waiting, array.holding)
        assert here.arrays._arrays.keys() == fresh.arrays._arrays.keys()

    def teardown(self):
        """All that can end does; what is left waits for what can never come, or is held, and says so."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.ask(ROOT, "release", ids=world.acknowledged)
        for _ in range(200):
            world.now += 1000
            world.settle()
            stopped = [job.id for job in world.store.open_jobs() if job.state is JobState.SUSPENDED]
            if stopped:
                world.ask(ROOT, "resume_jobs", ids=stopped)
            for job, attempt in world.host.running:
                world.host.finish(job, attempt, a_result())
            if not world.host.running and not world.host.inbox:
                break
        world.settle()
        for job in world.store.open_jobs():
            reason = world.engine.jobtable.reason(job).value
            assert reason in {"DependencyNeverSatisfied", "Dependency"}, (job, reason)
        assert world.holds() == []


TestFloor = Floor.TestCase
TestFloor.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
