"""A request as JSON: it comes back as it was, and nothing else gets in."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgsched.domain.errors import BadUsage
from fgsched.domain.job import WHOLE, Demand, EarlySignal, Request
from fgsched.jobs.records import from_record, parse_record, to_record

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
requests = st.builds(
    Request,
    name=texts,
    comment=texts,
    demand=st.builds(
        Demand,
        gpus=st.integers(0, 9),
        share=st.integers(0, WHOLE),
        memory=st.integers(0, 2**40),
        gpu_type=texts,
    ),
    time_limit=st.integers(0, 10**6),
    early_signal=st.none() | st.builds(EarlySignal, signal=st.integers(1, 64), target=st.just("shell")),
    rlimits=st.lists(st.tuples(st.integers(0, 15), st.integers(-1, 9), st.integers(-1, 9)), max_size=3).map(
        tuple
    ),
    args=st.lists(texts, max_size=3).map(tuple),
    append=st.booleans(),
)


@given(requests)
def test_a_request_comes_back_as_it_was(request):
    assert from_record(to_record(request)) == request


def test_fields_at_their_default_are_left_out():
    assert to_record(Request(name="x")) == {"name": "x"}
    assert to_record(Request(name="x", demand=Demand(gpus=1))) == {"name": "x", "demand": {"gpus": 1}}


WRONG = [
    ([], "request: not an object"),
    ({}, "missing"),
    ({"name": 1}, "name='1' has the wrong type"),
    ({"name": "x\0y"}, "name holds a NUL"),
    ({"name": "x" * 256}, "name is longer than 255 characters"),
    ({"nam": "x"}, "unknown field 'nam'"),
    ({"demand": None}, "demand: not an object"),
    ({"demand": []}, "demand: not an object"),
    ({"demand": {"gpus": -1}}, "gpus=-1 is not between 0 and 1024"),
    ({"demand": {"gpus": True}}, "gpus='True' has the wrong type"),
    ({"demand": {"gpus": 1.0}}, "gpus='1.0' has the wrong type"),
    ({"demand": {"share": WHOLE + 1}}, "share=10001 is not between"),
    ({"demand": {"memory_part": WHOLE + 1}}, "memory_part=10001 is not between"),
    ({"demand": {"memory": 2**63}}, "is not between"),
    ({"demand": {"host_memory": 2**63}}, "is not between"),
    ({"demand": {"cpus": 0}}, "cpus=0 is not between 1 and 65536"),
    ({"time_limit": -2}, "time_limit=-2 is not between"),
    ({"time_limit": 366 * 86400 + 1}, "is not between"),
    ({"umask": 0o1000}, "is not between"),
    ({"early_signal": {"signal": 65}}, "signal=65 is not between 1 and 64"),
    ({"early_signal": {"signal": 1, "target": "nobody"}}, "not one of all, shell, children"),
    ({"early_signal": 7}, "early_signal='7' has the wrong type"),
    ({"chdir": "here"}, "is not absolute"),
    ({"output": "\u20ac" * 1366}, "a path is longer than 4095 bytes"),
    ({"args": None}, "args is not a list of words"),
    ({"args": ["a", 1]}, "args is not a list of words"),
    ({"args": ["a\0"]}, "args is not a list of words"),
    ({"args": ["a" * 2**20] * 3}, "args are too many or too long"),
    ({"args": [""] * 32_769}, "args are too many or too long"),
    ({"rlimits": None}, "rlimits is not a list"),
    ({"rlimits": [[1, 2]]}, "rlimits is not a list"),
    ({"rlimits": [[1, 2, "3"]]}, "something that is not a number"),
    ({"rlimits": [[1, -2, 3]]}, "something that is not a number"),
    ({"rlimits": [[2**40, 0, 0]]}, "of resources 0 to 15"),
    ({"rlimits": [[16, 0, 0]]}, "of resources 0 to 15"),
    ({"rlimits": [[-1, 0, 0]]}, "of resources 0 to 15"),
    ({"rlimits": [[1, 0, 0]] * 17}, "rlimits are at most 16"),
]


@pytest.mark.parametrize(("record", "says"), WRONG, ids=range(len(WRONG)))
def test_what_is_not_right_is_refused_and_named(record, says):
    base = {} if record == {} else {"name": "x"}
    with pytest.raises(BadUsage) as error:
        from_record(base | record if isinstance(record, dict) else record)
    assert says in str(error.value)


EDGES = [
    {"demand": {"gpus": 1024, "share": WHOLE, "memory": 2**63 - 1, "memory_part": WHOLE, "cpus": 65536}},
    {"time_limit": 366 * 86400, "umask": 0o777, "early_signal": {"signal": 64, "before": 65535}},
    {"name": "x" * 255, "args": ["a" * 2**20, "b" * 2**20], "rlimits": [[15, -1, 2**63 - 1]] * 16},
    {"name": "caf\udce9", "output": "\u20ac" * 1365},
]


@pytest.mark.parametrize("record", EDGES, ids=range(len(EDGES)))
def test_what_is_just_right_is_taken(record):
    assert to_record(from_record({"name": "x"} | record)).items() >= {"name": record.get("name", "x")}.items()


TRICKY = [
    {"name": "a"},
    {"name": "a", "submit_line": "fgsub a", "comment": "b"},
    {"name": 'q"q', "submit_line": 'fgsub --comment=\\"name\\": "x"'},
    {"name": "back\\slash", "comment": '"name": "y"'},
    {"name": "caf\u00e9 \udce9", "comment": "\n"},
    {"name": "x" * 256},
    {"name": "x", "comment": "y" * 4097},
    {"name": "nul\0"},
    {"name": 7},
    {"name": "x", "args": ["name", "submit_line", '"name": "z"']},
    {"name": "x", "demand": {"name": "y"}},
    {"name": "x", "nonsense": 1},
    {'x"name': "y"},
    {"submit_line": "no name"},
    [],
    {"name": "x", "early_signal": {"signal": 10, "before": 5, "target": "all"}, "rlimits": [[1, 2, 3]]},
]


@pytest.mark.parametrize("record", TRICKY, ids=range(len(TRICKY)))
@pytest.mark.parametrize("plain", [True, False])
def test_a_record_in_json_is_read_as_any_other(record, plain):
    """Also after one that differs in its name only."""
    text = json.dumps(record, ensure_ascii=plain)
    try:
        wanted = from_record(json.loads(text))
    except BadUsage:
        with pytest.raises(BadUsage):
            parse_record(text)
    else:
        assert [parse_record(text) for _ in range(2)] == [wanted, wanted]


NO_JSON = ["", "{", '{"name": "a"', '{"name": "a",}', '{"name": "a"} x', '{"name": "a\tb"}']


@pytest.mark.parametrize("text", NO_JSON)
def test_what_is_no_json_is_no_record(text):
    with pytest.raises(json.JSONDecodeError):
        parse_record(text)
