"""A job that is submitted inside another job: nothing of the outer one reaches it."""

import pytest

from builders import a_demand, a_job
from fgsched.domain.job import Hold, Request
from fgsched.domain.states import JobState
from fgsched.gpus.nvidia import FACTS
from fgsched.lifecycle.jobvariables import OF_FENCE, is_of_job
from fgsched.lifecycle.launchspec import AssignedGpu, LaunchContext, merge_environment, variables
from fgsched.slurm.step import SrunStep, of_step
from fgsched.submission.prepare import exported

SITE = LaunchContext(
    vendor=FACTS,
    host="node",
    run="/run/fg",
    hook="",
    tmp="/tmp",
    kill_wait=30,
    become_user=False,
    simulates=True,
)


def outer():
    """The environment of an array task with a GPU, a limit and Slurm's variables."""
    request = Request(
        name="outer",
        demand=a_demand(5000, host_memory=2**30, resources=(("lic", 1),)),
        slurm_env=True,
        array="0-3",
        time_limit=540,
        dependency="afterok:3",
    )
    more = {"request": request, "array": 7, "task": 2, "resources": (("lic", (0,)),), "restarts": 1}
    job = a_job(9, share=5000, state=JobState.RUNNING, partition="gpu", started_at=5.0, **more)
    given = [AssignedGpu(hold=Hold(gpu=0, share=5000, memory=2**30), uuid="GPU-0", cpus=(0, 1))]
    return variables(job, given, site=SITE, tmpdir="/tmp/9", error_file="/e")


USERS = {"HOME": "/home/ann", "FG_HOME": "/q", "FG_CONFIG": "/c", "FGSUB_TIME": "5", "SBATCH_TIMELIMIT": "5"}


def test_every_variable_of_a_job_and_of_a_step_is_known_as_such():
    step = of_step(SrunStep(command=("true",), tasks=2, gpus=1), outer(), 1, ["GPU-0"])
    unknown = [
        name for name in outer() | step if not is_of_job(name) and name not in OF_FENCE | FACTS.of_jobs
    ]
    assert unknown == []


@pytest.mark.parametrize("text", ["ALL", "ALL,A=1", "NONE"])
def test_a_job_that_is_submitted_in_a_job_inherits_nothing_of_it(text):
    found, _ = exported(text, outer() | USERS)
    assert not outer().keys() & found.keys()
    assert text == "NONE" or USERS.items() <= found.items()


def test_a_variable_that_the_list_of_export_names_is_passed_on():
    found, _ = exported("ALL,SLURM_ARRAY_TASK_ID=5,FG_JOB_NAME", outer())
    assert (found["SLURM_ARRAY_TASK_ID"], found["FG_JOB_NAME"]) == ("5", "outer")


def test_a_device_that_a_user_has_chosen_outside_a_job_is_left_alone():
    found, _ = exported("ALL", {"NVIDIA_VISIBLE_DEVICES": "all", "TMPDIR": "/scratch"})
    assert found == {"NVIDIA_VISIBLE_DEVICES": "all", "TMPDIR": "/scratch"}


def test_a_client_of_the_socket_that_passes_its_own_environment_passes_no_outer_job():
    base = "".join(f"{name}={text}\0" for name, text in (outer() | USERS).items()).encode()
    found = merge_environment(base, {"FG_JOB_ID": "10"}, "").split(b"\0")
    names = {entry.partition(b"=")[0].decode() for entry in found if entry}
    assert {name for name in names if is_of_job(name)} == {"FG_JOB_ID"}
    assert b"FG_JOB_ID=10" in found
    assert USERS.keys() <= names
