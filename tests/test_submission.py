"""From what a user typed to what the controller is asked to queue."""

import io
import os
import resource
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fgsched import protocol
from fgsched.cli.batch import parse_batch, read_lines
from fgsched.controller.caller import Caller
from fgsched.controller.handlers.submission import LineHandlers
from fgsched.domain.errors import BadUsage, FgschedError
from fgsched.domain.job import Demand
from fgsched.domain.units import SubmitContext
from fgsched.lifecycle.jobscript import command_line
from fgsched.submission import options
from fgsched.submission.checks import Process
from fgsched.submission.prepare import SubmissionPreparer
from inmemory import memory

ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/home/ann", "A": "1"}
GIB = 1 << 30


class Terminal(io.BytesIO):
    def isatty(self):
        return True


@pytest.fixture
def here(tmp_path):
    return Here(tmp_path)


@pytest.fixture
def zone(monkeypatch):
    """Change the time zone to a given one."""

    def change(name):
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield change
    monkeypatch.undo()
    time.tzset()


class Here:
    """A directory to submit from."""

    def __init__(self, path):
        self.path = path

    def script(self, *headers, name="train.sh", body="echo\n"):
        (self.path / name).write_text("\n".join(["#!/bin/bash", *headers, body]))

    def prepare(self, *argv, site=None, stdin=None, called="fgsub", **variables):
        given_options, words = options.read(argv)
        process = Process({**ENVIRON, **variables}, str(self.path), stdin or Terminal())
        return SubmissionPreparer(process, site=site or SubmitContext(), name=called).prepare(
            given_options, words
        )

    def request(self, *argv, **more):
        return self.prepare(*argv, **more).submission.request

    def refused(self, *argv, **more):
        with pytest.raises(BadUsage) as raised:
            self.prepare(*argv, **more)
        return raised.value.cause

    def batch(self, *lines, common=(), site=None):
        return parse_batch(
            lines,
            "jobs.txt",
            options.read(common)[0],
            environ=ENVIRON,
            cwd=str(self.path),
            site=site or SubmitContext(),
        )


def test_a_tag_is_read_from_options_and_slurms_headers(here):
    here.script("#SBATCH --wckey=*paper-7")
    assert here.request("train.sh").wckey == "*paper-7"
    assert here.request("--wckey", "b", "train.sh").wckey == "b"
    assert "is not a tag" in here.refused("--wckey", "x" * 65, "train.sh")


# --- the script -------------------------------------------------------------------------------------------


def test_a_script_is_read_with_its_headers_and_arguments(here):
    here.script("#FG --gpus=0.5 --time=10", "#FG -J half -o %x.out")
    submission = here.prepare("-c", "2", "train.sh", "--epochs", "3 4").submission
    request = submission.request
    assert submission.script == (here.path / "train.sh").read_bytes()
    assert request.demand == Demand(gpus=1, share=5000, cpus=2)
    assert (request.name, request.time_limit, request.output) == ("half", 600, "%x.out")
    assert request.args == ("--epochs", "3 4")
    assert request.submit_line == "fgsub --cpus-per-task=2 train.sh --epochs '3 4'"


def test_the_defaults_are_slurms(here):
    here.script()
    request = here.request("./train.sh")
    assert (request.name, request.output, request.error, request.input) == (
        "train.sh",
        "fg-%j.out",
        "",
        "/dev/null",
    )
    assert (request.chdir, request.append, request.time_limit) == (str(here.path), False, 0)
    assert request.demand == Demand()


def test_the_callers_umask_and_limits_go_with_the_job(here):
    here.script()
    before = os.umask(0o027)
    try:
        request = here.request("train.sh")
    finally:
        assert os.umask(before) == 0o027
    assert request.umask == 0o027
    assert (resource.RLIMIT_NOFILE, *resource.getrlimit(resource.RLIMIT_NOFILE)) in request.rlimits


def test_a_command_that_is_no_script_becomes_one(here):
    submission = here.prepare("-G", "1", "--", "true", "a b", "$x").submission
    assert submission.script == b"#!/bin/sh\ntrue 'a b' '$x'\n"
    assert (submission.request.name, submission.request.args) == ("true", ())


def test_a_program_in_the_working_directory_is_called_by_its_path(here):
    (here.path / "a.out").write_bytes(b"\x7fELF\0\0")
    (here.path / "a.out").chmod(0o755)
    assert here.prepare("a.out", "1").submission.script == f"#!/bin/sh\n{here.path}/a.out 1\n".encode()


