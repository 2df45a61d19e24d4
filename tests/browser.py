"""A headless Chromium for tests of pages, driven over a pipe by its debugging protocol."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
_QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage")


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, commands: int, events: int) -> None:
        """`commands` and `events` are file descriptors."""
        self._commands, self._events = commands, events
        self._rest, self._id, self._session = b"", 0, ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._id += 1
        message = {"id": self._id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._events, 1 << 20)
            assert more, "Chromium has ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)

    def show(self, html: str, *, width: int, dark: bool = False, media: str = "", height: int = 900) -> None:
        """Show a page in a window of this width and height, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        frame = self.call("Page.getFrameTree")["frameTree"]["frame"]["id"]
        self.call("Page.setDocumentContent", frameId=frame, html=html)

    def value(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write a picture of the page in PNG; `whole` includes what is below the window."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self) -> bytes:
        """Return the page as printed."""
        found = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
        return base64.b64decode(found["data"])


@contextmanager
def browser(profile: Path, fonts: Path | None = None) -> Iterator[Browser]:
    """Start a Chromium with an empty profile, and end it; `fonts`: a configuration of fontconfig."""
    assert CHROMIUM
    from_us, commands = os.pipe()
    events, to_us = os.pipe()

    def descriptors() -> None:
        os.dup2(from_us, 1003)
        os.dup2(to_us, 1004)
        os.dup2(1003, 3)
        os.dup2(1004, 4)

    process = subprocess.Popen(
        [CHROMIUM, *_OPTIONS, *_QUIET, f"--user-data-dir={profile}", "--remote-debugging-pipe"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ
        | {"XDG_CONFIG_HOME": str(profile / "config")}
        | ({"FONTCONFIG_FILE": str(fonts)} if fonts else {}),
        preexec_fn=descriptors,
        close_fds=False,
        start_new_session=True,
    )
    os.close(from_us)
    os.close(to_us)
    try:
        found = Browser(commands, events)
        yield found
        found._session = ""
        found.call("Browser.close")
    finally:
        os.close(commands)
        os.close(events)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
