"""Two views of one state agree: fgtop, the wall page, the status as text and JSON, and the metrics."""

import json
import re
from collections import Counter

import pytest
from msgspec.structs import replace

from fgsched.cli.statuspage import Answers, state_of
from fgsched.cli.top.layout import plain, screen
from fgsched.cli.top.snapshot import Frame, LookHistory, gpu_classes
from fgsched.cli.top.view import TopUser, View
from fgsched.domain.job import WHOLE, GpuState, Reading
from fgsched.domain.states import JobState, Reason
from fgsched.domain.waiting import ExpectedStart
from fgsched.reports.export import as_json
from fgsched.reports.metrics import as_metrics
from fgsched.reports.status import status as status_report
from fgsched.reports.status import wall_page
from fgsched.views.gpu import parts_of
from live_host import living
from topframes import CARDS, JOBS, NOW

STATES = [state for state in GpuState if state is not GpuState.OK]


def host(state, gpu):
    """The GPUs of the made host; one of them takes no jobs."""
    frame = Frame(at=NOW, host="hopper", gpus=CARDS, jobs=JOBS)
    gpus = [
        replace(one, free_share=WHOLE - round(WHOLE * parts_of(one, frame.jobs).charged)) for one in CARDS
    ]
    return [
        replace(one, gpu=replace(one.gpu, state=state, note="Xid 79")) if one.gpu.index == gpu else one
        for one in gpus
    ]


@pytest.mark.parametrize("gpu", [0, 5, 7])
@pytest.mark.parametrize("state", STATES)
def test_a_gpu_that_takes_no_jobs_shows_its_jobs_and_its_state_in_every_view(state, gpu):
    gpus = host(state, gpu)
    frame = Frame(at=NOW, host="hopper", gpus=gpus, jobs=JOBS)
    info = next(one for one in gpus if one.gpu.index == gpu)
    users = {job.user for job, _ in parts_of(info, JOBS).jobs}
    status = state_of(Answers(gpus=gpus, jobs=JOBS), {}, NOW, "hopper")
    now = next(one for one in status.gpus if one.gpu == gpu)
    assert {one.user for one in now.shares} == users
    assert now.down == "Xid 79"
    for width in (80, 120):
        shown = screen(frame, LookHistory(), View(width=width, height=40), TopUser(1, "ines"), now=NOW)
        (line,) = [one for one in plain(shown.lines).splitlines() if re.match(rf" +{gpu}╱ ", one)]
        assert users == {user for user in users if user[:2] in line}
        assert users or f"{state.value}: Xid 79" in line
    item = re.findall(r"(?s)<li><div class=\"id\">.*?</li>", wall_page(status))[gpu]
    assert "down: " in item
    assert all(user in item for user in users if f"{user}</bdi>" in item)
    report = json.loads(as_json(status_report(gpus, JOBS, {}, "hopper", NOW)))
    row = report["sections"][0]["parts"][0]["rows"][gpu]
    assert state.value in json.dumps(row)
    assert all(user in json.dumps(row) for user in users)
    down = re.search(
        rf'fgsched_gpu_class_ratio{{class="down",gpu="{gpu}".*}} (\S+)', as_metrics(status, None)
    )
    assert float(down[1]) == pytest.approx(gpu_classes(frame, info)["down"], abs=0.02)
    assert now.classes()["down"] == pytest.approx(float(down[1]))
    (gpus_down,) = [one for one in report["figures"]["items"] if one["key"] == "down"]
    assert gpus_down["number"]["value"] == pytest.approx(frame.classes()["down"], abs=0.02)


