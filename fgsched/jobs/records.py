"""Requests as JSON, in the store and on the socket. The types of the fields say what is accepted."""

import json
from typing import Any

import msgspec

from fgsched.domain.errors import BadUsage
from fgsched.domain.job import NICEST as NICEST
from fgsched.domain.job import Request
from fgsched.domain.text import is_plain, quoted

_PLAIN = ("partition", "account", "qos", "reservation", "array", "dependency")  # neither paths nor free text
_decode = msgspec.json.Decoder(Request).decode


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


def parse_record(text: str) -> Request:
    """Return the request in a JSON text. Raises BadUsage, or ValueError if the text is not JSON.

    msgspec refuses lone surrogates, which stand for the bytes of a path that are not UTF-8. Such a text is
    read with the json module.
    """
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return from_record(json.loads(text))


def check_plain(request: Request) -> None:
    """Check the names that a request refers to. Raises BadUsage if one is not plain UTF-8."""
    for name in _PLAIN:
        value = getattr(request, name)
        if not is_plain(value):
            raise BadUsage(f"request: {name}={quoted(value)} is not UTF-8, or has control characters")
