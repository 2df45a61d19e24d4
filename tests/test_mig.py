"""MIG instances: found, asked for, placed, given to jobs and shown to them."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from msgspec import structs

from awaiting import until
from builders import GIB, LIMITS, a_demand, a_gpu, a_job
from driver_host import hosting
from fakecuda import Card, instance
from fakecuda.job import make_job
from fgsched.accounting.records import Owner, OwnerUse
from fgsched.cli.doctor import check_mig
from fgsched.config.load import Config
from fgsched.controller.fencing import _variables
from fgsched.controller.gpustate import settled
from fgsched.domain.errors import BadUsage, Refused
from fgsched.domain.job import WHOLE, Gpu, GpuState, Hold, MigInstance, Reading
from fgsched.domain.states import JobState
from fgsched.domain.waiting import Shortfall
from fgsched.gpus import READING, discover, mig, simulated
from fgsched.gpus.backend import GpuReport
from fgsched.gpus.nvidia import FACTS
from fgsched.gpus.nvidia.nodes import nodes, nodes_of
from fgsched.gpus.sampler import _Selected
from fgsched.gpus.selection import Selection
from fgsched.lifecycle.enforcement import MountPlan, check_tier, tier_of
from fgsched.lifecycle.launchspec import AssignedGpu, LaunchContext, variables
from fgsched.reports.users import groups_of
from fgsched.scheduling.placement import is_of_type, is_suitable, place, rooms
from fgsched.submission.options import several_instances
from fgsched.views.host import gres_by_type, gres_type

MIXED = "sim:1x80G:H100,1x40G:A100-SXM4-40GB:mig=3g.20gb/2x1g.5gb"
ONLY = "sim:1x40G:A100:mig=3g.20gb/2x1g.5gb"


def found(source, **config):
    return discover(Config(**config), {"FG_DEVICES": source}).gpus


def placed(demand, source=MIXED, held=(), **config):
    """The indices of the devices that a demand gets; None if it gets none."""
    free = rooms(found(source, **config), [(hold, False) for hold in held], {})
    got = place(demand, free, LIMITS)
    return None if isinstance(got, Shortfall) else [hold.gpu for hold in got]


def named(gpu_type, **more):
    return a_demand(WHOLE, gpu_type=gpu_type, **more)


# What there is


def test_instances_take_the_place_of_their_card():
    gpus = found(MIXED)
    assert [(gpu.index, gpu.profile, gpu.total // GIB, gpu.is_unit, gpu.is_named) for gpu in gpus] == [
        (0, "", 80, False, False),
        (110, "3g.20gb", 20, True, True),
        (111, "1g.5gb", 5, True, True),
        (112, "1g.5gb", 5, True, True),
    ]
    place = MigInstance(
        profile="3g.20gb", gpu=1, parent=simulated.uuid(1), gpu_instance=1, compute_instance=0
    )
    assert (gpus[1].mig, gpus[1].model) == (place, "A100-SXM4-40GB MIG 3g.20gb")
    assert simulated.is_simulated(gpus[1].uuid)


@pytest.mark.parametrize("layout", ["4g.20gb/4g.20gb", "3g.20gb/3g.40gb", "8g.40gb", "3g", "0x1g.5gb", ""])
def test_a_layout_that_no_card_has_is_refused(layout):
    with pytest.raises(BadUsage, match="sim:"):
        simulated.parse(f"sim:1x40G:A100:mig={layout}")


@pytest.mark.parametrize(
    ("devices", "left"),
    [
        ("1,", [110, 111, 112]),
        ("0,111", [0, 111]),
        (simulated.uuid(1), [110, 111, 112]),
        ("MIG-51570000-0000-4000-8000-00000000006f", [111]),
    ],
)
def test_an_administrator_selects_a_card_or_single_instances(devices, left):
    gpus = discover(Config(), {"FG_DEVICES": MIXED, "CUDA_VISIBLE_DEVICES": devices.removesuffix(",")}).gpus
    assert [gpu.index for gpu in gpus] == left


# Asking for them


@pytest.mark.parametrize(
    ("gpu_type", "fits"),
    [
        ("3g.20gb", [110]),
        ("mig-3g.20gb", [110]),
        ("a100_3g.20gb", [110]),
        ("a100-sxm4-40gb_1g.5gb", [111, 112]),
        ("1g", [111, 112]),
        ("MIG", [110, 111, 112]),
        ("a100&3g.20gb|1g.5gb", [110, 111, 112]),
        ("h100", [0]),
        ("h100_3g.20gb", []),
        ("a100", []),
        ("40gb", []),
        ("g.20gb", []),
        ("1c.3g.20gb", []),
    ],
)
def test_an_instance_is_meant_only_by_its_profile(gpu_type, fits):
    assert [gpu.index for gpu in found(MIXED) if is_of_type(gpu, gpu_type)] == fits


def test_a_profile_is_found_without_its_engines_and_not_within_another_one():
    gpu = a_gpu(100, model="A100 MIG 1c.1g.10gb+me", mig=MigInstance(profile="1c.1g.10gb+me"), is_named=True)
    assert [is_of_type(gpu, word) for word in ("1c.1g.10gb", "1g.10gb", "1c.1g")] == [True, False, True]


@pytest.mark.parametrize(
    ("demand", "devices"),
    [
        (a_demand(WHOLE), [0]),
        (a_demand(5000), [0]),
        (named("3g.20gb"), [110]),
        (named("mig"), [111]),
        (named("1g.5gb", gpus=2), [111, 112]),
        (named("mig", gpus=3), [110, 111, 112]),
        (named("mig|h100", gpus=3), [110, 111, 112]),
        (named("1g.5gb", memory=5 * GIB), [111]),
        (named("1g.5gb", memory=6 * GIB), None),
        (a_demand(5000, gpu_type="3g.20gb"), None),
        (a_demand(memory=4 * GIB), [111]),
        (a_demand(memory=8 * GIB), [110]),
        (a_demand(memory=24 * GIB), [0]),
        (a_demand(WHOLE, memory=4 * GIB), [0]),
        (a_demand(5000, memory=4 * GIB), [0]),
        (a_demand(WHOLE, gpus=2), None),
    ],
)
def test_a_request_gets_the_smallest_instance_that_it_means(demand, devices):
    assert placed(demand) == devices


def test_an_instance_is_held_as_a_whole():
    free = rooms(found(MIXED), [(Hold(gpu=111, share=WHOLE, memory=5 * GIB), False)], {})
    assert place(a_demand(memory=GIB), free, LIMITS) == (Hold(gpu=112, share=WHOLE, memory=5 * GIB),)


def test_where_all_gpus_are_instances_a_gpu_is_one_of_them():
    assert placed(a_demand(WHOLE), ONLY) == [101]
    assert placed(named("a100"), ONLY) == [101]
    assert placed(a_demand(5000), ONLY) is None


def test_a_card_in_mig_mode_without_instances_is_no_gpu_that_a_request_could_mean():
    instances = simulated.parse(ONLY)
    empty = a_gpu(1, state=GpuState.DOWN, note=mig.NO_INSTANCES)
    assert [gpu.is_named for gpu in Selection().of([*instances, empty])] == [False] * 4
    assert [gpu.is_named for gpu in Selection().of([*instances, a_gpu(1)])] == [False, True, True, True]


def test_a_site_may_share_instances():
    gpu = found(MIXED, share_instances=True)[1]
    assert is_suitable(gpu, a_demand(5000, gpu_type="3g.20gb"))
    assert not is_suitable(gpu, a_demand(5000))
    half = Hold(gpu=110, share=5000, memory=10 * GIB)
    assert placed(a_demand(5000, gpu_type="3g.20gb"), held=[half], share_instances=True) == [110]


def test_slurm_names_an_instance_by_model_and_profile():
    listed = "gpu:h100:1,gpu:a100-sxm4-40gb_3g.20gb:1,gpu:a100-sxm4-40gb_1g.5gb:2"
    assert gres_by_type(found(MIXED)) == listed
    assert gres_by_type(found("sim:2x80G:H100")) == "gpu:h100:2"
    types = dict.fromkeys(map(gres_type, found(MIXED)))
    assert [placed(named(name)) for name in types] == [[0], [110], [111]]


# When the layout changes while no controller runs


def an_instance(index, letter):
    place = MigInstance(profile="1g.5gb", gpu=0)
    model = "A100 MIG 1g.5gb"
    return Gpu(index=index, uuid=f"MIG-{letter}", mig=place, model=model, total=5 * GIB, is_unit=True)


def remains(gpus, known, held=()):
    return [(gpu.index, gpu.uuid, gpu.state.value) for gpu in settled(gpus, known, held)]


def test_an_instance_keeps_the_index_that_the_queue_knows():
    known = [a_gpu(0), *(an_instance(*one) for one in ((100, "a"), (101, "b"), (102, "c")))]
    now = [a_gpu(0), an_instance(100, "a"), an_instance(101, "c"), an_instance(102, "d")]
    first, *_ = known
    assert remains(known, []) == remains(known, known) == [(one.index, one.uuid, "ok") for one in known]
    left = [(0, first.uuid, "ok"), (100, "MIG-a", "ok")]
    assert remains(now, known) == [*left, (102, "MIG-c", "ok"), (103, "MIG-d", "ok")]
    held = [*left, (101, "MIG-b", "down"), (102, "MIG-c", "ok"), (103, "MIG-d", "ok")]
    assert remains(now, known, {0, 101, 102}) == held


@pytest.mark.parametrize(
    ("parent", "readings", "layouts", "gone"),
    [
        ("GPU-a", {"GPU-a": "MIG is on"}, {"GPU-a": ("MIG-b",)}, True),
        ("GPU-a", {"GPU-a": ""}, {}, True),
        ("GPU-a", {"GPU-a": "it does not answer"}, {}, False),
        ("GPU-a", {}, {}, False),
        ("", {"GPU-a": "MIG is on", "GPU-c": ""}, {"GPU-a": ("MIG-b",)}, True),
        ("", {"GPU-a": "it does not answer", "GPU-c": ""}, {}, False),
    ],
)
def test_an_instance_is_gone_only_if_its_card_says_so(parent, readings, layouts, gone):
    shown = {uuid: Reading(gpu=0, used=0, error=error) for uuid, error in readings.items()}
    report = GpuReport(want=READING, readings=shown, layouts=layouts)
    assert mig.is_gone(MigInstance(profile="1g.5gb", parent=parent), report) is gone


# What the doctor says


def test_the_doctor_prints_the_commands_that_make_instances():
    steps = (
        "nvidia-smi mig -i {0} -lgip; nvidia-smi mig -i {0} -cgi PROFILE,… -C; then restart the controller."
    )
    turn = "As root, without jobs on the card: nvidia-smi -i 0 -mig 1; "
    instances = "GPU 1 has 1 × 3g.20gb, 2 × 1g.5gb"
    assert check_mig(found(MIXED)) == (
        True,
        f"{instances}; GPU 0 can have MIG instances",
        turn + steps.format(0),
    )
    assert check_mig(found("sim:1x16G:V100")) == (True, "no GPU has MIG instances", "")
    empty = a_gpu(2, state=GpuState.DOWN, note=mig.NO_INSTANCES)
    text = "GPU 2 is in MIG mode and has no instances"
    assert check_mig([empty]) == (False, text, f"As root, without jobs on the card: {steps.format(2)}")


def test_the_instances_of_a_lost_card_are_lost():
    seen = _Selected(Selection())
    gpus = found(ONLY)
    seen.watch(gpus)
    lost = Reading(gpu=0, used=0, error="GPU is lost", is_lost=True)
    answer = seen.interpret(GpuReport(want=READING, readings={simulated.uuid(0): lost}))
    assert answer.readings == {gpu.index: structs.replace(lost, gpu=gpu.index) for gpu in gpus}


def test_a_fence_on_one_device_has_number_0_and_on_several_instances_their_uuids(tmp_path):
    _, first, second, *_ = gpus = found(MIXED)
    for chosen, words in (
        ([gpus[0]], "0"),
        ([first], "0"),
        ([first, second], f"{first.uuid},{second.uuid}"),
    ):
        held = [(gpu, Hold(gpu=gpu.index, share=WHOLE, memory=GIB)) for gpu in chosen]
        told = _variables(tmp_path, held, "numbers", FACTS)
        assert (told["CUDA_VISIBLE_DEVICES"], told["FG_GPU_DEVICES"]) == (words, words)
        assert _variables(tmp_path, held, "uuids", FACTS)["CUDA_VISIBLE_DEVICES"] == told["FG_GPU_UUIDS"]


# What is not measured


def test_the_efficiency_of_users_leaves_instances_out():
    ann = Owner(uid=1, user="ann")
    on_gpu = OwnerUse(at=0, owner=ann, uuid="GPU-a", charged=50.0, used=25.0)
    on_instance = OwnerUse(at=0, owner=ann, uuid="MIG-a", charged=100.0)
    facts = SimpleNamespace(gpus=(), uses=(on_gpu, on_instance), jobs=(), waits=(), unused=())
    (group,) = groups_of(facts, "user")
    assert (group.charged, group.used, group.measured) == (150.0, 25.0, 50.0)


def test_a_request_for_several_instances_is_told_that_a_process_has_one():
    assert "CUDA shows a process only the first" in several_instances(named("a100_1g.5gb", gpus=2))
    assert "the job gets 3 MIG instances" in several_instances(named("mig", gpus=3))
    assert [several_instances(one) for one in (named("mig"), named("a100", gpus=2))] == ["", ""]


# What a job on one is told, and how it is held


def test_the_level_follows_from_the_instances():
    whole, single, double = (
        a_gpu(0),
        a_gpu(100, mig=MigInstance(profile="1g.5gb")),
        a_gpu(101, mig=MigInstance(profile="1c.2g.10gb", is_alone=False)),
    )
    assert [
        tier_of("", "driver", [(whole, WHOLE)]),
        tier_of("", "driver", [(single, WHOLE)]),
        tier_of("driver", "driver", [(single, WHOLE)]),
        tier_of("", "driver", [(single, 5000)]),
        tier_of("", "shim", [(double, WHOLE)]),
        tier_of("shim", "driver", [(single, WHOLE)]),
        tier_of("watchdog", "shim", [(single, WHOLE)]),
    ] == ["driver", "mig", "mig", "shim", "shim", "shim", "watchdog"]
    with pytest.raises(Refused, match="follows from the device"):
        check_tier("mig", ("mig", "shim"), "shim")


def test_a_job_is_told_the_uuid_of_its_instance():
    job = a_job(1, state=JobState.RUNNING)
    hold = Hold(gpu=110, share=WHOLE, memory=20 * GIB)
    site = LaunchContext(
        vendor=FACTS, host="h", run="/r", hook="/h", tmp="/t", kill_wait=1, become_user=False
    )
    told = variables(job, [AssignedGpu(hold=hold, uuid="MIG-a")], site=site, tmpdir="/t", error_file="e")
    about = {name: told[name] for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "FG_JOB_GPUS")}
    assert about == {
        "CUDA_VISIBLE_DEVICES": "MIG-a",
        "NVIDIA_VISIBLE_DEVICES": "MIG-a",
        "FG_JOB_GPUS": "110",
    }


def a_driver(folder, *instances):
    """The driver's files of a host whose card has the device node 3; (gi, ci, capability) of each."""
    about, devices = folder / "proc", folder / "dev"
    (devices / "nvidia-caps").mkdir(parents=True)
    for gi, ci, number in instances:
        place = about / "capabilities/gpu3/mig" / f"gi{gi}"
        (place / f"ci{ci}").mkdir(parents=True)
        (place / "access").write_text(f"DeviceFileMinor: {number}\nDeviceFileMode: 292\n")
        (place / f"ci{ci}/access").write_text(f"DeviceFileMinor: {number + 1}\nDeviceFileMode: 292\n")
        for minor in (number, number + 1):
            (devices / f"nvidia-caps/nvidia-cap{minor}").touch()
    (about / "gpus/0000:1b:00.0").mkdir(parents=True)
    (about / "gpus/0000:1b:00.0/information").write_text("Device Minor: \t 3\n")
    for name in ("nvidia3", "nvidiactl"):
        (devices / name).touch()
    return {"about": about, "devices": devices}


