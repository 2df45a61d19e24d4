"""Which cards and which processes NVML shows inside a job, asked by the real pynvml."""

import json
import os
import subprocess
import sys

import pytest

from fakecuda.job import make_job
from fgshim import region

pytestmark = pytest.mark.compiler
pytest.importorskip("pynvml")
MIB, GIB = 1 << 20, 1 << 30

PRELUDE = """
import ctypes, json, sys
import pynvml as nvml
nvml.nvmlInit()
say = lambda what: print(json.dumps(what))
def tried(ask, *words):
    try:
        return nvml.nvmlDeviceGetIndex(ask(*words))
    except nvml.NVMLError as error:
        return str(error)
"""


def ask(code, env, *words):
    """What this bit of Python says of NVML in that environment."""
    command = [sys.executable, "-c", PRELUDE + code, *map(str, words)]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture
def gpus(driver):
    from fakecuda import Card

    return driver.gpus(*[Card(f"card {at}") for at in range(4)])


@pytest.fixture(params=[(2, 0), (0, 1)], ids=["numbered as here", "numbered otherwise"])
def two_of_four(request, driver, gpus, tmp_path):
    """A job that was given the third card and the first, in this order, whatever NVML's numbers were then."""
    job = make_job(driver, tmp_path / "job", [(gpus[2], GIB), (gpus[0], 2 * GIB)])
    given = zip(request.param, (gpus[2].uuid, gpus[0].uuid), (GIB, 2 * GIB), strict=True)
    head = region.pack(1, 1, list(given))
    job.region_file.write_bytes(head + bytes(region.SIZE - len(head)))
    return job


NAMES = """
cards = [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(nvml.nvmlDeviceGetCount())]
ask = nvml.nvmlDeviceGetName, nvml.nvmlDeviceGetIndex, nvml.nvmlDeviceGetUUID
say([[one(card) for one in ask] for card in cards])
"""


def test_a_job_sees_its_cards_alone_numbered_as_cuda_numbers_them(two_of_four, gpus):
    seen = ask(NAMES, two_of_four.environment())
    assert seen == [["card 2", 0, gpus[2].uuid], ["card 0", 1, gpus[0].uuid]]
    one = two_of_four.run("total", CUDA_VISIBLE_DEVICES="0,1")
    other = two_of_four.run("device 1", "total", CUDA_VISIBLE_DEVICES="0,1")
    assert (one[-1][1], other[-1][1]) == (GIB, 2 * GIB)


def test_the_older_calls_count_and_number_alike(two_of_four):
    older = """
lib, number, device = nvml.nvmlLib, ctypes.c_uint(), ctypes.c_void_p()
said = [lib.nvmlDeviceGetCount(ctypes.byref(number)), number.value]
said += [lib.nvmlDeviceGetHandleByIndex(at, ctypes.byref(device)) for at in range(4)]
say(said)
"""
    assert ask(older, two_of_four.environment()) == [0, 2, 0, 0, 2, 2]


WAYS = """
uuids = sys.argv[1:]
raw = [bytes.fromhex(uuid[4:].replace("-", "")) for uuid in uuids]
say([
    [tried(nvml.nvmlDeviceGetHandleByIndex, at) for at in range(4)],
    [tried(nvml.nvmlDeviceGetHandleByUUID, uuid) for uuid in uuids],
    [tried(nvml.nvmlDeviceGetHandleByUUIDV, uuid, nvml.NVML_UUID_TYPE_BINARY) for uuid in raw],
    [tried(nvml.nvmlDeviceGetHandleBySerial, f"serial-{at}") for at in range(4)],
    [tried(nvml.nvmlDeviceGetHandleByPciBusId, f"00000000:0{at + 1}:00.0") for at in range(4)],
    [tried(nvml.nvmlDeviceGetHandleByUUID, "GPU-x"), tried(nvml.nvmlDeviceGetHandleByPciBusId, "x")],
])
"""


def test_a_card_of_others_is_not_there_by_whatever_name(two_of_four, gpus, driver):
    uuids = [gpu.uuid for gpu in gpus]
    absent = "Not Found"
    by_index, *by_name, wrong = ask(WAYS, two_of_four.environment(), *uuids)
    assert by_index == [0, 1, "Invalid Argument", "Invalid Argument"]
    assert by_name == [[1, absent, 0, absent]] * 4
    assert wrong == [absent, "Invalid Argument"]
    bare = ask(WAYS, {**os.environ, **driver.env}, *uuids)
    assert bare == [[0, 1, 2, 3]] * 5 + [[absent, "Invalid Argument"]]


