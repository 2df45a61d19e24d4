"""Cards: simulated ones, a small driver that does what a file says, and a driver that hangs."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys

import pytest

from fgsched.config.load import Config
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import Gpu, GpuProcess, GpuState, Near, Reading
from fgsched.gpus import INVENTORY, READING, GpuAnswer, Inventory, attach, discover, external, mig, simulated
from fgsched.gpus.selection import Selection
from fgsched.gpus.selection import select as choose
from fgsched.system import process

MIB = 1 << 20
GIB = 1 << 30
SIM = {"FG_DEVICES": "sim:4x16G:V100"}


def a_gpu(index, **fields):
    return Gpu(**{"index": index, "uuid": simulated.uuid(index), "model": "V100", "total": 16 * GIB} | fields)


def indices(environ, *, option="", devices="auto"):
    return [gpu.index for gpu in discover(Config(devices=devices), environ, option=option).gpus]


# Which cards


def test_simulated_cards_are_what_their_text_says():
    assert simulated.parse("sim:1x16G:V100,2x40G:A100 SXM") == (
        a_gpu(0),
        a_gpu(1, total=40 * GIB, model="A100 SXM"),
        a_gpu(2, total=40 * GIB, model="A100 SXM"),
    )
    assert a_gpu(0).usable == 16 * GIB
    assert [gpu.links for gpu in simulated.parse("sim:2x16G:V100:nvlink,1x16G,2x16G:A:socket")] == [
        ((1, Near.NVLINK),),
        ((0, Near.NVLINK),),
        (),
        ((4, Near.SOCKET),),
        ((3, Near.SOCKET),),
    ]
    assert [gpu.cpus for gpu in simulated.parse("sim:1x16G:cpus=3,2x16G:A:nvlink:cpus=0-1,1x16G")] == [
        (3,),
        (0, 1),
        (0, 1),
        (),
    ]
    assert len(bytes.fromhex(simulated.uuid(11).removeprefix("GPU-").replace("-", ""))) == 16


@pytest.mark.parametrize(
    "text",
    [
        "sim:",
        "sim:x80G",
        "sim:0x80G",
        "sim:4x",
        "sim:4x0G",
        "sim:4x80Q",
        "sim:4x80G,",
        "sim:4x80G:H100:rope",
        "sim:1x80G:cpus=",
        "sim:1x80G:cpus=3-1",
    ],
)
def test_simulated_cards_that_make_no_sense_are_refused(text):
    with pytest.raises(BadUsage, match=r"^sim:"):
        simulated.parse(text)


def test_numbers_in_a_job_are_those_of_its_gpus_for_a_controller_as_well():
    two, three = (simulated.uuid(index) for index in (2, 3))
    job = {"FG_GPU_DEVICES": "0,1", "FG_GPU_UUIDS": f"{two},{three}"}
    assert indices(SIM | job | {"CUDA_VISIBLE_DEVICES": "0,1"}) == [2, 3]
    assert indices(SIM | job | {"CUDA_VISIBLE_DEVICES": "1"}) == [3]


def test_visible_devices_of_the_controller_limit_it_to_those_cards():
    found = discover(Config(), SIM | {"CUDA_VISIBLE_DEVICES": "1,3"})
    assert found == Inventory(gpus=(a_gpu(1), a_gpu(3)), source="sim")


@pytest.mark.parametrize(
    ("visible", "left"),
    [
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,-1,0", [2]),
        ("3, 0", [0, 3]),
        (simulated.uuid(2), [2]),
        ("1", [1]),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(visible, left):
    assert indices(SIM | {"CUDA_VISIBLE_DEVICES": visible}) == left


@pytest.mark.parametrize(
    ("option", "environ", "devices", "left"),
    [
        ("", {}, "sim:2x16G", [0, 1]),
        ("", {}, "none", []),
        ("", SIM, "sim:2x16G", [0, 1, 2, 3]),
        ("", SIM, "0,", [0, 1, 2, 3]),
        ("", {"FG_DEVICES": "1,"}, "sim:2x16G", [1]),
        ("", {"FG_DEVICES": "none"}, "sim:2x16G", []),
        ("", {"FG_DEVICES": "0,", "CUDA_VISIBLE_DEVICES": "1"}, "sim:2x16G", [0]),
        ("", {"CUDA_VISIBLE_DEVICES": "1"}, "sim:2x16G", [1]),
        ("2-3", SIM | {"CUDA_VISIBLE_DEVICES": "0"}, "auto", [2, 3]),
        ("0, 1", SIM, "auto", [0, 1]),
        ("2", SIM, "auto", [0, 1]),
        ("2", SIM | {"CUDA_VISIBLE_DEVICES": "1,3"}, "auto", [1, 3]),
        ("sim:1x16G", SIM | {"CUDA_VISIBLE_DEVICES": "1,3"}, "auto", [0]),
    ],
)
def test_the_option_prevails_over_the_environment_and_that_over_the_file(option, environ, devices, left):
    assert indices(environ, option=option, devices=devices) == left


def test_a_number_and_a_list_that_disagree_are_an_error():
    with pytest.raises(BadUsage, match=r"--gpus says 3 GPUs, and CUDA_VISIBLE_DEVICES=1,3 lists 2\."):
        indices(SIM | {"CUDA_VISIBLE_DEVICES": "1,3"}, option="3")


@pytest.mark.parametrize("text", ["two", "0;1", "0,,1", "GPU-", "-1"])
def test_a_list_that_names_no_cards_is_refused(text):
    with pytest.raises(BadUsage, match="FG_DEVICES"):
        indices({"FG_DEVICES": text})


def test_a_card_that_was_named_and_is_not_there_is_down_and_says_why():
    absent = {"model": "", "total": 0, "state": GpuState.DOWN, "note": "the host has no such card"}
    found = discover(Config(devices="0,7,GPU-abc,"), {"CUDA_VISIBLE_DEVICES": "0,7,GPU-abc"} | SIM).gpus
    assert found == (a_gpu(0), a_gpu(7, uuid="absent-7", **absent), a_gpu(8, uuid="GPU-abc", **absent))


def test_the_beginning_of_a_uuid_has_to_mean_one_card():
    with pytest.raises(BadUsage, match="the beginning of 4 UUIDs"):
        indices(SIM | {"CUDA_VISIBLE_DEVICES": "GPU-5157"})


def test_headroom_is_taken_from_every_card():
    assert [gpu.usable for gpu in discover(Config(headroom=GIB), SIM).gpus] == [15 * GIB] * 4


# Whose memory


@pytest.mark.parametrize(
    ("used", "processes", "held"),
    [
        (0, [], 0),
        (512 * MIB, [], 0),
        (513 * MIB, [], MIB),
        (4 * GIB, [(1, 4 * GIB)], 0),
        (4 * GIB, [(9, 4 * GIB)], 4 * GIB),
        (5 * GIB, [(1, GIB), (9, GIB)], GIB + 3 * GIB - 512 * MIB),
        (5 * GIB, [(1, 0), (9, GIB)], GIB),
        (5 * GIB, [(9, 0)], 5 * GIB - 512 * MIB),
        (GIB, [(9, 2 * GIB)], 2 * GIB),
    ],
)
def test_strangers_hold_what_their_processes_show_and_what_nobody_explains(used, processes, held):
    seen = tuple(GpuProcess(pid=pid, memory=memory) for pid, memory in processes)
    assert external(Reading(gpu=0, used=used, processes=seen), {1, 2}) == held


# Looking at them


@pytest.fixture
def attached():
    """attach(), closed at the end."""
    samplers = []

    def start(environ=os.environ, **config):
        inventory, sampler = attach(Config(**config), environ)
        samplers.append(sampler)
        return inventory, sampler

    yield start
    for sampler in samplers:
        sampler.close()


def look(sampler, want=READING):
    """One question and its answer, waited for."""
    sampler.ask(want)
    answers = []
    while not answers:
        assert select.select([sampler], [], [], 60)[0], "no answer"
        answers = sampler.read()
    (answer,) = answers
    return answer


@pytest.fixture
def script(tmp_path):
    """Says what happens to the simulated cards."""
    path = tmp_path / "script.json"

    def write(**gpus):
        path.write_text(json.dumps({index.removeprefix("gpu"): about for index, about in gpus.items()}))

    write.environ = {"FG_DEVICES": "sim:2x16G:V100", "FG_SIM_SCRIPT": str(path)}
    return write


def test_simulated_cards_are_idle_until_a_script_says_otherwise(attached, script):
    _, sampler = attached(script.environ)
    assert sampler.read() == []
    assert look(sampler).readings == {0: Reading(gpu=0, used=0), 1: Reading(gpu=1, used=0)}
    script(
        gpu1={"used": "4G", "processes": [{"pid": 7, "memory": GIB}], "utilisation": 50, "temperature": 60}
    )
    reading = look(sampler).readings[1]
    assert reading.used == 5 * GIB
    assert (reading.utilisation, reading.temperature) == (50, 60)
    assert external(reading, {7}) == 4 * GIB


def test_a_script_can_lose_drain_and_hang_cards(attached, script):
    _, sampler = attached(script.environ)
    script(gpu0={"error": "GPU is lost"})
    assert [reading.error for reading in look(sampler).readings.values()] == ["GPU is lost", ""]
    script(gpu0={"state": "down", "note": "smoke"})
    assert look(sampler, INVENTORY).gpus[0] == a_gpu(0, state=GpuState.DOWN, note="smoke")
    script(gpu0={"hang": True})
    assert {one.error for one in look(sampler).readings.values()} == {"the driver did not answer within 2 s"}


@pytest.mark.parametrize("text", ["{", "[]", '{"0": 7}', '{"0": {"usde": 1}}', '{"0": {"used": "much"}}'])
def test_a_script_with_a_mistake_is_trouble_with_the_cards_and_no_crash(attached, tmp_path, text):
    path = tmp_path / "script.json"
    path.write_text(text)
    _, sampler = attached({"FG_DEVICES": "sim:1x16G", "FG_SIM_SCRIPT": str(path)})
    assert str(path) in look(sampler).readings[0].error


NVML = r"""
#include <stdio.h>
#include <string.h>
#include <unistd.h>
typedef unsigned long long u64;
struct memory { u64 total, free, used; };
struct memory2 { unsigned version; u64 total, reserved, free, used; };
struct process { unsigned pid; u64 used; unsigned gi, ci; };

