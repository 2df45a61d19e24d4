"""Partitions, limits, priorities and shares, as commands meet them."""

import json
import os
import pwd
import signal

import pytest

from awaiting import until
from fgsched import protocol
from fgsched.domain.errors import Exit
from live_host import living

ME = pwd.getpwuid(os.geteuid()).pw_name
CONFIG = """
[host]
cpus = 64
[partitions.night]
max_time = "2h"
time = "30"
max_running_per_user = 1
[partitions]
half_gpu.gpus = 0.5
[partitions.second]
devices = "1"
[partitions.closed]
users = ["nobody-of-that-name"]
accounts = ["lab"]
[resources]
matlab = 2
neuron = { count = 4, visible_env = "NEURON_CORES" }
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with living(tmp_path_factory.mktemp("site") / "home", config=CONFIG) as home:
        yield home


def submitted(home, *words):
    done = home.run("fgsub", "--parsable", *words)
    assert done.status == 0, done.err
    return int(done.out)


def job(home, job_id):
    return home.job(job_id)


def script(home, text):
    file = home.path / "job.sh"
    file.write_text(f"#!/bin/sh\n{text}\n")
    return str(file)


def test_one_line_makes_a_partition_that_gives_half_a_gpu(site):
    job_id = submitted(site, "-p", "half_gpu", "-H", script(site, "exit 0"))
    assert job(site, job_id)["request"]["demand"]["share"] == 5000
    said = site.run("fgsub", "-p", "half_gpu", "--explain-options", script(site, "exit 0")).out
    assert ["--gpus", "0.5", "(partition", "half_gpu)"] in [line.split() for line in said.splitlines()]


def test_a_partition_gives_no_gpu_to_who_names_memory_or_none(site):
    for words in (["--gpu-mem=1G"], ["--gpus=0"]):
        job_id = submitted(site, "-p", "half_gpu", "-H", *words, script(site, "exit 0"))
        assert job(site, job_id)["request"].get("demand", {}).get("share", 0) == 0


def test_a_reservation_that_does_not_exist_is_refused_unless_the_site_ignores_it(site, tmp_path):
    words = ("--reservation=course", "--hold", "--wrap", "true")
    refused = site.run("fgsub", *words)
    assert (refused.status, "invalid reservation: course" in refused.err) == (Exit.REFUSED, True)
    with living(tmp_path / "home", config='[jobs]\nunknown_reservation = "warn"\n') as home:
        taken = home.run("fgsub", *words)
        assert taken.status == 0, taken.err
        assert "--reservation=course: ignored, no such reservation here" in taken.err
        assert home.job(1)["request"].get("reservation", "") == ""


def test_an_unknown_partition_is_refused_with_those_there_are(site):
    done = site.run("fgsub", "-p", "nigth", script(site, "exit 0"))
    assert done.status == Exit.REFUSED
    assert done.err.splitlines() == [
        "fgsub: error: Batch job submission failed: invalid partition: nigth",
        "This host has night, half_gpu, second, closed, main.",
    ]


def test_a_job_gets_the_time_limit_of_its_partition_and_no_more(site):
    assert job(site, submitted(site, "-p", "night", "-H", script(site, "")))["request"]["time_limit"] == 1800
    done = site.run("fgsub", "-p", "night", "-t", "3h", script(site, ""))
    assert "requested time limit 3:00:00 is above that of partition night" in done.err
    assert "--time=2:00:00" in done.err


def test_no_time_limit_is_none_or_the_longest_of_the_partition(site):
    asked = (("--time=unlimited",), ("--time=0", "-p", "night"), ("-p", "night"))
    jobs = [submitted(site, *words, "-H", script(site, "exit 0")) for words in asked]
    assert [job(site, one)["request"].get("time_limit", 0) for one in jobs] == [0, 7200, 1800]
    waits = submitted(site, "-p", "night", "-H", script(site, "exit 0"))
    assert site.run("fgctl", "update", f"job={waits}", "timelimit=unlimited").status == 0
    assert job(site, waits)["request"]["time_limit"] == 7200


def test_what_a_partition_is_not_for_is_said(site, monkeypatch):
    assert site.run("fgctl", "update", "partition=second", "state=drain").status == 0
    done = site.run("fgsub", "-p", "second", script(site, ""))
    assert "partition second takes no jobs: it is drained" in done.err
    assert site.run("fgctl", "update", "partition=second", "state=").status == 0
    assert "second" in site.run("fginfo").out


def test_of_a_list_the_partition_that_starts_a_job_is_its_partition(site):
    busy = site.running(partition="night", share=0)
    job_id = submitted(site, "-p", "night,second", "--gpus=1", script(site, "exit 0"))
    site.wait(job_id)
    assert job(site, job_id)["partition"] == "second", "the user has a job in night, which is the most"
    assert job(site, job_id)["allocated"][0]["gpu"] == 1
    site.client.ask("cancel", ids=[busy])


def test_a_limit_is_told_with_its_figures_and_keeps_nobody_else_back(site):
    busy = site.running(partition="night", share=0)
    waits = site.submit(partition="night", share=0)
    passes = site.ended(partition="main", share=0)
    assert job(site, passes)["state"] == "COMPLETED"
    found = job(site, waits)
    assert found["reason"] == "QOSMaxJobsPerUserLimit"
    limit = "already has 1 running job (limit 1)"
    assert site.why(waits) == f"limit reached: {ME} in partition night {limit}"
    site.client.ask("cancel", ids=[busy, waits])
    site.wait(busy, waits)


def test_countable_resources_come_as_indices_and_run_out(site):
    text = 'echo "$FG_GRES_NEURON $NEURON_CORES $FG_GRES_MATLAB"'
    job_id = submitted(site, "--gres=neuron:2,matlab", "-o", "out", script(site, text))
    site.wait(job_id)
    assert (site.path / "out").read_text() == "0,1 0,1 0\n"
    demand = {"resources": [["matlab", 2]]}
    busy = site.running(demand=demand)
    waits = site.submit(demand=demand)
    assert (job(site, waits)["reason"], site.why(waits)) == ("Licenses", "needs 2 matlab, 0 left")
    site.client.ask("cancel", ids=[busy, waits])
    site.wait(busy, waits)
    done = site.run("fgsub", "--gres=matlab:3", script(site, ""))
    assert "requested configuration not available: 3 matlab of 2" in done.err


def test_partitions_are_shown(site):
    lines = site.run("fginfo", "-h").lines
    assert [line.split()[0] for line in lines] == ["night", "half_gpu", "second", "closed", "main*"]
    assert lines[0].split()[2] == "2:00:00"
    shown = site.run("fgctl", "show", "partition", "night", "second").out
    assert "MaxTime=02:00:00" in shown or "MaxTime=2:00:00" in shown
    assert "MaxRunningPerUser=1" in shown
    assert "Gpus=1  TotalGpus=1" in shown
    record = json.loads(site.run("fginfo", "--json").out)["partitions"][2]
    assert (record["name"], record["cards"]) == ("second", [1])


def test_the_queue_is_shown_in_the_order_of_the_partitions(site):
    names = [submitted(site, "-p", name, "-H", script(site, "exit 0")) for name in ("second", "night")]
    several = submitted(site, "-p", "second,half_gpu", "-H", script(site, "exit 0"))
    listed = ",".join(map(str, [*names, several]))
    assert site.run("fgq", "-h", "-j", listed, "-o", "%P").lines == ["night", "second,half_gpu", "second"]
    assert site.run("fgq", "-h", "-j", listed, "-S", "-P", "-o", "%i").lines[-1] == str(names[1])


def test_a_partition_is_made_changed_and_removed_while_jobs_wait(home):
    assert home.run("fgctl", "create", "partition=debug", "MaxTime=10", "gpus=0.25").status == 0
    held = submitted(home, "-p", "debug", "-H", script(home, ""))
    assert job(home, held)["request"]["time_limit"] == 600
    refused = home.run("fgctl", "delete", "partition=debug")
    assert f"job {held} is in partition debug" in refused.err
    home.client.ask("cancel", ids=[held])
    assert home.run("fgctl", "update", "partition=debug", "max_tiem=5").err.startswith(
        "fgctl: error: a partition has no 'max_tiem'"
    )
    assert (
        "max_time=soon is not a time" in home.run("fgctl", "update", "partition=debug", "max_time=soon").err
    )
    assert home.run("fgctl", "delete", "partition=debug").status == 0
    assert "debug" not in home.run("fginfo").out
    assert "is in the configuration" in home.run("fgctl", "delete", "partition=main").err


def test_a_created_partition_outlives_the_controller(home):
    home.run("fgctl", "create", "partition=debug", "gpus=0.25")
    held = submitted(home, "-p", "debug", "-H", script(home, ""))
    assert home.run("fgsched", "stop").status == 0
    assert "debug" in home.run("fginfo").out
    assert job(home, held)["request"]["partition"] == "debug"


def test_the_configuration_is_read_anew_and_a_bad_one_changes_nothing(home):
    running, waits = home.running(), submitted(home, "-H", script(home, ""))
    file = home.path / "fgsched.toml"
    file.write_text("[partitions.a]\nmax_gpus = 0.5\n[gpus]\nheadroom = '1G'\n")
    done = home.run("fgctl", "reconfigure")
    assert (done.status, done.err) == (
        0,
        "fgctl: gpus.headroom takes effect after the controller is restarted\n",
    )
    assert "job violates a policy limit" in home.run("fgsub", "-p", "a", "--gpus=1", script(home, "")).err
    file.write_text("[host]\ncpus = 64\n[partitions.a]\nmax_gpus = 'many'\n")
    done = home.run("fgctl", "reconfigure")
    assert f'{file}:4: partitions.a.max_gpus = "many" is not an amount of GPUs' in done.err
    assert "a " in home.run("fginfo", "-h").out
    states = {job.id: job.state.value for job in home.queue("id", "state")}
    assert states == {running: "RUNNING", waits: "PENDING"}


def test_a_hang_up_reads_the_configuration_too(home):
    def partitions():
        return [one.partition.name for one in home.client.call(protocol.ListPartitions()).partitions]

    before = partitions()
    (home.path / "fgsched.toml").write_text("[host]\ncpus = 64\n[partitions.night]\n")
    os.kill(int(home.paths.lock.read_text()), signal.SIGHUP)
    until(home.path, lambda: partitions() != before)  # the log tells of the new configuration
    assert (before, partitions()) == (["main"], ["night", "main"])


def test_jobs_of_a_partition_that_is_gone_wait_for_it(home):
    file = home.path / "fgsched.toml"
    file.write_text("[host]\ncpus = 64\n[partitions.night]\n")
    home.run("fgctl", "reconfigure")
    waits = submitted(home, "-p", "night", "-H", script(home, "exit 0"))
    file.write_text("[host]\ncpus = 64\n")
    home.run("fgctl", "reconfigure")
    home.run("fgctl", "release", str(waits))
    assert job(home, waits)["reason"] == "PartitionDown"
    file.write_text("[host]\ncpus = 64\n[partitions.night]\n")
    home.run("fgctl", "reconfigure")
    assert home.wait(waits)[0]["state"] == "COMPLETED"


def test_priorities_are_shown_with_their_parts(site):
    first = submitted(site, "-p", "main", "-H", "--nice=50", script(site, ""))
    second = submitted(site, "-p", "night", "-H", script(site, ""))
    lines = site.run("fgprio", "-j", f"{first},{second}").lines
    headings = "JOBID PARTITION PRIORITY AGE FAIRSHARE JOBSIZE PARTPRIO QOS NICE"
    assert " ".join(lines[0].split()) == headings
    assert [line.split()[0] for line in lines[1:]] == [str(second), str(first)]
    assert lines[2].split()[-1] == "50"
    long = "JOBID PARTITION USER ACCOUNT QOSNAME PRIORITY AGE FAIRSHARE JOBSIZE PARTPRIO QOS NICE"
    assert site.run("fgprio", "-l").lines[0].split() == long.split()
    norm = site.run("fgprio", "-n", "-h", "-j", str(second)).out.split()
    assert norm[6] == "1.0000000", "the first partition has all of its factor"
    record = json.loads(site.run("fgprio", "--json", "-j", str(first)).out)["jobs"][0]
    assert record["nice"] == 50
    assert site.run("fgprio", "-j", "4711").status == Exit.NO_SUCH_JOB
    assert "1000000" in site.run("fgprio", "-w").out


def test_the_shares_tell_who_used_what(site):
    site.ended(share=5000)
    account, mine = site.run("fgshare", "-h").lines
    assert account.split()[0] == "(null)"
    assert mine.split()[1:4] == [ME, "1", "1.000000"]
    assert site.run("fgshare", "-P", "-m").lines[0].startswith("Account|User|RawShares")


def test_top_puts_a_job_before_its_owners_others_and_no_further(home):
    ids = [submitted(home, "-H", "--gpus=1", script(home, "")) for _ in range(3)]
    assert home.run("fgctl", "top", str(ids[2])).status == 0
    order = [int(line.split()[0]) for line in home.run("fgprio", "-h").lines]
    assert order == [ids[2], ids[0], ids[1]]
    assert [job.nice for job in home.queue("nice", id=ids)][2] == 0


def test_only_operators_raise_a_priority(home):
    assert "is not a number" in home.run("fgsub", "--nice=x", script(home, "")).err
    job_id = submitted(home, "-H", "--nice=-5", script(home, ""))  # whoever runs the controller operates it
    assert home.run("fgq", "-h", "-o", "%y", "-j", str(job_id)).out == "-5\n"
