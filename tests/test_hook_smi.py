"""The private table of NVML out of which nvidia-smi takes its list of processes, on a fake NVML that has one.

What is known of its layout comes from the reports of others on driver 580.65.06. Nothing here proves it of a
real one.
"""

import json
import subprocess
import sys

import pytest

from fakecuda import Card
from fakecuda.job import make_job

pytestmark = pytest.mark.compiler
pytest.importorskip("pynvml")
MIB, GIB = 1 << 20, 1 << 30

SMI = """
import ctypes, json, sys, pynvml as nvml
class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint),
                ("ci", ctypes.c_uint), ("secret", ctypes.c_ulonglong), ("name", ctypes.c_char * 4096)]
table, other = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p()
ident = bytes.fromhex("c4fe3e6cc98f6e4ca327ee696e12f7c4")
if sys.argv[2] == "init":
    nvml.nvmlInit()
said = {"status": ctypes.CDLL("libnvidia-ml.so.1").nvmlInternalGetExportTable(ctypes.byref(table), ident)}
if sys.argv[2] != "init":
    nvml.nvmlInit()
said["unknown"] = nvml.nvmlLib.nvmlInternalGetExportTable(ctypes.byref(other), bytes(16))
call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
def listed(slot, device):
    count, room = ctypes.c_uint(250), (Process * 250)()
    assert call(table[slot])(device, ctypes.addressof(count), ctypes.addressof(room)) == 0
    return [[one.pid, one.used] for one in room[: count.value]]
def card(index):
    device = ctypes.c_void_p()
    status = call(table[81])(index, ctypes.addressof(device), 0x22)
    return nvml.nvmlDeviceGetName(device) if status == 0 else status
twice = ctypes.c_uint()
call(table[80])(21, ctypes.addressof(twice), 0)
said["other"] = twice.value
said["cards"] = [card(index) for index in range(3)]
device = ctypes.c_void_p()
call(table[81])(int(sys.argv[1]), ctypes.addressof(device), 0x22)
said["lists"] = [sorted(listed(slot, device)) for slot in (213, 214, 215)] if device else None
print(json.dumps(said))
"""


@pytest.fixture
def busy(driver, tmp_path):
    """Two jobs on the second of two cards; the first job's process holds 64 MiB there."""
    cards = driver.cards(Card("one"), Card("two"))
    jobs = [make_job(driver, tmp_path / name, [(cards[1], GIB)]) for name in "ab"]
    live = [job.start(CUDA_VISIBLE_DEVICES="1") for job in jobs]
    assert [process.say("alloc 64M") for process in live] == [(0,), (0,)]
    yield jobs[0], live[0].process.pid
    for process in live:
        process.end()


def seen(job, card=0, first="init", **extra):
    """What a program finds in the table, and in the lists of that card; `first`: what it asks for first."""
    words = [sys.executable, "-c", SMI, str(card), first]
    done = subprocess.run(words, env=job.environment(**extra), check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("first", ["init", "table"])
def test_on_a_branch_that_is_known_the_jobs_processes_are_shown_and_its_cards(busy, first):
    """Also where the table is asked for before NVML was started, and can tell its version."""
    job, pid = busy
    said = seen(job, first=first, FAKE_NVML_VERSION="580.65.06")
    assert said["lists"] == [[[pid, 64 * MIB]], [], []]
    assert said["cards"] == ["two", 2, 2]
    assert (said["status"], said["unknown"], said["other"]) == (0, 3, 42)


def test_on_any_other_branch_the_list_is_empty(busy):
    said = seen(busy[0], 1, FAKE_NVML_VERSION="575.57.08")
    assert said["lists"] == [[], [], []]
    assert (said["status"], said["other"]) == (0, 42)


def test_a_list_that_does_not_look_like_one_is_empty_and_never_nonsense(busy):
    said = seen(busy[0], FAKE_NVML_VERSION="580.159.03", FAKE_SMI_ODD="1")
    assert said["lists"] == [[], [], []]


def test_a_table_that_is_too_short_is_the_drivers_own(busy):
    said = seen(busy[0], FAKE_SMI_SHORT="1", FAKE_NVML_VERSION="580.65.06")
    assert (said["status"], said["cards"]) == (0, ["one", "two", 2])


def test_without_a_region_there_is_no_card_and_nobody_is_listed(busy):
    job, _ = busy
    job.region_file.unlink()
    assert seen(job, FAKE_NVML_VERSION="580.65.06")["cards"] == [2, 2, 2]
    assert seen(job, 1, FAKE_NVML_VERSION="575.57.08")["lists"] == [[], [], []]
