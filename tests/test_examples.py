"""The examples do what they say."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fgsched.config.load import load
from fgsched.system.paths import Paths

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
HOST = os.uname().nodename.partition(".")[0]
pytestmark = pytest.mark.compiler  # jobs need the spawner


def submitted(done):
    assert done.status == 0, done.err
    return [int(line.removeprefix("Submitted batch job ")) for line in done.lines]


def output(home, name):
    """What one job wrote, once it is over and well."""
    job_id = int(name.partition("-")[2].partition(".")[0])
    (job,) = home.wait(job_id)
    text = (home.path / name).read_text()
    assert job["state"] == "COMPLETED", text
    return text.splitlines()


def test_hello_tells_its_share(home):
    (job_id,) = submitted(home.run("fgsub", str(EXAMPLES / "hello.sh"), "one", "two words"))
    assert output(home, f"fg-{job_id}.out") == [
        f"job {job_id} on {HOST}: 0.25 of GPU 0, 4096 MiB of its memory",
        "arguments: one two words",
    ]


def test_a_script_for_slurm_runs_unchanged(home):
    done = home.run("fgsub", str(EXAMPLES / "slurm_job.sh"))
    (job_id,) = submitted(done)
    assert done.err == ""
    assert output(home, f"slurm-{job_id}.out") == [
        f"job {job_id} (from-slurm) on {HOST}",
        "GPUs 0, 1 CPU",
    ]


def test_a_sweep_is_queued_by_one_request(home):
    program = home.path / "fgsub"
    program.write_text(f"#!{sys.executable}\nfrom fgsched.cli.fgsub import main\nmain()\n")
    program.chmod(0o755)
    assert home.client  # a controller runs: the commands say nothing of its start
    done = subprocess.run(
        ["bash", EXAMPLES / "sweep.sh", "--parsable"],
        env=home.environ | {"PATH": f"{home.path}:{os.environ['PATH']}"},
        cwd=home.path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    ids = [int(line) for line in done.stdout.splitlines()]
    last = [output(home, f"sweep-{job_id}.out")[-1] for job_id in ids]
    assert last == [
        f"arguments: --rate {rate} --seed {seed}" for rate in ("0.1", "0.01", "0.001") for seed in (1, 2)
    ]


def test_the_training_step_says_what_is_missing_or_stays_within_its_quarter(home):
    """It ends with 1 and a sentence where torch or a card is missing."""
    shutil.copytree(EXAMPLES, home.path / "examples")
    job = submitted(home.run("fgsub", "examples/torch_quarter.sh", env={"PYTHON": sys.executable}))
    (ended,) = home.wait(*job)
    text = (home.path / f"fg-{job[0]}.out").read_text()
    if ended["state"] == "COMPLETED":
        assert "twice the share: refused" in text
    else:
        assert text.startswith(("There is no torch", "torch sees no CUDA device"))


def test_the_configuration_of_a_laboratory_is_valid_and_every_line_is_explained(tmp_path):
    file = EXAMPLES / "lab.toml"
    load(Paths(mode="user", home=tmp_path, state=tmp_path, run=tmp_path, config_file=file))
    page = (ROOT / "docs/administration.md").read_text()
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    tables = {f"[{name}]" for name in ("gpus", "host", "jobs", "operators", "priority", "accounts.language")}
    assert [
        line for line in lines if line not in tables and f"`{line}`" not in page and line not in AGAIN
    ] == []


AGAIN = {
    "max_running_per_user = 2",
    'max_time = "30:00"',
    "max_gpus = 0.25",
}  # explained with their partition
AGAIN |= {'max_time = "10:00:00"', 'max_time = "7-00:00:00"', 'preempt_mode = "requeue"', "shares = 1"}
AGAIN |= {"preempt_grace = 120"}
