"""Arrays, dependencies, requeue and suspend by the commands that users type, with real processes."""

import subprocess
import sys

import pytest

from awaiting import until_stopped, until_written
from fgsched import protocol
from fgsched.domain.errors import Exit
from live_host import PATIENCE, living

ONE_AT_A_TIME = "[host]\ncpus = 64\n"


@pytest.fixture
def gpus(tmp_path):
    with living(tmp_path / "home", devices="sim:1x16G", config=ONE_AT_A_TIME) as home:
        yield home


def sub(home, *words):
    done = home.run("fgsub", "--parsable", *words)
    assert (done.status, done.err) == (0, "")
    return done.out.strip()


def lines(home, command, *words):
    done = home.run(command, *words)
    assert done.status == 0, done.err
    return done.lines


def test_a10_an_array_of_five_sizes_gives_five_results_in_the_order_of_their_indices(gpus):
    """One whole GPU each, so they run one after another."""
    script = gpus.path / "sizes.sh"
    script.write_text(
        "#!/bin/sh\n#FG --array=1000-5000:1000 --gpus=1 --output=size-%a.out\n"
        'echo "$FG_ARRAY_TASK_ID of $FG_ARRAY_TASK_COUNT" | tee -a results\n'
    )
    array = sub(gpus, str(script))
    assert gpus.run("fgwait", array).status == 0
    assert (gpus.path / "results").read_text().splitlines() == [f"{n}000 of 5" for n in range(1, 6)]
    assert (gpus.path / "size-3000.out").read_text() == "3000 of 5\n"
    found = lines(gpus, "fgacct", "-P", "-n", "-j", array, "-o", "JobID,State,Elapsed,GPUIdx")
    assert [line.split("|")[0] for line in found] == [f"{array}_{n}000" for n in range(1, 6)]
    assert {line.split("|")[1] for line in found} == {"COMPLETED"}
    assert all(line.split("|")[2].startswith("00:00:") for line in found)


def test_waiting_tasks_share_a_line_and_have_their_own_when_asked_for(gpus):
    array = sub(gpus, "--hold", "--array=0-15:4,16%2", "--wrap", "true")
    assert lines(gpus, "fgq", "-h", "-o", "%i %F %K %t") == [f"{array}_[0-16:4%2] {array} 0-16:4%2 PD"]
    assert lines(gpus, "fgq", "-h", "-r", "-o", "%i") == [f"{array}_{n}" for n in range(0, 17, 4)]
    job = gpus.run("fgq", "--json").json["jobs"][0]
    assert (job["array_job_id"], job["array_task_id"], job["array_tasks"]) == (int(array), None, "0-16:4%2")
    assert "ArrayTaskId=0-16:4  ArrayTaskThrottle=2" in gpus.run("fgctl", "show", "job", array).out
    done = gpus.run("fgsub", "--json", "--hold", "--array=3", "--wrap", "true")
    assert done.json["array"] == "3"


def test_a_long_list_of_tasks_is_cut(gpus):
    odd = ",".join(str(n * n) for n in range(1, 60))
    array = sub(gpus, "--hold", f"--array={odd}", "--wrap", "true")
    (line,) = lines(gpus, "fgq", "-h", "-o", "%i")
    assert line.startswith(f"{array}_[1,4,9,")
    assert line.endswith("…]")


def test_some_tasks_are_cancelled_by_name_and_by_what_they_do(gpus):
    array = sub(gpus, "--hold", "--array=0-9", "--wrap", "true")
    assert gpus.run("fgcancel", f"{array}_[1-5,8]").status == 0
    assert lines(gpus, "fgq", "-h", "-j", f"{array}_0,{array}_9", "-o", "%i") == [f"{array}_[0,6-7,9]"]
    done = gpus.run("fgcancel", "-i", "-t", "PD", f"{array}_[6-7]", input="y\n")
    assert done.err.startswith(f"Cancel job_id={array}_[0,6-7,9] name=wrap partition=main [y/n]? ")
    assert lines(gpus, "fgq", "-h", "-o", "%i") == [f"{array}_[0,9]"]
    done = gpus.run("fgcancel", f"{array}_10")
    assert done.status == Exit.NO_SUCH_JOB
    assert f"Kill job error on job id {array}_10: Invalid job id specified" in done.err
    assert gpus.run("fgcancel", array).status == 0
    assert lines(gpus, "fgq", "-h") == []
    done = gpus.run("fgwait", f"{array}_9", "--json")
    assert (done.status, [job["state"] for job in done.json["jobs"]]) == (1, ["CANCELLED"])


def test_a_task_is_waited_for_before_it_has_a_row(gpus):
    gate = gpus.running(share=10_000)
    array = sub(gpus, "--gpus=1", "--array=0-2", "--wrap", "exit $FG_ARRAY_TASK_ID")
    gpus.client.ask("cancel", ids=[gate])
    assert gpus.run("fgwait", f"{array}_1").status == 1
    assert gpus.run("fgwait", array).status == 2
    assert gpus.run("fgwait", f"{array}_0").status == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--array=5-1"], "fgsub: error: --array=5-1: '5-1' runs backwards\n"),
        (["--array=0-9999999999"], "is an array of 10000000000 tasks; limit 100000\n"),
        (["--dependency=afterok:x"], "'x' is neither a job id nor a kind of dependency"),
        (["--deadline=now-1"], "has passed"),
        (["--begin=now+1hour", "--deadline=now+1minute"], "--begin leave no time for the job"),
        (["--kill-on-invalid-dep=maybe"], "is not yes or no"),
    ],
)
def test_what_cannot_be_is_refused_with_its_option(gpus, words, says):
    done = gpus.run("fgsub", *words, "--wrap", "true")
    assert (done.status, done.out) == (Exit.USAGE, "")
    assert says in done.err


