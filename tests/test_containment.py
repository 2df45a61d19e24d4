"""An exception at any call that concerns one job: it is marked, the others go on, the next start works."""

import errno
import json
import os
import sqlite3
from contextlib import closing
from functools import partial
from itertools import count
from types import SimpleNamespace

import pytest

from asking import carried_out, plain
from builders import ROOT, World, a_demand, a_gpu, a_job, a_result, full_disk, new_jobs
from fgsched import protocol
from fgsched.config.load import Config
from fgsched.controller.gpumonitor import GpuObservation, Watchdog
from fgsched.controller.handlers.fields import FIELDS
from fgsched.controller.handlers.jobs import JobHandlers
from fgsched.controller.handlers.query import QueryHandlers
from fgsched.controller.handlers.submission import Rules
from fgsched.controller.handlers.wait import WaitHandlers, WaitLookup
from fgsched.controller.jobtable import JobTable
from fgsched.controller.turn import NO_REPLY, ClientRequest, Faulted, SendReply
from fgsched.domain.errors import BadUsage, OurFault
from fgsched.domain.job import WHOLE, GpuProcess, GpuState, Job, Reading, read_request
from fgsched.domain.states import JobState, Reason
from fgsched.domain.steps import finish
from fgsched.lifecycle.transitions import parse_result
from fgsched.lifecycle.watchdog import WatchdogPolicy
from fgsched.protocol import Wait
from fgsched.scheduling.admission import check_plain
from fgsched.scheduling.planner import plan
from fgsched.store import Store
from site_fixture import Site


class Broken(Exception):
    """Nobody expects it."""


class Saboteur:
    """Raises at the n-th call that names one job, or at that and all later ones."""

    def __init__(self, job, nth, *, for_ever):
        self.job, self.left, self.for_ever = job, nth, for_ever
        self.struck = ""

    def spoil(self, owner, *names):
        for name in names:
            setattr(owner, name, self._spoiled(getattr(owner, name), f"{type(owner).__name__}.{name}"))

    def _spoiled(self, real, name):
        def act(*args, **kwargs):
            if any(self._is_meant(one) for one in args):
                self._count(name)
            return real(*args, **kwargs)

        return act

    def _is_meant(self, one):
        if isinstance(one, Job):
            return one.id == self.job
        return type(one) is int and one == self.job

    def _count(self, name):
        self.left -= 1
        if self.left == -1 or (self.left < 0 and self.for_ever):
            self.struck = self.struck or name
            raise Broken(f"{name} \udce9\n of job {self.job}")


def sabotage(world, saboteur):
    engine = world.engine
    saboteur.spoil(world.store, "start", "run", "save", "material", "past")
    saboteur.spoil(world.store.steps, "note")
    saboteur.spoil(
        world.host, "start", "follow", "cancel", "suspend", "resume", "relimit", "seize", "kill_remaining"
    )
    saboteur.spoil(world.host, "forget", "deliver", "requeue")
    saboteur.spoil(engine.gpu_states, "begin_cleaning", "cleans", "left_dirty")
    saboteur.spoil(engine.charges, "charge")
    saboteur.spoil(engine.eligibility, "task_of", "_look", "_examine_due")
    saboteur.spoil(engine, "take_up", "end", "step", "change")
    saboteur.spoil(engine.jobtable, "put", "tasks", "reason")  # of this book: it is made anew after a fault


def restore(world):
    for one in (world.store, world.store.steps, world.host):
        for name in [name for name, value in vars(one).items() if callable(value) and name in SPOILED]:
            delattr(one, name)


SPOILED = {
    *("start", "run", "save", "material", "past", "note", "follow", "cancel", "suspend", "resume", "relimit"),
    *("seize", "kill_remaining", "forget", "deliver", "requeue"),
}


def ask(world, operation, **arguments):
    said = []
    handlers = JobHandlers(world.engine, Rules(max_script=2**20, default_time=0))

    def act(now):
        answer = carried_out([handlers], operation, ROOT, arguments, now)
        return SendReply(lambda answer: said.append(plain(answer)), answer)

    world.turn(ClientRequest(act, said.append))
    return said


