"""What fgtop, the wall page, the status, the metrics, fginfo and fgstat print at steps of a known history.

Every number that they print of a GPU or a job is compared with the history, which is counted by hand.
"""

import json
import re

from hypothesis import HealthCheck, Phase, given, settings
from prometheus_client.parser import text_string_to_metric_families

import history
from fgsched.cli import fginfo, fgstat
from fgsched.cli.statuspage import Answers, state_of
from fgsched.cli.terminal import listing
from fgsched.cli.top import plain
from fgsched.cli.top.layout import plain as as_lines
from fgsched.cli.top.layout import screen
from fgsched.cli.top.snapshot import LookHistory
from fgsched.cli.top.view import TopUser, View
from fgsched.domain.units import format_share
from fgsched.reports.export import as_json
from fgsched.reports.metrics import as_metrics
from fgsched.reports.status import status as status_report
from fgsched.reports.status import wall_page
from fgsched.reports.text import as_text
from fgsched.views.host import HostPartition
from known_history import GIB, HISTORY, STEP, WHOLE, t
from known_present import present, sampled
from report_truth import CLASSES, Truth
from test_report_sentences import worlds

HOST = "hopper"
STEPS = [
    *(t(0, 9.2), t(0, 12.5), t(1, 9), t(1, 13), t(2, 9.2), t(2, 13.7), t(2, 18), t(2, 22), t(3, 9.5)),
    *(t(3, 15), t(4, 13), t(4, 21)),
]