def test_a_job_may_open_its_card_and_the_capabilities_of_its_instance_alone(tmp_path):
    host = a_driver(tmp_path, (1, 0, 12), (2, 0, 21))
    gpus = [
        a_gpu(
            index,
            pci="00000000:1B:00.0",
            mig=MigInstance(profile="3g.20gb", gpu_instance=gi, compute_instance=0),
        )
        for index, gi in ((100, 1), (101, 2))
    ]
    plan = MountPlan(how="root", nodes=nodes(**host), nodes_of=nodes_of(gpus, **host))
    at = str(host["devices"])
    assert plan.nodes_of[gpus[0].uuid] == tuple(
        f"{at}/{name}" for name in ("nvidia3", "nvidia-caps/nvidia-cap12", "nvidia-caps/nvidia-cap13")
    )
    assert plan.of([gpus[0].uuid], hooked=True) == "preload,devices"
    assert plan.closed([gpus[0].uuid]) == tuple(f"{at}/nvidia-caps/nvidia-cap{minor}" for minor in (21, 22))


# On the fake driver


pytest.importorskip("pynvml")
CARDS = (
    Card("FAKE A100", 40 * GIB, context=256 << 20),
    Card("FAKE H100", 80 * GIB, context=256 << 20),
    instance(0, "3g.20gb", 20 * GIB, 1, context=256 << 20),
    instance(0, "1g.5gb", 5 * GIB, 7),
    instance(0, "1c.2g.10gb", 10 * GIB, 3, 0),
    instance(0, "1c.2g.10gb", 10 * GIB, 3, 1),
)
SEEN = """
import json, pynvml as nvml
nvml.nvmlInit()
def parts(card):
    found = []
    for at in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, at))
        except nvml.NVMLError_NotFound:
            pass
    return found
def name(handle):
    return nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetMemoryInfo(handle).total >> 30
def about(card):
    return nvml.nvmlDeviceGetIndex(card), name(card), [name(part) for part in parts(card)]
count = nvml.nvmlDeviceGetCount()
print(json.dumps([about(nvml.nvmlDeviceGetHandleByIndex(at)) for at in range(count)]))
"""