def test_neighbours_of_a_card_are_the_jobs_own(two_of_four):
    near = """
first = nvml.nvmlDeviceGetHandleByIndex(0)
lists = [nvml.nvmlDeviceGetTopologyNearestGpus(first, 0), nvml.nvmlSystemGetTopologyGpuSet(0)]
count, room = ctypes.c_uint(4), (ctypes.c_void_p * 4)()
assert nvml.nvmlLib.nvmlUnitGetDevices(None, ctypes.byref(count), room) == 0
lists.append([ctypes.c_void_p(device) for device in room[: count.value]])
say([[nvml.nvmlDeviceGetName(card) for card in found] for found in lists])
"""
    assert ask(near, two_of_four.environment()) == [["card 0"], *[["card 0", "card 2"]] * 2]


def test_nvml_that_was_not_started_says_so_under_the_hook_as_well(two_of_four):
    late = """
nvml.nvmlShutdown()
lib, number, device = nvml.nvmlLib, ctypes.c_uint(), ctypes.c_void_p()
out = ctypes.byref(device)
say([lib.nvmlDeviceGetCount_v2(ctypes.byref(number)), lib.nvmlDeviceGetHandleByIndex_v2(0, out),
     lib.nvmlDeviceGetHandleByIndex_v2(9, out), lib.nvmlDeviceGetHandleByUUID(b"GPU-nonsense", out)])
"""
    assert ask(late, two_of_four.environment()) == [1, 1, 1, 1]


PROCESSES = """
card = nvml.nvmlDeviceGetHandleByIndex(0)
detail = nvml.nvmlDeviceGetRunningProcessDetailList(card, 1 << 24 | 24, 0)
pids = [int(pid) for pid in sys.argv[1:]]
def named(pid):
    try:
        return bool(nvml.nvmlSystemGetProcessName(pid))
    except nvml.NVMLError_NotFound:
        return False
def counted(pid):
    try:
        newer = nvml.nvmlDeviceGetAccountingStats_v2(card, pid).isRunning
        return newer == nvml.nvmlDeviceGetAccountingStats(card, pid).isRunning == 1
    except nvml.NVMLError_NotFound:
        return False
say([
    sorted(one.pid for one in detail),
    sorted(one.pid for one in nvml.nvmlDeviceGetProcessUtilization(card, 0)),
    sorted(one.pid for one in nvml.nvmlDeviceGetProcessesUtilizationInfo(card, 0)),
    sorted(nvml.nvmlDeviceGetAccountingPids(card)),
    sorted(one.pid for one in nvml.nvmlDeviceGetEncoderSessions(card)),
    sorted(one.pid for one in nvml.nvmlDeviceGetFBCSessions(card)),
    [pid for pid in pids if named(pid)], [pid for pid in pids if counted(pid)],
])
"""


SESSIONS = """
import ctypes
card, answers = nvml.nvmlDeviceGetHandleByIndex(0), []
for room in range(3):
    for kind, size in (("Encoder", 32), ("FBC", 48)):
        count, into = ctypes.c_uint(room), ctypes.create_string_buffer(4 * size)
        call = getattr(nvml.nvmlLib, f"nvmlDeviceGet{kind}Sessions")
        status = call(card, ctypes.byref(count), into)
        pids = [int.from_bytes(into[at + 4 : at + 8], "little") for at in range(0, 4 * size, size)]
        answers.append([status, count.value, sorted(pid for pid in pids if pid)])
say(answers)
"""


def test_a_list_of_sessions_without_room_says_how_much_it_needs(new_job):
    one, two = new_job(GIB), new_job(GIB)
    live = [two.start(), one.start(), two.start(), one.start()]
    assert [process.say("alloc 64M") for process in live] == [(0,)] * 4
    mine = sorted([live[1].process.pid, live[3].process.pid])
    assert ask(SESSIONS, one.environment()) == [[7, 2, []]] * 4 + [[0, 2, mine]] * 2
    for process in live:
        process.end()


def test_everything_that_tells_of_processes_tells_of_the_jobs_alone(new_job, driver):
    one, two = new_job(GIB), new_job(GIB)
    live = [two.start(), one.start(), two.start(), one.start()]
    assert [process.say("alloc 64M") for process in live] == [(0,)] * 4
    pids = [process.process.pid for process in live]
    mine = sorted([pids[1], pids[3]])
    said = ask(PROCESSES, one.environment(), *sorted(pids))
    assert said == [mine] * 8
    assert ask(PROCESSES, {**os.environ, **driver.env}, *sorted(pids)) == [sorted(pids)] * 8
    for process in live:
        process.end()
