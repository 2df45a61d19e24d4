"""fgsub from end to end: what it prints, how it exits, and what the job then does."""

import os
import re
import shutil
import subprocess

import pytest

from fgsched.domain.states import JobState

LAUNCH_FAILURE = ("FAILED", "JobLaunchFailure")


@pytest.fixture
def sub(home):
    """sub(…): fgsub with these words, its jobs' output out of the way."""
    return lambda *words, **more: home.run("fgsub", *words, **more)


def script(home, text, name="job.sh"):
    path = home.path / name
    path.write_text(text)
    return name


def standing(home, job):
    found = home.job(job)
    return found["state"], found["reason"]


def queued(home):
    """Every job that there ever was."""
    return home.history()


# -- what it says -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "out"),
    [((), "Submitted batch job 1\n"), (("--parsable",), "1\n"), (("--quiet",), ""), (("-Q",), "")],
)
def test_an_accepted_job_is_answered_in_the_form_asked_for(sub, options, out):
    done = sub(*options, "--wrap", "true")
    assert (done.status, done.out, done.err) == (0, out, "")


def test_json_tells_what_was_queued(sub):
    done = sub("--json", "--gpus=0.25", "--hold", "--wrap", "true")
    assert (done.status, done.err) == (0, "")
    assert done.json == {
        "job_id": 1,
        "array": None,
        "state": "PENDING",
        "reason": "JobHeldUser",
        "gpus": 0.25,
        "gpumem": None,
    }


def test_what_the_scheduler_refuses_has_slurms_words_and_status_1(home, sub):
    done = sub("--gpus=9", "--wrap", "true")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("fgsub: error: Batch job submission failed: ")
    assert "2" in done.err  # as many as the host has
    assert queued(home) == []


def test_what_is_not_well_formed_has_its_place_and_status_2(home, sub):
    path = script(home, "#!/bin/sh\n#FG --gpus=half\ntrue\n")
    done = sub(path)
    assert (done.status, done.out) == (2, "")
    assert "job.sh:2: --gpus=half is not a number" in done.err
    assert queued(home) == []


def test_an_unknown_option_is_met_with_the_one_that_was_meant(sub):
    done = sub("--gpu=1", "--wrap", "true")
    assert (done.status, done.out) == (2, "")
    assert "did you mean --gpus?" in done.err


@pytest.mark.parametrize("words", [("--gpus=9", "--wrap", "true"), ("--no-such",), ("missing.sh",)])
def test_fg_exit_error_replaces_the_status_of_every_error(sub, words):
    assert sub(*words, env={"FG_EXIT_ERROR": "77"}).status == 77
    assert sub("--wrap", "true", env={"FG_EXIT_ERROR": "77"}).status == 0


@pytest.mark.parametrize("status", ["0", "256", "512", "99999999999999999999", "-1", "x", ""])
def test_an_error_never_looks_like_success(sub, status):
    assert sub("missing.sh", env={"FG_EXIT_ERROR": status}).status == 2


@pytest.mark.parametrize(
    ("command", "compatible", "status"),
    [("true", "", 0), ("exit 3", "", 3), ("kill -9 $$", "", 137), ("kill -9 $$", "1", 1), ("exit 3", "1", 3)],
)
def test_wait_exits_as_the_job_did(sub, command, compatible, status):
    done = sub("--wait", "--wrap", command, env={"FG_WAIT_COMPAT": compatible})
    assert (done.status, done.out) == (status, "Submitted batch job 1\n")


def test_explained_options_name_their_origin_and_queue_nothing(home, sub):
    path = script(home, "#!/bin/sh\n#FG --gpus=0.5 --mem=1G\n")
    done = sub("--explain-options", "--time=5", path, env={"FGSUB_MEM": "2G"})
    rows = {line.split()[0]: line.split(None, 1)[1] for line in done.lines}
    assert rows["--gpus"] == "0.5  (job.sh:2)"
    assert rows["--mem"] == "2G  (FGSUB_MEM)"
    assert rows["--time"] == "5  (command line)"
    assert queued(home) == []


# -- what it takes ------------------------------------------------------------------------------


def test_a_list_is_queued_in_one_request(home, sub):
    script(home, "#!/bin/sh\n#FG --output=/dev/null\nexit $1\n")
    done = sub("--parsable", "--batch=-", input="job.sh 3\n\n# a comment\n--job-name='a b' job.sh 4\n")
    assert (done.status, done.out) == (0, "1\n2\n")
    home.wait(1, 2)
    first, second = queued(home)
    assert (first["exit_code"], second["exit_code"]) == (3, 4)
    assert second["request"]["name"] == "a b"
    assert first["submitted_at"] == second["submitted_at"]


def test_a_list_with_one_wrong_line_is_not_queued_at_all(home, sub):
    script(home, "#!/bin/sh\n")
    done = sub("--batch=-", input="job.sh\n--gpus=many job.sh\n")
    assert (done.status, done.out) == (2, "")
    assert "standard input:2: " in done.err
    assert queued(home) == []


