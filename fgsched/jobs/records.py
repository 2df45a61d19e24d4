"""A request as JSON, in the store and on the socket. Reading checks every field and lets nothing else in."""

import json
import re
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from functools import lru_cache
from itertools import chain, zip_longest
from typing import Any

from fgsched.domain.copies import copier
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import NO_LIMIT, WHOLE, Demand, EarlySignal, Request
from fgsched.domain.text import is_plain, quoted
from fgsched.jobs.enforcement import WORDS
from fgsched.jobs.pacing import check_word

_BIG = 2**63 - 1
NICEST = 2**31 - 3  # Slurm's bound
_RANGES: dict[str, tuple[int, int]] = {
    "gpus": (0, 1024),
    "share": (0, WHOLE),
    "memory": (0, _BIG),
    "memory_part": (0, WHOLE),
    "cpus": (1, 65536),
    "host_memory": (0, _BIG),
    "time_limit": (NO_LIMIT, 366 * 86400),
    "signal": (1, 64),
    "before": (0, 65535),
    "umask": (0, 0o777),
    "nice": (-NICEST, NICEST),
    "throttle": (0, 10**6),
    "begin": (0, 2**40),
    "deadline": (0, 2**40),
}
_PATH = 4095
_KINDS = 16  # of resource limits that the kernel has
_WORDS = 2 * 2**20  # characters of all arguments together: what the kernel takes, with the environment
_LENGTHS = {
    **{"name": 255, "partition": 1024, "account": 64, "qos": 64, "reservation": 64, "gpu_type": 64},
    **{"comment": 4096, "submit_line": 65536, "array": 8192, "dependency": 8192, "kill_invalid": 3},
}
_PLAIN = ("partition", "account", "qos", "reservation", "array", "dependency")  # neither paths nor free text
_TARGETS = {"all", "shell", "children"}


def to_record(request: Request) -> dict[str, Any]:
    """The request as plain values; fields that have their default are left out."""
    record = _differing(request)
    if "demand" in record:
        record["demand"] = _differing(request.demand)
    if request.early_signal is not None:
        record["early_signal"] = asdict(request.early_signal)
    return record


def _differing(value: Any) -> dict[str, Any]:
    """Only the fields that differ from their default."""
    return {
        field.name: here
        for field in fields(value)
        if (here := getattr(value, field.name)) != field.default or field.default is MISSING
    }


def from_record(record: Any) -> Request:
    """The request that `record` tells of; BadUsage names the first field that is not right."""
    values = _checked(record, Request, "request")
    if "demand" in values:
        demand = _checked(values["demand"], Demand, "demand")
        if "resources" in demand:
            demand["resources"] = _counts(demand["resources"])
        values["demand"] = Demand(**demand)
    early = values.get("early_signal")
    if early is not None:
        values["early_signal"] = EarlySignal(**_checked(early, EarlySignal, "early_signal"))
        if values["early_signal"].target not in _TARGETS:
            raise BadUsage(f"request: target={early['target']!r} is not one of all, shell, children")
    values["rlimits"] = _triples(values.get("rlimits", ()))
    values["args"] = _words(values.get("args", ()))
    try:
        request = Request(**values)
    except TypeError as error:
        raise BadUsage(f"request: {error}") from None
    _check_paths(request)
    if request.tier and request.tier not in WORDS:
        raise BadUsage(f"request: tier={request.tier!r} is not one of {', '.join(WORDS)}")
    check_word(request.gpu_compute)
    return request


_FREE = re.compile(r'"(name|submit_line|comment)": "([^"\\]*)"')  # text in which jobs that are alike differ
_SHORT = 255  # characters that any of these may have
_renamed = copier(Request)


def parse_record(text: str) -> Request:
    """The request in the JSON text of a record; BadUsage or ValueError.

    Requests that differ in their name, comment and command line only are checked once: of 100,000 jobs that
    wait, mostly few others differ.
    """
    pieces = _FREE.split(text)  # text, name, value, text, name, value … text
    names, values = pieces[1::3], pieces[2::3]
    free = "".join(values)
    if not free.isprintable() or (len(free) > _SHORT and _is_too_long(names, values)):
        return from_record(json.loads(text))
    del pieces[2::3]
    return _renamed(_parsed(tuple(pieces)), dict(zip(names, values, strict=True)))


