"""Wrong types, nesting and huge numbers in every field of every operation: never a fault of ours."""

import json
import re
import secrets

import pytest

from fgsched import PROTOCOL, protocol
from fgsched.client import connect
from live_host import ROOT

DEEP = [[[[[[[[{"a": [None]}]]]]]]]]
VALUES = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308),
    *(
        "",
        " ",
        "x" * 5000,
        "1",
        "1_2",
        "1_[0-9]",
        "9" * 30,
        "\0",
        "\n",
        "é\udce9",
        "../..",
        "%s",
        "{}",
        "now",
    ),
    *(
        [],
        [[1]],
        [[]],
        [{}],
        [None],
        [True],
        [1.5],
        [10**400],
        ["1_[0-99999999]"],
        ["x"],
        DEEP,
        list(range(300)),
    ),
    *({}, {"": ""}, {"a": DEEP}, {"id": [[1]]}, {"id": [{}]}, {"name": [None]}, {"user": "x"}),
]


def submission(job):
    demand = {"gpus": 1, "share": 2500, "memory": 0, "cpus": 1, "host_memory": 0, "gpu_type": ""}
    return {
        "key": "k" * 32,
        "requests": [{"name": "fuzz", "chdir": "/", "demand": demand}],
        "scripts": ["#!/bin/sh\n"],
        "environments": [{"A": "B"}],
        "jobs": [[0, 0, 0, True]],
    }


# What each operation is given when nothing is wrong; the fuzz replaces every value in it, one at a time.
GIVEN = {
    **{name: lambda job: {"ids": [job]} for name in ("cancel", "hold", "uhold", "release", "wait", "why")},
    **{name: lambda job: {"id": job} for name in ("job", "jobs", "script", "pids", "top")},
    **{name: lambda job: {} for name in ("ping", "gpus", "check", "partitions", "shares", "reservations")},
    "reconfigure": lambda job: {},
    "log": lambda job: {"job": job},
    "submit": submission,
    "test": submission,
    "signal": lambda job: {"ids": [job], "signal": 10, "target": "all"},
    "requeue": lambda job: {"ids": [job]},
    "suspend": lambda job: {"ids": [job]},
    "resume_jobs": lambda job: {"ids": [job]},
    "update": lambda job: {"id": job, "changes": {"name": "new", "time_limit": 60, "demand": {"gpus": 1}}},
    "drain": lambda job: {"gpu": 0, "gpus": [0], "reason": "r", "note": "n"},
    "resume": lambda job: {"gpu": 0, "gpus": [0]},
    "queue": lambda job: {"fields": ["id", "name"], "where": {"id": [job], "user": ["x"]}, "recent": True},
    "history": lambda job: {
        **{"fields": ["id", "name"], "since": 0, "until": 1, "uid": 0, "after": 0, "ids": [job]},
    },
    "priorities": lambda job: {},
    "starts": lambda job: {},
    "create_partition": lambda job: {"name": "p", "values": {"gpus": "0.5", "max_time": "60"}},
    "update_partition": lambda job: {"name": "p", "values": {"gpus": "0.5"}},
    "delete_partition": lambda job: {"name": "p"},
    "create_reservation": lambda job: {
        **{
            "name": "r",
            "start": 1e10,
            "end": 1e10 + 60,
            "duration": 60,
            "gpus": 1,
            "cards": [],
            "users": ["x"],
        },
        **{"groups": [], "accounts": [], "flags": []},
    },
    "update_reservation": lambda job: {"name": "r", "start": 1e10, "end": 1e10 + 60, "users": ["x"]},
    "delete_reservation": lambda job: {"name": "r"},
}


def changed(given):
    """The given thing with each of its values replaced by each of VALUES, one at a time."""
    yield from VALUES
    if isinstance(given, dict):
        for name, value in given.items():
            for other in changed(value):
                yield given | {name: other}
            yield {key: one for key, one in given.items() if key != name}
    elif isinstance(given, list):
        for place, value in enumerate(given):
            for other in changed(value):
                yield [*given[:place], other, *given[place + 1 :]]


def frame(operation, arguments):
    return json.dumps({"v": PROTOCOL, "op": operation} | arguments).encode() + b"\n"


def frames(operation, job):
    given = GIVEN[operation](job)
    yield frame(operation, given)
    for arguments in changed(given):
        if isinstance(arguments, dict) and "op" not in arguments and "v" not in arguments:
            if operation == "submit":
                arguments = {"key": secrets.token_hex(16)} | {
                    k: v for k, v in arguments.items() if v != "k" * 32
                }
            yield frame(operation, arguments)


def answered(sock, asked):
    """The answer to each, asked one after the other."""
    with sock.makefile("rb") as answers:
        for one in asked:
            sock.sendall(one)
            while "progress" in (answer := json.loads(answers.readline())):
                pass
            yield one, answer


def test_every_operation_is_tried():
    """But for the one that stops the controller. What is known is read from where it is told."""
    handlers = ROOT / "fgsched/controller/handlers"
    known = {
        name
        for file in handlers.glob("*.py")
        for name in re.findall(r'"(\w+)": self\.\w+[,}\n]', file.read_text())
    }
    typed = {protocol.name_of(kind) for kind in protocol.CALLS}
    assert (known | typed) - {"stop", "started_at"} == GIVEN.keys()


@pytest.mark.parametrize("operation", sorted(GIVEN))
def test_an_operation_given_anything_answers_and_never_with_a_fault_of_ours(home, operation):
    pid = home.client.ask("ping")["pid"]
    job = home.submit(hold=True, share=0)
    if operation == "wait":
        home.client.ask("cancel", ids=[job])
    with connect(home.places) as sock:
        sock.settimeout(60)
        found = list(answered(sock, frames(operation, job)))
    faults = [(asked[:300], said) for asked, said in found if said.get("error", {}).get("exit") == 7]
    assert faults == []
    about = home.client.ask("ping")
    assert (about["pid"], about["internal_errors"]["count"]) == (pid, 0)
