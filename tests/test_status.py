"""The state of the host now: the page for a wall screen, metrics, and fgreport status."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

import history
from browser import browser
from endedjobs import an_ended_job
from fgsched.accounting.backup import archive
from fgsched.accounting.ledger import Ledger
from fgsched.accounting.records import GpuRecord, GpuUseRecord, Minute, Owner, OwnerUse
from fgsched.cli import statuspage
from fgsched.domain.errors import Exit, StorageError
from fgsched.domain.times import MINUTE
from fgsched.reports.facts import ReportReader
from fgsched.reports.metrics import MOST_USERS, OTHERS, as_metrics
from fgsched.reports.model import CLASSES
from fgsched.reports.status import GpuNow, GpuPart, Status, WaitingJob, blocks, kinds_of, sums, wall_page
from reporting import HOSTILE, is_expected
from test_pages import Page, needs_chromium

GIB = 1 << 30
ROOT = Path(__file__).parent.parent
PROMTOOL = shutil.which("promtool")


def share(job, user, part, kind, left=3600.0):
    return GpuPart(job=job, user=user, name="x", share=part, kind=kind, time_left=left)


with history.zone():
    AT = history.ts(history.at(2026, 11, 12, 14, 23))
GPUS = tuple(
    GpuNow(gpu=gpu, uuid=f"GPU-{gpu}", model=model, total=size * GIB, **more)
    for gpu, (model, size, more) in enumerate(
        [
            (
                "A100 80GB",
                80,
                {
                    "shares": (
                        share(1, "ines", 0.5, "reserved-empty", 33_540),
                        share(2, "grace", 0.5, "active"),
                    ),
                    "used": 18 * GIB,
                    "sm": 44,
                },
            ),
            ("A100 80GB", 80, {"shares": (share(3, "mei", 1.0, "active"),), "used": 31 * GIB, "sm": 100}),
            (
                "A100 80GB",
                80,
                {
                    "shares": (
                        share(4, "nadia", 0.3, "held-idle"),
                        share(5, "ben", 0.25, "active", None),
                        share(6, "hiro", 0.1, "active"),
                    ),
                    "sm": 4,
                    "external": 8 * GIB,
                },
            ),
            ("RTX A6000", 48, {"down": "Xid 94, contained ECC error"}),
        ]
    )
)
STATUS = Status(
    at=AT,
    host="hopper",
    gpus=GPUS,
    jobs={"RUNNING/gpu": 6, "PENDING/gpu": 20, "PENDING/long": 2},
    running=6,
    waiting=22,
    startable_jobs=7,
    next=(
        WaitingJob(user="ann", asked="1 GPU", start=AT + 3120),
        WaitingJob(user="lucia", asked="0.6 GPU", start=AT + 40_000),
        WaitingJob(user="jonas", asked="1 GPU"),
    ),
)

MEASURED = replace(STATUS, gpus=tuple(replace(one, temperature=61, power=240.5) for one in GPUS))


def page(status):
    with history.zone():
        return wall_page(status)


def test_a_named_file_that_cannot_be_read_is_refused():
    with pytest.raises(StorageError, match="cannot read the accounts /nowhere"):
        statuspage._Accounts("/nowhere")


def test_the_wall_page_is_the_expected_one():
    assert is_expected("status.html", re.sub(r"(?s)<style>.*?</style>", "<style></style>", page(STATUS)))


@pytest.mark.parametrize("status", [STATUS, replace(STATUS, gpus=(), next=(), waiting=0)])
def test_a_wall_page_is_well_formed_and_needs_nothing_else(status):
    found = Page(page(status))
    assert (found.wrong, found.open) == ([], [])
    assert not re.search(r"https?:|src=|<script|<link|url\(", page(status))
    assert ("meta", {"http-equiv": "refresh", "content": "60"}) in found.tags


def test_a_controller_that_does_not_answer_is_told_instead_of_an_old_state():
    html = page(Status(at=AT, host="hopper", trouble="the controller is not running"))
    text = Page(html).text
    assert "The controller does not answer." in text
    assert "the controller is not running" in text
    assert "14:23" in text
    assert "charged" not in text


def test_the_classes_of_the_gpus_add_up_to_their_number():
    for gpu in GPUS:
        assert sum(gpu.classes().values()) == pytest.approx(1.0)
    found = STATUS.classes()
    assert sum(found.values()) == pytest.approx(4.0)
    assert found["external"] == pytest.approx(0.1)
    assert (found["down"], found["reserved-empty"]) == (1.0, 0.5)
    assert STATUS.charged == pytest.approx(2.65)


def test_shares_of_time_and_memory_above_a_whole_gpu_are_reduced_as_in_the_accounts():
    """One job has most of the time and another most of the memory, so their charges exceed the GPU."""
    crowded = GpuNow(
        gpu=0,
        uuid="u",
        model="A100",
        total=80 << 30,
        shares=(share(1, "ann", 0.75, "active"), share(2, "ben", 0.75, "held-idle")),
    )
    assert [one.share for one in crowded.scaled] == [0.5, 0.5]
    assert crowded.classes() == dict.fromkeys(CLASSES, 0.0) | {"active": 0.5, "held-idle": 0.5}
    assert sum(block.part for block in blocks(crowded, two=False)) == 1.0


def test_a_label_that_does_not_fit_is_shortened_or_left_out():
    gpu = GPUS[2]
    assert [(one.user, one.note) for one in blocks(gpu, two=False)] == [
        ("nadia", ""),
        ("ben", ""),
        ("hi…", ""),
        ("", ""),
    ]
    assert [one.user for one in blocks(gpu, two=True)] == ["nadia", "ben", "", ""]
    assert blocks(GPUS[1], two=False)[0].note == "1 h 00 min"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_harm_neither_page_nor_metrics(text):
    bad = GpuNow(gpu=0, uuid="x", model=text, total=GIB, shares=(share(1, text, 1.0, "active"),), down=text)
    status = replace(
        STATUS,
        host=text,
        gpus=(bad,),
        next=(WaitingJob(user=text, asked="1 GPU"),),
        jobs={f"RUNNING/{text}": 1},
    )
    html = page(status)
    found = Page(html)
    assert (found.wrong, found.open) == ([], [])
    assert not re.search("<script|[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", html)
    metrics = as_metrics(status, None)
    assert all(line.isprintable() for line in metrics.splitlines())
    assert max(len(line.encode()) for line in metrics.splitlines()) < 2000


@pytest.mark.chromium
@needs_chromium
def test_the_wall_page_fills_a_screen_and_no_more(tmp_path):
    many = tuple(replace(GPUS[at % 4], gpu=at) for at in range(16))
    with browser(tmp_path) as chromium:
        for status in (STATUS, replace(STATUS, gpus=many), replace(STATUS, trouble="x")):
            chromium.show(page(status), width=1920, height=1080)
            size = "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
            assert chromium.value(size) == [1920, 1080]
            chromium.show(page(status), width=390, height=844)
            assert chromium.value("document.documentElement.scrollWidth") == 390


# -- metrics -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fortnight(tmp_path_factory):
    path = tmp_path_factory.mktemp("accounts") / "accounts.db"
    history.write(history.FORTNIGHT, path)
    reader = ReportReader(path)
    yield reader
    reader.close()


def samples(text):
    """Return the samples of a text: name and labels to value."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_metrics_have_the_state_and_the_sums_of_the_accounts(fortnight):
    totals = sums(fortnight)
    found = samples(as_metrics(STATUS, totals))
    assert found['fgsched_gpu_up{gpu="3",type="RTX A6000"}'] == 0.0
    assert found['fgsched_jobs{partition="long",state="PENDING"}'] == 2.0
    assert found['fgsched_user_charged_gpus{type="A100 80GB",user="mei"}'] == 1.0
    active = [
        value for name, value in found.items() if "_gpu_class_seconds_total" in name and '"active"' in name
    ]
    assert sum(active) == pytest.approx(sum(one.active for one in totals.totals))
    charged = sum(value for name, value in found.items() if "_user_charged_gpu_seconds_total" in name)
    assert charged == pytest.approx(sum(one.active + one.held + one.empty for one in totals.totals))
    ended = sum(value for name, value in found.items() if name.startswith("fgsched_jobs_ended_total"))
    assert ended == sum(one.jobs for one in totals.jobs) > 0


