"""Every sentence and every number of every report, compared with a history whose truth is counted by hand.

A report is read as JSON, where each sentence must match a rule of report_rules and each table a table of
report_tables. The other forms must say the same: what JSON does not have, no form shows.
"""

import json
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

import history
import report_forms
from fgsched.accounting.ledger import LedgerReader
from fgsched.accounting.periods import Choice, chosen
from fgsched.reports.export import as_json
from fgsched.reports.facts import Facts, ReportReader
from fgsched.reports.metrics import as_metrics
from fgsched.reports.registry import NAMES, Wish, kind
from fgsched.reports.status import Status, sums
from inmemory import memory
from known_history import HISTORY, STEP, WATTS, Down, Job, KnownHost, Lost, Process, Stranger, t, write
from report_rules import problems
from report_tables import HOUR, agrees, proposals
from report_truth import CLASSES, Truth

END = t(9, 12)  # the controller is still running
NOW = HISTORY.at(END) + 1200
NUMBERS = ("no", "one", "two", "three", "four", "five")
WEIGHTS, QUOTAS = {"A100": 2.5}, {"lab": 200 * 3600.0}


class Case:
    """A period of a history, its truth and that of the period before."""

    def __init__(self, world: KnownHost, choice: Choice, span, before, words, user="") -> None:
        self.world, self.choice, self.user = world, choice, user
        self.truth, self.before = Truth(world, *span, user), Truth(world, *before, user)
        self.noun, self.name, self.label, self.earlier, self.closed = words
        self.weights, self.quotas, self.by, self.number = WEIGHTS, QUOTAS, "user", 10
        self._reports = {}

    def read(self, report) -> None:
        """Note which proposals a report must have."""
        most = 5 if report["kind"] in ("overview", "me") else self.number
        self.items = proposals(self)[:most]
        self.returned = sum(one[5] for one in self.items) / HOUR if self.items else 0

    def findings(self, number: str, amount: str) -> bool:
        return number == NUMBERS[len(self.items)] and agrees(amount, self.returned)

    def together(self, amount: str, part: str) -> bool:
        charged = sum(map(self.truth.charged, self.truth.ended)) / HOUR
        return agrees(amount, self.returned) and agrees(part, 100 * self.returned / charged)

    def made(self, path, name: str):
        """Return a report; it is made once."""
        if name not in self._reports:
            self._reports[name] = self._make(path, name)
        return self._reports[name]

    def _make(self, path, name: str):
        with history.zone(), closing(ReportReader(path)) as reader, reader.reading():
            facts = Facts(reader, chosen(self.choice, "week", NOW), host="hopper", user=self.user)
            wish = Wish(now=NOW, by=self.by, number=self.number, weights=self.weights, quotas=self.quotas)
            return kind(name).make(facts, wish)


