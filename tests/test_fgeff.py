"""fgeff: what jobs used of what they asked for, and the line for the next run."""

import os
import pwd

import pytest
from msgspec import structs

from fgsched import protocol
from fgsched.cli.effsheet import Sheet, document
from fgsched.domain.job import Demand, JobUsage, OomReport, Request
from fgsched.domain.states import JobState
from fgsched.domain.text import width_of as width
from fgsched.lifecycle.jobscript import directives
from fgsched.reports.efficiency import (
    MeasuredNeeds,
    Proposal,
    for_slurm,
    groups,
    needs_of,
    proposal_of,
    propose,
    run_of,
)
from fgsched.submission.options import from_script
from fgsched.submission.table import Amount, GpuMemory
from fgsched.views import job as view
from jobinfos import completed
from live_host import Done, Home, living

ME = pwd.getpwuid(os.geteuid()).pw_name
GIB = 1 << 30
DAY = 86_400
TOTALS = {"GPU-a": 80 * GIB}
USAGE = JobUsage(
    sampled=23_900,
    charged=23_900,
    active=22_800,
    held=900,
    empty=200,
    used=4_700,
    memory=1e14,
    peak=int(6.1 * GIB),
    with_process=23_800,
    busy=22_800,
    longest_idle=900,
    neighbours=((7, 3600.0),),
)


def job(id=40840, *, share=10_000, memory=80 * GIB, **changes):
    """A completed job on one GPU of 80 GiB, with samples."""
    gpu = protocol.Allocation(
        gpu=0, uuid="GPU-a", model="A100 80GB", share=share, memory=memory, charged=share
    )
    demand = Demand(gpus=1, share=share, cpus=8, host_memory=64 * GIB)
    given = {
        **{"id": id, "user": "jonas", "state": JobState.COMPLETED, "tier": "shim", "attempt": 1},
        **{"submitted_at": 1000.0, "eligible_at": 2000.0, "started_at": 27_112.0, "ended_at": 51_093.0},
        **{"elapsed": 23_981.0, "cpu_seconds": 81_000.0, "max_rss": int(11.8 * GIB)},
        **{"gpu_peak": int(6.05 * GIB), "usage": USAGE, "allocated": [gpu]},
        "request": Request(name="clip-embed", time_limit=DAY, demand=demand),
    }
    return completed(protocol.JobInfo(**given | changes))


def run(id=40840, **changes):
    return run_of(job(id, **changes), TOTALS)


def test_the_sm_share_of_a_job_that_is_charged_for_its_memory_is_that_of_the_gpu():
    usage = structs.replace(USAGE, charged=0.75 * USAGE.sampled, used=0.2 * USAGE.sampled)
    found = needs_of([run(share=2500, memory=60 * GIB, usage=usage)])
    assert found.sm == pytest.approx(0.2)


# -- the line for the next run -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("needs", "tokens"),
    [
        ({"peak": 6 * GIB, "sm": 0.2}, ("--gpus=0.25", "--gpu-mem=7G")),
        ({"peak": 6 * GIB, "sm": 0.9}, None),  # a smaller share would not give it the compute time
        ({"peak": 6 * GIB}, ("--gpus=1", "--gpu-mem=7G")),  # not measured: the share stays
        ({"peak": 60 * GIB, "sm": 0.2}, None),
        ({"peak": None, "sm": 0.2}, None),
        ({"peak": 0, "sm": 0.2}, None),  # the job used no GPU, or nothing counted
        ({"peak": 6 * GIB, "sm": 0.2, "gpus": 2}, None),
        ({"peak": 8 * GIB, "refused": 10 * GIB}, ("--gpu-mem=11G",)),
        ({"peak": 0, "sampled": 600.0, "with_process": 0.0}, ("--gpus=0",)),
        ({"sampled": 600.0, "with_process": None}, None),
        ({"rss": 10 * GIB, "host_memory": 64 * GIB}, ("--mem=12G",)),
        ({"rss": None, "host_memory": 64 * GIB}, None),
        ({"cpu": 1.9, "cpus": 8}, ("--cpus-per-task=3",)),
        ({"cpu": 7.0, "cpus": 8}, None),
        ({"cpu": 0.1, "cpus": 3, "tasks": 3}, None),  # each task has one CPU already
        ({"cpu": 1.9, "cpus": 8, "tasks": 2}, ("--cpus-per-task=2",)),
        ({"longest": 3600.0, "time_limit": DAY}, ("--time=2h",)),
        ({"longest": None, "time_limit": DAY}, None),
        ({"longest": 80_000.0, "time_limit": DAY}, None),
    ],
)
def test_an_option_is_proposed_if_it_is_below_three_quarters_of_the_request(needs, tokens):
    found = propose(
        MeasuredNeeds(**{"gpus": 1, "share": 10_000, "memory": 80 * GIB, "total": 80 * GIB} | needs)
    )
    assert (found.tokens if found else None) == tokens