def test_names_that_are_shortened_to_one_label_are_one_series():
    """Prometheus refuses a file in which a series occurs twice."""
    users = ("y" * 101, "y" * 102)
    shares = tuple(share(at, user, 0.25, "active") for at, user in enumerate(users))
    gpu = GpuNow(gpu=0, uuid="u", model="A100", total=GIB, shares=shares)
    text = as_metrics(replace(STATUS, gpus=(gpu,)), None)
    (line,) = [one for one in text.splitlines() if one.startswith("fgsched_user_charged_gpus{")]
    assert line == f'fgsched_user_charged_gpus{{type="A100",user="{"y" * 100}"}} 0.5'


def test_a_controller_that_does_not_answer_leaves_the_sums(fortnight):
    found = samples(as_metrics(Status(at=AT, host="hopper", trouble="x"), sums(fortnight)))
    assert found['fgsched_up{version="0.1.0"}'] == 0.0
    assert not [name for name in found if name.startswith("fgsched_gpu_up")]
    assert [name for name in found if name.startswith("fgsched_gpu_class_seconds_total")]


def test_names_begin_with_fgsched_and_no_job_has_a_label(fortnight):
    text = as_metrics(STATUS, sums(fortnight))
    names = {name.partition("{")[0] for name in samples(text)}
    assert all(re.fullmatch(r"fgsched_[a-z_]+", name) for name in names)
    labels = set(re.findall(r'([a-z_]+)="', text))
    assert labels <= {"gpu", "type", "class", "user", "partition", "state", "version"}


