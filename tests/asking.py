"""Requests by name with plain values, and answers as plain values: what tests write down and compare."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from awaiting import PATIENCE
from fgsched import codec, protocol
from fgsched.client import Client
from fgsched.controller.handlers.registration import handlers_of

DECODER = codec.Decoder(protocol.CALLS)


def as_call(name: str, /, **arguments: Any) -> protocol.Call[Any]:
    """Return the request `name`."""
    return DECODER.convert(name, arguments)


def carried_out(
    handlers: Iterable[Any], name: str, caller: Any, arguments: Mapping[str, Any], now: float
) -> Any:
    """Have the one of `handlers` that knows the request `name` carry it out."""
    call = as_call(name, **arguments)
    return handlers_of(handlers)[type(call)](caller, call, now)


def plain(answer: Any) -> Any:
    """Return an answer as dicts and lists; an error as it is."""
    return answer if isinstance(answer, Exception) else msgspec.to_builtins(answer)


class AskingClient(Client):
    """`client.ask("cancel", ids=[1])` sends `Cancel(ids=[1])` and returns its answer as plain values.

    It is more patient than a command: the controller of a test may have to answer on a busy host.
    """

    def call(
        self, call: protocol.Call[protocol.Answer], *, patience: float | None = PATIENCE, **more: Any
    ) -> protocol.Answer:
        """Send a request and return its answer."""
        return super().call(call, patience=patience, **more)

    def ask(
        self,
        operation: str,
        /,
        *,
        patience: float | None = PATIENCE,
        progress: Callable[[Any], None] | None = None,
        **arguments: Any,
    ) -> Any:
        if progress is not None:
            arguments["progress"] = True
        call = as_call(operation, **arguments)
        return plain(self.call(call, patience=patience, progress=progress))
