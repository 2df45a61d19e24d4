"""What people typed and got no answer to, or a poor one: each line with its answer."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from awaiting import PATIENCE
from fgsched import protocol
from fgsched.cli.fgsched import fgsched
from fgsched.domain.errors import BadUsage, Exit
from fgsched.domain.text import BadValue
from fgsched.domain.times import parse_time
from fgsched.system import logins
from live_host import living

OOM_SCORE = Path("/proc/self/oom_score_adj")
FILES = {
    "ok.sh": "#!/bin/sh\ntrue\n",
    "typo.py": "#!/usr/bin/pyhton3\nprint(1)\n",
    "own.sh": "#!/bin/sh\nexport CUDA_VISIBLE_DEVICES=3\n",
    "pbs.sh": "#!/bin/sh\n#PBS -l nodes=1:gpus=1,walltime=24:00:00\ntrue\n",
    "sge.sh": "#!/bin/sh\n#$ -l gpu=1\ntrue\n",
    "hq.sh": "#!/bin/sh\n#HQ --resource gpus=0.5\ntrue\n",
}
TAKEN = "Submitted batch job"
LINES = {  # what is typed: (exit status, part of the answer)
    # amounts that cannot be meant
    "fgsub --gpu-mem=8 ok.sh": (2, "--gpu-mem=8 is in MiB, less than a CUDA context takes; did you mean 8G?"),
    "fgsub --gpu-mem=0.5 ok.sh": (2, "did you mean 0.5G or 50%?"),
    "fgsub --gpu-mem=0.5 -p part ok.sh": (2, "did you mean 0.5G or 50%?"),
    "fgsub --gpus=8G ok.sh": (2, "--gpus=8G is an amount of memory; use --gpu-mem=8G"),
    "fgsub --mem=4 ok.sh": (2, "--mem=4 is in MiB, less than a Python takes; did you mean 4G?"),
    "fgsub --mem=0.5 ok.sh": (2, "did you mean 0.5G?"),
    "fgsub --mem-per-cpu=2 ok.sh": (
        2,
        "--mem-per-cpu=2 is in MiB, less than a Python takes; did you mean 2G?",
    ),
    "fgsub --gpus=1 --mem-per-gpu=8 ok.sh": (2, "did you mean 8G?"),
    "fgrun --mem=4 true": (2, "did you mean 4G?"),
    "fgctl update jobid=1 mem=4": (2, "did you mean 4G?"),
    "fgsub --hold --mem=64 ok.sh": (0, "--mem=64 is 64 MiB; did you mean 64G?"),
    "fgsub --hold --mem=500 ok.sh": (0, TAKEN),  # as with Slurm
    "fgsub --hold --mem=4M ok.sh": (0, TAKEN),
    "fgsub --hold --time=5 ok.sh": (0, TAKEN),  # five minutes, as with Slurm
    # names and conditions
    "fgsub --hold -q urgent ok.sh": (0, "--qos=urgent: this site defines no QOS; it is only a label"),
    "fgsub --hold -A nobody ok.sh": (
        0,
        "--account=nobody: this site defines no accounts; it is only a label",
    ),
    "fgsub --hold -t 5 --signal=USR1@1000 ok.sh": (0, "so the signal is sent as soon as the job runs"),
    "fgsub --container=a.sif --container=b.sif ok.sh": (
        2,
        "--container given twice (a.sif, b.sif); give one",
    ),
    "fgsub --container=nothere.sif ok.sh": (2, "--container=nothere.sif: No such file or directory"),
    "fgsub -d afterok:1 ok.sh": (
        0,
        "--dependency=afterok:1 can never be met, because that job has ended otherwise",
    ),
    "fgctl update job=2 dependency=afterok:1": (
        0,
        "fgctl: warning: dependency=afterok:1 can never be met, because that job has ended otherwise",
    ),
    "fgctl update job=2 dependency=afternotok:1": (0, ""),
    "fgctl update job=2 dependency=afterok:1?afternotok:1": (0, ""),
    "fgctl update partition=part max_mem=8": (2, "max_mem=8 has no unit, and would be MiB; did you mean 8G"),
    "fgctl create partition=big gpu_mem=24": (
        2,
        "gpu_mem=24 has no unit, and would be MiB; did you mean 24G",
    ),
    "fgctl update partition=part max_mem=8G": (0, ""),
    "fgsub -d afterok:999 ok.sh": (1, "job 999 does not exist"),
    # files
    "fgsub --hold -i nowhere ok.sh": (0, "--input: there is no "),
    "fgsub --hold -i ok.sh ok.sh": (0, TAKEN),
    "fgsub --hold -i %j.in ok.sh": (0, TAKEN),
    "fgsub --chdir=/nonexistent ok.sh": (2, "--chdir=/nonexistent: No such file or directory"),
    # scripts
    "fgsub typo.py": (2, "its interpreter /usr/bin/pyhton3 does not exist or cannot be executed"),
    "fgsub --hold own.sh": (
        0,
        "own.sh: line 2: CUDA_VISIBLE_DEVICES=3 selects a GPU that the job does not have",
    ),
    "fgsub --hold pbs.sh": (0, TAKEN),  # read, as with Slurm
    "fgsub sge.sh": (2, "sge.sh:2: #$ is a directive of Grid Engine, which is not read"),
    "fgsub hq.sh": (2, "hq.sh:2: #HQ is a directive of HyperQueue"),
    "fgsub ok": (2, "Did you mean ok.sh?"),
    "fgsub -x ok.sh": (2, "no script given: ok.sh is the value of --exclude"),
    # options
    "fgsub \u2013-gpus=0.5 ok.sh": (2, "Type --gpus=0.5"),
    "fgsub -gpus=0.5 ok.sh": (2, "unknown option -g; did you mean --gpus=0.5?"),
    "fgsub --port ok.sh": (2, "unknown option --port\n"),
    # times
    "fgacct -S 26.11.2026": (2, "26.11.2026: there is no such date; dates are written YYYY-MM-DD"),
    "fgacct -S 05.11.2026": (2, "05.11.2026 is 2026-05-11 or 2026-11-05; write the one that is meant"),
    "fgsub --begin=05.11.2026 ok.sh": (2, "is 2026-05-11 or 2026-11-05; write the one that is meant"),
    # other commands
    "fgctl show": (2, "fgctl show needs job, gpu, partition"),
    "fginfo -g 5": (2, "-g takes no value; unexpected extra argument 5"),
    "fgprio 7": (2, "Name jobs with --jobs: fgprio --jobs=7"),
    "fgsched logs --job abc": (2, "--job=abc is not a whole number of at least 1"),
    "fgq --job abc": (2, "abc is not a job id"),
    "fgcancel --name=nothing": (0, ""),  # silent, as with Slurm
    "fgcancel 999": (3, "Invalid job id specified"),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A home with the scripts, a partition with a default, and a failed job 1."""
    with living(tmp_path_factory.mktemp("lab") / "home") as home:
        with (home.path / "fgsched.toml").open("a") as file:
            file.write("[partitions.part]\ngpus = 0.25\n")
        for name, text in FILES.items():
            (home.path / name).write_text(text)
        assert home.ended("exit 1", share=0) == 1
        assert home.run("fgsub", "--hold", "--wrap=true").status == 0
        yield home


