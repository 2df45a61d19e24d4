"""What the service manager is told, on a socket as systemd makes it."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from awaiting import PATIENCE
from fgsched.system.sdnotify import ServiceManager


@pytest.fixture
def manager(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.bind(str(tmp_path / "notify"))
        ours.settimeout(PATIENCE)
        yield ours


def heard(manager):
    return manager.recv(4096).decode().split("\n")


def until(manager, wanted):
    while wanted not in (lines := heard(manager)):
        pass
    return lines


def test_start_life_and_stop_are_told(manager):
    one = ServiceManager({"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "4000000"})
    assert one.due(0.0) is None, "no sign of life before the start"
    one.ready("2 GPUs\nSTOPPING=1", 10.0)
    assert heard(manager) == ["READY=1", "STATUS=2 GPUs STOPPING=1"]
    assert (one.due(10.5), one.is_due(11.9), one.is_due(12.0)) == (1.5, False, True)
    one.alive("busy", 12.0)
    assert heard(manager) == ["WATCHDOG=1", "STATUS=busy"]
    assert one.due(12.0) == 2.0
    one.stopping()
    assert heard(manager) == ["STOPPING=1"]


@pytest.mark.parametrize("watchdog", [{}, {"WATCHDOG_USEC": "4000000"}])
def test_a_start_that_the_manager_had_no_room_to_hear_of_is_told_again(manager, watchdog):
    one = ServiceManager({"NOTIFY_SOCKET": manager.getsockname()} | watchdog)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, suppress(BlockingIOError):
        other.setblocking(False)
        while other.sendto(b"STATUS=full", manager.getsockname()):
            pass
    one.ready("2 GPUs", 10.0)
    assert (one.is_due(10.4), one.is_due(10.5)) == (False, True)
    one.alive("2 GPUs", 10.5)  # no room yet
    until(manager, "STATUS=full")
    one.alive("2 GPUs", 11.0)
    assert until(manager, "READY=1") == ["READY=1", "WATCHDOG=1", "STATUS=2 GPUs"]
    assert one.due(11.0) == (2.0 if watchdog else None)


def test_an_abstract_socket_is_told_as_well():
    name = f"\0fgsched-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.bind(name)
        ours.settimeout(PATIENCE)
        ServiceManager({"NOTIFY_SOCKET": "@" + name[1:]}).stopping()
        assert heard(ours) == ["STOPPING=1"]


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "1"},
    ],
)
def test_no_sign_of_life_is_sent_that_nobody_waits_for(manager, about):
    one = ServiceManager({"NOTIFY_SOCKET": manager.getsockname(), **about})
    one.ready("ready", 0.0)
    assert (one.due(0.0), one.is_due(1e9)) == (None, False)


def test_without_a_service_manager_or_with_a_dead_one_nothing_is_told(tmp_path):
    ServiceManager({"WATCHDOG_USEC": "1"}).ready("ready", 0.0)
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("ready", 0.0)
    assert ServiceManager({"WATCHDOG_USEC": "1"}).due(0.0) is None


@pytest.mark.compiler
def test_a_service_is_ready_when_it_takes_requests_and_signs_of_life_come_until_it_stops(home, manager):
    home.run("fgsched", "stop")
    told = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "200000"}
    command = [sys.executable, "-m", "fgsched.cli.fgsched", "run", "--gpus", "sim:1x8G"]
    with subprocess.Popen(command, env=home.environ | told, stderr=subprocess.PIPE) as service:
        ready = heard(manager)
        assert ready == ["READY=1", "STATUS=1 GPUs, 0 running jobs, 0 pending jobs"]
        assert home.client.ask("ping")["pid"] == service.pid
        home.submit("true", hold=True)
        until(manager, "STATUS=1 GPUs, 0 running jobs, 1 pending jobs")
        service.send_signal(signal.SIGTERM)
        assert until(manager, "STOPPING=1")
        service.communicate()
    assert service.returncode == 0


@pytest.mark.compiler
def test_a_service_that_starts_again_does_not_report_a_stop(home, manager):
    """A service manager would kill it: after STOPPING=1 it waits for the end of the process."""
    home.run("fgsched", "stop")
    command = [sys.executable, "-m", "fgsched.cli.fgsched", "run", "--gpus", "sim:1x8G"]
    told = {"NOTIFY_SOCKET": manager.getsockname()}
    with subprocess.Popen(command, env=home.environ | told, stderr=subprocess.DEVNULL) as service:
        try:
            assert heard(manager)[0] == "READY=1"
            os.kill(spawner_of(service.pid), signal.SIGKILL)
            assert heard(manager) == ["WATCHDOG=1", "STATUS=restarting"]
            assert heard(manager)[0] == "READY=1"
        finally:
            service.terminate()


def spawner_of(controller):
    """Return the pid of a controller's spawner."""
    children = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
    return next(int(pid) for pid in children if "fgspawn" in Path(f"/proc/{pid}/cmdline").read_text())


@pytest.mark.compiler
def test_a_controller_that_a_command_starts_tells_no_service_manager(home, manager):
    home.run("fgsched", "stop")
    home.run("fgq", env={"NOTIFY_SOCKET": manager.getsockname()})
    home.run("fgsched", "stop")
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(4096)
