"""scripts/gpu-check without a card: its parts on the fake driver, and what it says."""

import os
import re
import site
import subprocess
import sys
from typing import NamedTuple

import pytest

import fgshim
from arbiter import Page
from fakecuda import Card, instance
from live_host import PATIENCE, ROOT

sys.path.append(str(ROOT / "scripts"))

from gpucheck import (
    frameworks,
    jobs,
    linking,
    memory,
    mig,
    mixes,
    neighbours,
    numbers,
    probing,
    quarters,
    report,
    speed,
    taken,
    training,
    views,
)
from gpucheck.place import Place, Share
from gpucheck.sheet import NotHere, Row, in_time, rows_of, show

GIB = 1 << 30
pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not fgshim.library().exists(), reason="the hook is not built"),
]


@pytest.fixture
def place(driver, monkeypatch):
    """A fake card of 8 GiB, in the environment of what is run here."""
    (gpu,) = driver.gpus(Card(memory=8 * GIB, context=64 << 20, processors=132, threads=2048))
    for name, value in driver.env.items():
        monkeypatch.setenv(name, value)
    return Place(sys.executable, gpu.uuid, 8 * GIB)


def test_the_charge_of_a_context_is_compared_with_what_it_takes(place):
    rows = {row.what: row.seen for row in rows_of(memory.contexts, place)}
    said = rows["a context's charge until one was measured"]
    assert said == "measured 520 MiB; the driver takes 64 MiB"


@pytest.mark.parametrize(
    ("section", "least"),
    [
        (views.nvml, 7),
        (views.given, 1),
        (memory.contexts, 7),
        (memory.chunks, 5),
        (memory.families, 36),
        (memory.survivors, 5),
        (linking.streams, 1),
        (linking.ways, 3),
    ],
)
def test_a_section_holds_on_the_fake_driver(place, section, least):
    rows = list(rows_of(section, place))
    assert [row for row in rows if row.holds is False] == []
    assert sum(row.holds is True for row in rows) >= least


@pytest.fixture
def whole_place(framework_driver, tmp_path, monkeypatch):
    """A fake GPU of 16 GiB with a driver that loads code; each kernel takes 0.2 ms."""
    env, uuid = _whole_gpu(framework_driver, tmp_path / "fake")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return Place(sys.executable, uuid, 16 * GIB, each=0.5, longer=PATIENCE)


def _whole_gpu(framework_driver, folder):
    """Return the environment and the UUID of such a GPU."""
    folder.mkdir()
    fake = framework_driver(folder)
    (gpu,) = fake.gpus(Card(memory=16 * GIB, context=64 << 20, processors=132, threads=2048))
    return fake.env | {"FAKE_CUDA_KERNEL_NS": "200000"}, gpu.uuid


NEW = ("20", "21", "22", "23", "24", "25", "26", "27")


class Printed(NamedTuple):
    """A row of a page."""

    what: str
    verdict: str
    seen: str


@pytest.fixture(scope="module")
def first_half(framework_driver, tmp_path_factory):
    """{number of a section: its rows} of the page of the first half, with short mixes, on the fake driver."""
    folder = tmp_path_factory.mktemp("first-half")
    env, _ = _whole_gpu(framework_driver, folder / "fake")
    page = folder / "page"
    done = checked("--each=0.1", "--minutes=30", "--seconds=300", f"--page={page}", *NEW, **env)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    sections = {}
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if line.startswith("## "):
            rows = sections.setdefault(line.split(" ")[1].rstrip("."), [])
        elif line.startswith("| ") and cells[2] not in ("", "check"):
            rows.append(Printed(cells[2], cells[1], cells[3]))
    return sections


def test_the_first_half_runs_from_its_first_section_to_its_last(first_half):
    """The fake driver has no contention, so the shares are not compared here."""
    rows = [row for section in first_half.values() for row in section]
    assert [row for row in rows if "broke off" in row.seen or "not ended" in row.seen] == []
    assert [row for row in rows if row.verdict != "not checked" and "[decides" not in row.seen] == []
    assert tuple(first_half) == NEW
    assert len(rows) > 60


def test_what_no_allocation_call_takes_is_measured_and_held_in_a_job(first_half):
    assert "not checked" not in {row.verdict for row in first_half["20"]}
    seen = {row.what: row.seen.partition(" [decides")[0] for row in first_half["20"]}
    assert seen["cuMemGetMemPool(nowhere, MANAGED)"] == "measured 1024 MiB: free memory fell by 1024 MiB"
    held = [text for what, text in seen.items() if what.startswith("in a job: cuMemGet")]
    assert set(held) == {"4096 MiB: out of memory"}