def test_a_launcher_found_on_the_path_is_called_and_not_copied(here):
    (here.path / "bin").mkdir()
    here.script(name="bin/launch")
    here.script("#FG -G1", name="bin/queued.sh")
    for name in ("launch", "queued.sh"):
        (here.path / "bin" / name).chmod(0o755)
    assert here.prepare("launch", "x", PATH=f"{here.path}/bin").submission.script == b"#!/bin/sh\nlaunch x\n"
    assert here.request("queued.sh", PATH=f"{here.path}/bin").demand.gpus == 1


def test_wrap_makes_a_script_of_a_command(here):
    submission = here.prepare("--wrap=python train.py | tee log").submission
    assert submission.script == b"#!/bin/sh\npython train.py | tee log\n"
    assert submission.request.name == "wrap"


def test_a_script_is_found_under_the_working_directory_asked_for(here):
    (here.path / "sub").mkdir()
    here.script(name="sub/train.sh")
    assert here.request("--chdir=sub", "train.sh").chdir == f"{here.path}/sub"


def test_a_script_on_standard_input_is_named_fgsub(here):
    text = b"#!/bin/sh\n#FG -G1\necho\n"
    for argv in ([], ["-", "a"]):
        submission = here.prepare(*argv, stdin=io.BytesIO(text)).submission
        assert (submission.script, submission.request.name) == (text, "fgsub")
        assert submission.request.args == tuple(argv[1:])


@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        (Terminal(), "no script given"),
        (io.BytesIO(b""), "standard input is empty"),
        (io.BytesIO(b"#!/bin/sh\n#FG -G x\n"), "standard input:2: --gpus=x is not a number"
         " (use 0 < fraction ≤ 1 or a whole number)"),
    ],
)  # fmt: skip
def test_a_bad_script_on_standard_input_is_refused(here, stdin, message):
    with stdin:
        assert here.refused("-", stdin=stdin) == message


def test_a_script_is_looked_for_where_the_user_is_and_then_where_the_job_will_be(here):
    (here.path / "work").mkdir()
    here.script("#FG -J here")
    here.script("#FG -J there", name="work/train.sh")
    here.script("#FG -J only", name="work/only.sh")
    assert here.request("-D", "work", "train.sh").name == "here"
    assert here.request("-D", "work", "only.sh").name == "only"


def test_a_script_can_be_a_pipe_that_the_shell_opened(here):
    inner, outer = os.pipe()
    with open(inner, "rb"):
        os.write(outer, b"#!/bin/sh\n#FG --gpus=0.5\ntrue\n")
        os.close(outer)
        submission = here.prepare(f"/dev/fd/{inner}").submission
    assert submission.request.demand == Demand(gpus=1, share=5000)
    assert submission.script.endswith(b"true\n")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("train.py", "Run it by a command: fgsub --wrap='python3 train.py'"),
        ("fit.R", "Run it by a command: fgsub --wrap='Rscript fit.R'"),
        ("x", "A command without a script: fgsub --wrap='COMMAND'"),
    ],
)
def test_a_program_without_an_interpreter_line_is_refused_with_the_command_that_works(here, name, remedy):
    (here.path / name).write_text("import torch\n")
    with pytest.raises(BadUsage) as raised:
        here.prepare(name)
    assert raised.value.remedy == remedy


def test_an_account_may_be_a_mail_address_and_the_open_mode_one_letter(here):
    here.script("#SBATCH -A ann@lab.example --open-mode=a")
    request = here.request("train.sh")
    assert (request.account, request.append) == ("ann@lab.example", True)


def test_a_script_that_cannot_be_read_is_refused_by_name(here):
    os.mkfifo(here.path / "fifo")
    (here.path / "runs").mkdir()
    (here.path / "empty.sh").touch()
    here.script(name="big.sh", body="x" * (12 << 20))
    assert here.refused("none.sh") == "cannot read none.sh: No such file or directory"
    with pytest.raises(BadUsage) as raised:
        here.request("pyton3", "train.py")
    assert raised.value.remedy == "It is neither a file in this directory nor a command in PATH."
    assert here.refused("runs") == "runs is a directory, not a script"
    assert here.refused("") == "the name of the script is empty"
    assert here.refused("fifo") == "fifo is a FIFO, not a script"
    assert here.refused("/dev/null") == "/dev/null is a device, not a script"
    assert here.refused("empty.sh") == "empty.sh is empty"
    assert here.refused("big.sh") == "big.sh: script is 12.1 MiB; limit 4 MiB"
    assert here.refused("x" * 300) == f"cannot read {'x' * 80}…: File name too long"
    assert (
        here.refused("--wrap=true", "train.sh")
        == "--wrap takes no script and no arguments; remove 'train.sh'"
    )


