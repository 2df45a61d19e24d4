"""srun inside a job: the tasks of a step, their variables, streams, exit codes, and what steps share."""

import os
import re
import signal
import subprocess
import sys

import pytest

from awaiting import PATIENCE
from fgsched.slurm import getopt
from fgsched.slurm.getopt import BadLine, parse
from fgsched.slurm.srun import step_of
from fgsched.slurm.step import StepRefused, read_binding, read_programs
from fgsched.slurm.streams import file_name


class Job:
    """A job's directory and variables, in which srun is run as its script would."""

    def __init__(self, path, **more):
        self.path = path
        self.environ = {
            "PATH": os.environ["PATH"],
            "FG_JOB_ID": "7",
            "FG_JOB_NAME": "train",
            "FG_JOB_NODELIST": "node",
            "FG_CPUS_ON_NODE": "4",
            "FG_JOB_DIR": str(path / "job"),
            "CUDA_VISIBLE_DEVICES": "3,5",
            **more,
        }

    def start(self, *words, **more):
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "fgsched.slurm.srun", *words]
        streams = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe} | more
        return subprocess.Popen(command, env=self.environ, cwd=self.path, text=True, **streams)

    def run(self, *words, text="", **more):
        given = {"stdin": subprocess.PIPE} if text else {}
        process = self.start(*words, **given, **more)
        out, err = process.communicate(text or None, timeout=PATIENCE)
        return process.returncode, out, err


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


# -- the command line ----------------------------------------------------------------------------------


def test_names_can_be_shortened_and_values_stand_in_the_word_or_after_it():
    assert parse("steps", ["--jobs= 7", "-l", "-j8", "-j", " 9", "--lon", "x"], permute=True) == (
        [("jobs", "7"), ("long", ""), ("jobs", "8"), ("jobs", "9"), ("long", "")],
        ["x"],
    )


def test_options_follow_operands_only_where_that_is_usual():
    assert parse("steps", ["a", "-l", "--", "-x"], permute=True) == ([("long", "")], ["a", "-x"])
    assert parse("steps", ["a", "-l"], permute=False) == ([], ["a", "-l"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lo=1"], "option '--lo' is ambiguous; possibilities: '--local' '--long'"),
        (["--nope"], "unrecognized option '--nope'"),
        (["--long=x"], "option '--long' doesn't allow an argument"),
        (["--jobs"], "option '--jobs' requires an argument"),
        (["-j"], "option requires an argument -- 'j'"),
        (["-z"], "invalid option -- 'z'"),
    ],
)
def test_a_bad_line_is_refused_in_the_words_of_getopt(words, message):
    with pytest.raises(BadLine) as raised:
        parse("steps", words, permute=True)
    assert str(raised.value) == message


def test_the_number_of_tasks_is_that_of_the_job_unless_given():
    assert step_of(["true"], {"SLURM_NTASKS": "3"}).tasks == 3
    assert step_of(["-n2", "true"], {"SLURM_NTASKS": "3"}).tasks == 2
    assert step_of(["--ntasks-per-node=4", "-N1", "true"], {}).tasks == 4


def test_gpus_of_a_step_are_read_in_every_form():
    for words in (["--gpus=2"], ["-G", "a100:2"], ["--gres=gpu:a100:2"], ["--gpus-per-task=1", "-n2"]):
        assert step_of([*words, "true"], {}).gpus == 2
    assert step_of(["--gres=gpu", "true"], {}).gpus == 1


@pytest.mark.parametrize(
    "words",
    [["-n1", "a", ":", "-n2", "b"], [":", "-n2", "b"], ["--het-group=0,1", "a"], ["--het-group=1", "a"]],
)
def test_a_step_of_several_components_is_refused_with_what_to_do_instead(words):
    with pytest.raises(
        StepRefused, match=r"heterogeneous steps are not supported yet\nStart a step for each"
    ):
        step_of(words, {})


def test_a_colon_at_the_end_of_a_command_is_its_argument():
    assert step_of(["--het-group=0", "bash", "-c", ":"], {}).command == ("bash", "-c", ":")


def test_several_nodes_and_no_command_are_refused():
    for words, part in (([], "No command"), (["-N2", "true"], "one host"), (["-n", "x", "true"], "numeric")):
        with pytest.raises(StepRefused, match=part):
            step_of(words, {})


def test_a_file_name_has_the_numbers_of_the_task():
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "2",
        "SLURMD_NODENAME": "node.lab",
        "SLURM_JOB_NAME": "x",
    }
    assert file_name("%j_%2t_%s_%J_%N_%x_%%", environ | {"SLURM_JOB_NAME": "x"}, 3) == "7_03_2_7.2_node_x_%"