@pytest.mark.compiler
def test_a_job_sees_its_instance_and_no_other(driver, tmp_path):
    driver.gpus(*CARDS)
    bare = {**os.environ, **driver.env}
    own = make_job(driver, tmp_path / "job", [(CARDS[2], 20 * GIB)]).environment()

    def seen(environ):
        return json.loads(
            subprocess.run([sys.executable, "-c", SEEN], env=environ, check=True, capture_output=True).stdout
        )

    assert [(index, len(parts)) for index, _, parts in seen(bare)] == [(0, 4), (1, 0)]
    assert seen(own) == [[0, ["FAKE A100", 20], [["FAKE A100 MIG 3g.20gb", 20]]]]


@pytest.mark.compiler
def test_the_hook_holds_a_process_to_its_part_of_an_instance(driver, tmp_path):
    driver.gpus(*CARDS)
    job = make_job(driver, tmp_path / "job", [(CARDS[2], 8 * GIB)])
    said = job.run("total", "alloc 7G", "alloc 2G", CUDA_VISIBLE_DEVICES=CARDS[2].uuid)
    assert [line[:2] for line in said] == [(0, 8 * GIB), (0,), (2,)]
    assert job.region().gpus[0].uuid == CARDS[2].uuid


@pytest.fixture(scope="module")
def host(built_driver, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mig")
    with hosting(folder / "home", built_driver.at(folder / "cards"), *CARDS) as one:
        yield one


@pytest.mark.compiler
class TestController:
    def test_it_lists_the_instances(self, host):
        gpus = host.run("fginfo", "--json").json["gpus"]
        assert [(gpu["index"], gpu["model"], gpu["state"], gpu["total"] // GIB) for gpu in gpus] == [
            (1, "FAKE H100", "idle", 80),
            (100, "FAKE A100 MIG 3g.20gb", "idle", 20),
            (101, "FAKE A100 MIG 1g.5gb", "idle", 5),
            (102, "FAKE A100 MIG 1c.2g.10gb", "idle", 5),
            (103, "FAKE A100 MIG 1c.2g.10gb", "idle", 5),
        ]

    def test_a_job_runs_on_the_instance_that_it_names(self, host):
        number, pipes = host.live("--gpus=3g.20gb:1")
        pipes.until_ready()
        assert pipes.say("total")[:2] == (0, 20 * GIB)
        assert pipes.say("alloc 12G")[0] == 0
        shown = host.run("fgctl", "show", "job", str(number)).out
        assert f"GpuUuid={CARDS[2].uuid}\n" in shown
        assert "GpuIdx=100  GpuFraction=1  GpuMem=20480M" in shown
        assert "Enforce=mig " in shown
        gpu = host.run("fgctl", "show", "gpu", "100").out
        assert f"Profile=3g.20gb  Card=0  CardUuid={CARDS[0].uuid}\n" in gpu
        assert "Util=Unknown" in gpu
        (line,) = [row for row in host.run("fginfo", "-l").lines if row.startswith("100 ")]
        assert line.split()[-4:] == ["mig", "environment", "3g.20gb", "0"]
        assert host.run("fgcancel", str(number)).status == 0

    @pytest.mark.parametrize(
        ("options", "answer"),
        [
            (["--gpus=3g.20gb:0.5"], "these GPUs are allocated as a whole: 3g.20gb\n"),
            (["--gpus=4g.20gb:1"], "no GPU of type '4g.20gb' in this host\n"),
            (["--gpus=1g.5gb:1", "--gpu-mem=8G"], "8192M asked of a GPU, 5120M on GPU 101"),
            (["--gpus=1g.5gb:2"], "this host has 1 1g.5gb GPU\n"),
            (["--tier=mig", "--gpus=1"], "--tier=mig: this level follows from the device\n"),
        ],
    )
    def test_a_request_that_no_instance_fulfils_is_refused(self, host, options, answer):
        assert answer in host.run("fgsub", *options, "--wrap", "true").err

    def test_a_job_is_told_its_instances(self, host):
        told = 'echo "$CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES $FG_ENFORCE" >told'
        for options, instances, level in (
            (["--gpu-mem=4G"], [3], "mig"),
            (["--gres=gpu:mig-1c.2g.10gb:2"], [4, 5], "shim"),
        ):
            assert host.run("fgsub", *options, "--wait", "--wrap", told).status == 0
            uuids = ",".join(CARDS[at].uuid for at in instances)
            words = uuids if len(instances) > 1 else "0"
            assert (host.path / "told").read_text() == f"{words} {uuids} {level}\n"

    def test_a_changed_layout_stops_new_jobs_and_ends_those_of_a_destroyed_instance(self, host):
        lost, pipes = host.live("--gpus=1g.5gb:1", "--no-requeue")
        pipes.until_ready()
        kept, other = host.live("--gpus=3g.20gb:1")
        other.until_ready()

        def states():
            return {
                gpu["index"]: (gpu["state"], gpu["note"]) for gpu in host.run("fginfo", "--json").json["gpus"]
            }

        def shows(expected):
            until(host.path, lambda: states() == expected)

        suspect, idle = ("suspect", mig.CHANGED), ("idle", None)
        host.driver.set(3, gone=1)
        shows({1: idle, 100: suspect, 101: ("down", mig.GONE), 102: suspect, 103: suspect})
        assert host.run("fgwait", str(lost)).status != 0
        shown = host.run("fgctl", "show", "job", str(lost)).out
        assert "JobState=NODE_FAIL  Reason=GpuLost" in shown
        assert f"ended by the watchdog: GPU 101: {mig.GONE}" in shown
        host.driver.set(3, gone=0)
        shows({1: idle, 100: ("alloc", None), 101: idle, 102: idle, 103: idle})
        assert host.run("fgcancel", str(kept)).status == 0
