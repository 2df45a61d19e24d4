"""The derived values of a job: what each reads, what is unknown, and that all presentations agree."""

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fgsched.cli import show
from fgsched.cli.effsheet import Sheet
from fgsched.domain.job import Demand, JobUsage, Request
from fgsched.domain.states import JobState, Reason
from fgsched.protocol import Allocation, JobInfo
from fgsched.reports.efficiency import run_of
from fgsched.views import job as view
from fgsched.views.columns import ACCOUNTS_OF_FGACCT
from jobinfos import completed

PACKAGE = Path(view.__file__).parent.parent
GIB = 1 << 30
CARD = Allocation(gpu=3, uuid="GPU-x", model="H100", share=2500, memory=4 * GIB, charged=5000)
USAGE = JobUsage(
    **{"sampled": 60.0, "charged": 30.0, "active": 20.0, "held": 6.0, "empty": 4.0, "used": 12.5},
    **{"memory": 60.0 * GIB, "peak": 3 * GIB, "with_process": 55.0, "busy": 40.0, "longest_idle": 5.0},
    energy=9000.0,
)


class Spy:
    """A job that records which of its attributes are read."""

    def __init__(self, job):
        self.job, self.read = job, set()

    def __getattr__(self, name):
        self.read.add(name)
        return getattr(self.job, name)


jobs = st.builds(
    JobInfo,
    id=st.integers(1, 99),
    array=st.none() | st.just(7),
    task=st.none() | st.integers(0, 9),
    tasks=st.none() | st.just("3-5%2"),
    user=st.just("root"),
    state=st.sampled_from(JobState),
    reason=st.sampled_from(Reason),
    step=st.sampled_from(("", "batch", "0")),
    attempt=st.integers(0, 2),
    cancelled_by=st.none() | st.just(0),
    submitted_at=st.just(100.0),
    eligible_at=st.none() | st.just(110.0),
    started_at=st.none() | st.just(120.0),
    starts_at=st.none() | st.just(130.0),
    ended_at=st.none() | st.just(200.0),
    elapsed=st.sampled_from((0.0, 80.0)),
    suspended=st.sampled_from((0.0, 9.0)),
    time_limit=st.sampled_from((0, 600)),
    gpus=st.integers(0, 2),
    share=st.none() | st.just(2500),
    gpu_type=st.sampled_from(("", "h100")),
    cpus=st.integers(1, 8),
    ntasks=st.integers(1, 3),
    task_cpus=st.integers(0, 2),
    host_memory=st.sampled_from((0, GIB)),
    allocated=st.lists(st.just(CARD) | st.just(replace(CARD, memory=GIB)), max_size=2),
    tier=st.sampled_from(("none", "shim")),
    gpu_peak=st.sampled_from((0, GIB)),
    max_rss=st.sampled_from((0, GIB)),
    usage=st.none() | st.just(USAGE) | st.just(replace(USAGE, used=None, sampled=0.0, charged=0.0)),
    is_private=st.booleans(),
    request=st.builds(
        Request,
        name=st.just("x"),
        demand=st.builds(Demand, gpus=st.integers(0, 2), share=st.sampled_from((0, 2500))),
        mail_type=st.sampled_from(("", "END")),
        submit_line=st.sampled_from(("", "fgsub job.sh", "fgsub --wrap x", "fgsub 'open")),
    ),
)


@given(job=jobs)
def test_a_value_reads_no_other_attribute_than_it_declares(job):
    for name, value in view.values().items():
        spy = Spy(job)
        value(spy)
        assert spy.read <= set(view.fields_of(value)), name


def test_a_value_declares_only_attributes_of_a_job():
    known = set(JobInfo.__struct_fields__)
    assert all(set(view.fields_of(value)) <= known for value in view.values().values())


RUNNING = completed(
    JobInfo(
        **{"id": 7, "user": "ann", "state": JobState.RUNNING, "attempt": 1, "tier": "shim"},
        **{"submitted_at": 10.0, "eligible_at": 12.0, "started_at": 20.0, "elapsed": 90.0},
        allocated=[CARD],
        request=Request(name="job", demand=Demand(gpus=1, share=2500)),
    )
)


def shown_peaks(job):
    """The peaks of GPU memory and of host memory of a job, as each command prints them."""
    pairs = dict(pair for line in show.GROUPS["job"](job) for pair in line)
    texts = [ACCOUNTS_OF_FGACCT.column(name).cell(job) for name in ("MaxGPUMem", "MaxRSS")]
    sheet = Sheet("host", ascii=True).job(run_of(job, {}))
    used = re.findall(r"^  (?:GPU|Host) memory[ .#]*?(-|\d\S*)(?: of| GiB|  )", sheet, re.MULTILINE)
    return [pairs["GpuMemPeak"], pairs["MaxRSS"]], texts, used


def test_the_times_of_a_job_follow_from_its_records():
    job = JobInfo(
        **{"id": 1, "state": JobState.RUNNING, "time_limit": 300, "elapsed": 80.0, "suspended": 5.0},
        **{"submitted_at": 100.0, "eligible_at": 110.0, "started_at": 120.0},
    )
    assert (view.time_left(job), view.end(job), view.ended_at(job)) == (220.0, 420.0, None)
    assert (view.waited(job), view.pending_time(job), view.allocation_time(job)) == (10.0, 20.0, 85.0)
    assert (view.start(job), view.last_evaluation(job)) == (120.0, 120.0)
    assert view.time_left(replace(job, elapsed=301.0)) == 0.0  # the controller has not ended it yet
    unlimited = replace(job, time_limit=0)
    assert (view.time_left(unlimited), view.end(unlimited)) == (None, None)


def test_a_peak_that_was_not_measured_is_unknown_to_every_command():
    assert shown_peaks(RUNNING) == (["Unknown", "Unknown"], ["", ""], ["-", "-"])


def test_a_peak_that_was_measured_is_the_same_to_every_command():
    ended = replace(RUNNING, state=JobState.COMPLETED, ended_at=110.0, usage=USAGE, gpu_peak=2 * GIB)
    job = replace(ended, max_rss=5 * GIB)
    assert shown_peaks(job) == (["3072M", "5120M"], ["3072M", "5120M"], ["3.0", "5.0"])


EDGES = ("cli", "slurm", "reports", "mail", "views")


def reads_of(path, name):
    """The expressions of which a file reads this attribute."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {
        ast.unparse(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr == name
    }


@pytest.mark.parametrize("name", ["gpu_peak", "max_rss"])
def test_a_peak_of_a_job_is_read_in_the_view_alone(name):
    for path in (path for edge in EDGES for path in (PACKAGE / edge).rglob("*.py")):
        if path != Path(view.__file__):
            assert not reads_of(path, name) - {"view", "step", "self"}, path
