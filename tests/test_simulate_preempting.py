"""Jobs that make room for others in a simulation, as they would for the controller."""

import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from builders import GIB, World, new_jobs
from fgsched.controller.turn import NO_REPLY, ClientRequest
from fgsched.domain.job import WHOLE, Demand, HostLimits
from fgsched.domain.policy import CANCEL, MODES, OFF, REQUEUE, SUSPEND, Partition, Policy, PreemptRule, Qos
from fgsched.domain.states import JobState
from fgsched.gpus.simulated import parse
from fgsched.simulate import SimHost, Task, replay
from fgsched.simulate.metrics import PreemptionCost, measure
from site_fixture import SlowHost

HOST = HostLimits(cpus=64, host_memory=1 << 50)


def a_policy(mode=REQUEUE, *, grace=0, exempt=0):
    """Jobs of day come before those of night, which make room in this way."""
    day = Partition(name="day", preempt=("night",), is_default=False)
    return Policy(partitions=(day, Partition(name="night", preempt_rule=PreemptRule(mode, grace, exempt))))


def a_task(partition, share=WHOLE, *, at=0.0, run=100.0, memory=GIB, gpus=1, **more):
    demand = Demand(gpus=gpus, share=share, memory=memory)
    return Task(demand=demand, submitted=at, run=run, partition=partition, **more)


def simulated(*tasks, policy=None, gpus="sim:1x16G"):
    return replay(tasks, SimHost(gpus=parse(gpus), limits=HOST, policy=policy or a_policy()))


def runs(result):
    """Of each task: [(attempt, from, to) of each run], and how it ended."""
    return [
        ([(run.attempt, run.began, run.ended) for run in one.runs], one.state.value)
        for one in result.outcomes
    ]


# -- one card, one job of night, one of day -----------------------------------------------------


def test_a_job_that_makes_room_is_queued_again_and_starts_from_its_beginning():
    result = simulated(a_task("night"), a_task("day", at=40.0, run=20.0))
    assert runs(result) == [
        ([(1, 0, 40), (2, 60, 160)], "COMPLETED"),
        ([(1, 40, 60)], "COMPLETED"),
    ]
    assert result.outcomes[0].wait == 20


def test_it_goes_on_until_its_grace_is_over():
    tasks = a_task("night"), a_task("day", at=40.0, run=20.0)
    assert runs(simulated(*tasks, policy=a_policy(grace=30))) == [
        ([(1, 0, 70), (2, 90, 190)], "COMPLETED"),
        ([(1, 70, 90)], "COMPLETED"),
    ]


def test_one_that_ends_by_itself_in_its_grace_is_queued_again_as_the_controller_does():
    tasks = a_task("night", run=50.0), a_task("day", at=40.0, run=20.0)
    assert runs(simulated(*tasks, policy=a_policy(grace=30)))[0] == (
        [(1, 0, 50), (2, 70, 120)],
        "COMPLETED",
    )


def test_one_whose_time_is_up_in_its_grace_does_not_come_back():
    tasks = a_task("night", time_limit=50), a_task("day", at=40.0, run=20.0)
    assert runs(simulated(*tasks, policy=a_policy(grace=30)))[0] == ([(1, 0, 50)], "TIMEOUT")


def test_a_job_that_is_cancelled_for_another_does_not_come_back():
    result = simulated(a_task("night"), a_task("day", at=40.0, run=20.0), policy=a_policy(CANCEL))
    assert runs(result) == [([(1, 0, 40)], "PREEMPTED"), ([(1, 40, 60)], "COMPLETED")]


def test_a_job_that_stands_still_goes_on_where_it_was():
    tasks = a_task("night", time_limit=150), a_task("day", at=40.0, run=20.0), a_task("day", at=70.0, run=5.0)
    result = simulated(*tasks, policy=a_policy(SUSPEND, grace=30))
    assert runs(result)[0] == ([(1, 0, 40), (1, 60, 70), (1, 75, 125)], "COMPLETED")
    assert (result.outcomes[0].wait, result.outcomes[0].suspended_time) == (0, 25)


def test_standing_still_does_not_count_as_its_time():
    tasks = a_task("night", time_limit=80), a_task("day", at=40.0, run=90.0)
    assert runs(simulated(*tasks, policy=a_policy(SUSPEND)))[0] == ([(1, 0, 40), (1, 130, 170)], "TIMEOUT")


