"""The variables of a job, and those of Slurm beside them."""

import pytest
from msgspec.structs import replace

from builders import a_demand, a_job
from fgsched.domain.job import Hold, Request
from fgsched.domain.states import JobState
from fgsched.gpus.nvidia import FACTS
from fgsched.lifecycle.enforcement import MountPlan
from fgsched.lifecycle.jobvariables import translated, words_of
from fgsched.lifecycle.launchspec import AssignedGpu, LaunchContext, variables

SITE = LaunchContext(
    vendor=FACTS, host="node", run="/run/fg", hook="", tmp="/tmp", kill_wait=30, become_user=False
)


def slurm_of(*, share=0, **more):
    gpus = {"gpus": 2} if share else {}
    request = Request(
        name="train", demand=a_demand(share, cpus=8, host_memory=2**30, **gpus), slurm_env=True, **more
    )
    job = a_job(7, share=share or 1, state=JobState.RUNNING, request=request, partition="gpu")
    given = [
        AssignedGpu(hold=job.holds[0].__class__(gpu=index, share=share, memory=2**30), uuid=f"GPU-{index}")
        for index in ((3, 5) if share else ())
    ]
    found = variables(job, given, site=SITE, tmpdir="/tmp/7", error_file="/e")
    return {name: text for name, text in found.items() if not name.startswith(("FG_", "CUDA_"))}


BARE = {
    "SLURM_CLUSTER_NAME": "fgsched",
    "SLURM_CPUS_ON_NODE": "8",
    "SLURMD_NODENAME": "node",
    "SLURM_GTIDS": "0",
    "SLURM_JOBID": "7",
    "SLURM_JOB_CPUS_PER_NODE": "8",
    "SLURM_JOB_GID": "1",
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_NODELIST": "node",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_START_TIME": "1",
    "SLURM_JOB_END_TIME": "31536001",
    "SLURM_OOM_KILL_STEP": "0",
    "SLURM_JOB_UID": "1",
    "SLURM_JOB_USER": "ann",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "1",
    "SLURM_NODEID": "0",
    "SLURM_NODELIST": "node",
    "SLURM_PRIO_PROCESS": "0",
    "SLURM_PROCID": "0",
    "SLURM_SUBMIT_DIR": "/",
    "SLURM_SUBMIT_HOST": "node",
    "SLURM_TMPDIR": "/tmp/7",
    "SLURM_TOPOLOGY_ADDR": "node",
    "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
    "TMPDIR": "/tmp/7",
}


def test_a_container_of_a_job_gets_the_hook_from_the_directory_of_the_attempt():
    site = replace(SITE, hook="/opt/libfgshim.so", containers=("APPTAINER",))
    job = a_job(7, share=5000, state=JobState.RUNNING, tier="shim")
    given = [AssignedGpu(hold=hold, uuid="GPU-0") for hold in job.holds]
    found = variables(job, given, site=site, tmpdir="/tmp/7", error_file="/e")
    assert found["APPTAINERENV_LD_PRELOAD"] == "/run/fg/job/7.1/libfgshim.so"


def test_a_batch_script_has_the_variables_that_slurm_sets_and_no_others():
    assert slurm_of(tasks=2) == BARE


def test_a_job_with_gpus_has_their_indices_under_slurms_names():
    gpus = {"SLURM_JOB_GPUS": "3,5", "SLURM_GPUS_ON_NODE": "2"}
    assert slurm_of(tasks=2, share=5000) == BARE | gpus | {
        "GPU_DEVICE_ORDINAL": "3,5",
        "ROCR_VISIBLE_DEVICES": "3,5",
    }


