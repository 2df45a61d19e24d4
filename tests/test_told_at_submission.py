"""What cannot work is told when it is typed, with what was probably meant."""

import io
import os

import pytest
from msgspec.structs import replace

from fgsched.cli import fgsub
from fgsched.domain.errors import BadUsage, Refused
from fgsched.domain.units import SubmitContext
from fgsched.submission import options
from fgsched.submission.checks import Process
from fgsched.submission.prepare import SubmissionPreparer
from fgsched.views.display import host_name


def refused(*argv, path="/tmp"):
    """Return the cause and the remedy of a refused command line."""
    process = Process({"PATH": os.environ["PATH"]}, str(path))
    submitter = SubmissionPreparer(process, site=SubmitContext(), name="fgsub")
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
    assert SubmissionPreparer(process, site=SubmitContext()).prepare(settings, words)


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
    submitter = SubmissionPreparer(Reader({}, "/srv"), site=SubmitContext())
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


# -- what else cannot work ---------------------------------------------------------------------------


def prepared(*argv, site=None, path="/tmp", environ=None):
    """Return a submission, whose warnings the command prints."""
    process = Process({"PATH": os.environ["PATH"], **(environ or {})}, str(path), io.BytesIO())
    return SubmissionPreparer(process, site=site or SubmitContext(), name="fgsub").prepare(
        *options.read(argv)
    )


@pytest.mark.parametrize(
    ("text", "is_taken"), [("400", False), ("517", False), ("518", True), ("400M", True), ("0", True)]
)
def test_a_number_below_the_charge_of_a_context_on_this_host_is_refused_with_the_charge(text, is_taken):
    site = SubmitContext(context_memory=518 << 20)
    words = (f"--gpu-mem={text}", "--wrap=true")
    if is_taken:
        assert prepared(*words, site=site)
        return
    with pytest.raises(BadUsage) as refusal:
        prepared(*words, site=site)
    why = "is in MiB, less than the 518M of a CUDA context here; request more"
    assert refusal.value.cause == f"--gpu-mem={text} {why}"


def test_the_controller_tells_the_charge_of_a_context(home):
    (home.path / "fgsched.toml").write_text('[fence]\ncontext_memory = "600M"\n')
    home.run("fgctl", "reconfigure")
    done = home.run("fgsub", "--gpu-mem=512", "--wrap=true")
    assert done.status == 2
    assert "less than the 600M of a CUDA context here" in done.err


@pytest.mark.parametrize(
    ("image", "more", "why"),
    [
        ("ubuntu", (), "no container runtime for this image is installed here: podman or apptainer"),
        ("nvcr.io#nvidia/pytorch:24.01-py3", (), "no container runtime for this image is installed here"),
        ("./img.sif", (), "no container runtime for this image is installed here: apptainer or singularity"),
        ("./root", (), "no container runtime for this image is installed here: bwrap"),
        ("ubuntu", ("--export=FG_CONTAINER_RUNTIME=docker",), "docker cannot run the container of a job"),
        ("ubuntu", ("--export=FG_CONTAINER_RUNTIME=bwrap",), "bwrap cannot run this image"),
    ],
)
def test_a_container_without_a_runtime_is_refused(tmp_path, image, more, why):
    (tmp_path / "img.sif").touch()
    (tmp_path / "root").mkdir()
    with pytest.raises(Refused) as refusal:
        prepared(f"--container={image}", *more, "--wrap=true", path=tmp_path, environ={"PATH": str(tmp_path)})
    assert why in refusal.value.cause


@pytest.mark.parametrize("command", [("fgsub",), ("fgsub", "--test-only"), ("fgrun",)])
def test_the_commands_refuse_a_container_without_a_runtime(home, command):
    words = ("true",) if command == ("fgrun",) else ("--wrap=true",)
    done = home.run(*command, "--export=FG_CONTAINER_RUNTIME=docker", "--container=ubuntu", *words)
    assert done.status == 1
    assert "docker cannot run the container of a job" in done.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--container=a.sif", "--container=b.sif"), "--container given twice (a.sif, b.sif); give one"),
        (
            ("--container=a.sif", "--container-image=b.sif"),
            "--container-image and --container exclude each other; give one",
        ),
    ],
)
def test_a_job_has_one_container(words, why):
    assert refused(*words, "--wrap=true")[0] == why


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        (
            ("--signal=USR1@1000", "--time=5"),
            "--signal=USR1@1000: the time limit is 300 s, so the signal is sent as soon as the job runs",
        ),
        (
            ("--signal=B:TERM", "--time=60s"),
            "--signal=B:TERM: the time limit is 60 s, so the signal is sent as soon as the job runs",
        ),
        (("--signal=USR1@100", "--time=5"), ""),
        (("--signal=USR1@100",), ""),
        (("-A", "nobody"), "--account=nobody: this site defines no accounts; it is only a label"),
        (("-q", "urgent"), "--qos=urgent: this site defines no QOS; it is only a label"),
        (
            ("--wrap=CUDA_VISIBLE_DEVICES=3 ./train",),
            "--wrap: CUDA_VISIBLE_DEVICES=3 selects a GPU that the job does not have:"
            " it requests none; leave it out",
        ),
    ],
)
def test_what_has_another_effect_than_it_seems_is_told_by_a_warning(words, warning):
    words = words if words[0].startswith("--wrap") else (*words, "--wrap=true")
    site = SubmitContext(undefined=("account", "qos"))
    assert prepared(*words, site=site).warnings == ((warning,) if warning else ())