# -- tasks ---------------------------------------------------------------------------------------------


def test_each_task_has_slurms_variables(job):
    text = "echo $SLURM_PROCID/$SLURM_NTASKS $SLURM_LOCALID $SLURM_JOB_ID.$SLURM_STEP_ID $SLURM_STEP_NODELIST"
    status, out, err = job.run("-n3", "sh", "-c", text)
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == ["0/3 0 7.0 node", "1/3 1 7.0 node", "2/3 2 7.0 node"]


def test_steps_are_numbered(job):
    assert [job.run("sh", "-c", "echo $SLURM_STEP_ID")[1] for _ in range(3)] == ["0\n", "1\n", "2\n"]


def test_the_number_of_the_next_step_survives_a_failure_of_its_write(job):
    program = "import os; from fgsched.slurm.running import next_step; print(next_step(os.environ))"
    fails = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "

    def number(text):
        return subprocess.run(
            [sys.executable, "-c", text], env=job.environ, capture_output=True, text=True
        ).stdout

    assert [number(program), number(fails + program), number(program)] == ["0\n", "", "1\n"]
    (job.path / "job" / "steps" / "next").write_text("no number")
    assert number(program) == "0\n"


def test_lines_are_labelled_with_their_task(job):
    status, out, _ = job.run("-l", "-n2", "sh", "-c", "printf 'a\\nb'; echo e >&2", stderr=subprocess.STDOUT)
    assert status == 0
    assert sorted(out.splitlines()) == ["0: a", "0: b", "0: e", "1: a", "1: b", "1: e"]


def test_the_exit_code_is_the_highest_and_each_failure_is_told(job):
    status, out, err = job.run("-n3", "sh", "-c", "exit $SLURM_PROCID")
    assert (status, out) == (2, "")
    assert sorted(err.splitlines()) == [
        "srun: error: node: task 1: Exited with exit code 1",
        "srun: error: node: task 2: Exited with exit code 2",
    ]


def test_a_task_that_a_signal_ended_counts_as_128_and_its_number(job):
    status, _, err = job.run("sh", "-c", "kill -9 $$")
    assert (status, err) == (137, "srun: error: node: task 0: Killed\n")


def test_a_program_that_does_not_exist_is_named(job):
    status, _, err = job.run("no-such-program")
    assert status == 2
    assert err.startswith("slurmstepd: error: execve(): no-such-program: No such file or directory\n")


def test_a_failing_task_ends_the_others_if_asked(job):
    text = "test $SLURM_PROCID = 0 && exit 3; exec sleep 600"
    status, _, err = job.run("-n2", "--kill-on-bad-exit", "sh", "-c", text)
    assert status == 143
    assert re.sub(r"[0-9]{4}-\S+", "TIME", err).splitlines() == [
        "srun: error: node: task 0: Exited with exit code 3",
        "srun: Terminating StepId=7.0",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        "slurmstepd: error: *** STEP 7.0 ON node CANCELLED AT TIME ***",
        "srun: error: node: task 1: Terminated",
    ]


def test_the_other_tasks_are_ended_some_time_after_the_first(job):
    status, _, err = job.run("-n3", "-W1", "sh", "-c", "test $SLURM_PROCID = 2 && exit; exec sleep 600")
    assert status == 143
    assert err.splitlines()[:5] == [
        "srun: First task exited 1s ago",
        "srun: StepId=7.0 task 0: running",
        "srun: StepId=7.0 task 1: running",
        "srun: StepId=7.0 task 2: exited",
        "srun: Terminating StepId=7.0",
    ]


def test_a_signal_for_srun_reaches_the_tasks(job):
    process = job.start("sh", "-c", "trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 1; done")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (5, "got\n")
    assert err.startswith("srun: forcing job termination\nsrun: Job step aborted: ")


# -- streams -------------------------------------------------------------------------------------------


def test_output_goes_to_a_file_for_each_task(job):
    assert job.run("-n2", "-o", "out.%t", "-e", "err.%t", "sh", "-c", "echo o; echo e >&2")[0] == 0
    for task in range(2):
        assert (job.path / f"out.{task}").read_text() == "o\n"
        assert (job.path / f"err.{task}").read_text() == "e\n"


def test_tasks_share_a_file_without_a_pattern(job):
    job.run("-n3", "-o", "all", "sh", "-c", "echo line")
    assert (job.path / "all").read_text() == "line\n" * 3


def test_input_reaches_all_tasks_or_one(job):
    status, out, _ = job.run("-n2", "cat", text="hello\n")
    assert (status, out) == (0, "hello\n" * 2)
    status, out, _ = job.run("-n2", "-i", "1", "-l", "cat", text="hello\n")
    assert (status, out) == (0, "1: hello\n")
    assert job.run("-n2", "-i", "none", "cat", text="hello\n")[1] == ""


