"""The steps of a job: their records, which of them are kept, and how they reach the accounts."""

import os
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

from awaiting import PATIENCE, until
from crashing import kill_controller, leftovers
from fgsched.domain.errors import Exit
from fgsched.domain.job import Job, Request
from fgsched.domain.jobsteps import (
    FIRST,
    LAST,
    SLOT,
    STORED,
    TABLE,
    JobStep,
    closed,
    ended,
    highest,
    offset,
    read_stored,
    read_table,
    record,
    started,
    stored,
)
from fgsched.domain.states import JobState
from fgsched.launch import launcher

HOSTILE = 'a|b,"c"\n\x1b[31m=1+1é\udcff' + "x" * 100


def step(number, **more):
    values = {"name": "train", "tasks": 2, "cpus": 4, "gpus": (0, 1), "started_at": 100.0}
    return JobStep(number=number, **(values | more))


def table_of(steps):
    table = bytearray(TABLE)
    for one in steps:
        table[offset(one.number) : offset(one.number) + SLOT] = record(one)
    return bytes(table)


# -- records -------------------------------------------------------------------------------------------


def test_the_first_and_the_last_steps_of_a_job_with_very_many_are_kept():
    found = read_table(table_of(step(number) for number in range(10_000)))
    assert [one.number for one in found] == [*range(FIRST), *range(10_000 - LAST, 10_000)]


def test_a_record_always_fits_into_its_slot():
    numbers = {"cpu_seconds": 1e12 / 3, "max_rss": 2**50, "disk_read": 2**50, "disk_written": 2**50}
    numbers |= {"pid": 2**31, "start": 2**50, "tasks": 2**31, "cpus": 2**31, "ended_at": 1e10 / 3}
    one = step(2**31, name='"' * 1000, gpus=tuple(range(1000)), state=JobState.CANCELLED, **numbers)
    data = record(started(one))
    assert len(data) == SLOT
    slot = offset(2**31)
    assert [found.name for found in read_table(bytes(slot) + data)] == ['"' * 48]


def test_the_name_of_a_step_has_no_control_characters():
    name = 'a|b,"c"??[31m=1+1é?'
    assert started(step(0, name=HOSTILE)).name == name + "x" * (48 - len(name))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nonsense",
        b"[]",
        b'[1,"x",1,1,[],1]',  # in the slot of step 0
        b'[0,"x",-1,1,[],1]',
        b'[0,"x",1,1,[],1e300]',
        b'[0,"x",1,1,[],1,2]',  # ended and running
        b'[0,"x",1,1,[],1,null,"COMPLETED"]',
        b'[0,"x",1,1,[],1,2,"PENDING"]',
        b'[0,"\xff",1,1,[],1]',
    ],
)
def test_a_slot_that_is_no_record_is_left_out(text):
    good = step(1)
    assert read_table(text.ljust(SLOT) + record(good)) == [good]


def test_the_end_of_a_step_follows_from_the_highest_status_of_its_tasks():
    ends = [
        (one.state.value, one.exit_code, one.signal) for one in (ended(step(0), s, 3.0) for s in (0, 768, 15))
    ]
    assert ends == [("COMPLETED", 0, 0), ("FAILED", 3, 0), ("CANCELLED", 0, 15)]


def test_a_step_without_an_end_was_killed_with_its_job():
    over = ended(step(0, pid=7, start=8), 256, 150.0)
    killed = step(1, ended_at=200.0, state=JobState.CANCELLED, signal=9)
    assert read_stored(stored([over, step(1, pid=7, start=8)], 200.0)) == [over, killed]
    assert closed(step(1, started_at=300.0), 200.0).ended_at == 300.0, "no step ends before it begins"
    assert highest([over, killed]) == (1, 0)


def test_the_stored_steps_of_a_job_are_limited():
    usual = [
        ended(step(number, started_at=1795395583.897), 0, 1795395593.897) for number in range(FIRST + LAST)
    ]
    assert read_stored(stored(usual, 0.0)) == usual
    large = [step(number, name='"' * 48, gpus=tuple(range(100, 132))) for number in range(FIRST + LAST)]
    text = stored(large, 200.0)
    assert STORED // 2 < len(text) < STORED
    numbers = [one.number for one in read_stored(text)]
    assert (numbers[0], numbers[-1]) == (0, FIRST + LAST - 1)