def rest(world):
    """Turns until the jobs do not change any more; a fault may take some."""
    for _ in range(6):
        world.turn()
        world.now += 10


def end(world, job_id):
    for job, attempt in world.host.running:
        if job == job_id:
            world.host.finish(job_id, attempt, a_result())


def story(saboteur):
    """Four jobs of a quarter card each; the second is sabotaged from its submission on."""
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)])  # so that the others wait
    world.submit([a_demand(2500)] * 3)
    sabotage(world, saboteur)
    ask(world, "hold", ids=[3])
    ask(world, "release", ids=[3])
    end(world, 1)
    rest(world)
    ask(world, "suspend", ids=[3])
    ask(world, "resume_jobs", ids=[3])
    rest(world)
    for job_id in (2, 3, 4):
        end(world, job_id)
    rest(world)
    return world


@pytest.mark.parametrize("for_ever", [False, True])
def test_whatever_fails_for_one_job_fails_for_no_other(for_ever):
    struck = set()
    for nth in count():
        saboteur = Saboteur(3, nth, for_ever=for_ever)
        world = story(saboteur)
        if not saboteur.struck:
            break
        struck.add(saboteur.struck)
        states = [world.job(number).state for number in (1, 2, 4)]
        assert states == [JobState.COMPLETED] * 3, (nth, saboteur.struck, world.engine.faults.text)
        assert not world.engine.is_broken
        restore(world)
        world.start()
        rest(world)
        end(world, 3)
        rest(world)
        last = world.job(3)
        assert last.state.is_final or (last.state is JobState.PENDING and last.held), (nth, saboteur.struck)
        assert world.holds() == []
    assert len(struck) >= 10, struck


def test_a_pending_job_is_held_with_the_error_and_can_be_released():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)] * 2)
    world.settle()
    saboteur = Saboteur(2, 0, for_ever=False)
    saboteur.spoil(world.store, "start")
    end(world, 1)
    rest(world)
    job = world.job(2)
    assert (job.state, job.held, job.reason) == (JobState.PENDING, "admin", Reason.INTERNAL_ERROR)
    assert job.warning == "internal error: Broken: CrashingStore.start \\xe9 of job 2"
    assert world.engine.jobtable.reason(job) is Reason.INTERNAL_ERROR
    ask(world, "release", ids=[2])
    rest(world)
    assert world.job(2).state is JobState.RUNNING


def test_a_job_whose_end_cannot_be_taken_in_fails_and_gives_its_share_back():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)] * 2)
    world.settle()
    saboteur = Saboteur(1, 0, for_ever=True)
    saboteur.spoil(world.engine.charges, "charge")
    world.host.finish(1, 1, a_result(3 << 8))
    rest(world)
    job = world.job(1)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.INTERNAL_ERROR)
    assert (job.ended.exit_code, job.ended.detail) == (
        3,
        "internal error: Broken: UsageCharges.charge \\xe9 of job 1",
    )
    assert world.job(2).state is JobState.RUNNING
    assert (1, 1) not in world.host.attempts, "its traces are removed"


def test_a_running_job_goes_on_when_something_else_fails_for_it():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)])
    world.settle()
    world.turn(Faulted(1, 1, "internal error: Broken"))
    assert (world.job(1).state, world.job(1).warning) == (JobState.RUNNING, "internal error: Broken")
    end(world, 1)
    world.settle()
    assert world.job(1).state is JobState.COMPLETED


def test_a_job_whose_cleaning_fails_has_a_warning_and_ends_when_it_fails_again():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)])
    world.settle()
    world.engine.gpu_states.needs_cleaning = True
    end(world, 1)
    world.turn()
    world.engine.gpu_states.needs_cleaning = False
    saboteur = Saboteur(1, 0, for_ever=True)
    saboteur.spoil(world.engine, "_settle")
    warning = "internal error: Broken: CrashingEngine._settle \\xe9 of job 1"
    world.turn()
    assert (world.job(1).state, world.job(1).warning) == (JobState.COMPLETING, warning)
    rest(world)
    assert (world.job(1).state, world.job(1).warning) == (JobState.COMPLETED, warning)


