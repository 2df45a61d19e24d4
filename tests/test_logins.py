"""The limits of a login, as pam_limits(8) and limits.conf(5) have them."""

import resource

import pytest

from fgsched.lifecycle.launchspec import merge_limits
from fgsched.system import logins
from fgsched.system.logins import LoginOwner, Logins, limits_of, parse, parse_limits, precedence, value_of

ANN = LoginOwner("ann", 1001, {"users": 100, "lab": 4100})
ROOT = LoginOwner("root", 0, {"root": 0})
NOFILE, NPROC, CORE = resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE
BASE = {NOFILE: (1024, 4096), NPROC: (-1, -1), CORE: (0, -1)}


def of(text, who=ANN):
    return limits_of(who, parse(text), BASE)


@pytest.mark.parametrize(
    ("domain", "close"),
    [
        ("ann", 3), ("bob", 0), ("*", 1), ("@lab", 2), ("@staff", 0), ("1000:", 3), ("1002:", 0),
        ("500:1001", 3), ("500:1000", 0), (":1001", 3), (":1000", 0), ("@4000:5000", 2), ("@:100", 2),
        ("@5000:", 0), ("%lab", 0), (":", 0), ("a:b", 0), ("-1:5", 0),
    ],
)  # fmt: skip
def test_a_domain_names_a_user_by_name_group_range_or_everybody(domain, close):
    assert precedence(domain, ANN) == close


@pytest.mark.parametrize(("domain", "close"), [("root", 3), ("*", 0), ("@root", 0), ("0:", 0)])
def test_only_its_name_is_for_root(domain, close):
    assert precedence(domain, ROOT) == close


@pytest.mark.parametrize(
    ("item", "text", "value"),
    [
        ("nofile", "65536", 65536), ("memlock", "64", 65536), ("cpu", "2", 120), ("as", "unlimited", -1),
        ("stack", "infinity", -1), ("core", "-1", -1), ("nproc", "many", None), ("nproc", "-5", None),
        ("nice", "-10", 30), ("nice", "19", 1), ("msgqueue", "819200", 819200), ("as", "9" * 30, -1),
    ],
)  # fmt: skip
def test_a_value_is_in_the_unit_of_its_item(item, text, value):
    assert value_of(item, text) == value


def test_what_is_no_limit_of_ours_is_passed_over():
    text = (
        "# comment\n\n* soft nofile 1 # why\n* both nofile 2\n* soft maxlogins 3\n* hard nofile\nx y z w v\n"
    )
    assert parse(text) == [("*", "soft", "nofile", "1")]


def test_without_a_line_a_login_has_the_limits_of_pid_1():
    assert of("") == BASE


def test_the_closest_line_wins_and_of_equals_the_last():
    text = "ann - nofile 10\n@lab - nofile 20\n* - nofile 30\n* - nproc 40\n* - nproc 50\n"
    assert of(text) == {NOFILE: (10, 10), NPROC: (50, 50), CORE: (0, -1)}


def test_soft_and_hard_are_found_each_for_itself():
    assert of("* hard nofile 500\nann soft nofile 100\n")[NOFILE] == (100, 500)


def test_a_soft_limit_is_never_above_the_hard_one():
    assert of("* hard nofile 500\n")[NOFILE] == (500, 500)
    assert of("* soft nofile 8000\n")[NOFILE] == (4096, 4096)
    assert of("* hard nproc 70\n")[NPROC] == (70, 70)


def test_a_user_can_be_spared_every_limit_of_the_files():
    assert of("* - nofile 5\nann -\n") == BASE
    assert of("* - nofile 5\n* -\n")[NOFILE] == (5, 5)


def test_the_limits_of_pid_1_are_read():
    text = (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max open files            1024                 524288               files     \n"
        "Max nice priority         0                    0                    \n"
        "Max core file size        0                    unlimited            bytes     \n"
        "Max something new         1                    2                    things    \n"
    )
    assert parse_limits(text) == {NOFILE: (1024, 524288), resource.RLIMIT_NICE: (0, 0), CORE: (0, -1)}


def test_where_pid_1_tells_nothing_the_limits_are_the_controllers(monkeypatch, tmp_path):
    monkeypatch.setattr(logins, "_INIT_LIMITS", tmp_path / "none")
    for name in ("_FILE", "_FOLDER"):
        monkeypatch.setattr(logins, name, tmp_path / name)
    found = Logins().of("nobody", 65534, {})
    assert found == {number: resource.getrlimit(number) for number in range(16)}


def test_this_host_is_read_whole():
    found = Logins().of("nobody", 65534, {"nogroup": 65534})
    assert sorted(found) == list(range(16))


def test_a_job_has_its_submitted_limits_within_those_of_the_login():
    wanted = [(NOFILE, 100, 200), (NPROC, -1, -1), (CORE, -1, -1)]
    assert merge_limits({NOFILE: (1024, 4096), NPROC: (50, 60), CORE: (0, 7)}, wanted) == (
        (CORE, 7, 7),
        (NPROC, 60, 60),
        (NOFILE, 100, 200),
    )


def test_a_request_that_names_no_limits_has_those_of_the_login():
    assert merge_limits(BASE, ()) == ((CORE, 0, -1), (NPROC, -1, -1), (NOFILE, 1024, 4096))
