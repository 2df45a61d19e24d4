"""Requests by name with plain values, and answers as plain values: what tests write down and compare."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fgsched import protocol

DECODER = protocol.Decoder(protocol.CALLS)


def as_call(name: str, **arguments: Any) -> protocol.Call[Any]:
    """Return the request `name`."""
    return DECODER.convert(name, arguments)


def carried_out(
    handlers: Iterable[Any], name: str, caller: Any, arguments: Mapping[str, Any], now: float
) -> Any:
    """Have the one of `handlers` that knows the request `name` carry it out."""
    if name in DECODER.kinds:
        call = DECODER.convert(name, arguments)
        calls = [one.calls for one in handlers if hasattr(one, "calls")]
        calls += [one.writing_calls for one in handlers if hasattr(one, "writing_calls")]
        return next(some[type(call)] for some in calls if type(call) in some)(caller, call, now)
    known = next(one.operations for one in handlers if name in getattr(one, "operations", {}))
    return known[name](caller, arguments, now)


def plain(answer: Any) -> Any:
    """Return an answer as dicts and lists; an error as it is."""
    return answer if isinstance(answer, Exception) else msgspec.to_builtins(answer)
