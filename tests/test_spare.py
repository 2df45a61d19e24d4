"""A job leaves directory, claim and result to the next one in its slot: names cost less than new files."""

import os
import signal
import subprocess
from array import array
from fcntl import ioctl
from pathlib import Path

import fgshim.region as region
import pytest

from awaiting import rest
from fgsched.launch.rundir import RunDir
from fgsched.system.generations import directory_of
from fgsched.system.spaces import spread_below
from fixtures_spawner import NEEDS_SPAWNER
from spawner_driver import CANCEL, Result, result_text, spawning

SAY = "#!/bin/sh\n# {0}\nexit {0}\n"
NOTHING = SAY.format(0)
pytestmark = NEEDS_SPAWNER
TOPDIR = 0x20000  # FS_TOPDIR_FL
LEFT = {"script", "region", "libfgshim.so"}


def regions(job):
    return {
        "region": region.pack(
            job, 1, [(0, "GPU-00000000-0000-0000-0000-000000000000", 1 << 30)], [("hard", 5000)], [(0, False)]
        ),
        "region_size": region.SIZE,
    }


def run_one(spawner, job, script=NOTHING, **fields):
    """Run a job to its end, remove its result and claim as a controller does, and return the result.

    The shepherd has ended then, so that the next one has its slot.
    """
    started = spawner.launch(script, job=job, **fields)
    found = started.result()
    while Path(f"/proc/{started.answer.pid}").exists():
        rest()
    started.link.unlink()
    (spawner.run / "claim" / started.wish.name).unlink()
    return found


def hook(place, name):
    """A library that can be read, which is all that the shepherd asks."""
    (place / name).touch()
    return str(place / name)


def spare(spawner, tail=""):
    place = "spare/" if tail else "job/."
    return spawner.run / f"{place}{spawner.process.pid}.1{tail}"


def inodes(spawner):
    top = spare(spawner)
    return {
        path.relative_to(spawner.run): path.lstat().st_ino
        for path in [top, *top.iterdir(), spare(spawner, ".result")]
    }


def test_the_next_equal_job_makes_no_file(spawner, tmp_path):
    library = hook(tmp_path, "hook.so")
    assert run_one(spawner, 1, SAY.format(3), hook=library, **regions(1)).exit_code == 3
    before = inodes(spawner)
    assert {path.name for path in before} >= LEFT
    for job in range(2, 6):
        assert run_one(spawner, job, SAY.format(3), hook=library, **regions(job)).exit_code == 3
    assert inodes(spawner) == before
    assert region.read(spare(spawner) / "region").job == 5
    assert os.listdir(spawner.run / "job") == [spare(spawner).name]
    assert [os.listdir(spawner.run / kind) for kind in ("claim", "result")] == [[], []]


def test_the_next_job_has_its_own_script_hook_and_region(spawner, tmp_path):
    assert run_one(spawner, 1, SAY.format(3), hook=hook(tmp_path, "one.so"), **regions(1)).exit_code == 3
    assert run_one(spawner, 2, SAY.format(4), hook=hook(tmp_path, "another.so")).exit_code == 4
    assert {path.name for path in spare(spawner).iterdir()} == {"script", "libfgshim.so"}
    assert os.readlink(spare(spawner) / "libfgshim.so") == str(tmp_path / "another.so")
    look = "#!/bin/sh\nls -l --time-style=+ $(dirname $0) >seen\n"
    assert run_one(spawner, 3, look, env={"PATH": os.environ["PATH"]}).exit_code == 0
    assert [line.split()[-1] for line in (tmp_path / "seen").read_text().splitlines()[1:]] == ["script"]


@pytest.mark.parametrize(
    "change",
    [
        "chmod 700 $0; echo exit 9 >>$0",
        "ln $0 kept",
        "mv $0 kept; ln -s kept $0",
        "rm $0; mkfifo $0",
        "rm $0; mkdir $0",
        "touch $(dirname $0)/more",
        "mkdir -p $(dirname $0)/deep/down",
        "chmod 000 $(dirname $0)",
        "chmod 755 $(dirname $0)",
        "rm -r $(dirname $0)",
        "rm -r $(dirname $0); ln -s / $(dirname $0)",
    ],
)
def test_whatever_a_job_does_to_its_directory_the_next_one_does_not_see_it(spawner, tmp_path, change):
    env = {"PATH": os.environ["PATH"]}
    assert run_one(spawner, 1, f"#!/bin/sh\n{change}\nexit 3\n", env=env).exit_code == 3
    mine = (tmp_path / "kept").read_bytes() if (tmp_path / "kept").exists() else b""
    look = "#!/bin/sh\nstat -c '%a %F' $(dirname $0); ls $(dirname $0); exit 4\n"
    assert run_one(spawner, 2, look, env=env, stdout="seen").exit_code == 4
    assert (tmp_path / "seen").read_text() == "700 directory\nscript\n"
    assert not mine or (tmp_path / "kept").read_bytes() == mine


def test_a_region_that_a_process_has_used_is_not_used_again(spawner):
    write = "#!/bin/sh\nprintf x | dd of=$(dirname $0)/region bs=1 seek=200000 conv=notrunc 2>/dev/null\n"
    env = {"PATH": os.environ["PATH"]}
    run_one(spawner, 1, write, env=env, **regions(1))
    before = (spare(spawner) / "region").stat().st_ino
    kept = os.open(spare(spawner) / "region", os.O_RDONLY)  # its number is not given to another file
    run_one(spawner, 2, write, env=env, **regions(2))
    assert (spare(spawner) / "region").stat().st_ino != before
    assert os.pread(kept, 1, 200000) == b"x"
    os.close(kept)