def test_a_request_that_fails_is_refused_and_the_others_of_its_turn_are_not():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)])
    world.settle()
    said = []

    def broken(now):
        world.store.save(world.engine.jobtable.jobs[1], world.engine.jobtable.jobs[1], now=now)
        raise Broken("half done")

    world.turn(
        ClientRequest(broken, lambda error: said.append((type(error), error.cause))),
        ClientRequest(lambda now: SendReply(said.append, "acknowledged"), said.append),
    )
    assert said == [(OurFault, "Broken: half done"), "acknowledged"]


def test_planning_that_fails_for_one_kind_of_job_holds_the_jobs_of_that_kind(monkeypatch):
    def fails(queue, *rest, **more):
        if any(group.kind.time_limit == 777 for group in queue.groups):
            raise Broken("of a kind")
        return plan(queue, *rest, **more)

    monkeypatch.setattr("fgsched.scheduling.planner.plan", fails)
    world = World([a_gpu(0)])
    world.submit([a_demand(2500)] * 2, time_limit=777)
    world.submit([a_demand(2500)])
    rest(world)
    assert [world.job(number).state for number in (1, 2, 3)] == [*[JobState.PENDING] * 2, JobState.RUNNING]
    assert [world.job(number).reason for number in (1, 2)] == [Reason.INTERNAL_ERROR] * 2


def test_planning_that_fails_for_all_pauses_and_everything_else_goes_on():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)])
    world.settle()
    real = world.engine._start_what_fits
    world.engine._start_what_fits = lambda now: 1 / 0
    world.submit([a_demand(2500)])
    end(world, 1)
    world.turn()
    world.turn()
    assert [world.job(number).state for number in (1, 2)] == [JobState.COMPLETED, JobState.PENDING]
    assert world.engine.due(world.now) == 3.0
    assert world.engine.due(world.now + 60) == 0.0, "the process was delayed after the turn"
    world.engine._start_what_fits = real
    rest(world)
    assert world.job(2).state is JobState.RUNNING


def refuse_steps_of_the_first_job(world):
    """Let each write of a step of job 1 fail, until the attribute `write` is removed."""
    real = world.engine.store.steps.write

    def write():
        if any(row[0] == 1 for row in world.store.steps._new):
            raise Broken("rows")
        real()

    world.store.steps.write = write


def test_an_event_that_fails_outside_every_boundary_is_found_by_itself():
    world = World([a_gpu(0)])
    world.submit([a_demand(2500)] * 2)
    world.settle()
    refuse_steps_of_the_first_job(world)
    world.host.finish(1, 1, a_result())
    world.host.finish(2, 1, a_result())
    rest(world)
    assert world.job(2).state is JobState.COMPLETED
    assert list(world.engine.jobtable.aside) == [1]
    del world.store.steps.write
    world.start()
    rest(world)
    assert world.job(1).state is JobState.COMPLETED


def test_a_job_whose_begin_cannot_be_noted_is_held_and_the_others_begin():
    world = World([a_gpu(0)])
    world.submit([a_demand(2500)] * 2, begin=int(world.now) + 100)
    real = world.engine.eligibility._examine_due

    def ring(job, now):
        if job.id == 1:
            raise Broken("ring")
        real(job, now)

    world.engine.eligibility._examine_due = ring
    world.now += 101
    rest(world)
    assert (world.job(1).state, world.job(1).reason) == (JobState.PENDING, Reason.INTERNAL_ERROR)
    assert world.job(2).state is JobState.RUNNING