CASES = {
    "a week": (
        Choice(week="2026-W46"),
        (t(0), t(7)),
        (t(-7), t(0)),
        ("week", "2026-W46", "9–15 November 2026", "week 45", True),
    ),
    "a week that has not ended": (
        Choice(week="2026-W47"),
        (t(7), t(9, 12)),
        (t(0), t(2, 12)),
        ("week", "2026-W47", "Mon 16 Nov 2026 00:00 – Wed 18 Nov 2026 12:00", "week 46", False),
    ),
    "a day": (
        Choice(since="2026-11-12", until="2026-11-13"),
        (t(3), t(4)),
        (t(2), t(3)),
        ("day", "2026-11-12", "Thursday 12 November 2026", "the day before", True),
    ),
    "hours": (
        Choice(since="2026-11-11T20:00", until="2026-11-12T09:00"),
        (t(2, 20), t(3, 9)),
        (t(2, 7), t(2, 20)),
        (
            "period",
            "2026-11-11T20:00..2026-11-12T09:00",
            "Wed 11 Nov 2026 20:00 – Thu 12 Nov 2026 09:00",
            "the period before",
            True,
        ),
    ),
    "a month that has not ended": (
        Choice(month="2026-11"),
        (t(-8), t(9, 12)),
        (t(-39) - 12, t(-22, 12)),
        ("month", "2026-11", "Sun 1 Nov 2026 00:00 – Wed 18 Nov 2026 12:00", "2026-10", False),
    ),
    "a week before there was anything": (
        Choice(week="2026-W42"),
        (t(-28) - 12, t(-21) - 12),
        (t(-35) - 12, t(-28) - 12),
        ("week", "2026-W42", "12–18 October 2026", "week 41", True),
    ),
    "a quarter": (
        Choice(since="2026-09-01", until="2026-11-18"),
        (t(-69) - 12, t(9)),
        (t(-147) - 12, t(-69) - 12),
        ("period", "2026-09-01..2026-11-17", "1 September – 17 November 2026", "the period before", True),
    ),
    "a year": (
        Choice(since="2025-11-18", until="2026-11-18"),
        (t(-356), t(9)),
        (t(-721), t(-356)),
        (
            "period",
            "2025-11-18..2026-11-17",
            "18 November 2025 – 17 November 2026",
            "the period before",
            True,
        ),
    ),
    "an hour without samples": (
        Choice(since="2026-11-12T00:00", until="2026-11-12T01:00"),
        (t(3), t(3, 1)),
        (t(2, 23), t(3)),
        (
            "period",
            "2026-11-12T00:00..2026-11-12T01:00",
            "Thu 12 Nov 2026 00:00 – Thu 12 Nov 2026 01:00",
            "the period before",
            True,
        ),
    ),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    place = tmp_path_factory.mktemp("known") / "accounts.db"
    with history.zone():
        write(HISTORY, place)
    return place


@cache
def case_of(period: str, user: str) -> Case:
    return Case(HISTORY, *CASES[period], user)


@pytest.fixture
def case(period, name):
    return case_of(period, "mei" if name == "me" else "")


REPORTS = [(period, name) for period in CASES for name in NAMES if name != "me" or period == "a week"]


@pytest.mark.parametrize(("period", "name"), REPORTS)
def test_every_sentence_and_every_number_of_a_report_is_true(path, case, name):
    report = json.loads(as_json(case.made(path, name)))
    with history.zone():
        assert problems(case, report) == []


@pytest.mark.parametrize(("period", "name"), REPORTS)
def test_text_page_markdown_mail_and_csv_say_what_json_says_and_no_more(path, case, name):
    report = case.made(path, name)
    with history.zone():
        assert report_forms.problems(report, json.loads(as_json(report))) == []


@pytest.mark.parametrize("by", ["account", "partition", "type", "tag"])
def test_every_grouping_of_users_is_true(path, by):
    case = Case(HISTORY, *CASES["a week"])
    case.by = by
    report = json.loads(as_json(case.made(path, "users")))
    with history.zone():
        assert problems(case, report) == []


def test_lists_of_another_length_are_true(path):
    case = Case(HISTORY, *CASES["a week"])
    case.number = 3
    for name in ("top", "waste", "failures", "waits"):
        report = json.loads(as_json(case.made(path, name)))
        with history.zone():
            assert problems(case, report) == []


def counters(path):
    """Return (name, labels in order) -> value of the sums in the metrics."""
    with history.zone(), closing(ReportReader(path)) as reader, reader.reading():
        text = as_metrics(Status(at=NOW, host="hopper", trouble="none"), sums(reader))
    return {
        (one.name.removeprefix("fgsched_"), *sorted(one.labels.values())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name.endswith("_total")
    }


def test_the_counters_of_the_metrics_are_the_sums_of_the_history(path):
    truth, expected = Truth(HISTORY, 0, HISTORY.steps), {}
    for gpu, use in truth.by_gpu.items():
        labels = (str(gpu), HISTORY.models[gpu][0])
        steps = sum(one == gpu for _, one in truth.cells)
        expected["gpu_used_seconds_total", *sorted(labels)] = use.used
        expected["gpu_energy_joules_total", *sorted(labels)] = steps * STEP * WATTS
        for name, seconds in use.classes.items():
            expected["gpu_class_seconds_total", *sorted((*labels, name))] = seconds
    for (user, model), use in truth.by(lambda job, gpu: (job.user, HISTORY.models[gpu][0])).items():
        labels = (user, "gpu", model)
        expected["user_used_gpu_seconds_total", *sorted(labels)] = use.used
        for name in CLASSES[:3]:
            expected["user_charged_gpu_seconds_total", *sorted((*labels, name))] = use.classes[name]
    for job in truth.ended:
        key = ("jobs_ended_total", *sorted(("gpu", job.state)))
        expected[key] = expected.get(key, 0) + 1
    assert counters(path) == {key: pytest.approx(float(value), abs=1e-3) for key, value in expected.items()}


def test_the_totals_of_ended_jobs_are_those_of_the_history(path):
    """What fgacct and the reports of Slurm's names add up: each job with its charge, use and idle time."""
    truth = Truth(HISTORY, 0, HISTORY.steps)
    with closing(LedgerReader(path)) as reader:
        jobs = {job.id: job for job in reader.jobs(0, 1 << 40)}
    assert jobs.keys() == {job.id for job in truth.ended}
    for job in truth.ended:
        found, use = jobs[job.id], truth.use(job)
        assert found.charged == pytest.approx(float(truth.charged(job)))
        if found.usage is None:
            assert not job.gpus or job.start is None
            continue
        usage = found.usage
        assert (usage.used, usage.held + usage.empty) == pytest.approx((float(use.used), float(use.idle)))
        assert (usage.longest_idle, usage.peak) == (truth.longest_idle(job), use.peak)
        assert usage.first_process == truth.first_process(job)


# -- histories of chance ---------------------------------------------------------------------

DAY = 288  # steps
USERS = ("ann", "ben", "chloe", "dmitri", "elif", "farid", "grace", "hiro")
ENDS = (
    ("COMPLETED", "", 0),
    ("COMPLETED", "", 0),
    ("FAILED", "", 0),
    ("TIMEOUT", "", 0),
    ("OUT_OF_MEMORY", "gpu", 3),
    ("OUT_OF_MEMORY", "host", 0),
    ("CANCELLED", "", 0),
    ("NODE_FAIL", "", 0),
    ("PREEMPTED", "", 0),
)
MODELS = (("NVIDIA A100 80GB", 80), ("NVIDIA RTX A6000", 48))


@st.composite
def a_job(draw, id, gpu, lanes, since, until):
    """A job that holds `lanes` quarters of a GPU between two steps, or less."""
    start = draw(st.integers(since, until - 1))
    end = draw(st.integers(start + 1, until))
    size = MODELS[gpu][1] * lanes // 4
    first = draw(st.integers(start, end))
    last = draw(st.integers(first, end))
    work = draw(st.sampled_from(((0, 1), (60, 2), (100 * lanes, 1), (2400 * lanes, size), (2500 * lanes, 3))))
    state, oom, refused = draw(st.sampled_from(ENDS))
    earlier = ()
    if start - since > 4 and draw(st.booleans()):
        earlier = ((since, draw(st.integers(since + 1, start - 1))),)
    return Job(
        id=id,
        user=draw(st.sampled_from(USERS)),
        name=f"{draw(st.sampled_from(('train', 'eval')))}-{gpu}-{lanes}",
        gpus=(gpu,),
        share=2500 * lanes,
        memory=draw(st.sampled_from((0, size))),
        eligible=since if earlier else draw(st.integers(max(0, start - 30), start)),
        start=start,
        end=None if end > DAY + 6 else end,
        earlier=earlier,
        processes=(Process((gpu,), first, last, *work),) if first < last else (),
        state=state,
        oom=oom,
        refused=refused,
        exit=int(state == "FAILED"),
        limit=draw(st.sampled_from((1, 24))),
    )


@st.composite
def worlds(draw):
    """A host with two GPUs for a day and an hour."""
    jobs, number = [], 0
    for gpu in (0, 1):
        for lanes in draw(st.sampled_from(((4,), (2, 2), (2, 1, 1), (1, 1, 1, 1)))):
            since = 0
            for _ in range(draw(st.integers(0, 3))):
                until = draw(st.integers(since + 2, since + 130))
                number += 1
                if until <= DAY + 12:
                    jobs.append(draw(a_job(number, gpu, lanes, since, until)))
                    since = until
    if draw(st.booleans()):
        jobs.append(Job(id=90, user="ines", name="never", gpus=(0,), eligible=9, end=40, state="CANCELLED"))
        jobs.append(Job(id=91, user="jonas", name="cpu", eligible=20, start=30, end=60, lacking="cpus"))
    begin = draw(st.integers(1, DAY - 20))
    strangers = tuple(
        Stranger(
            draw(st.integers(0, 1)),
            first := draw(st.integers(0, DAY)),
            first + draw(st.integers(1, 60)),
            draw(st.sampled_from(("viz", "root"))),
            "python",
            500 + at,
            draw(st.integers(1, 20)),
        )
        for at in range(draw(st.integers(0, 5)))
    )
    downs = ()
    if draw(st.booleans()):
        first = draw(st.integers(0, DAY - 2))
        downs = (Down(draw(st.integers(0, 1)), first, first + draw(st.integers(2, 100)), "fan"),)
    lost = (
        (Lost(begin, begin + draw(st.integers(4, 19)), draw(st.booleans())),) if draw(st.booleans()) else ()
    )
    return KnownHost(
        models=MODELS,
        begin=HISTORY.begin,
        steps=DAY + 12,
        jobs=tuple(jobs),
        strangers=strangers,
        downs=downs,
        lost=lost,
    )


THURSDAY = (
    Choice(since="2026-11-05", until="2026-11-06"),
    (0, DAY),
    (-DAY, 0),
    ("day", "2026-11-05", "Thursday 5 November 2026", "the day before", True),
)


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to shrink a history takes minutes
)
@given(world=worlds())
def test_every_sentence_about_any_history_is_true(world):
    with TemporaryDirectory(dir=memory()) as folder, history.zone():
        place = Path(folder) / "accounts.db"
        write(world, place)
        found = []
        for name in NAMES:
            case = Case(world, *THURSDAY, user="ann" if name == "me" else "")
            found += problems(case, json.loads(as_json(case.made(place, name))))
        assert found == []
