"""Events: their names, what a slow reader loses, what other users may see, and how a command prints them."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from builders import World, a_demand, a_gpu, a_job, a_result
from fgsched.controller.caller import Caller
from fgsched.controller.decisionlog import DecisionLog
from fgsched.controller.handlers.events import MOST, EventReaders, EventRing, event_of
from fgsched.domain.errors import Refused
from fgsched.domain.states import JobState
from fgsched.hooks.relay import Commands, Relay, Socket
from fgsched.hooks.subscription import lines_of
from fgsched.protocol import EventBatch, Events
from live_host import PATIENCE, Home, living


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


def test_a_reader_whose_last_event_is_the_oldest_one_has_lost_none_and_gets_none_twice():
    batch = filled(MOST + 5).after("a.6", None)
    assert (batch.lost, batch.events[0].seq) == (0, 7)


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


def test_a_subscriber_and_the_sites_socket_get_the_events_of_a_job(tmp_path):
    site = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    site.bind(str(tmp_path / "site"))
    site.settimeout(PATIENCE)
    config = f'{Home.config}[events]\nsocket = "{tmp_path}/site"\n'
    with closing(site), living(tmp_path / "home", config=config) as home:
        home.run("fgq")
        words = [sys.executable, "-m", "fgsched.cli.fgctl", "subscribe", "--json"]
        with subprocess.Popen(words, env=home.environ, stdout=subprocess.PIPE, text=True) as reader:
            readers = (
                (json.loads(line) for line in reader.stdout),
                iter(lambda: json.loads(site.recv(65536)), 0),
            )
            assert [next(one) for one in readers] == [{"version": 1, "event": "subscribed"}] * 2
            job_id = home.submit("exit 3")
            found = [until_ended(one) for one in readers]
            reader.kill()
    assert found[0] == found[1]
    assert [one["event"] for one in found[0] if one["job"] == job_id][:2] == ["submitted", "started"]
    assert (found[0][-1]["state"], found[0][-1]["exit_code"]) == ("FAILED", 3)


def until_ended(events: Iterator[dict[str, object]]) -> list[dict[str, object]]:
    found = [next(events)]
    while found[-1]["event"] != "ended":
        found.append(next(events))
    return found


class Loop:
    """An event loop that keeps the answers."""

    def __init__(self):
        self.is_waiting = self.is_closed = False  # as a connection
        self.answers = []

    def refuse_to_wait(self, connection):
        pass

    def finish(self, connection, send):
        send()

    def succeed(self, batch):
        self.answers.append(batch)


def test_without_readers_no_events_are_kept_and_a_late_reader_learns_that():
    log, loop, now = DecisionLog(), Loop(), [1000.0]
    readers = EventReaders(log, loop, clock=lambda: now[0])
    caller = Caller(1, 1, "ann", is_operator=False)
    assert (readers.due, log.feed) == (None, None)
    readers.ask(loop, caller, Events())
    cursor = loop.answers[-1].cursor
    readers.ask(loop, caller, Events(after=cursor))
    assert (loop.is_waiting, readers.due, len(loop.answers)) == (True, 10, 1)
    log.note("reconfigure")
    log.flush(1.0)
    readers.look()
    assert (loop.is_waiting, names(loop.answers[-1])) == (False, ["reconfigure"])
    now[0] += readers.due
    readers.look()
    assert (readers.due, log.feed) == (None, None)
    readers.ask(loop, caller, Events(after=loop.answers[-1].cursor))
    assert loop.answers[-1].lost is None


# -- the relay ------------------------------------------------------------------------------------


def test_the_relay_says_once_that_the_site_takes_no_events_and_then_how_many_were_lost():
    taken, reports = [], []
    failures = [OSError(2, "No such file or directory"), OSError(5, "exited with status 1")]

    def deliver(lines):
        if failures:
            raise failures.pop(0)
        taken.append(list(lines))

    relay = Relay(deliver, reports.append)
    for lines in (["1", "2"], [], ["3"], ["4"], ["5"]):
        relay.pass_on(lines)
    assert taken == [['{"version":1,"event":"lost","count":3}', "4"], ["5"]]
    assert reports == ["events are lost: the site's command or socket: No such file or directory"]


def test_a_command_gets_events_as_lines(tmp_path):
    path = tmp_path / "command"
    path.write_text(f"#!/bin/sh\nenv >{tmp_path}/env; cat >{tmp_path}/said\n")
    path.chmod(0o755)
    Commands(str(path)).deliver(["one", "two"])
    assert (tmp_path / "said").read_text() == "one\ntwo\n"
    assert "PYTHONPATH" not in (tmp_path / "env").read_text()
    path.chmod(0o757)
    with pytest.raises(Refused, match="written by others"):
        Commands(str(path)).deliver(["one"])


def test_a_stream_gets_events_as_lines_and_a_full_one_is_left(tmp_path):
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(tmp_path / "site"))
        listener.listen()
        target = Socket(str(tmp_path / "site"), seconds=0.1)
        target.deliver(["one", "two"])
        taken, _ = listener.accept()
        with closing(taken):
            assert taken.recv(100) == b"one\ntwo\n"
            with pytest.raises(TimeoutError):
                target.deliver(["x" * 1_000_000])
        target.deliver(["three"])
        again, _ = listener.accept()
        with closing(again):
            assert again.recv(100) == b"three\n"
        target.kill()
