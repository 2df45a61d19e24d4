"""What a site takes, from whom, and what it makes of a request."""

import sys

import pytest

from builders import GIB, a_demand, a_gpu
from fgsched.domain.errors import BadUsage, FgschedError, NotPermitted, Refused
from fgsched.domain.job import NO_LIMIT, WHOLE, Demand, HostLimits, Request
from fgsched.domain.policy import (
    Access,
    ChargeAccount,
    Defaults,
    Partition,
    PerJobLimits,
    Policy,
    Qos,
    Resource,
    UserPolicy,
)
from fgsched.scheduling.admission import AdmissionContext, Submitter, admit

ANN, BOB = Submitter(user="ann", groups=("lab",)), Submitter(user="bob")
ROOT = Submitter(user="root", is_operator=True)
POLICY = Policy(
    partitions=(
        Partition(name="main", most=PerJobLimits(share=2 * WHOLE, gpu_memory=8 * GIB, cpus=4, memory=GIB)),
        Partition(name="lab", is_default=False, access=Access(groups=("lab",), users=("eve",))),
        Partition(name="paid", is_default=False, access=Access(accounts=("gold",))),
        Partition(name="short", is_default=False, defaults=Defaults(time=60), most=PerJobLimits(time=600)),
        Partition(name="long", is_default=False, most=PerJobLimits(time=6000)),
        Partition(name="small", is_default=False, gpus=(1,), share_step=5000),
        Partition(name="off", is_default=False, state="drain"),
    ),
    qos=(Qos(), Qos(name="high", access=Access(users=("ann",)))),
    accounts=(ChargeAccount(name="gold", users=("ann",)), ChargeAccount(name="iron")),
    users=(UserPolicy(name="ann", account="iron"),),
    resources=(Resource(name="matlab", count=2),),
)
GROUND = AdmissionContext(
    gpus=[a_gpu(0, memory=64 * GIB), a_gpu(1)],
    limits=HostLimits(cpus=8, host_memory=4 * GIB),
    policy=POLICY,
    default_time=3600,
)


def taken(submitter=BOB, ground=GROUND, **asked):
    return admit(Request(name="x", **asked), submitter, ground)


def refusal(submitter=BOB, **asked):
    with pytest.raises(FgschedError) as caught:
        taken(submitter, **asked)
    return caught.value


def test_what_a_request_leaves_open_is_filled_in():
    found = taken()
    assert (found.partition, found.account, found.qos, found.time_limit) == ("main", "", "normal", 3600)
    assert taken(ANN).account == "iron", "her own, as the site says"


def test_admission_does_not_check_again_what_was_checked_when_the_request_was_made():
    checks = []

    def profile(frame, event, _):
        if event == "call" and frame.f_code is Request.__post_init__.__code__:
            checks.append(frame.f_locals["self"])

    sys.setprofile(profile)
    try:
        request = Request(name="x")
        completed = admit(request, BOB, GROUND)
    finally:
        sys.setprofile(None)
    assert checks == [request]
    assert (request.partition, completed.partition) == ("", "main")


def test_no_limit_is_the_longest_that_the_partition_gives():
    assert taken(time_limit=NO_LIMIT).time_limit == 0
    assert taken(time_limit=NO_LIMIT, partition="short").time_limit == 600


def test_the_first_partition_of_a_list_gives_the_time():
    assert taken(partition="short,long").time_limit == 60
    assert taken(partition="long,short").time_limit == 3600
    assert taken(partition="short").partition == "short"
    assert taken(partition="short,short,long").partition == "short,long"
    never = AdmissionContext(gpus=GROUND.gpus, limits=GROUND.limits, policy=POLICY)
    assert taken(ground=never, partition="long").time_limit == 6000, "no default: the longest there is"


@pytest.mark.parametrize(
    ("asked", "cause", "remedy"),
    [
        (
            {"partition": "nope"},
            "invalid partition: nope",
            "This host has main, lab, paid, short, long, small, off.",
        ),
        ({"partition": "main,nope"}, "invalid partition: nope", "This host has main"),
        ({"partition": "lab"}, "bob may not use partition lab", "fginfo"),
        ({"partition": "paid"}, "partition paid is not for account", "Use --account=gold."),
        ({"partition": "off"}, "partition off takes no jobs: it is drained", "fginfo"),
        ({"partition": "short", "time_limit": 601}, "requested time limit", "--time=10:00"),
        ({"account": "lead"}, "invalid account: lead", "There is iron."),
        ({"account": "gold"}, "bob may not charge account gold", "There is iron."),
        ({"qos": "top"}, "invalid quality of service: top", "This host has normal, high."),
        ({"qos": "high"}, "bob may not use --qos=high", "Leave --qos out."),
        ({"nice": -1}, "--nice=-1: only operators raise a job's priority", "Give 0 or more."),
        ({"demand": Demand(resources=(("matlab", 3),))}, "3 matlab of 2", "--gres=matlab:2"),
        ({"demand": Demand(resources=(("fpga", 1),))}, "there is no fpga here", "This host has gpu, matlab."),
        (
            {"demand": a_demand(memory=9 * GIB)},
            "9216M of GPU memory asked of partition main",
            "--gpu-mem=8192M",
        ),
        ({"demand": Demand(cpus=5)}, "5 CPUs asked of partition main", "--cpus-per-task=4"),
        ({"demand": Demand(host_memory=2 * GIB)}, "2048M of host memory asked", "--mem=1024M"),
        ({"demand": a_demand(WHOLE, gpus=2), "partition": "small"}, "this host has 1 GPU", "--gpus=1"),
        (
            {"demand": a_demand(2500), "partition": "small"},
            "not a multiple of this site's step 0.5",
            "0.5 or 1",
        ),
        ({"partition": ","}, "names no partition", ""),
    ],
)
def test_what_is_not_taken_is_told_with_what_would_be(asked, cause, remedy):
    error = refusal(**asked)
    assert cause in error.cause
    assert remedy in error.remedy


def test_a_partition_is_for_its_users_and_the_members_of_its_groups():
    assert taken(ANN, partition="lab").partition == "lab"
    assert taken(Submitter(user="eve"), partition="lab").partition == "lab"
    assert taken(ANN, partition="paid", account="gold").account == "gold"


def test_an_operator_may_use_what_others_may_not():
    assert taken(ROOT, partition="lab", qos="high", nice=-5).nice == -5
    assert isinstance(refusal(ROOT, partition="off"), Refused), "and a drained one is drained for all"


def test_who_may_not_is_told_apart_from_what_is_wrong():
    assert isinstance(refusal(nice=-1), NotPermitted)
    assert isinstance(refusal(demand=a_demand(2500), partition="small"), BadUsage)


def test_one_partition_of_a_list_has_to_be_able_to_run_the_job():
    assert taken(partition="small,main", demand=a_demand(WHOLE, 8 * GIB, gpus=2)).partition == "small,main"


def test_where_a_site_declares_neither_accounts_nor_qualities_any_are_labels():
    ground = AdmissionContext(gpus=(), limits=GROUND.limits)
    found = taken(ground=ground, account="physics", qos="urgent")
    assert (found.account, found.qos) == ("physics", "urgent")
