"""The region as the controller makes and reads it."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import silent
from fgshim import region
from live_host import PATIENCE, ROOT

UUID = "GPU-1b2c3d4e-0000-1111-2222-333344445555"
OTHER = "GPU-ffffffff-0000-1111-2222-333344445555"


@pytest.fixture
def path(tmp_path):
    """A fresh region of two GPUs."""
    return written(tmp_path / "region", region.pack(7, 2, [(3, UUID, 1 << 30), (0, OTHER, 1 << 20)]))


def written(path, head):
    path.write_bytes(head + bytes(region.SIZE - len(head)))
    return path


@silent.needs_fuse
@pytest.mark.parametrize("where", ["space/1.1/region", "space/1.1"])
def test_a_file_system_that_never_answers_does_not_stop_whoever_reads_a_region(tmp_path, where):
    """A user can mount one over the job's directory, and over the region in it."""
    (tmp_path / "space/1.1").mkdir(parents=True)
    (tmp_path / "job").mkdir()
    (tmp_path / "job/1.1").symlink_to("../space/1.1")
    written(tmp_path / "space/1.1/region", region.pack(1, 1, [(0, UUID, 1 << 30)]))
    path = tmp_path / "job/1.1/region"
    assert region.read(path).job == 1
    with silent.mounted(tmp_path / where):
        program = "import sys; from fgshim import region; region.read(sys.argv[1])"
        command = [sys.executable, "-c", program, str(path)]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    assert "OSError: [Errno 18] Invalid cross-device link" in done.stderr


def test_what_was_packed_is_read_again(path):
    said = region.read(path)
    assert (said.job, said.attempt, said.processes) == (7, 2, [])
    assert said.gpus == [(3, UUID, 1 << 30, *[0] * 6), (0, OTHER, 1 << 20, *[0] * 6)]


def test_a_region_travels_in_few_bytes():
    """A shepherd goes on to a further job only where its message is small; and it is sent for each job."""
    assert len(region.pack(7, 2, [(3, UUID, 1 << 30)])) < 2000


def test_a_link_or_a_pipe_in_the_regions_place_is_not_opened(path, tmp_path):
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(path)
    os.mkfifo(pipe)
    for place in (link, pipe):
        for touch in (region.read, lambda place: region.set_untracked(place, 0, 1)):
            with pytest.raises((OSError, ValueError)):
                touch(place)
    assert region.read(path).gpus[0].untracked == 0


def test_a_region_that_is_not_the_jobs_users_is_not_touched(path):
    assert region.read(path, owner=os.geteuid()).job == 7
    with pytest.raises(ValueError, match="is not a file of its job's user"):
        region.set_untracked(path, 0, 1, owner=os.geteuid() + 1)


def test_untracked_memory_is_held(path):
    region.set_untracked(path, 1, 12345)
    assert [(gpu.held, gpu.untracked) for gpu in region.read(path).gpus] == [(0, 0), (12345, 12345)]


@pytest.mark.parametrize("position", [-1, 2, 16])
def test_untracked_memory_of_a_gpu_that_the_job_has_not_is_refused(path, position):
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"no GPU number {position}"):
        region.set_untracked(path, position, 1)
    assert path.read_bytes() == before


@pytest.mark.parametrize("gpus", [[], [(0, UUID, 1)] * 17, [(0, "MIG-1", 1)], [(0, "GPU-1", 1)]])
def test_a_region_that_cannot_be_is_not_made(gpus):
    with pytest.raises(ValueError, match=r"GPU|UUID"):
        region.pack(1, 1, gpus)


@pytest.mark.parametrize(
    ("harm", "cause"),
    [
        (lambda whole: b"", "is not as long as a region"),
        (lambda whole: whole[:-1], "is not as long as a region"),
        (lambda whole: whole + b"x", "is not as long as a region"),
        (lambda whole: bytes(len(whole)), "is not a region"),
        (lambda whole: whole[:8] + b"\7" + whole[9:], "is of another build"),
        (lambda whole: whole[:28] + bytes(4) + whole[32:], "does not say which GPUs are the job's"),
        (lambda whole: whole[:28] + b"\x11" + whole[29:], "does not say which GPUs are the job's"),
        (lambda whole: whole[:32] + bytes(64) + whole[96:], "has no lock"),
        (lambda whole: whole[:121] + b"\7" + whole[122:], "does not fit its seal"),
    ],
)
def test_a_torn_region_is_an_error_that_says_why(path, harm, cause):
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(ValueError, match=cause):
        region.read(path)


@given(noise=st.binary(max_size=400), at=st.integers(0, region.SIZE - 400))
def test_no_content_crashes_the_reader(tmp_path_factory, noise, at):
    path = tmp_path_factory.getbasetemp() / "noisy"
    head = region.pack(1, 1, [(0, UUID, 1)])
    whole = bytearray(head + bytes(region.SIZE - len(head)))
    whole[at : at + len(noise)] = noise
    path.write_bytes(whole)
    with contextlib.suppress(ValueError):
        assert 1 <= len(region.read(path).gpus) <= 16


def test_a_missing_region_is_an_error_of_the_file_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        region.read(tmp_path / "none")


WAITS = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 1])
print("ready", flush=True)
got = signal.sigwaitinfo([signal.SIGRTMIN + 1])
print(got.si_code, got.si_status)  # the value lies where a child's status would
"""


def test_a_queued_signal_carries_its_value():
    number = signal.SIGRTMIN + 1
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "ready\n"
        pidfd = os.pidfd_open(process.pid)
        value = 1 | signal.SIGTERM << 8 | 2 << 16
        region.queue_signal(pidfd, number, value)
        assert process.stdout.readline() == f"-1 {value}\n"  # -1: SI_QUEUE
        assert process.wait() == 0
        with pytest.raises(ProcessLookupError):
            region.queue_signal(pidfd, number, 1)
        os.close(pidfd)
