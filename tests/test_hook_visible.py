"""CUDA_VISIBLE_DEVICES in a job: numbers that CUDA and NVML resolve to the same GPUs."""

import json
import subprocess
import sys

import pytest

from fakecuda import Card, instance
from fakecuda.job import make_job

pytestmark = pytest.mark.compiler
pytest.importorskip("pynvml")
GIB = 1 << 30

LOOK = """
import ctypes, json, os, sys
import pynvml as nvml
words = os.environ.get("CUDA_VISIBLE_DEVICES")
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
status = [cuda.cuInit(0) for _ in range(2)]
cuda.cuDeviceGetCount(ctypes.byref(count))
def uuid(device):
    raw = (ctypes.c_uint8 * 16)()
    assert cuda.cuDeviceGetUuid_v2(raw, device) == 0
    text = bytes(raw).hex()
    return "-".join([text[:8], text[8:12], text[12:16], text[16:20], text[20:]])
nvml.nvmlInit()
by_number = []
for word in (words or "").split(","):
    try:
        by_number.append(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(int(word)))[4:])
    except (ValueError, nvml.NVMLError) as error:
        by_number.append(type(error).__name__)
after = libc.getenv(b"CUDA_VISIBLE_DEVICES")
print(json.dumps({
    "cuda": [uuid(at) for at in range(count.value)], "nvml": by_number, "status": status,
    "unchanged": after == (None if words is None else words.encode()), "lives": nvml.nvmlDeviceGetCount(),
}))
"""


def look(environ):
    """The GPUs that CUDA counts, and those that NVML has under the numbers of CUDA_VISIBLE_DEVICES."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env=environ, check=True, capture_output=True, text=True
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def plain(gpus):
    return [gpu.uuid[4:] for gpu in gpus]


def numbers(gpus):
    return ",".join(map(str, range(len(gpus))))


def closed(all_gpus, own):
    """The variable of the fake driver for the cards that a job with closed device nodes cannot open."""
    return ",".join(str(at) for at, gpu in enumerate(all_gpus) if gpu not in own)


@pytest.mark.parametrize("nodes", ["closed", "open"])
@pytest.mark.parametrize(
    ("count", "chosen"),
    [(1, [0]), (2, [0]), (2, [1]), (2, [0, 1]), (4, [1, 3]), (4, [2, 0]), (8, [7]), (8, [1, 2, 5, 6])],
)
def test_cuda_and_nvml_resolve_the_numbers_to_the_gpus_of_the_job(driver, tmp_path, count, chosen, nodes):
    gpus = driver.gpus(*[Card(f"card {at}") for at in range(count)])
    own = [gpus[at] for at in chosen]
    job = make_job(driver, tmp_path / "job", [(gpu, GIB) for gpu in own])
    extra = {"FAKE_CUDA_CLOSED": closed(gpus, own)} if nodes == "closed" else {}
    seen = look(job.environment(CUDA_VISIBLE_DEVICES=numbers(own), **extra))
    assert seen["cuda"] == seen["nvml"] == plain(own)
    assert (seen["status"], seen["unchanged"]) == ([0, 0], True)


@pytest.fixture
def gpus(driver):
    return driver.gpus(*[Card(f"card {at}") for at in range(4)])


@pytest.fixture
def job(driver, gpus, tmp_path):
    """A job with the second and the fourth of four cards."""
    return make_job(driver, tmp_path / "job", [(gpus[1], GIB), (gpus[3], GIB)])


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        ("1", [3]),
        ("1,0", [3, 1]),
        (" 0 , 1", [1, 3]),
        ("0,2,1", [1]),
        ("0,-1,1", [1]),
        ("0,x,1", [1]),
        ("2", []),
        ("3", []),
        ("-1", []),
        ("", []),
        ("0x1", []),
        ("00001", []),
        (None, [1, 3]),
    ],
)
def test_a_list_that_a_program_makes_is_read_as_cuda_reads_it_on_a_host_with_the_jobs_gpus(
    job, gpus, driver, tmp_path, words, seen
):
    environ = job.environment()
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    if words is not None:
        environ["CUDA_VISIBLE_DEVICES"] = words
    said = look(environ)
    assert said["cuda"] == [gpus[at].uuid[4:] for at in seen]
    assert said["unchanged"]
    assert said["lives"] == 2  # NVML does not read the variable


def test_uuids_in_the_list_are_kept_beside_numbers(job, gpus):
    for words, seen in (
        (gpus[3].uuid, [3]),
        (f"1,{gpus[1].uuid}", [3, 1]),
        (f"{gpus[1].uuid[:14]},1", [1, 3]),
        (f"{gpus[1].uuid},7", [1]),
    ):
        assert look(job.environment(CUDA_VISIBLE_DEVICES=words))["cuda"] == [gpus[at].uuid[4:] for at in seen]


def test_a_list_of_names_that_is_too_long_is_left_to_the_driver(job, gpus):
    words = ",".join([gpus[1].uuid, *["GPU-" + "0" * 36] * 200])
    said = look(job.environment(CUDA_VISIBLE_DEVICES=words))
    assert (said["cuda"], said["unchanged"]) == ([gpus[1].uuid[4:]], True)


def test_the_region_of_an_earlier_version_has_the_drivers_numbers(job, gpus):
    data = bytearray(job.region_file.read_bytes())
    assert data[88:92] == b"\1\0\0\0"
    data[88:92] = bytes(4)
    job.region_file.write_bytes(data)
    assert look(job.environment(CUDA_VISIBLE_DEVICES="1,3"))["cuda"] == plain([gpus[1], gpus[3]])


def test_a_job_without_gpus_sees_none(driver, gpus, job):
    job.region_file.unlink()
    assert look(job.environment(CUDA_VISIBLE_DEVICES=""))["cuda"] == []


def test_the_only_mig_instance_of_a_job_is_number_0(driver, tmp_path):
    gpus = driver.gpus(
        Card("A100"), Card("A100"), instance(1, "3g.20gb", GIB, 1), instance(1, "3g.20gb", GIB, 2)
    )
    job = make_job(driver, tmp_path / "job", [(gpus[3], GIB)])
    said = look(job.environment(CUDA_VISIBLE_DEVICES="0"))
    assert said["cuda"] == [gpus[3].uuid[4:]]
    assert said["nvml"] == [gpus[1].uuid[4:]]  # its card, as NVML has it


def test_of_several_mig_instances_a_number_chooses_one(driver, tmp_path):
    gpus = driver.gpus(Card("A100"), instance(0, "3g.20gb", GIB, 1), instance(0, "3g.20gb", GIB, 2))
    job = make_job(driver, tmp_path / "job", [(gpus[1], GIB), (gpus[2], GIB)])
    assert look(job.environment(CUDA_VISIBLE_DEVICES="1"))["cuda"] == [gpus[2].uuid[4:]]
    both = f"{gpus[1].uuid},{gpus[2].uuid}"
    assert look(job.environment(CUDA_VISIBLE_DEVICES=both))["cuda"] == [gpus[1].uuid[4:]]


THREADS = """
import ctypes, json, os, threading
libc, cuda = ctypes.CDLL(None), ctypes.CDLL("libcuda.so.1")
libc.getenv.restype = ctypes.c_char_p
seen, done = set(), threading.Event()
def read():
    while not done.is_set():
        seen.add(libc.getenv(b"CUDA_VISIBLE_DEVICES"))
        libc.setenv(b"OTHER", b"x", 1)
