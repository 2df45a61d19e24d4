"""Names by which jobs are chosen, and that no job can have: a mistyped one is not an empty list."""

import subprocess
import sys
from pathlib import Path

import pytest

from fgsched.domain.errors import Exit
from fgsched.protocol import Where
from fgsched.views import choices
from live_host import PATIENCE, Home, living

CONFIG = "[host]\ncpus = 4\n[partitions.main]\n[partitions.short]\n[accounts.lab]\n[qos.high]\n"
WRONG = {
    "-p": "Invalid partition specified: nosuch\nThere are: main short\n",
    "-A": "Invalid account specified: nosuch\nThere are: lab\n",
    "-q": "Invalid qos specified: nosuch\nThere are: normal high\n",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with living(tmp_path_factory.mktemp("known") / "home", config=CONFIG) as home:
        home.submit(hold=True, share=0, partition="main", account="lab")
        yield home


@pytest.mark.parametrize("command", ["fgq", "fgcancel"])
@pytest.mark.parametrize("option", WRONG)
def test_a_name_that_no_open_job_can_have_is_refused(site: Home, command, option):
    done = site.run(command, option, "nosuch")
    assert (done.status, done.out, done.err) == (Exit.USAGE, "", f"{command}: error: {WRONG[option]}")


@pytest.mark.compiler
@pytest.mark.parametrize("option", WRONG)
def test_the_native_fgq_refuses_it_as_well(site: Home, option):
    words = [Path(sys.executable).with_name("fgq"), option, "nosuch"]
    done = subprocess.run(words, env=site.environ, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (Exit.USAGE, "", f"fgq: error: {WRONG[option]}")


@pytest.mark.parametrize("option", WRONG)
def test_fgacct_notes_it_because_ended_jobs_may_have_had_the_name(site: Home, option):
    done = site.run("fgacct", "-n", option.replace("p", "r"), "nosuch")
    said = WRONG[option].strip().replace("\n", ". ")
    assert (done.status, done.out, done.err) == (Exit.DONE, "", f"fgacct: note: {said}\n")


@pytest.mark.parametrize(
    "words", [("fgq", "-h", "-p", "short"), ("fgcancel", "-q", "high"), ("fgacct", "-n", "-r", "short")]
)
def test_a_name_that_no_job_has_now_is_no_error(site: Home, words):
    done = site.run(*words)
    assert (done.status, done.out, done.err) == (Exit.DONE, "", "")


def test_any_account_and_qos_is_possible_where_none_is_declared():
    assert choices.unknown(Where(account=["a"], qos=["q"]), ["main"], [], []) is None