def test_damaged_steps_are_none():
    assert [read_stored(text) for text in ("", "[[", "[[0]]")] == [[], [], []]


# -- the file, which belongs to the user of the job -----------------------------------------------------


@pytest.fixture
def job(tmp_path):
    (tmp_path / "job" / "7.1" / "steps").mkdir(parents=True)
    uid = os.geteuid()
    return Job(id=7, uid=uid, gid=0, user="ann", request=Request(name="x"), submitted_at=0.0, attempt=1)


def test_only_a_file_of_the_user_on_the_way_to_it_is_read(tmp_path, job):
    table = tmp_path / "job" / "7.1" / "steps" / "table"
    assert launcher.read(tmp_path, job) == []
    table.write_bytes(table_of([step(0)]))
    assert launcher.read(tmp_path, job) == [step(0)]
    assert launcher.read(tmp_path, job.changed(uid=12345)) == []
    table.rename(tmp_path / "elsewhere")
    table.symlink_to(tmp_path / "elsewhere")
    assert launcher.read(tmp_path, job) == [], "a link"
    table.unlink()
    os.mkfifo(table)
    assert launcher.read(tmp_path, job) == [], "a FIFO, which does not block"


def test_a_step_whose_srun_is_gone_does_not_run(tmp_path, job):
    gone = step(0, pid=2**22, start=1)
    (tmp_path / "job" / "7.1" / "steps" / "table").write_bytes(table_of([gone]))
    assert launcher.read_running(tmp_path, job, "boot") == [closed(gone, None)]


# -- what srun records ---------------------------------------------------------------------------------