def test_a_script_that_the_caller_may_not_read_is_refused():
    with tempfile.TemporaryDirectory(dir=memory()) as directory:
        here = Here(Path(directory))
        here.path.chmod(0o755)
        here.script()
        (here.path / "train.sh").chmod(0)
        caller = os.geteuid()
        if caller == 0:  # root may read everything
            os.seteuid(65534)
        try:
            assert here.refused("train.sh") == "cannot read train.sh: Permission denied"
        finally:
            os.seteuid(caller)


def test_standard_input_without_an_end_is_not_read_to_it(here):
    with open("/dev/zero", "rb") as endless:
        message = "standard input: script is more than 4 MiB; limit 4 MiB"
        assert here.refused("-", stdin=endless) == message


def test_a_directory_does_not_hide_a_program_of_its_name(here):
    (here.path / "true").mkdir()
    assert here.prepare("true").submission.script == b"#!/bin/sh\ntrue\n"


def test_a_text_file_without_an_interpreter_is_no_script_even_when_executable(here):
    (here.path / "train.sh").write_text("python train.py\n")
    (here.path / "train.sh").chmod(0o755)
    assert here.refused("train.sh").startswith("train.sh is not a script: its first line must start with #!")


# --- where a value comes from -----------------------------------------------------------------------------


def test_the_environment_beats_the_script_and_the_command_line_beats_both(here):
    here.script("#FG -G 0.5 -c 2 -t 10")
    request = here.request("-t", "30", "train.sh", FGSUB_CPUS_PER_TASK="4", FGSUB_TIMELIMIT="20")
    assert (request.demand.share, request.demand.cpus, request.time_limit) == (5000, 4, 1800)


def test_variables_of_sbatch_beat_headers_and_are_beaten_by_fgsubs_variables_and_options(here):
    here.script("#SBATCH -c 2 -t 10 -J a")
    variables = {
        "SBATCH_TIMELIMIT": "20",
        "SBATCH_JOB_NAME": "b",
        "SBATCH_ACCOUNT": "x",
        "FGSUB_JOB_NAME": "c",
    }
    request = here.request("-A", "lab", "train.sh", **variables)
    assert (request.demand.cpus, request.time_limit, request.name, request.account) == (2, 1200, "c", "lab")
    request = here.request("--ignore-sbatch", "train.sh", **variables)
    assert (request.demand.cpus, request.time_limit, request.name, request.account) == (1, 0, "c", "")


def test_one_form_of_an_amount_replaces_another_from_an_earlier_source(here):
    here.script("#FG --gpus=0.5 --mem=8G")
    request = here.request(
        "--fgpu=1", "--mem-per-cpu=1G", "-c2", "train.sh", site=SubmitContext(fgpu_per_gpu=4)
    )
    assert request.demand == Demand(gpus=1, share=2500, cpus=2, host_memory=2 * GIB)


def test_each_value_in_effect_is_explained_with_its_origin(here):
    here.script("#FG -G 0.5")
    rows = here.prepare("-H", "train.sh", FGSUB_TIMELIMIT="20").explained()
    assert ("--gpus", "0.5", "train.sh:2") in rows
    assert ("--time", "20", "FGSUB_TIMELIMIT") in rows
    assert ("--hold", "yes", "command line") in rows
    assert ("--partition", "main", "default") in rows
    assert ("--job-name", "train.sh", "default") in rows


def test_a_script_for_slurm_is_given_slurms_variables(here):
    here.script("#SBATCH --gpus=1")
    assert here.request("train.sh").slurm_env
    assert not here.request("--no-slurm-env", "train.sh").slurm_env
    assert not here.request("--ignore-sbatch", "train.sh").slurm_env


@pytest.mark.parametrize("argv", [("train.sh",), ("--wrap=true",), ("true",)])
def test_called_as_sbatch_its_defaults_are_those_of_sbatch(here, argv):
    here.script()
    request = here.request(*argv, called="sbatch")
    assert (request.output, request.slurm_env) == ("slurm-%j.out", True)
    assert here.request("--array=1-3", *argv, called="sbatch").output == "slurm-%A_%a.out"
    assert request.submit_line == command_line(["sbatch", *argv])
    assert here.request("-o", "x", "--no-slurm-env", *argv, called="sbatch").output == "x"
    assert here.request(*argv).output == "fg-%j.out"


def test_a_script_on_standard_input_of_sbatch_is_named_sbatch(here):
    assert here.request(stdin=io.BytesIO(b"#!/bin/sh\n"), called="sbatch").name == "sbatch"