def test_a_result_that_nobody_has_read_stays_as_it_is(spawner):
    results = [spawner.launch(SAY.format(job), job=job) for job in range(1, 5)]
    assert [started.result().exit_code for started in results] == [1, 2, 3, 4]
    assert [Result.read(started.link).exit_code for started in results] == [1, 2, 3, 4]


def test_a_claim_that_is_taken_is_not_claimed_again(spawner):
    run_one(spawner, 1)
    (spawner.run / "claim/2.1").symlink_to("T")
    started = spawner.launch(SAY.format(0), job=2)
    assert (started.answer.pid > 0, started.answer.errno) == (True, 17)
    assert os.readlink(spawner.run / "claim/2.1") == "T"
    assert not os.path.lexists(started.link)


def test_a_job_that_was_ended_by_a_signal_leaves_a_directory_as_another_one(spawner):
    started = spawner.launch("#!/bin/sh\nwhile :; do kill -STOP $$; done\n", job=1)
    started.order(CANCEL)
    assert started.result().exit_code == -signal.SIGTERM
    started.link.unlink()
    assert run_one(spawner, 2, SAY.format(5)).exit_code == 5


def test_nothing_is_left_when_the_spawner_ends(tmp_path):
    with spawning(tmp_path) as spawner:
        for job in range(1, 9):
            spawner.launch(SAY.format(0), job=job, hook=hook(tmp_path, "hook.so"), **regions(job))
        for _ in range(8):
            spawner.notice()
    assert os.listdir(tmp_path / "run/spare") == os.listdir(tmp_path / "run/job") == []


@pytest.mark.parametrize("kind", ["file", "link", "nothing"])
def test_jobs_run_where_nothing_can_be_left_to_the_next(spawner, tmp_path, kind):
    (spawner.run / "spare").rmdir()
    if kind == "file":
        (spawner.run / "spare").write_text("mine")
    if kind == "link":
        (spawner.run / "spare").symlink_to("/proc")
    for job in range(1, 4):
        started = spawner.launch(SAY.format(job), job=job)
        assert started.result().exit_code == job
        assert started.link.is_symlink()
        assert result_text(started.link).startswith(b"R4 ")


def test_the_next_controller_removes_what_a_killed_spawner_left(tmp_path):
    with spawning(tmp_path) as spawner:
        run_one(spawner, 1)
        run = RunDir(tmp_path / "run", "boot")
        run.remove_spares()
        assert run.cleaner.due(0.0) is None  # this one lives
        assert run.leftovers() == []
        assert spare(spawner).is_dir()
        spawner.process.kill()
        spawner.process.wait()
        spawner.expected_end = -signal.SIGKILL
        run.remove_spares()
        while run.cleaner.due(0.0) is not None:
            run.cleaner.step(run.cleaner._clock())
    assert os.listdir(tmp_path / "run/spare") == os.listdir(tmp_path / "run/job") == []


def test_a_result_is_read_from_a_file_and_from_a_link(tmp_path):
    run = RunDir(tmp_path / "run", "boot")
    text = "R4 0 exit 1 2 0 0 0 0 0 -1 0 0 0 0 0 0 0 0 "
    (run.path / "result/1.1").write_bytes(text.encode() + b"\0" * 900)
    (run.path / "result/2.1").symlink_to(text)
    one, two = run.result(1, 1), run.result(2, 1)
    assert one is not None
    assert one == two
    run.forget(1, 1)
    run.forget(2, 1)
    assert os.listdir(run.path / "result") == []


def flags_of(place: Path) -> int:
    """The flags of a directory on ext4; a test is skipped on another file system."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", place], stdout=subprocess.PIPE, check=True).stdout
    directory, flags = os.open(place, os.O_RDONLY), array("l", [0])
    try:
        ioctl(directory, 0x80006601 | 8 << 16, flags)
    except OSError:
        kind = b""
    finally:
        os.close(directory)
    if kind != b"ext2/ext3\n":
        pytest.skip("the file system is not ext4")
    return flags[0]


def test_the_directory_of_a_queue_lies_apart_from_the_files_of_other_programs(tmp_path):
    """The queue's directory is made once by a start, and its parent must have the flag before that."""
    assert not flags_of(tmp_path) & TOPDIR
    RunDir(directory_of(tmp_path, "0123abcd"), "boot")
    assert flags_of(tmp_path) & TOPDIR
    assert not flags_of(tmp_path / "0123abcd/job") & TOPDIR


def test_the_run_directory_of_a_controller_has_the_flag(home):
    flags_of(home.paths.state)
    assert home.run("fgsched", "start").status == 0
    assert flags_of(home.paths.run.resolve()) & TOPDIR


def test_a_file_system_without_the_flag_is_no_error():
    directory = os.open("/proc/self", os.O_RDONLY)
    with pytest.raises(OSError, match="ioctl"):
        ioctl(directory, 0x80006601 | 8 << 16, array("l", [0]))
    spread_below(directory)
    os.close(directory)