def srun(path: Path, *words: str) -> None:
    environ = {
        "PATH": os.environ["PATH"],
        "FG_JOB_ID": "7",
        "FG_CPUS_ON_NODE": "4",
        "CUDA_VISIBLE_DEVICES": "3,5",
    }
    command = [sys.executable, "-m", "fgsched.slurm.srun", *words]
    environ |= {"FG_JOB_DIR": f"{path}/job/7.1", "FG_JOB_NODELIST": "node"}
    subprocess.run(command, env=environ, cwd=path, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_srun_records_each_step(tmp_path, job):
    srun(tmp_path, "-n2", "-c2", "--gpus=1", "true")
    srun(tmp_path, "-J", HOSTILE, "sh", "-c", "exit 3")
    srun(tmp_path, "-o", "missing/out", "true")
    first, second, third = launcher.read(tmp_path, job)
    assert (first.name, first.tasks, first.cpus, first.gpus, first.state.value) == (
        "true",
        2,
        4,
        (0,),
        "COMPLETED",
    )
    assert (second.exit_code, second.state.value, second.gpus) == (3, "FAILED", (0, 1))
    assert second.ended_at >= second.started_at
    assert second.max_rss > 0
    assert (third.exit_code, third.state.value) == (1, "FAILED")


# -- the accounts --------------------------------------------------------------------------------------


def test_steps_reach_the_accounts_also_if_the_controller_was_killed_meanwhile(home):
    """The job ends while there is no controller; the next one finds result and steps."""
    for name in ("gate", "began"):
        os.mkfifo(home.path / name)
    steps = [f"srun -n2 -c1 -J '{HOSTILE[:12]}' true", "srun sh -c 'exit 3'"]
    last = ["srun sh -c 'echo >began; exec sleep 600' &", "read x <began; read x <gate; exit 0"]
    (home.path / "job.sh").write_text("\n".join(["#!/bin/sh", "#SBATCH -n 2 --gpus=1", *steps, *last, ""]))
    assert home.run("fgsub", "-o", "out", "job.sh").status == 0
    gate = os.open(home.path / "gate", os.O_WRONLY)  # waits until the script reads
    kill_controller(home)
    os.write(gate, b"\n")
    os.close(gate)
    until(home.paths.run / "result", lambda: os.listdir(home.paths.run / "result"))
    form = "JobID,JobName,NTasks,AllocCPUS,State,ExitCode,DerivedExitCode"
    out = home.run("fgacct", "--steps", "-nP", "-j1", "-o", form).lines
    out[-1] = out[-1].replace("|0:9|", "|0:15|")  # srun has two seconds to tell how it ended
    assert out == [
        "1|job.sh|2|2|COMPLETED|0:0|3:0",
        "1.batch|batch|1|2|COMPLETED|0:0|",
        '1.0|a?b,"c"??[31|2|2|COMPLETED|0:0|',
        "1.1|sh|2|2|FAILED|3:0|",
        "1.2|sh|2|2|CANCELLED|0:15|",
    ]
    assert len(home.run("fgacct", "-nP", "-j1").lines) == 1
    (document,) = home.run("fgacct", "--steps", "--json", "-j1.1").json["jobs"]
    assert [(one["step"], one["exit_code"], one["gpu_idx"]) for one in document["steps"]] == [("1", 3, [0])]
    assert home.ended("exit 0") == 2
    until(home.paths.run / "job", lambda: not leftovers(home.paths.run))


JOB = """#!/bin/bash
#SBATCH -n 2 -t 10
srun -n2 -c1 -J 'a|b' sh -c 'trap "echo usr >told" USR1; echo >gate; while :; do sleep 600 & wait; done' &
read line <second
srun --overlap -n1 sh -c 'echo >gate; exec sleep 600'
echo $? >status
wait
"""
COMMANDS = """
squeue --steps -h -o '%i|%j|%P|%A|%C' 1
squeue -hs1.1 -o %i
scontrol -o show step 1.1 | cut -d' ' -f5-8,10-
sstat -naP -j1 -o jobid,ntasks
sstat -nP -j1.0 -o jobid
sacct -nP -j1 -o jobid,state
scancel -s USR1 1.0
scancel 1.7; echo $?
"""
HOST = os.uname().nodename.split(".")[0]
ANSWERS = f"""\
1.batch|batch|main|1|2
1.0|a|b|main|2|2
1.1|sh|main|1|1
1.1
State=RUNNING Partition=main NodeList={HOST} Nodes=1 Tasks=1 Name=sh Network=(null) \
TRES=cpu=1,node=1 ResvPorts=(null) CPUFreqReq=Default Dist=Block SrunHost:Pid={HOST}:
1.batch|1
1.0|2
1.1|1
1.0
1|RUNNING
1.batch|RUNNING
1.0|RUNNING
1.1|RUNNING
scancel: error: Kill job error on job step id 1.7: Job/step already completing or completed
1
"""


def line_of(fifo):
    """Return one byte or line that a process writes."""
    assert select.select([fifo], [], [], PATIENCE)[0]
    return os.read(fifo, 4)


def test_running_steps_are_shown_and_signalled(home):
    """Job 2 shows and signals the steps of job 1."""
    for name in ("gate", "told", "second"):
        os.mkfifo(home.path / name)
    gate, told = (os.open(home.path / name, os.O_RDWR) for name in ("gate", "told"))
    (home.path / "job.sh").write_text(JOB)
    assert home.run("fgsub", "-o", "err", "job.sh").status == 0
    began = b""
    while began != b"\n\n":
        began += line_of(gate)
    (home.path / "second").write_text("\n")
    assert line_of(gate) == b"\n"
    assert home.run("fgsub", "--wait", "-o", "out", "--slurm-env", "--wrap", COMMANDS).status == 0
    out = re.sub(r"(SrunHost:Pid=\S+:)\d+", r"\1", (home.path / "out").read_text())
    assert out == ANSWERS
    assert [line_of(told), line_of(told)] == [b"usr\n"] * 2
    assert home.run("fgcancel", "1.0", "1.1").status == 0
    home.wait(1)
    rows = home.run("fgacct", "--steps", "-nP", "-j1", "-o", "JobID,State,ExitCode").lines
    assert rows == ["1|COMPLETED|0:0", "1.batch|COMPLETED|0:0", "1.0|CANCELLED|0:15", "1.1|CANCELLED|0:15"]
    assert (home.path / "status").read_text() == "143\n"
    assert home.run("fgcancel", "1.0").status == Exit.NO_SUCH_JOB
    for fifo in (gate, told):
        os.close(fifo)