def test_a_job_on_simulated_gpus_learns_where_to_write_its_load():
    job = a_job(7, state=JobState.RUNNING, attempt=2, started_at=1000.0)
    given = [AssignedGpu(hold=Hold(gpu=0, share=5000, memory=1 << 30), uuid="GPU-a")]
    site = replace(SITE, simulates=True)
    found = variables(job, given, site=site, tmpdir="/tmp/7", error_file="/e")
    assert found["FG_SIM_LOAD"] == "/run/fg/job/7.2/load"
    plan = MountPlan(how="root")
    system = replace(site, become_user=True, mounts=plan)
    mounted = replace(job, mounts="preload", tier="shim")
    found = variables(mounted, given, site=system, tmpdir="/tmp/7", error_file="/e")
    assert found["FG_SIM_LOAD"] == "/run/fg/job/7.2/steps/load"
    assert "FG_SIM_LOAD" not in variables(job, [], site=site, tmpdir="/tmp/7", error_file="/e")
    assert "FG_SIM_LOAD" not in variables(job, given, site=SITE, tmpdir="/tmp/7", error_file="/e")


WHOLE_GPUS = [(1, "GPU-b"), (3, "GPU-d")]
UNORDERED = [(3, "GPU-d"), (1, "GPU-b")]
INSTANCES = [(101, "MIG-a"), (102, "MIG-b")]


@pytest.mark.parametrize(
    ("gpus", "hooked", "others", "words"),
    [
        (WHOLE_GPUS, True, "closed", ("0", "1")),
        (WHOLE_GPUS, True, "open", ("0", "1")),
        (UNORDERED, True, "open", ("0", "1")),  # positions, as NVML has them under the hook
        (WHOLE_GPUS, False, "open", ("1", "3")),
        (WHOLE_GPUS, False, "closed", ("0", "1")),
        (UNORDERED, False, "closed", ("1", "0")),  # the driver counts what it can open
        ([(0, "GPU-a")], True, "open", ("0",)),
        ([(0, "GPU-a")], False, "open", ("0",)),
        (INSTANCES[:1], True, "closed", ("0",)),
        (INSTANCES, True, "closed", ("MIG-a", "MIG-b")),
        (INSTANCES[:1], False, "closed", ("MIG-a",)),
        ([], True, "open", ()),
    ],
)
def test_numbers_select_the_gpus_of_a_job_and_uuids_several_instances(gpus, hooked, others, words):
    assert words_of(gpus, "numbers", hooked=hooked, other_nodes=others) == words
    uuids = tuple(uuid for _, uuid in gpus)
    assert words_of(gpus, "uuids", hooked=hooked, other_nodes=others) == uuids


def test_words_of_a_job_are_translated_and_all_others_kept():
    job = {"FG_GPU_DEVICES": "0,1", "FG_GPU_UUIDS": "GPU-b,GPU-d", "FG_JOB_GPUS": "1,3"}
    for words, uuids, indices in (
        ("0", "GPU-b", "1"),
        ("1, 0", "GPU-d,GPU-b", "3,1"),
        ("GPU-b", "GPU-b", "GPU-b"),
        ("7", "7", "7"),
        ("", "", ""),
    ):
        assert translated(words, job, "FG_GPU_UUIDS") == uuids
        assert translated(words, job, "FG_JOB_GPUS") == indices
    assert translated("1,3", {}, "FG_GPU_UUIDS") == "1,3"


@pytest.mark.parametrize(
    ("tier", "mounts", "setting", "words"),
    [
        ("shim", "", "numbers", "0,1"),
        ("driver", "preload,devices", "numbers", "0,1"),
        ("watchdog", "", "numbers", "3,5"),
        ("none", "devices", "numbers", "0,1"),
        ("shim", "", "uuids", "GPU-3,GPU-5"),
        ("none", "", "uuids", "GPU-3,GPU-5"),
    ],
)
def test_every_level_of_enforcement_has_numbers_unless_the_site_wants_uuids(tier, mounts, setting, words):
    job = a_job(7, state=JobState.RUNNING, tier=tier, mounts=mounts)
    given = [
        AssignedGpu(hold=Hold(gpu=index, share=5000, memory=1 << 30), uuid=f"GPU-{index}") for index in (3, 5)
    ]
    site = replace(SITE, visible_devices=setting)
    told = variables(job, given, site=site, tmpdir="/tmp/7", error_file="/e")
    assert told["CUDA_VISIBLE_DEVICES"] == told["FG_GPU_DEVICES"] == words
    assert (told["FG_JOB_GPUS"], told["FG_GPU_UUIDS"]) == ("3,5", "GPU-3,GPU-5")
