"""The numbers of reports: one form each, and parts of a whole that add up."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fgsched
from fgsched.reports import numbers, queueing
from fgsched.reports.model import Change, Number
from fgsched.reports.wording import step_text, type_word
from fgsched.views.display import ascii_only


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "< 1 min"),
        (59, "< 1 min"),
        (60, "1 min"),
        (2280, "38 min"),
        (3599, "1 h 00 min"),
        (17_220, "4 h 47 min"),
        (86_399, "1 d 0 h"),
        (154_800, "1 d 19 h"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds, text):
    assert numbers.duration_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5 * 3600, "5"), (28.5 * 3600, "28.5"), (99.96 * 3600, "100"), (1074.1 * 3600, "1,074")],
)
def test_hours_in_a_sentence_have_no_decimals_from_100_on(seconds, text):
    assert numbers.brief_hours(seconds) == text


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=8).filter(lambda parts: sum(parts) > 1e-3))
def test_the_parts_of_a_whole_add_up_to_100_per_cent(parts):
    shown = numbers.shares(parts)
    assert round(sum(float(one.text.removesuffix(" %")) for one in shown), 6) == 100.0
    for part, one in zip(parts, shown, strict=True):
        assert abs(float(one.text.removesuffix(" %")) - 100 * part / sum(parts)) < 0.1 + 1e-6


def test_the_parts_of_nothing_are_unknown():
    assert numbers.shares([0.0, 0.0]) == [Number(None, "%", "\u2013")] * 2


def test_a_change_is_the_difference_of_the_printed_percentages():
    now, before = numbers.share(71.04, 100), numbers.share(58.46, 100)
    assert numbers.points(now, before, 1) == Change(12.5, "points", "up", "12.5 points", "good")
    assert numbers.points(now, now) == Change(0.0, "points", "same", "unchanged")
    assert numbers.points(now, numbers.unknown("%")) is None


def test_a_longer_wait_is_a_change_for_the_worse():
    assert numbers.by_duration(2280.0, 0.0) == Change(2280.0, "seconds", "up", "38 min", "bad")
    assert numbers.by_duration(20.0, 0.0) == Change(20.0, "seconds", "same", "unchanged")


def test_a_large_number_has_commas_and_zero_has_no_sign():
    assert numbers.grouped(1328.04, 1) == "1,328.0"
    assert numbers.grouped(-0.01, 1) == "0.0"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (300, "5 minutes"),
        (3600, "one hour"),
        (10_800, "3 hours"),
        (158_400, "44 hours"),
        (86_400, "one day"),
        (172_800, "2 days"),
    ],
)
def test_a_step_of_a_drawing_is_named_by_its_length(seconds, text):
    assert step_text(seconds) == text


@pytest.mark.parametrize(
    ("model", "others", "word"),
    [
        ("RTX A6000", ["H100 80GB HBM3"], "A6000"),
        ("H100 80GB HBM3", ["H200"], "H100"),
        ("A100-PCIE-40GB", ["A100-SXM4-80GB"], "A100-PCIE-40GB"),
        ("A100 40GB PCIe", ["A100 80GB PCIe"], "A100-40GB-PCIe"),
        ("RTX 4090", ["RTX 4090 D"], "RTX-4090"),
    ],
)
def test_a_proposed_type_selects_one_model_of_the_host(model, others, word):
    """--gpu-type takes a part of a model's name, whose blanks do not count."""
    assert type_word(model, others) == word


def test_every_character_that_fgsched_prints_in_reports_has_an_ascii_form_of_the_same_width():
    """Names of users can have any other character; it becomes '?'."""
    folder = Path(fgsched.__file__).parent
    pages = [*(folder / "reports").glob("*.py"), *(folder / "cli" / "top").glob("*.py")]
    found = {
        char
        for page in [*pages, folder / "cli" / "effsheet.py"]
        for char in page.read_text()
        if ord(char) > 127
    }
    assert {char for char in found if "?" in (text := ascii_only(char)) or len(text) != 1} == {"≤"}
    assert ascii_only("≤ 0.5 GPU, –, ███▎·, 41 °C, é") == "<=0.5 GPU, -, ###- , 41  C, ?"


def test_a_job_that_waited_less_than_a_minute_was_started_at_once():
    facts = SimpleNamespace(all_waits=[0.0, 59.9, 60.0, 3600.0])
    figure = queueing._at_once(facts)
    assert (figure.number, figure.note) == (numbers.share(2, 4), "2 of 4 jobs")
