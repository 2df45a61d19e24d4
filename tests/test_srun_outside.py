"""srun and salloc outside a job: a job in the foreground, in the dialect of Slurm."""

import os

import pytest

from interactive_driver import Typist, call, finish, last, start
from live_host import living

HOST = os.uname().nodename.partition(".")[0]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with living(tmp_path_factory.mktemp("srun") / "home") as found:
        yield found


def test_srun_allocates_and_runs_its_tasks(home):
    command = "echo $SLURM_PROCID of $SLURM_NTASKS in $SLURM_JOB_ID.$SLURM_STEP_ID"
    status, out, err = call(home, "srun", "-n2", "-l", "sh", "-c", command)
    job = last(home)["id"]
    assert (status, sorted(out.splitlines()), err) == (
        0,
        [f"0: 0 of 2 in {job}.0", f"1: 1 of 2 in {job}.0"],
        "",
    )


def test_srun_passes_input_names_files_and_returns_the_highest_code(home):
    command = "cat; echo $FG_GPU_FRACTION; exit $((3 + SLURM_PROCID))"
    words = ("-n2", "--gpus=0.5", "-c1", "-o", "out-%t", "sh", "-c", command)
    status, out, err = call(home, "srun", *words, text="in\n")
    assert (status, out) == (4, "")
    assert sorted(err.splitlines()) == [
        f"srun: error: {HOST}: task {task}: Exited with exit code {3 + task}" for task in (0, 1)
    ]
    assert (home.path / "out-1").read_text() == "in\n0.5\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["-p", "nope", "true"],
            "srun: error: Unable to allocate resources: Invalid partition name",
        ),
        (["--gres=gpu:9", "true"], "srun: error: Unable to allocate resources: this host has 2 GPUs"),
        (["-t", "abc", "true"], "srun: error: --time=abc is not a duration"),
        (["--bogus", "true"], "srun: unrecognized option '--bogus'"),
        ([], "srun: fatal: No command given to execute."),
    ],
)
def test_srun_refuses_in_the_words_of_slurm(home, words, message):
    status, out, err = call(home, "srun", *words)
    assert (status, out) == (255 if "unrecognized" in message else 1, "")
    assert err.startswith(message)


def test_a_shell_of_srun_has_a_terminal(home):
    # The bash script that finds srun drops a PS1 of the caller.
    shell = ("env", "PS1=$ ", "bash", "--norc", "--noprofile", "-i")
    person = Typist(home, "srun", "--pty", *shell, rows=31, columns=99)
    greeting = person.until("$ ")
    assert "no job control" not in greeting
    person.type("stty size; echo step-$SLURM_STEP_ID\n")
    person.until("31 99")
    person.until("step-0")
    person.type("exit 6\n")
    assert person.end() == 6


def test_salloc_gives_a_shell_within_the_allocation_and_relinquishes_it(home):
    person = Typist(home, "salloc", "-n2", "--gpus=1", env={"SHELL": "/bin/sh"})
    person.until("salloc: Granted job allocation ")
    person.until("$ ")
    job = last(home)["id"]
    person.type("echo in-$SLURM_JOB_ID-$SLURM_NTASKS-$SLURM_JOB_NAME; srun -l echo task\n")
    person.until(f"in-{job}-2-interactive")
    person.until(": task")
    person.until("$ ")
    person.type("exit 3\n")
    person.until(f"salloc: Relinquishing job allocation {job}")
    assert person.end() == 3


def test_an_allocation_without_a_shell_lives_until_it_is_cancelled_and_takes_steps(home):
    status, out, err = call(home, "salloc", "--no-shell", "-n2", "--gpus=1", "-t5")
    job = str(last(home)["id"])
    assert (status, out, err) == (0, "", f"salloc: Granted job allocation {job}\n")
    step = "echo $SLURM_JOB_ID.$SLURM_PROCID $CUDA_VISIBLE_DEVICES"
    status, out, err = call(home, "srun", f"--jobid={job}", "-n2", "sh", "-c", step)
    assert (status, sorted(out.splitlines()), err) == (0, [f"{job}.0 0", f"{job}.1 0"], "")
    assert home.job(int(job))["state"] == "RUNNING"
    home.run("fgcancel", job)
    assert home.wait(int(job))[0]["state"] == "CANCELLED"


@pytest.mark.parametrize("name", ["srun", "salloc"])
def test_options_of_several_nodes_are_ignored_with_a_warning(home, name):
    status, out, err = call(home, name, "--switches=1", "--contiguous", "echo", "ran")
    first = f"{name}: warning: ignored, without effect here: --switches, --contiguous"
    assert (status, out, err.splitlines()[0]) == (0, "ran\n", first)


def test_salloc_refuses_an_unknown_option_by_its_own_name(home):
    status, out, err = call(home, "salloc", "--no-shell", "--bogus")
    assert (status, out, err.splitlines()[0]) == (1, "", "salloc: unrecognized option '--bogus'")


def test_a_job_that_may_not_wait_is_cancelled(home):
    blocker = home.running(demand={"gpus": 2, "share": 10000})
    busy = "srun: error: Unable to allocate resources: Requested nodes are busy\n"
    assert call(home, "srun", "-I", "--gpus=1", "touch", "ran")[::2] == (1, busy)
    assert (last(home)["state"], (home.path / "ran").exists()) == ("CANCELLED", False)
    home.run("fgcancel", str(blocker))


def test_salloc_runs_a_command_after_waiting(home):
    blocker = home.running(demand={"gpus": 2, "share": 10000})
    process = start(home, "salloc", "--gpus=1", "sh", "-c", "echo $SLURM_JOB_NAME; exit 2")
    first, second = process.stderr.readline(), process.stderr.readline()
    job = last(home)["id"]
    assert first == f"salloc: Pending job allocation {job}\n"
    assert second == f"salloc: job {job} queued and waiting for resources\n"
    home.run("fgcancel", str(blocker))
    assert finish(process) == (
        2,
        "sh\n",
        f"salloc: job {job} has been allocated resources\n"
        f"salloc: Granted job allocation {job}\n"
        f"salloc: Relinquishing job allocation {job}\n",
    )
