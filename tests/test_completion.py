"""Shell completions: every command has them, and bash completes with them."""

import os
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from fgsched.cli import shells
from fgsched.cli.install import slurmnames
from live_host import attempts, living

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMMANDS = {name: f"fgsched.cli.{name}:main" for name in PYPROJECT["tool"]["fgsched"]["native-commands"]}
FILES = {"bash": "bash/{}", "zsh": "zsh/_{}", "fish": "fish/{}.fish"}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The completions as a build writes them."""
    folder = tmp_path_factory.mktemp("completions")
    subprocess.run([sys.executable, "-I", ROOT / "scripts" / "make-completions", folder], check=True)
    return folder


@pytest.mark.parametrize("shell", FILES)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_completion_for_every_shell(command, shell, written):
    text = (written / FILES[shell].format(command)).read_text()
    assert f"_{command.upper()}_COMPLETE=" in text


def test_the_build_writes_the_completions_of_the_commands_and_nothing_else(written):
    there = {path for path in written.rglob("*") if path.is_file()}
    assert there == {written / name.format(one) for name in FILES.values() for one in COMMANDS}


@pytest.fixture
def environment(tmp_path):
    """Commands on the PATH as an installation would put them there."""
    for command in COMMANDS:
        path = tmp_path / command
        named = f"import sys\nsys.argv[1:1] = ['{command}', '']\n"
        path.write_text(f"#!{sys.executable}\n{named}from fgsched.cli.start import main\nmain()\n")
        path.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def completions(written, command, words, environment):
    """The words that bash offers for the last word."""
    program = (
        f"source {written}/bash/{command}; "
        f"COMP_WORDS=({words}) COMP_CWORD=1; _{command}; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize("command", COMMANDS)
def test_bash_completes_what_a_command_takes(command, written, environment):
    assert completions(written, command, f"{command} --", environment) or completions(
        written, command, f"{command} ''", environment
    )


def test_bash_completes_a_part_of_an_option(written, environment):
    assert completions(written, "fgsub", "fgsub --gpu-m", environment) == ["--gpu-mem"]


@pytest.mark.parametrize("instruction", ["bash_source", "bash_complete"])
def test_completions_that_cannot_be_written_are_reported_in_one_line(environment, instruction):
    asked = {"_FGQ_COMPLETE": instruction, "COMP_WORDS": "fgq --", "COMP_CWORD": "1"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            ["fgq"], env=environment | asked, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (
        6,
        "fgq: error: cannot write the output: No space left on device\n",
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_while_a_command_is_imported_prints_nothing(command, environment, tmp_path):
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "click.py").write_text("raise KeyboardInterrupt\n")
    environment = environment | {"PYTHONPATH": f"{tmp_path / 'early'}:{ROOT}"}
    done = subprocess.run([command], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_build_knows_every_command():
    assert set(shells.COMMANDS) == set(COMMANDS)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A controller with a job and two partitions."""
    config = "[host]\ncpus = 4\n[partitions.main]\n[partitions.half_gpu]\ngpus = 0.5\n"
    with living(tmp_path_factory.mktemp("completing") / "home", config=config) as home:
        home.submit(hold=True)
        yield home


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Return the file with what `fgsched completion SHELL` prints, which runs once for each shell."""
    folder = tmp_path_factory.mktemp("printed")

    @cache
    def of(shell):
        command = [sys.executable, "-m", "fgsched.cli.fgsched", "completion", shell]
        done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        (folder / shell).write_bytes(done.stdout)
        return folder / shell

    return of


VALUES = {
    "fgcancel ''": ["1"],
    "fgctl hold ''": ["1"],
    "fgctl show job ''": ["1"],
    "fgctl show partition ''": ["main", "half_gpu"],
    "fgctl show gpu ''": ["0", "1"],
    "fgsched help gloss": ["glossary"],
    "fgsched help fgq": ["fgq"],
    "fgsub -p ha": ["half_gpu"],
    "fgsub -p main,ha": ["main,half_gpu"],
    "fgsub --partition = ha": ["half_gpu"],
    "fgsub --partition =": ["main", "half_gpu"],
    "fgq -t pend": ["PENDING"],
    "fgq -O prior": ["Priority", "PriorityLong"],
    "fgacct -o JobID,maxg": ["JobID,MaxGPUMem"],
    "fgq -u ''": ["root"],
    "fgsub --mail-type=FAIL,TIME_LIMIT_9": ["FAIL,TIME_LIMIT_90"],
    "fgsub --mail-type = FAIL,TIME_LIMIT_9": ["FAIL,TIME_LIMIT_90"],
}


@pytest.mark.parametrize("line", VALUES)
def test_bash_completes_values_that_the_controller_and_the_tables_know(line, site, environment, printed):
    """What `fgsched completion bash` prints is all that a shell needs; bash makes a word of each =."""
    words = line.split()
    program = (
        f'eval "$(cat {printed("bash")})"; '
        f"COMP_WORDS=({line}) COMP_CWORD={len(words) - 1}; _{words[0]}; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    given = {**environment, **site.environ, "PATH": environment["PATH"]}
    for _ in attempts():  # a completion offers nothing rather than wait for more than a second
        done = subprocess.run(["bash", "-c", program], env=given, capture_output=True, text=True)
        if done.stdout.split():
            break
    assert (done.stdout.split(), done.stderr) == (VALUES[line], "")


OF_SLURM = {
    "sbatch --gpu-m": ["--gpu-mem"],
    "sbatch -p ha": ["half_gpu"],
    "squeue -t pend": ["PENDING"],
    "squeue -O prior": ["Priority", "PriorityLong"],
    "scancel ''": ["1"],
    "sacct -o JobID,maxg": ["JobID,MaxGPUMem"],
    "scontrol show job ''": ["1"],
    "sprio -u ''": ["root"],
    "sattach ''": ["1"],
    "srun --gpus-per-n": ["--gpus-per-node"],
    "srun --partition = ha": ["half_gpu"],
    "salloc -p ma": ["main"],
    "sinfo -p ma": ["main"],
    "sstat -j ''": ["1"],
    "seff ''": ["1"],
    "sshare -u ''": ["root"],
    "sacctmgr show us": ["user"],
    "sreport cluster Util": ["Utilization"],
}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A directory with the names of Slurm and their completions."""
    prefix = tmp_path_factory.mktemp("slurm")
    (prefix / "share").mkdir()
    slurmnames.install(prefix / "bin", {"PATH": str(prefix / "bin")})
    return prefix