readers = [threading.Thread(target=read) for _ in range(3)]
starters = [threading.Thread(target=lambda: cuda.cuInit(0)) for _ in range(8)]
for thread in readers + starters: thread.start()
for thread in starters: thread.join()
done.set()
for thread in readers: thread.join()
after = libc.getenv(b"CUDA_VISIBLE_DEVICES")
count = ctypes.c_int()
cuda.cuDeviceGetCount(ctypes.byref(count))
print(json.dumps([after and after.decode(), count.value, libc.getenv(b"OTHER").decode()]))
"""


@pytest.mark.parametrize("words", ["0,1", None])
def test_threads_that_start_cuda_together_leave_the_variable_as_it_was(job, words):
    environ = {name: value for name, value in job.environment().items() if name != "CUDA_VISIBLE_DEVICES"}
    extra = {"CUDA_VISIBLE_DEVICES": words} if words else {}
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", THREADS],
            env=environ | extra,
            check=True,
            capture_output=True,
            text=True,
        )
        assert json.loads(done.stdout) == [words, 2, "x"]


def test_children_read_numbers_and_see_the_same_gpus(job, gpus):
    child = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {LOOK!r}]).returncode)"
    start = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)\n"
    environ = job.environment(CUDA_VISIBLE_DEVICES="1,0")
    done = subprocess.run(
        [sys.executable, "-c", start + child], env=environ, check=True, capture_output=True, text=True
    )
    said = json.loads(done.stdout)
    assert said["cuda"] == said["nvml"] == plain([gpus[3], gpus[1]])
