"""Whatever can happen to a site, as rules of a machine; who derives from it says what must hold."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec import to_builtins

from builders import GIB, a_demand, a_gpu
from crashing import Power
from fgsched import protocol
from fgsched.cli.changes import read_changes, words_by_key
from fgsched.config.load import Config
from fgsched.config.schema import AccountSettings, PartitionSettings, UserSettings
from fgsched.controller.caller import Caller
from fgsched.domain.errors import FgschedError
from fgsched.domain.job import WHOLE, Request
from fgsched.domain.policy import MODES
from fgsched.domain.states import JobState
from fgsched.domain.steps import finish
from fgsched.domain.units import SubmitContext as Units
from fgsched.views.wording import update_word
from site_fixture import ROOT, Site

GPUS = [a_gpu(0), a_gpu(1), a_gpu(2, memory=40 * GIB)]
CPUS = 12
NAMES = ("day", "evening", "night")
ANN, BOB = Caller(1, 1, "ann", is_operator=False), Caller(2, 2, "bob", is_operator=False)
few = st.integers(0, 9)  # which of several


def mostly(usual, *others):
    return st.sampled_from([usual] * 6 + list(others))


def partition(*after):
    return st.builds(
        PartitionSettings,
        devices=mostly((), (0,), (1, 2)),
        max_time=mostly(0, 400),
        placement=mostly("", "spread"),
        max_jobs_per_gpu=mostly(0, 2),
        max_running=mostly(0, 3),
        max_running_per_user=mostly(0, 2),
        max_running_per_account=mostly(0, 2),
        max_gpus_running=mostly(0, 15_000),
        max_gpus_per_user=mostly(0, WHOLE),
        preempt=st.lists(st.sampled_from(after), unique=True).map(tuple) if after else st.just(()),
        preempt_mode=st.sampled_from(MODES),
        preempt_grace=st.sampled_from([0, 0, 20]),
        preempt_exempt=st.sampled_from([0, 0, 50]),
    )


sites = st.builds(
    Config,
    cpus=st.just(CPUS),
    memory=st.just(2**40),
    max_jobs_per_gpu=mostly(0, 3),
    weight_age=st.sampled_from([0, 1000]),
    weight_fairshare=st.sampled_from([0, 0, 10_000]),
    weight_partition=st.sampled_from([1_000_000, 0]),
    weight_size=st.sampled_from([0, 500]),
    max_age=st.just(10**6),
    partitions=st.builds(  # in this order, which is that of their priority
        lambda day, evening, night: {"day": day, "evening": evening, "night": night},
        partition("evening", "night"),
        partition("night"),
        partition(),
    ),
    accounts=st.fixed_dictionaries(
        {"lab": st.builds(AccountSettings, gpu_minutes=mostly(0, 10), max_running=mostly(0, 3))}
    ),
    users=st.fixed_dictionaries(
        {"ann": st.builds(UserSettings, max_running=mostly(0, 3), max_gpus_running=mostly(0, 15_000))}
    ),
)
demands = st.one_of(
    st.builds(
        a_demand,
        st.sampled_from([1000, 2500, 5000, 7500]),
        st.sampled_from([0, 0, GIB, 9 * GIB]),
        cpus=st.integers(1, 3),
    ),
    st.builds(a_demand, memory=st.sampled_from([GIB, 8 * GIB, 20 * GIB])),
    st.builds(a_demand, st.just(WHOLE), gpus=st.integers(1, 3)),
    st.builds(a_demand, cpus=st.integers(1, 6)),
)
requests = st.fixed_dictionaries(
    {
        "demand": demands,
        "partition": st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True).map(",".join),
        "account": st.sampled_from(["", "lab"]),
        "time_limit": st.sampled_from([0, 30, 120, 300, 400]),
        "nice": mostly(0, 500),
        "requeue": mostly(True, False),
        "array": mostly("", "", "0-3"),
    }
)
changes = st.sampled_from(
    [
        *(("state", text) for text in ("up", "up", "down", "inactive", "drain")),
        *(("maxtime", text) for text in ("", "5")),
        *(("devices", text) for text in ("", "0,1")),
        *(("max_jobs_per_gpu", text) for text in ("", "1")),
        *(("max_running", text) for text in ("", "2")),
        *(("preempt_mode", text) for text in MODES),
        ("preempt", "night"),
    ]
)


class Happenings(RuleBasedStateMachine):
    """A site with three cards, three partitions and two users."""

    @initialize(config=sites, sampled=st.booleans(), dawdle=st.sampled_from([0.0, 0.0, 10.0]))
    def open(self, config, sampled, dawdle):
        self.site = Site(GPUS, config, sampled=sampled, dawdle=dawdle)
        self.site.settled = self.look
        self.site.settle()

    def look(self):
        """Called whenever nothing is left to do at a moment."""

    @rule(asked=st.lists(requests, min_size=1, max_size=4), who=st.sampled_from([ANN, BOB]))
    def submit(self, asked, who):
        for request in asked:
            self.send(who, **request)

    def send(self, who, **request):
        found = self.site.ask("submit", who, **self.submission(request))
        if isinstance(found, dict):
            self.site.world.acknowledged += range(found["first"], found["first"] + found["count"])

    def submission(self, request):
        key = f"key-of-a-submission-{self.site.world.now}-{self.site.world.store.last_id()}"
        record = to_builtins(Request(name="job", **request))
        return {
            "key": key,
            "scripts": ["#!/bin/sh\n"],
            "environments": [{}],
            "requests": [record],
            "jobs": [[0, 0, 0, False]],
        }

    @precondition(lambda self: self.site.world.acknowledged)
    @rule(
        request=requests,
        kind=st.sampled_from(["afterok", "afterany", "afternotok", "after", "singleton"]),
        which=few,
    )
    def submit_after(self, request, kind, which):
        other = self.site.world.acknowledged[-1 - which % len(self.site.world.acknowledged)]
        self.send(ANN, **request | {"dependency": kind if kind == "singleton" else f"{kind}:{other}"})

    @rule(request=requests, wait=st.integers(1, 200))
    def submit_for_later(self, request, wait):
        self.send(BOB, **request | {"begin": int(self.site.world.now) + wait})

    @rule(request=requests, throttle=st.integers(1, 2))
    def submit_array(self, request, throttle):
        self.send(BOB, **request | {"array": "0-5", "throttle": throttle})

    @rule(request=requests, which=few)
    def submit_into_reservation(self, request, which):
        if names := self.booked():
            self.send(ANN, **request | {"reservation": names[which % len(names)]})

    def booked(self):
        return [one.name for one in self.site.world.engine.policy.reservations]

    @rule(seconds=st.sampled_from([1, 30, 100, 500]))
    def time_passes(self, seconds):
        self.site.advance(seconds)

    def alive(self):
        attempts = self.site.host.attempts
        return [key for key in self.site.host.running if attempts[key].shepherd]

    @precondition(alive)
    @rule(which=few, status=st.sampled_from([0, 0, 256]))
    def end_one(self, which, status):
        alive = self.alive()
        self.site.end(*alive[which % len(alive)], status)

    @precondition(alive)
    @rule(which=few)
    def lose_shepherd(self, which):
        alive = self.alive()
        self.site.lose_shepherd(*alive[which % len(alive)])

    @rule(which=few, verb=st.sampled_from(["cancel", "requeue", "suspend", "resume_jobs", "hold", "release"]))
    def order(self, which, verb):
        jobs = sorted(self.site.world.engine.jobtable.jobs)
        if jobs:
            self.site.ask(verb, ids=[jobs[which % len(jobs)]])

    @rule(index=st.integers(0, 2), is_drained=st.booleans())
    def drain_or_resume(self, index, is_drained):
        if is_drained:
            self.site.ask("drain", gpu=index, reason="fan")
        else:
            self.site.ask("resume", gpu=index)

    @precondition(lambda self: self.site.sampled)
    @rule(index=st.integers(0, 2), is_back=st.booleans())
    def lose_gpu(self, index, is_back):
        if not is_back:
            self.site.lose_gpu(index)
        else:
            self.site.seen_otherwise(lambda: self.site.lost.discard(index))

    @precondition(lambda self: self.site.sampled)
    @rule(index=st.integers(0, 2), gibs=st.sampled_from([0, 3, 12]))
    def strangers(self, index, gibs):
        self.site.seen_otherwise(lambda: self.site.strangers.update({index: gibs * GIB}))

    @precondition(lambda self: self.site.sampled)
    @rule(which=few, stays=st.booleans())
    def linger(self, which, stays):
        """A process of a job stays on its card when the job is over; or all that stayed go."""
        alive = self.alive()
        if not stays:
            self.site.seen_otherwise(self.site.lingering.clear)
        elif alive:
            self.site.lingering.add(alive[which % len(alive)][0])

    @rule(name=st.sampled_from(NAMES), change=changes)
    def change_partition(self, name, change):
        self.site.ask("update_partition", name=name, values=dict([change]))

    @rule(
        wait=st.sampled_from([0, 50, 200]),
        lasts=st.sampled_from([60, 300]),
        share=st.sampled_from([2500, 5000, WHOLE]),
        gpus=st.sampled_from([[0], [1], [0, 1], [2]]),
        flags=st.sampled_from([[], ["ignore_jobs"], ["maint"]]),
    )
    def reserve(self, wait, lasts, share, gpus, flags):
        start, name = int(self.site.world.now) + wait, f"r{self.site.world.now:.0f}"
        window = {"start": start, "end": start + lasts}
        self.site.ask(
            "create_reservation", name=name, share=share, gpus=gpus, flags=flags, users=["ann"], **window
        )

    @precondition(booked)
    @rule(which=few, end=st.sampled_from([0, 30]))
    def change_reservation(self, which, end):
        name = self.booked()[which % len(self.booked())]
        if end:
            self.site.ask("update_reservation", name=name, end=int(self.site.world.now) + end)
        else:
            self.site.ask("delete_reservation", name=name)

    @rule()
    def restart(self):
        self.site.start_anew()

    @rule(left=st.integers(0, 8), request=requests)
    def crash_in_a_turn(self, left, request):
        self.site.is_calm = False
        power = Power(self.site.world, left, restart=self.site.start_anew)
        power.step(lambda: self.send(BOB, **request), again=False)
        power.restore()

    # -- what is said ---------------------------------------------------------------------------

    def waiting(self):
        return [job for job in self.site.world.store.open_jobs() if job.state is JobState.PENDING]

    @precondition(waiting)
    @rule(which=few, advice=few)
    def ask_why_and_follow_the_advice(self, which, advice):
        job = self.waiting()[which % len(self.waiting())]
        self.site.settle()
        question = self.site.prospects.why(ROOT, protocol.ExplainJobs(ids=[job.id]), self.site.world.now)
        answer = finish(question.begin(self.site.world.now))
        told = next(one for one in answer.jobs if one.id == job.id)
        assert told.blockers[0].cause.reason is told.reason
        if told.advice:
            word = update_word(told.advice[advice % len(told.advice)])
            fields = read_changes(words_by_key([word]), Units())
            done = self.site.ask("update", ROOT, id=job.id, changes=fields)
            assert not isinstance(done, FgschedError), (word, done)
            assert self.site.world.job(job.id).attempt > job.attempt or job.is_rest, (word, job)
