"""The fake driver is a driver: what the other tests rely on, without any hook."""

import os
import signal
import subprocess
import sys

import pytest

from fakecuda import Card
from fakecuda.job import Live, answers

pytestmark = pytest.mark.compiler
MIB, GIB = 1 << 20, 1 << 30
OK, INVALID, OOM, NO_DEVICE = 0, 1, 2, 100


@pytest.fixture
def run(driver):
    """run(command, …) in one process, a stranger to every job."""

    def obey(*commands, **extra):
        env = {**os.environ, **driver.env, **extra}
        words = [driver.program, *commands]
        done = subprocess.run(words, env=env, check=True, capture_output=True, text=True)
        return answers(done.stdout)

    return obey


@pytest.fixture
def start(driver):
    def begin():
        pipe, env = subprocess.PIPE, {**os.environ, **driver.env}
        words = [driver.program, "-"]
        return Live(subprocess.Popen(words, env=env, stdin=pipe, stdout=pipe, text=True))

    return begin


def test_a_full_card_refuses_whoever_asks(driver, run, start):
    driver.gpus(Card(memory=GIB, reserved=64 * MIB, context=128 * MIB))
    first = start()
    assert first.say("alloc 640M") == (OK,)
    assert driver.used() == [768 * MIB]
    assert run("total", "info", "alloc 66M", "alloc 64M") == [
        (OK, 960 * MIB, 0),
        (OK, 64 * MIB, 960 * MIB),
        (OOM,),
        (OK,),
    ]
    first.end()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_card_forgets_the_dead(driver, run, start, end):
    driver.gpus(Card(memory=GIB))
    first = start()
    assert first.say("alloc 1G") == (OK,)
    first.process.send_signal(end)
    first.process.wait()
    assert driver.used() == [0]
    assert run("alloc 1G") == [(OK,)]
    first.end()


def test_more_than_a_mebibyte_is_taken_in_grains_of_two(driver, start):
    driver.gpus(Card())
    live = start()
    assert live.say(f"alloc {MIB + 1}") == (OK,)
    assert driver.used() == [2 * MIB]
    assert live.say("free 0") == (OK,)
    assert (driver.used(), driver.high()) == ([0], [2 * MIB])
    live.end()


def test_visible_devices_are_chosen_by_number_and_by_uuid(driver, run):
    one, two = driver.gpus(Card(memory=GIB), Card(memory=2 * GIB))
    sees_first, sees_second = ("0", one.uuid[:12]), ("1", two.uuid, "1,0")
    for visible, total in [(v, GIB) for v in sees_first] + [(v, 2 * GIB) for v in sees_second]:
        assert run("total", CUDA_VISIBLE_DEVICES=visible) == [(OK, total, 0)]
    for nothing in ("", "7", "-1,0", "GPU-nonsense"):
        assert run("total", CUDA_VISIBLE_DEVICES=nothing) == [(1,)]


def test_a_pool_keeps_up_to_its_threshold(driver, run):
    driver.gpus(Card(memory=GIB))
    full, free = (OK, 0, GIB), (OK, GIB, GIB)
    assert run("async 1G", "afree 0", "info", "sync", "info") == [(OK,), (OK,), full, (OK,), free]
    commands = ["threshold 1G", "async 1G", "afree 0", "sync", "info", "trim 0", "info"]
    assert run(*commands)[-3:] == [full, (OK,), free]


NVML = """
import pynvml as nvml
nvml.nvmlInit()
card = nvml.nvmlDeviceGetHandleByIndex(0)
assert nvml.nvmlDeviceGetCount() == 2
assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(card))) == 0
assert nvml.nvmlDeviceGetMinorNumber(card) == 0
assert nvml.nvmlSystemGetDriverVersion() == "580.0.0"
assert nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU) == 40
assert nvml.nvmlDeviceGetUtilizationRates(card).gpu == 0
assert nvml.nvmlDeviceGetGraphicsRunningProcesses(card) == []
try:
    nvml.nvmlDeviceGetHandleByIndex(2)
except nvml.NVMLError_InvalidArgument as error:
    print(error)
new, old = nvml.nvmlDeviceGetMemoryInfo(card, version=nvml.nvmlMemory_v2), nvml.nvmlDeviceGetMemoryInfo(card)
print(nvml.nvmlDeviceGetName(card), nvml.nvmlDeviceGetUUID(card), nvml.nvmlDeviceGetPciInfo(card).busId)
print(new.total, new.used, new.free, new.reserved, old.used)
print([(process.pid, process.usedGpuMemory) for process in nvml.nvmlDeviceGetComputeRunningProcesses(card)])
nvml.nvmlShutdown()
"""


def test_the_real_pynvml_reads_the_same_cards(driver, start):
    pytest.importorskip("pynvml")
    gpu, _ = driver.gpus(Card("H100", GIB, reserved=64 * MIB, context=128 * MIB), Card())
    live = start()
    assert live.say("alloc 256M") == (OK,)
    env = {**os.environ, **driver.env}
    said = subprocess.run([sys.executable, "-c", NVML], env=env, check=True, capture_output=True, text=True)
    used = 384 * MIB
    assert said.stdout.splitlines() == [
        "Invalid Argument",
        f"H100 {gpu.uuid} 00000000:01:00.0",
        f"{GIB} {used} {GIB - used - 64 * MIB} {64 * MIB} {used + 64 * MIB}",
        f"[({live.process.pid}, {used})]",
    ]
    live.end()


def test_without_a_card_state_there_is_no_driver(driver, run):
    assert run("total", FAKE_CUDA_STATE="/nowhere") == [(1,)]