def test_prices_of_calls_are_measured_without_and_with_the_hook(first_half):
    rows = {row.what: row.seen for row in first_half["21"]}
    assert {"cuEventRecord", "cuMemGetInfo", "a launch, 1 stream", "a launch, 32 streams"} <= set(rows)
    assert all("with it, paced" in seen for seen in rows.values())


SHORT = (
    mixes.Mix("two", "something", (mixes.loop(0.25, 171, 4), mixes.loop(0.75, 171))),
    mixes.Mix(
        "late", "something", (mixes.Work(0.5, "requests", (50, 2, 50)), mixes.loop(0.5, 171)), busy=False
    ),
)


def test_mixes_run_without_fgsched_and_as_jobs(whole_place, monkeypatch):
    monkeypatch.setattr(mixes, "FIRST", SHORT)
    rows = list(rows_of(mixes.first, whole_place))
    names = [row.what.partition(", ")[0] for row in rows]
    assert names == ["two: without fgsched", "two: as jobs", "late: without fgsched", "late: as jobs"]
    assert not any("broke off" in row.seen for row in rows), rows
    held = {word for row in rows[1::2] for word in row.what.partition("as jobs, ")[2].split("/")}
    assert held <= {"events", "nvml", "turns", "ended"}
    assert "requests" in rows[-1].seen


@pytest.mark.parametrize(
    ("parts", "holds"),
    [([0.25, 0.74], True), ([0.21, 0.76], False), ([0.22, 0.72], False)],
)
def test_a_mix_of_busy_jobs_is_compared_with_the_shares_and_their_sum(parts, holds):
    found = [{"part": part} for part in parts]
    assert mixes._judged(mixes.FIRST[0], found, "hard").holds is holds


@pytest.mark.parametrize(("late", "holds"), [((2.0, 7.0), True), ((2.6, 7.0), False), ((2.0, 8.1), False)])
def test_requests_are_compared_with_limits_of_their_latency(late, holds):
    found = [{"p50": late[0], "p99": late[1], "requests": 9}, {"part": 0.7}]
    assert mixes._judged(mixes.SECOND[0], found, "hard").holds is holds


def test_four_quarters_are_full_at_once(whole_place):
    rows = list(rows_of(quarters.section, whole_place))
    assert [row.holds for row in rows] == [True] * 5, rows


def test_the_numbers_in_a_job_are_compared_with_its_gpus(whole_place):
    rows = {row.what: row for row in rows_of(numbers.section, whole_place)}
    assert rows["half of a GPU: numbers from 0"].seen == "0"
    assert [row.what for row in rows.values() if row.holds is False] == []
    assert rows["a job beside another one"].holds is None


def test_without_a_compiler_the_probe_has_to_be_built_elsewhere(place, tmp_path, monkeypatch):
    monkeypatch.setattr(probing, "PROGRAM", tmp_path / "probe")
    monkeypatch.setenv("PATH", str(tmp_path))
    (row,) = rows_of(taken.driver, place)
    assert row.holds is None
    assert "there is no C compiler here" in row.seen


def test_a_check_that_hangs_is_ended_with_its_section(place):
    def hangs(_):
        """Something."""
        yield Row("before", True, "1")
        with place.begin("sleep", "1000") as live:
            pids.append(live.pid)
            live.process.wait()
        yield Row("after", True, "2")

    pids = []
    rows = list(in_time(rows_of(hangs, place), 1.0, "title"))
    assert [(row.what, row.holds) for row in rows] == [
        ("before", True),
        ("Something", None),
        ("the rest: title", None),
    ]
    assert not os.path.exists(f"/proc/{pids[0]}")


def test_every_section_says_what_it_decides():
    source = (ROOT / "scripts/gpu-check").read_text()
    listed = set(re.findall(r'^    "(\d+)": \("', source, re.MULTILINE))
    decided = set(re.findall(r'^    "(\d+)": "', source, re.MULTILINE))
    assert listed - decided == {"20", "21", "22", "23", "24", "25", "26", "27"}  # each row says it


def test_the_section_of_mig_needs_an_instance(place, driver):
    (without,) = rows_of(mig.section, place)
    assert (without.holds, without.seen.split(",")[0]) == (None, "no GPU of this host has MIG instances")
    driver.gpus(Card(memory=8 * GIB), instance(0, "3g.4gb", 4 * GIB, 1, context=64 << 20))
    rows = list(rows_of(mig.section, place))
    assert [row for row in rows if row.holds is False] == []
    assert sum(row.holds is True for row in rows) >= 40