def test_users_beyond_the_first_are_summed(tmp_path):
    path, begin = tmp_path / "accounts.db", 1_794_178_800
    ledger = Ledger(path)
    count = MOST_USERS + 20
    with ledger.write():
        ledger.add_gpus(
            [GpuRecord(uuid="GPU-0", gpu=0, model="A100", total=80 * GIB, since=begin, until=begin + 60)]
        )
        owners = tuple(
            OwnerUse(
                at=begin,
                owner=Owner(uid=at, user=f"u{at}", partition="gpu"),
                uuid="GPU-0",
                job=at,
                charged=1.0,
                active=1.0,
            )
            for at in range(1, count + 1)
        )
        gpu = GpuUseRecord(at=begin, uuid="GPU-0", sampled=60, active=60)
        ledger.add_minute(Minute(at=begin, gpus=(gpu,), owners=owners))
        ledger.roll(3600, begin, begin + 3600)
        ledger.roll(86_400, begin, begin + 86_400)
    ledger.close()
    reader = ReportReader(path)
    found = samples(as_metrics(STATUS, sums(reader)))
    reader.close()
    users = {name for name in found if name.startswith("fgsched_user_used_gpu_seconds_total")}
    assert len(users) == MOST_USERS + 1
    labels = f'{{class="active",partition="gpu",type="A100",user="{OTHERS}"}}'
    assert found[f"fgsched_user_charged_gpu_seconds_total{labels}"] == 20.0


DAYS = [1_794_178_800 + at * 86_400 for at in range(4)]


def with_days(path, seconds):
    """Accounts with a job that ended on each of four days, and uses of so many seconds."""
    ledger, owner = Ledger(path), Owner(uid=1, user="ann", partition="gpu")
    times = {"submitted_at": 1.0, "eligible_at": 1.0, "started_at": 2.0}
    with ledger.write():
        ledger.add_gpus(
            [GpuRecord(uuid="GPU-0", gpu=0, model="A100", total=1, since=DAYS[0], until=DAYS[-1])]
        )
        for job, at in enumerate(DAYS, 1):
            about = {"owner": owner, "name": "x", "state": "FAILED", "reason": "None", **times}
            ledger.add_jobs([an_ended_job(id=job, ended_at=at + 9.0, **about)])
            use = {"active": seconds, "used": seconds / 3}
            gpu = GpuUseRecord(at=at, uuid="GPU-0", sampled=60, energy=0.1, **use)
            own = OwnerUse(at=at, owner=owner, uuid="GPU-0", job=job, charged=1.0, **use)
            ledger.add_minute(Minute(at=at, gpus=(gpu,), owners=(own,)))
            ledger.roll(3600, at, at + 3600)
            ledger.roll(86_400, at, at + 86_400)
    return ledger


def counters(path):
    reader = ReportReader(path)
    try:
        found = samples(as_metrics(Status(at=AT, host="hopper", trouble="x"), sums(reader)))
    finally:
        reader.close()
    return {name: value for name, value in found.items() if "_total{" in name}


def test_no_counter_falls_when_jobs_are_archived_and_old_days_are_deleted(tmp_path):
    path = tmp_path / "accounts.db"
    ledger = with_days(path, 0.1)
    before = counters(path)
    assert before['fgsched_jobs_ended_total{partition="gpu",state="FAILED"}'] == 4.0
    assert before['fgsched_gpu_class_seconds_total{class="active",gpu="0",type="A100"}'] == 0.4
    assert archive(ledger, tmp_path / "old.db", DAYS[2]) == 2
    assert counters(path) == before
    with ledger.write():
        ledger.fold(DAYS[1])
    assert counters(path) == before, "each sum is exact"
    with ledger.write():
        assert ledger.prune(86_400, DAYS[3]) is False
    assert counters(path) == before
    ledger.close()