def test_a_reservation_of_another_site_is_ignored_where_the_site_says_so():
    site = SubmitContext(ignores=("reservation",), reservations=("lesson",))
    words = ("--reservation=course", "--wrap=true")
    ignored = prepared(*words, site=site)
    assert ignored.submission.request.reservation == ""
    assert ignored.warnings == ("--reservation=course: ignored, no such reservation here",)
    known = prepared("--reservation=lesson", "--wrap=true", site=site)
    assert (known.submission.request.reservation, known.warnings) == ("lesson", ())
    assert prepared(*words).submission.request.reservation == "course"  # the controller refuses it
    silent = SubmitContext(ignores=("reservation",), unsaid=("reservation",))
    assert prepared(*words, site=silent).warnings == ()


@pytest.mark.parametrize(
    ("word", "kind", "what"),
    [
        ("--gres=tape:2,lic:1", "gres", "generic resource"),
        ("--licenses=tape:2,lic", "license", "license"),
        ("-Ltape,lic:1", "license", "license"),
    ],
)
def test_a_resource_of_another_site_is_refused_or_ignored_as_the_site_says(word, kind, what):
    site = SubmitContext(resources=("lic",))
    with pytest.raises(BadUsage, match=f"invalid {what} specification, there is no 'tape' here; .*Delete it"):
        prepared(word, "--wrap=true", site=site)
    warned = prepared(word, "--wrap=true", site=replace(site, ignores=(kind,)))
    assert warned.submission.request.demand.resources == (("lic", 1),)
    label = "--gres" if kind == "gres" else "--licenses"
    assert warned.warnings == (f"{label}: ignored, no such resource here: tape",)
    assert not prepared(word, "--wrap=true", site=replace(site, ignores=(kind,), unsaid=(kind,))).warnings


def test_a_job_has_at_least_the_cpus_of_mincpus():
    requests = [prepared(*words, "--mincpus=8", "--wrap=true") for words in ((), ("-c", "16"))]
    assert [job.submission.request.demand.cpus for job in requests] == [8, 16]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("export CUDA_VISIBLE_DEVICES=3", "3"),
        ("CUDA_VISIBLE_DEVICES=0,1 python train.py", "0,1"),
        ('env X=1 CUDA_VISIBLE_DEVICES="2" ./train', "2"),
        ("setenv CUDA_VISIBLE_DEVICES 3", "3"),
        ('os.environ["CUDA_VISIBLE_DEVICES"] = "1"', "1"),
        ("# export CUDA_VISIBLE_DEVICES=3", ""),
        ("export CUDA_VISIBLE_DEVICES=$FG_JOB_GPUS", ""),
        ('if [ "$CUDA_VISIBLE_DEVICES" = 3 ]; then', ""),
        ("echo ${CUDA_VISIBLE_DEVICES:-0}", ""),
        ("CUDA_VISIBLE_DEVICES= ./cpu-part", ""),
        ("MY_CUDA_VISIBLE_DEVICES=3", ""),
        ("CUDA_VISIBLE_DEVICES=0 python train.py", ""),
    ],
)
def test_a_script_that_selects_gpus_itself_is_told_with_its_line(tmp_path, line, value):
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n#FG --gpus=0.5\n{line}\ntrue\n")
    warnings = prepared("job.sh", path=tmp_path).warnings
    assert [text.partition(" selects")[0] for text in warnings] == (
        [f"job.sh: line 3: CUDA_VISIBLE_DEVICES={value}"] if value else []
    )