@pytest.mark.parametrize(
    "section", [memory.families, memory.survivors, linking.streams, linking.ways, views.nvml]
)
def test_a_section_fails_where_the_hook_is_not(place, section, monkeypatch):
    monkeypatch.setattr(Share, "preload", {})
    assert any(row.holds is False for row in rows_of(section, place))


MOUNTS = '#!/bin/sh\nshift 2; hook=$(cat "$1"); shift\nexec env -i LD_PRELOAD="$hook" "$@"\n'


def test_the_card_that_is_checked_need_not_be_the_first_of_a_program(driver, monkeypatch, tmp_path):
    """Without an environment either: the mounts that this needs are made up here."""
    (tmp_path / "mounts").write_text(MOUNTS)
    (tmp_path / "mounts").chmod(0o755)
    monkeypatch.setattr("fgsched.system.mounts.why_not", lambda how, run: "")
    monkeypatch.setattr(linking, "spawner", lambda: tmp_path / "mounts")
    gpus = driver.gpus(Card(memory=8 * GIB), Card(memory=8 * GIB))
    for name, value in driver.env.items():
        monkeypatch.setenv(name, value)
    rows = list(rows_of(linking.ways, Place(sys.executable, gpus[1].uuid, 8 * GIB)))
    assert [row for row in rows if row.holds is False] == []
    assert rows[-1] == Row("env -i", True, "statuses 0 2")


def test_calls_are_timed_with_and_without_the_hook(place):
    rows = {row.what: row for row in rows_of(lambda here: speed.calls(here, scale=100), place)}
    assert "with the hook" in rows["pairs"].seen


def test_shares_of_compute_take_turns_as_under_a_controller(place):
    with place.share(0.2, pacing=[("hard", 3000)]) as one, place.share(0.2, pacing=[("hard", 7000)]) as other:
        with speed.in_turns([one, other]):
            pages = [Page(share.folder / "turns") for share in (one, other)]
            for page in pages:
                page.close()
        assert not list(one.folder.glob("lock"))


@pytest.mark.parametrize("section", [frameworks.torch, speed.shares])
def test_without_pytorch_a_section_is_not_checked(place, section):
    place.kept["torch"] = False
    (row,) = rows_of(section, place)
    assert row.holds is None
    assert "PyTorch is not installed here" in row.seen


NO_COMPILER = "RuntimeError: Failed to find C compiler. Please specify via CC environment variable."


@pytest.mark.parametrize(
    ("error", "compilers", "holds"),
    [(NO_COMPILER, [], None), (NO_COMPILER, ["gcc"], False), ("RuntimeError: no kernel", [], False)],
)
def test_torch_compile_is_not_checked_where_there_is_no_c_compiler(
    place, tmp_path, monkeypatch, error, compilers, holds
):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{error}' >&2\necho 'Set a variable for more.' >&2\nexit 1\n")
    for program in (python, *(tmp_path / name for name in compilers)):
        program.touch()
        program.chmod(0o755)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    place.python, place.kept["torch"] = str(python), True
    monkeypatch.setattr(frameworks, "torch_or_not", lambda place: None)
    rows = {row.what: row for row in rows_of(frameworks.torch, place)}
    assert rows["torch.compile"].holds is holds
    assert holds is not None or "C compiler" in rows["torch.compile"].seen


def test_a_framework_that_is_not_there_is_named(place):
    names = ("jax", "cupy", "numba.cuda", "rmm", "vllm")
    place.kept |= dict.fromkeys(names, False)
    assert [(row.what, row.holds, row.seen) for row in rows_of(frameworks.others, place)] == [
        (name, None, "not installed here") for name in names
    ]


def test_a_program_that_breaks_is_a_failure_and_nothing_unchecked(place):
    place.python = "false"
    (row,) = rows_of(memory.contexts, place)
    assert row.holds is False


def test_a_table_has_each_row_with_its_verdict(capsys):
    rows = [Row("a", True, "1"), Row("b", False, "2"), Row("c", None, "3")]
    assert show("9", "title", iter(rows)) == rows
    words = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert words == [["9", "title"], ["holds", "a", "1"], ["FAILS", "b", "2"], ["not", "checked:", "c", "3"]]


def test_what_cannot_be_checked_says_why():
    def section(_):
        """Something (item 0)."""
        raise NotHere("no such thing")
        yield

    assert list(rows_of(section, None)) == [Row("Something (item 0)", None, "no such thing")]


def checked(*words, **env):
    run = [sys.executable, ROOT / "scripts/gpu-check", "--python", sys.executable, *words]
    return subprocess.run(run, env={**os.environ, **env}, capture_output=True, text=True, check=False)