@pytest.mark.parametrize(
    ("called", "header", "signal", "target"),
    [
        ("sbatch", "", "USR1", "children"),  # Slurm: all job steps, but not the batch shell
        ("sbatch", "", "B:USR1", "shell"),
        ("fgsub", "#SBATCH -J x", "USR1", "children"),
        ("fgsub", "#FG -J x", "USR1", "all"),
    ],
)
def test_the_early_signal_of_slurm_spares_the_shell(here, called, header, signal, target):
    here.script(header)
    assert here.request(f"--signal={signal}", "train.sh", called=called).early_signal.target == target


def test_no_generic_resources_can_be_requested_by_name(here):
    here.script()
    assert here.request("--gres=none", "train.sh").demand == here.request("train.sh").demand


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["-n8", "--ntasks-per-node=4"],
            "--ntasks-per-node=4: 8 tasks would need 2 nodes; fgsched schedules one host",
        ),
        (["--ntasks-per-gpu=2"], "--ntasks-per-gpu=2: tasks per GPU need --gpus or --gpu-mem"),
        (["--cpus-per-gpu=2"], "--cpus-per-gpu=2: CPUs per GPU need --gpus or --gpu-mem"),
        (
            ["-G1", "--cpus-per-gpu=2", "-c2"],
            "--cpus-per-gpu and --cpus-per-task exclude each other; give one",
        ),
    ],
)
def test_numbers_of_tasks_that_one_host_cannot_have_are_refused(here, argv, message):
    here.script()
    assert here.refused(*argv, "train.sh") == message


def test_a_script_for_slurm_has_the_variables_of_the_options_that_it_used(here):
    here.script("#SBATCH -n 4 --tasks-per-node=4 --gpus-per-node=a100:2 --mem-per-cpu=2G")
    submission = here.prepare("train.sh").submission
    assert submission.request.tasks == 4
    assert {name: text for name, text in submission.environment.items() if name.startswith("SLURM_")} == {
        "SLURM_NTASKS": "4",
        "SLURM_NPROCS": "4",
        "SLURM_TASKS_PER_NODE": "4",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_GPUS_PER_NODE": "a100:2",
        "SLURM_MEM_PER_CPU": "2048",
    }
    plain = here.prepare("--ignore-sbatch", "-n4", "--tasks-per-node=4", "train.sh").submission
    assert not [name for name in plain.environment if name.startswith("SLURM_")]


def test_flags_of_the_call_may_stand_in_the_script(here):
    here.script("#FG --wait --parsable -H")
    prepared = here.prepare("--json", "train.sh")
    assert (prepared.flags.wait, prepared.flags.parsable, prepared.flags.json) == (True, True, True)
    assert prepared.submission.hold


# --- amounts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "site", "demand"),
    [
        (["-G", "0"], SubmitContext(), Demand()),
        (["-G", "2"], SubmitContext(), Demand(gpus=2, share=10_000)),
        (["-G", "a100:0.5"], SubmitContext(), Demand(gpus=1, share=5000, gpu_type="a100")),
        (["-G", "1", "--type=v100"], SubmitContext(), Demand(gpus=1, share=10_000, gpu_type="v100")),
        (["--gpu-mem=6G"], SubmitContext(), Demand(gpus=1, memory=6 * GIB)),
        (["-n", "4"], SubmitContext(), Demand(cpus=4)),
        (["-n", "4", "-c", "2"], SubmitContext(), Demand(cpus=8)),
        (["--ntasks-per-node=3"], SubmitContext(), Demand(cpus=3)),
        (["--tasks-per-node=3", "-n2"], SubmitContext(), Demand(cpus=2)),
        (["-N1-4", "-G2", "--ntasks-per-gpu=2"], SubmitContext(), Demand(gpus=2, share=10_000, cpus=4)),
        (["-G2", "--cpus-per-gpu=8"], SubmitContext(), Demand(gpus=2, share=10_000, cpus=16)),
        (["-n4", "--gpus-per-task=1"], SubmitContext(), Demand(gpus=4, share=10_000, cpus=4)),
        (["-n2", "--gpus-per-task=0.25"], SubmitContext(), Demand(gpus=1, share=5000, cpus=2)),
        (["-n4", "--mem-per-cpu=1G"], SubmitContext(), Demand(cpus=4, host_memory=4 * GIB)),
        (["--gres=gpu:0"], SubmitContext(), Demand()),
        (["--gpu-mem=25%"], SubmitContext(), Demand(gpus=1, memory_part=2500)),
        (["--gpu-mem=0"], SubmitContext(), Demand(gpus=1, memory_part=10_000)),
        (["--gpu-mem=6G", "-G0.5"], SubmitContext(), Demand(gpus=1, share=5000, memory=6 * GIB)),
        (["--fgpu=0.5"], SubmitContext(fgpu_per_gpu=2), Demand(gpus=1, share=2500)),
        (["--fgpu=4"], SubmitContext(fgpu_per_gpu=2), Demand(gpus=2, share=10_000)),
        (["--gres=shard:1"], SubmitContext(shards_per_gpu=3), Demand(gpus=1, share=3333)),
        (["-G", "0.375"], SubmitContext(share_step=1250), Demand(gpus=1, share=3750)),
        (["-G1", "--mem-per-gpu=1G"], SubmitContext(), Demand(gpus=1, share=10_000, host_memory=GIB)),
        (["--mem=0"], SubmitContext(host_memory=64 * GIB), Demand(host_memory=64 * GIB)),
    ],
)
def test_what_is_asked_for_becomes_a_demand(here, argv, site, demand):
    assert here.request(*argv, "--wrap=true", site=site).demand == demand


