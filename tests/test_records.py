"""A request as JSON: it comes back as it was, and nothing else gets in."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import ValidationError, to_builtins

from fgsched.domain.errors import BadUsage
from fgsched.domain.job import WHOLE, Demand, EarlySignal, Request, read_request
from fgsched.store.rows import parse_request, request_text

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
    assert read_request(to_builtins(request)) == request
    assert parse_request(request_text(request)) == request


def test_fields_at_their_default_are_left_out():
    assert to_builtins(Request(name="x")) == {"name": "x"}
    assert to_builtins(Request(name="x", demand=Demand(gpus=1))) == {"name": "x", "demand": {"gpus": 1}}


WRONG = [
    ([], "request: Expected `object`, got `array`"),
    ({}, "request: Object missing required field `name`"),
    ({"name": 1}, "request: Expected `str`, got `int` - at `$.name`"),
    ({"name": "x\0y"}, r"request: Expected `str` matching regex '^[^\\x00]*$' - at `$.name`"),
    ({"name": "x" * 256}, "request: Expected `str` of length <= 255 - at `$.name`"),
    ({"nam": "x"}, "request: Object contains unknown field `nam`"),
    ({"demand": None}, "request: Expected `object`, got `null` - at `$.demand`"),
    ({"demand": []}, "request: Expected `object`, got `array` - at `$.demand`"),
    ({"demand": {"gpus": -1}}, "request: Expected `int` >= 0 - at `$.demand.gpus`"),
    ({"demand": {"gpus": True}}, "request: Expected `int`, got `bool` - at `$.demand.gpus`"),
    ({"demand": {"gpus": 1.5}}, "request: Expected `int`, got `float` - at `$.demand.gpus`"),
    ({"demand": {"share": WHOLE + 1}}, "request: Expected `int` <= 10000 - at `$.demand.share`"),
    ({"demand": {"memory_part": WHOLE + 1}}, "request: Expected `int` <= 10000 - at `$.demand.memory_part`"),
    ({"demand": {"memory": 2**63}}, "request: Expected `int` <= 9223372036854775807 - at `$.demand.memory`"),
    ({"demand": {"host_memory": 2**70}}, "- at `$.demand.host_memory`"),
    ({"demand": {"cpus": 0}}, "request: Expected `int` >= 1 - at `$.demand.cpus`"),
    ({"demand": {"resources": [["a", 0]]}}, "request: Expected `int` >= 1 - at `$.demand.resources[0][1]`"),
    ({"demand": {"resources": [["a", 1], ["a", 2]]}}, "request: resources names a resource twice"),
    ({"time_limit": -2}, "request: Expected `int` >= -1 - at `$.time_limit`"),
    ({"time_limit": 366 * 86400 + 1}, "request: Expected `int` <= 31622400 - at `$.time_limit`"),
    ({"umask": 0o1000}, "request: Expected `int` <= 511 - at `$.umask`"),
    ({"early_signal": {"signal": 65}}, "request: Expected `int` <= 64 - at `$.early_signal.signal`"),
    (
        {"early_signal": {"signal": 1, "target": "nobody"}},
        "target='nobody' is not one of all, shell, children",
    ),
    ({"early_signal": 7}, "request: Expected `object | null`, got `int` - at `$.early_signal`"),
    ({"tier": "glass"}, "tier='glass' is not one of driver, mig, shim, watchdog, none"),
    ({"gpu_compute": "soft"}, "gpu_compute='soft' is not one of hard, fair, none"),
    ({"chdir": "here"}, "request: chdir='here' is not absolute"),
    ({"output": "\u20ac" * 1366}, "request: output is longer than 4095 bytes"),
    ({"args": None}, "request: Expected `array`, got `null` - at `$.args`"),
    ({"args": ["a", 1]}, "request: Expected `str`, got `int` - at `$.args[1]`"),
    ({"args": ["a\0"]}, "- at `$.args[0]`"),
    ({"args": ["a" * 2**20] * 3}, "request: args have more than 2097152 characters"),
    ({"args": [""] * 32_769}, "request: Expected `array` of length <= 32768 - at `$.args`"),
    ({"rlimits": None}, "request: Expected `array`, got `null` - at `$.rlimits`"),
    ({"rlimits": [[1, 2]]}, "request: Expected `array` of length 3, got 2 - at `$.rlimits[0]`"),
    ({"rlimits": [[1, 2, "3"]]}, "request: Expected `int`, got `str` - at `$.rlimits[0][2]`"),
    ({"rlimits": [[1, -2, 3]]}, "request: Expected `int` >= -1 - at `$.rlimits[0][1]`"),
    ({"rlimits": [[16, 0, 0]]}, "request: Expected `int` <= 15 - at `$.rlimits[0][0]`"),
    ({"rlimits": [[-1, 0, 0]]}, "request: Expected `int` >= 0 - at `$.rlimits[0][0]`"),
    ({"rlimits": [[1, 0, 0]] * 17}, "request: Expected `array` of length <= 16 - at `$.rlimits`"),
]


@pytest.mark.parametrize(("record", "says"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_value_is_refused_and_its_field_named(record, says):
    base = {} if record == {} else {"name": "x"}
    with pytest.raises(BadUsage) as error:
        read_request(base | record if isinstance(record, dict) else record)
    assert says in str(error.value)


EDGES = [
    {"demand": {"gpus": 1024, "share": WHOLE, "memory": 2**63 - 1, "memory_part": WHOLE, "cpus": 65536}},
    {"time_limit": 366 * 86400, "umask": 0o777, "early_signal": {"signal": 64, "before": 65535}},
    {"name": "x" * 255, "args": ["a" * 2**20, "b" * 2**20], "rlimits": [[15, -1, 2**63 - 1]] * 16},
    {"name": "caf\udce9", "output": "\u20ac" * 1365},
]


@pytest.mark.parametrize("record", EDGES, ids=range(len(EDGES)))
def test_a_value_at_the_edge_of_its_range_is_accepted(record):
    assert (
        to_builtins(read_request({"name": "x"} | record)).items() >= {"name": record.get("name", "x")}.items()
    )


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
        wanted = read_request(json.loads(text))
    except BadUsage:
        with pytest.raises((BadUsage, ValidationError)):
            parse_request(text)
    else:
        assert [parse_request(text) for _ in range(2)] == [wanted, wanted]


NO_JSON = ["", "{", '{"name": "a"', '{"name": "a",}', '{"name": "a"} x', '{"name": "a\tb"}']


@pytest.mark.parametrize("text", NO_JSON)
def test_what_is_no_json_is_no_record(text):
    with pytest.raises(json.JSONDecodeError):
        parse_request(text)
