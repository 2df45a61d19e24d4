"""More commands at a time than a controller that is busy has places for."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from fgsched import client
from fgsched.errors import Unreachable
from fgsched.host.places import Places


@pytest.fixture
def places(tmp_path):
    found = Places.find({"FG_HOME": str(tmp_path)}, os.geteuid())
    found.prepare(os.geteuid())
    return found


@pytest.fixture
def door(places):
    """Where a controller listens that is busy, and has a place for one."""
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(places.socket))
        one.listen(0)
        with client.connect(places):
            yield one


def test_who_finds_no_place_says_that_nobody_answers(places, door, monkeypatch):
    monkeypatch.setattr(client, "_PATIENCE", 0.1)
    with client.Client(places) as late, pytest.raises(Unreachable, match="does not answer") as told:
        late.ask("ping")
    assert "safe to repeat" in told.value.remedy


def test_who_finds_a_place_at_last_has_the_usual_patience(places, door):
    with ThreadPoolExecutor(1) as beside:
        late = beside.submit(client.connect, places)
        for _ in range(2):
            door.accept()[0].close()
        with late.result() as sock:
            assert sock.gettimeout() == client._PATIENCE
            assert sock.recv(1) == b""