def test_input_that_no_task_reads_delays_nothing(job):
    (job.path / "big").write_bytes(b"x" * (1 << 20))
    with open(job.path / "big") as big:
        process = job.start("-n2", "true", stdin=big)
        assert process.communicate(timeout=PATIENCE)[1] == ""
    assert process.returncode == 0


def test_numbers_that_are_not_decimal_and_open_quotes_are_refused(job):
    assert job.run("-n", "²", "true")[0] == 1
    (job.path / "programs").write_text("0 echo 'open\n")
    assert "No closing quotation" in job.run("-n1", "--multi-prog", "programs")[2]


def test_variables_are_passed_as_export_says(job):
    job.environ["MINE"] = "1"
    assert job.run("--export=NONE", "sh", "-c", "echo ${MINE:-no}$SLURM_JOB_ID")[1] == "no7\n"
    assert job.run("--export=ALL,X=2", "sh", "-c", "echo $MINE$X")[1] == "12\n"


def test_each_task_of_a_program_file_runs_its_program(job):
    (job.path / "programs").write_text("# comment\n0 echo first %t\n1-2 echo rest %t %o\n")
    status, out, _ = job.run("-n3", "--multi-prog", "programs")
    assert status == 0
    assert sorted(out.splitlines()) == ["first 0", "rest 1 0", "rest 2 1"]


def test_a_program_file_without_a_task_is_refused(tmp_path):
    (tmp_path / "programs").write_text("0 echo\n")
    with pytest.raises(StepRefused, match="no record for task id 1"):
        read_programs([str(tmp_path / "programs")], 2)


def test_a_star_in_a_program_file_means_the_other_tasks_and_arguments_are_added(tmp_path):
    (tmp_path / "programs").write_text("1 one \\\n 'a b'\n* rest %t\n")
    programs = read_programs([str(tmp_path / "programs"), "-x"], 3)
    assert programs == (("rest", "0", "-x"), ("one", "a b", "-x"), ("rest", "2", "-x"))


@pytest.mark.parametrize(
    ("text", "masks"),
    [
        ("", ()),
        ("none", ()),
        ("verbose,cores", ()),
        ("map_ldom:0,1", ()),
        ("map_cpu:0,2", (1, 4, 1)),
        ("q,MASK_CPU:0x3,c*2", (3, 12, 12)),
    ],
)
def test_maps_and_masks_of_cpus_are_read(text, masks):
    assert read_binding(text, 3).masks == masks


@pytest.mark.parametrize("text", ["near", "map_cpu", "map_cpu:", "map_cpu:x", "map_cpu:9999", "mask_cpu:0"])
def test_a_bad_binding_is_refused(text):
    with pytest.raises(StepRefused, match="Invalid --cpu-bind argument: "):
        read_binding(text, 1)


def test_a_task_is_bound_to_the_cpus_of_its_mask(job):
    first = min(os.sched_getaffinity(0))
    show = "import os; print(os.sched_getaffinity(0))"
    status, out, err = job.run(f"--cpu-bind=v,map_cpu:{first}", sys.executable, "-c", show)
    assert (status, out) == (0, f"{{{first}}}\n")
    assert err == f"cpu-bind=MASK - node, task  0  0: mask {1 << first:#x} set\n"
    status, _, err = job.run("--cpu-bind=map_cpu:8000", "true")
    assert (status, err.startswith("srun: error: Unable to satisfy cpu bind request: ")) == (1, True)


# -- variables that are options ------------------------------------------------------------------------


def test_a_step_takes_options_from_variables_and_the_command_line_wins():
    environ = {"SLURM_KILL_BAD_EXIT": "1", "SLURM_LABELIO": "1", "SLURM_STDOUTMODE": "a", "SLURM_WAIT": "9"}
    environ |= {"SLURM_GPUS_PER_TASK": "1", "SLURM_OVERLAP": "0", "SRUN_EXPORT_ENV": "NONE"}
    step = step_of(["-n2", "-W3", "true"], environ)
    assert (step.kill_on_bad_exit, step.label, step.output, step.wait) == (True, True, "a", 3)
    assert (step.gpus, step.gpus_each, step.overlaps, step.export) == (2, 1, True, "NONE")
    assert step_of(["-n2", "--gres=gpu:2", "true"], environ).gpus_each == 0


def test_tasks_with_fractions_of_gpus_share_those_of_the_job():
    for words, environ in ((["--gpus-per-task=0.5"], {}), ([], {"SLURM_GPUS_PER_TASK": "a100:50%"})):
        step = step_of([*words, "-n2", "true"], environ)
        assert (step.gpus, step.gpus_each) == (None, 0)