def test_a_script_may_come_on_standard_input(home, sub):
    done = sub("--wait", "--output=said", input="#!/bin/sh\necho $FG_JOB_NAME\n")
    assert done.status == 0
    assert (home.path / "said").read_text() == "fgsub\n"


def test_a_command_and_its_arguments_are_wrapped(home, sub):
    assert sub("--wait", "--output=said", "printf", "%s|", "a b", "$HOME", "--gpus=9").status == 0
    assert (home.path / "said").read_text() == "a b|$HOME|--gpus=9|"


def test_a_script_gets_its_arguments_and_is_read_only_once(home, sub):
    path = script(home, '#!/bin/sh\n#FG --output=said --hold\necho "$1/$2"\n')
    assert sub(path, "a b", "c").status == 0
    script(home, "#!/bin/sh\necho changed\n")
    home.client.ask("release", ids=[1])
    home.wait(1)
    assert (home.path / "said").read_text() == "a b/c\n"


def test_a_script_for_slurm_has_slurms_variables_and_one_warning(home, sub):
    text = (
        "#!/bin/sh\n#SBATCH --gres=gpu:1 --mail-type=END\n#SBATCH -o said\necho $SLURM_JOB_ID $SLURM_JOBID\n"
    )
    done = sub("--wait", script(home, text))
    assert (done.status, done.err) == (
        0,
        "fgsub: warning: job.sh:2: --mail-type: this host sends no mails\n",
    )
    assert (home.path / "said").read_text() == "1 1\n"
    assert home.job(1)["request"]["demand"]["gpus"] == 1


def test_mails_are_promised_only_once_the_controller_sends_them(home, sub):
    program = home.path / "sendmail"
    home.paths.config_file.write_text(f'[mail]\nsendmail = "{program}"\n')
    line = ("--mail-type=END", "--hold", "--wrap", "true")
    said = "fgsub: warning: --mail-type: this host sends no mails\n"
    assert sub(*line).err == said
    program.write_text("#!/bin/sh\ncat >/dev/null\n")
    program.chmod(0o755)
    assert sub(*line).err == said
    assert home.run("fgctl", "reconfigure").status == 0
    assert sub(*line).err == ""


def test_what_is_not_built_is_refused_in_a_script_for_slurm_too(home, sub):
    done = sub(script(home, "#!/bin/sh\n#SBATCH --container-id=x\n"))
    assert (done.status, done.out) == (2, "")
    assert "--container-id is not supported yet" in done.err


def test_a_variable_that_means_nothing_is_warned_of(sub):
    done = sub("--wrap", "true", env={"FGSUB_GPUZ": "1"})
    assert (done.status, done.err) == (0, "fgsub: warning: FGSUB_GPUZ is not an option of fgsub\n")


# -- what the job then does ---------------------------------------------------------------------


def test_the_files_of_a_job_are_those_that_it_names(home, sub):
    (home.path / "in").write_text("from the input\n")
    words = ("--input=in", "--output=%x-%j.out", "--error=%4j.err", "--job-name=a/b")
    assert sub("--wait", *words, "--wrap", "cat; echo wrong >&2").status == 0
    assert (home.path / "a_b-1.out").read_text() == "from the input\n"
    assert (home.path / "0001.err").read_text() == "wrong\n"


@pytest.mark.parametrize(("mode", "text"), [("append", "old\nnew\n"), ("truncate", "new\n")])
def test_the_open_mode_says_what_becomes_of_the_old_output(home, sub, mode, text):
    (home.path / "said").write_text("old\n")
    assert sub("--wait", "--output=said", f"--open-mode={mode}", "--wrap", "echo new").status == 0
    assert (home.path / "said").read_text() == text


def test_directory_and_umask_are_those_of_the_submission(home, sub):
    (home.path / "there").mkdir()
    done = sub("--wait", "--chdir=there", "--output=said", "--wrap", "pwd; umask", umask=0o027)
    assert done.status == 0
    said = home.path / "there" / "said"
    assert said.read_text() == f"{said.parent}\n0027\n"
    assert said.stat().st_mode & 0o777 == 0o640


def test_mkdir_makes_the_directory_of_the_output(home, sub):
    refused = sub("--output=new/deep/said", "--wrap", "true")
    assert (refused.status, refused.out) == (2, "")
    assert "--mkdir" in refused.err
    assert sub("--wait", "--mkdir", "--output=new/deep/said", "--wrap", "echo done").status == 0
    assert (home.path / "new/deep/said").read_text() == "done\n"


