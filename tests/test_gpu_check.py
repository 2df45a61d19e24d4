"""scripts/gpu-check without a card: its parts on the fake driver, and what it says."""

import os
import subprocess
import sys
import time

import pytest

import fgshim
from fakecuda import Card
from live_host import PATIENCE, ROOT

sys.path.append(str(ROOT / "scripts"))

from gpucheck import frameworks, linking, memory, speed, views
from gpucheck.place import Place, Share
from gpucheck.sheet import NotHere, Row, rows_of, show

GIB = 1 << 30
pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not fgshim.library().exists(), reason="the hook is not built"),
]


@pytest.fixture
def place(driver, monkeypatch):
    """A fake card of 8 GiB, in the environment of what is run here."""
    (card,) = driver.cards(Card(memory=8 * GIB, context=64 << 20))
    for name, value in driver.env.items():
        monkeypatch.setenv(name, value)
    return Place(sys.executable, card.uuid, 8 * GIB)


@pytest.mark.parametrize(
    ("section", "least"),
    [
        (views.nvml, 7),
        (views.given, 1),
        (memory.contexts, 6),
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
    cards = driver.cards(Card(memory=8 * GIB), Card(memory=8 * GIB))
    for name, value in driver.env.items():
        monkeypatch.setenv(name, value)
    rows = list(rows_of(linking.ways, Place(sys.executable, cards[1].uuid, 8 * GIB)))
    assert [row for row in rows if row.holds is False] == []
    assert rows[-1] == Row("env -i", True, "statuses 0 2")


def test_calls_are_timed_with_and_without_the_hook(place):
    rows = {row.what: row for row in rows_of(lambda here: speed.calls(here, scale=100), place)}
    assert "with the hook" in rows["pairs"].seen


def test_shares_of_compute_have_what_a_controller_does_for_them(place):
    """Each hook counts for itself: of others on the card and their turns it has to be told."""
    with place.share(0.2, pacing=[("hard", 3000)]) as one, place.share(0.2, pacing=[("hard", 7000)]) as other:
        regions = [share.folder / "region" for share in (one, other)]
        before, deadline = [path.read_bytes() for path in regions], time.monotonic() + PATIENCE
        with speed.lending([one, other]):
            while any(path.read_bytes() == old for path, old in zip(regions, before, strict=True)):
                assert time.monotonic() < deadline


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
    place.kept |= dict.fromkeys(("jax", "cupy", "numba.cuda"), False)
    assert [(row.what, row.holds, row.seen) for row in rows_of(frameworks.others, place)] == [
        (name, None, "not installed here") for name in ("jax", "cupy", "numba.cuda")
    ]


def test_a_program_that_breaks_is_a_failure_and_nothing_unchecked(place):
    place.python = "false"
    (row,) = rows_of(memory.contexts, place)
    assert row.holds is False


def test_a_table_counts_what_fails(capsys):
    rows = [Row("a", True, "1"), Row("b", False, "2"), Row("c", None, "3")]
    assert show("9", "title", rows) == 1
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
    assert len(rows) == 15
    assert all(row.split()[:2] == ["not", "checked:"] for row in rows)


def test_all_of_it_runs_with_a_card(place):
    done = checked("2", "9")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all checks passed\n")


def test_a_section_that_is_not_there_is_wrong_usage():
    done = checked("10")
    assert done.returncode == 2
    assert "there is no section 10; there are 1 2 3" in done.stderr
