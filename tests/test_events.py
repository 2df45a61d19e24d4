"""Events: their names, what a slow reader loses, what other users may see, and how a command prints them."""

import json
import subprocess
import sys

import pytest

from builders import World, a_demand, a_gpu, a_job, a_result
from fgsched.cli.subscribing import lines_of
from fgsched.controller.decisionlog import DecisionLog
from fgsched.controller.events import MOST, EventRing, event_of
from fgsched.domain.job import JobState
from fgsched.protocol import EventBatch
from live_host import living


def names(batch: EventBatch) -> list[str]:
    return [event.event for event in batch.events]


def test_the_life_of_a_job_is_told_in_events():
    world, ring = World([a_gpu(0)]), EventRing("a")
    begin = ring.cursor()
    world.engine.log.feed = ring.add
    world.submit([a_demand(2500)])
    world.settle()
    world.host.finish(1, 1, a_result(3 << 8))
    world.settle()
    events = ring.after(begin, None).events
    assert [(one.event, one.state) for one in events] == [
        ("started", "CONFIGURING"),
        ("ended", "FAILED"),
    ]
    end = events[-1]
    assert (end.job, end.user, end.reason, end.exit_code, end.signal) == (1, "ann", "NonZeroExitCode", 3, 0)
    assert (events[0].gpus, events[0].share) == ((0,), 2500)


CHANGES = {
    "held": {"held": "user"},
    "cancelling": {"cancelled_by": 0},
    "requeuing": {"wish": "requeue"},
    "warned": {"warning": "over its limit"},
    "suspended": {"state": JobState.SUSPENDED, "suspended_at": 2.0},
    "requeued": {"state": JobState.PENDING, "holds": ()},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_job_has_the_documented_name(name):
    job = a_job(state=JobState.RUNNING)
    assert event_of((job, job.changed(**CHANGES[name]), "root"))["event"] == name


def test_a_submission_of_many_jobs_is_one_event():
    found = event_of((a_job(5), 7, ""))
    assert (found["event"], found["job"], found["count"]) == ("submitted", 5, 7)


def test_events_of_gpus_and_of_the_site_have_no_job():
    log, ring = DecisionLog(), EventRing("a")
    log.feed = ring.add
    log.note("gpu", gpu=1, state="drained", why="fan [ann]")
    log.note("reconfigure", changed="nothing")
    log.flush(5.0)
    assert [(one.event, one.job, one.gpus, one.note) for one in ring.after("a.0", None).events] == [
        ("gpu-drained", 0, (1,), "fan [ann]"),
        ("reconfigure", 0, (), ""),
    ]


def test_a_rolled_back_turn_makes_no_event():
    log, ring = DecisionLog(), EventRing("a")
    log.feed = ring.add
    log.note("reconfigure")
    log.drop()
    log.flush(5.0)
    assert ring.after("a.0", None).events == []


def filled(count: int) -> EventRing:
    ring = EventRing("a")
    job = a_job(state=JobState.RUNNING)
    ring.add([(job, job.changed(held="user"), "")] * count, 1.0)
    return ring


def test_a_slow_reader_learns_how_many_events_it_lost():
    ring = filled(MOST + 5)
    batch = ring.after("a.2", None)
    assert (batch.lost, batch.events[0].seq, len(batch.events), batch.cursor) == (3, 6, 1000, "a.1005")
    seen = 1000
    while batch.events:
        batch = ring.after(batch.cursor, None)
        assert batch.lost == 0
        seen += len(batch.events)
    assert (seen, batch.cursor) == (MOST, ring.cursor())


@pytest.mark.parametrize("cursor", ["b.3", "a.x", "", "a.99999999999999999999"])
def test_a_cursor_of_another_controller_has_lost_an_unknown_number(cursor):
    batch = filled(3).after(cursor, None)
    assert (batch.lost, len(batch.events), batch.cursor) == (None, 3, "a.3")


def test_a_user_sees_no_jobs_of_others_where_data_are_private():
    log, ring = DecisionLog(), EventRing("a")
    log.feed = ring.add
    for uid in (1, 2):
        job = a_job(uid, uid=uid, state=JobState.RUNNING)
        log.step(job, job.changed(held="user"))
    log.note("gpu", gpu=0, state="drained", why="the prolog of job 2 failed")
    log.flush(1.0)
    batch = ring.after("a.0", 1)
    assert [(one.event, one.job, one.note) for one in batch.events] == [
        ("held", 1, ""),
        ("gpu-drained", 0, ""),
    ]
    assert (batch.cursor, batch.lost) == ("a.3", 0)


def test_a_lost_event_is_a_line_of_its_own():
    batch = filled(1).after("b.1", None)
    lost, held = (json.loads(line) for line in lines_of(batch, as_json=True))
    assert lost == {"version": 1, "event": "lost", "count": None}
    assert (held["version"], held["event"], held["job"], held["uid"]) == (1, "held", 1, 1)
    assert "note" not in held
    text = list(lines_of(batch, as_json=False))
    assert text[0] == "lost an unknown number of events"
    assert " held job=1 " in text[1]


def test_a_subscriber_gets_the_events_of_a_job(tmp_path):
    with living(tmp_path / "home") as home:
        home.run("fgq")
        words = [sys.executable, "-m", "fgsched.cli.fgctl", "subscribe", "--json"]
        with subprocess.Popen(words, env=home.environ, stdout=subprocess.PIPE, text=True) as reader:
            said = (json.loads(line) for line in reader.stdout)
            assert next(said) == {"version": 1, "event": "subscribed"}
            job_id = home.submit("exit 3")
            found = []
            while not found or found[-1]["event"] != "ended":
                found.append(next(said))
            reader.kill()
    assert [one["event"] for one in found if one["job"] == job_id][:2] == ["submitted", "started"]
    assert (found[-1]["state"], found[-1]["exit_code"]) == ("FAILED", 3)
