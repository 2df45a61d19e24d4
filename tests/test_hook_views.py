"""What a job is told through NVML, asked by the real pynvml."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.compiler
pytest.importorskip("pynvml")
MIB, GIB = 1 << 20, 1 << 30

ASK = """
import ctypes, json, pynvml
pynvml.nvmlInit()
cards = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
def memory(card):
    old = pynvml.nvmlDeviceGetMemoryInfo(card)
    new = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
    return [old.total, old.used, old.free, new.total, new.used, new.free, new.reserved]
def processes(card):
    lists = [pynvml.nvmlDeviceGetComputeRunningProcesses_v2, pynvml.nvmlDeviceGetComputeRunningProcesses_v3]
    return [sorted([p.pid, p.usedGpuMemory] for p in ask(card)) for ask in lists]
def count(card, room, name):
    number, into = ctypes.c_uint(room), (ctypes.c_char * 24 * 64)()
    ask = getattr(pynvml.nvmlLib, "nvmlDeviceGet" + name)
    return [ask(card, ctypes.byref(number), into), number.value]
layouts = "", "_v2", "_v3"
print(json.dumps({
    "memory": [memory(card) for card in cards],
    "processes": [processes(card) for card in cards],
    "room": cards and [count(cards[0], n, "ComputeRunningProcesses" + v) for v in layouts for n in range(4)],
    "graphics": cards and [count(cards[0], 0, "GraphicsRunningProcesses" + v) for v in layouts],
    "nobody": cards and pynvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3(cards[0], None, None),
    "name": pynvml.nvmlDeviceGetName(cards[0]) if cards else "",
}))
"""


def ask(job):
    """What pynvml says inside the job."""
    words = [sys.executable, "-c", ASK]
    done = subprocess.run(words, env=job.environment(), check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


@pytest.fixture
def busy(new_job):
    """Two jobs on one card: the first's two processes hold 256 and 128 MiB, the second's one 512."""
    one, two = new_job(GIB), new_job(2 * GIB)
    live = [one.start(), one.start(), two.start()]
    for process, size in zip(live, ("256M", "128M", "512M"), strict=True):
        assert process.say(f"alloc {size}") == (0,)
    yield one, two, live
    for process in live:
        process.end()


def test_each_job_sees_its_own_share_and_no_other(busy):
    one, two, _ = busy
    held, room = 384 * MIB, 640 * MIB
    assert ask(one)["memory"][0] == [GIB, held, room, GIB, held, room, 0]
    assert ask(two)["memory"][0][:3] == [2 * GIB, 512 * MIB, 2 * GIB - 512 * MIB]


def test_each_job_sees_its_own_processes_and_no_others(busy):
    one, two, live = busy
    first, second, other = (process.process.pid for process in live)
    mine = sorted([[first, 256 * MIB], [second, 128 * MIB]])
    assert ask(one)["processes"] == [[mine, mine]]
    assert ask(two)["processes"][0] == [[[other, 512 * MIB]]] * 2


def test_too_little_room_is_answered_as_the_driver_does(busy):
    said = ask(busy[0])
    assert said["room"] == [[7, 2], [7, 2], [0, 2], [0, 2]] * 3
    assert said["graphics"] == [[0, 0]] * 3
    assert said["nobody"] == 2


def test_no_more_is_free_than_the_gpu_has_left(driver, tmp_path):
    """A program outside holds 5 of 8 GiB, so a job of 6 GiB cannot have more than 3."""
    from fakecuda import Card
    from fakecuda.job import Live, make_job

    [gpu] = driver.gpus(Card(memory=8 * GIB))
    job = make_job(driver, tmp_path / "job", [(gpu, 6 * GIB)])
    program = [driver.program, "-"]
    outside = Live(
        subprocess.Popen(program, env={**os.environ, **driver.env}, stdin=-1, stdout=-1, text=True)
    )
    assert outside.say("alloc 5G") == (0,)
    assert job.run("info", "alloc 3G", "info") == [(0, 3 * GIB, 6 * GIB), (0,), (0, 0, 6 * GIB)]
    assert ask(job)["memory"][0] == [6 * GIB, 0, 3 * GIB, 6 * GIB, 0, 3 * GIB, 0]
    assert outside.end() == 0


def test_used_never_passes_total(job):
    from fgshim import region

    region.set_untracked(job.region_file, 0, 3 * GIB)
    assert ask(job)["memory"][0][:3] == [GIB, GIB, 0]
    assert job.run("info") == [(0, 0, GIB)]


def test_the_reserve_of_the_driver_stays_what_it_is(driver, tmp_path):
    from fakecuda import Card
    from fakecuda.job import make_job

    [gpu] = driver.gpus(Card(reserved=64 * MIB))
    job = make_job(driver, tmp_path / "job", [(gpu, GIB)])
    assert ask(job)["memory"][0] == [GIB, 0, GIB, GIB, 0, GIB, 64 * MIB]


def test_without_a_region_no_card_is_shown_and_nobodys_processes(busy):
    busy[0].region_file.unlink()
    assert ask(busy[0])["memory"] == ask(busy[0])["processes"] == []


TWO = """
import ctypes, json, sys, pynvml
pynvml.nvmlInit()
cuda, by = ctypes.CDLL("libcuda.so.1"), ctypes.byref
context, at = ctypes.c_void_p(), ctypes.c_uint64()
free, total, whole = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(by(context), 0), cuda.cuCtxSetCurrent(context)
card, said = pynvml.nvmlDeviceGetHandleByIndex(0), []
for size in map(int, sys.argv[1:]):
    cuda.cuMemAlloc_v2(by(at), ctypes.c_size_t(size))
    cuda.cuMemGetInfo_v2(by(free), by(total)), cuda.cuDeviceTotalMem_v2(by(whole), 0)
    used = total.value - free.value
    views = [(whole.value, used, free.value), (total.value, used, free.value)]
    old = pynvml.nvmlDeviceGetMemoryInfo(card)
    new = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
    said.append(views + [(info.total, info.used, info.free) for info in (old, new)])
