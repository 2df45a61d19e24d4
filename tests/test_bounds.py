"""What a user can make the controller hold is bounded: each bound of docs/security.md is exceeded."""

import os
import re
import secrets
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from builders import World, a_gpu
from fgsched.config.load import load
from fgsched.controller import usage
from fgsched.controller.handlers.submission import MAX_JOBS
from fgsched.domain.errors import BadUsage, FgschedError
from fgsched.domain.policy import ChargeAccount, Policy
from fgsched.lifecycle.arrays import MOST as MOST_TASKS
from fgsched.protocol import MAX_IDS
from fgsched.system.paths import Paths
from live_host import living

PAGE = Path(__file__).parent.parent / "docs/security.md"
KIB, MIB = 2**10, 2**20


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with living(tmp_path_factory.mktemp("bounds") / "home") as made:
        made.submit(hold=True, count=3)
        yield made


def submission(*, script="#!/bin/sh\n", environment=None, count=1, **request):
    return {
        "key": secrets.token_hex(16),
        "requests": [{"name": "job", "chdir": "/", **request}],
        "scripts": [script],
        "environments": [{"A": "1"} if environment is None else environment],
        "jobs": [[0, 0, 0, True]] * count,
    }


# what is exceeded -> (the submission that exceeds it, words of the refusal)
SUBMISSIONS = {
    "script": (submission(script="#!/bin/sh\n" + "x" * 4 * MIB), "script"),
    "environment": (submission(environment={"A": "x" * MIB}), "environment is larger than 1 MiB"),
    "variables": (submission(environment={f"V{n}": "x" * 20 for n in range(60_000)}), "larger than 1 MiB"),
    "jobs": (submission(count=MAX_JOBS + 1), f"Submit 1 to {MAX_JOBS}"),
    "tasks of an array": (submission(array=f"0-{MOST_TASKS}"), f"limit {MOST_TASKS - 1}"),
    "array as text": (submission(array=",".join(map(str, range(3000)))), "8192 characters"),
    "dependency": (
        submission(dependency="afterany:" + ":".join(map(str, range(1, 3000)))),
        "8192 characters",
    ),
    "name": (submission(name="x" * 256), "255 characters"),
    "comment": (submission(comment="x" * 4097), "4096 characters"),
    "tag": (submission(wckey="x" * 65), "64 characters"),
    "account": (submission(account="x" * 65), "64 characters"),
    "partitions": (submission(partition="main," * 300), "1024 characters"),
    "arguments": (submission(args=["x"] * 32_769), "32768 values"),
    "bytes of arguments": (submission(args=["x" * MIB] * 3), "2097152 characters"),
    "command line": (submission(submit_line="x" * 65_537), "65536 characters"),
    "path": (submission(output="/" + "x" * 4096), "4095 characters"),
    "addresses of mails": (submission(mail_type="END", mail_user="a" * 2601), "2600 characters"),
    "mounts": (submission(container="/image", container_mounts="/a:/b," * 3000), "16384 characters"),
    "limits of resources": (submission(rlimits=[[0, 1, 1]] * 17), "16 values"),
    "GPUs of a job": (submission(demand={"gpus": 1025}), "1024"),
    "CPUs of a job": (submission(demand={"cpus": 65_537}), "65536"),
    "type of GPUs": (submission(demand={"gpus": 1, "share": 1, "gpu_type": "A" * 256}), "255 characters"),
    "resource of the site": (submission(demand={"resources": [["x" * 65, 1]]}), "64 characters"),
    "key": (submission() | {"key": "k" * 129}, "128 characters"),
}


@pytest.mark.parametrize("bound", SUBMISSIONS)
def test_a_submission_beyond_a_bound_is_refused_and_nothing_of_it_is_kept(home, bound):
    before = len(home.queue("id"))
    beyond, words = SUBMISSIONS[bound]
    with pytest.raises(FgschedError, match=words):
        home.client.ask("submit", **beyond)
    assert len(home.queue("id")) == before


# what is exceeded -> (operation, arguments, words of the refusal)
REQUESTS = {
    "ids": ("cancel", {"ids": [1] * (MAX_IDS + 1)}, f"{MAX_IDS} values"),
    "ids of a question": ("history", {"ids": [1] * 501, "fields": ["id"]}, "500 values"),
    "columns": ("queue", {"fields": ["id"] * 257}, "256 values"),
    "words of a list": ("queue_line", {"name": "fgq", "words": ["x"] * 1025}, "1024 values"),
    "jobs of a wait": ("wait", {"ids": [*range(1, 100_002)]}, "100000 values"),
    "reason": ("drain", {"gpu": 0, "reason": "x" * 1025}, "1024 characters"),
    "names of a reservation": ("create_reservation", {"name": "r", "users": ["x" * 256]}, "255 characters"),
    "comment that is changed": ("update", {"id": 1, "changes": {"comment": "x" * 4097}}, "4096"),
    "dependency that is changed": ("update", {"id": 1, "changes": {"dependency": "1:" * 5000}}, "8192"),
    "reference": ("job", {"id": "1_[" + "0-99999," * 2000 + "1]"}, "is not a job id"),
}