@pytest.mark.parametrize("silence", ["error", "never"])
def test_what_jobs_do_on_a_gpu_that_does_not_answer_is_unknown_and_not_an_accusation(silence):
    failed = Reading(gpu=0, used=0, error="the driver does not answer")
    gpus = [replace(one, seen=failed if silence == "error" else None) for one in CARDS]
    status = state_of(Answers(gpus=gpus, jobs=JOBS), {}, NOW, "hopper")
    kinds = {part.kind for gpu in status.gpus for part in gpu.shares}
    assert kinds == {"unknown"}
    classes = status.classes()
    assert classes["unknown"] == pytest.approx(status.charged, abs=0.001)
    assert (classes["active"], classes["held-idle"], classes["reserved-empty"]) == (0, 0, 0)
    assert sum(classes.values()) == pytest.approx(len(CARDS))
    page = wall_page(status)
    assert '<i class="unknown"' in page
    assert '<i class="reserved-empty"' not in page
    assert 'class="unknown",gpu="0"' in as_metrics(status, None)
    (gpu, *_) = [one for one in status.gpus if one.shares]
    sampled = state_of(
        Answers(gpus=gpus, jobs=JOBS), {(gpu.shares[0].job, gpu.uuid): "active"}, NOW, "hopper"
    )
    assert sampled.gpus[gpu.gpu].shares[0].kind == "active"  # the accounts have a sample of the last minutes


def pending(id, reason, priority):
    return replace(
        JOBS[0],
        id=id,
        user=f"user{id}",
        state=JobState.PENDING,
        reason=reason,
        priority=priority,
        indices=(),
        allocated=(),
    )


def test_the_next_to_start_are_the_same_in_every_view_and_no_held_or_dependent_job_is_one():
    jobs = [
        pending(901, Reason.RESOURCES, 1.0),
        pending(902, Reason.HELD_USER, 9.0),
        pending(903, Reason.PRIORITY, 5.0),
        pending(904, Reason.DEPENDENCY, 8.0),
        pending(905, Reason.BEGIN_TIME, 7.0),
        pending(906, Reason.HELD_MAX_REQUEUE, 8.0),
    ]
    starts = {
        901: ExpectedStart(latest=NOW + 600),
        905: ExpectedStart(not_before=NOW + 3600),
    }
    status = state_of(Answers(gpus=CARDS, jobs=jobs, starts=starts), {}, NOW, "hopper")
    report = json.loads(as_json(status_report(CARDS, jobs, starts, "hopper", NOW)))
    (part,) = next(one for one in report["sections"] if one["key"] == "next")["parts"]
    shown = [(row[1]["text"], row[5]["text"].startswith("not before")) for row in part["rows"]]
    assert shown == [("user901", False), ("user905", True), ("user903", False)]
    assert [one.user for one in status.next] == [user for user, _ in shown]
    assert (status.waiting, status.startable_jobs) == (6, 3)
    assert re.search(r"(?s)user901.*?by \d\d:\d\d.*?user905.*?from \d\d:\d\d", wall_page(status))
    held = state_of(Answers(gpus=CARDS, jobs=jobs[1:2]), {}, NOW, "hopper")
    assert "All are held or wait for other jobs." in wall_page(held)


def test_every_command_counts_the_same_jobs(tmp_path):
    """A running, a suspended and a held job, and an array of which no task has started."""
    with living(tmp_path / "home", devices="sim:2x16G") as home:
        running, suspended = home.running(share=2500), home.running(share=5000)
        assert home.run("fgctl", "suspend", str(suspended)).status == 0
        assert home.run("fgsub", "--array=1-5", "--gpus=2", "--wrap", "exit 0").status == 0
        home.submit(hold=True)
        rows = Counter(line.split()[0] for line in home.run("fgq", "-h", "-o", "%T").lines)
        assert rows == {"RUNNING": 1, "SUSPENDED": 1, "PENDING": 2}, running
        assert home.run("fginfo", "-h").lines[0].split()[4] == "2/2"
        (partition,) = home.run("fginfo", "--json").json["partitions"]
        (shown,) = home.run("fgctl", "show", "partition", "--json").json["partitions"]
        assert partition["job_counts"] == shown["jobs"] == rows
        assert home.run("fgsched", "status", "--json").json["jobs"] == rows
        top = home.run("fgtop", "--json").json["jobs"]
        assert Counter(job["state"] for job in top) == rows
        assert "2 running  2 waiting" in home.run("fgtop", "--once").out
        assert "2 jobs running, 2 waiting." in home.run("fgreport", "status").out
        metrics = home.run("fgreport", "status", "--format", "metrics").out
        assert dict(re.findall(r'fgsched_jobs{partition="main",state="(\w+)"} (\d+)', metrics)) == {
            state: str(count) for state, count in rows.items()
        }
