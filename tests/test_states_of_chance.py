"""Views of one state agree, whatever the state is: fgtop, the wall page, the status, the metrics, and fginfo.

Each number is read from what the view prints, and compared with what the state was made of.
"""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

import history
from fgsched import protocol
from fgsched.cli.statuspage import Answers, state_of
from fgsched.cli.top import plain
from fgsched.cli.top.layout import plain as as_lines
from fgsched.cli.top.layout import screen
from fgsched.cli.top.snapshot import LookHistory
from fgsched.cli.top.view import TopUser, View
from fgsched.domain.job import WHOLE, Gpu, GpuProcess, GpuState, Reading
from fgsched.domain.states import JobState, Reason
from fgsched.reports.export import as_json
from fgsched.reports.metrics import as_metrics
from fgsched.reports.model import CLASSES
from fgsched.reports.status import status as status_report
from fgsched.reports.status import wall_page
from fgsched.reports.text import as_text
from fgsched.views import host

GIB = 1 << 30
HOST = "hopper"
with history.zone():
    NOW = history.ts(history.at(2026, 11, 12, 14, 23))
HOLDING = [state for state in JobState if state.holds]
DOWN = {"drain", "drng", "suspect", "down"}  # states of fginfo
USERS = ("ann", "ben", "chloe", "mei")


class Part(Struct, frozen=True):
    """What a job has on a GPU, or what the site hides of one."""

    job: int
    gpu: int
    share: int  # ten-thousandths
    memory: int  # GiB
    is_hidden: bool