STEP = SubmitContext(share_step=1250)


@pytest.mark.parametrize(
    ("argv", "site", "message"),
    [
        (
            ["-G", "0.3"],
            STEP,
            "--gpus=0.3 is not a multiple of this site's step of 0.125; use 0.25 or 0.375 of a GPU",
        ),
        (
            ["-G", "0.9"],
            STEP,
            "--gpus=0.9 is not a multiple of this site's step of 0.125; use 0.875 or 1 of a GPU",
        ),
        (
            ["-G", "0.01"],
            STEP,
            "--gpus=0.01 is not a multiple of this site's step of 0.125; use 0.125 or 0.25 of a GPU",
        ),
        (
            ["-G", "1.25"],
            STEP,
            "--gpus=1.25: fractions above one GPU are not possible; use 1 or 2, or --gpu-mem"
            " (above 1 only whole GPUs)",
        ),
        (
            ["--fgpu=1"],
            SubmitContext(),
            "--fgpu=1: this site defines no fGPU; use --gpus=FRACTION, such as --gpus=0.5",
        ),
        (["--fgpu=3"], SubmitContext(fgpu_per_gpu=2), "--fgpu=3: above one GPU only whole GPUs; use 2 or 4"),
        (
            ["--gres=shard:1"],
            SubmitContext(),
            "--gres=shard:1: this site defines no shard; use --gpus=FRACTION, such as --gpus=0.5",
        ),
        (
            ["--gres=gpuu:1"],
            SubmitContext(),
            "--gres=gpuu:1: invalid generic resource specification, there is no 'gpuu' here;"
            " did you mean gpu?",
        ),
        (
            ["--gres=fpga:1"],
            SubmitContext(resources=("neuron",)),
            "--gres=fpga:1: invalid generic resource specification, there is no 'fpga' here;"
            " there are gpu, neuron. Delete it;"
            ' unknown_gres = "warn" in fgsched.toml lets such jobs run without it',
        ),
        (
            ["--gres=fpga:1"],
            SubmitContext(resources=("neuron",), shards_per_gpu=4),
            "--gres=fpga:1: invalid generic resource specification, there is no 'fpga' here;"
            " there are gpu, shard, neuron. Delete it;"
            ' unknown_gres = "warn" in fgsched.toml lets such jobs run without it',
        ),
        (
            ["-G0", "--gpu-mem=1G"],
            SubmitContext(),
            "--gpu-mem=1G: GPU memory needs a GPU, and --gpus=0 asks for none",
        ),
        (
            ["-C", "a100"],
            SubmitContext(),
            "--constraint=a100: no such feature here: a100; there are none",
        ),
        (
            ["-C", "a100", "-G", "v100:1"],
            SubmitContext(),
            "--constraint=a100: no such feature here: a100; there are none",
        ),
        (
            ["--mem-per-gpu=1G"],
            SubmitContext(),
            "--mem-per-gpu=1G: memory per GPU needs --gpus or --gpu-mem (it is host memory; see --gpu-mem)",
        ),
        (
            ["--mem-per-cpu=999999T", "-c", "60000"],
            SubmitContext(),
            "--mem-per-cpu=999999T is larger than 2^63 bytes in all",
        ),
    ],
)
def test_an_amount_that_cannot_be_is_refused_with_what_can(here, argv, site, message):
    assert here.refused(*argv, "--wrap=true", site=site) == message


def test_host_memory_for_each_gpu_is_told_from_the_memory_of_the_gpu(here):
    said = "--mem-per-gpu is memory of the host; for memory of the GPU use --gpu-mem"
    assert here.prepare("-G1", "--mem-per-gpu=1G", "--wrap=true").warnings == (said,)
    assert here.prepare("-G1", "--mem-per-gpu=1G", "--gpu-mem=1G", "--wrap=true").warnings == ()


# --- directories ------------------------------------------------------------------------------------------


