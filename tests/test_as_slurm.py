"""What Slurm allocates, sets and prints for an option, where programs depend on it."""

import os

import pytest

from fgsched.domain.times import parse_duration
from fgsched.domain.units import SubmitContext
from fgsched.slurm.scontrol import _entity as entity
from fgsched.slurm.srun import step_of
from fgsched.slurm.step import of_step
from fgsched.submission import options
from fgsched.submission.checks import Process
from fgsched.submission.prepare import SubmissionPreparer
from fgsched.views.choices import states

SITE = SubmitContext(
    cpus=64, partition="main", partitions=("main", "half"), partition_gpus={"main": 8, "half": 4}
)


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
        (("-n", "4"), {"SLURM_NTASKS": "4", "SLURM_NPROCS": "4"}),
        (
            ("--ntasks-per-node=2",),
            {"SLURM_NTASKS": "2", "SLURM_NPROCS": "2", "SLURM_NTASKS_PER_NODE": "2"},
        ),
        (
            ("--gpus=2", "--ntasks-per-gpu=2"),
            {"SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_NTASKS_PER_GPU": "2", "SLURM_GPUS": "2"},
        ),
        (("-c", "8"), {"SLURM_CPUS_PER_TASK": "8", "SLURM_TRES_PER_TASK": "cpu=8"}),
        (("--exclusive", "-c", "4"), {"SLURM_CPUS_PER_TASK": "4", "SLURM_TRES_PER_TASK": "cpu=4"}),
        (("--gpus-per-task=1",), {"SLURM_GPUS_PER_TASK": "1"}),
        (("--mem-per-cpu=2G",), {"SLURM_MEM_PER_CPU": "2048"}),
    ],
)
def test_a_variable_of_an_option_is_there_only_if_the_option_was_given(argv, variables):
    assert submission(*argv)[1] == variables


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
