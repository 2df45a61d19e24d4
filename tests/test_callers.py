"""What a request may do follows from the account, the settings and the policy of that moment."""

import pytest
from msgspec.structs import replace

from builders import a_gpu, a_job
from fgsched import protocol
from fgsched.config.load import Config
from fgsched.controller.caller import Callers
from fgsched.controller.handlers.submit import Admission, AdmissionGround
from fgsched.domain.errors import FgschedError
from fgsched.domain.job import HostLimits, Request
from fgsched.domain.policy import Access, Partition, Policy
from fgsched.domain.text import quoted
from fgsched.launch.launcher import _owner
from fgsched.mail.letters import NO_MAIL, MailSettings
from fgsched.scheduling.admission import AdmissionContext, Submitter
from fgsched.system.accounts import Account

ANN = Account(name="ann", gid=100, home="/", groups=(100, 7), names=("users", "lab"))
OPEN, SITE = Policy(), Config()
OF_GROUPS = Policy(partitions=(Partition(access=Access(groups=("lab",))),))


def test_a_caller_is_made_again_for_another_account_configuration_or_policy():
    callers = Callers(own=0)
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
    assert Callers(own=0).of(1001, gid, ANN, SITE, OPEN).gid == group
    job = a_job(7, uid=1001, user="ann", gid=gid)
    assert _owner(job, ANN, become=True).gid == group


def test_callers_are_told_apart_by_uid_and_without_an_account_by_group():
    callers = Callers(own=7)
    assert [callers.of(uid, gid, None, SITE, OPEN).gid for uid, gid in [(1, 2), (1, 3), (1, 2)]] == [2, 3, 2]
    assert [callers.of(uid, 2, None, SITE, OPEN).is_operator for uid in (6, 7, 0)] == [False, True, True]
    assert {callers.of(uid, 2, None, SITE, OPEN).uid for uid in range(1000)} == {*range(1000)}


CONTEXT = AdmissionContext(gpus=(a_gpu(0),), limits=HostLimits(cpus=4, host_memory=2**30))
GROUND = AdmissionGround(CONTEXT, ("shim",), "shim", NO_MAIL, 2**20)
CHANGES = [
    (Request(name="x", tier="shim"), replace(GROUND, tiers=("none",))),
    (
        Request(name="x", mail_user="ann@elsewhere.example"),
        replace(GROUND, mail=MailSettings(way="sendmail")),
    ),
]


@pytest.mark.parametrize(("request_", "later"), CHANGES, ids=["tiers", "mail"])
def test_an_admitted_request_is_checked_again_when_the_settings_change(request_, later):
    admission, ann = Admission(), Submitter(user="ann")
    admitted = admission.admit(request_, ann, GROUND)
    assert admission.admit(request_, ann, GROUND) is admitted
    with pytest.raises(FgschedError):
        admission.admit(request_, ann, later)
    assert admission.admit(request_, ann, GROUND) == admitted


SUBMIT = protocol.Submit(
    key="key-of-16-letters",
    requests=[Request(name="x")],
    scripts=["#!/bin/sh\n"],
    environments=[{"A": "1"}],
    jobs=[(0, 0, 0, False)],
)
OTHERS = [
    {"requests": [Request(name="y")]},
    {"scripts": ["#!/bin/bash\n"]},
    {"environments": [{"A": "2"}]},
    {"jobs": [(0, 0, 0, True)]},
]


def test_an_equal_submission_is_read_once_as_long_as_the_settings_are_the_same():
    admission, ann, bob = Admission(), Submitter(user="ann"), Submitter(user="bob")
    jobs = admission.read(SUBMIT, ann, GROUND)
    assert admission.read(replace(SUBMIT, key="another-of-16-let"), ann, GROUND) is jobs
    assert admission.read(SUBMIT, bob, GROUND) is not jobs
    with pytest.raises(FgschedError):
        admission.read(SUBMIT, ann, replace(GROUND, max_script=3))


@pytest.mark.parametrize("other", OTHERS, ids=[next(iter(other)) for other in OTHERS])
def test_a_submission_that_differs_from_the_last_one_is_read(other):
    admission, ann = Admission(), Submitter(user="ann")
    admission.read(SUBMIT, ann, GROUND)
    assert admission.read(replace(SUBMIT, **other), ann, GROUND) == Admission().read(
        replace(SUBMIT, **other), ann, GROUND
    )


def test_a_large_submission_is_not_kept():
    admission, ann = Admission(), Submitter(user="ann")
    large = replace(SUBMIT, scripts=["#!/bin/sh\n" + "#" * 2**15])
    assert admission.read(large, ann, GROUND) is not admission.read(large, ann, GROUND)


@pytest.mark.parametrize("name", ["", "A=B", "A\0", "A"])
def test_what_is_no_variable_of_an_environment_is_named(name):
    wrong = replace(SUBMIT, environments=[{"B": "2", name: "x\0"[: 1 + (name == "A")]}])
    with pytest.raises(FgschedError) as refused:
        Admission().read(wrong, Submitter(user="ann"), GROUND)
    assert str(refused.value).startswith(f"submit: {quoted(name)} is not a variable")