def test_nobody_stands_still_for_one_that_needs_the_memory():
    tasks = a_task("night", memory=9 * GIB), a_task("day", at=40.0, memory=8 * GIB)
    assert runs(simulated(*tasks, policy=a_policy(SUSPEND)))[1] == ([(1, 100, 200)], "COMPLETED")


def test_a_job_runs_undisturbed_as_long_as_it_was_promised():
    tasks = a_task("night"), a_task("day", at=40.0, run=20.0)
    assert runs(simulated(*tasks, policy=a_policy(exempt=70))) == [
        ([(1, 0, 70), (2, 90, 190)], "COMPLETED"),
        ([(1, 70, 90)], "COMPLETED"),
    ]


def test_qualities_of_service_preempt_too():
    low, high = (
        Qos(name="low", preempt_rule=PreemptRule(CANCEL)),
        Qos(name="high", priority=1, preempt=("low",)),
    )
    tasks = a_task("main", qos="low"), a_task("main", at=40.0, qos="high")
    assert runs(simulated(*tasks, policy=Policy(qos=(low, high))))[0] == ([(1, 0, 40)], "PREEMPTED")


def test_who_is_compared_with_makes_nobody_make_room():
    site = SimHost(gpus=parse("sim:1x16G"), limits=HOST, policy=a_policy())
    tasks = [a_task("night"), a_task("day", at=40.0)]
    assert [one.requeued for one in replay(tasks, site, decide=lambda jobtable, now: ()).outcomes] == []


# -- the controller itself, with the same jobs ---------------------------------------------------


class Controlled:
    """The controller on a pretended host, given the tasks at their moments."""

    def __init__(self, tasks, site):
        self.host = SlowHost()
        self.world = World(site.gpus, limits=site.limits, host=self.host, tick=0.0)
        self.world.engine.site.policy = site.policy
        self.world.now, self.tasks, self.next = 0.0, tasks, 0

    def play(self):
        """From one moment to the next, until nothing is left."""
        while (now := min(self.moments(), default=math.inf)) < math.inf:
            self.world.now = self.host.now = now
            for job, at in list(self.ends()):
                if at <= now:
                    task = self.tasks[job.id - 1]
                    is_late = 0 < task.time_limit <= task.run
                    self.host.over(job.id, job.attempt, cause="timeout" if is_late else "exit")
            self.host.let_go()
            self.world.turn(ClientRequest(self.come, lambda error: None))
            self.world.settle()

    def moments(self):
        if self.next < len(self.tasks):
            yield self.tasks[self.next].submitted
        yield from (at for _, at in self.ends())
        yield from self.host.leaving.values()
        if (
            due := self.world.engine.jobtable.wait_index.next_due
        ) is not None and self.world.engine.jobtable.holding:
            yield due

    def ends(self):
        for job in self.world.engine.jobtable.holding.values():
            if job.state is JobState.RUNNING and self.host.attempt(job).shepherd:
                yield job, job.started_at + self.tasks[job.id - 1].lasts + job.suspended

    def come(self, now):
        while self.next < len(self.tasks) and self.tasks[self.next].submitted <= now:
            task, self.next = self.tasks[self.next], self.next + 1
            more = {"partition": task.partition, "time_limit": task.time_limit, "qos": task.qos}
            who, key = (task.uid, task.uid, task.user), f"the-key-of-task-{self.next}"
            (job,) = self.world.store.submit(new_jobs([task.demand], **more), key=key, submitter=who, now=now)
            self.world.engine.jobtable.put(job)
        return NO_REPLY

    def runs(self):
        found = []
        for number in range(1, len(self.tasks) + 1):
            spans, job = [], self.world.job(number)
            for attempt, at, old, new, _ in self.world.store.steps.of(number):
                if new == "CONFIGURING" or (old, new) == ("SUSPENDED", "RUNNING"):
                    spans.append((attempt, at))
                elif old == "RUNNING" and new != "RUNNING":
                    spans[-1] = (*spans[-1], at)
            found.append((spans, job.state.value))
        return found


