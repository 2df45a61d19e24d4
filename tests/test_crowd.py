"""More commands at a time than a controller that is busy has places for."""

import json
import os
import resource
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from asking import AskingClient
from fgsched import client, codec, protocol
from fgsched.domain.errors import NoSuchJob, Unreachable
from fgsched.system.paths import Paths
from live_host import PATIENCE


@pytest.fixture
def paths(tmp_path):
    found = Paths.find({"FG_HOME": str(tmp_path)}, os.geteuid())
    found.prepare(os.geteuid())
    return found


@pytest.fixture
def door(paths):
    """Where a controller listens that is busy, and has a place for one."""
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(paths.socket))
        one.listen(0)
        with client.connect(paths):
            yield one


def test_who_finds_no_place_says_that_nobody_answers(paths, door, monkeypatch):
    monkeypatch.setattr(client, "_CROWD", 0.1)
    with AskingClient(paths) as late, pytest.raises(Unreachable, match="does not answer") as told:
        late.ask("ping")
    assert "safe to repeat" in told.value.remedy


def test_who_finds_a_place_at_last_has_the_usual_patience(paths, door):
    with ThreadPoolExecutor(1) as beside:
        late = beside.submit(client.connect, paths)
        for _ in range(2):
            door.accept()[0].close()
        with late.result() as sock:
            assert sock.gettimeout() == client._PATIENCE
            assert sock.recv(1) == b""


BUSY = b'{"v":2,"busy":{"after":0.001},"error":{"exit":5,"cause":"too many","remedy":"End some."}}\n'


@pytest.fixture
def counter(paths):
    """Where a controller listens that says what the test has it say, a connection at a time."""
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(paths.socket))
        one.listen(8)
        yield one


def says(counter, *answers):
    """Accept a connection for each answer; hang up without having read what was asked where it is busy."""
    for answer in answers:
        sock, _ = counter.accept()
        with sock:
            if answer is not BUSY:
                sock.recv(4096)
            sock.sendall(answer)


def test_a_command_that_is_told_to_wait_asks_again_until_it_is_answered(paths, counter):
    with ThreadPoolExecutor(1) as beside, AskingClient(paths) as one:
        heard = beside.submit(says, counter, BUSY, BUSY, BUSY, b'{"v":2,"ok":{"pid":7,"running":0}}\n')
        assert one.ask("stop") == {"pid": 7, "running": 0}
        heard.result()


def test_a_command_that_is_told_to_wait_for_too_long_says_that_nothing_was_changed(
    paths, counter, monkeypatch
):
    monkeypatch.setattr(client, "_CROWD", 0.0)
    with ThreadPoolExecutor(1) as beside, AskingClient(paths) as one:
        heard = beside.submit(says, counter, BUSY)
        with pytest.raises(Unreachable, match="the controller is busy: too many") as told:
            one.ask("ping")
        heard.result()
    assert told.value.remedy == "End some.\nNothing was changed; it is safe to repeat the command."


def test_a_command_that_waits_for_a_busy_controller_says_once_for_what(paths, counter, monkeypatch, capsys):
    monkeypatch.setattr(client, "_SILENT", 0.0)
    monkeypatch.setattr("sys.argv", ["/usr/bin/fgq"])
    with ThreadPoolExecutor(1) as beside, AskingClient(paths) as one:
        heard = beside.submit(says, counter, BUSY, BUSY, b'{"v":2,"ok":{"pid":7,"running":0}}\n')
        one.ask("stop")
        heard.result()
    assert capsys.readouterr().err == "fgq: waiting: the controller is busy: too many\n"


def test_who_waits_for_jobs_and_is_told_to_wait_asks_again(paths, counter):
    with ThreadPoolExecutor(1) as beside, AskingClient(paths) as one, one.watch([1]) as watch:
        heard = beside.submit(says, counter, BUSY, b'{"v":2,"ok":{"jobs":[]}}\n')
        told = [watch.is_over(PATIENCE), watch.is_over(PATIENCE)]
        assert (told, heard.result()) == ([False, True], None), "busy first, then the answer"


def test_more_clients_than_a_user_may_have_connections_are_all_answered(home):
    """The first 256 stay until somebody else was told to wait."""
    home.client.ask("ping")
    held = [client.connect(home.paths) for _ in range(255)]
    with ThreadPoolExecutor(100) as beside:
        asked = [beside.submit(ask_once, home.paths) for _ in range(100)]
        with client.connect(home.paths) as late:
            late.settimeout(PATIENCE)
            assert b'"busy"' in late.recv(4096)
        for sock in held:
            sock.close()
        assert {one.result()["mode"] for one in asked} == {"user"}


def test_a_controller_out_of_descriptors_answers_everybody_once_it_has_some(home):
    pid = home.client.ask("ping")["pid"]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (40, 40))
    held = [socket.socket(socket.AF_UNIX) for _ in range(60)]
    for sock in held:
        sock.connect(str(home.paths.socket))
    with client.connect(home.paths) as late:
        late.settimeout(PATIENCE)
        assert b"no descriptor left" in late.recv(4096)
    with ThreadPoolExecutor(20) as beside:
        asked = [beside.submit(ask_once, home.paths) for _ in range(20)]
        for sock in held:
            sock.close()
        assert {one.result()["pid"] for one in asked} == {pid}


def ask_once(paths):
    with AskingClient(paths, may_start=False) as one:
        return one.ask("ping")


def test_a_list_of_the_queue_that_is_read_slowly_tells_of_the_moment_when_it_was_asked_for(home):
    home.submit(count=20_000, hold=True, share=0)
    fields = ["id", "state", "cause", "reason", "priority", "tasks", "share", "elapsed"]
    with client.connect(home.paths) as slow, slow.makefile("rb") as answers:
        slow.sendall(codec.encode_call(protocol.ListQueue(fields=fields)))
        begun = answers.read(1)
        home.client.ask("cancel", ids=list(range(1, 20_001)), patience=PATIENCE)
        jobs = json.loads(begun + answers.readline())["ok"]["jobs"]
    assert [job["id"] for job in jobs] == list(range(1, 20_001))
    assert {job["reason"] for job in jobs} == {"JobHeldUser"}
    assert home.queue("id") == []


def test_many_jobs_that_are_over_and_one_that_runs_are_waited_for_together(home):
    held = home.submit(count=2000, hold=True, share=0)
    home.client.ask("cancel", ids=list(range(held, held + 2000)), patience=PATIENCE)
    job = home.running(share=0)
    ids = [*range(held, held + 2000), job]
    with home.client.watch(ids) as watch:
        assert not watch.is_over(0)
        home.client.ask("cancel", ids=[job])
        while not watch.is_over(1):
            pass
    assert sorted(one["id"] for one in home.wait(*ids)) == sorted(ids)
    with pytest.raises(NoSuchJob):
        home.wait(*ids, 10**6)


def test_commands_that_wait_for_jobs_do_not_keep_their_users_others_out(home):
    job = home.running(share=0)
    with ExitStack() as waiting:
        for _ in range(300):
            waiting.enter_context(home.client.watch([job])).is_over(0)
            home.client.ask("ping")
        assert home.job(job)["state"] == "RUNNING"