def test_without_a_card_every_row_says_so(tmp_path):
    """Whatever this host has: NVML that is no library is found first."""
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    done = checked(LD_LIBRARY_PATH=str(tmp_path))
    rows = [line for line in done.stdout.splitlines() if line.startswith("   ")]
    assert done.returncode == 2, done.stderr
    assert len(rows) == 32
    assert all(row.split()[:2] == ["not", "checked:"] for row in rows)


def test_it_finds_the_packages_of_an_environment_that_was_made_from_another_one(tmp_path):
    """In a checkout without .venv. An environment made from this one would have its base's packages alone."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    (packages,) = (tmp_path / "env").glob("lib/python3*/site-packages")
    (packages / "all.pth").write_text("\n".join(site.getsitepackages()))
    (tmp_path / "checkout/scripts").mkdir(parents=True)
    for name in ("fgsched", "fgshim", "scripts/gpucheck"):
        (tmp_path / "checkout" / name).symlink_to(ROOT / name)
    script = tmp_path / "checkout/scripts/gpu-check"
    script.write_bytes((ROOT / "scripts/gpu-check").read_bytes())
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    words = [tmp_path / "env/bin/python", script, "2"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert "this host has no NVIDIA GPU that can be used" in done.stdout, done.stdout + done.stderr


def test_a_section_that_fails_leaves_the_others(tmp_path):
    def broken(_):
        """Something."""
        yield Row("a", True, "1")
        raise RuntimeError("no such thing")

    broke = Row("Something", False, "it broke off: RuntimeError: no such thing")
    assert list(rows_of(broken, None)) == [Row("a", True, "1"), broke]


def test_the_output_of_every_program_is_in_the_log(place, tmp_path):
    place.log = tmp_path / "log"
    place.run("sh", "-c", "echo said; echo wrong >&2; exit 3", WORD="x")
    with place.begin("sh", "-c", "echo also >&2") as live:
        live.process.wait()
    words = [line.partition(" ")[2] if ":" in line else line for line in place.log.read_text().splitlines()]
    assert words[0] == "WORD=x sh -c 'echo said; echo wrong >&2; exit 3'"
    assert words[1:5] == ["status 3", "said", "wrong", ""]
    assert words[5:8] == ["sh -c 'echo also >&2'", "status 0", "also"]


def test_all_of_it_runs_with_a_card(place):
    done = checked("2", "9")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all checks passed\n")


FRAMEWORK = """#!/bin/sh
case "$1 $2" in
*"py train") echo '{}'; while read line; do echo '{"marks": [[0, 0, 0], [20, 2000, 0.5]]}'; done ;;
*"py latency") echo '{}'; read line; echo '{"us": [30, 10, 20]}' ;;
*"py hungry") echo '{}'; read line ;;
*"py nccl") echo '{"error": "RuntimeError: no NCCL"}' ;;
*"py views") echo '{"torch": [2147483648, 900], "pynvml": [2147483648, 900], "other": [8589934592, 900]}' ;;
-c*) echo '{"total": 2147483648, "had": 2000000000, "error": "OutOfMemoryError: no"}' ;;
*vllm*) echo '{"total": 8589934592, "had": 4000000000, "error": ""}' ;;
esac
"""


@pytest.fixture
def framework_place(place, tmp_path, monkeypatch):
    """A place whose programs of PyTorch print what this test expects of them."""
    python = tmp_path / "python"
    python.write_text(FRAMEWORK)
    python.chmod(0o755)
    place.python = str(python)
    for module in (frameworks, neighbours, speed, training):
        monkeypatch.setattr(module, "torch_or_not", lambda place: None)
    return place


def verdicts(section, place):
    return {row.what: row.holds for row in rows_of(section, place)}


def test_trainings_that_do_not_share_the_gpu_fail(framework_place):
    """Each of the two is as fast as one alone."""
    assert verdicts(training.side_by_side, framework_place) == {
        "alone": True,
        "throughput of 0.75 by that of 0.25": False,
        "throughput that both lose against one alone": True,
        "0.25: share in windows of 10 s": False,
        "0.25: loss as alone": True,
        "0.75: share in windows of 10 s": False,
        "0.75: loss as alone": True,
    }
    costs = {"training with kernels": True, "training with graph": True}
    assert verdicts(training.overhead, framework_place) == costs
    assert verdicts(training.graphs, framework_place) == {"graphs of kernels at 0.5": False}


def test_neighbours_and_views_are_compared(framework_place):
    rows = list(rows_of(neighbours.latency, framework_place))
    assert {row.seen for row in rows} == {"measured p50 20 us, p99 30 us, of 3"}
    assert verdicts(neighbours.nccl, framework_place) == {
        "one rank": None,
        "two ranks on one GPU: as without the hook": True,
    }
    assert verdicts(neighbours.side_by_side, framework_place) == {
        "torch: total and used": True,
        "pynvml: total and used": True,
        "other: total and used": False,
    }


def test_other_frameworks_see_the_share_and_meet_its_limit(framework_place):
    framework_place.kept |= dict.fromkeys(("cupy", "vllm"), True) | dict.fromkeys(
        ("jax", "numba.cuda", "rmm"), False
    )
    found = verdicts(frameworks.others, framework_place)
    assert {what: holds for what, holds in found.items() if holds is not None} == {
        "cupy: sees the share": True,
        "cupy: meets the limit": True,
        "vllm: sees the share": False,
        "vllm: meets the limit": False,
    }


PAIR = (  # 20 steps a second for 10 seconds, then none; 30 a second all the time
    [(100.0, 0, 0.0), (110.0, 200, 0.5), (120.0, 200, 0.5)],
    [(95.0, 0, 0.0), (125.0, 900, 0.25)],
)


def test_shares_are_measured_in_windows_in_which_both_trainings_run():
    assert training.windows(PAIR, 10.0) == [(100.0, 110.0), (110.0, 120.0)]
    assert training.windows(PAIR, 21.0) == []
    found = [[training.in_window(marks, *one) for one in training.windows(PAIR, 10.0)] for marks in PAIR]
    assert found == [[20.0, 0.0], [30.0, 30.0]]
    assert [training.rate(marks) for marks in PAIR] == [10.0, 30.0]
    assert training.rate([(100.0, 0, 0.0)]) == 0.0


def test_losses_are_compared_at_the_last_step_that_both_reached():
    one, other = [(0.0, 0, 0.0), (1.0, 10, 0.5), (2.0, 20, 0.25)], [(0.0, 0, 0.0), (3.0, 10, 0.6)]
    assert training.same_losses(one, other) == (10, pytest.approx(0.2))


@pytest.mark.parametrize(
    ("bare", "hooked", "holds"),
    [((100, 100), (99.5, 99.5), True), ((100, 100), (98, 98), False), ((90, 110), (95, 95), None)],
)
def test_a_cost_below_the_differences_between_runs_is_not_judged(bare, hooked, holds):
    assert training.cost("x", bare, hooked).holds is holds


def test_a_training_that_fails_is_not_checked_with_the_reason():
    with pytest.raises(NotHere, match="out of memory"):
        training.trained('{}\n{"error": "out of memory"}\n')
    with pytest.raises(NotHere, match="it printed nothing"):
        training.trained("Segmentation fault")


def test_a_percentile_is_one_of_the_values():
    assert [neighbours.percentile(range(100), part) for part in (0.0, 0.5, 0.99, 1.0)] == [0, 50, 99, 99]


def test_the_line_about_a_refusal_may_follow_the_facts_of_a_job(tmp_path):
    (tmp_path / "fg-3.out").write_text('warning\n{"total": 1}\nfgsched: GPU 0: 64.0 MiB refused\n')
    (tmp_path / "fg-4.out").write_text("Traceback\n")
    assert (jobs._said(tmp_path, 3), jobs._said(tmp_path, 4)) == ({"total": 1}, {})


def test_sections_are_made_as_far_as_the_time_allows(place):
    assert [report.has_time(*one) for one in ((5, 5, 10), (6, 5, 10))] == [True, False]
    done = checked("--minutes", "0.01", "9", "12")
    words = [line.split() for line in done.stdout.splitlines() if line.startswith("   ")]
    assert words[0][0] == "holds"
    assert words[-1][:7] == ["not", "checked:", "ways", "to", "come", "by", "CUDA"], done.stdout
    assert "(scripts/gpu-check 12)" in done.stdout
    assert done.returncode == 0


def test_a_page_has_a_table_for_each_section():
    rows = [Row("a", True, "1 | 2"), Row("b", False, "2"), Row("c", None, "no  card")]
    found = report.page("H100, driver 580", "/x/python3", [report.Section("9", "title", rows, 12.4)])
    assert (
        found
        == """# Results of `scripts/gpu-check`

H100, driver 580. Frameworks of `python3`.
3 checks in 12 s: 1 failed, 1 were not made.

## 9. title (12 s)

| | check | result |
|---|---|---|
| holds | a | 1 \\| 2 |
| FAILS | b | 2 |
| not checked | c | no card |
"""
    )


def test_a_section_that_is_not_there_is_wrong_usage():
    done = checked("10")
    assert done.returncode == 2
    assert "there is no section 10; there are 20 21 22" in done.stderr
