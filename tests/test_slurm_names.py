"""The names of Slurm inside jobs: the commands of fgsched answer to them, with Slurm's name in messages."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fgsched.cli.install.slurmnames import BIN, names
from fgsched.controller.handlers.submission import check_mail
from fgsched.domain.errors import Exit, FgschedError, Refused
from fgsched.domain.job import Request
from fgsched.mail.letters import MailSettings
from fgsched.slurm.getopt import BadLine, in_slurms_words
from fgsched.slurm.names import SLURM_NAMES, arguments, status_of, usage_line
from fgsched.slurm.scontrol import expand, fold
from live_host import PATIENCE

HERE = Path(__file__).parent
COMMANDS = HERE.parent / "fgsched" / "cli" / "bin"


def script(home, *lines):
    (home.path / "job.sh").write_text("\n".join(["#!/bin/bash", *lines, ""]))
    done = home.run("fgsub", "--wait", "-o", "out", "job.sh")
    return done.status, (home.path / "out").read_text()


def test_every_name_has_a_program():
    assert sorted(os.listdir(BIN)) == sorted(SLURM_NAMES)
    assert all(os.access(BIN / name, os.X_OK) for name in os.listdir(BIN))


def test_a_script_for_slurm_runs_its_steps(home):
    status, out = script(
        home,
        "#SBATCH -n 2 --cpus-per-task=1",
        "srun -l sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS in $SLURM_JOB_ID.$SLURM_STEP_ID'",
        "srun -n1 echo alone",
    )
    assert (status, sorted(out.splitlines())) == (0, ["0: 0 of 2 in 1.0", "1: 1 of 2 in 1.0", "alone"])


def test_the_exit_code_of_a_step_is_that_of_the_job(home):
    status, out = script(home, "#SBATCH -J x", "srun sh -c 'exit 3'")
    assert status == 3
    assert out.endswith("task 0: Exited with exit code 3\n")


def test_steps_in_the_background_share_the_cpus_of_the_job(home):
    steps = [f"srun -Q -n1 sh -c 'echo {number} $SLURM_STEP_ID' &" for number in range(4)]
    status, out = script(home, "#SBATCH -n 2", *steps, "wait")
    assert status == 0
    assert sorted(line.split()[0] for line in out.splitlines()) == ["0", "1", "2", "3"]
    assert sorted(line.split()[1] for line in out.splitlines()) == ["0", "1", "2", "3"]


def test_a_job_asks_about_itself_with_slurms_names(home):
    status, out = script(
        home,
        "#SBATCH -J train",
        "squeue -h -j $SLURM_JOB_ID -o '%i %j %T'",
        "squeue -h -j $SLURM_JOB_ID | wc -w",
        "scontrol show job $SLURM_JOB_ID | head -n1 | cut -d' ' -f1",
        "sbatch --hold --parsable --wrap true",
        "scancel 2 && echo cancelled",
        "sacct -n -X -j 2 -o State",
    )
    assert status == 0
    lines = [line.strip() for line in out.splitlines()]
    assert lines == ["1 train RUNNING", "8", "JobId=1", "2", "cancelled", "CANCELLED+"]


def test_errors_have_slurms_name_and_status(home):
    _, out = script(
        home, "sbatch --gpus=nonsense --wrap true; echo $?", "sbatch --nodes=3 --wrap true; echo $?"
    )
    first, one, second, two = [
        line for line in out.splitlines() if line.startswith("sbatch") or line.isdigit()
    ]
    assert first.startswith("sbatch: error: Batch job submission failed: --gpus=nonsense")
    assert second.startswith(
        "sbatch: error: Batch job submission failed: --nodes=3: fgsched schedules one host"
    )
    assert (one, two) == ("1", "1")


def called(home, *words):
    done = home.run(*words)
    return done.status, done.out, done.err


@pytest.mark.parametrize("name", names())
def test_every_name_prints_its_usage_in_one_line_and_starts_nothing(name, home):
    status, out, err = called(home, name, "--usage")
    assert (status, err, out.splitlines()[1:]) == (0, "", [])
    assert out.startswith(f"Usage: {name} [OPTION]...")
    assert not home.paths.socket.exists()


@pytest.mark.parametrize(
    "name",
    [name for name, row in SLURM_NAMES.items() if (row.about or name == "scontrol") and name != "seff"],
)
def test_a_name_with_options_of_its_own_lists_them(name, home):
    status, out, err = called(home, name, "--help")
    assert (status, err) == (0, "")
    assert f"\nUsage: {name} [OPTION" in out
    assert "The whole manual: man fg" in out
    assert {"srun": "  -J, --job-name VALUE\n", "sinfo": "  -p, --partition VALUE\n"}.get(name, "") in out


def test_options_of_a_program_are_its_own(home):
    _, out = script(home, r"srun -Q printf '%s\n' --usage --help")
    assert out == "--usage\n--help\n"


def test_the_native_programs_leave_the_usage_to_the_name(home):
    done = home.run("fgsched", "slurm-names", "--install", "names", env={"PATH": "/nowhere"})
    assert done.status == 0
    for name in ("sbatch", "squeue", "scancel"):
        command = [home.path / "names" / name, "--usage"]
        done = subprocess.run(command, env=home.environ, capture_output=True, text=True, timeout=PATIENCE)
        assert (done.stdout, done.stderr) == (usage_line(name), "")


ACCOUNT = "Invalid account or account/partition combination specified"


@pytest.mark.parametrize(
    ("name", "code", "status"),
    [
        ("sbatch", Exit.USAGE, 255),
        ("squeue", Exit.USAGE, 1),
        ("squeue", Exit.NO_SUCH_JOB, 1),
        ("sacct", 6, 6),
    ],
)
def test_a_status_is_that_of_slurm(name, code, status):
    assert status_of(name, code) == status


def test_a_signal_of_scancel_is_for_the_steps_unless_the_shell_is_named():
    assert arguments("scancel", ["-s", "USR1", "7"]) == ["--children", "-s", "USR1", "7"]
    assert arguments("scancel", ["-b", "-s", "USR1", "7"]) == ["-b", "-s", "USR1", "7"]
    assert arguments("squeue", ["--json"]) == ["--slurm-json=json:"]
    assert arguments("squeue", ["--yaml=v0.0.41"]) == ["--slurm-json=yaml:v0.0.41"]


def test_sattach_attaches_to_the_job_of_a_step_and_refuses_options_about_its_tasks():
    assert arguments("sattach", ["-Q", "7.0", "--pty"]) == ["attach", "7"]
    assert arguments("sattach", ["--help"]) == ["attach", "--help"]
    for words in (["-l", "7.0"], ["--layout", "7.0"], ["--output-filter=1", "7.0"]):
        with pytest.raises(BadLine, match="is not supported yet"):
            arguments("sattach", words)


def test_a_host_without_mails_takes_a_script_with_any_address():
    asked = Request(name="x", mail_type="END", mail_user="someone@elsewhere.example")
    check_mail(asked, MailSettings(way="off"))
    with pytest.raises(Refused):
        check_mail(asked, MailSettings(way="sendmail"))


@pytest.mark.parametrize("types", ["FAIL,END", "end", "END,END", "NONE", "SOMETIMES"])
def test_a_request_whose_types_of_mail_are_not_in_their_form_is_refused(types):
    check_mail(Request(name="x", mail_type="END,FAIL"), MailSettings(way="sendmail"))
    with pytest.raises(FgschedError):
        check_mail(Request(name="x", mail_type=types), MailSettings(way="sendmail"))


def test_functions_of_the_submitters_shell_reach_steps_and_jobs_of_jobs(home):
    """Such as `module`, which a shell exports as the variable BASH_FUNC_module%%."""
    (home.path / "job.sh").write_text(
        "#!/bin/bash\nmodule\nsrun bash -c module\n"
        "printf '#!/bin/bash\\nmodule\\n' | sbatch --wait --quiet -o child\ncat child\n"
    )
    environ = {"BASH_FUNC_module%%": "() { echo loaded; }"}
    assert home.run("fgsub", "--wait", "-o", "out", "job.sh", env=environ).status == 0
    assert (home.path / "out").read_text() == "loaded\n" * 3


def test_a_job_finds_the_commands_of_fgsched_where_the_path_of_its_user_lacks_them(home):
    (home.path / "job.sh").write_text("#!/bin/bash\ncommand -v fgctl\nfgctl show job $FG_JOB_ID | head -n1\n")
    done = home.run("fgsub", "--wait", "-o", "out", "job.sh", env={"PATH": "/usr/bin:/bin"})
    assert done.status == 0
    path, shown = (home.path / "out").read_text().splitlines()
    assert (Path(path).parent, shown[:7]) == (COMMANDS, "JobId=1")


def test_every_command_has_a_program_for_jobs():
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())
    native = project["tool"]["fgsched"]["native-commands"]
    assert sorted(os.listdir(COMMANDS)) == sorted(native)
    assert all(os.access(COMMANDS / name, os.X_OK) for name in os.listdir(COMMANDS))


def test_the_user_keeps_a_path_of_their_own(home):
    (home.path / "bin").mkdir()
    program = home.path / "bin" / "mine"
    program.write_text("#!/bin/sh\necho mine\n")
    program.chmod(0o755)
    (home.path / "job.sh").write_text("#!/bin/sh\nmine\ncommand -v srun\n")
    environ = {"PATH": f"{home.path}/bin:{os.environ['PATH']}"}
    assert home.run("fgsub", "--wait", "-o", "out", "job.sh", env=environ).status == 0
    assert (home.path / "out").read_text() == f"mine\n{BIN}/srun\n"


def test_clients_of_slurm_get_the_answers_that_they_look_for(home):
    """The calls are those of submitit, parsl, clusterjob, snakemake and turm, as SLURM clients make them."""
    assert home.run("fgsub", "--wait", "-J", "uuid", "-n2", "--wrap", "true").status == 0
    host = os.uname().nodename.split(".")[0]
    for command, words, said in (
        (
            "fgacct",
            ["-o", "JobID,State,NodeList", "--parsable2", "-j", "1"],
            f"JobID|State|NodeList\n1|COMPLETED|{host}\n",
        ),
        ("fgacct", ["--clusters", "all", "-X", "--noheader", "--format=jobid,state%20", "--job", "1"], None),
        ("fgacct", ["--format=state", "-n", "-j 1"], " COMPLETED\n"),
        (
            "fgacct",
            ["-P", "-n", "--format=JobIdRaw,State", "--name", "uuid", "-S", "now-1hour"],
            "1|COMPLETED\n",
        ),
        ("fgacct", ["-P", "-n", "--name", "other", "-S", "now-1hour"], ""),
        (
            "fgacct",
            ["-P", "-n", "-o", "NNodes,NCPUS,NTasks,AllocTRES,Cluster", "-j", "1"],
            "1|2|2|billing=2,cpu=2,node=1|fgsched\n",
        ),
        ("fgq", ["-h", "-t", "all", "-o %T", "-j 1"], " COMPLETED\n"),
        (
            "fgq",
            ["--noheader", "--states=all", "--format=%i|%B|%c|%x|%w", "--name", "uuid"],
            "1|n/a|2||(null)\n",
        ),
        ("fgq", ["--noheader", "-t", "all", "-O", "jobid:#,tres-alloc:#,NumTasks:#,BatchHost:#"], None),
    ):
        done = home.run(command, *words)
        assert (done.status, done.err) == (0, ""), words
        assert said is None or done.out == said, words


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[1-3],x", ["n1", "n2", "n3", "x"]),
        ("a[08-10]b,c", ["a08b", "a09b", "a10b", "c"]),
        ("one", ["one"]),
        ("", []),
    ],
)
def test_a_host_list_is_expanded(text, names):
    assert expand(text) == names


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        ("Batch job submission failed: invalid account: none", "{} " + ACCOUNT),
        ("Batch job submission failed: ann may not charge account lead", "{} " + ACCOUNT),
        ("partition night is not for account lead", ACCOUNT),
        ("Batch job submission failed: invalid quality of service: top", "{} Invalid qos specification"),
        ("invalid partition: nope", "Invalid partition name specified"),
        ("Batch job submission failed: the queue is full", "{} the queue is full"),
    ],
)
def test_a_refusal_has_slurms_words_where_slurm_has_them(cause, text):
    assert in_slurms_words(cause) == text.format("Batch job submission failed:")


@pytest.mark.parametrize("text", ["n[-3]", "n[1-x]", "n[3-1]", "n[1-999999999]"])
def test_a_bad_host_list_is_refused(text):
    with pytest.raises(BadLine, match="Invalid hostlist"):
        expand(text)


def test_names_are_folded_to_a_list():
    assert fold(["n1", "n2", "n3", "x", "n7", "n1"]) == "n[1-3,7],x"


def test_scontrol_answers_what_only_slurm_has(home):
    host = os.uname().nodename.partition(".")[0]
    status, out = script(
        home,
        "#SBATCH -J x",
        "scontrol show hostnames $SLURM_JOB_NODELIST",
        "scontrol show hostnames 'n[1-2],y' | tr '\\n' ' '; echo",
        "scontrol show config | grep -c MinJobAge",
        "scontrol show config | grep -o 'MaxArraySize.*'",
        "scontrol -o show job=$SLURM_JOB_ID | cut -d' ' -f1",
        "scontrol show node | head -n1 | cut -d' ' -f1",
        "scontrol show partition | head -n1",
        "sbatch --begin=now+1hour --parsable --wrap true",
        "scontrol --cluster all hold 2 && scontrol release jobid=2 && echo held",
    )
    assert status == 0, out
    assert out.splitlines() == [
        host,
        "n1 n2 y ",
        "1",
        "MaxArraySize            = 100001",
        "JobId=1",
        f"NodeName={host}",
        "PartitionName=main",
        "2",
        "held",
    ]


def test_a_login_shell_finds_slurms_names_after_its_profiles(home):
    (home.path / ".bash_profile").write_text("PATH=/usr/bin:/bin\n")
    (home.path / "job.sh").write_text(
        "#!/bin/bash -l\n#SBATCH -J x\ncommand -v srun\necho ${BASH_ENV-unset}\n"
    )
    environ = {"HOME": str(home.path)}
    assert home.run("fgsub", "--wait", "-o", "out", "job.sh", env=environ).status == 0
    assert (home.path / "out").read_text() == f"{BIN}/srun\nunset\n"


@pytest.mark.parametrize("line", ["sbatch --version", "sinfo", "scontrol show config"])
@pytest.mark.parametrize(
    ("output", "why"), [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")]
)
def test_an_answer_that_cannot_be_written_is_an_error(home, line, output, why):
    home.run("fgq", "-h")
    command = f"{sys.executable} -m fgsched.slurm.names {line} {output}"
    done = subprocess.run(
        ["sh", "-c", command], env=home.environ, stderr=subprocess.PIPE, text=True, timeout=PATIENCE
    )
    said = f"{line.split()[0]}: error: cannot write the output: {why}\n"
    assert (done.returncode, done.stderr) == (Exit.STORAGE, said)