def test_the_directory_of_the_output_must_be_there(here):
    message = "--output=logs/x/%j.out: directory logs/x does not exist (use --mkdir to make it)"
    assert here.refused("--output=logs/x/%j.out", "--wrap=true") == message
    assert not (here.path / "logs").exists()


def test_the_directory_of_the_output_is_made_when_asked(here):
    here.prepare("--output=logs/%x/%j.out", "--error=err/%j", "--mkdir", "--wrap=true")
    assert (here.path / "logs" / "wrap").is_dir()
    assert (here.path / "err").is_dir()


def test_a_directory_of_the_job_itself_is_left_to_the_job(here):
    assert here.request("--output=logs/%j/x", "--wrap=true").output == "logs/%j/x"
    assert not (here.path / "logs").exists()


def test_other_bad_outputs_are_refused(here):
    here.script()
    assert here.refused("-o", "train.sh/x", "train.sh") == "--output=train.sh/x: train.sh is not a directory"
    assert here.refused("-o", ".", "train.sh") == "--output=. is a directory, not a file"
    here.script("#FG --output=$HOME/x")
    assert here.refused("train.sh") == (
        "train.sh:2: --output=$HOME/x: directory $HOME does not exist"
        " ($HOME is not expanded in headers; use %h)"
    )


def test_letters_of_slurm_without_a_meaning_here_are_pointed_out(here):
    assert here.prepare("-o", "%S-%j", "--wrap=true").warnings == ("--output: %S is left as it is",)


@pytest.mark.parametrize("text", ["2001-01-01", "now-1hour", "2001-03-25T02:30"])
def test_a_begin_time_that_has_passed_is_told(here, text):
    said = f"--begin={text} has passed; the job can start now"
    prepared = here.prepare(f"--begin={text}", "--wrap=true")
    assert (prepared.submission.request.begin, prepared.warnings) == (0, (said,))


@pytest.mark.parametrize("text", ["now", "now+1hour", "2099-07-01T02:30", "23:59:59"])
def test_a_begin_time_to_come_needs_no_warning(here, text):
    assert here.prepare(f"--begin={text}", "--wrap=true").warnings == ()


def test_a_begin_time_that_the_change_of_the_clocks_skips_is_told_with_the_next_one(here, zone):
    zone("CET-1CEST,M3.5.0,M10.5.0/3")
    said = (
        "--begin=2099-03-29T02:30 is skipped by the change of the clocks; "
        "the job can start at 2099-03-29T03:00:00"
    )
    assert here.prepare("--begin=2099-03-29T02:30", "--wrap=true").warnings == (said,)
    assert here.prepare("--begin=2099-03-29T03:00", "--wrap=true").warnings == ()


@pytest.mark.parametrize(
    ("words", "is_warned"),
    [
        (("-a1-2", "-o", "same"), True),
        (("-a1-2", "-e", "%A-%%a"), True),
        (("-a1-2", "-o", "%A_%a"), False),
        (("-a1-2", "-o", "%j"), False),
        (("-a1-2", "-o", "/dev/null"), False),
        (("-a1-2", "-o", "same", "--open-mode=append"), False),
        (("-o", "same"), False),
    ],
)
def test_tasks_that_share_a_file_are_warned_of(here, words, is_warned):
    option = "--error" if "-e" in words else "--output"
    said = f"{option}: all tasks of the array overwrite one file; %a is their index"
    assert here.prepare(*words, "--wrap=true").warnings == ((said,) if is_warned else ())


def test_a_working_directory_that_cannot_be_entered_is_refused(here):
    here.script()
    assert here.refused("--chdir=none", "train.sh") == "--chdir=none: No such file or directory"
    assert here.refused("--chdir=train.sh", "train.sh") == "--chdir=train.sh: Not a directory"


# --- the environment --------------------------------------------------------------------------------------


def environment(here, export, **variables):
    return here.prepare(f"--export={export}", "--wrap=true", **variables).submission.environment