def test_options_of_the_job_are_variables_of_srun_outside_of_one_and_of_salloc():
    environ = {"SLURM_TIMELIMIT": "5", "SLURM_PARTITION": "a", "SLURM_JOB_ID": "7", "SLURM_GRES": "gpu:1"}
    expected = {"time": "5", "partition": "b", "jobid": "7", "gpus": "1"}
    assert getopt.of_srun(environ, {"partition": "b", "gpus": "1"}) == expected
    environ = {"SALLOC_TIMELIMIT": "5", "SALLOC_NO_BELL": "1", "SALLOC_QOS": "", "SLURM_TIMELIMIT": "9"}
    assert getopt.of_salloc(environ, {}) == {"time": "5", "no-bell": ""}


@pytest.mark.parametrize(
    ("name", "words", "environ", "expected"),
    [
        ("squeue", "-h", {"SQUEUE_USERS": "ann", "SQUEUE_ALL": ""}, "--user=ann --all -h"),
        ("squeue", "--me", {"SQUEUE_USERS": "ann", "SQUEUE_SORT": "i"}, "--sort=i --me"),
        ("squeue", "-o %i", {"SQUEUE_FORMAT2": "jobid"}, "-o %i"),
        ("squeue", "--us bob", {"SQUEUE_USERS": "ann"}, "--us bob"),
        ("squeue", "--steps", {"SQUEUE_PARTITION": "a"}, "--partition=a --steps"),
        ("squeue", "--nope", {"SQUEUE_USERS": "ann"}, "--nope"),
        ("scancel", "7", {"SCANCEL_STATE": "PD", "SCANCEL_VERBOSE": "1"}, "--state=PD --verbose 7"),
        ("sacct", "-X", {"SQUEUE_USERS": "ann"}, "-X"),
    ],
)
def test_variables_of_squeue_and_scancel_are_options_that_the_command_line_replaces(
    name, words, environ, expected
):
    assert getopt.with_variables(name, words.split(), environ) == expected.split()


def test_the_format_of_sinfo_can_be_a_variable():
    assert getopt.of_sinfo({"SINFO_FORMAT": "%P"}, {}) == {"format": "%P"}
    assert getopt.of_sinfo({"SINFO_FORMAT": "%P"}, {"Format": "cpus"}) == {"Format": "cpus"}


def test_a_step_has_a_terminal_if_asked(job):
    status, out, _ = job.run("--pty", "sh", "-c", "test -t 0 && test -t 1 && echo terminal; exit 4")
    assert (status, out) == (4, "terminal\n")


# -- what steps share ----------------------------------------------------------------------------------


def test_more_cpus_or_gpus_than_the_job_has_are_refused(job):
    assert job.run("-n5", "true")[::2] == (
        1,
        "srun: error: Unable to create step for job 7: More processors requested than permitted\n",
    )
    assert "Invalid generic resource" in job.run("--gpus=3", "true")[2]


def test_a_step_waits_for_the_cpus_of_another_unless_it_overlaps(job):
    first = job.start("-n4", "sh", "-c", "echo ready; read line", stdin=subprocess.PIPE)
    for _ in range(4):
        assert first.stdout.readline() == "ready\n"
    assert job.run("--overlap", "echo", "beside")[1] == "beside\n"
    second = job.start("echo", "after")
    busy = job.run("-I", "true")
    assert busy[::2] == (1, "srun: error: Unable to create step for job 7: Requested nodes are busy\n")
    line = "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
    assert second.stderr.readline() == line
    first.communicate("", timeout=PATIENCE)
    assert second.communicate(timeout=PATIENCE) == ("after\n", "")


def test_steps_beside_each_other_have_different_gpus(job):
    show = ["--gpus=1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; read line"]
    steps = [job.start(*show, stdin=subprocess.PIPE) for _ in range(2)]
    assert {step.stdout.readline() for step in steps} == {"3\n", "5\n"}
    third = job.start(*show, stdin=subprocess.PIPE)
    steps[0].communicate("", timeout=PATIENCE)
    assert third.stdout.readline() in ("3\n", "5\n")
    for step in (steps[1], third):
        step.communicate("", timeout=PATIENCE)


def test_each_task_can_have_a_gpu_of_its_own(job):
    out = job.run("-n2", "--gpus-per-task=1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")[1]
    assert sorted(out.split()) == ["3", "5"]


def test_a_file_that_cannot_be_opened_is_named_without_a_traceback(tmp_path):
    process = Job(tmp_path).start("-o", "missing/out", "true")
    assert process.communicate(timeout=PATIENCE) == (
        "",
        "srun: error: missing/out: No such file or directory\n",
    )
    assert process.returncode == 1
