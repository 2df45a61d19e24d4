"""What a request may do follows from the account, the settings and the policy of that moment."""

import pytest
from msgspec.structs import replace

from builders import a_gpu, a_job
from fgsched import protocol
from fgsched.config.load import Config
from fgsched.controller.caller import Callers
from fgsched.controller.handlers.submission import Rules, read_submission
from fgsched.domain.errors import FgschedError
from fgsched.domain.job import HostLimits, Request
from fgsched.domain.policy import Access, Partition, Policy
from fgsched.domain.text import quoted
from fgsched.launch.launcher import _owner
from fgsched.mail.letters import MailSettings
from fgsched.scheduling.admission import AdmissionContext, Submitter
from fgsched.system.hostusers import HostUser

ANN = HostUser(name="ann", gid=100, home="/", groups=(100, 7), names=("users", "lab"))
OPEN, SITE = Policy(), Config()
OF_GROUPS = Policy(partitions=(Partition(access=Access(groups=("lab",))),))


def test_a_caller_is_made_again_for_another_account_configuration_or_policy():
    callers = Callers(own_uid=0)
    first = callers.of(1001, 5, ANN, SITE, OPEN)
    assert callers.of(1001, 5, ANN, SITE, OPEN) is first
    assert (first.name, first.gid, first.is_operator, first.groups) == ("ann", 100, False, ())
    assert callers.of(1001, 5, None, SITE, OPEN).name == "1001"
    assert callers.of(1001, 5, ANN, Config(operators=("ann",)), OPEN).is_operator
    assert callers.of(1001, 5, ANN, Config(private_data=True), OPEN).is_confined
    assert callers.of(1001, 5, ANN, SITE, OF_GROUPS).groups == ("users", "lab")
    assert callers.of(1001, 5, ANN, SITE, OPEN) == first


@pytest.mark.parametrize(("gid", "group"), [(7, 7), (100, 100), (5, 100), (0, 100)])
def test_the_group_of_the_process_is_that_of_its_jobs_if_the_user_is_a_member(gid, group):
    assert Callers(own_uid=0).of(1001, gid, ANN, SITE, OPEN).gid == group
    job = a_job(7, uid=1001, user="ann", gid=gid)
    assert _owner(job, ANN, become=True).gid == group


def test_callers_are_told_apart_by_uid_and_without_an_account_by_group():
    callers = Callers(own_uid=7)
    assert [callers.of(uid, gid, None, SITE, OPEN).gid for uid, gid in [(1, 2), (1, 3), (1, 2)]] == [2, 3, 2]
    assert [callers.of(uid, 2, None, SITE, OPEN).is_operator for uid in (6, 7, 0)] == [False, True, True]
    assert {callers.of(uid, 2, None, SITE, OPEN).uid for uid in range(1000)} == {*range(1000)}


HOST = AdmissionContext(gpus=(a_gpu(0),), limits=HostLimits(cpus=4, host_memory=2**30), tier="shim")
RULES = Rules(max_script=2**20, default_time=0, tiers=("shim",))
SUBMIT = protocol.Submit(
    key="key-of-16-letters",
    requests=[Request(name="x")],
    scripts=["#!/bin/sh\n"],
    environments=[{"A": "1"}],
    jobs=[(0, 0, 0, False)],
)
ANN_SUBMITS = Submitter(user="ann")
CHANGES = [
    (Request(name="x", tier="shim"), replace(RULES, tiers=("none",))),
    (
        Request(name="x", mail_user="ann@elsewhere.example"),
        replace(RULES, mail=MailSettings(way="sendmail")),
    ),
    (Request(name="x"), replace(RULES, max_script=3)),
]


@pytest.mark.parametrize(("request_", "later"), CHANGES, ids=["tiers", "mail", "script"])
def test_an_equal_submission_is_checked_by_the_settings_of_its_time(request_, later):
    batch = replace(SUBMIT, requests=[request_])
    (job,) = read_submission(batch, ANN_SUBMITS, HOST, RULES)
    assert job.request.name == "x"
    with pytest.raises(FgschedError):
        read_submission(batch, ANN_SUBMITS, HOST, later)


@pytest.mark.parametrize("name", ["", "A=B", "A\0", "A"])
def test_what_is_no_variable_of_an_environment_is_named(name):
    wrong = replace(SUBMIT, environments=[{"B": "2", name: "x\0"[: 1 + (name == "A")]}])
    with pytest.raises(FgschedError) as refused:
        read_submission(wrong, ANN_SUBMITS, HOST, RULES)
    assert str(refused.value).startswith(f"submit: {quoted(name)} is not a variable")