def test_the_line_for_a_script_of_slurm_is_an_sbatch_line_in_its_forms():
    found = [run(request=Request(name="x", slurm_env=as_slurm, time_limit=DAY)) for as_slurm in (True, False)]
    lines = [proposal_of([one]).line for one in found]
    assert lines == [
        "#SBATCH --gres=gpu:0.25 --gpu-mem=8G --time=8:00:00",
        "#FG --gpus=0.25 --gpu-mem=8G --time=8h",
    ]
    settings, warnings = from_script(directives(f"#!/bin/sh\n{lines[0]}\ntrue\n"), "x")
    assert ([one.value for one in settings], warnings) == (
        [Amount("gpu", 2500), GpuMemory(size=8 * GIB), 8 * 3600],
        [],
    )


def test_the_tasks_of_an_array_come_by_their_index():
    """The last task that starts takes the id of the array, so ids do not follow the indices."""
    ids = {18: 2, 19: 0, 20: 1}
    array = [run(id, array=18, task=task) for id, task in ids.items()]
    mixed = [run(21), *array, run(22, array=22, task=1), run(23, array=22, task=0), run(17)]
    (group,) = groups(mixed, 20)
    assert [view.label(one.job) for one in group.runs] == ["17", "18_0", "18_1", "18_2", "21", "22_0", "22_1"]


@pytest.mark.parametrize(
    ("state", "elapsed", "is_proposed"),
    [
        (JobState.COMPLETED, 10.0, True),
        (JobState.FAILED, 10.0, False),
        (JobState.FAILED, 7200.0, False),
        (JobState.CANCELLED, 10.0, False),
        (JobState.CANCELLED, 7200.0, True),
        (JobState.TIMEOUT, 7200.0, True),
        (JobState.RUNNING, 7200.0, False),
    ],
)
def test_a_run_that_ended_too_early_does_not_make_the_next_one_smaller(state, elapsed, is_proposed):
    assert (proposal_of([run(state=state, elapsed=elapsed)]) is not None) is is_proposed
    assert proposal_of([run(), run(state=state, elapsed=elapsed)]) is not None, "the other run shows it"


def test_a_script_of_slurm_that_needs_no_gpu_asks_for_none():
    proposal = for_slurm(Proposal(tokens=("--gpus=0", "--mem=2G"), reasons=("The line keeps --gpus=0.",)))
    assert proposal.line == "#SBATCH --gres=none --mem=2G"
    assert proposal.reasons == ("The line keeps --gres=none.",)


def test_the_largest_use_of_all_runs_counts_and_the_last_request():
    runs = [run(1, gpu_peak=9 * GIB), run(2, max_rss=40 * GIB), run(3, share=5000, memory=40 * GIB)]
    needs = needs_of(runs)
    assert (needs.peak, needs.rss, needs.share, needs.memory) == (9 * GIB, 40 * GIB, 5000, 40 * GIB)


