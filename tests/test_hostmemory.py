"""What host memory had to do with the end of a job: the same words in every view of the job."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from awaiting import until_written
from fgsched.domain.job import Ended
from fgsched.domain.states import JobState
from fgsched.lifecycle.transitions import memory_note
from fgsched.mail.jobtext import notice
from fgshim import spawner as program
from live_host import living
from test_mail import ENDED
from test_memory import needs_cgroup
from test_slurm_answers import answered, said

MIB = 1 << 20
CHILD = "python3 -c 'x = bytearray(300 << 20)'\nexit 0"
ALONE = "exec python3 -c 'import os; x = bytearray(84 << 20); os.kill(os.getpid(), 9)'"


def end(status=0, used=0, kills=0):
    return Ended(status=status, max_rss=used * MIB, oom_kills=kills)


@pytest.mark.parametrize(
    ("state", "ended", "asked", "note"),
    [
        ("COMPLETED", end(used=90), 100, ""),
        ("COMPLETED", end(), 100, ""),
        ("COMPLETED", end(used=500), 0, ""),
        (
            "OUT_OF_MEMORY",
            end(status=125, used=90, kills=1),
            100,
            "the kernel killed 1 process of this job for host memory: the job requested 100M (--mem), its"
            " largest process had 90M",
        ),
        (
            "CANCELLED",
            end(status=15, used=90, kills=3),
            0,
            "the kernel killed 3 processes of this job for host memory: the job requested no amount (--mem),"
            " its largest process had 90M",
        ),
        (
            "FAILED",
            end(status=9, used=95),
            100,
            "ended by SIGKILL, probably for host memory: its largest process had 95M of the 100M that it"
            " requested (--mem), and no kill was counted",
        ),
        (
            "FAILED",
            end(status=137 << 8, used=120),
            100,
            "ended by SIGKILL, probably for host memory: its largest process had 120M of the 100M that it"
            " requested (--mem), and no kill was counted",
        ),
        ("FAILED", end(status=9, used=50), 100, ""),
        ("CANCELLED", end(status=9, used=95), 100, ""),
        (
            "COMPLETED",
            end(used=150),
            100,
            "its largest process had 150M of host memory, more than the 100M that it requested (--mem)",
        ),
    ],
)
def test_a_note_has_the_request_and_the_largest_process(state, ended, asked, note):
    assert memory_note(JobState[state], ended, asked * MIB) == note


def views(home, job, monkeypatch):
    """Return what each command shows of an ended job."""
    found = {
        "fgctl": home.run("fgctl", "show", "job", str(job)).out,
        "fgctl --json": str(home.run("fgctl", "show", "job", str(job), "--json").json),
        "fgacct": home.run("fgacct", "-nP", "-j", str(job), "-o", "State,ExitCode,Warning").out,
        "fgacct --json": str(home.run("fgacct", "-j", str(job), "--json").json),
        "fgeff": home.run("fgeff", str(job)).out,
        "fgeff --json": str(home.run("fgeff", str(job), "--json").json),
        "sacct": said(home, "sacct", "-nP", "-j", str(job), "-o", "SystemComment")[1],
        "seff": answered(home, monkeypatch, "seff", str(job)),
        "scontrol": said(home, "scontrol", "show", "job", str(job))[1],
    }
    return {name: " ".join(text.split()) for name, text in found.items()}


@pytest.mark.cgroup
@needs_cgroup
def test_every_view_shows_the_kill_of_a_child_for_host_memory_with_the_figure(tmp_path, monkeypatch):
    with living(tmp_path / "home") as home:
        job = home.ended(CHILD, demand={"cpus": 1, "host_memory": 50 * MIB})
        shown = views(home, job, monkeypatch)
        note = "the kernel killed 1 process of this job for host memory: the job requested 50M (--mem)"
        assert [name for name, text in shown.items() if note not in text] == []
        assert shown["fgacct"].startswith("OUT_OF_MEMORY|0:125|")
        assert home.run("fgacct", "-nP", "-j", str(job), "-o", "OOMKills,OOMKind").out == "1|host\n"


@pytest.mark.cgroup
@needs_cgroup
def test_a_kill_of_a_job_that_still_runs_is_shown_while_it_runs(tmp_path):
    with living(tmp_path / "home") as home:
        killed = home.path / "killed"
        script = CHILD.replace("exit 0", f"echo yes >{killed}; exec sleep 1000000")
        job = home.submit(script, demand={"cpus": 1, "host_memory": 50 * MIB})
        until_written(killed)
        home.until_running(job)
        shown = home.run("fgctl", "show", "job", str(job)).out
        assert "JobState=RUNNING" in shown
        assert "OOMKills=1" in shown
        note = "the kernel killed 1 process of this job for host memory: the job requested 50M (--mem)"
        assert f"Warning={note}" in shown
        assert home.run("fgacct", "-nP", "-j", str(job), "-o", "OOMKills,Warning").out == f"1|{note}\n"
        home.client.ask("cancel", ids=[job])


def test_without_a_count_a_killed_job_near_its_request_is_probably_out_of_memory(tmp_path, monkeypatch):
    with living(tmp_path / "home") as home:
        job = home.ended(ALONE, demand={"cpus": 1, "host_memory": 100 * MIB})
        shown = views(home, job, monkeypatch)
        assert [name for name, text in shown.items() if "probably for host memory" not in text] == []
        assert shown["fgacct"].startswith("FAILED|0:9|ended by SIGKILL")


def test_the_mail_says_it():
    note = memory_note(JobState.OUT_OF_MEMORY, end(status=125, used=90, kills=1), 100 * MIB)
    mail = replace(ENDED, event="FAIL", state="OUT_OF_MEMORY", reason="OutOfMemory", warning=note)
    assert note in notice(mail, None, [], "hopper").happened


EVENTS = "low 0\\nhigh 0\\nmax 7\\noom 1\\noom_kill 2\\noom_group_kill 0\\n"
CONTROL = "oom_kill_disable 0\\nunder_oom 0\\noom_kill 2\\n"


@pytest.mark.compiler
@pytest.mark.skipif(not program().exists(), reason="fgspawn is not built")
@pytest.mark.parametrize(("file", "text"), [("memory.events", EVENTS), ("memory.oom_control", CONTROL)])
def test_kills_are_counted_in_the_files_of_both_versions(spawner, tmp_path, file, text):
    """A directory with the files of a cgroup: the job writes what the kernel would, and no kill is seen."""
    directory = tmp_path / "group"
    directory.mkdir()
    (directory / "cgroup.procs").touch()
    script = f"#!/bin/sh\nprintf '{text}' >{directory}/{file}\n"
    job = spawner.launch(script, env={"PATH": os.environ["PATH"]}, cgroups=((str(directory), ()),))
    assert (job.result().exit_code, job.result().oom_kills) == (0, 2)
    assert "the kernel killed 2 processes of this job" in job.output()
    assert Path(directory).exists()
