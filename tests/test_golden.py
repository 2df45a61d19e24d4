"""What commands print of jobs in all states is what they printed when the corpus was recorded.

A difference is a change that users see: `python tests/goldenhost.py` records the corpus anew, and the
CHANGELOG names the change.
"""

import json
import os
import shutil

import pytest

import goldenhost
from fgsched.views.fields import JOB

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


_OF_PROCESSES = ("cpu_seconds", "disk_read", "disk_written")  # fgstat has them while the job runs
_OF_PENDING = ("expected_start_time", "expected_start_time_iso")  # fgacct, fgstat and fgeff do not forecast


def test_every_document_has_the_same_value_under_the_same_key_of_a_job():
    values = {}
    for command in ("fgq", "fgacct", "fgctl", "fgstat", "fgtop", "fgeff"):
        document = json.loads((CORPUS / f"{command}-json.txt").read_text())
        for job in document["jobs"]:
            if command == "fgq" and job["state"] == "PENDING" and job["array_job_id"] is not None:
                continue  # a task that is still in the row of its array
            for key in (key.name for key in JOB):
                if key not in _OF_PENDING + _OF_PROCESSES:
                    values.setdefault((job["job_id"], key), {})[command] = job[key]
    differing = {
        name: shown
        for name, shown in values.items()
        if len({json.dumps(value) for value in shown.values()}) > 1
    }
    assert differing == {}
    assert {command for shown in values.values() for command in shown} == {
        "fgq",
        "fgacct",
        "fgctl",
        "fgstat",
        "fgtop",
        "fgeff",
    }
