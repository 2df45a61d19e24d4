"""What commands print of jobs in all states is what they printed when the corpus was recorded.

A difference is a change that users see: `python tests/goldenhost.py` records the corpus anew, and the
CHANGELOG names the change.
"""

import os
import shutil

import pytest

import goldenhost

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(os.geteuid() != 0, reason="the corpus was recorded as root"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc"),
]
CORPUS = goldenhost.CORPUS


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    with goldenhost.golden(tmp_path_factory.mktemp("golden")) as host:
        yield goldenhost.outputs(host) | goldenhost.moved(host)


@pytest.mark.parametrize("name", sorted(path.stem for path in CORPUS.glob("*.txt")))
def test_a_command_prints_of_all_jobs_what_was_recorded(said, name):
    assert said[name].splitlines() == (CORPUS / f"{name}.txt").read_text().splitlines()


def test_every_output_is_in_the_corpus(said):
    assert sorted(said) == sorted(path.stem for path in CORPUS.glob("*.txt"))