/* What the file beside this library says: a word, such as hang. */
static int says(const char *word) {
    char text[64] = "";
    FILE *file = fopen(STATE, "r");
    if (file) { if (!fgets(text, sizeof text, file)) text[0] = 0; fclose(file); }
    return strcmp(text, word) == 0;
}
#define INDEX ((int)((long)device - 1))
#define CHECK if (says("lost") && INDEX == 1) return 15; if (says("unloaded")) return 1;
int nvmlInitWithFlags(unsigned flags) {
    puts("a driver may be talkative"); fflush(stdout);
    return says("mismatch") ? 18 : 0;
}
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device) {
    if (says("lost at start") && i == 1) return 15;
    *device = (void *)(long)(i + 1); return 0;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size) {
    int last = says("swapped") ? 1 - INDEX : INDEX;
    snprintf(uuid, size, "GPU-00000000-0000-0000-0000-00000000000%d", last); return 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned size) {
    snprintf(name, size, "Fake %d", INDEX); return 0;
}
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *later) {
    *now = *later = says("mig"); return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) { *count = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, struct memory *m) {
    CHECK
    m->total = 1000; m->used = 300; return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory2 *m) {
    CHECK
    while (says("hang")) pause();
    if (says("die")) _exit(3);
    if (says("old")) return 13;
    m->total = 1000; m->reserved = 100; m->used = 200; return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *list) {
    if (says("old")) return 13;
    if (*count < 2) { *count = 2; return 7; }
    *count = 2; list[0].pid = 8; list[0].used = ~0ull; list[1].pid = 7; list[1].used = 60; return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, struct process *list) {
    if (*count < 1) { *count = 1; return 7; }
    *count = 1; list[0].pid = 7; list[0].used = 50; return 0;
}
int nvmlDeviceGetP2PStatus(void *one, void *other, unsigned what, unsigned *status) {
    *status = what == 2 && says("nvlink") ? 0 : 5; return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, unsigned *level) {
    if (says("old")) return 3;
    *level = says("switch") ? 10 : says("socket") ? 30 : 50; return 0;
}
int nvmlDeviceGetCpuAffinity(void *device, unsigned words, u64 *set) {
    if (says("old")) return 3;
    memset(set, 0, words * sizeof *set);
    set[INDEX] = 6; return 0;
}
struct event { void *device; u64 type, data; unsigned gi, ci; };
static int told;
int nvmlEventSetCreate(void **set) { *set = &told; return says("old") ? 3 : 0; }
int nvmlDeviceRegisterEvents(void *device, u64 types, void *set) { return INDEX || types != 8 ? 3 : 0; }
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned wait) {
    if (!says("xid") || told == 2) return 10;
    event->device = (void *)1; event->type = 8; event->data = told++ ? 79 : 48; return 0;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *heat) { *heat = 40; return 0; }
