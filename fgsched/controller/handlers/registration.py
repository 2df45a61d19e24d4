"""Register the handlers of requests: a method names the request that it handles, and how it is called."""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, TypeVar

from fgsched.protocol import Call

CallType = type[Call[Any]]
Method = TypeVar("Method", bound=Callable[..., Any])
_MARK = "handles"  # attribute of a method: (call, way)


class HandlingWay(Enum):
    """How a handler is called."""

    WRITES = "writes"  # handler(caller, call, now) within the transaction of a turn
    READS = "reads"  # handler(caller, call, now) at once
    APART = "apart"  # handler(connection, caller, call); it answers by itself, maybe later


def writes(call: CallType) -> Callable[[Method], Method]:
    """Register a method as the handler of a request that is carried out in the turn."""
    return _handler_mark(call, HandlingWay.WRITES)


def reads(call: CallType) -> Callable[[Method], Method]:
    """Register a method as the handler of a request that is answered at once."""
    return _handler_mark(call, HandlingWay.READS)


def serves_apart(call: CallType) -> Callable[[Method], Method]:
    """Register a method as the handler of a request that is answered later or in steps."""
    return _handler_mark(call, HandlingWay.APART)


def _handler_mark(call: CallType, way: HandlingWay) -> Callable[[Method], Method]:
    def mark(method: Method) -> Method:
        method.__dict__[_MARK] = call, way
        return method

    return mark


def handlers_of(objects: Iterable[object], *ways: HandlingWay) -> dict[CallType, Callable[..., Any]]:
    """Return the registered methods of the objects by request; all ways if none is named."""
    methods: dict[CallType, Callable[..., Any]] = {}
    for handlers in objects:
        kind = type(handlers)
        for name in dir(kind):
            call, way = getattr(getattr(kind, name), _MARK, (None, None))
            if call is not None and (not ways or way in ways):
                assert call not in methods, f"{call.__name__} has two handlers"
                methods[call] = getattr(handlers, name)
    return methods
