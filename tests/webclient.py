"""Speak HTTP to the page with a plain socket, so that a test can send what no client sends."""

import re
import socket
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlencode

from awaiting import PATIENCE
from live_host import Home


@dataclass(frozen=True)
class Answer:
    """An answer of the page; `status` 0: the connection was closed without one."""

    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def token(self) -> str:
        """The token of the forms in the page."""
        return re.search(r'name="token" value="([^"]+)"', self.body)[1]


@dataclass
class Web:
    """The page of a home: `web.get("/queue")`, `web.post("/jobs/cancel", job=7)`."""

    port: int
    cookie: str = ""
    name: str = ""  # of the host, as the command prints it
    path: Path | None = None  # of a Unix socket instead of a port

    @property
    def host(self) -> str:
        return f"{self.name}:{self.port}"

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX if self.path else socket.AF_INET)
        sock.settimeout(PATIENCE)
        sock.connect(str(self.path) if self.path else ("127.0.0.1", self.port))
        return sock

    def send(self, method: str, path: str, *, body: bytes = b"", **headers: str | None) -> Answer:
        """Send a request; a header None is left out."""
        given: dict[str, str | None] = {"Host": self.host, "Connection": "close"}
        given |= {"Cookie": self.cookie} if self.cookie else {}
        given |= {"Content-Length": str(len(body))} if body else {}
        given |= {name.replace("_", "-").title(): value for name, value in headers.items()}
        lines = [f"{name}: {value}" for name, value in given.items() if value is not None]
        head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""])
        return self.raw(head.encode("latin-1") + body)

    def raw(self, data: bytes) -> Answer:
        """Send bytes, and read the answer up to the end of the connection."""
        with closing(self.connect()) as sock:
            try:
                sock.sendall(data)
                return read(sock)
            except ConnectionError:
                return Answer(0, {}, "")

    def get(self, path: str, **headers: str | None) -> Answer:
        return self.send("GET", path, **headers)

    def post(self, path: str, fields: Iterable[tuple[str, object]], **headers: str | None) -> Answer:
        body = urlencode(list(fields)).encode()
        return self.send(
            "POST", path, body=body, **({"content_type": "application/x-www-form-urlencoded"} | headers)
        )

    def change(self, verb: str, job: object, *, sure: bool = True, **more: object) -> Answer:
        """Send the form of a job as its page has it."""
        token = self.get(f"/job/{job}").token
        fields = {"token": token, "job": job, "back": f"/job/{job}", **({"sure": 1} if sure else {}), **more}
        return self.post(f"/jobs/{verb}", fields.items())

    def open(self, code: str) -> "Web":
        """Use a code as its button does, and return the browser that has the cookie."""
        done = self.post("/open", [("c", code)])
        assert done.status == 303, done
        return replace(self, cookie=done.headers["set-cookie"].partition(";")[0])


def read(sock: socket.socket) -> Answer:
    """Read an answer up to the end of the connection."""
    data = b""
    while part := sock.recv(1 << 16):
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(int(first.split()[1]) if first else 0, headers, body.decode("utf-8", "replace"))


def served(home: Home, *options: str) -> tuple[Web, str]:
    """Run `fgsched web` and return the page without a session, and the code."""
    home.client  # noqa: B018  the controller runs
    done = home.run("fgsched", "web", *options)
    assert done.status == 0, done
    address = re.search(r"http://(fg\w{16}\.localhost):(\d+)/open\?c=(\S+)", done.out)
    path = home.paths.run / "web.sock" if "--socket" in options else None
    return Web(int(address[2]), name=address[1], path=path), address[3]
