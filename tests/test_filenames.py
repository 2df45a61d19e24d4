"""File names with %-letters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from builders import a_job
from fgsched.domain.job import Request
from fgsched.lifecycle.filenames import PatternValues, expand, left_alone, needs_the_job, output_path, unknown

VALUES = PatternValues(
    job_id=128, name="train", user="ann", home="/home/ann", host="box", restarts=2, gpus=(0, 3)
)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("fg-%j.out", "fg-128.out"),
        ("%4j", "0128"),
        ("%04j", "0128"),
        ("%99j", "0000000128"),
        ("%A_%a", "128_0"),
        ("%3a", "000"),
        ("%J", "128"),
        ("%s", "batch"),
        ("%x-%u@%N", "train-ann@box"),
        ("%5x", "train"),
        ("%h/o", "/home/ann/o"),
        ("%n%t%b%r", "0002"),
        ("%g", "0-3"),
        ("100%%", "100%"),
        ("%%j", "%j"),
        ("%S-%q-%", "%S-%q-%"),
        ("\\%j", "%j"),
        ("a\\\\%j", "a%j"),
    ],
)
def test_a_pattern_becomes_a_file_name(pattern, name):
    assert expand(pattern, VALUES) == name


def test_a_jobs_name_does_not_lead_its_output_elsewhere():
    values = PatternValues(job_id=1, name="../../etc/x\n\x1b[2J", user="", home="", host="")
    assert expand("%x.out", values) == ".._.._etc_x__[2J.out"


def test_letters_that_nobody_knows_are_told_from_slurms_own():
    assert unknown("%j-%q-%S-%5z-%") == ["%q", "%z", "%"]
    assert left_alone("%j-%q-%S") == ["%S"]


def test_a_backslash_switches_off_all_letters():
    assert unknown("\\%q") == []
    assert not needs_the_job("\\%j")


@pytest.mark.parametrize(
    ("pattern", "needed"), [("logs", False), ("%u/%x", False), ("%%j", False), ("%3j", True), ("%g", True)]
)
def test_it_is_known_which_names_need_the_job(pattern, needed):
    assert needs_the_job(pattern) is needed


@given(st.text())
def test_any_pattern_expands(pattern):
    assert isinstance(expand(pattern, VALUES), str)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("logs/%x-%j.out", "/work/logs/train-7.out"), ("/tmp/%j", "/tmp/7"), ("%h/%j", "%h/7")],
)
def test_the_path_of_an_output_file_keeps_the_home_directory_as_a_pattern(pattern, path):
    """The controller does not look up home directories for mails and accounts; %h was left out of mails."""
    job = replace(a_job(7), request=Request(name="train", chdir="/work"))
    assert output_path(job, pattern, "hopper.example.org") == path
