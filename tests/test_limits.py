"""What a job counts in, and when one more is too many."""

import pytest

from fgsched.domain.errors import Refused
from fgsched.domain.policy import ChargeAccount, Limits, Partition, Policy, Qos, UserPolicy
from fgsched.domain.states import Reason
from fgsched.scheduling.limits import LimitedUser, UsageCount, check_pending, counts_in, scopes
from fgsched.views.wording import why

ANN, BOB = LimitedUser("ann", "lab", "high"), LimitedUser("bob", "lab", "high")
ONE = Limits(running=1, pending=1, share=5000, gpu_seconds=600)


OF_PARTITION = ("total", "per_user", "per_account")


def site(**capped):
    """A site in which only one kind of scope has limits."""
    return Policy(
        partitions=(
            Partition(
                name="main",
                **{one: capped[one] for one in ("total", "per_user", "per_account") if one in capped},
            ),
        ),
        qos=(Qos(name="high", total=capped.get("qos", Limits()), per_user=capped.get("qos_user", Limits())),),
        accounts=(ChargeAccount(name="lab", limits=capped.get("account", Limits())),),
        users=(UserPolicy(name="ann", limits=capped.get("user", Limits())),),
    )


SCOPES = [
    ("total", Reason.MAX_JOBS, Reason.MAX_GPUS, True, "partition main"),
    ("per_user", Reason.MAX_JOBS_PER_USER, Reason.MAX_GPUS_PER_USER, False, "ann in partition main"),
    (
        "per_account",
        Reason.MAX_JOBS_PER_ACCOUNT,
        Reason.MAX_GPUS_PER_ACCOUNT,
        True,
        "account lab in partition main",
    ),
    ("qos", Reason.MAX_JOBS, Reason.MAX_GPUS, True, "quality of service high"),
    ("qos_user", Reason.MAX_JOBS_PER_USER, Reason.MAX_GPUS_PER_USER, False, "ann in quality of service high"),
    ("account", Reason.ACCOUNT_MAX_JOBS, Reason.ACCOUNT_MAX_GPUS, True, "account lab"),
    ("user", Reason.ACCOUNT_MAX_JOBS, Reason.ACCOUNT_MAX_GPUS, False, "ann"),
]
every_scope = pytest.mark.parametrize(("scope", "jobs", "gpus", "for_bob", "label"), SCOPES)


@every_scope
def test_one_more_job_is_too_many_and_the_reason_says_of_what(scope, jobs, gpus, for_bob, label):
    usage_count = UsageCount(site(**{scope: Limits(running=1)}))
    assert usage_count.blocking_limit("main", ANN, 0, 0) is None
    usage_count.take("main", ANN, 0, 0)
    shortfall = usage_count.blocking_limit("main", ANN, 0, 0)
    assert (shortfall.reason, shortfall.total, shortfall.scope) == (jobs, 1, label)
    assert (usage_count.blocking_limit("main", BOB, 0, 0) is not None) is for_bob


@every_scope
def test_gpus_are_counted_by_the_share_that_is_held(scope, jobs, gpus, for_bob, label):
    usage_count = UsageCount(site(**{scope: Limits(share=5000)}))
    usage_count.take("main", ANN, 3000, 0)
    assert usage_count.blocking_limit("main", ANN, 2000, 0) is None
    shortfall = usage_count.blocking_limit("main", ANN, 2500, 0)
    assert (shortfall.reason, shortfall.need, shortfall.remaining, shortfall.total) == (
        gpus,
        2500,
        2000,
        5000,
    )
    assert why(shortfall) == f"limit reached: needs 0.25 of a GPU; {label} may use 0.2 more (limit 0.5)"


@pytest.mark.parametrize("scope", ["account", "user"])
def test_minutes_are_what_was_used_what_runs_may_use_and_what_is_asked(scope):
    key = (scope, "lab" if scope == "account" else "ann")
    usage_count = UsageCount(site(**{scope: Limits(gpu_seconds=600)}), {key: 200.0})
    usage_count.take("main", ANN, 0, 100.0)
    assert usage_count.blocking_limit("main", ANN, 0, 300.0) is None
    shortfall = usage_count.blocking_limit("main", ANN, 0, 301.0)
    assert (shortfall.reason, shortfall.need, shortfall.remaining, shortfall.total) == (
        Reason.ACCOUNT_GPU_MINUTES,
        6,
        5,
        10,
    )
    usage_count = UsageCount(site(**{scope: Limits(gpu_seconds=600)}), {key: 600.0})
    assert usage_count.blocking_limit("main", ANN, 0, 0.0), (
        "nothing is left, not even for a job without a time limit"
    )


@every_scope
def test_jobs_that_wait_are_counted_at_the_submission(scope, jobs, gpus, for_bob, label):
    policy = site(**{scope: Limits(pending=2)})
    check_pending(["main"], ANN, 2, policy, lambda key: 0)
    with pytest.raises(Refused, match=f"{label} has 1 jobs that wait") as refused:
        check_pending(["main"], ANN, 2, policy, lambda key: 1)
    assert refused.value.remedy == "2 is the limit, and 2 more were submitted. An array counts its tasks."


@every_scope
def test_a_waiting_job_falls_under_the_scopes_that_a_running_one_would(scope, jobs, gpus, for_bob, label):
    (one,) = scopes("main", ANN, site(**{scope: ONE}))
    assert counts_in(one.key, "other,main", ANN)
    assert counts_in(one.key, "main", BOB) is for_bob
    if one.key[0] == "partition":
        assert not counts_in(one.key, "other", ANN)


def test_where_there_are_no_limits_nothing_is_counted():
    policy = site()
    assert not policy.is_capped
    assert scopes("main", ANN, policy) == ()
