"""The JSON document of a job: one set of keys for all commands, Slurm's beside it."""

import json
from pathlib import Path

import pytest
from hypothesis import given

from fgsched.protocol import JobInfo
from fgsched.views import documents
from fgsched.views.documents import keys_of
from fgsched.views.fields import (
    ACCOUNTS,
    COLUMNS,
    CONSTANTS,
    DETAILS,
    FGCTL,
    FIELDS,
    JOB,
    OLD,
    SCONTROL_DETAILS,
    SLURM_VERSIONS,
    STEP,
    slurm_keys,
)
from test_job_view import RUNNING, Spy, jobs

PAGE = Path(__file__).parent.parent / "man" / "fgq.1"


@pytest.mark.parametrize("command", ["fgq", "fgacct", "fgctl"])
def test_the_document_of_a_job_has_the_same_keys_in_all_commands(command):
    names = {key.name for key in keys_of(command)}
    assert {key.name for key in JOB} <= names
    assert len(names) == len(keys_of(command)), "no key stands twice"


def test_a_document_is_the_same_whichever_command_prints_it():
    records = [documents.record(keys_of(command), RUNNING) for command in ("fgq", "fgacct", "fgctl")]
    assert all(len({json.dumps(record[key.name]) for record in records}) == 1 for key in JOB)


@pytest.mark.parametrize("key", [key.name for key in (*JOB, *DETAILS)])
def test_every_key_is_described_in_the_manual(key):
    section = PAGE.read_text().split(".SH JSON DOCUMENT OF A JOB")[1].split(".SH ")[0]
    assert key.removesuffix("_iso") in section.replace("(", " ").replace(")", " ").replace(",", " ").split()


OF_SLURM = [
    slurm_keys(output, version) for output in ("squeue", "sacct", "sacct_step") for version in SLURM_VERSIONS
]


@pytest.mark.parametrize("keys", [JOB, DETAILS, STEP, *OF_SLURM])
def test_a_document_asks_for_attributes_of_a_job(keys):
    assert set(documents.fields(keys)) <= set(JobInfo.__struct_fields__)


@pytest.mark.parametrize("keys", [JOB, STEP, *OF_SLURM])
@given(job=jobs)
def test_a_document_reads_no_other_attribute_than_it_asks_for_and_is_json(keys, job):
    spy = Spy(job)
    json.dumps(documents.record(keys, spy))
    assert spy.read <= {*documents.fields(keys), "step"}


def leaves(keys, before=""):
    """The names of keys; those of an object have its name before a dot."""
    for key in keys:
        yield from (
            leaves(key.value, f"{before}{key.name}.") if isinstance(key.value, tuple) else [before + key.name]
        )


def of_all_versions(output):
    """The names of the keys of a document of Slurm, of all its data parsers."""
    return list({name for version in SLURM_VERSIONS for name in leaves(slurm_keys(output, version))})


SHOWN = {
    "queue": [column.names[0] for column in COLUMNS],
    "accounts": [column.heading for column in ACCOUNTS],
    "fgctl": [pair.key.strip() for line in FGCTL for pair in line],
    "scontrol": [pair.key.strip() for line in SCONTROL_DETAILS for pair in line],
    "json": [*leaves(JOB)],
    "details": [*leaves(DETAILS)],
    "step": [*leaves(STEP)],
    "squeue": [*of_all_versions("squeue"), "old_job_resources"],  # the form of job_resources in 0.0.40
    "sacct": of_all_versions("sacct"),
    "sacct_step": of_all_versions("sacct_step"),
    "old_fgq": [*leaves(OLD["fgq"])],
    "old_fgctl": [*leaves(OLD["fgctl"])],
}


def test_every_place_of_a_value_stands_in_the_order_of_an_output():
    for output, names in SHOWN.items():
        places = [
            place for row in [*FIELDS.values(), CONSTANTS] for place in row if output in place.outputs.split()
        ]
        declared = [place.name for place in places]
        assert len(set(declared)) == len(declared), output
        of_both = [place.name for place in places if place.outputs == "fgctl scontrol"]
        in_both = {*SHOWN["fgctl"], *SHOWN["scontrol"]}
        assert not set(of_both) - in_both, output
        assert not set(declared) - set(names) - set(of_both), output