"""
compiler = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(NVML)
    options = ["-shared", "-fPIC", f'-DSTATE="{folder}/state"', "-o", str(folder / "libnvidia-ml.so.1")]
    subprocess.run(["cc", *options, str(folder / "nvml.c")], check=True)
    return folder


@pytest.fixture
def driver(library, monkeypatch):
    """A driver with two cards; call it with a word to make it misbehave."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    for name in ("FG_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    write = (library / "state").write_text
    write("fine")
    return write


def fake(index, **fields):
    uuid = f"GPU-00000000-0000-0000-0000-00000000000{index}"
    about = {"index": index, "uuid": uuid, "model": f"Fake {index}", "total": 1000, "reserved": 100}
    about["cpus"] = (64 * index + 1, 64 * index + 2)
    return Gpu(**about | fields)


SEEN = Reading(
    gpu=0, used=200, processes=(GpuProcess(pid=7, memory=60), GpuProcess(pid=8, memory=0)), temperature=40
)


def probes(sampler):
    """The living processes that ask the driver for this sampler."""
    return process.descendants(sampler._supervisor.pid)


def await_end(identity):
    pidfd = process.open_pidfd(identity)
    if pidfd is not None:
        assert select.select([pidfd], [], [], 60)[0], "it does not end"
        os.close(pidfd)


