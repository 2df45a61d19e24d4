"""Serve the page: connections with limits of number and time, at a port of the loopback or at a Unix socket.

Uvicorn reads HTTP. What it lacks is here: a client that sends no whole request in 30 seconds, one of too
many, and one of another user at the Unix socket lose their connection.
"""

import asyncio
import errno
import inspect
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from fgsched.system.webplace import peer_uid
from fgsched.web.guard import MOST_HEADERS

MOST_CONNECTIONS = 64
SECONDS = 30.0  # for a whole request
_PORTS_TRIED = 8  # that the kernel chooses for IPv4 and that may be taken for IPv6
_WITHOUT_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_SHUTDOWN = 5.0  # seconds for the end of open answers
_BACKLOG = 128


class LimitedProtocol(H11Protocol):
    """A connection that is lost if its requests come too slowly, or come from another user."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin with a connection; close one of too many and one of another user."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        is_foreign = sock.family == socket.AF_UNIX and _uid(sock) != os.geteuid()
        if is_foreign or len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._note_request()

    def on_response_complete(self) -> None:
        """Await the next request."""
        self._await_request()
        super().on_response_complete()  # it may begin with the next request
        self._note_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._cancel()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        self._cancel()
        self._late = self.loop.call_later(SECONDS, self.transport.abort)

    def _note_request(self) -> None:
        """Stop waiting when a request is whole and not yet answered."""
        cycle = self.cycle
        if cycle is not None and not cycle.more_body and not cycle.response_complete:
            self._cancel()

    def _cancel(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _uid(sock: Any) -> int:
    """Return the uid of the other end of a transport's socket; -1: unknown."""
    with suppress(OSError):
        return peer_uid(sock)
    return -1


class PageServer(uvicorn.Server):
    """Uvicorn, with open streams that end when it shuts down."""

    def __init__(self, app: ASGIApp, end_streams: Callable[[], None]) -> None:
        """`end_streams` ends the answers that are sent without an end."""
        super().__init__(_config(app))
        self._end_streams = end_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all answers; an answer that a client does not read is cut after some seconds."""
        self._end_streams()
        asyncio.get_running_loop().call_later(_SHUTDOWN, self._force)
        await super().shutdown(sockets)

    def _force(self) -> None:
        self.force_exit = True


def _config(app: ASGIApp) -> uvicorn.Config:
    """Return the settings of Uvicorn, whose older releases do not have all of them."""
    settings: dict[str, Any] = {
        "http": LimitedProtocol,
        "ws": "none",
        "lifespan": "off",
        "loop": "asyncio",
        "log_config": None,
        "access_log": False,
        "proxy_headers": False,
        "server_header": False,
        "backlog": _BACKLOG,
        "h11_max_incomplete_event_size": MOST_HEADERS,
    }
    known = inspect.signature(uvicorn.Config).parameters
    return uvicorn.Config(app, **{name: value for name, value in settings.items() if name in known})


def loopback(port: int) -> list[socket.socket]:
    """Return sockets that listen at this port of the loopback, or at another one if it is not free; 0: any.

    One is for IPv4, one for IPv6 if the host has it: browsers ask both, and another user must have neither.
    Raises OSError if there is no free port.
    """
    for tried in (port, *[0] * _PORTS_TRIED):
        socks: list[socket.socket] = []
        try:
            socks.append(_listening(socket.AF_INET, "127.0.0.1", tried))
            socks.append(_listening(socket.AF_INET6, "::1", socks[0].getsockname()[1]))
        except OSError as error:
            if len(socks) == 1 and error.errno in _WITHOUT_IPV6:
                return socks
            for sock in socks:
                sock.close()
            failure = error
            continue
        return socks
    raise failure


def _listening(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