def test_the_numbers_of_the_gpus_of_a_job_are_for_its_script_to_use(tmp_path):
    lines = "CUDA_VISIBLE_DEVICES=0 ./a &\nCUDA_VISIBLE_DEVICES=1 ./b &\nCUDA_VISIBLE_DEVICES=1,2 ./c\n"
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n#FG --gpus=2\n{lines}")
    assert prepared("job.sh", path=tmp_path).warnings == (
        "job.sh: line 5: CUDA_VISIBLE_DEVICES=1,2 selects a GPU that the job does not have:"
        " its GPUs are 0 to 1; leave it out",
    )


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("ok", "ok.sh"),
        ("./ok", "./ok.sh"),
        ("ok.hs", "ok.sh"),
        ("sub/trian.py", "sub/train.py"),
        ("train", ""),
    ],
)
def test_a_missing_script_is_answered_with_the_file_beside_it(tmp_path, word, meant):
    (tmp_path / "sub").mkdir()
    for name in ("ok.sh", "ok.txt", "sub/train.py"):
        (tmp_path / name).touch()
    cause, remedy = refused(word, path=tmp_path)
    assert cause == f"cannot read {word}: No such file or directory"
    assert remedy == (
        f"Did you mean {meant}?" if meant else "It is neither a file in this directory nor a command in PATH."
    )


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("-x", "ok.sh"), "--exclude"),
        (("--exclude", "ok.sh"), "--exclude"),
        (("-J", "ok.sh"), "--job-name"),
        (("--gpus=1", "-w", "ok.sh"), "--nodelist"),
        (("-o", "ok.sh"), "--output"),
    ],
)
def test_an_option_that_has_taken_the_script_is_named(tmp_path, words, option):
    (tmp_path / "ok.sh").touch()
    with pytest.raises(BadUsage) as refusal:
        prepared(*words, path=tmp_path)
    assert refusal.value.cause == f"no script given: ok.sh is the value of {option}"
    assert refusal.value.remedy == f"Name the script after that value: fgsub {option}=VALUE ok.sh"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--port=8000", "unknown option --port"),
        ("--xport=A", "unknown option --xport; did you mean --export?"),
        ("--gpsu=1", "unknown option --gpsu; did you mean --gpus?"),
    ],
)
def test_an_unknown_option_is_answered_with_one_that_begins_like_it_or_with_none(word, said):
    assert refused(word, "--wrap=true")[0] == said


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("fgctl show", "fgctl show needs job, gpu, partition, reservation, config or log"),
        ("fgctl show nodez", "nodez is not job, gpu, partition, reservation, config or log"),
        ("fgctl hold", "fgctl hold needs ID|FIRST-LAST"),
        ("fgctl", "fgctl needs a command"),
        ("fgctl drian", "unknown command drian; did you mean drain?"),
        ("fginfo -g 5", "-g takes no value; unexpected extra argument 5"),
        ("fgprio 7", "unexpected extra argument 7\nName jobs with --jobs: fgprio --jobs=7"),
        ("fgprio a b", "unexpected extra argument a b"),
        ("fgsched logs --job abc", "--job=abc is not a whole number of at least 1"),
        ("fgsched logs --job 0", "--job=0 is not a whole number of at least 1"),
        ("fgsched logs -n -3", "--lines=-3 is not a whole number of at least 0"),
        ("fgsched simulate --cpus 0", "--cpus=0 is not a whole number from 1 to 65536"),
        ("fgq --sort", "--sort needs a value"),
        ("fginfo --gpus=3", "--gpus takes no value"),
        ("fgsched completion ksh", "ksh is not bash, zsh or fish"),
        ("fgacct -S 26.11.2026", "26.11.2026: there is no such date; dates are written YYYY-MM-DD"),
        ("fgacct -S 26.11.2026", "such as 2026-11-26"),
        ("fgsub -b 31/12 --wrap=true", "there is no such date; dates are written YYYY-MM-DD or MM/DD"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_answered_in_one_plain_sentence(home, command, said):
    done = home.run(*command.split())
    assert (done.status, done.out) == (2, "")
    assert said in done.err
    assert "Invalid value" not in done.err
    assert "Got " not in done.err


def test_an_interrupted_wait_says_that_the_job_continues(capsys):
    for ids, said in (
        (range(12, 13), "job 12 continues. fgwait 12 waits, fgcancel 12 cancels"),
        (range(12, 15), "jobs 12-14 continue. fgwait 12-14 waits, fgcancel 12-14 cancels"),
    ):
        with pytest.raises(KeyboardInterrupt), fgsub._interruptible(ids, waits=True):
            raise KeyboardInterrupt
        assert capsys.readouterr().err == f"fgsub: interrupted; {said}\n"