def test_the_slot_of_a_job_that_is_set_aside_is_not_given_to_another():
    world = World([a_gpu(0)])
    world.submit([a_demand(2500)] * 2)
    world.settle()
    refuse_steps_of_the_first_job(world)
    world.host.finish(1, 1, a_result())
    rest(world)
    assert list(world.engine.jobtable.aside) == [1]
    world.submit([a_demand(2500)])
    rest(world)
    assert len({world.job(number).slot for number in (1, 2, 3)}) == 3


# -- rows that cannot be read -----------------------------------------------------------------------

DAMAGE = {
    "reason": "Wat",
    "request": "no JSON",
    "state": "BANANA",
    "allocated": "[[1]]",
    "eviction": "[]",
    "post_mortem": "{",
    "resources": "[3]",
    "condemned": "?",
    "outcome": "Y",
}


def damage(world, job, column, value):
    world.store._db.execute("PRAGMA ignore_check_constraints = ON")
    world.store._db.execute(f"UPDATE job SET {column} = ? WHERE id = ?", (value, job))


@pytest.mark.parametrize("column", DAMAGE)
def test_a_pending_job_whose_row_cannot_be_read_is_held_and_the_rest_is_served(column):
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)] * 2)
    world.submit([a_demand(WHOLE)])
    damage(world, 2, column, DAMAGE[column])
    world.start()
    job = world.engine.jobtable.jobs[2]
    if column in ("resources",):  # what is not looked at before a job starts
        assert not job.held
        return
    assert (job.state, job.held, job.reason) == (JobState.PENDING, "admin", Reason.INTERNAL_ERROR)
    assert job.warning.startswith(f"internal error: its row in the queue cannot be read: {column}: ")
    end(world, 1)
    rest(world)
    assert world.job(3).state is JobState.RUNNING
    world.start()
    assert world.engine.jobtable.jobs[2].warning == job.warning, "it is told once"


@pytest.mark.parametrize("column", DAMAGE)
def test_a_running_job_whose_row_cannot_be_read_goes_on_to_its_end(column):
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)])
    world.submit([a_demand(WHOLE)])
    world.settle()
    damage(world, 1, column, DAMAGE[column])
    world.start()
    assert world.job(1).state is JobState.RUNNING
    assert world.job(1).warning.startswith(f"internal error: its row in the queue cannot be read: {column}: ")
    assert world.job(2).state is JobState.PENDING, "what it holds stays taken"
    end(world, 1)
    rest(world)
    assert world.job(1).state is JobState.COMPLETED
    assert world.job(2).state is JobState.RUNNING


def test_a_damaged_row_is_marked_once_although_marking_repairs_only_some_of_its_columns():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)] * 2)
    damage(world, 2, "request", "no JSON")
    damage(world, 2, "outcome", "Y")
    world.start()
    marked = world.engine.jobtable.jobs[2]
    assert "outcome: " in marked.warning
    world.start()
    assert world.engine.containment.aside == {}
    assert world.engine.jobtable.jobs[2] == marked


@pytest.mark.parametrize("count", [3, 30])
def test_jobs_that_cannot_be_put_into_the_table_cost_a_start_one_more_table(count, monkeypatch):
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)] * (2 * count + 1))
    world.settle()
    damaged = range(count + 2, 2 * count + 2)
    for job in damaged:
        damage(world, job, "depends", "nothing of the kind")
    puts = []
    real = JobTable.put
    monkeypatch.setattr(JobTable, "put", lambda table, job: puts.append(job.id) or real(table, job))
    world.start()
    assert sorted(world.engine.containment.aside) == list(damaged)
    assert len(puts) < 6 * count + 3


@pytest.mark.parametrize("count", [3, 30])
def test_many_jobs_that_cannot_be_marked_cost_a_start_two_rounds(count, monkeypatch):
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)] * (count + 1))
    world.settle()
    for job in range(2, count + 2):
        damage(world, job, "outcome", "Y")
    reads = []
    read, save = Store.open_past, Store.save
    monkeypatch.setattr(Store, "open_past", lambda store: reads.append(1) or read(store))
    refused = range(2, count + 2)
    monkeypatch.setattr(
        Store,
        "save",
        lambda store, before, *how, **more: before.id not in refused and save(store, before, *how, **more),
    )
    world.start()
    assert sorted(world.engine.containment.aside) == list(range(2, count + 2))
    assert len(reads) == 2