@pytest.mark.parametrize("line", LINES)
def test_each_line_that_once_got_no_answer_gets_one(lab, line):
    status, answer = LINES[line]
    command, *words = line.split()
    done = lab.run(command, *words)
    assert answer in done.out + done.err
    assert done.status == status
    if not answer:
        assert (done.out, done.err) == ("", "")
    if answer is TAKEN:
        assert done.err == ""


def test_a_user_who_asks_for_the_log_of_the_host_is_told_what_shows_the_lines_about_own_jobs(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    refused = CliRunner().invoke(fgsched, ["logs", "--system"], prog_name="fgsched")
    assert refused.exit_code == Exit.NOT_PERMITTED
    assert "--system is for root\n" in refused.output
    assert "fgctl show log shows the lines about your jobs." in refused.output


def test_a_label_that_no_site_defines_is_told_once(home):
    for words in (("-A", "lab"), ("-q", "day"), ("-A", "lab", "-q", "day")):
        first = home.run("fgsub", "--hold", *words, "--wrap=true")
        assert ("it is only a label" in first.err) is (len(words) == 2)
    assert home.run("fgsub", "--hold", "-A", "lab", "--wrap=true").err == ""
    assert "--account=other" in home.run("fgsub", "--hold", "-A", "other", "--wrap=true").err


@pytest.mark.parametrize(
    ("variables", "answer"),
    [
        ({"FG_DEVICES": "sim:8x80G"}, "FG_DEVICES=sim:8x80G has no effect: the controller was started with"),
        ({"FG_CONFIG": "/nowhere.toml"}, "FG_CONFIG=/nowhere.toml has no effect: the controller reads"),
        ({"FGSCHED_CONFIG": "/nowhere.toml"}, "FGSCHED_CONFIG=/nowhere.toml has no effect"),
        ({"FG_DEVICES": ""}, ""),
        ({}, ""),
    ],
)
def test_a_variable_that_a_running_controller_does_not_have_is_told(lab, variables, answer):
    for words in (("fgsub", "--hold", "--wrap=true"), ("fgsched", "status")):
        done = lab.run(*words, env=variables)
        assert done.status == 0
        assert answer in done.out + done.err
        assert answer or "has no effect" not in done.out + done.err


def test_a_variable_of_the_file_that_the_controller_reads_is_not_told(lab):
    same = {"FG_CONFIG": str(lab.path / "x" / ".." / "fgsched.toml")}
    assert lab.run("fgsub", "--hold", "--wrap=true", env=same).err == ""


@pytest.mark.parametrize("demand", [{"gpus": 1, "memory": 8}, {"host_memory": 4}])
def test_a_program_that_requests_bytes_where_it_means_gibibytes_is_refused(lab, demand):
    with pytest.raises(BadUsage, match=r"request: [84] bytes of \w+ memory") as refusal:
        lab.submit(share=0, demand=demand)
    assert "8 GiB are 8589934592" in refusal.value.remedy


@pytest.mark.parametrize("words", [["--wrap=sleep 600"], ["-a1-2", "--wrap=sleep 600"]])
def test_ctrl_c_ends_the_wait_and_not_the_job(lab, words):
    command = [sys.executable, "-m", "fgsched.cli.fgsub", "-W", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, cwd=lab.path, env=lab.environ, start_new_session=True
    ) as process:
        job = process.stdout.readline().split()[-1]
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 128 + signal.SIGINT
    assert f"fgsub: interrupted; job {job} continues. fgwait {job} waits, fgcancel {job} cancels" in said
    assert lab.job(int(job) if len(words) == 1 else f"{job}_1")["state"] in (
        "PENDING",
        "RUNNING",
        "CONFIGURING",
    )
    lab.client.call(protocol.Cancel(ids=[int(job)]))


@pytest.mark.parametrize("text", ["05.11.2026", "5.11.26", "05.11", "05.11.2026T10:00"])
def test_a_date_with_dots_that_has_two_meanings_is_refused(text):
    with pytest.raises(BadValue, match=r"-05-11 or \d{4}-11-05; write the one"):
        parse_time(text, 1.8e9)


@pytest.mark.parametrize("text", ["11.26.2026", "11.11.2026", "05/11/2026", "051126"])
def test_a_date_with_one_meaning_is_taken(text):
    assert parse_time(text, 1.0e9) > 1.0e9


def test_the_cpus_of_each_task_of_an_exclusive_job_are_those_it_requested(home):
    home.run("fgsub", "--hold", "--exclusive", "-c", "2", "-n", "3", "--wrap=true")
    row = home.run("fgq", "-h", "-O", "NumCPUs:.5,MinCPUs:.5,cpus-per-task:.5,NumTasks:.5").out
    assert row.split() == ["64", "6", "2", "3"]
    home.run("fgsub", "--hold", "-c", "2", "-n", "3", "--wrap=true")
    row = home.run("fgq", "-h", "-j2", "-O", "NumCPUs:.5,MinCPUs:.5,cpus-per-task:.5,NumTasks:.5").out
    assert row.split() == ["6", "6", "2", "3"]


def test_hard_limits_of_the_command_that_started_the_controller_bind_no_job_without_a_word(tmp_path):
    with living(tmp_path / "home") as home:
        home.run("fgsched", "stop")

        def bind():
            resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
            OOM_SCORE.write_text("700")

        start = [sys.executable, "-m", "fgsched.cli.fgsched", "start"]
        subprocess.run(start, env=home.environ, cwd=home.path, preexec_fn=bind, timeout=PATIENCE, check=True)
        shown = "ulimit -n; cat /proc/self/oom_score_adj"
        done = home.run("fgsub", "--wait", "-o", "bound", f"--wrap={shown}")
        files, score = (home.path / "bound").read_text().splitlines()
        status = home.run("fgsched", "status").out
    assert score == OOM_SCORE.read_text().strip()
    told = "with lower limits than those of this command, and they bind its jobs: open files (ulimit -n) 300"
    own = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert files == ("300" if told in done.err else str(own))
    assert (told in status) is (told in done.err)


@pytest.mark.parametrize(
    ("cgroup", "kills", "lingers", "why"),
    [
        ("0::/user.slice/user-7.slice/session-3.scope", False, False, ""),
        ("0::/user.slice/user-7.slice/session-3.scope", True, True, "the end of the login that started it"),
        ("0::/user.slice/user-7.slice/session-3.scope", None, True, "logind has not answered"),
        ("0::/system.slice/fgsched.service", None, False, ""),
        ("4:memory:/\n1:name=systemd:/user.slice/user-7.slice/session-c1.scope", True, False, "logind has"),
        ("0::/user.slice/user-7.slice/user@7.service/app.slice/vte.scope", False, False, "the last logout"),
        ("0::/user.slice/user-7.slice/user@7.service/app.slice/vte.scope", True, True, ""),
        ("0::/system.slice/cron.service", True, False, ""),
    ],
)
def test_a_logout_that_ends_the_controller_is_named(cgroup, kills, lingers, why):
    answer = logins.reason(cgroup, kills=kills, lingers=lingers)
    assert why in answer
    assert bool(why) is bool(answer)


@pytest.mark.parametrize(
    ("settings", "users"),
    [
        ("KillUserProcesses=no", set()),
        ("KillUserProcesses=yes", {"ann", "bob", "root"}),
        ("KillUserProcesses=yes\nKillOnlyUsers=\nKillExcludeUsers=root ann", {"bob"}),
        ("KillUserProcesses=yes\nKillOnlyUsers=ann bob\nKillExcludeUsers=bob", {"ann"}),
        ("KillUserProcesses=no\nKillOnlyUsers=ann\nKillExcludeUsers=root", set()),
        ("", set()),
    ],
)
def test_logind_kills_the_processes_of_some_users_only(settings, users):
    assert {user for user in ("ann", "bob", "root") if logins.is_killed(user, settings)} == users
    assert logins.is_killed("ann", None) is None


@pytest.mark.parametrize(
    ("denies", "calls"), [(1, ["loginctl"]), (0, ["loginctl", "fgsched", "systemd-run"])]
)
def test_the_start_that_survives_a_logout_stops_no_controller_if_linger_is_denied(tmp_path, denies, calls):
    command, denied = logins.surviving_start("ann").split(". If ")
    for name in ("loginctl", "fgsched", "systemd-run"):
        program = tmp_path / name
        status = denies if name == "loginctl" else 0
        program.write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/calls\nexit {status}\n")
        program.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", command], env=environ, timeout=PATIENCE, check=False)
    assert (tmp_path / "calls").read_text().split() == calls
    assert denied.endswith("root types: loginctl enable-linger ann")


def test_doctor_tells_what_a_logout_does(lab):
    row = next(line for line in lab.run("fgsched", "doctor").lines if line[5:].startswith("logout"))
    assert row.startswith(("OK", "WARN"))


def test_a_host_without_gpus_says_how_the_controller_gets_some(tmp_path):
    with living(tmp_path / "home", devices="none") as home:
        home.run("fgsched", "start")
        for words in (("--gpus=0.5",), ("--gpu-mem=8G",)):
            done = home.run("fgsub", *words, "--wrap=true", env={"FG_DEVICES": "sim:2x16G"})
            assert done.status == 1
            assert "A controller keeps the FG_DEVICES and FG_CONFIG with which it was started" in done.err
