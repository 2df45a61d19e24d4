"""Junk in the run directory: what no shepherd and no controller put there stops neither of them."""

import errno
import fcntl
import os
import select
import shutil
import socket
import subprocess
import sys
from itertools import product

import pytest

from builders import BOOT
from crashing import controller_of, kill_controller, stopped
from fgsched import protocol
from fgsched.client import Client
from fgsched.controller import upkeep
from fgsched.controller.upkeep import Presence
from fgsched.launch.rundir import RunDir
from fgsched.lifecycle.transitions import ShepherdGone, Unclaimed
from fgsched.system import generations
from fgsched.system.inotify import MOVED_TO, Inotify
from fgsched.system.paths import Paths
from fgsched.system.process import identify
from live_host import PATIENCE


def a_socket(path):
    place = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as sock:  # a name of a socket has at most 107 bytes
        sock.bind(f"/proc/self/fd/{place}/{path.name[:40]}")
    os.close(place)
    (path.parent / path.name[:40]).rename(path)


def a_full_directory(path):
    path.mkdir()
    (path / "inner").mkdir()
    (path / "inner/file").write_text("x")


def a_link(path, text):
    """As long as the file system allows."""
    try:
        path.symlink_to(text)
    except OSError:
        path.symlink_to(text[:1000])


KINDS = {
    "file": lambda path: path.write_text("junk"),
    "empty": lambda path: path.touch(),
    "directory": lambda path: path.mkdir(),
    "full directory": a_full_directory,
    "closed directory": lambda path: path.mkdir(0),
    "fifo": os.mkfifo,
    "socket": a_socket,
    "loop": lambda path: path.symlink_to(path.name),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "to a directory": lambda path: path.symlink_to(".."),
    "long": lambda path: a_link(path, "x" * 4000),
    "not UTF-8": lambda path: os.symlink(b"P:\xe9:1:\xff", path),
    "a pid beyond all": lambda path: path.symlink_to(f"P:{10**30}:1:{BOOT}"),
    "a result of huge numbers": lambda path: a_link(path, f"R4 0 exit{f' {10**309}' * 16}"),
    "a truncated result": lambda path: path.symlink_to("R4 0 exit 1 2"),
}
NAMES = (
    "1.1",
    "999.1",
    "1",
    "notes",
    "1.1.1",
    "²3.1",
    "-1.1",
    f"{10**30}.1",
    "1." + "9" * 200,
    "x" * 255,
    "\udce9.1",
)
PLACES = ("claim", "result", "job")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_entry_and_no_name_is_more_than_the_run_directory_can_take(tmp_path, kind, place):
    run = RunDir(tmp_path / "run", BOOT)
    for name in NAMES:
        KINDS[kind](run.path / place / name)
    check_that_it_serves(run)


def check_that_it_serves(run):
    """Every call returns, and afterwards nothing is left but what tells of an attempt."""
    for job in (1, 2):
        run.result(job, 1), run.look(job, 1), run.seize(job, 1), run.forget(job, 1), run.clear(job, 1)
    for job, attempt in run.leftovers():
        run.forget(job, attempt)
        run.clear(job, attempt)
    assert run.seize(3, 1) == Unclaimed()
    while run.cleaner.due(0.0) is not None:
        run.cleaner.step(float("1e12"))
    left = {entry.name for name in PLACES for entry in (run.path / name).iterdir()}
    assert left <= {"1.1", "2.1", "3.1"}, "tombstones"
    assert all(os.readlink(entry) == "T" for entry in (run.path / "claim").iterdir())


def test_what_was_in_the_way_lies_in_quarantine_and_is_told_in_one_line_each(tmp_path, caplog):
    run = RunDir(tmp_path / "run", BOOT)
    (run.path / "claim/1.1").mkdir()
    (run.path / "result/1.1").write_text("junk")
    (run.path / "claim/notes").write_text("mine")
    assert run.look(1, 1) == ShepherdGone()
    run.leftovers()
    kept = sorted(path.name.partition(".")[2] for path in (run.path / "quarantine").iterdir())
    assert kept == ["claim-1.1", "claim-notes", "result-1.1"]
    assert [line.partition(": ")[2] for line in caplog.messages] == [
        f"not a result; moved to {run.path}/quarantine",
        f"a directory instead of a link; moved to {run.path}/quarantine",
        f"not the name of an attempt; moved to {run.path}/quarantine",
    ]