@pytest.mark.parametrize("ended_at", [-1.0, 5.0, 1e12])
def test_a_row_that_says_that_a_running_job_is_over_gives_its_card_to_no_other_job(ended_at):
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)])
    world.settle()
    damage(world, 1, "ended_at", ended_at)
    world.start()
    world.submit([a_demand(WHOLE)])
    rest(world)
    assert [world.job(one).state for one in (1, 2)] == [JobState.RUNNING, JobState.PENDING]
    assert (world.job(2).held, world.job(2).warning) == ("", "")
    end(world, 1)
    rest(world)
    assert [world.job(one).state for one in (1, 2)] == [JobState.COMPLETED, JobState.RUNNING]


def test_a_job_whose_request_cannot_be_read_is_not_released():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)] * 2)
    damage(world, 2, "request", "no JSON")
    world.start()
    (answer,) = ask(world, "release", ids=[2])
    assert "cannot be read" in answer["jobs"][0]["error"]["cause"]
    end(world, 1)
    rest(world)
    assert world.job(2).state is JobState.PENDING


def test_a_card_whose_state_cannot_be_read_takes_no_jobs():
    store = Store(":memory:")
    with store.write():
        store.put_gpus([a_gpu(0)])
    store._db.execute("UPDATE card SET state = 'Wat'")
    ((state, note, _),) = store.gpu_marks().values()
    store.close()
    assert (state.value, note) == ("drained", "its state in the queue cannot be read: 'Wat'")


# -- text from outside ------------------------------------------------------------------------------


def test_a_detail_that_is_not_utf8_is_stored_as_escapes():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)])
    world.settle()
    text = "R4 32512 launch 1 2 0 0 0 0 0 -1 0 0 0 0 0 2 0 0 exec /bin/b\udce4sh\0"
    world.host.finish(1, 1, parse_result(text))
    rest(world)
    assert world.job(1).ended.detail == "exec /bin/b\\xe4sh\\x00"
    assert world.engine.faults.count == 0


@pytest.mark.parametrize("text", ["caf\udce9", "a\0b", "\ud800", "x" * 100_000])
def test_every_text_can_be_stored(text):
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)], account=text, comment=text)
    world.settle()
    end(world, 1)
    rest(world)
    assert world.job(1).state is JobState.COMPLETED
    assert world.engine.faults.count == 0
    json.dumps([tuple(row) for row in world.store._db.execute("SELECT name, request FROM job")])


def test_other_errors_of_binding_a_value_are_not_hidden():
    with closing(Store(":memory:")) as store, pytest.raises(sqlite3.ProgrammingError):
        store._db.execute("SELECT ?", (object(),))


@pytest.mark.compiler
def test_a_script_that_names_an_interpreter_in_latin_1_costs_nobody_else_anything(home):
    """The interpreter is there at the submission, and is removed while the job waits."""
    interpreter = os.fsencode(home.path) + b"/b\xe4sh"
    os.symlink("/bin/sh", interpreter)
    script = b"#!" + interpreter + b"\n"
    done = home.run("fgsub", "--parsable", "--hold", input=script, text=False, errors=None)
    os.unlink(interpreter)
    assert home.run("fgctl", "release", str(int(done.out))).status == 0
    (job,) = home.wait(int(done.out))
    assert job["state"] == "FAILED"
    assert f"{home.path}/b" in home.job(job["id"])["detail"]
    pid = home.paths.lock.read_text()
    assert home.run("fgsched", "stop").status == 0
    assert home.run("fgq", "-h").status == 0
    assert home.wait(home.submit("exit 0"))[0]["state"] == "COMPLETED"
    assert home.paths.lock.read_text() != pid