def test_a_chain_of_jobs_runs_in_its_order(gpus):
    first = sub(gpus, "--wrap", "echo 1 >>order; sleep 0.1")
    second = sub(gpus, f"--dependency=afterok:{first}", "--wrap", 'echo 2 "$FG_JOB_DEPENDENCY" >>order')
    third = sub(gpus, "--hold", "--dependency=last", "--wrap", "echo 3 >>order; exit 1")
    never = sub(gpus, f"--dependency=afterok:{third}", "--wrap", "echo 4 >>order")
    gone = sub(gpus, f"--dependency=afterok:{third}", "--kill-on-invalid-dep=yes", "--wrap", "echo 5 >>order")
    assert gpus.run("fgctl", "release", third).status == 0
    assert gpus.run("fgwait", first, second, third, gone).status == 1
    assert (gpus.path / "order").read_text() == f"1\n2 afterok:{first}\n3\n"
    row = lines(gpus, "fgq", "-h", "-o", "%i %r %E")
    assert row == [f"{never} DependencyNeverSatisfied afterok:{third}"]
    assert "can never be met" in gpus.run("fgctl", "show", "job", never).out


def test_a_job_begins_when_its_time_comes_and_not_before(gpus):
    """The loop is woken by its timer: nothing else happens."""
    later = sub(gpus, "--begin=now+1hour", "--wrap", "true")
    assert "not before " in lines(gpus, "fgq", "-h", "-O", "Why:60")[0]
    assert gpus.run("fgcancel", later).status == 0
    job = sub(gpus, "--begin=now+2", "--wrap", "true")
    assert gpus.run("fgwait", job).status == 0
    about = gpus.job(int(job))
    assert about["started_at"] >= about["request"]["begin"]


def test_a_requeued_job_adds_to_its_output_and_is_told_how_often(gpus):
    script = "echo run $FG_RESTART_COUNT; [ $FG_RESTART_COUNT = 1 ] || exec sleep 1000"
    job = sub(gpus, "--output=out", "--wrap", script)
    until_written(gpus.path / "out", "run 0\n")
    assert gpus.run("fgctl", "requeue", job).status == 0
    assert gpus.run("fgwait", job).status == 0
    text = (gpus.path / "out").read_text().splitlines()
    assert (text[0], text[-1]) == ("run 0", "run 1")
    assert "DUE TO JOB REQUEUE ***" in text[1]
    assert lines(gpus, "fgacct", "-n", "-P", "-j", job, "-o", "Restarts,State") == ["1|COMPLETED"]


def test_a_suspended_job_stands_still_and_says_what_it_keeps(gpus):
    job = gpus.running(share=5000)
    (pid,) = gpus.client.call(protocol.ListPids(id=job)).pids
    assert gpus.run("fgctl", "suspend", str(job)).status == 0
    until_stopped(pid)
    assert lines(gpus, "fgq", "-h", "-t", "S", "-o", "%i %t %g") == [f"{job} S 0"]
    assert "Why=suspended; keeps 8192M on GPU 0" in gpus.run("fgctl", "show", "job", str(job)).out
    assert gpus.run("fgctl", "resume", str(job)).status == 0
    until_stopped(pid, is_stopped=False)
    assert lines(gpus, "fgq", "-h", "-o", "%t") == ["R"]


def test_the_output_of_a_task_is_followed_from_before_it_has_a_row(gpus):
    gate = gpus.running(share=10_000)
    array = sub(gpus, "--gpus=1", "--array=3-5", "--wrap", "echo task $FG_ARRAY_TASK_ID")
    done = gpus.run("fgtail", f"{array}_4")
    assert done.err.startswith(f"fgtail: error: job {array}_4 is pending")
    with subprocess.Popen(
        [sys.executable, "-m", "fgsched.cli.fgtail", "-F", f"{array}_4"],
        stdout=subprocess.PIPE,
        text=True,
        env=gpus.environ,
    ) as tail:
        gpus.client.ask("cancel", ids=[gate])
        assert tail.communicate(timeout=PATIENCE)[0] == "task 4\n"
    assert gpus.run("fgwait", array).status == 0
    assert "is an array of 3 rows" in gpus.run("fgtail", array).err


def test_how_many_tasks_run_is_changed_by_hand(gpus):
    array = sub(gpus, "--gpus=0.1", "--array=0-3%1", "--wrap", "exec sleep 1000")
    count = len(lines(gpus, "fgq", "-h", "-t", "R,CF"))
    assert count == 1
    assert gpus.run("fgctl", "update", f"job={array}", "ArrayTaskThrottle=3").status == 0
    assert len(lines(gpus, "fgq", "-h", "-t", "R,CF")) == 3
    assert gpus.run("fgctl", "update", f"job={array}", "arraytaskthrottle=x").status == Exit.USAGE