def test_the_dashboard_asks_only_for_metrics_that_are_written(fortnight):
    written = {name.partition("{")[0] for name in samples(as_metrics(MEASURED, sums(fortnight)))}
    panels = json.loads((ROOT / "docs" / "grafana" / "fgsched.json").read_text())["panels"]
    asked = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"fgsched_[a-z_]+", target["expr"])
    }
    assert asked - written == set()
    assert len(asked) > 8


@pytest.mark.promtool
@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool")
@pytest.mark.parametrize("status", [MEASURED, Status(at=AT, host="hopper", trouble="x")])
def test_promtool_accepts_the_metrics(fortnight, status):
    text = as_metrics(status, sums(fortnight))
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# -- what jobs do now ----------------------------------------------------------------------------------


def test_the_last_minute_tells_what_a_job_does_on_each_gpu(tmp_path):
    path, begin = tmp_path / "accounts.db", 1_794_178_800
    owner = Owner(uid=1, user="ann")
    ledger = Ledger(path)
    with ledger.write():
        ledger.add_gpus(
            GpuRecord(uuid=f"GPU-{at}", gpu=at, model="A100", total=80 * GIB, since=begin, until=begin + 120)
            for at in range(2)
        )
        for at, name in ((begin, "active"), (begin + MINUTE, "held")):
            uses = (
                OwnerUse(at=at, owner=owner, uuid="GPU-0", job=7, charged=60, **{name: 60.0}),
                OwnerUse(at=at, owner=owner, uuid="GPU-1", job=7, charged=60, empty=60),
            )
            gpus = tuple(GpuUseRecord(at=at, uuid=f"GPU-{gpu}", sampled=60, free=60) for gpu in range(2))
            ledger.add_minute(Minute(at=at, gpus=gpus, owners=uses))
    ledger.close()
    reader = ReportReader(path)
    expected = {(7, "GPU-0"): "held-idle", (7, "GPU-1"): "reserved-empty"}
    assert kinds_of(reader, begin + 150) == expected
    assert kinds_of(reader, begin + 3600) == {}
    reader.close()


# -- fgreport status -----------------------------------------------------------------------------------


def test_fgreport_status_writes_the_wall_page_and_metrics(home, tmp_path):
    job = home.running(share=5000)
    home.submit(demand={"gpus": 2, "share": 10_000})
    folder = tmp_path / "wall"
    done = home.run("fgreport", "status", "--format", "html,metrics", "--output", str(folder))
    assert (done.status, done.out, done.err) == (0, "", "")
    page = (folder / "status.html").read_text()
    assert "<b>0.5</b> of 2 cards charged" in page
    assert "2\u202fGPU" in page
    found = samples((folder / "fgsched.prom").read_text())
    assert found['fgsched_up{version="0.1.0"}'] == 1.0
    assert found['fgsched_jobs{partition="main",state="RUNNING"}'] == 1.0
    assert sum(value for name, value in found.items() if name.startswith("fgsched_user_charged_gpus")) == 0.5
    assert job


def test_metrics_tell_a_missing_controller_without_an_error(home, tmp_path):
    done = home.run("fgreport", "status", "--format", "metrics", "--output", str(tmp_path / "textfile"))
    assert (done.status, done.out, done.err) == (0, "", "")
    assert [path.name for path in (tmp_path / "textfile").iterdir()] == ["fgsched.prom"]
    assert 'fgsched_up{version="0.1.0"} 0.0' in (tmp_path / "textfile" / "fgsched.prom").read_text()
    assert not (home.path / "lock").exists()


def test_a_page_tells_a_missing_controller_and_the_command_fails(home, tmp_path):
    done = home.run("fgreport", "status", "--format", "html", "--output", str(tmp_path / "wall"))
    assert done.status == Exit.UNREACHABLE
    assert "The controller does not answer." in (tmp_path / "wall" / "status.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--week", "2026-W46"), "the report status has no --week"),
        (("--format", "pdf"), "there is no format 'pdf'"),
        (("--format", "html,json"), "several formats need --output"),
    ],
)
def test_fgreport_status_refuses_what_it_has_not(home, words, message):
    done = home.run("fgreport", "status", *words)
    assert done.status == Exit.USAGE
    assert message in done.err