@pytest.mark.compiler
@pytest.mark.parametrize("place", ["output", "chdir"])
def test_a_path_that_is_cut_within_a_character_costs_nobody_else_anything(home, place):
    name = "\u6570\u636e" * 35
    path = "/".join(["", "nowhere", *[name] * 6, "xy"[: 1 + (place == "chdir")]])
    job = home.submit("exit 0", **{place: path})
    assert home.wait(job)[0]["state"] == "FAILED"
    assert home.wait(home.submit("exit 0"))[0]["state"] == "COMPLETED"
    assert home.client.ask("ping")["internal_errors"]["count"] == 0


# -- what operators said ----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["{", "7", '[{"name": "x"}, 3, null]', '[["a"]]'])
def test_reservations_that_cannot_be_read_are_left_out(text):
    site = Site([a_gpu(0)], Config(), sampled=False)
    made = site.ask(
        "create_reservation",
        name="kept",
        share=WHOLE,
        gpus=[0],
        flags=[],
        users=["ann"],
        start=5000,
        end=9000,
    )
    assert made == {"reservation": "kept"}
    kept = json.loads(site.world.store.kept.recall("reservations"))
    both = text if text in ("{", "7") else json.dumps([*json.loads(text), *kept])
    with site.world.store.write():
        site.world.store.kept.remember("reservations", both)
    site.world.start()
    names = [one.name for one in site.world.engine.policy.reservations]
    assert names == ([] if text in ("{", "7") else ["kept"])


@pytest.mark.parametrize("text", ["{", "[]", '{"x y": {}}', '{"main": {"max_time": "?"}}', '{"main": 3}'])
def test_partitions_that_do_not_fit_any_more_are_left_out(text):
    site = Site([a_gpu(0)], Config(), sampled=False)
    with site.world.store.write():
        site.world.store.kept.remember("partitions", text)
    site.world.start()
    assert [one.name for one in site.world.engine.policy.partitions] == ["main"]
    assert site.world.engine.policy.partitions[0].state == "up"


def test_a_card_whose_mark_was_not_stored_is_marked_again():
    world = World([a_gpu(0)])
    with full_disk(world):
        world.engine.gpu_states.drain(0, "loud", world.now)
        world.turn(ClientRequest(lambda now: NO_REPLY, lambda error: None))
    world.turn()
    assert [mark[:2] for mark in world.store.gpu_marks().values()] == [(GpuState.DRAINED, "loud")]


@pytest.mark.parametrize("field", ["partition", "account", "qos", "reservation"])
def test_a_field_that_is_no_path_has_no_bytes_that_are_not_utf8(field):
    request = read_request({"name": "x", "chdir": "/", field: "caf\udce9"})
    with pytest.raises(BadUsage, match=f"{field}='caf.xe9' is not UTF-8"):
        check_plain(request)


RULES = {
    **{"held": "x", "wish": "y", "failures": -1, "attempt": -5, "slot": 10**12, "lost": 7, "ended_at": 5.0},
    **{"uid": -1, "restarts": 2**62, "array_job": 1, "array_task": 7},
}


@pytest.mark.parametrize("column", RULES)
def test_a_row_that_breaks_a_rule_of_the_queue_concerns_that_job_alone(column):
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)] * 2)
    world.submit([a_demand(WHOLE)])
    world.settle()
    damage(world, 2, column, RULES[column])
    world.start()
    if column != "ended_at":  # then the job is over
        assert world.engine.containment.damaged[2].endswith(f"{column}: it breaks a rule of the queue") or (
            column in ("attempt", "array_task")
        )
    (answer,) = ask(world, "cancel", ids=[2, 3])
    assert answer["jobs"][-1] == {"id": 3, "outcome": "cancelled"}
    end(world, 1)
    rest(world)
    assert [world.job(number).state for number in (1, 3)] == [JobState.COMPLETED, JobState.CANCELLED]
    assert world.job(2).state.is_final, "its owner can end it"
    assert not world.engine.is_broken


