"""fgstat: what running jobs use now, on simulated GPUs whose load the jobs set themselves."""

import os

import pytest

from fgsched.domain.errors import Exit
from fgsched.system.process import TreeUse, use_of
from test_sampling import GIB, scripted, until_sampled, working

__all__ = ["scripted"]


def test_running_jobs_are_shown_with_their_load(scripted):
    home, _ = scripted
    job = working(home, "sm=80 mem=6G")
    until_sampled(home, job, lambda usage: usage.sampled > 0.5 and usage.energy)
    (row,) = home.run("fgstat", "-h").lines
    jobid, name, _user, gpu, now, peak, limit, busy, mean, energy, cpu, rss, _time = row.split()
    assert (jobid, name, gpu, now, peak, limit, busy) == (
        str(job),
        "job",
        "0",
        "6144M",
        "6144M",
        "8192M",
        "80",
    )
    assert 0 < int(mean) <= 80
    assert energy.endswith("kJ")
    assert (cpu, int(rss.removesuffix("M")) >= 0) == ("00:00:00", True)
    (found,) = home.run("fgstat", "--json", str(job)).json["jobs"]
    assert found["gpu_use"] == [{"gpu": 0, "memory": 6 * GIB, "util": 80.0}]
    assert (found["max_gpu_mem"], found["gpu_mem"], found["state"]) == (6 * GIB, 8 * GIB, "RUNNING")
    assert found["usage"]["sampled"] > 0
    assert (found["rss"] > 0, found["disk_written"] is not None) == (True, True)


def test_a_job_shows_itself(scripted):
    home, _ = scripted
    job = home.running()
    home.running()
    done = home.run("fgstat", "-h", "--self", env={"FG_JOB_ID": str(job)})
    assert [line.split()[0] for line in done.lines] == [str(job)]


@pytest.mark.parametrize(
    ("words", "env", "status", "said"),
    [
        (["--self"], {}, Exit.USAGE, "--self is for commands in a job"),
        (["--self", "7"], {"FG_JOB_ID": "7"}, Exit.USAGE, "--self shows one job"),
        (["99"], {}, Exit.NO_SUCH_JOB, "no running job: 99"),
    ],
)
def test_what_makes_no_sense_is_refused(home, words, env, status, said):
    done = home.run("fgstat", *words, env=env)
    assert (done.status, done.out, said in done.err) == (status, "", True)


def test_processes_are_summed_up_and_ended_ones_left_out():
    found = use_of([os.getpid(), (1 << 22) - 1])
    assert found.cpu_seconds > 0
    assert found.rss > 1 << 20
    assert found.read is not None
    assert use_of([]) == TreeUse()
