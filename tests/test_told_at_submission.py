"""What cannot work is told when it is typed, with what was probably meant."""

import os

import pytest

from fgsched.domain.errors import BadUsage
from fgsched.domain.units import SubmitContext
from fgsched.listing.display import host_name
from fgsched.submission import options
from fgsched.submission.checks import Process
from fgsched.submission.prepare import Submitter


def refused(*argv, path="/tmp"):
    """Return the cause and the remedy of a refused command line."""
    process = Process({"PATH": os.environ["PATH"]}, str(path))
    submitter = Submitter(process, site=SubmitContext(), name="fgsub")
    with pytest.raises(BadUsage) as refusal:
        submitter.prepare(*options.read(argv))
    return refusal.value.cause, refusal.value.remedy


@pytest.mark.parametrize(("text", "meant"), [("8", "8G"), ("24", "24G"), ("1", "1G"), ("0.5", "0.5G or 50%")])
def test_a_number_of_gpu_memory_that_holds_no_context_is_refused_with_the_unit(text, meant):
    cause, _ = refused(f"--gpu-mem={text}", "--wrap=true")
    assert cause == f"--gpu-mem={text} is in MiB, less than a CUDA context takes; did you mean {meant}?"


@pytest.mark.parametrize("text", ["8G", "8192", "512", "100M", "50%", "0"])
def test_an_amount_of_gpu_memory_that_can_be_meant_is_taken(text):
    assert options.read([f"--gpu-mem={text}"])


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("\u2013-gpus=0.5", "begins with the dash of a text, not with -; Type --gpus=0.5"),
        ("\u2013gpus=0.5", "begins with the dash of a text, not with -; Type --gpus=0.5"),
        ("\u2014gpus=0.5", "begins with the dash of a text, not with -; Type --gpus=0.5"),
        ("-gpus=0.5", "unknown option -g; did you mean --gpus=0.5?"),
        ("--gpus=8G", "is an amount of memory; use --gpu-mem=8G"),
        ("--gpus=500M", "is an amount of memory; use --gpu-mem=500M"),
    ],
)
def test_a_slip_of_an_option_is_answered_with_the_option(word, told):
    assert told in "; ".join(refused(word, "--wrap=true"))


@pytest.mark.parametrize(
    ("first", "program", "why"),
    [
        ("#!/usr/bin/pyhton3", "/usr/bin/pyhton3", "does not exist or cannot be executed"),
        ("#!/usr/bin/env pyhton3", "pyhton3", "is not in PATH"),
        ("#!/usr/bin/env -S pyhton3 -u", "pyhton3", "is not in PATH"),
        ("#!/etc/passwd", "/etc/passwd", "does not exist or cannot be executed"),
        ("#! ./run", "./run", "does not exist or cannot be executed"),
        ("#!/etc", "/etc", "does not exist or cannot be executed"),
    ],
)
def test_an_interpreter_that_cannot_be_executed_is_refused(tmp_path, first, program, why):
    (tmp_path / "job.py").write_text(f"{first}\nprint(1)\n")
    cause, remedy = refused("job.py", path=tmp_path)
    assert cause == f"job.py: its interpreter {program} {why}"
    assert remedy == "Correct its first line."


@pytest.mark.parametrize(
    "first",
    ["#!/bin/sh", "#! /bin/sh -e", "#!/usr/bin/env sh", "#!/usr/bin/env -i sh", "#!/usr/bin/env A=1 sh"],
)
def test_an_interpreter_that_can_be_executed_is_taken(tmp_path, first):
    (tmp_path / "job.sh").write_text(f"{first}\ntrue\n")
    settings, words = options.read(["job.sh"])
    process = Process({"PATH": os.environ["PATH"]}, str(tmp_path))
    assert Submitter(process, site=SubmitContext()).prepare(settings, words)


@pytest.mark.parametrize("command", [("fgsub",), ("fgsub", "--test-only")])
def test_an_image_or_interpreter_that_does_not_exist_is_refused_by_the_commands(home, command):
    (home.path / "job.py").write_text("#!/usr/bin/pyhton3\n")
    done = home.run(*command, "job.py")
    assert (done.status, done.out) == (2, "")
    done = home.run(*command, "--container=nothere.sif", "--wrap=true")
    assert (done.status, done.err) == (
        2,
        "fgsub: error: --container=nothere.sif: No such file or directory\n",
    )


class Reader(Process):
    """A process that can create no files."""

    def is_writable(self, directory):
        return False


def test_a_directory_in_which_the_output_cannot_be_created_is_named():
    submitter = Submitter(Reader({}, "/srv"), site=SubmitContext())
    assert submitter.prepare(*options.read(["--wrap=true"])).warnings == (
        "you cannot create fg-%j.out in /srv; the job fails if that is so at its start:"
        " name another file with --output",
    )
    assert submitter.prepare(*options.read(["--wrap=true", "-o/dev/null"])).warnings == ()


# -- the host as a node ------------------------------------------------------------------------------


def states(home):
    """Return the states of the GPUs and of the partitions."""
    partitions = home.client.ask("partitions")["partitions"]
    gpus = [gpu["state"] for gpu in home.gpus()]
    return set(gpus), {each["partition"]["state"] for each in partitions}


@pytest.mark.parametrize("state", ["drain", "DOWN", "fail"])
def test_the_host_is_taken_out_of_service_and_returned_as_a_node(home, state):
    before = states(home)
    node = f"nodename={host_name()}"
    assert home.run("fgctl", "update", node, f"state={state}", "reason=new fan").status == 0
    out = states(home)
    assert out[1] == {"down"}
    assert out[0].isdisjoint(before[0])
    assert home.run("fgctl", "update", "NodeName=ALL", "state=resume").status == 0
    assert states(home) == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nodename=elsewhere", "state=drain"), "there is no node elsewhere"),
        (("nodename=ALL", "state=future"), "state=future is no state of this host"),
        (("nodename=ALL", "weight=3"), "weight of a node cannot be changed"),
        (("nodename=ALL",), "state='' is no state of this host"),
    ],
)
def test_a_change_of_a_node_that_one_host_cannot_have_is_refused(home, words, told):
    done = home.run("fgctl", "update", *words)
    assert done.status == 2
    assert told in done.err


def test_all_gpus_are_drained_and_resumed_by_one_word(home):
    before = states(home)
    assert home.run("fgctl", "drain", "gpu=all", "reason=x").status == 0
    assert states(home)[0].isdisjoint(before[0])
    assert home.run("fgctl", "resume", "gpu=ALL").status == 0
    assert states(home) == before


@pytest.mark.parametrize("nodes", ["ALL", "HOST"])
def test_a_reservation_of_the_node_has_all_gpus(home, nodes):
    nodes = nodes.replace("HOST", host_name())
    words = (
        "reservation=fan",
        "start=now+1hour",
        "duration=60",
        "users=root",
        f"Nodes={nodes}",
        "Flags=MAINT",
    )
    assert home.run("fgctl", "create", *words).status == 0
    assert "GpuIdx=0-1" in home.run("fgctl", "show", "reservation", "fan").out
