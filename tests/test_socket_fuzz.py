"""Wrong types, nesting and huge numbers in every field of every operation: never a fault of ours."""

import contextlib
import json
import secrets

import pytest

from fgsched import PROTOCOL, codec, protocol
from fgsched.client import connect
from fgsched.domain.errors import BadUsage
from fgsched.lifecycle import arrays

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


def command_line(job):
    later = {"kind": "moment", "text": "18:00", "words": []}
    enter = {"kind": "enter", "words": [], "option": "chdir", "text": "/tmp", "source": "", "line": 0}
    words = ["--hold", "--begin=18:00", "-D", "/tmp", "a.sh", "b"]
    return {
        **{"key": secrets.token_hex(16), "words": words, "cwd": "/", "asks": True, "terminal": False},
        **{"environ": ["A=B", "FGSUB_GPUS=0.5"], "umask": 0o22, "rlimits": [[0, -1, -1]], "checked": True},
        **{"files": {"a.sh": "#!/bin/sh\n#FG --time=5 --array=0-3\n"}},
        "facts": [{"question": later, "words": ["1000000000.5", ""]}, {"question": enter, "words": []}],
    }


# What each operation is given when nothing is wrong; the fuzz replaces every value in it, one at a time.
GIVEN = {
    **{name: lambda job: {"ids": [job]} for name in ("cancel", "hold", "uhold", "release", "wait", "why")},
    **{name: lambda job: {"id": job} for name in ("job", "jobs", "script", "pids", "top")},
    **{name: lambda job: {} for name in ("ping", "gpus", "check", "partitions", "shares", "reservations")},
    "associations": lambda job: {},
    "reconfigure": lambda job: {},
    "log": lambda job: {"job": job},
    "submit": submission,
    "submit_line": command_line,
    "test": submission,
    "signal": lambda job: {"ids": [job], "signal": 10, "target": "all"},
    "join": lambda job: {"ids": [job], "caller": 7},
    "requeue": lambda job: {"ids": [job]},
    "suspend": lambda job: {"ids": [job]},
    "resume_jobs": lambda job: {"ids": [job]},
    "update": lambda job: {"id": job, "changes": {"name": "new", "time_limit": 60, "demand": {"gpus": 1}}},
    "drain": lambda job: {"gpu": 0, "reason": "r"},
    "resume": lambda job: {"gpu": 0},
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
        **{"name": "r", "start": 10**10, "end": 10**10 + 60, "count": 1, "share": 5000, "gpus": []},
        **{"users": ["x"], "groups": [], "accounts": [], "flags": ["maint"]},
    },
    "update_reservation": lambda job: {"name": "r", "start": 10**10, "end": 10**10 + 60, "users": ["x"]},
    "delete_reservation": lambda job: {"name": "r"},
    "back_up": lambda job: {"file": "/nowhere/copy"},
    "archive": lambda job: {"file": "/nowhere/old", "before": 1},
    "gpu_processes": lambda job: {},
    "process": lambda job: {"pid": 1},
    "report": lambda job: {
        **{"report": "me", "since": "-1d", "until": "", "yesterday": False, "week": "", "month": ""},
        **{"by": "user", "rows": 5, "user": ""},
    },
    "queue_line": lambda job: {"name": "squeue", "words": ["-o", "%i %j %u", "-j", str(job)], "usual": ""},
    "adopt": lambda job: {
        **{"key": "k" * 32, "pid": 1, "name": "n", "demand": {"gpus": 1, "share": 5000}, "gpus": [0]},
        **{"time_limit": 60},
    },
    "events": lambda job: {"after": ""},
    "note_warning": lambda job: {"job": job, "policy": "idle", "finding": "no process", "action": "notify"},
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


@pytest.mark.parametrize("operation", sorted(GIVEN))
def test_what_the_fuzz_starts_from_is_a_request(operation):
    assert codec.Decoder(protocol.CALLS).decode(frame(operation, GIVEN[operation](1)).strip())


def test_every_operation_is_tried():
    """But for the one that stops the controller."""
    assert {protocol.name_of(kind) for kind in protocol.CALLS} - {"stop"} == GIVEN.keys()