@compiler
@pytest.mark.compiler
class TestDriver:
    def test_the_cards_of_the_driver_are_found_and_read(self, attached, driver):
        inventory, sampler = attached(headroom=50)
        assert inventory == Inventory(
            gpus=(fake(0, headroom=50), fake(1, headroom=50)), source="nvml", is_sampled=True
        )
        first = look(sampler).readings
        assert first[0] == SEEN
        assert first[1].used == 200

    def test_an_old_driver_without_the_newer_calls_is_understood(self, attached, driver):
        driver("old")
        inventory, sampler = attached()
        assert inventory.gpus[0] == fake(0, reserved=0, cpus=())
        reading = look(sampler).readings[0]
        assert (reading.used, reading.processes) == (300, (GpuProcess(pid=7, memory=50),))

    @pytest.mark.parametrize("near", Near)
    def test_cards_that_are_near_to_each_other_know_it(self, attached, driver, near):
        driver(near.name.lower())
        inventory, _ = attached()
        assert [gpu.links for gpu in inventory.gpus] == [((1, near),), ((0, near),)]

    def test_the_errors_that_the_driver_tells_of_are_told_once(self, attached, driver):
        driver("xid")
        _, sampler = attached()
        assert {index: one.xids for index, one in look(sampler).readings.items()} == {0: (48, 79), 1: ()}
        assert look(sampler).readings[0].xids == ()

    def test_only_the_chosen_cards_are_watched(self, attached, driver):
        _, sampler = attached(devices="1,")
        assert list(look(sampler).readings) == [1]

    def test_a_lost_card_does_not_take_the_others_along(self, attached, driver):
        _, sampler = attached()
        driver("lost")
        readings = look(sampler).readings
        assert [readings[0].error, readings[1].error] == ["", "the driver says: GPU is lost"]

    def test_a_card_that_is_lost_from_the_start_is_down(self, attached, driver):
        driver("lost at start")
        inventory, sampler = attached()
        assert [gpu.state for gpu in inventory.gpus] == [GpuState.OK, GpuState.DOWN]
        assert inventory.gpus[1].note == "the driver says: GPU is lost"
        assert look(sampler).readings[1].error == "the driver does not show this card"

    def test_a_driver_that_was_loaded_anew_is_opened_anew_and_cards_are_known_by_uuid(self, attached, driver):
        _, sampler = attached()
        before = probes(sampler)
        driver("unloaded")
        assert {one.error for one in look(sampler).readings.values()} == {"the driver says: Uninitialized"}
        driver("swapped")
        while look(sampler, INVENTORY).error:
            pass
        found = look(sampler).readings
        assert [(index, seen.gpu, seen.error) for index, seen in found.items()] == [(0, 0, ""), (1, 1, "")]
        assert probes(sampler) != before

    def test_a_card_in_mig_mode_without_instances_is_down(self, attached, driver):
        driver("mig")
        inventory, _ = attached()
        assert {(gpu.state, gpu.note) for gpu in inventory.gpus} == {(GpuState.DOWN, mig.NO_INSTANCES)}

    def test_a_card_on_which_mig_is_switched_on_says_so_instead_of_a_reading(self, attached, driver):
        _, sampler = attached()
        driver("mig")
        assert look(sampler).readings[0].error == "MIG is on: restart the controller to use its instances"
        driver("fine")
        while look(sampler).readings[0].error:
            pass  # the driver rests for a moment after an answer that was all trouble

    def test_a_driver_of_another_version_means_no_cards_and_says_what_to_do(self, attached, driver):
        driver("mismatch")
        inventory, sampler = attached()
        assert (inventory.gpus, inventory.source) == ((), "none")
        assert "restart the host" in inventory.note
        driver("fine")
        while (answer := look(sampler, INVENTORY)).error:
            pass
        assert answer.gpus == (fake(0), fake(1))

    def test_a_driver_that_hangs_is_trouble_with_every_card_and_then_over(self, attached, driver):
        _, sampler = attached(deadline=1)
        (probe,) = probes(sampler)
        driver("hang")
        assert {one.error for one in look(sampler).readings.values()} == {
            "the driver did not answer within 1 s"
        }
        await_end(probe)  # the supervisor kills it and does not wait for it
        assert probes(sampler) == []
        driver("fine")
        while look(sampler, INVENTORY).error:
            pass
        assert len(probes(sampler)) == 1
        assert look(sampler).readings[0] == SEEN

    def test_while_the_driver_rests_nobody_asks_it(self, attached, driver):
        _, sampler = attached(deadline=1)
        driver("die")
        assert look(sampler).error == "the probe of the driver ended"
        for one in probes(sampler):
            await_end(one)  # its pipe is closed a moment before
        assert look(sampler).error == "the probe of the driver ended"
        assert probes(sampler) == []

    def test_a_driver_that_hangs_at_the_start_does_not_hang_the_start(self, attached, driver):
        driver("hang")
        inventory, _ = attached(deadline=0.2, devices="0,")
        assert inventory.note == "the driver did not answer within 1 s"
        assert [(gpu.index, gpu.state, gpu.note) for gpu in inventory.gpus] == [
            (0, GpuState.DOWN, inventory.note)
        ]

    def test_a_keeper_that_was_killed_is_replaced_behind_the_same_descriptor(self, attached, driver):
        _, sampler = attached()
        descriptor, supervisor = sampler.fileno(), process.identify(sampler._supervisor.pid)
        pidfd = process.open_pidfd(supervisor)
        process.kill(supervisor, signal.SIGKILL)
        assert select.select([pidfd], [], [], 60)[0]
        os.close(pidfd)
        assert look(sampler).readings[0] == SEEN
        assert sampler.fileno() == descriptor

    @pytest.mark.parametrize("state", ["fine", "hang"])
    def test_closing_leaves_no_process_even_with_a_question_out(self, driver, state):
        _, sampler = attach(Config(), os.environ)
        supervisor, (probe,) = sampler._supervisor._process, probes(sampler)
        pidfd = process.open_pidfd(probe)
        driver(state)
        sampler.ask(READING)
        sampler.close()
        assert supervisor.returncode == 0
        assert select.select([pidfd], [], [], 60)[0]
        os.close(pidfd)

    def test_nothing_in_the_environment_puts_its_code_into_the_probe(
        self, attached, driver, monkeypatch, tmp_path
    ):
        for name in ("pynvml.py", "json.py", "sitecustomize.py"):
            (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        inventory, _ = attached()
        assert inventory.source == "nvml"
        assert not (tmp_path / "ran").exists()


OLDER = """
import pynvml
for name in [name for name in dir(pynvml) if name.endswith("RunningProcesses_v2")]:
    delattr(pynvml, name)
from fgsched.gpus.nvidia.driver import Driver
for reading in Driver().reading().values():
    print([process.pid for process in reading.processes], reading.error)
"""


def test_lists_that_neither_driver_nor_package_have_are_empty(driver):
    """Early packages of 12.535 have no second edition of these calls, and a driver may have no third."""
    words = [sys.executable, "-c", OLDER]
    done = subprocess.run(words, env={**os.environ}, capture_output=True, text=True, check=False)
    assert (done.stderr, "[7, 8] " in done.stdout.splitlines()) == ("", True)


def test_a_host_without_driver_has_no_cards_and_says_why(attached, monkeypatch):
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    inventory, sampler = attached({})
    if inventory.source == "nvml":
        pytest.skip("this host has a driver")
    assert inventory == Inventory(
        gpus=(), source="none", note="the driver's library libnvidia-ml.so.1 was not found", failed=True
    )
    assert look(sampler) == GpuAnswer(want=READING, error=inventory.note)


def test_no_process_is_started_where_no_card_is_wanted():
    inventory, sampler = attach(Config(), {"FG_DEVICES": "none"})
    assert inventory == Inventory(gpus=(), source="none", note="GPUs are switched off by the settings")
    assert look(sampler) == GpuAnswer(want=READING)
    sampler.close()


def test_a_choice_without_a_word_from_anybody_is_all_of_the_driver():
    assert choose("auto", {}) == Selection()