@pytest.mark.parametrize(
    ("column", "value"), [("allocated", ""), ("allocated", "?"), ("array_job", 1), ("array_task", 3)]
)
def test_a_running_job_whose_row_breaks_a_rule_of_the_queue_can_end(column, value):
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)] * 2)
    world.settle()
    damage(world, 1, column, value)
    world.start()
    end(world, 1)
    rest(world)
    assert [world.job(one).state for one in (1, 2)] == [JobState.COMPLETED, JobState.RUNNING]


def test_a_task_of_an_array_whose_row_is_damaged_stays_a_task():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)], array="1-2")
    world.settle()
    running = next(job for job in world.store.open_jobs() if job.task is not None)
    damage(world, running.id, "condemned", "?")
    world.start()
    found = world.job(running.id)
    assert (found.array, found.task, found.state) == (running.array, running.task, JobState.RUNNING)


def test_a_request_for_several_jobs_fails_only_for_the_job_that_it_fails_for():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)] * 3)
    world.settle()
    Saboteur(2, 0, for_ever=True).spoil(world.store, "save")
    (answer,) = ask(world, "cancel", ids=[1, 2, 3])
    assert [one.get("outcome") for one in answer["jobs"]] == ["cancelled", None, "cancelled"]
    assert answer["jobs"][1]["error"]["exit"] == 7
    rest(world)
    assert [world.job(number).state for number in (1, 3)] == [JobState.CANCELLED] * 2


# -- the watchdog and those who wait ------------------------------------------------------------------


def test_what_the_watchdog_fails_on_for_one_job_keeps_it_from_no_other():
    told = []
    watching = Watchdog("/nowhere", WatchdogPolicy(kills=True, tolerance=0), told.append)
    real = watching._counted

    def fails(job, seen):
        if job.id == 7:
            raise Broken("region")
        return real(job, seen)

    watching._counted = fails
    jobs = {number: a_job(number, state=JobState.RUNNING, tier="watchdog") for number in (7, 8)}
    both = tuple(GpuProcess(pid=pid, memory=5 << 30) for pid in (7, 8))
    seen = GpuObservation({0: Reading(gpu=0, used=0, processes=both)}, set(), {7: 7, 8: 8})
    watching.judge_jobs(seen, jobs)
    watching.judge_jobs(seen, jobs)
    assert [one.job for one in told] == [8, 8]


def test_an_end_that_fails_for_one_who_waits_is_told_to_the_others():
    world = World([a_gpu(0)])
    world.submit([a_demand(2500)] * 2)
    world.settle()
    sent = []
    waiters = WaitHandlers(
        lambda connection, effect: sent.append(connection), lambda connection, answer: sent.append(connection)
    )
    lines = [SimpleNamespace(uid=1, is_closed=False, is_waiting=True, close=print) for _ in range(2)]
    for line in lines:
        finish(waiters.wait(line, Wait(ids=[1]), partial(WaitLookup(world.engine).add_jobs, ROOT, [1])))
    waiters._waiters[0].awaited = None  # whatever is asked of it fails
    waiters.answer_ended(
        [world.engine.jobtable.jobs[1].changed(state=JobState.COMPLETED)], world.engine.jobtable
    )
    assert lines[1] in sent


def test_a_list_shows_all_jobs_though_one_of_them_cannot_be_shown(monkeypatch):
    def fails(look, job):
        return job.request.name if not job.request.comment else 1 / 0

    monkeypatch.setitem(FIELDS, "name", fails)
    world = World([a_gpu(0)])
    world.submit([a_demand(2500)])
    world.submit([a_demand(2500)], comment="it cannot be shown")
    world.submit([a_demand(2500)])
    world.settle()
    answers = QueryHandlers(world.engine, lambda job: [])
    shown = [protocol.JobInfo(id=number, name="t") for number in (1, 2, 3)]
    assert answers.queue(ROOT, protocol.ListQueue(fields=("id", "name")), world.now).whole().jobs == shown
    call = protocol.ListHistory(fields=("id", "name"), ids=(1, 2, 3))
    assert answers.history(ROOT, call, world.now).whole().jobs == shown
    assert world.engine.faults.count == 2