def test_every_name_of_slurm_is_completed():
    assert {line.split()[0] for line in OF_SLURM} == set(slurmnames.names())


@pytest.mark.parametrize("line", OF_SLURM)
def test_bash_completes_the_names_of_slurm_and_calls_no_program_of_this_name(line, slurm, site, tmp_path):
    words = line.split()
    foreign = tmp_path / words[0]
    foreign.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    foreign.chmod(0o755)
    program = (
        f"source {slurm}/share/bash-completion/completions/{words[0]}; "
        f"COMP_WORDS=({line}) COMP_CWORD={len(words) - 1}; _{words[0]}; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    given = {**site.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for _ in attempts():  # as above
        done = subprocess.run(["bash", "-c", program], env=given, capture_output=True, text=True)
        if done.stdout.split():
            break
    assert (done.stdout.split(), done.stderr) == (OF_SLURM[line], "")
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("shell", FILES)
def test_the_names_of_slurm_that_run_fgsched_are_printed_with_the_commands(shell, slurm, tmp_path):
    foreign = tmp_path / "sacct"
    foreign.write_text("#!/bin/sh\n")
    foreign.chmod(0o755)
    command = [sys.executable, "-m", "fgsched.cli.fgsched", "completion", shell]

    def printed_with(*path):
        environ = os.environ | {"PYTHONPATH": str(ROOT), "PATH": ":".join(map(str, path))}
        text = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
        return {name for name in slurmnames.names() if f"_{name.upper()}_COMPLETE=" in text}

    every = set(slurmnames.names())
    assert printed_with("/nowhere") == set()
    assert printed_with(slurmnames.BIN) == every
    assert printed_with(tmp_path, slurm / "bin") == every - {"sacct"}


def test_without_a_controller_nothing_is_started_and_files_are_offered(tmp_path, environment):
    given = {**environment, "FG_HOME": str(tmp_path / "home"), "COMP_WORDS": "fgcancel ", "COMP_CWORD": "1"}
    done = subprocess.run(
        ["fgcancel"], env=given | {"_FGCANCEL_COMPLETE": "bash_complete"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("shell", FILES)
def test_the_completions_of_every_command_are_printed_for_every_shell(shell, printed):
    text = printed(shell).read_text()
    assert all(f"_{command.upper()}_COMPLETE=" in text for command in COMMANDS)