HOSTILE = {
    "a wrong type": {"nobody": [None]},
    "deep nesting": DEEP,
    "a number out of range": 10**400,
    "half a character": "\ud800",
    "a NUL": "a\0b",
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("kind", protocol.CALLS, ids=protocol.name_of)
def test_a_hostile_value_is_refused_with_the_name_of_its_field(kind, what):
    """Some fields take any number: there is no job, or no GPU, of that number."""
    name = protocol.name_of(kind)
    given, decoder = GIVEN.get(name, lambda job: {})(1), codec.Decoder(protocol.CALLS)
    for field in set(kind.__struct_fields__) - {"v"}:
        try:
            decoder.decode(frame(name, given | {field: HOSTILE[what]}).strip())
        except BadUsage as refused:
            error = refused.cause
        else:
            error = f"`$.{field}" if what == "a number out of range" else "it was taken"
        assert f"`$.{field}" in error


@pytest.mark.parametrize(
    ("name", "changes", "cause"),
    [
        ("cancel", {"reason": "r" * 1025}, "reason has more than 1024 characters (at `$.reason`)"),
        ("submit", {"requests": [{"dependency": "1" * 9000}]}, "dependency has more than 8192 characters"),
        ("create_reservation", {"users": ["u"] * 1025}, "users has more than 1024 values (at `$.users`)"),
    ],
)
def test_a_text_or_a_list_that_is_too_long_is_told_in_words(name, changes, cause):
    given = GIVEN.get(name, lambda job: {})(1) | changes
    with pytest.raises(BadUsage) as refused:
        codec.Decoder(protocol.CALLS).decode(frame(name, given).strip())
    assert (cause in refused.value.cause, refused.value.remedy) == (True, "Shorten it.")


@pytest.mark.parametrize("kind", protocol.CALLS, ids=protocol.name_of)
def test_an_unknown_field_and_very_deep_nesting_are_refused_by_every_operation(kind):
    name, decoder = protocol.name_of(kind), codec.Decoder(protocol.CALLS)
    given = GIVEN.get(name, lambda job: {})(1)
    with pytest.raises(BadUsage, match="unknown field `nobody`"):
        decoder.decode(frame(name, given | {"nobody": 1}).strip())
    whole = frame(name, given).strip()
    with pytest.raises(BadUsage, match="malformed request"):
        decoder.decode(whole[:-1] + b',"nobody":' + b"[" * 50_000 + b"]" * 50_000 + b"}")


def test_what_is_wrong_deep_in_a_submission_is_named_by_its_path():
    given = submission(1) | {"jobs": [[0, 0, 0, True]] * 3 + [[0, 0, 0, "no"]]}
    with pytest.raises(BadUsage, match=r"at `\$\.jobs\[3\]\[3\]`"):
        codec.Decoder(protocol.CALLS).decode(frame("submit", given).strip())
    given = submission(1)
    given["requests"][0]["demand"]["share"] = 10_001
    with pytest.raises(BadUsage, match=r"at `\$\.requests\[0\]\.demand\.share`"):
        codec.Decoder(protocol.CALLS).decode(frame("submit", given).strip())


def test_a_request_of_100_mb_is_refused_and_the_controller_goes_on(home):
    pid = home.client.ask("ping")["pid"]
    with connect(home.paths) as sock:
        sock.settimeout(60)
        with contextlib.suppress(OSError):  # it hangs up before it has read all of it
            sock.sendall(b'{"v":2,"op":"cancel","ids":[' + b"1," * 50_000_000)
        with contextlib.suppress(ConnectionError):
            assert b"a request is longer than 8 MiB" in sock.recv(4096)
    assert home.client.ask("ping")["pid"] == pid


@pytest.mark.parametrize("operation", sorted(GIVEN))
def test_an_operation_given_anything_answers_and_never_with_a_fault_of_ours(home, operation):
    pid = home.client.ask("ping")["pid"]
    job = home.submit(hold=True, share=0)
    if operation == "wait":
        home.client.ask("cancel", ids=[job])
    with connect(home.paths) as sock:
        sock.settimeout(60)
        found = list(answered(sock, frames(operation, job)))
    faults = [(asked[:300], said) for asked, said in found if said.get("error", {}).get("exit") == 7]
    assert faults == []
    about = home.client.ask("ping")
    assert (about["pid"], about["internal_errors"]["count"]) == (pid, 0)


def nested(levels, width, last):
    """A value of so many levels, each with `width` texts; `last` is the innermost text."""
    value = {"last": last}
    for _ in range(levels):
        value = {**{f"text{number}": "x" for number in range(width)}, "next": value}
    return value


@pytest.mark.parametrize("bad", ["\ud800", "a\0b"], ids=["half a character", "a NUL"])
def test_the_place_of_a_bad_text_is_spelled_once_however_much_surrounds_it(monkeypatch, bad):
    """The path of each value would be work for depth times number."""
    spelled, real = [], codec.quoted
    monkeypatch.setattr(codec, "quoted", lambda text: spelled.append(text) or real(text))
    line = frame("update", {"id": 1, "changes": nested(100, 50, bad)}).strip()
    with pytest.raises(BadUsage) as refused:
        codec.Decoder(protocol.CALLS).decode(line)
    assert f"{'.next' * 100}.last`" in refused.value.cause
    assert spelled == ["last", *["next"] * 100, "changes"]


def test_the_name_of_a_single_task_is_read_without_a_list_of_all_tasks(monkeypatch):
    """A request may name thousands; the list of one array has a place for each of its possible tasks."""
    ranges, real = [], arrays._range
    monkeypatch.setattr(arrays, "_range", lambda *words: ranges.append(words) or real(*words))
    names = [arrays.split_reference(f"1_{number}") for number in range(20_000)]
    assert names == [(1, 1 << number) for number in range(20_000)]
    assert ranges == []
    assert arrays.split_reference("1_[3,5]") == (1, 0b101000)
    assert len(ranges) == 2