def test_a_running_job_has_no_line_and_none_of_the_values_that_only_its_end_tells():
    found = run(state=JobState.RUNNING, ended_at=None, usage=None, gpu_peak=0, max_rss=0)
    assert proposal_of([found]) is None
    values = (view.gpu_peak, view.sm_part, view.idle_part, view.busy_cpus, view.host_peak)
    assert [value(found.job) for value in values] == [None] * 5


def test_a_peak_of_zero_that_was_not_sampled_is_unknown_and_has_no_line():
    found = run(
        usage=None, gpu_peak=0, cpu_seconds=190_000.0, request=Request(name="x", demand=Demand(gpus=1))
    )
    assert (view.gpu_peak(found.job), view.memory_part(found.job), proposal_of([found])) == (None, None, None)
    assert view.gpu_peak(job(gpu_peak=0)) == USAGE.peak


def test_a_job_without_samples_and_without_the_hook_has_unknown_values_and_no_zeros():
    found = run(usage=None, tier="none", gpu_peak=0)
    values = (view.gpu_peak, view.memory_part, view.sm_part, view.idle_seconds)
    assert [value(found.job) for value in values] == [None] * 4


# -- text ----------------------------------------------------------------------------------------------

SHEET = """\
COMPLETED   job 40840   clip-embed   jonas   hopper
Ran 06:39:41, exit code 0.

Used, of the request
──────────────────────────────────────────────────────────────────────────────
  GPU memory    █▌··················           6.1 of 80.0 GiB      8 %
  SM share      ███▉················             mean of 1 GPU     20 %
  GPU idle      ▉···················      0.3 of 6.6 GPU-hours      5 %
  CPUs          ████████▌···········                  3.4 of 8     42 %
  Host memory   ███▋················          11.8 of 64.0 GiB     18 %
  Time          █████▌··············    06:39:41 of 1-00:00:00     28 %
──────────────────────────────────────────────────────────────────────────────

For the next run
  The peak of GPU memory fits in 8 GiB. The SM share fits in 0.25 of a GPU.
  Host memory fits in 15 GiB. 5 CPUs are enough. A time limit of 8 h is
  enough. The job would have been charged 1.7 instead of 6.7 GPU-hours.

      #FG --gpus=0.25 --gpu-mem=8G --mem=15G --cpus-per-task=5 --time=8h

Where and when
  GPU      0 (A100 80GB), with jobs 7 (01:00:00)
  Waited   06:58:32
  Started  AT
  Ended    AT
  Charged  6.7 GPU-hours, 1.3 used, 0.3 idle
  Idle     longest without a computing process: 00:15:00
"""


@pytest.fixture(autouse=True)
def no_zone(monkeypatch):
    monkeypatch.setattr("fgsched.cli.effsheet.shown_time", lambda epoch: "AT")


def test_a_job_has_a_sheet_with_bars_and_a_line_to_paste():
    assert Sheet("hopper").jobs([run()], 20) == SHEET


def test_a_value_that_was_not_measured_is_a_dash_without_a_bar():
    text = Sheet("hopper", ascii=True).jobs([run(usage=None, tier="none", gpu_peak=0)], 20)
    assert text.isascii()
    assert text.splitlines()[5:8] == [
        "  GPU memory                                     - of 80.0 GiB        -",
        "  SM share                                       mean of 1 GPU        -",
        "  GPU idle                                                   -        -",
    ]


def test_the_runs_of_a_name_are_a_table_with_one_line_for_the_next():
    found = [run(1, share=5000, memory=40 * GIB), run(2, usage=None, share=5000, memory=40 * GIB)]
    lines = Sheet("hopper").compared(found, 20).splitlines()
    assert lines[4:8] == [
        "  1          CD    06:39:41    3.3   6.1/40G   20%    5%   42%  11.8/64G   28%",
        "  2          CD    06:39:41    3.3   6.0/40G     –     –   42%  11.8/64G   28%",
        "─" * 78,
        "  most, mean       06:39:41    6.7      6.1G   20%    5%   42%     11.8G",
    ]
    assert lines[-1] == "      #FG --gpus=0.25 --gpu-mem=8G --mem=15G --cpus-per-task=5 --time=8h"