def _is_too_long(names: Sequence[str], values: Sequence[str]) -> bool:
    return any(len(value) > _LENGTHS[name] for name, value in zip(names, values, strict=True))


@lru_cache(maxsize=4096)
def _parsed(pieces: Sequence[str]) -> Request:
    """Of a record with the same text wherever it may differ."""
    names = (f'"{name}": "x"' for name in pieces[1::2])
    return from_record(json.loads("".join(chain(*zip_longest(pieces[::2], names, fillvalue="")))))


def check_plain(request: Request) -> None:
    """Refuse a request that names a partition, an account … in bytes that are not UTF-8; BadUsage."""
    for name in _PLAIN:
        value = getattr(request, name)
        if not is_plain(value):
            raise BadUsage(f"request: {name}={quoted(value)} is not UTF-8, or has control characters")


def _check_paths(request: Request) -> None:
    for path in (request.chdir, request.output, request.error, request.input):
        if len(path.encode(errors="surrogateescape")) > _PATH:
            raise BadUsage(f"request: a path is longer than {_PATH} bytes")
    if not request.chdir.startswith("/"):
        raise BadUsage(f"request: chdir={request.chdir!r} is not absolute")


def _checked(record: Any, kind: type, what: str) -> dict[str, Any]:
    """A copy of `record` whose keys and types are those of the dataclass `kind`."""
    if not isinstance(record, dict):
        raise BadUsage(f"{what}: not an object")
    types = _TYPES[kind]
    for key, value in record.items():
        if key not in types:
            raise BadUsage(f"{what}: unknown field {str(key)[:80]!r}")
        if type(value) not in types[key]:
            raise BadUsage(f"{what}: {key}={str(value)[:80]!r} has the wrong type")
        if key in _RANGES and not _RANGES[key][0] <= value <= _RANGES[key][1]:
            low, high = _RANGES[key]
            raise BadUsage(f"{what}: {key}={value} is not between {low} and {high}")
        if type(value) is str and len(value) > _LENGTHS.get(key, _PATH):
            raise BadUsage(f"{what}: {key} is longer than {_LENGTHS.get(key, _PATH)} characters")
        if type(value) is str and "\0" in value:
            raise BadUsage(f"{what}: {key} holds a NUL")
    return dict(record)


_JSON: dict[str, set[type]] = {"str": {str}, "int": {int}, "bool": {bool}}
_NESTED: set[type] = {dict, list, tuple, type(None)}
_TYPES: dict[type, dict[str, set[type]]] = {
    kind: {field.name: _JSON.get(getattr(field.type, "__name__", ""), _NESTED) for field in fields(kind)}
    for kind in (Request, Demand, EarlySignal)
}


def _triples(value: Any) -> tuple[tuple[int, int, int], ...]:
    try:
        triples = tuple((resource, soft, hard) for resource, soft, hard in value)
    except (TypeError, ValueError):
        raise BadUsage("request: rlimits is not a list of (resource, soft, hard)") from None
    if any(type(number) is not int or not -1 <= number <= _BIG for triple in triples for number in triple):
        raise BadUsage("request: rlimits holds something that is not a number")
    if len(triples) > _KINDS or any(not 0 <= resource < _KINDS for resource, _, _ in triples):
        raise BadUsage(f"request: rlimits are at most {_KINDS}, of resources 0 to {_KINDS - 1}")
    return triples


def _counts(value: Any) -> tuple[tuple[str, int], ...]:
    try:
        counts = {name: count for name, count in value}
    except (TypeError, ValueError):
        raise BadUsage("request: resources is not a list of (name, count)") from None
    if len(counts) != len(value) or any(
        type(name) is not str or len(name) > 64 or type(count) is not int or not 0 < count <= 65536
        for name, count in counts.items()
    ):
        raise BadUsage("request: resources names each once, with a count from 1 to 65536")
    return tuple(sorted(counts.items()))


def _words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or any(type(word) is not str or "\0" in word for word in value):
        raise BadUsage("request: args is not a list of words")
    if len(value) > 32_768 or sum(map(len, value)) > _WORDS:
        raise BadUsage("request: args are too many or too long")
    return tuple(value)
