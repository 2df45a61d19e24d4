"""Removal of directories that users wrote to: deep, large, closed, linked, mounted, and changed meanwhile."""

import ctypes
import os
import resource
import subprocess
import sys

import pytest

import silent
from fgsched.system import cleaner as system_cleaner
from fgsched.system.cleaner import Cleaner
from live_host import PATIENCE, ROOT

DEEP = "import os\nfor _ in range({levels}):\n    os.mkdir('d')\n    os.chdir('d')\n"
WIDE = "for n in range({files}):\n    open(str(n), 'x').close()\n"
MANY = 1_000_000  # steps that no test needs


class Clock:
    """Goes on by a millisecond each time that it is read, and by as much as it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 0.001
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cleaner(clock):
    one = Cleaner(clock)
    yield one
    one.close()


def made(place, program, **numbers):
    """A directory that a child filled: its working directory may be at any depth."""
    place.mkdir()
    subprocess.run([sys.executable, "-c", program.format(**numbers)], cwd=place, check=True)
    return place


def clean(cleaner, clock):
    """Step whenever it is due, until nothing is."""
    for steps in range(MANY):
        due = cleaner.due(clock.now)
        if due is None:
            return steps
        clock.now += due
        cleaner.step(clock.now)
    raise AssertionError("it does not come to an end")


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_twenty_thousand_levels_are_removed_in_small_steps_with_few_descriptors(tmp_path, cleaner, clock):
    cleaner.add(made(tmp_path / "1.1", DEEP, levels=20_000))
    before = descriptors()
    now = clock.now
    cleaner.step(now)
    assert (tmp_path / "1.1").exists()
    assert clock.now - now < 0.01, "a step looks at the clock again and again"
    assert descriptors() - before < 100
    assert clean(cleaner, clock) > 200
    assert (os.listdir(tmp_path), descriptors()) == ([], before)


def test_twenty_thousand_files_are_removed_in_small_steps(tmp_path, cleaner, clock):
    cleaner.add(made(tmp_path / "1.1", WIDE, files=20_000))
    assert clean(cleaner, clock) > 2000
    assert os.listdir(tmp_path) == []


def test_what_links_lead_to_stays(tmp_path, cleaner, clock):
    tree, kept = tmp_path / "1.1", tmp_path / "kept"
    tree.mkdir()
    kept.mkdir()
    (kept / "file").write_text("mine")
    (tree / "directory").symlink_to(kept)
    (tree / "file").symlink_to(kept / "file")
    (tree / "hard").hardlink_to(kept / "file")
    (tree / "loop").symlink_to(tree / "loop")
    os.mkfifo(tree / "fifo")
    (tmp_path / "2.1").symlink_to(kept)
    cleaner.add(tree)
    cleaner.add(tmp_path / "2.1")
    clean(cleaner, clock)
    assert sorted(os.listdir(tmp_path)) == ["kept"]
    assert (kept / "file").read_text() == "mine"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.write_text("junk")], ids=["fifo", "file"])
def test_what_is_no_directory_is_removed_as_it_is(tmp_path, cleaner, clock, make):
    make(tmp_path / "1.1")
    cleaner.add(tmp_path / "1.1")
    clean(cleaner, clock)
    assert os.listdir(tmp_path) == []


_CLOSED = (
    "import os\nos.makedirs('a/b/c/d')\nopen('a/b/file', 'x').close()\n"
    "os.chmod('a/b/c/d', 0)\nos.chmod('a/b/c', 0o400)\nos.chmod('a/b', 0o500)\n"
    "os.chmod('a', 0)\nos.chmod('.', 0)\n"
)
_CLEAN = (
    "import os, sys, time\nfrom pathlib import Path\nfrom fgsched.system.cleaner import Cleaner\n"
    "if os.geteuid() == 0:\n    os.setresuid(65534, 65534, 65534)\n"
    "cleaner = Cleaner()\ncleaner.add(Path(sys.argv[1]))\n"
    "while cleaner.due(time.monotonic()) is not None:\n    cleaner.step(time.monotonic())\n"
)


_CLEAN_TO_THE_END = (
    "import sys\nfrom pathlib import Path\nfrom fgsched.system.cleaner import Cleaner\n"
    "now = 0.0\ndef clock():\n    global now\n    now += 0.001\n    return now\n"
    "cleaner = Cleaner(clock)\ncleaner.add(Path(sys.argv[1]))\n"
    "while (due := cleaner.due(now)) is not None:\n    now += due\n    cleaner.step(now)\n"
)


def test_directories_that_their_owner_closed_are_removed_by_their_owner(tmp_path):
    place = tmp_path / "1.1"
    place.mkdir()
    if os.geteuid() == 0:
        for path in (place, tmp_path):
            os.chown(path, 65534, -1)
        for path in tmp_path.parents:
            if path.stat().st_mode & 0o011 == 0:
                path.chmod(0o711)
    drop = "import os\nif os.geteuid() == 0:\n    os.setresuid(65534, 65534, 65534)\n"
    subprocess.run([sys.executable, "-c", drop + _CLOSED], cwd=place, check=True)
    subprocess.run([sys.executable, "-c", _CLEAN, str(place)], check=True, timeout=PATIENCE)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("place", ["1.1/there", "1.1", "1.1/a/b/c"])
def test_what_is_mounted_in_it_stays_and_it_is_given_up(tmp_path, cleaner, clock, place, caplog):
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("kept")
    target = tmp_path / place
    target.mkdir(parents=True)
    (tmp_path / "1.1" / "rest").write_text("x")
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(os.fsencode(other), os.fsencode(target), None, 4096, None) == 0, "a bind mount"
    try:
        cleaner.add(tmp_path / "1.1")
        clean(cleaner, clock)
        assert (other / "file").read_text() == "kept"
        assert target.exists()
        assert caplog.messages == [f"{tmp_path}/1.1 cannot be removed: Device or resource busy"]
    finally:
        libc.umount2(os.fsencode(target), 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("place", ["1.1", "1.1/there"])
def test_what_is_mounted_between_the_look_and_the_removal_stays(tmp_path, cleaner, clock, place, monkeypatch):
    other, target = tmp_path / "other", tmp_path / place
    other.mkdir()
    (other / "file").write_text("kept")
    target.mkdir(parents=True)
    (target / "file").write_text("x")
    libc = ctypes.CDLL(None, use_errno=True)
    real, mounted = system_cleaner._remove_empty, []

    def looked(name, descriptor):
        answer = real(name, descriptor)
        if name == target.name and not mounted:
            mounted.append(libc.mount(os.fsencode(other), os.fsencode(target), None, 4096, None))
        return answer

    monkeypatch.setattr(system_cleaner, "_remove_empty", looked)
    try:
        cleaner.add(tmp_path / "1.1")
        clean(cleaner, clock)
        assert (mounted, (other / "file").read_text()) == ([0], "kept")
    finally:
        libc.umount2(os.fsencode(target), 2)


@silent.needs_fuse
@pytest.mark.parametrize("place", ["1.1", "1.1/there"])
def test_a_file_system_that_never_answers_does_not_stop_the_removal(tmp_path, place):
    target = tmp_path / place
    target.mkdir(parents=True)
    (tmp_path / "1.1" / "rest").write_text("x")
    with silent.mounted(target):
        command = [sys.executable, "-c", _CLEAN_TO_THE_END, str(tmp_path / "1.1")]
        subprocess.run(command, cwd=ROOT, check=True, timeout=PATIENCE)
    assert target.exists()


def test_a_tree_that_its_owner_goes_on_writing_to_is_given_up_for_a_while(tmp_path, cleaner, clock):
    """At each look at the clock there is another file: no round would ever find the tree empty."""
    tree = tmp_path / "1.1"
    tree.mkdir()
    real, count = clock.__call__, 0

    def writing():
        nonlocal count
        count += 1
        (tree / str(count)).touch()
        return real()

    cleaner._clock = writing
    cleaner.add(tree)
    for _ in range(200):
        cleaner.step(clock.now)
        due = cleaner.due(clock.now)
        if due is not None and due > 0.1:
            break
        clock.now += due or 0
    else:
        raise AssertionError("it goes on without a pause")
    cleaner._clock = clock
    clean(cleaner, clock)
    assert os.listdir(tmp_path) == []


def test_a_directory_that_was_swapped_for_a_fifo_or_a_link_neither_stops_nor_leads_the_removal(
    tmp_path, cleaner, clock, monkeypatch
):
    kept, tree = tmp_path / "kept", tmp_path / "1.1"
    (kept / "inner").mkdir(parents=True)
    for name in ("a", "b"):
        (tree / name / "x").mkdir(parents=True)
    real = os.open

    def swapping(path, flags, *rest, **more):
        """Just before it is opened, something else is there."""
        if path in ("a", "b"):
            (tree / path).rename(tmp_path / f"was-{path}")
            os.mkfifo(tree / path) if path == "a" else (tree / path).symlink_to(kept)
        return real(path, flags, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", swapping)
        cleaner.add(tree)
        cleaner.step(clock.now)
    clean(cleaner, clock)
    assert not tree.exists()
    assert (kept / "inner").is_dir()


def test_a_large_file_is_freed_in_parts(tmp_path, cleaner, clock):
    tree = tmp_path / "1.1"
    tree.mkdir()
    size = 160 << 20
    with (tree / "big").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    if (tree / "big").stat().st_blocks * 512 < size:
        pytest.skip("the file system gives no blocks ahead")
    with (tree / "sparse").open("wb") as file:
        file.truncate(1 << 42)
        os.posix_fallocate(file.fileno(), 1 << 30, 100 << 20)
    sizes = set()
    cleaner.add(tree)
    while cleaner.due(clock.now) is not None:
        sizes |= {path.stat().st_size for path in tree.glob("big")}
        clock.now += 100
        cleaner.step(clock.now - 1)  # late: it does one thing at least
    assert not tree.exists()
    assert sizes >= {size, size - (64 << 20)}


def test_one_tree_after_the_other_is_removed_and_none_twice(tmp_path, cleaner, clock):
    for name in ("1.1", "2.1", "3.1"):
        made(tmp_path / name, WIDE, files=20)
        cleaner.add(tmp_path / name)
        cleaner.add(tmp_path / name)
    cleaner.add(tmp_path / "none" / "4.1")
    clean(cleaner, clock)
    assert os.listdir(tmp_path) == []


def test_the_limit_of_descriptors_does_not_stop_it(tmp_path, cleaner, clock):
    cleaner.add(made(tmp_path / "1.1", DEEP, levels=300))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 8, hard))
    try:
        for _ in range(5):
            cleaner.step(clock.now)
            clock.now += cleaner.due(clock.now) or 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    clean(cleaner, clock)
    assert os.listdir(tmp_path) == []
