"""What Slurm allocates, sets and prints for an option, where programs depend on it."""

import os

import pytest

from fgsched.domain.errors import BadUsage
from fgsched.domain.text import word_list
from fgsched.domain.times import parse_duration
from fgsched.domain.units import SubmitContext
from fgsched.lifecycle.launchspec import _OF_BATCH_SHELL as OF_BATCH_SHELL
from fgsched.lifecycle.launchspec import _SLURM as TWINS
from fgsched.slurm.scontrol import _entity as entity
from fgsched.slurm.srun import step_of
from fgsched.slurm.step import StepRefused, of_step, of_task
from fgsched.submission import options
from fgsched.submission.checks import Process
from fgsched.submission.prepare import SubmissionPreparer
from fgsched.submission.request import warnings
from fgsched.views.choices import states

SITE = SubmitContext(
    cpus=64, partition="main", partitions=("main", "half"), partition_gpus={"main": 8, "half": 4}
)

TASKS = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE")


def submission(*argv, called="sbatch", site=SITE):
    """Return the request and the variables of Slurm of a wrapped job."""
    settings, words = options.read([*argv, "--wrap=true"])
    process = Process({"PATH": os.environ["PATH"]}, "/tmp")
    job = SubmissionPreparer(process, site=site, name=called).prepare(settings, words).submission
    return job.request, {name: text for name, text in job.environment.items() if name.startswith("SLURM_")}


@pytest.mark.parametrize(
    ("argv", "gpus", "cpus"),
    [
        (("--exclusive",), 8, 64),
        (("--exclusive", "-c", "4"), 8, 64),
        (("--exclusive", "--gres=gpu:2"), 8, 64),
        (("--exclusive", "--gpus=0.5"), 8, 64),
        (("--exclusive", "-p", "half"), 4, 64),
        (("--exclusive=user", "--gpus=1"), 1, 64),
        (("--gpus=1", "-c", "4"), 1, 4),
    ],
)
@pytest.mark.parametrize("called", ["sbatch", "fgsub"])
def test_an_exclusive_job_has_all_cpus_and_gpus_whatever_else_it_requests(argv, gpus, cpus, called):
    demand = submission(*argv, called=called)[0].demand
    assert (demand.gpus, demand.cpus) == (gpus, cpus)
    assert demand.share == 10_000


@pytest.mark.parametrize(
    ("argv", "cpus"),
    [
        (("--exclusive", "-c", "4"), 4),
        (("--exclusive", "-c", "4", "-n", "2"), 4),
        (("--exclusive", "-n", "2"), 1),
        (("--exclusive",), 1),
        (("--exclusive", "--cpus-per-gpu", "2"), 0),
        (("-c", "4"), 0),
    ],
)
def test_an_exclusive_job_keeps_the_cpus_of_each_task(argv, cpus):
    assert submission(*argv)[0].task_cpus == cpus


def test_an_exclusive_job_of_a_host_without_gpus_has_none():
    assert submission("--exclusive", site=SubmitContext(cpus=4))[0].demand.gpus == 0


@pytest.mark.parametrize(
    ("argv", "variables"),
    [
        (("--gres=gpu:4",), {}),
        (("-n", "4"), {"SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_TASKS_PER_NODE": "4"}),
        (
            ("--ntasks-per-node=2",),
            {**dict.fromkeys(TASKS, "2"), "SLURM_NTASKS_PER_NODE": "2"},
        ),
        (
            ("--gpus=2", "--ntasks-per-gpu=2"),
            {**dict.fromkeys(TASKS, "4"), "SLURM_NTASKS_PER_GPU": "2", "SLURM_GPUS": "2"},
        ),
        (("-c", "8"), {"SLURM_CPUS_PER_TASK": "8", "SLURM_TRES_PER_TASK": "cpu=8"}),
        (
            ("--exclusive", "-c", "4"),
            {"SLURM_CPUS_PER_TASK": "4", "SLURM_TRES_PER_TASK": "cpu=4", "SLURM_TASKS_PER_NODE": "16"},
        ),
        (
            ("--gpus-per-task=1",),
            {"SLURM_TRES_PER_TASK": "gres/gpu=1", "SLURM_TRES_BIND": "gres/gpu:per_task:1"},
        ),
        (("--gpu-bind=single:1",), {"SLURM_TRES_BIND": "gres/gpu:single:1"}),
        (
            ("--gpus=2", "--cpus-per-gpu=4"),
            {"SLURM_GPUS": "2", "SLURM_CPUS_PER_GPU": "4", "SLURM_TASKS_PER_NODE": "8"},
        ),
        (("--mem=4G",), {"SLURM_MEM_PER_NODE": "4096"}),
        (("--mem=0",), {}),
        (("--mem-per-cpu=2G",), {"SLURM_MEM_PER_CPU": "2048"}),
        (("--open-mode=append",), {"SLURM_OPEN_MODE": "a"}),
    ],
)
def test_a_variable_of_an_option_is_there_only_if_the_option_was_given(argv, variables):
    assert submission(*argv)[1] == {"SLURM_TASKS_PER_NODE": "1"} | variables


