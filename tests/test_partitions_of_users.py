"""Partitions, priorities and shares where there are several users: who may what, and who comes first."""

import pytest

from fakehost import CONFIG, hosting, why_not
from fgsched.domain.errors import Exit

_WHY_NOT = why_not()
pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "can be made")]
SITE = (
    CONFIG
    + """
[partitions.lab]
groups = ["lab"]
max_pending_per_user = 2
[partitions.main]
[qos.normal]
[qos.high]
priority = 10
users = ["alice"]
[accounts.physics]
users = ["alice", "bob"]
gpu_minutes = 60
[users.alice]
account = "physics"
"""
)


@pytest.fixture(scope="module")
def host():
    with hosting(config=SITE) as one:
        yield one


def submit(host, user, *options):
    file = host.home(user) / "job.sh"
    file.write_text("#!/bin/sh\nexit 0\n")
    return host.run(user, "fgsub", "--parsable", "--hold", *options, file)


def test_a_partition_of_a_group_is_for_its_members(host):
    assert submit(host, "alice", "-p", "lab").status == 0
    assert submit(host, "dave", "-p", "lab").status == 0
    refused = submit(host, "bob", "-p", "lab")
    assert refused.status == Exit.REFUSED
    assert "bob may not use partition lab" in refused.err
    assert submit(host, "carol", "-p", "lab").status == 0, "she operates"


def test_no_more_jobs_of_a_user_wait_in_a_partition_than_may(host):
    done = [submit(host, "dave", "-p", "lab") for _ in range(3)]  # another test may have submitted one
    assert (done[0].status, done[-1].status) == (0, Exit.REFUSED)
    assert "dave in partition lab has 2 jobs that wait" in done[-1].err
    assert submit(host, "alice", "-p", "lab").status == 0, "hers are counted apart"


def test_only_operators_change_partitions_and_raise_priorities(host):
    for words in (("create", "partition=x"), ("update", "partition=lab", "state=down"), ("reconfigure",)):
        assert host.run("bob", "fgctl", *words).status == Exit.NOT_PERMITTED
    assert submit(host, "bob", "-p", "main", "--nice=-1").status == Exit.NOT_PERMITTED
    mine = int(submit(host, "bob", "-p", "main", "--nice=5").out)
    assert host.run("bob", "fgctl", "update", f"job={mine}", "nice=-1").status == Exit.NOT_PERMITTED
    assert host.run("bob", "fgctl", "update", f"job={mine}", "nice=7").status == 0
    assert host.run("carol", "fgctl", "update", f"job={mine}", "nice=-1").status == 0
    assert host.job(mine)["request"]["nice"] == -1
    assert host.run("alice", "fgctl", "top", str(mine)).status == Exit.NOT_PERMITTED


def test_accounts_and_qualities_are_those_of_their_users(host):
    found = host.job(int(submit(host, "alice", "-p", "main").out))
    assert found["request"]["account"] == "physics", "her own, as the site says"
    assert "dave may not charge account physics" in submit(host, "dave", "-p", "main", "-A", "physics").err
    assert "bob may not use --qos=high" in submit(host, "bob", "-p", "main", "-q", "high").err
    assert submit(host, "alice", "-p", "main", "-q", "high").status == 0


def test_who_used_much_comes_after_who_used_nothing(host):
    host.ended("bob", "sleep 0.5", "-p", "main", "--gpus=1")
    late = int(submit(host, "bob", "-p", "main", "--gpus=1").out)
    early = int(submit(host, "dave", "-p", "main", "--gpus=1").out)
    host.run("carol", "fgctl", "reconfigure")  # shares are worked out anew
    order = [
        int(line.split()[0])
        for line in host.run("dave", "fgprio", "-h", "-p", "main", "-u", "bob,dave").lines
    ]
    assert order.index(early) < order.index(late)
    assert [line.split()[1] for line in host.run("carol", "fgshare", "-h", "-a").lines if "bob" in line]


def test_a_quota_of_gpu_minutes_keeps_a_job_back_that_might_pass_it(host):
    job_id = int(submit(host, "bob", "-p", "main", "-A", "physics", "--gpus=1", "-t", "2h").out)
    host.run("bob", "fgctl", "release", str(job_id))
    found = host.job(job_id)
    assert (found["state"], found["reason"]) == ("PENDING", "AssocGrpGRESMinutes")
    why = host.run("bob", "fgq", "-h", "-j", str(job_id), "-O", "Why:0").out
    assert "limit reached: may use 120 GPU minutes; account physics has " in why
    assert why.endswith(" (limit 60)\n")
    assert host.run("bob", "fgctl", "update", f"job={job_id}", "timelimit=30").status == 0
    assert host.over(job_id)["state"] == "COMPLETED"


def test_a_reservation_is_for_those_it_names_and_operators_make_it(host):
    words = ("create", "reservation=course", "starttime=now+1day", "duration=2h", "groups=lab", "gpu=0")
    assert host.run("bob", "fgctl", *words).status == Exit.NOT_PERMITTED
    made = host.run("carol", "fgctl", *words)
    assert made.status == 0, made.err
    options = ("--reservation=course", "--time=10", "--gpus=0.5")
    assert submit(host, "dave", *options).status == 0, "he is of the group"
    refused = submit(host, "bob", *options)
    assert (refused.status, "bob may not use reservation course" in refused.err) == (Exit.REFUSED, True)
    assert host.run("bob", "fgctl", "delete", "reservation=course").status == Exit.NOT_PERMITTED
    assert "Groups=lab" in host.run("bob", "fgctl", "show", "reservation", "-o").out
    assert host.run("carol", "fgctl", "delete", "reservation=course").status == 0
    again = host.run("carol", "fgctl", "create", "reservation=course", "duration=2h", "users=bob", "gpu=0")
    assert "of dave waits for a reservation of this name" in again.err
