"""Requests as plain values, on the socket. The types of the fields say what is accepted."""

from typing import Any

import msgspec

from fgsched.domain.errors import BadUsage
from fgsched.domain.job import Request
from fgsched.domain.text import is_plain, quoted

_PLAIN = ("partition", "account", "qos", "reservation", "array", "dependency")  # neither paths nor free text


def to_record(request: Request) -> dict[str, Any]:
    """Return the request as plain values. Fields with their default are omitted."""
    record: dict[str, Any] = msgspec.to_builtins(request)
    return record


def from_record(record: Any) -> Request:
    """Return the request that plain values describe. Raises BadUsage, which names the field."""
    try:
        return msgspec.convert(record, Request)
    except msgspec.ValidationError as error:
        raise BadUsage(f"request: {error}") from None


def check_plain(request: Request) -> None:
    """Check the names that a request refers to. Raises BadUsage if one is not plain UTF-8."""
    for name in _PLAIN:
        value = getattr(request, name)
        if not is_plain(value):
            raise BadUsage(f"request: {name}={quoted(value)} is not UTF-8, or has control characters")