NEVER = {  # variables of sbatch(1), salloc(1) and srun(1) of 24.11 that are never set, and the reason
    **dict.fromkeys(
        word_list(
            """SLURM_CPU_FREQ_REQ SLURM_DIST_PLANESIZE SLURM_GPU_FREQ SLURM_MEM_BIND SLURM_MEM_BIND_LIST
            SLURM_MEM_BIND_PREFER SLURM_MEM_BIND_SORT SLURM_MEM_BIND_TYPE SLURM_MEM_BIND_VERBOSE
            SLURM_PROFILE SBATCH_MEM_BIND SBATCH_MEM_BIND_LIST SBATCH_MEM_BIND_PREFER
            SBATCH_MEM_BIND_TYPE SBATCH_MEM_BIND_VERBOSE SBATCH_THREADS_PER_CORE SLURM_JOB_LICENSES"""
        ),
        "its option is ignored",
    ),
    **dict.fromkeys(("SLURM_GPUS_PER_SOCKET", "SLURM_HET_SIZE", "SLURM_CONTAINER_ID"), "refused"),
    **dict.fromkeys(("SLURM_GPU_BIND", "SLURM_OOMKILLSTEP", "SLURM_JOB_NODES"), "24.11 sets it neither"),
    **dict.fromkeys(
        ("SLURM_SRUN_COMM_PORT", "SLURM_STEP_LAUNCHER_PORT", "SRUN_DEBUG"),
        "the step has no launcher with a port",
    ),
    "SLURM_TASK_PID": "a process learns its id from the kernel",
    "SLURM_SHARDS_ON_NODE": "a shard is a part of a GPU",
    "SLURM_EXPORT_ENV": "a step has the environment of the script",
}
OF_SLURM = """
    SLURMD_NODENAME SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_COUNT SLURM_ARRAY_TASK_ID
    SLURM_ARRAY_TASK_MAX SLURM_ARRAY_TASK_MIN SLURM_ARRAY_TASK_STEP SLURM_CLUSTER_NAME
    SLURM_CONTAINER SLURM_CPUS_ON_NODE SLURM_CPUS_PER_GPU SLURM_CPUS_PER_TASK SLURM_DISTRIBUTION
    SLURM_GPUS SLURM_GPUS_ON_NODE SLURM_GPUS_PER_NODE SLURM_GTIDS SLURM_JOBID SLURM_JOB_ACCOUNT
    SLURM_JOB_CPUS_PER_NODE SLURM_JOB_DEPENDENCY SLURM_JOB_END_TIME SLURM_JOB_GPUS SLURM_JOB_ID
    SLURM_JOB_NAME SLURM_JOB_NODELIST SLURM_JOB_NUM_NODES SLURM_JOB_PARTITION SLURM_JOB_QOS
    SLURM_JOB_RESERVATION SLURM_JOB_START_TIME SLURM_LAUNCH_NODE_IPADDR SLURM_LOCALID
    SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_NNODES SLURM_NODEID SLURM_NODELIST
    SLURM_NPROCS SLURM_NTASKS SLURM_NTASKS_PER_GPU SLURM_NTASKS_PER_NODE SLURM_PRIO_PROCESS
    SLURM_PROCID SLURM_RESTART_COUNT SLURM_SRUN_COMM_HOST SLURM_STEPID SLURM_STEP_GPUS SLURM_STEP_ID
    SLURM_STEP_NODELIST SLURM_STEP_NUM_NODES SLURM_STEP_NUM_TASKS SLURM_STEP_TASKS_PER_NODE
    SLURM_SUBMIT_DIR SLURM_SUBMIT_HOST SLURM_TASKS_PER_NODE SLURM_TOPOLOGY_ADDR
    SLURM_TOPOLOGY_ADDR_PATTERN SLURM_TRES_PER_TASK SLURM_UMASK
"""