@pytest.mark.parametrize(
    ("export", "expected"),
    [
        ("ALL", ENVIRON),
        ("NONE", {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/ann"}),
        ("A,B=x", {"A": "1", "B": "x"}),
        ("ALL,A=2", {**ENVIRON, "A": "2"}),
        ("B='x,y',C=\"1 2\",D=", {"B": "x,y", "C": "1 2", "D": ""}),
        ("B=x=y", {"B": "x=y"}),
        ("B=it's", {"B": "it's"}),
        ("B=a\nb", {"B": "a\nb"}),
    ],
)
def test_the_job_gets_the_variables_that_are_exported(here, export, expected):
    assert environment(here, export) == expected


def test_functions_of_the_shell_go_with_all_and_cannot_be_named(here):
    function = {"BASH_FUNC_x%%": "() { :; }"}
    assert environment(here, "ALL", **function) == {**ENVIRON, **function}
    assert here.refused("--export=BASH_FUNC_x%%", "--wrap=true", **function) == (
        "--export=BASH_FUNC_x%%: BASH_FUNC_x%% is not a variable's name"
    )


@pytest.mark.parametrize(
    ("export", "name"), [("=x", "''"), ("1A=x", "1A"), ("A,,B", "''"), ("", "''"), ("A b", "'A b'")]
)
def test_what_is_no_variables_name_is_refused(here, export, name):
    message = f"--export={options.shown(export)}: {name} is not a variable's name"
    assert here.refused(f"--export={export}", "--wrap=true") == message


def test_a_variable_that_is_not_set_is_pointed_out(here):
    warnings = here.prepare("--export=A,NONESUCH", "--wrap=true").warnings
    assert warnings == ("--export: NONESUCH is not set, so the job will not have it",)


def test_an_environment_that_is_too_large_is_refused(here):
    assert here.refused("--export=ALL,X=" + "x" * (3 << 20), "--wrap=true") == (
        "--export: the variable X is 3145731 bytes; limit 131072"
    )
    many = {f"V{number}": "x" * 100_000 for number in range(11)}
    assert here.refused("--wrap=true", **many).startswith("--export: the environment is 11")


def test_bytes_that_are_not_utf8_survive(here):
    assert environment(here, "ALL", B="\udcff")["B"] == "\udcff"


def test_entries_without_a_proper_name_are_dropped_and_counted(here):
    prepared = here.prepare("--wrap=true", **{"": "x", "a=b": "y"})
    assert prepared.submission.environment == ENVIRON
    assert prepared.warnings == ("2 entries of the environment have no proper name and were dropped",)


def test_the_users_preload_is_kept_and_the_hook_of_the_job_that_submits_is_not(here):
    preload = "/run/fg/job/1.1/libfgshim.so:/opt/mine.so"
    assert environment(here, "ALL", LD_PRELOAD=preload)["LD_PRELOAD"] == "/opt/mine.so"
    assert "LD_PRELOAD" not in environment(here, "ALL", LD_PRELOAD="/run/libfgshim.so")
    assert environment(here, "ALL", LD_PRELOAD="/a.so /b.so")["LD_PRELOAD"] == "/a.so /b.so"


# --- batches ----------------------------------------------------------------------------------------------


def same(prepared, other):
    return replace(prepared, settings={}, place="") == replace(other, settings={}, place="")


def test_each_line_of_a_batch_is_a_submission(here):
    here.script("#FG -G 0.5")
    found = here.batch("train.sh 1", "", "  # a comment", "-c 2 train.sh 'a b'", "--wrap='echo x'", "true x")
    assert [each.submission.request.args for each in found] == [("1",), ("a b",), (), ()]
    assert [each.submission.request.name for each in found] == ["train.sh", "train.sh", "wrap", "true"]
    assert found[0].submission.script is found[1].submission.script
    assert found[0].submission.environment is found[1].submission.environment


def test_options_beside_a_batch_are_defaults_for_its_lines(here):
    here.script()
    found = here.batch(
        "train.sh", "--fgpu=1 train.sh", common=["-G1", "-c2"], site=SubmitContext(fgpu_per_gpu=4)
    )
    assert [each.submission.request.demand for each in found] == [
        Demand(gpus=1, share=10_000, cpus=2),
        Demand(gpus=1, share=2500, cpus=2),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-G x train.sh", "--gpus=x is not a number (use 0 < fraction ≤ 1 or a whole number)"),
        ("none.sh", "cannot read none.sh: No such file or directory"),
        ("-G1", "no script given"),
        ("-", "no script given"),
        ("train.sh 'a", "no closing quotation in 'train.sh 'a'"),
        ("--wait train.sh", "--wait concerns the whole list; give it beside --batch"),
        ("--batch=x", "--batch concerns the whole list; give it beside --batch"),
        ("train.sh \0", "a NUL byte cannot be part of a command line"),
    ],
)
def test_a_bad_line_is_refused_with_file_and_line(here, line, message):
    here.script()
    with pytest.raises(BadUsage) as raised:
        here.batch("train.sh", "", line)
    assert raised.value.cause == f"jobs.txt:3: {message}"


def test_a_list_is_read_from_a_file_or_from_standard_input(here):
    (here.path / "jobs.txt").write_bytes(b"a\nb \xff\n")
    assert read_lines(str(here.path / "jobs.txt"), None)[1] == ["a", "b \udcff", ""]
    assert read_lines("-", io.BytesIO(b"a")) == ("standard input", ["a"])
    with pytest.raises(BadUsage) as raised:
        read_lines("/none", None)
    assert raised.value.cause == "cannot read /none: No such file or directory"


OPTION_WORDS = st.lists(
    st.sampled_from(
        ["-G0.5", "--gpus=1", "-c2", "-t 10", "--gpu-mem=1G", "-H", "-J x", "--mem=1G", "--mem-per-cpu=2G",
         "--export=NONE", "--comment=a b", "-n2", "--gpus=x"]
    ),
    max_size=4,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    lines=st.lists(
        st.tuples(
            OPTION_WORDS, st.sampled_from(["train.sh", "true"]), st.lists(st.text("ab '\"\\$\n#", max_size=4))
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_batch_gives_what_each_line_gives_alone(here, lines):
    here.script("#FG -G 0.25", "#FG --time=5")
    argvs = [[*given_options, script, *args] for given_options, script, args in lines]
    try:
        alone = [here.prepare(*argv) for argv in argvs]
    except BadUsage as error:
        with pytest.raises(BadUsage) as raised:
            here.batch(*map(command_line, argvs))
        assert raised.value.cause.split(": ", 1)[1] == error.cause  # noqa: PT017
    else:
        together = here.batch(*map(command_line, argvs))
        assert all(same(*pair) for pair in zip(alone, together, strict=True))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    data=st.one_of(st.binary(), st.text().map(str.encode)),
    words=st.lists(
        st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])), max_size=4
    ),
)
def test_any_script_with_any_words_is_a_submission_or_refused(here, data, words):
    (here.path / "any.sh").write_bytes(b"#!/bin/sh\n#FG " + data)
    try:
        prepared = here.prepare("any.sh", *words)
    except FgschedError as error:
        assert error.cause.isprintable()  # noqa: PT017
    else:
        assert prepared.submission.request.args == tuple(words)