print(json.dumps(said))
"""


def test_cuda_and_nvml_tell_the_same_at_every_moment(driver, tmp_path):
    """Where a context costs memory, where another process holds some, and once there is nothing left."""
    from fakecuda import Card
    from fakecuda.job import make_job

    [gpu] = driver.gpus(Card(context=96 * MIB, reserved=64 * MIB))
    job = make_job(driver, tmp_path / "job", [(gpu, GIB)])
    other = job.start()
    assert other.say("alloc 100M") == (0,)
    sizes = [1, 3 * MIB, 256 * MIB, 500 * MIB, 2 * GIB, 1]
    words = [sys.executable, "-c", TWO, *map(str, sizes)]
    done = subprocess.run(words, env=job.environment(), check=True, capture_output=True, text=True)
    for views in json.loads(done.stdout):
        assert len({tuple(view) for view in views}) == 1
        total, used, free = views[0]
        assert (total, total - used) == (GIB, free)
    other.end()


ENTRIES = """
import ctypes, sys, pynvml
size = int(sys.argv[1])
pynvml.nvmlInit()
card, number, into = pynvml.nvmlDeviceGetHandleByIndex(0), ctypes.c_uint(8), (ctypes.c_char * (size * 8))()
status = pynvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3(card, ctypes.byref(number), into)
print(status, *(int.from_bytes(into.raw[at * size : at * size + 4], "little") for at in range(number.value)))
"""
VERSIONS = {
    "535.43.02": 32,
    "535.54.03": 32,
    "535.86.10": 32,
    "535.98": 24,
    "535.183.01": 24,
    "535.4": 24,
    "550.54.14": 24,
    "5350.54": 24,
}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_newest_list_of_processes_has_the_entries_of_its_driver(busy, version):
    """Drivers 535.43 to 535.86 had one more field in them."""
    one, _, live = busy
    words = [sys.executable, "-c", ENTRIES, str(VERSIONS[version])]
    env = one.environment(FAKE_NVML_VERSION=version)
    done = subprocess.run(words, env=env, check=True, capture_output=True, text=True)
    status, *pids = map(int, done.stdout.split())
    assert (status, sorted(pids)) == (0, sorted(process.process.pid for process in live[:2]))