def test_each_variable_of_slurm_is_set_by_some_job_or_step_or_has_a_reason():
    binding = ["--cpu-bind=map_cpu:0", "--ntasks-per-core=1", "--ntasks-per-socket=1", "--threads-per-core=1"]
    step = step_of(["-c2", "--overcommit", *binding, "true"], {"FG_JOB_GPUS": "3"})
    variables = set(
        of_task(step, of_step(step, {"FG_JOB_ID": "7", "FG_JOB_NODELIST": "node"}, 0, ["0"]), 0, ["0"])
    )
    for argv in (
        ("-n2", "-c2", "--gpus=1", "--mem=1G", "--reservation=r", "--gpu-bind=none"),
        ("--ntasks-per-node=2", "--gpus-per-node=1", "--cpus-per-gpu=2", "--mem-per-cpu=1G"),
        ("--gpus=1", "--ntasks-per-gpu=1", "--mem-per-gpu=1G", "--container=/"),
    ):
        variables |= submission(*argv)[1].keys()
    variables |= OF_BATCH_SHELL.keys() | {twin for twins in TWINS.values() for twin in twins}
    assert sorted(set(OF_SLURM.split()) - variables) == []
    assert sorted(variables & NEVER.keys()) == []


def binding_variables(verbosity, kind, listed=""):
    return {
        "SLURM_CPU_BIND": f"{verbosity},{kind}{listed}",
        "SLURM_CPU_BIND_VERBOSE": verbosity,
        "SLURM_CPU_BIND_TYPE": kind,
        "SLURM_CPU_BIND_LIST": listed,
    }


@pytest.mark.parametrize(
    ("words", "environ", "gpus", "of_tasks"),
    [
        (("-n2", "--gpu-bind=single:1"), {}, None, ("0", "1")),
        (("-n4", "--gpu-bind=single:2"), {}, None, ("0", "0", "1", "1")),
        (("-n2", "--gpu-bind=verbose,map_gpu:1,0"), {}, None, ("1", "0")),
        (("-n2", "--gpu-bind=mask_gpu:0x2,3"), {}, None, ("1", "0,1")),
        (("-n2", "--gpu-bind=per_task:1"), {}, None, ("0", "1")),
        (("-n2", "--gpu-bind=closest"), {}, None, ("0,1", "0,1")),
        (("-n2",), {"SLURM_TRES_BIND": "gres/gpu:single:1"}, None, ("0", "1")),
        (("-n2",), {"SLURM_TRES_PER_TASK": "gres/gpu=1"}, 2, ("0", "1")),
        (
            ("-n2",),
            {"SLURM_TRES_PER_TASK": "gres/gpu=1", "SLURM_TRES_BIND": "gres/gpu:none"},
            2,
            ("0,1", "0,1"),
        ),
        (("-n2", "--tres-per-task=cpu=2,gres/gpu:a100=1"), {}, 2, ("0", "1")),
        (("--ntasks-per-gpu=1",), {"FG_JOB_GPUS": "3,5"}, None, ("0", "1")),
        (("-n2", "--gres=none"), {}, 0, ("", "")),
        (("-n2", "-G0"), {}, 0, ("", "")),
        (("--gres=gres/gpu:2",), {}, 2, ("0,1",)),
    ],
)
def test_a_task_sees_the_gpus_to_which_it_is_bound(words, environ, gpus, of_tasks):
    step = step_of([*words, "true"], environ)
    words_of_gpus = [] if step.gpus == 0 else ["0", "1"]
    base = of_step(step, {"SLURM_GPUS_ON_NODE": "2", "SLURM_STEP_GPUS": "3,5"}, 0, words_of_gpus)
    tasks = [of_task(step, base, task, words_of_gpus) for task in range(step.tasks)]
    assert step.gpus == gpus
    assert tuple(variables["CUDA_VISIBLE_DEVICES"] for variables in tasks) == of_tasks
    assert base.get("SLURM_GPUS_ON_NODE") == ("2" if words_of_gpus else None)


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (("--gpus=a100:1",), {"SLURM_GPUS": "a100:1"}),
        (("-n2", "--ntasks-per-node=2"), {"SLURM_NTASKS_PER_NODE": "2"}),
        (("-n2", "--tasks-per-node=2"), {"SLURM_NTASKS_PER_NODE": "2"}),
        (("--label", "-J", "x"), {"SLURM_LABELIO": "1", "SLURM_JOB_NAME": "x"}),
        (("--cpu-bind=verbose,core",), binding_variables("verbose", "cores")),
        (("--cpu-bind=no",), binding_variables("quiet", "none")),
        (("-n2", "--cpu-bind=map_cpu:0,1"), binding_variables("quiet", "map_cpu:", "0,1")),
        (("-n2", "--cpu-bind=mask_cpu:0x1,0xa"), binding_variables("quiet", "mask_cpu:", "1,A")),
        (("--cpu-bind=rank",), {}),
    ],
)
def test_a_step_has_the_variables_of_its_options(words, variables):
    plain = of_step(step_of(["-n2", "true"], {}), {}, 0, [])
    step = of_step(step_of(["-n2", *words, "true"], {}), {}, 0, [])
    assert dict(step.items() - plain.items()) == variables