class Views:
    """The views at one step; those of fgtop show what happened since the step before."""

    def __init__(self, before, now) -> None:
        self.now, self.truth = now, now.truth
        looks = LookHistory()
        looks.frame(before.infos, before.jobs, before.now, HOST)
        frame = looks.frame(now.infos, now.jobs, now.now, HOST)
        self.top = json.loads(plain.document(frame))
        shown = screen(frame, looks, View(width=160, height=70), TopUser(1, "ann"), now=now.now)
        self.screen = as_lines(shown.lines)
        kinds = {
            (job.id, info.gpu.uuid): kind
            for info in now.infos
            for job, kind, *_ in self.truth.measured[now.step, info.gpu.index]
        }
        state = state_of(Answers(now.infos, now.jobs), kinds, now.now, HOST)
        self.wall = wall_page(state)
        self.items = re.findall(r"(?s)<li><div class=\"id\">.*?</li>", self.wall)
        report = status_report(now.infos, now.jobs, {}, HOST, now.now)
        self.status = as_text(report)
        self.rows = json.loads(as_json(report))["sections"][0]["parts"][0]["rows"]
        self.metrics = {
            (
                sample.name,
                *sorted(value for name, value in sample.labels.items() if name != "type"),
            ): sample.value
            for family in text_string_to_metric_families(as_metrics(state, None))
            for sample in family.samples
        }

    def problems(self) -> list[str]:
        """Return each number of a view that is not that of the history."""
        found = [*self._counts(), *self._jobs()]
        for info in self.now.infos:
            found += self._of_gpu(info.gpu.index)
        return [f"step {self.now.step}: {problem}" for problem in found]

    def _counts(self):
        running = sum(job.holds(self.now.step) for job in self.now.world.jobs)
        waiting = sum(job.waits(self.now.step) for job in self.now.world.jobs)
        charged = float(self.truth.whole.charged / STEP)
        shown = {
            "fgtop": re.search(r"([\d.]+) of \d+ cards charged  (\d+) running  (\d+) waiting", self.screen),
            "status": re.search(
                r"([\d.]+) of \d+ cards charged, (\d+) jobs? running, (\d+) waiting", self.status
            ),
            "wall": re.search(
                r"(?s)<b>([\d.]+)</b> of.*?<b>(\d+)</b> running.*?<b>(\d+)</b> waiting", self.wall
            ),
        }
        for view, match in shown.items():
            if match is None or (int(match[2]), int(match[3])) != (running, waiting):
                yield f"{view}: {match and match.groups()}, not {running} running and {waiting} waiting"
            elif abs(float(match[1]) - charged) > 0.0501:
                yield f"{view}: {match[1]} charged, not {charged}"
        row = listing(
            fginfo._COLUMNS["partitions"], [HostPartition(self.now.partition, self.now.host)], header=False
        )
        if row.split()[4] != f"{running}/{waiting}":
            yield f"fginfo: {row.split()[4]}, not {running}/{waiting}"

    def _of_gpu(self, gpu):
        world, step, cell = self.now.world, self.now.step, self.now.cell(gpu)
        known = {name: float(cell.classes[name] / STEP) for name in CLASSES}
        top = {name.replace("_", "-"): part for name, part in self.top["gpus"][gpu]["classes"].items()}
        metrics = {
            name: self.metrics["fgsched_gpu_class_ratio", *sorted((name, str(gpu)))] for name in CLASSES
        }
        for view, parts in {"fgtop": top, "metrics": metrics}.items():
            if any(abs(parts[name] - known[name]) > 1e-3 for name in CLASSES):
                yield f"{view}: GPU {gpu} {parts}, not {known}"
        drawn = dict.fromkeys(CLASSES, 0.0)
        bar = self.items[gpu].split('class="memory"')[0]
        for name, width in re.findall(r'<i class="([\w-]+)" style="width:([\d.]+)%', bar):
            drawn[name] += float(width) / 100
        if any(abs(drawn[name] - known[name]) > 6e-3 for name in CLASSES if name != "free"):
            yield f"wall: GPU {gpu} {drawn}, not {known}"
        outside = sum(stranger.memory for stranger in self.truth.strangers_at(gpu, step))
        jobs = cell.peak // GIB - outside
        yield from self._memory(gpu, jobs, outside)
        yield from self._fginfo(gpu, jobs, outside)
        users = {job.user for job, *_ in self.truth.measured[step, gpu]}
        cell_of_users = json.dumps(self.rows[gpu][7])
        shown = {job.user for job in world.jobs if f'"{job.user}"' in cell_of_users}
        if shown != users:
            yield f"status: GPU {gpu} {shown}, not the users {users}"

    def _memory(self, gpu, jobs, outside):
        total = self.now.world.models[gpu][1]
        values = {
            "fgtop": self.top["gpus"][gpu]["used"] / GIB - self.top["gpus"][gpu]["external"] / GIB,
            "metrics": self.metrics["fgsched_gpu_memory_jobs_bytes", str(gpu)] / GIB,
        }
        widths = re.findall(r"width:([\d.]+)%", self.items[gpu].split('class="memory"')[1])
        values["wall"] = float(widths[0]) * total / 100
        values["wall, outside"] = float(widths[1]) * total / 100 + jobs - outside
        (shown,) = re.findall(rf"(?m)^ +{gpu}[╱ ] .*? (\d+)/{total}G", self.screen)
        values["fgtop screen"] = int(shown) - outside
        for view, value in values.items():
            if abs(value - jobs) > 0.01 * total:
                yield f"{view}: GPU {gpu} {value} GiB by jobs, not {jobs}"

    def _fginfo(self, gpu, jobs, outside):
        world, step = self.now.world, self.now.step
        held = [job for job, *_ in self.truth.measured[step, gpu]]
        total = world.models[gpu][1]
        memory = sum(world.memory(job) for job in held) // (1 << 20)
        free_share = WHOLE - sum(job.share for job in held)
        state = "idle" if not held else "mix" if free_share else "alloc"
        if self.truth.is_down(gpu, step):
            state = "drng" if held else "drain"
        known = [
            *(state, f"{format_share(WHOLE - free_share)}/1"),
            f"{memory}M/{(jobs + outside) * 1024}M/{total * 1024}M",
        ]
        row = listing(fginfo._COLUMNS["gpus"], [self.now.infos[gpu]], header=False).split()
        ids = sorted(job.id for job in held)
        if row[2:5] != known or (outside and row[-1] != f"{outside * 1024}M"):
            yield f"fginfo: {row}, not {known}"
        if self.now.infos[gpu].jobs != ids:
            yield f"fginfo: {row}, not the jobs {ids}"

    def _jobs(self):
        """Compare the rows of fgstat."""
        for info in self.now.jobs:
            job = next(job for job in self.now.world.jobs if job.id == info.id)
            if not job.gpus or not job.holds(self.now.step):
                continue
            past = Truth(self.now.world, 0, self.now.step + 1)
            seen = [parts for step, parts in past.seen(job) if step <= self.now.step]
            use = [sum(part[3] for part in parts) for parts in seen]
            known = {
                4: f"{max(part[4] for part in seen[-1]) * 1024}M",
                5: f"{max(part[4] for parts in seen for part in parts) * 1024}M",
                6: f"{self.now.world.memory(job) >> 20}M",
                7: f"{float(100 * use[-1] / len(job.gpus)):.0f}",
                8: f"{min(100.0, float(100 * sum(use) / len(seen) / len(job.gpus))):.0f}",
            }
            row = listing(fgstat.COLUMNS, [fgstat.JobUseRow(info, None)], header=False).split()
            wrong = {column: row[column] for column, text in known.items() if row[column] != text}
            yield from [f"fgstat: job {job.id} {wrong}, not {known}"] if wrong else []


def views(world, steps):
    if not steps:
        return []
    wanted = sorted({*steps, *(step - 1 for step in steps)})
    made = {step: present(world, step, usages) for step, usages in sampled(world, wanted)}
    return [Views(made[step - 1], made[step]) for step in steps]


def test_every_number_about_the_present_is_that_of_the_history():
    with history.zone():
        assert [problem for view in views(HISTORY, STEPS) for problem in view.problems()] == []


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@given(world=worlds())
def test_every_number_about_the_present_of_any_history_is_true(world):
    end = next((gap.since for gap in world.lost), world.steps)
    steps = [step for step in range(5, min(end, world.steps), 37)]
    with history.zone():
        assert [problem for view in views(world, steps) for problem in view.problems()] == []