@pytest.mark.parametrize(
    ("export", "said"), [("ALL", "1 2 \n"), ("ALL,B=x", "1 x \n"), ("A,C=y", "1  y\n"), ("NONE", "  \n")]
)
def test_the_job_has_the_variables_that_were_exported(home, sub, export, said):
    words = (f"--export={export}", "--output=said", "--wrap", 'echo "$A $B $C"')
    assert sub("--wait", *words, env={"A": "1", "B": "2"}).status == 0
    assert (home.path / "said").read_text() == said


def test_the_warning_comes_before_the_limit(home, sub):
    text = "trap 'echo warned; exit 7' USR1; while :; do sleep 0.02; done"
    words = ("--time=60s", "--signal=B:USR1@50", "--output=said")
    assert sub("--wait", *words, "--wrap", text).status == 7
    assert (home.path / "said").read_text() == "warned\n"


def test_a_job_ends_at_its_limit_and_its_output_says_so(home, sub):
    assert sub("--wait", "--time=1s", "--output=said", "--wrap", "exec sleep 1000").status != 0
    assert standing(home, 1) == (JobState.TIMEOUT.value, "TimeLimit")
    text = r"\*\*\* JOB 1 ON \S+ CANCELLED AT \S+ DUE TO TIME LIMIT \*\*\*"
    assert re.search(text, (home.path / "said").read_text())


def test_an_interpreter_that_is_missing_at_the_start_is_told_with_its_name(home, sub):
    shell = home.path / "shell"
    shutil.copy("/bin/sh", shell)
    assert sub("--hold", script(home, f"#!{shell}\n")).status == 0
    shell.unlink()
    home.client.ask("release", ids=[1])
    home.wait(1)
    assert standing(home, 1) == LAUNCH_FAILURE
    shown = home.run("fgctl", "show", "job", "1").out
    assert str(shell) in shown


def test_an_output_that_cannot_be_opened_is_told_with_its_path(home, sub):
    assert sub("--hold", "--mkdir", "--output=gone/said", "--wrap", "true").status == 0
    shutil.rmtree(home.path / "gone")
    home.client.ask("release", ids=[1])
    home.wait(1)
    assert standing(home, 1) == LAUNCH_FAILURE
    said = f"open {home.path}/gone/said: No such file or directory"
    assert home.job(1)["detail"] == said


def test_a_directory_that_is_gone_when_the_job_starts_is_told_with_its_path(home, sub):
    (home.path / "there").mkdir()
    assert sub("--hold", "--chdir=there", "--wrap", "true").status == 0
    (home.path / "there").rmdir()
    home.client.ask("release", ids=[1])
    home.wait(1)
    assert standing(home, 1) == LAUNCH_FAILURE
    assert f"{home.path}/there" in home.job(1)["detail"]


def test_the_directory_of_an_output_that_depends_on_the_job_is_made_by_the_job(home, sub):
    assert sub("--wait", "-o", "logs/%j/out", "-e", "logs/%j/err/%x", "--wrap", "echo hello").status == 0
    assert (home.path / "logs/1/out").read_text() == "hello\n"
    assert (home.path / "logs/1/err/wrap").read_text() == ""


def test_a_directory_that_a_job_cannot_make_is_the_reason_of_its_failure(home, sub):
    (home.path / "logs").write_text("a file")
    sub("-o", "logs/%j/out", "--wrap", "true")
    assert home.wait(1) is not None
    assert standing(home, 1) == LAUNCH_FAILURE


def on_a_terminal(home, *words):
    """Run fgsub with a terminal for its errors, and return what it said there."""
    ours, theirs = os.openpty()
    streams = {"capture_output": False, "stdout": subprocess.DEVNULL, "stderr": theirs}
    assert home.run("fgsub", *words, **streams).status == 0
    os.close(theirs)
    try:
        return os.read(ours, 1 << 16).decode()
    except OSError:  # nothing was said
        return ""
    finally:
        os.close(ours)


def test_a_person_is_told_that_the_job_sees_no_gpu_unless_that_was_said(home):
    assert "no GPU was asked for" in on_a_terminal(home, "--wrap", "true")
    for words in (["--gpus=0"], ["--gpus=0.5"], ["--parsable"]):
        assert on_a_terminal(home, *words, "--wrap", "true") == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-c", "100000"], "--cpus-per-task=100000: 100000 CPUs; limit 65536"),
        (["-n", "70000"], "--ntasks=70000: 70000 CPUs; limit 65536"),
        (["-n", "300", "-c", "300"], "--cpus-per-task=300 --ntasks=300: 90000 CPUs; limit 65536"),
        (["--gpus=2", "--cpus-per-gpu=50000"], "--cpus-per-gpu=50000 --gpus=2: 100000 CPUs; limit 65536"),
    ],
)
def test_more_cpus_than_any_host_has_are_refused_with_the_options_that_ask_for_them(home, options, said):
    done = home.run("fgsub", *options, "--wrap", "true")
    assert (done.status, done.err) == (2, f"fgsub: error: {said}\n")
