"""Looks at the GPUs summed up to minutes of cards, owners and foreign processes, and to the use of jobs."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgsched.accounting.records import (
    CLASSES,
    ForeignUse,
    Gap,
    GpuUseRecord,
    HealthEvent,
    JobSample,
    Minute,
    Owner,
    WaitingRecord,
)
from fgsched.accounting.samples import (
    FORWARD,
    LATE,
    SILENT,
    STOPPED,
    GpuLook,
    JobLook,
    Look,
    ProcessLook,
    Samples,
    Waiting,
)
from fgsched.domain.job import JobUsage

GIB = 1 << 30
NOON = 1_700_000_040  # the begin of a minute
CARDS = ("GPU-a", "GPU-b")
ANN, BOB = Owner(uid=1, user="ann"), Owner(uid=2, user="bob")


def a_gpu(*processes, uuid="GPU-a", **fields):
    used = sum(one.memory for one in processes)
    foreign = sum(one.memory for one in processes if one.job is None)
    return GpuLook(
        **{"uuid": uuid, "size": 16 * GIB, "used": used, "foreign": foreign} | fields, processes=processes
    )


def a_job(number=1, share=10_000, started_at=NOON - 1000, owner=ANN, **fields):
    return JobLook(id=number, owner=owner, started_at=started_at, charged={"GPU-a": share}, **fields)


def runs(job=1, busy=8000, memory=4 * GIB, **fields):
    return ProcessLook(**{"pid": 100 + job, "memory": memory, "busy": busy, "job": job} | fields)


def looking(samples, *looks, interval=5.0, wall=NOON, clock=0.0):
    """The records of looks at equal intervals, each (cards, jobs) or fields of a Look."""
    found = []
    for at, one in enumerate(looks):
        fields = one if isinstance(one, dict) else {"gpus": one[0], "jobs": one[1]}
        found += samples.look(Look(**{"wall": wall + at * interval, "clock": clock + at * interval} | fields))
    return found


def minutes(records):
    return [one for one in records if isinstance(one, Minute)]


def of_kind(records, kind):
    return [one for one in records if isinstance(one, kind)]


def one_minute(*looks):
    """The only minute of these looks, which begin at the begin of it."""
    samples = Samples(5.0)
    (minute,) = minutes([*looking(samples, *looks), *samples.finish()])
    return minute


def classes(use):
    return {name: round(getattr(use, name), 6) for name in CLASSES if getattr(use, name)}


# classes of one card


@pytest.mark.parametrize(
    ("processes", "jobs", "found"),
    [
        ([runs()], [a_job()], {"active": 10.0}),
        ([runs(busy=100)], [a_job()], {"held": 10.0}),
        ([], [a_job()], {"empty": 10.0}),
        ([], [], {"free": 10.0}),
        ([runs()], [a_job(share=2500)], {"active": 2.5, "free": 7.5}),
        ([ProcessLook(pid=9, memory=4 * GIB, user="eve")], [], {"external": 2.5, "free": 7.5}),
        (
            [runs(), ProcessLook(pid=9, memory=12 * GIB, user="eve")],
            [a_job(share=5000)],
            {"active": 5.0, "external": 5.0},
        ),
        (
            [runs(), runs(2, 0)],
            [a_job(share=5000), a_job(2, 2500)],
            {"active": 5.0, "held": 2.5, "free": 2.5},
        ),
    ],
)
def test_the_time_of_a_card_is_divided_by_share(processes, jobs, found):
    look = ((a_gpu(*processes),), tuple(jobs))
    (use,) = one_minute(look, look, look).gpus
    assert (use.sampled, classes(use)) == (10.0, found)


def test_jobs_whose_charges_exceed_the_card_have_it_in_their_proportions():
    look = ((a_gpu(runs(), runs(2, 0)),), (a_job(share=9000), a_job(2, 6000)))
    (use,) = one_minute(look, look).gpus
    assert classes(use) == {"active": 3.0, "held": 2.0}


def test_a_card_that_takes_no_jobs_is_down_except_for_the_share_of_jobs_that_run():
    look = ((a_gpu(runs(), state="drained"),), (a_job(share=4000),))
    (use,) = one_minute(look, look).gpus
    assert classes(use) == {"active": 2.0, "down": 3.0}


def test_a_job_whose_use_is_not_measured_counts_as_active_and_by_the_cards_utilisation_if_that_is_known():
    unknown = ((a_gpu(runs(busy=None)),), (a_job(),))
    (use,) = one_minute(unknown, unknown).gpus
    assert (classes(use), use.used) == ({"active": 5.0}, 0.0)
    known = ((a_gpu(runs(busy=None), utilisation=40),), (a_job(),))
    (use,) = one_minute(known, known).gpus
    assert (classes(use), use.used) == ({"active": 5.0}, 2.0)
    idle = ((a_gpu(runs(busy=None), utilisation=0),), (a_job(),))
    assert classes(one_minute(idle, idle).gpus[0]) == {"held": 5.0}


def test_a_card_has_the_figures_of_its_looks():
    look = {"gpus": (a_gpu(runs(), temperature=60, throttled=("heat",), energy=0),), "jobs": (a_job(),)}
    hot = {
        "gpus": (a_gpu(runs(memory=8 * GIB), temperature=70, throttled=(), energy=1000),),
        "jobs": (a_job(),),
    }
    assert one_minute(
        look, hot, look | {"gpus": (a_gpu(runs(), temperature=65, throttled=("heat",), energy=3000),)}
    ).gpus == (
        GpuUseRecord(
            at=NOON,
            uuid="GPU-a",
            sampled=10.0,
            active=10.0,
            free=0.0,
            packed=10.0,
            used=8.0,
            memory=60.0 * GIB,
            peak=8 * GIB,
            jobs=1,
            temperature=70,
            energy=3.0,
            throttled=5.0,
        ),
    )


def test_a_foreign_process_is_named_with_its_use():
    process = ProcessLook(pid=9, memory=4 * GIB, busy=1000, user="eve", command="pmemd")
    look = ((a_gpu(process),), ())
    assert one_minute(look, look).foreign == (
        ForeignUse(
            at=NOON,
            uuid="GPU-a",
            user="eve",
            command="pmemd",
            pid=9,
            since=NOON,
            until=NOON + 5.0,
            seconds=5.0,
            memory=20.0 * GIB,
            peak=4 * GIB,
            used=0.5,
        ),
    )


def test_what_jobs_wait_for_is_summed_up():
    lacks = Waiting(reason="Resources", lacking="share", model="A100", jobs=3, share=15_000)
    more = Waiting(reason="Resources", lacking="share", model="A100", jobs=5, share=25_000)
    assert one_minute({}, {"waiting": (lacks,)}, {"waiting": (more,)}).demand == (
        WaitingRecord(
            at=NOON,
            reason="Resources",
            lacking="share",
            model="A100",
            seconds=10.0,
            job_seconds=40.0,
            gpu_seconds=20.0,
            most=5,
        ),
    )


# energy


def test_the_energy_of_a_card_goes_to_the_jobs_by_their_compute_time():
    def at(energy, *processes):
        return (a_gpu(*processes, energy=energy),), (a_job(share=5000), a_job(2, 5000, owner=BOB))

    minute = one_minute(at(0), at(4000, runs(busy=6000), runs(2, 2000)), at(5000, runs(busy=0), runs(2, 0)))
    assert minute.gpus[0].energy == 5.0
    assert [(one.job, one.energy) for one in minute.owners] == [(1, pytest.approx(3.0)), (2, 1.0)]


def test_energy_without_a_counter_is_unknown_and_after_a_reset_of_the_counter_left_out():
    look = ((a_gpu(runs()),), (a_job(),))
    minute = one_minute(look, look)
    assert (minute.gpus[0].energy, minute.owners[0].energy) == (None, None)
    minute = one_minute(*(((a_gpu(runs(), energy=energy),), (a_job(),)) for energy in (9000, 500, 1500)))
    assert minute.gpus[0].energy == 1.0


# jobs


def test_the_use_of_a_job_has_all_that_was_sampled():
    samples = Samples(5.0)
    jobs = (a_job(share=5000, started_at=NOON), a_job(2, 5000))
    idle, busy = a_gpu(runs(2)), a_gpu(runs(memory=8 * GIB), runs(2, 2000))
    held = a_gpu(runs(busy=50, memory=2 * GIB), runs(2, 2000))
    looking(samples, *(((gpu,), jobs) for gpu in (idle, idle, busy, held, held, busy)))
    assert samples.usage(1) == JobUsage(
        sampled=25.0,
        charged=12.5,
        active=5.0,
        held=5.0,
        empty=2.5,
        used=8.05,
        memory=100.0 * GIB,
        peak=8 * GIB,
        with_process=20.0,
        busy=10.0,
        longest_idle=10.0,
        first_process=10.0,
        neighbours=((2, 25.0),),
    )


def test_a_job_counts_from_its_start():
    samples = Samples(5.0)
    new = (a_gpu(runs()),), (a_job(started_at=NOON + 3),)
    found = looking(samples, ((a_gpu(),), ()), new)
    (minute,) = minutes([*found, *samples.finish()])
    assert classes(minute.gpus[0]) == {"active": 2.0, "free": 3.0}
    assert (samples.usage(1).sampled, samples.usage(1).first_process) == (2.0, 2.0)


def test_the_end_of_a_job_has_the_class_that_it_had_before():
    samples = Samples(5.0)
    there, ended = ((a_gpu(runs()),), (a_job(),)), ((a_gpu(),), (a_job(is_ending=True),))
    looking(samples, there, there, ended)
    (sample,) = samples.end(1, read=7, written=8)
    assert (sample.usage.active, sample.usage.empty) == (10.0, 0.0)
    assert (sample.usage.read, sample.usage.written) == (7, 8)
    assert samples.end(1) == []
    assert samples.usage(1) is None


def test_a_process_that_has_ended_still_counts_for_its_job():
    samples = Samples(5.0)
    gone = ProcessLook(pid=101, busy=5000, has_ended=True)
    jobs = (a_job(share=5000), a_job(2, 5000))
    looking(samples, ((a_gpu(runs()),), jobs), ((a_gpu(gone),), jobs))
    assert (samples.usage(1).used, samples.usage(1).active, samples.usage(2).used) == (2.5, 2.5, 0.0)


def test_an_unknown_process_that_has_ended_belongs_to_the_only_job_of_the_card():
    samples = Samples(5.0)
    gone = ProcessLook(pid=999, busy=5000, has_ended=True)
    looking(samples, ((a_gpu(),), (a_job(),)), ((a_gpu(gone),), (a_job(),)))
    assert (samples.usage(1).used, samples.usage(1).with_process) == (2.5, 0.0)


def test_the_sums_of_a_job_continue_those_of_an_earlier_controller():
    look = ((a_gpu(runs()),), (a_job(),))
    first = Samples(5.0)
    looking(first, look, look)
    second = Samples(5.0)
    second.restore(1, first.usage(1))
    assert second.usage(1) == first.usage(1)
    looking(second, look, look)
    whole = Samples(5.0)
    looking(whole, look, look, look)
    assert second.usage(1) == whole.usage(1)


# time


def test_minutes_are_finished_when_the_next_begins_and_looks_across_their_border_are_split():
    samples = Samples(5.0)
    look = ((a_gpu(runs()),), (a_job(),))
    found = looking(samples, *[look] * 14, wall=NOON + 2)
    (first,) = minutes(found)
    assert (first.at, first.gpus[0].sampled) == (NOON, 58.0)
    assert [one.job for one in of_kind(found, JobSample)] == [1]
    (second,) = minutes(samples.finish())
    assert (second.at, second.gpus[0].sampled) == (NOON + 60, 7.0)


def test_a_time_without_looks_is_a_gap_and_belongs_to_no_class():
    samples = Samples(5.0)
    look = {"gpus": (a_gpu(runs()),), "jobs": (a_job(),)}
    looking(samples, look, look)
    found = samples.look(Look(wall=NOON + 25, clock=25.0, **look))
    assert found == [Gap(since=NOON + 5, until=NOON + 25, why=LATE)]
    samples.look(Look(wall=NOON + 40, clock=40.0, **look))
    (minute,) = minutes(samples.finish())
    assert minute.gpus[0].sampled == 20.0
    assert samples.usage(1).sampled == 20.0


def test_a_driver_that_does_not_answer_for_long_leaves_a_gap_and_for_a_moment_none():
    samples = Samples(5.0)
    look, silent = {"gpus": (a_gpu(runs()),), "jobs": (a_job(),)}, {"error": "no answer"}
    assert looking(samples, look, silent, silent, look) == []
    assert samples.usage(1).sampled == 15.0
    found = looking(samples, silent, silent, silent, look, wall=NOON + 20, clock=20.0)
    assert found == [Gap(since=NOON + 15, until=NOON + 35, why=SILENT)]


def test_a_controller_that_starts_again_leaves_a_gap_up_to_its_first_look_and_adds_to_no_stored_minute():
    samples = Samples(5.0, since=NOON + 10)
    look = ((a_gpu(runs()),), (a_job(),))
    found = looking(samples, *[look] * 8, wall=NOON + 40)
    state = HealthEvent(at=NOON + 40, uuid="GPU-a", kind="state", detail="ok")
    assert found == [Gap(since=NOON + 10, until=NOON + 40, why=STOPPED), state]
    (minute,) = minutes(samples.finish())
    assert (minute.at, minute.gpus[0].sampled) == (NOON + 60, 15.0)
    assert samples.usage(1).sampled == 35.0


@pytest.mark.parametrize("step", [-7, -3600, -86_400 * 365])
def test_a_clock_that_is_set_back_changes_no_sum_of_a_job_and_no_minute_gets_longer(step):
    samples = Samples(5.0)
    look = ((a_gpu(runs()),), (a_job(),))
    found = looking(samples, *[look] * 10)
    found += looking(samples, *[look] * 10, wall=NOON + 50 + step, clock=50.0)
    found += samples.finish()
    assert samples.usage(1).sampled == 95.0
    assert all(minute.gpus[0].sampled <= 60 for minute in minutes(found))
    first = next(minute for minute in minutes(found) if minute.at == NOON)
    assert first.gpus[0].sampled >= 45.0


def test_a_clock_that_is_set_forward_leaves_a_gap():
    samples = Samples(5.0)
    look = ((a_gpu(runs()),), (a_job(),))
    looking(samples, look, look)
    found = looking(samples, look, wall=NOON + 3610, clock=10.0)
    assert of_kind(found, Gap) == [Gap(since=NOON + 5, until=NOON + 3605, why=FORWARD)]
    assert samples.usage(1).sampled == 10.0


# health


def test_changes_of_a_cards_health_are_events():
    samples = Samples(5.0)
    sick = a_gpu(state="drained", ecc=2, remap="pending", xids=(48, 48), throttled=("power", "heat"))
    found = looking(samples, ((a_gpu(ecc=1),), ()), ((sick,), ()), ((sick,), ()))
    at = NOON + 5
    assert [(one.at, one.kind, one.detail) for one in of_kind(found, HealthEvent)] == [
        (at, "state", "drained"),
        (at, "ecc", "2"),
        (at, "remap", "pending"),
        (at, "xid", "48"),
        (at, "throttle", "heat"),
        (NOON + 10, "xid", "48"),
    ]


def test_the_reason_of_a_state_is_an_event_with_it_also_in_the_first_look():
    samples = Samples(5.0)
    down = a_gpu(state="drained", why="replace the fan")
    found = looking(samples, ((down,), ()), ((a_gpu(),), ()), ((down,), ()))
    assert [(one.at, one.kind, one.detail) for one in of_kind(found, HealthEvent)] == [
        (NOON, "state", "drained: replace the fan"),
        (NOON + 5, "state", "ok"),
        (NOON + 10, "state", "drained: replace the fan"),
    ]


def test_the_version_of_the_driver_is_recorded_at_the_begin_and_when_it_changes():
    samples = Samples(5.0)
    versions = ["550.54", "550.54", "", "560.28"]
    found = [
        record
        for at, version in enumerate(versions)
        for record in samples.look(Look(wall=NOON + at, clock=at, gpus=(a_gpu(),), driver=version))
    ]
    assert [(one.at, one.kind, one.detail) for one in of_kind(found, HealthEvent)] == [
        (NOON, "driver", "550.54"),
        (NOON + 3, "driver", "560.28"),
    ]


# properties

BUSY = st.none() | st.integers(0, 12_000)
PROCESS = st.tuples(
    st.integers(1, 6), st.sampled_from([None, 1, 2, 3]), st.integers(0, 8), BUSY, st.booleans()
)
CARD = st.tuples(
    st.lists(PROCESS, max_size=4, unique_by=lambda one: one[0]),
    st.sampled_from(["ok", "drained"]),
    st.none() | st.integers(0, 10**6),
    st.none() | st.integers(0, 100),
)
JOBS = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 3]), st.integers(1, 10_000), st.integers(0, 10_000), st.integers(-10, 30)
    ),
    max_size=3,
    unique_by=lambda one: one[0],
)
STEP = st.tuples(st.floats(0.1, 22), st.lists(CARD, min_size=2, max_size=2), JOBS, st.booleans())


def seen(wall, clock, gpus, jobs):
    """A look of generated figures."""
    made = []
    for uuid, (processes, state, energy, utilisation) in zip(CARDS, gpus, strict=True):
        own = [
            ProcessLook(
                pid=pid,
                memory=0 if ended else size * GIB,
                busy=busy,
                job=job,
                user="" if job or ended else "eve",
                has_ended=ended,
            )
            for pid, job, size, busy, ended in processes
            if job is None or job in {one[0] for one in jobs}
        ]
        made.append(a_gpu(*own, uuid=uuid, state=state, energy=energy, utilisation=utilisation))
    there = tuple(
        JobLook(
            id=job,
            owner=ANN if job < 3 else BOB,
            started_at=wall - age,
            charged=dict(zip(CARDS, (one, other), strict=True)),
        )
        for job, one, other, age in jobs
    )
    return Look(wall=wall, clock=clock, gpus=tuple(made), jobs=there)


def close(one, other):
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-5)


@given(st.lists(STEP, min_size=1, max_size=30))
def test_classes_add_up_to_the_sampled_time_and_jobs_to_their_cards(steps):
    samples, wall, clock, counted = Samples(5.0), float(NOON), 0.0, 0.0
    found = []
    for at, (pause, gpus, jobs, is_lost) in enumerate(steps):
        wall, clock = wall + pause, clock + pause
        look = Look(wall=wall, clock=clock, error="lost") if is_lost else seen(wall, clock, gpus, jobs)
        last = samples._last
        found += samples.look(look)
        if last is not None and not is_lost and look.clock - last.clock <= 15:
            counted += look.clock - last.clock
        assert at == 0 or all(len(minute.gpus) == 2 for minute in minutes(found))
    found += samples.finish()
    whole, of_jobs = Counter(), Counter()
    for minute in minutes(found):
        for gpu in minute.gpus:
            own = [one for one in minute.owners if one.uuid == gpu.uuid]
            foreign = [one for one in minute.foreign if one.uuid == gpu.uuid]
            assert close(sum(getattr(gpu, name) for name in CLASSES), gpu.sampled)
            assert gpu.sampled <= 60 + 1e-6
            for name in ("active", "held", "empty"):
                assert close(sum(getattr(one, name) for one in own), getattr(gpu, name))
            assert close(sum(one.used for one in own) + sum(one.used for one in foreign), gpu.used)
            assert sum(one.energy or 0 for one in own) <= (gpu.energy or 0) + 1e-6
            assert gpu.used <= gpu.sampled + 1e-6
            whole["sampled"] += gpu.sampled
            for one in own:
                for name in ("charged", "active", "held", "empty", "used", "memory"):
                    whole[one.job, name] += getattr(one, name)
                whole[one.job, "energy"] += one.energy or 0
    assert close(whole.pop("sampled", 0.0), 2 * counted)
    for job in (1, 2, 3):
        for sample in samples.end(job):
            for name in ("charged", "active", "held", "empty", "used", "memory", "energy"):
                of_jobs[job, name] += getattr(sample.usage, name) or 0
            if sample.usage.used is None:  # not measured at some time
                of_jobs[job, "used"] = whole[job, "used"]
            assert sample.usage.busy <= sample.usage.sampled + 1e-6
            assert sample.usage.longest_idle <= sample.usage.sampled + 1e-6
    assert {key: one for key, one in whole.items() if not close(one, of_jobs[key])} == {}


@given(
    st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 10**6)),
        min_size=2,
        max_size=20,
    )
)
def test_the_energy_of_jobs_and_the_idle_part_are_the_cards_counter(steps):
    samples, counter, idle = Samples(5.0), 0, 0.0
    found = []
    for at, (one, other, energy) in enumerate(steps):
        counter += energy
        idle += energy / 1000 if at and one + other == 0 else 0.0
        gpu = a_gpu(runs(busy=one), runs(2, other), energy=counter)
        jobs = (a_job(share=5000), a_job(2, 5000))
        found += samples.look(Look(wall=NOON + 5.0 * at, clock=5.0 * at, gpus=(gpu,), jobs=jobs))
    found += samples.finish()
    total = sum(energy for _, _, energy in steps[1:]) / 1000
    of_jobs = sum(sample.usage.energy for job in (1, 2) for sample in samples.end(job))
    of_gpus = sum(gpu.energy for minute in minutes(found) for gpu in minute.gpus)
    assert of_jobs + idle == pytest.approx(total, rel=1e-6, abs=1e-6)
    assert of_gpus == pytest.approx(total, rel=1e-6, abs=1e-6)


def test_compute_time_that_no_driver_measures_is_unknown_and_never_zero():
    without, idle, busy = (), (runs(busy=None),), (runs(busy=8000),)
    for processes, utilisation, used in (
        (without, None, 0.0),
        (idle, None, None),
        (idle, 50, 5.0),
        (busy, None, 8.0),
    ):
        samples = Samples(5.0)
        look = ((a_gpu(*processes, utilisation=utilisation),), (a_job(),))
        looking(samples, look, look, look)
        usage = samples.usage(1)
        assert usage.used == used
        (ended,) = samples.end(1)
        later = Samples(5.0)
        later.restore(1, ended.usage)
        looking(later, *[((a_gpu(runs(), utilisation=80),), (a_job(),))] * 2)
        assert later.usage(1).used == (None if used is None else used + 4.0)