def test_ten_thousand_lines_read_the_script_once(here, monkeypatch):
    here.script("#FG -G 0.5")
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: opened.append(path) or real(path, *rest))
    found = here.batch(*(f"-J run{number} train.sh {number}" for number in range(10_000)))
    assert len(found) == 10_000
    assert len(opened) == 1


@pytest.mark.parametrize(("length", "is_read"), [(4096, True), (4097, False)])
def test_a_long_variable_that_is_an_option_is_read_by_the_submitter(length, is_read):
    """The controller reads a command line between two turns, and a request may have 8 MiB."""
    call = protocol.SubmitLine(
        **{"key": "k" * 32, "words": ["a.sh"], "cwd": "/", "umask": 0o22, "rlimits": []},
        **{"environ": ["FGSUB_COMMENT=".ljust(length, "a")], "files": {"a.sh": "#!/bin/sh\n"}},
    )
    handlers = LineHandlers(
        lambda caller, submission, key, now: protocol.Submitted(first=1, count=1),
        lambda caller: SubmitContext(),
    )
    assert (
        handlers.submit_line(Caller(1000, 1000, "ann", is_operator=False), call, 0.0).elsewhere is not is_read
    )


def test_a_list_of_submissions_is_read_by_the_submitter():
    call = protocol.SubmitLine(
        **{"key": "k" * 32, "words": ["--batch=list", "a.sh"], "cwd": "/", "umask": 0o22, "rlimits": []},
        **{"environ": [], "files": {"a.sh": "#!/bin/sh\n"}},
    )
    handlers = LineHandlers(
        lambda caller, submission, key, now: protocol.Submitted(first=1, count=1),
        lambda caller: SubmitContext(),
    )
    assert handlers.submit_line(Caller(1000, 1000, "ann", is_operator=False), call, 0.0).elsewhere


@pytest.mark.parametrize(
    ("output", "is_read"),
    [("out/%j.out", True), ("/u/%x/h.txt", True), ("%%u.out", True), ("%u.out", False), ("%h/%j.out", False)],
)
def test_only_a_file_that_is_named_by_user_or_home_needs_the_user_database_of_the_submitter(output, is_read):
    call = protocol.SubmitLine(
        **{"key": "k" * 32, "words": [f"--output={output}", "a.sh"], "cwd": "/", "umask": 0o22},
        **{"rlimits": [], "environ": [], "files": {"a.sh": "#!/bin/sh\n"}, "checked": True},
    )
    submissions = []
    handlers = LineHandlers(
        lambda caller, submission, key, now: (
            submissions.append(submission) or protocol.Submitted(first=1, count=1)
        ),
        lambda caller: SubmitContext(),
    )
    answer = handlers.submit_line(Caller(1000, 1000, "ann", is_operator=False), call, 0.0)
    assert answer.elsewhere is not is_read
    assert [submission.request.output for submission in submissions] == [output] * is_read