class State(Struct, frozen=True):
    """A host: its GPUs, its jobs that the reader may see, and what was made up for them."""

    infos: list[protocol.GpuInfo]
    jobs: list[protocol.JobInfo]
    parts: list[Part]

    def charge(self, part: Part) -> float:
        total = self.infos[part.gpu].gpu.total // GIB
        return max(part.share / WHOLE, -(-part.memory * WHOLE // total) / WHOLE)

    def charged(self, gpu: int) -> float:
        return min(1.0, sum(self.charge(part) for part in self.parts if part.gpu == gpu))

    def is_down(self, gpu: int) -> bool:
        info = self.infos[gpu]
        return info.gpu.state is not GpuState.OK or (info.seen is not None and bool(info.seen.error))

    def memory(self, gpu: int) -> tuple[int, int] | None:
        """Return the bytes in use by jobs and by others; None: the driver did not answer."""
        seen = self.infos[gpu].seen
        return None if seen is None or seen.error else (seen.used - seen.external, seen.external)

    @property
    def running(self) -> int:
        return sum(job.state.holds for job in self.jobs)

    @property
    def waiting(self) -> int:
        return sum(job.state is JobState.PENDING for job in self.jobs)

    @property
    def all_charged(self) -> float:
        return sum(self.charged(gpu) for gpu in range(len(self.infos)))


@st.composite
def readings(draw, gpu, total, is_empty):
    """A reading of a GPU: none, one without an answer, or one with values."""
    kind = draw(st.sampled_from(("answer", "answer", "answer", "none", "error")))
    if kind == "none":
        return None
    if kind == "error":
        return Reading(gpu=gpu, used=0, error="the driver does not answer")
    external = draw(st.sampled_from((0, 0, 2 * GIB)))
    jobs = 0 if is_empty else draw(st.integers(0, total - 3)) * GIB
    processes = (GpuProcess(pid=7, memory=jobs),) if jobs else ()
    return Reading(
        gpu=gpu,
        used=jobs + external,
        external=external,
        processes=processes,
        utilisation=draw(st.one_of(st.none(), st.integers(0, 100))),
    )


@st.composite
def states(draw):
    """Up to four GPUs with up to four jobs each, jobs without a GPU, and jobs that wait."""
    parts: list[Part] = []
    sizes = draw(st.lists(st.sampled_from((16, 48, 80)), min_size=1, max_size=4))
    for gpu, total in enumerate(sizes):
        share, memory = WHOLE, total
        for _ in range(draw(st.integers(0, 4))):
            if share < 500 or memory < 2:
                break
            part = Part(
                job=len(parts) + 1,
                gpu=gpu,
                share=draw(st.integers(1, share // 500)) * 500,
                memory=draw(st.integers(1, memory)),
                is_hidden=draw(st.sampled_from((False, False, False, True))),
            )
            parts.append(part)
            share, memory = share - part.share, memory - part.memory
    state = State([], [], parts)
    for gpu, total in enumerate(sizes):
        state.infos.append(draw(infos(state, gpu, total)))
    state.jobs.extend(draw(running(state, part)) for part in parts if not part.is_hidden)
    state.jobs.extend(draw(others(1 + len(parts) + at)) for at in range(draw(st.integers(0, 4))))
    return state


@st.composite
def infos(draw, state, gpu, total):
    here = [part for part in state.parts if part.gpu == gpu]
    mark = draw(st.sampled_from((GpuState.OK, GpuState.OK, GpuState.OK, *GpuState)))
    note = "" if mark is GpuState.OK else draw(st.sampled_from(("", "Xid 79", "fan [root]")))
    seen = draw(readings(gpu, total, not here))
    card = Gpu(index=gpu, uuid=f"GPU-{gpu}", model="A100 80GB", total=total * GIB, state=mark, note=note)
    external = seen.external if seen else 0
    fraction = [
        max(part.share / WHOLE, -(-part.memory * WHOLE // total) / WHOLE) for part in here if part.is_hidden
    ]
    return protocol.GpuInfo(
        gpu=card,
        usable=total * GIB,
        free_share=WHOLE - sum(part.share for part in here),
        free_memory=max(0, total - sum(part.memory for part in here)) * GIB - external,
        external=external,
        jobs=[part.job for part in here if not part.is_hidden],
        seen=seen,
        kept_as="",
        hidden=round(sum(fraction) * WHOLE),
    )


@st.composite
def running(draw, state, part):
    charge = round(state.charge(part) * WHOLE)
    gpu = state.infos[part.gpu].gpu
    allocation = protocol.Allocation(
        gpu=part.gpu,
        uuid=gpu.uuid,
        model=gpu.model,
        share=part.share,
        memory=part.memory * GIB,
        charged=charge,
    )
    return protocol.JobInfo(
        id=part.job,
        name="train",
        user=draw(st.sampled_from(USERS)),
        uid=1,
        partition="main",
        state=draw(st.sampled_from(HOLDING)),
        submitted_at=NOW - 900,
        eligible_at=NOW - 900,
        started_at=NOW - 600,
        elapsed=600.0,
        time_limit=3600,
        gpus=1,
        share=part.share,
        memory=part.memory * GIB,
        indices=[part.gpu],
        allocated=[allocation],
    )


@st.composite
def others(draw, id):
    """A job without an allocation: it waits, an array among them, or it runs without a GPU."""
    is_array = draw(st.booleans())
    waits = is_array or draw(st.booleans())
    return protocol.JobInfo(
        id=id,
        name="sweep",
        user=draw(st.sampled_from(USERS)),
        uid=1,
        partition=draw(st.sampled_from(("main", "main,night"))) if waits else "main",
        state=JobState.PENDING if waits else draw(st.sampled_from(HOLDING)),
        reason=draw(st.sampled_from((Reason.RESOURCES, Reason.HELD_USER))) if waits else Reason.NONE,
        priority=1.0,
        submitted_at=NOW - 900,
        eligible_at=NOW - 900,
        array=id if is_array else None,
        tasks="1-9" if is_array else None,
        gpus=1 if waits else 0,
        share=WHOLE if waits else 0,
        memory=GIB if waits else None,
    )


class Seen:
    """What the views of a state show. Every number is taken from the text of the view."""

    def __init__(self, state: State) -> None:
        self.count = len(state.infos)
        frame = LookHistory().frame(state.infos, state.jobs, NOW, HOST)
        view, reader = View(width=140, height=60), TopUser(1, "ann")
        self.screen = as_lines(screen(frame, LookHistory(), view, reader, now=NOW).lines)
        self.top = json.loads(plain.document(frame))
        status = state_of(Answers(state.infos, state.jobs), {}, NOW, HOST)
        self.wall = wall_page(status)
        self.items = re.findall(r"(?s)<li><div class=\"id\">.*?</li>", self.wall)
        report = status_report(state.infos, state.jobs, {}, HOST, NOW)
        self.report, self.text = json.loads(as_json(report)), as_text(report)
        self.rows = self.report["sections"][0]["parts"][0]["rows"]
        self.metrics = {
            (
                sample.name,
                *(value for name, value in sorted(sample.labels.items()) if name != "type"),
            ): sample.value
            for family in text_string_to_metric_families(as_metrics(status, None))
            for sample in family.samples
        }
        self.info = [host.gpu_record(info) for info in state.infos]

    def figure(self, key: str) -> float:
        (item,) = [item for item in self.report["figures"]["items"] if item["key"] == key]
        return item["number"]["value"]

    def class_of(self, gpu: int, name: str) -> float:
        return self.metrics["fgsched_gpu_class_ratio", name, str(gpu)]

    def metric(self, name: str, gpu: int) -> float | None:
        return self.metrics.get((f"fgsched_gpu_{name}", str(gpu)))


def numbers(pattern: str, text: str) -> tuple[str, ...]:
    found = re.search(pattern, text)
    assert found, (pattern, text)
    return found.groups()


@given(states())
def test_every_view_has_the_same_numbers_of_charged_gpus_and_of_running_and_waiting_jobs(state):
    seen = Seen(state)
    known = (str(state.running), str(state.waiting))
    head = numbers(r"([\d.]+) of \d+ cards? charged  (\d+) running  (\d+) waiting", seen.screen)
    wall = re.findall(r"<p class=\"count\"><b>([\d.]+)</b>", seen.wall)
    lede = numbers(r"([\d.]+) of \d+ cards? charged, (\d+) jobs? running, (\d+) waiting", seen.text)
    assert head == tuple(wall) == lede
    assert (head[1:], float(head[0])) == (known, pytest.approx(state.all_charged, abs=0.0501))
    assert seen.figure("charged") == pytest.approx(state.all_charged, abs=1e-3)
    assert (seen.figure("running"), seen.figure("waiting")) == (state.running, state.waiting)
    jobs = [(key, value) for key, value in seen.metrics.items() if key[0] == "fgsched_jobs"]
    assert sum(value for key, value in jobs if "PENDING" in key) == state.waiting
    assert sum(value for key, value in jobs if "PENDING" not in key) == state.running
    users = sum(value for key, value in seen.metrics.items() if key[0] == "fgsched_user_charged_gpus")
    assert users == pytest.approx(state.all_charged, abs=1e-3)


@given(states())
def test_every_view_has_the_same_parts_of_each_gpu(state):
    seen = Seen(state)
    sums = dict.fromkeys(("charged", "down", "external", "free"), 0.0)
    for gpu in range(seen.count):
        charged, top = state.charged(gpu), seen.top["gpus"][gpu]["classes"]
        outside = (state.memory(gpu) or (0, 0))[1] / state.infos[gpu].gpu.total
        rest = 1 - charged
        external = 0 if state.is_down(gpu) else min(rest, outside)
        known = {"charged": charged, "down": rest if state.is_down(gpu) else 0, "external": external}
        known["free"] = 1 - sum(known.values())
        sums = {name: sums[name] + part for name, part in known.items()}
        charges = [top[name] for name in ("active", "held_idle", "reserved_empty", "charged")]
        assert {"charged": sum(charges)} | {
            name: top[name] for name in known if name != "charged"
        } == pytest.approx(known, abs=1e-3)
        metrics = {name: seen.class_of(gpu, name) for name in CLASSES}
        of_jobs = sum(metrics[name] for name in CLASSES[:3])
        unknown = seen.metrics.get(("fgsched_gpu_class_ratio", "unknown", str(gpu)), 0.0)
        assert (of_jobs, unknown) == pytest.approx(
            (0, charged) if state.memory(gpu) is None else (charged, 0), abs=1e-3
        )
        assert {name: metrics[name] for name in CLASSES[3:]} == pytest.approx(
            {name: known[name] for name in CLASSES[3:]}, abs=1e-3
        )
        assert seen.rows[gpu][3]["value"] == pytest.approx(100 * charged, abs=0.1)
        widths = re.findall(
            r'<i class="([\w-]+)" style="width:([\d.]+)%', seen.items[gpu].split('class="memory"')[0]
        )
        drawn = [float(width) for kind, width in widths if kind in (*CLASSES[:3], "unknown")]
        assert sum(drawn) == pytest.approx(100 * charged, abs=0.051 * max(1, len(drawn)))  # each is rounded
    legend = dict(re.findall(r"</span>([\w-]+) <b>([\d.]+)</b>", seen.wall))
    assert {name: float(legend[name]) for name in CLASSES[3:]} == pytest.approx(
        {name: sums[name] for name in CLASSES[3:]}, abs=0.0501
    )
    assert seen.figure("down") == pytest.approx(sums["down"], abs=1e-3)


@given(states())
def test_every_view_has_the_same_memory_and_compute_time_of_each_gpu_or_says_that_they_are_unknown(state):
    seen = Seen(state)
    lines = {
        int(line.split()[0].rstrip("╱")): line
        for line in seen.screen.splitlines()
        if re.match(r" +\d+[╱ ] A100", line)
    }
    for gpu, info in enumerate(state.infos):
        memory, total = state.memory(gpu), info.gpu.total
        used = None if memory is None else sum(memory)
        assert (seen.top["gpus"][gpu]["used"], seen.info[gpu]["used"]) == (used, used)
        assert seen.rows[gpu][5]["value"] == used
        assert seen.metric("memory_jobs_bytes", gpu) == (None if memory is None else memory[0])
        assert seen.metric("memory_external_bytes", gpu) == (None if memory is None else memory[1])
        drawn = re.findall(r"width:([\d.]+)%", seen.items[gpu].split('class="memory"')[1])
        assert sum(map(float, drawn)) == pytest.approx(100 * (used or 0) / total, abs=0.1)
        assert ("–/" in lines[gpu]) == (used is None and info.seen is not None)
        sm = info.seen.utilisation if info.seen else None
        assert (seen.rows[gpu][4]["value"], seen.top["gpus"][gpu]["utilisation"]) == (sm, sm)
        assert seen.metric("sm_ratio", gpu) == (None if sm is None else pytest.approx(sm / 100))
        (shown,) = numbers(r'<div class="sm">(–|\d+)', seen.items[gpu])
        assert shown == ("–" if sm is None else str(sm))
        assert sm is None or f" {sm}%" in lines[gpu]


@given(states())
def test_every_view_says_of_the_same_gpus_that_they_take_no_jobs(state):
    seen = Seen(state)
    for gpu in range(seen.count):
        down = state.is_down(gpu)
        assert (seen.metric("up", gpu) == 0) == down
        assert ("down: " in seen.items[gpu]) == down
        assert (seen.info[gpu]["state"] in DOWN or seen.info[gpu]["error"] is not None) == down
        assert bool(re.search(rf"(?m)^ +{gpu}╱ ", seen.screen)) == down
        row = json.dumps(seen.rows[gpu][7], ensure_ascii=False)
        words = [one.value for one in GpuState if one is not GpuState.OK] + ["no answer"]
        assert any(word in row for word in words) == down