# -- what a review of the turn found ------------------------------------------------------------------


def test_a_failure_that_no_event_causes_costs_no_job_its_end():
    world = World([a_gpu(0)])
    world.submit([a_demand(2500)])
    world.settle()
    real, left = world.engine.gpu_states.cleaned, [4]

    def cleaned(now):
        left[0] -= 1
        if left[0] >= 0:
            raise Broken("for no job")
        return real(now)

    world.engine.gpu_states.cleaned = cleaned
    end(world, 1)
    rest(world)
    assert (world.job(1).state, world.engine.containment.aside) == (JobState.COMPLETED, {})


def test_an_end_that_was_committed_is_told_though_a_later_turn_is_undone():
    world = World([a_gpu(0)])
    world.submit([a_demand(2500)] * 2)
    world.settle()
    real = world.engine.charges.write

    def write():
        if any(job.id == 2 for job in world.engine.ended):
            raise Broken("charges of job 2")
        real()

    world.engine.charges.write = write
    end(world, 1)
    end(world, 2)
    world.turn()
    assert world.job(1).state is JobState.COMPLETED
    assert 1 in [job.id for job in world.engine.ended]


def test_a_shortage_that_passes_costs_a_running_job_nothing():
    world = World([a_gpu(0)])
    real, left = world.host.follow, [3]

    def follow(job, shepherd):
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.EMFILE, "Too many open files")
        real(job, shepherd)

    world.host.follow = follow
    world.submit([a_demand(2500)])
    rest(world)
    end(world, 1)
    rest(world)
    assert (world.job(1).state, world.engine.containment.aside) == (JobState.COMPLETED, {})


def test_a_job_that_a_spawner_inherited_keeps_what_it_holds_when_something_fails_for_it():
    world = World([a_gpu(0)])
    world.submit([a_demand(2500)])
    world.settle()
    world.host.kill_remaining = lambda job: False
    world.host.attempts[1, 1].shepherd = False
    world.turn(Faulted(1, 1, "internal error: Broken"))
    rest(world)
    assert world.job(1).state is JobState.RUNNING
    assert len(world.holds()) == 1


def test_nothing_of_a_request_that_failed_for_a_job_is_carried_out(monkeypatch):
    world = World([a_gpu(0)])
    world.submit([a_demand(2500)])
    world.settle()

    def cancel(*args):
        raise Broken("after the change")

    monkeypatch.setattr("fgsched.controller.turn.CancelOrder", cancel)
    (answer,) = ask(world, "cancel", ids=[1])
    assert answer["jobs"][0]["error"]["exit"] == 7
    assert world.job(1).cancelled_by is None


def test_a_row_with_bytes_that_are_not_utf8_is_read(tmp_path):
    path = tmp_path / "queue.db"
    store = Store(path)
    with store.write():
        store.put_gpus([a_gpu(0)])
        store.submit(new_jobs([a_demand(2500)] * 2), key="k" * 16, submitter=(1, 1, "ann"), now=1.0)
        store._db.execute("UPDATE job SET note = CAST(x'ff41' AS TEXT), attempt = 1 WHERE id = 1")
    assert [past.job.note for past in store.open_past()] == ["\udcffA", ""]
    job = store.past(1).job
    with store.write():
        assert store.save(job, job.changed(held="user"), now=2.0)
    assert store.past(1).job.note == "\\xffA"
    store.close()


def test_a_log_that_cannot_be_looked_at_undoes_no_commit():
    world = World([a_gpu(0)])

    def committed():
        raise OSError(errno.EMFILE, "Too many open files")

    world.store._opened.committed = committed
    world.submit([a_demand(2500)])
    rest(world)
    assert world.job(1).state is JobState.RUNNING
    assert world.host.runs == [1]