yieldings = st.builds(
    PreemptRule, st.sampled_from([*MODES, REQUEUE]), st.sampled_from([0, 7]), st.sampled_from([0, 0, 15])
)
preempting = st.tuples(*[yieldings] * 3, st.sampled_from([(), ("night",), ("evening", "night")])).map(
    lambda drawn: Policy(
        partitions=(
            Partition(name="day", preempt=drawn[3] or ("evening",), preempt_rule=drawn[0]),
            Partition(name="evening", preempt=("night",), preempt_rule=drawn[1], is_default=False),
            Partition(name="night", preempt_rule=drawn[2], is_default=False),
        )
    )
)
coming = st.lists(
    st.builds(
        a_task,
        st.sampled_from(["day", "evening", "night", "night", "night,day"]),
        st.sampled_from([1000, 5000, WHOLE, WHOLE]),
        at=st.integers(0, 60).map(float),
        run=st.integers(1, 60).map(float),
        memory=st.integers(1, 6).map(lambda count: count * GIB),
        time_limit=st.sampled_from([0, 20, 60]),
        uid=st.just(1),
        user=st.just("ann"),
    ),
    min_size=2,
    max_size=14,
).map(lambda tasks: sorted(tasks, key=lambda task: task.submitted))


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(tasks=coming, policy=preempting, wide=st.booleans())
def test_what_is_forecast_is_what_the_controller_does(tasks, policy, wide):
    if wide:
        first = structs.replace(tasks[-1].demand, gpus=2, share=WHOLE)
        tasks[-1] = structs.replace(tasks[-1], demand=first)
    site = SimHost(gpus=parse("sim:2x16G"), limits=HOST, policy=policy)
    result = replay(tasks, site)
    controlled = Controlled(tasks, site)
    controlled.play()
    assert result.unstarted == 0
    assert runs(result) == controlled.runs()


# -- what is told of it -------------------------------------------------------------------------


def test_what_it_cost_is_told():
    tasks = [
        a_task("night", run=7200.0),
        a_task("day", at=3600.0, run=1800.0),
        a_task("night", at=3600.0, run=60.0),
    ]
    found = measure(simulated(*tasks))
    assert found.made_room == PreemptionCost(jobs=1, requeued=1, cancelled=0, suspended=0, gpu_hours=1.0)
    assert found.gpu_hours == pytest.approx(1 + 0.5 + 2 + 1 / 60)
    assert measure(simulated(*tasks, policy=a_policy(OFF))).made_room is None


def test_the_curves_leave_out_what_stood_still_and_count_who_waits_again():
    tasks = a_task("night"), a_task("day", at=40.0, run=20.0)
    waiting = measure(simulated(*tasks)).curve
    assert sum(moment.waiting for moment in waiting) / len(waiting) == pytest.approx(20 / 160)
    still = measure(simulated(*tasks, policy=a_policy(SUSPEND)))
    assert sum(moment.allocated for moment in still.curve) / len(still.curve) == pytest.approx(1)
    assert still.waits[-1].slowdown == pytest.approx((1.2 + 1) / 2)


LOG = {
    **{"name": "train", "user": "ann", "uid": 7, "time_limit": None, "req_gpu": 1.0, "req_gpu_mem": GIB},
    **{"req_cpus": 1, "req_mem": None},
}
SETTINGS = """
[partitions.day]
preempt = ["night"]
[partitions.night]
preempt_mode = "requeue"
default = true
"""


def test_the_command_says_what_it_cost(home):
    (home.path / "fgsched.toml").write_text(home.config + SETTINGS)
    jobs = [("night", 0.0, 7200.0), ("day", 3600.0, 1800.0)]
    log = home.path / "log.json"
    records = [
        LOG | {"job_id": number, "partition": where, "submit_time": at, "start_time": at, "elapsed": run}
        for number, (where, at, run) in enumerate(jobs, 1)
    ]
    log.write_text(json.dumps({"jobs": records}))
    done = home.run("fgsched", "simulate", str(log), "--gpus=1x16G")
    assert (done.status, done.err) == (0, "")
    assert "preempted       1 job: 1 requeued; 1.0 GPU-hours of work lost" in done.lines
    found = home.run("fgsched", "simulate", str(log), "--gpus=1x16G", "--json").json["made_room"]
    assert found == {"jobs": 1, "requeued": 1, "cancelled": 0, "suspended": 0, "gpu_hours": 1.0}