def test_the_name_with_the_largest_charge_is_first_and_only_the_last_runs_count():
    small = [run(number, share=1000, memory=8 * GIB) for number in range(1, 9)]
    other = run(9, request=Request(name="other", demand=Demand(gpus=1, share=10_000)))
    found = groups([*small, other], 3)
    assert [(one.name, [of.job.id for of in one.runs]) for one in found] == [
        ("other", [9]),
        ("clip-embed", [6, 7, 8]),
    ]


@pytest.mark.parametrize("name", ["x" * 200, "\x1b]0;owned\a", "мир" * 40, "\u202egnp" * 30, "火" * 60])
def test_no_name_makes_a_line_wider_than_78_columns_or_steers_the_terminal(name):
    found = run(request=Request(name=name, time_limit=DAY, demand=Demand(gpus=1, share=10_000)))
    sheet = Sheet("hopper")
    text = sheet.jobs([found], 20) + sheet.compared([found], 20) + sheet.summary([found], 20)
    assert max(map(width, text.splitlines())) <= 78
    assert text.replace("\n", "").isprintable()


def test_a_job_that_ran_out_of_gpu_memory_gets_the_memory_that_would_have_fitted():
    report = OomReport(gpu=0, asked=2 * GIB, held=7 * GIB, limit=8 * GIB)
    found = run(state=JobState.OUT_OF_MEMORY, share=1000, memory=8 * GIB, post_mortem=report)
    line = proposal_of([found]).line
    assert line == "#FG --gpu-mem=10G --mem=15G --cpus-per-task=5"


def test_json_has_null_for_a_value_that_was_not_measured():
    assert '"sm_part": null' in document([run(usage=None)])
    assert '"next_run": "#FG --gpus=0.25 --gpu-mem=8G' in document([run()])


# -- the command ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """1 and 2 are runs of one name, 3 runs, 4 is held."""
    with living(tmp_path_factory.mktemp("efficiency") / "home") as found:
        for _ in range(2):
            found.ended("exit 0", name="train", share=5000, time_limit=DAY)
        found.running(name="now", share=2500)
        found.submit(name="later", hold=True)
        yield found


def test_ended_running_and_pending_jobs_have_a_sheet(home: Home):
    done = home.run("fgeff", "1", "3", "4")
    assert (done.status, done.err) == (0, "")
    heads = [line for line in done.lines if "   job " in line]
    host = os.uname().nodename.split(".")[0]
    assert heads == [
        f"COMPLETED   job 1   train   {ME}   {host}",
        f"RUNNING   job 3   now   {ME}   {host}",
        f"PENDING   job 4   later   {ME}   {host}",
    ]
    assert "It has not started." in done.lines


def test_an_unknown_id_is_an_error_and_the_others_are_shown(home: Home):
    done = home.run("fgeff", "99", "1")
    assert (done.status, done.err) == (
        3,
        "fgeff: error: Invalid job id specified: 99\nfgacct lists your ended jobs, fgq the others.\n",
    )
    assert done.lines[0].startswith("COMPLETED   job 1 ")


def test_names_and_users_choose_jobs_that_started(home: Home):
    assert [one["job_id"] for one in home.run("fgeff", "--json").json["jobs"]] == [1, 2, 3]
    assert [one["job_id"] for one in home.run("fgeff", "-n", "train", "--json").json["jobs"]] == [1, 2]
    assert home.run("fgeff", "-u", "nobody") == Done(
        0, "", "fgeff: note: no such job has started in this period\n"
    )
    assert home.run("fgeff", "-n", "train").lines[0].startswith(f"train   {ME}   2 runs   ")
    assert home.run("fgeff").lines[2].split()[:2] in (["train", "2"], ["now", "1"])


def test_job_ids_and_names_together_are_wrong_usage(home: Home):
    done = home.run("fgeff", "1", "-n", "train")
    assert (done.status, done.err.splitlines()[0]) == (
        2,
        "fgeff: error: job ids and --name each choose the jobs; give one of them",
    )