def test_the_quarantine_keeps_the_latest_64_and_one_sweep_moves_no_more(tmp_path):
    run = RunDir(tmp_path / "run", BOOT)
    for number in range(150):
        (run.path / "claim" / f"junk{number}").touch()
    for _ in range(3):
        run.leftovers()
        while run.cleaner.due(0.0) is not None:
            run.cleaner.step(float("1e12"))
    assert len(list((run.path / "quarantine").iterdir())) == 64
    assert list((run.path / "claim").iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_place_that_is_no_directory_is_made_one(tmp_path, kind):
    path = tmp_path / "run"
    path.mkdir()
    for place in (*PLACES, "quarantine"):
        KINDS[kind](path / place)
    check_that_it_serves(RunDir(path, BOOT))


@pytest.mark.parametrize("place", [*PLACES, "."])
def test_a_directory_that_was_removed_is_made_again(tmp_path, place):
    run = RunDir(tmp_path / "run", BOOT)
    shutil.rmtree(run.path / place)
    assert (run.look(1, 1), run.result(1, 1)) == (ShepherdGone(), None)
    run.forget(1, 1)
    run.clear(1, 1)
    assert run.seize(1, 1) == Unclaimed()
    assert run.leftovers() == []
    assert all((run.path / place).stat().st_mode & 0o777 == 0o711 for place in PLACES)


def test_systemd_tmpfiles_is_kept_from_removing_it_for_its_age(tmp_path):
    run = RunDir(tmp_path / "run", BOOT)
    place = os.open(run.path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(place)


# -- a controller ---------------------------------------------------------------------------


def own(home):
    """The directory of the present queue below the run directory."""
    return (home.paths.run / "claim").resolve().parent


def lay(home, jobs, *, places=PLACES):
    """One of every kind under every name, for one of the jobs each."""
    for number, (place, kind) in enumerate(product(places, KINDS)):
        names = (f"{jobs[number % len(jobs)]}.1" if jobs else "x", f"{1000 + number}.1", f"junk{number}")
        for name in names:
            path = own(home) / place / name
            if not os.path.lexists(path):
                KINDS[kind](path)


def test_a_controller_starts_whatever_lies_in_its_run_directory(home):
    waits = [home.submit(hold=True) for _ in range(10)]
    runs = home.running()
    kill_controller(home)
    lay(home, [*waits, runs])
    assert home.job(runs)["state"] == "RUNNING"
    home.client.ask("release", ids=waits)
    assert sorted(job["id"] for job in home.wait(*waits)) == waits
    assert home.wait(home.submit())[0]["state"] == "COMPLETED"


def test_a_controller_goes_on_whatever_is_laid_into_its_run_directory(home):
    runs = [home.running(share=100) for _ in range(3)]
    lay(home, [*runs, *range(runs[-1] + 1, runs[-1] + 8)])
    for job in runs:
        path = own(home) / "claim" / f"{job}.1"
        path.unlink()
        path.mkdir()
    home.client.ask("cancel", ids=runs)
    assert sorted(job["id"] for job in home.wait(*runs)) == runs
    for _ in range(10):
        home.ended()
    assert home.wait(home.submit())[0]["state"] == "COMPLETED"


def test_jobs_whose_results_find_their_names_taken_end_and_others_are_not_concerned(home):
    jobs = [home.running(share=100) for _ in KINDS]
    other = home.running(share=100)
    for job, make in zip(jobs, KINDS.values(), strict=True):
        make(own(home) / "result" / f"{job}.1")
    home.client.ask("cancel", ids=jobs)
    assert {job["state"] for job in home.wait(*jobs)} <= {"FAILED", "CANCELLED"}
    assert home.job(other)["state"] == "RUNNING"
    assert home.wait(home.submit(share=100))[0]["state"] == "COMPLETED"


@pytest.mark.parametrize("gone", ["claim", "result", "job", "socket", "own", "run"])
def test_service_goes_on_after_a_part_of_the_run_directory_was_removed(home, gone):
    runs = home.running(share=100)
    run = home.paths.run
    path = {"socket": home.paths.socket, "own": own(home), "run": run}.get(gone, own(home) / gone)
    with listening(path.parent, path.name) as made:
        with stopped(controller_of(home)):  # it would make again what was removed before the rest is
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        made()
    done = home.run("fgsub", "--wait", "--output=/dev/null", "--wrap", "true")
    assert (done.status, done.err) == (0, ""), "the same controller answers"
    home.client.ask("cancel", ids=[runs])
    assert home.wait(runs)[0]["id"] == runs


class listening:
    """`made()` returns once the name is there again."""

    def __init__(self, directory, name):
        self._directory, self._name = directory, name

    def __enter__(self):
        self._inotify = Inotify()
        assert self._inotify.watch(self._directory, MOVED_TO | 0x100)  # IN_CREATE
        return self._made

    def _made(self):
        wanted = self._directory / self._name
        while not (wanted / "socket" if self._name == "run" else wanted).exists():
            assert select.select([self._inotify], [], [], PATIENCE)[0]
            self._inotify.read()
            if self._name == "run" and wanted.exists():
                self._inotify.watch(wanted, MOVED_TO | 0x100)

    def __exit__(self, *_):
        self._inotify.close()


DEEP = "import os\nfor _ in range(3_000): os.mkdir('d'); os.chdir('d')\n"
WIDE = "for n in range(20_000): open(str(n), 'x').close()\n"


@pytest.mark.parametrize("program", [DEEP, WIDE], ids=["deep", "wide"])
def test_what_a_job_left_keeps_no_controller_from_starting_and_serving(home, program):
    """rmtree calls itself for each level: a tree of 1,500 levels ended each start."""
    job = home.ended()
    kill_controller(home)
    left = own(home) / "job" / f"{job}.1"
    left.mkdir()
    subprocess.run([sys.executable, "-c", program], cwd=left, check=True)
    with watching_removal(left.parent) as gone:
        assert home.wait(home.submit())[0]["state"] == "COMPLETED"
        gone(left)


class watching_removal:
    """`gone(path)` returns once it is removed."""

    def __init__(self, directory):
        self._directory = directory

    def __enter__(self):
        self._inotify = Inotify()
        assert self._inotify.watch(self._directory)
        return self._gone

    def _gone(self, path):
        while path.exists():
            assert select.select([self._inotify], [], [], PATIENCE)[0]
            self._inotify.read()

    def __exit__(self, *_):
        self._inotify.close()


# -- what is heard of it --------------------------------------------------------------------


@pytest.fixture
def presence(tmp_path):
    (tmp_path / "queue.db").touch()
    paths = Paths(
        mode="user", home=tmp_path, state=tmp_path, run=tmp_path / "run", config_file=tmp_path / "none"
    )
    paths.prepare(os.geteuid())
    tmp_path.chmod(0o700)
    one = Presence(paths, RunDir(paths.run, BOOT), lambda: a_socket(paths.socket))
    a_socket(paths.socket)
    yield one
    one.source.close()


def test_without_a_descriptor_for_removals_the_log_says_so(tmp_path, monkeypatch, caplog):
    def none() -> None:
        raise OSError(errno.EMFILE, "no instance is left")

    monkeypatch.setattr(upkeep, "Inotify", none)
    paths = Paths(mode="user", home=tmp_path, state=tmp_path, run=tmp_path, config_file=tmp_path / "none")
    Presence(paths, RunDir(tmp_path, BOOT), lambda: None)
    assert caplog.messages == [
        f"removals from {tmp_path} are not detected: [Errno {errno.EMFILE}] no instance is left"
    ]


def test_what_was_removed_is_made_again_after_a_moment(presence, tmp_path):
    (tmp_path / "run/socket").unlink()
    (tmp_path / "run/claim").rmdir()
    assert select.select([presence.source], [], [], 0)[0]
    presence.heard(100.0)
    presence.look(100.0)
    assert not (tmp_path / "run/claim").exists()
    assert presence.due(100.0) == pytest.approx(0.2)
    presence.look(100.3)
    assert (tmp_path / "run/claim").is_dir()
    assert (tmp_path / "run/socket").is_socket()
    assert presence.due(100.3) is None


def test_what_is_removed_before_it_is_watched_again_is_made_again(presence, tmp_path, monkeypatch):
    socket = tmp_path / "run/socket"
    watch = presence._watch

    def late():
        monkeypatch.undo()
        socket.unlink()
        watch()

    shutil.rmtree(tmp_path / "run")
    presence.heard(100.0)
    monkeypatch.setattr(presence, "_watch", late)
    presence.look(101.0)
    assert socket.is_socket()


def test_what_it_makes_itself_is_no_reason_to_look_again(tmp_path):
    """The plain names that lead to the directory of the queue are made by renaming."""
    (tmp_path / "queue.db").touch()
    paths = Paths(
        mode="user", home=tmp_path, state=tmp_path, run=tmp_path / "run", config_file=tmp_path / "none"
    )
    tmp_path.chmod(0o700)
    paths.prepare(os.geteuid())
    generations.directory_of(paths.run, "0123abcd")
    one = Presence(paths, RunDir(paths.run / "0123abcd", BOOT), lambda: a_socket(paths.socket))
    one.heard(0.0)
    one.look(1.0)
    assert (paths.run / "claim").is_symlink()
    looks = 1
    while select.select([one.source], [], [], 0)[0] and looks < 10:
        one.heard(2.0 * looks)
        one.look(2.0 * looks + 1)
        looks += 1
    one.source.close()
    assert looks <= 2


def test_nothing_is_made_again_where_the_queue_is_gone_too(presence, tmp_path):
    (tmp_path / "queue.db").unlink()
    shutil.rmtree(tmp_path / "run")
    presence.heard(1.0)
    presence.look(2.0)
    assert not (tmp_path / "run").exists()


def test_where_it_cannot_be_made_it_is_tried_again_ever_more_seldom(presence, tmp_path):
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").write_text("somebody's")
    presence.heard(0.0)
    now, pauses = 0.0, []
    for _ in range(12):
        now += presence.due(now)
        presence.look(now)
        pauses.append(presence.due(now))
    assert pauses[0] < 0.5
    assert pauses[-1] == 60.0
    (tmp_path / "run").unlink()
    presence.look(now + 60)
    assert (tmp_path / "run/socket").is_socket()


def test_a_client_finds_the_controller_by_the_socket_that_was_made_again(home):
    home.queue("id")
    with listening(home.paths.run, "socket") as made:
        home.paths.socket.unlink()
        made()
    with Client(home.paths, may_start=False) as again:
        assert again.call(protocol.ListQueue(fields=("id",))).jobs == []


# -- results that cannot be read ---------------------------------------------------------------------

RESULT = "R4 0 exit 1 2 3 4 5 0 0 -1 0 0 0 0 0 0 0 0 "


@pytest.mark.parametrize("text", ["junk", "R4 0 exit 1 2", "R4 x" + RESULT[4:], "R9" + RESULT[2:]])
def test_a_result_that_cannot_be_read_is_an_end_though_its_shepherd_lives(tmp_path, text):
    run = RunDir(tmp_path / "run", BOOT)
    me = identify(os.getpid())
    (run.path / "claim/1.1").symlink_to(f"P:{me.pid}:{me.start}:{me.boot}")
    (run.path / "result/1.1").symlink_to(text)
    seen = [run.look(1, 1), RunDir(tmp_path / "run", BOOT).look(1, 1)]
    assert seen == [ShepherdGone("its result could not be read")] * 2, "the next controller knows it too"
    assert [os.readlink(path) for path in (run.path / "quarantine").iterdir()] == [text]
    run.forget(1, 1)
    assert run.leftovers() == []


@pytest.mark.parametrize("text", ["junk", "P:1:2", f"P:{10**30}:1:{BOOT}", f"H:{10**30}:1:{BOOT}", "H:x"])
def test_no_spawner_is_expected_to_take_over_a_claim_that_cannot_be_read(tmp_path, text):
    run = RunDir(tmp_path / "run", BOOT)
    assert (run.holder(1, 1), run.is_unheard(1, 1)) == (None, False)
    (run.path / "claim/1.1").symlink_to(text)
    assert (run.holder(1, 1), run.is_unheard(1, 1)) == (None, False)


def test_bytes_that_are_no_text_are_shown_as_escapes(tmp_path):
    run = RunDir(tmp_path / "run", BOOT)
    os.symlink(os.fsencode(RESULT) + b"cannot run /bin/b\xe4sh", run.path / "result/1.1")
    assert run.result(1, 1).detail == "cannot run /bin/b\\xe4sh"
    run.result(1, 1).detail.encode()


@pytest.mark.compiler
def test_a_job_whose_result_cannot_be_read_ends_with_its_status_unknown(home):
    gate = home.path / "go"
    os.mkfifo(gate)
    job = home.submit(f"read line <{gate}")
    with gate.open("w") as go:
        (home.paths.run / f"result/{job}.1").symlink_to("junk")
        go.write("go\n")
    (ended,) = home.wait(job)
    assert (ended["state"], home.job(job)["detail"]) == (
        "FAILED",
        "status unknown: its result could not be read",
    )
