"""The orders of the command to the process of the page, at a socket that only its user can enter."""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from fgsched import __version__
from fgsched.system.webplace import WebOrder, WebStatus, peer_uid
from fgsched.web.app import WebApp
from fgsched.web.guard import Guard

_SECONDS = 10.0  # for an order
_LONGEST = 1 << 16  # bytes of an order


class Control:
    """Answers the orders of commands of this user."""

    def __init__(self, app: WebApp, guard: Guard, *, keep: bool, stop: Callable[[], None]) -> None:
        """`stop` ends the process."""
        self._app, self._guard, self._stop = app, guard, stop
        self.keep = keep
        self._since = time.time()

    async def serve(self, sock: socket.socket) -> asyncio.AbstractServer:
        """Listen at this socket."""
        return await asyncio.start_unix_server(self._answer, sock=sock, limit=_LONGEST)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, asyncio.TimeoutError, msgspec.MsgspecError):
            if peer_uid(writer.get_extra_info("socket")) == os.geteuid():
                line = await asyncio.wait_for(reader.readline(), _SECONDS)
                status = self._done(msgspec.json.decode(line, type=WebOrder))
                writer.write(msgspec.json.encode(status) + b"\n")
                await asyncio.wait_for(writer.drain(), _SECONDS)
        writer.close()

    def _done(self, order: WebOrder) -> WebStatus:
        """Carry out an order, and return the state."""
        self.keep = self.keep or order.keep
        if order.op == "open":
            self._app.used_at = time.monotonic()
            self._guard.invite(order.code, time.monotonic(), shown_at=time.time(), read_only=order.read_only)
        elif order.op == "stop":
            self._stop()
        return self.status()

    def status(self) -> WebStatus:
        """Return the state of the process."""
        return WebStatus(
            version=__version__,
            pid=os.getpid(),
            since=self._since,
            name=self._guard.name,
            port=self._guard.port,
            sessions=self._guard.sessions,
            streams=self._app.live().streams,
            keep=self.keep,
        )