@pytest.mark.parametrize(
    "text", ["map_gpu:2", "mask_gpu:0x4", "single:0", "per_task:1,2", "nearest", "map_gpu:x"]
)
def test_a_binding_that_cannot_bind_is_refused(text):
    assert text in ("map_gpu:2", "mask_gpu:0x4") or refused(text)
    assert refused(text) or not step_of([f"--gpu-bind={text}", "true"], {}).binds_within(2)


def refused(text):
    try:
        step_of([f"--gpu-bind={text}", "true"], {})
    except StepRefused:
        return True
    return False


@pytest.mark.parametrize(
    ("words", "environ", "tasks"),
    [
        ((), {"SLURM_TRES_PER_TASK": "cpu=4", "FG_CPUS_ON_NODE": "64"}, 16),
        (("-c3",), {"SLURM_TRES_PER_TASK": "cpu=6", "FG_CPUS_ON_NODE": "6"}, 2),
        ((), {"SLURM_NTASKS": "2", "SLURM_TRES_PER_TASK": "cpu=4", "FG_CPUS_ON_NODE": "64"}, 2),
        ((), {"FG_CPUS_ON_NODE": "64"}, 1),
    ],
)
def test_a_step_has_as_many_tasks_as_the_cpus_of_each_allow(words, environ, tasks):
    assert step_of([*words, "true"], environ).tasks == tasks


@pytest.mark.parametrize(
    ("argv", "gpus", "gpu_type"),
    [
        (("--gres=gpu=2",), 2, ""),
        (("--gres=gres/gpu:1",), 1, ""),
        (("--gres=gpu:a100=2",), 2, "a100"),
        (("--gres=gres/gpu=a100:2",), 2, "a100"),
        (("--gpus-per-node=gpu:2",), 2, ""),
        (("--gpus=gpu:a100:2",), 2, "a100"),
        (("--gpus=a100=2",), 2, "a100"),
        (("--gres=gpu:1", "--gpus-per-task=1", "-n", "1"), 1, ""),
        (("--gres=gpu:a100:2", "--gpus-per-task=1", "-n", "2"), 2, "a100"),
        (("--gpus-per-task=1", "-n", "2", "--gpus=2"), 2, ""),
    ],
)
def test_an_amount_of_gpus_is_read_in_every_form_of_slurm(argv, gpus, gpu_type):
    demand = submission(*argv)[0].demand
    assert (demand.gpus, demand.gpu_type) == (gpus, gpu_type)


def test_warnings_of_sbatch_are_kept_with_the_job_and_not_printed_to_a_program():
    settings, words = options.read(["--switches=1", "--get-user-env=L", "--wrap=true"])
    for name, kept in (("sbatch", "ignored, without effect here: --switches, --get-user-env"), ("fgsub", "")):
        job = SubmissionPreparer(Process({}, "/tmp"), site=SITE, name=name).prepare(settings, words)
        assert job.submission.request.warnings == kept
        assert bool(warnings([job], name, is_for_person=False)) == (name == "fgsub")
        assert warnings([job], name, is_for_person=True).startswith(f"{name}: warning: ignored")


def test_resources_of_each_task_are_options_of_their_own():
    request, variables = submission("-n", "2", "--tres-per-task=cpu=2,gres/gpu:a100=1")
    assert (request.demand.cpus, request.demand.gpus, request.demand.gpu_type) == (4, 2, "a100")
    assert variables["SLURM_TRES_PER_TASK"] == "cpu=2,gres/gpu=1"
    assert variables["SLURM_TRES_BIND"] == "gres/gpu:per_task:1"


