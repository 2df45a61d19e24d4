"""A mail server on the loopback interface that keeps mails as files, and can refuse, break off and hang."""

import asyncio
import email
import email.policy
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller

from awaiting import PATIENCE, until


class Listener(Controller):
    """Serve mails on a given socket; a busy host may take its time to answer the first connection."""

    def __init__(self, handler: Any, listening: socket.socket) -> None:
        hostname, port = listening.getsockname()
        super().__init__(  # with a name, it does not ask the name service at each connection
            handler, hostname=hostname, port=port, ready_timeout=PATIENCE, server_hostname="localhost"
        )
        self._listening = listening

    def _create_server(self) -> Any:
        return self.loop.create_server(self._factory_invoker, sock=self._listening)

    def _trigger_server(self) -> None:
        with socket.create_connection((self.hostname, self.port), PATIENCE) as first:
            first.recv(1024)


def bound(port: int) -> socket.socket:
    """Return a loopback socket at a port, which sockets of this function share; 0: any."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(("127.0.0.1", port))
    return one


class MailServer:
    """`answers` has the answers to the next mails, such as "451 busy"; then all are accepted.

    The answer "hang" is none: the server waits until it is stopped.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.answers = folder, list[str]()
        self.refused: dict[str, str] = {}  # recipient -> answer
        self.tried = folder / "tried"
        self._reserved = bound(0)  # nobody else gets the port while the server is away
        self.port = self._reserved.getsockname()[1]
        self._controller: Listener | None = None

    def start(self) -> None:
        self._controller = Listener(self, bound(self.port))
        self._controller.start()

    def stop(self) -> None:
        if self._controller is not None:
            self._controller.stop(no_assert=True)
        self._controller = None

    def close(self) -> None:
        """Stop, and give the port back."""
        self.stop()
        self._reserved.close()

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        if address in self.refused:
            return self.refused[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        answer = self.answers.pop(0) if self.answers else "250 OK"
        with self.tried.open("a") as file:
            file.write(f"{answer}\n")
        if answer == "hang":
            await asyncio.Event().wait()
        if answer.startswith("250"):
            number = len(list(self.folder.glob("*.eml")))
            fresh = self.folder / f"{number}.new"
            seen = f"X-To: {','.join(envelope.rcpt_tos)}\r\nX-Helo: {session.host_name}\r\n"
            fresh.write_bytes(seen.encode() + envelope.content)
            fresh.rename(self.folder / f"{number}.eml")
        return answer

    @property
    def mails(self) -> list[EmailMessage]:
        """The mails that were accepted, in order."""
        files = sorted(self.folder.glob("*.eml"), key=lambda file: int(file.stem))
        return [
            email.message_from_bytes(file.read_bytes(), policy=email.policy.default)  # type: ignore[misc]
            for file in files
        ]

    def wait(self, count: int) -> list[EmailMessage]:
        """Return the mails once there are `count` of them."""
        return until(self.folder, lambda: found if len(found := self.mails) >= count else [])

    def settings(self, **more: str) -> str:
        """The lines of fgsched.toml that use this server."""
        lines = {"send": '"smtp"', "smtp_host": '"127.0.0.1"', "smtp_port": str(self.port)} | more
        return "[mail]\n" + "".join(f"{name} = {value}\n" for name, value in lines.items())


@contextmanager
def serving(folder: Path) -> Iterator[MailServer]:
    server = MailServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.close()