@pytest.mark.parametrize("bound", REQUESTS)
def test_a_request_beyond_a_bound_is_refused(home, bound):
    operation, arguments, words = REQUESTS[bound]
    with pytest.raises(FgschedError, match=words):
        home.client.ask(operation, **arguments)


def test_a_users_open_jobs_and_the_bytes_of_their_scripts_are_bounded(tmp_path):
    config = (
        '[host]\ncpus = 64\n[mail]\nsend = "off"\n[jobs]\nmax_jobs_per_user = 5\nmax_bytes_per_user = "1M"\n'
    )
    with living(tmp_path / "home", config=config) as home:
        home.submit(hold=True, count=5)
        with pytest.raises(FgschedError, match="5"):
            home.submit(hold=True)
        home.client.ask("cancel", ids=[1, 2, 3])
        home.submit("#" + "x" * 600 * KIB, hold=True)
        with pytest.raises(FgschedError, match="limit"):
            home.submit("#" + "y" * 600 * KIB, hold=True)


def test_connections_beyond_the_limit_wait_and_cost_the_controller_no_descriptor(home):
    pid = int(home.paths.lock.read_text())
    home.client.ask("ping")
    with_sockets = []
    try:
        for _ in range(400):
            with_sockets.append(socket.socket(socket.AF_UNIX))
            with_sockets[-1].connect(str(home.paths.socket))
        home.queue("id")
        assert len(os.listdir(f"/proc/{pid}/fd")) < 256 + 64
    finally:
        for each in with_sockets:
            each.close()


def test_a_controller_has_a_bounded_number_of_processes_and_threads(home):
    pid = int(home.paths.lock.read_text())
    for _ in range(20):
        with suppress(FgschedError):
            home.client.ask("report", name="overview", forms=["text"])
    tasks = [int(task) for task in os.listdir(f"/proc/{pid}/task")]
    children = [
        child for task in tasks for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    ]
    assert len(tasks) <= 4
    assert len(children) <= 8


# -- what is kept in memory --------------------------------------------------------------------------------


def test_accounts_that_a_user_invents_are_recorded_up_to_a_number(monkeypatch):
    monkeypatch.setattr(usage, "MOST_ACCOUNTS", 3)
    charges = usage.UsageCharges(World([a_gpu(0)]).store)
    known = Policy(accounts=(ChargeAccount(name="known"),))
    owners = [charges.payer((f"invented{number}", "ann"), known) for number in range(3)]
    for owner in owners:
        charges._usage[owner] = usage.Usage()
    assert charges.payer(("invented9", "ann"), known) == ("", "ann")
    assert charges.payer(("invented0", "ann"), known) == ("invented0", "ann")
    assert charges.payer(("known", "ann"), known) == ("known", "ann")
    assert charges.payer(("invented9", "bob"), known) == ("invented9", "bob")


def test_digests_of_scripts_are_remembered_up_to_a_number():
    world = World([a_gpu(0)])
    blobs = world.store.blobs
    with world.store.write():
        for number in range(3000):
            blobs.put(b"#%d" % number)
    assert len(blobs._ids) <= 1025


def test_a_configuration_of_more_than_a_mebibyte_is_refused(tmp_path):
    (tmp_path / "fgsched.toml").write_text("#" * (MIB + 1))
    tmp_path.chmod(0o700)
    with pytest.raises(BadUsage, match="1 MiB"):
        load(Paths.find({"FG_HOME": str(tmp_path), "HOME": str(tmp_path)}, os.geteuid()))


# -- the page ----------------------------------------------------------------------------------------------


def rows():
    table = PAGE.read_text().split("\n## Bounds\n")[1].split("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()[5:]
        if line.startswith("|")
    ]


def test_each_bound_of_the_page_says_what_happens_and_names_a_test_that_exists():
    assert len(rows()) >= 30
    for of, bound, what, shown in rows():
        assert of
        assert re.search(r"\d|`\w+`|first|group|request|quarter", bound), of
        assert what, of
        for name in re.findall(r"`(tests/\w+\.py|scripts/bench/\w+)`", shown) or pytest.fail(of):
            assert (PAGE.parent.parent / name).exists(), name