@pytest.mark.parametrize(
    ("words", "environ", "cpus"),
    [
        ((), {}, 1),
        ((), {"SLURM_TRES_PER_TASK": "cpu=8"}, 8),
        ((), {"SLURM_TRES_PER_TASK": "cpu=8,gres/gpu=1"}, 8),
        (("-c2",), {"SLURM_TRES_PER_TASK": "cpu=8"}, 2),
        ((), {"SLURM_TRES_PER_TASK": "cpu=8", "SRUN_CPUS_PER_TASK": "3"}, 3),
        ((), {"SLURM_CPUS_PER_TASK": "8"}, 1),
    ],
)
def test_a_step_has_the_cpus_of_each_task_that_the_job_requested(words, environ, cpus):
    step = step_of([*words, "true"], environ)
    assert step.cpus == cpus
    variables = of_step(step, {}, 0, [])
    assert variables.get("SLURM_CPUS_PER_TASK") == (str(cpus) if step.has_cpus else None)
    assert variables["SLURM_NTASKS"] == variables["SLURM_NPROCS"] == "1"


def test_gpus_of_all_and_of_each_task_give_the_number_of_tasks():
    request, variables = submission("--gpus=4", "--gpus-per-task=2", "-c", "3")
    assert (request.tasks, request.demand.gpus, request.demand.cpus) == (2, 4, 6)
    assert (variables["SLURM_NTASKS"], variables["SLURM_GPUS"]) == ("2", "4")
    with pytest.raises(BadUsage, match="--gres=gpu:3: the tasks have 2 GPUs with --gpus-per-task=1"):
        submission("--gres=gpu:3", "--gpus-per-task=1", "-n", "2")


def test_a_day_can_be_written_as_hours():
    assert [parse_duration(text) for text in ("0-24:00:00", "1-00:00:00", "0-48", "1-24:00")] == [
        *(86_400, 86_400),
        *(2 * 86_400, 2 * 86_400),
    ]


@pytest.mark.parametrize(
    "text", ["$USER@example.org", "<YourID>@example.org", "", "a@example.org,%u@example.org", "a b"]
)
def test_any_text_is_an_address_of_mails(text):
    usable = "a@example.org" if text.startswith("a@") else ""
    request, _ = submission("--mail-type=END", f"--mail-user={text}")
    assert request.mail_user == usable


def test_a_mail_user_that_is_no_address_is_named():
    settings, words = options.read(["--mail-type=END", "--mail-user=$USER@example.org", "--wrap=true"])
    job = SubmissionPreparer(Process({}, "/tmp"), site=SITE, name="sbatch").prepare(settings, words)
    assert job.warnings == ("--mail-user=$USER@example.org is not an address; mails go to your own address",)


OF_SQUEUE = """BOOT_FAIL BF CANCELLED CA COMPLETED CD CONFIGURING CF COMPLETING CG DEADLINE DL
FAILED F NODE_FAIL NF OUT_OF_MEMORY OOM PENDING PD PREEMPTED PR RUNNING R RESV_DEL_HOLD RD
REQUEUE_FED RF REQUEUE_HOLD RH REQUEUED RQ RESIZING RS REVOKED RV SIGNALING SI SPECIAL_EXIT SE
STAGE_OUT SO STOPPED ST SUSPENDED S TIMEOUT TO"""


@pytest.mark.parametrize("word", OF_SQUEUE.split())
def test_every_state_of_squeue_is_a_state(word):
    assert states([word]) == states([word.lower()])


@pytest.mark.parametrize(
    ("word", "whole"),
    [
        *[(word, "partitions") for word in ("part", "par", "partition", "partitions")],
        *[(word, "reservations") for word in ("res", "reserv", "reservation")],
        *[(word, "licenses") for word in ("lic", "license", "licenses")],
        *[(word, "nodes") for word in ("node", "nod")],
        *[(word, "config") for word in ("conf", "con", "config")],
        *[("job", "jobs"), ("step", "steps"), ("hostn", "hostnames"), ("hostlist", "hostlist")],
        *[("jobid", "jobid"), ("topo", "topology"), ("nonsense", "nonsense")],
    ],
)
def test_an_entity_of_scontrol_show_can_be_abbreviated(word, whole):
    assert entity(word) == whole


def test_times_are_not_cut_in_columns_of_squeue(home):
    job = home.run("fgsub", "--hold", "--time=3-12:00:00", "--parsable", "--wrap=true").out.strip()
    for command in (("fgq", "-h", "-o", "%.9l"), ("fgq", "-h", "-o", "%.4l|%i")):
        assert home.run(*command).out.startswith("3-12:00:00")
    assert home.run("fgq", "-h", "-o", "%.4l|%i").out == f"3-12:00:00|{job}\n"
