"""The screen of fgtop: draw the lines of the layout with Textual, and pass it the keys.

A thread asks the controller, so that the screen answers to keys while the controller does not.
"""

import os
import subprocess
import sys
import time
from threading import Thread
from typing import Any, ClassVar

from msgspec.structs import replace
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.strip import Strip
from textual.widget import Widget

from fgsched import protocol
from fgsched.cli.prospects import explained
from fgsched.cli.top import layout
from fgsched.cli.top.plain import reader_of, take
from fgsched.cli.top.snapshot import Frame, LookHistory
from fgsched.cli.top.view import Action, TopUser, View, press
from fgsched.client import Client, find_paths
from fgsched.domain.errors import FgschedError

_COLOURS = {
    "active": ("#4f97dd", "#9cc8f2"),
    "held-idle": ("#ecb953", "#f3cf86"),
    "reserved-empty": ("#d65a22", "#f2935c"),
    "charged": ("#a5adb7", "#eceff2"),
    "free": ("#6d7782", "#a5adb7"),
    "external": ("#e3afd9", "#e3afd9"),
    "down": ("#7d8590", "#a5adb7"),
}
_GROUND = "#0d1013"
STYLES = {
    "ink": Style.parse(f"#eceff2 on {_GROUND}"),
    "soft": Style.parse(f"#a5adb7 on {_GROUND}"),
    "head": Style.parse("bold #eceff2 on #2a3037"),
    "clock": Style.parse("#a5adb7 on #2a3037"),
    "bad": Style.parse(f"bold #f2935c on {_GROUND}"),
    "key": Style.parse(f"bold #eceff2 on {_GROUND}"),
    "reverse": Style.parse(f"bold reverse #eceff2 on {_GROUND}"),
    "select": Style.parse("bold #eceff2 on #2a3037"),
    **{name: Style.parse(f"{fill} on {_GROUND}") for name, (fill, _) in _COLOURS.items()},
    **{f"{name}-label": Style.parse(f"{tint} on {_GROUND}") for name, (_, tint) in _COLOURS.items()},
}
_BOLD = ("head", "bad", "key", "select")
BARE = {name: Style(bold=name in _BOLD, reverse=name == "reverse") for name in STYLES}  # for NO_COLOR
_TICK = 0.5  # seconds between two drawings: the clock


class Canvas(Widget):
    """The whole screen: it draws the lines that it is given."""

    DEFAULT_CSS = f"Canvas {{ width: 100%; height: 100%; background: {_GROUND}; }}"

    def __init__(self) -> None:
        """Begin with an empty screen."""
        super().__init__()
        self.lines: list[layout.Line] = []
        self._styles = BARE if os.environ.get("NO_COLOR") else STYLES

    def render_line(self, y: int) -> Strip:
        """Return one line of the terminal."""
        line = self.lines[y] if y < len(self.lines) else []
        segments = [Segment(span.text, self._styles[span.style]) for span in line]
        return Strip(segments).adjust_cell_length(self.size.width, self._styles["ink"])


class Top(App[None]):
    """fgtop on a terminal."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", show=False, priority=True)]

    def __init__(self, view: View, *, may_change: bool) -> None:
        """Begin with a view; `may_change` False: no job can be cancelled."""
        super().__init__(ansi_color=bool(os.environ.get("NO_COLOR")))
        self._view, self._may_change = view, may_change
        self._history, self._frame = LookHistory(), Frame(at=time.time(), host="")
        self._reader = TopUser(-1, "", may_change=may_change)
        self._trouble, self._looking, self._looked = "", False, 0.0
        self._made = layout.screen(self._frame, self._history, view, self._reader, now=time.time())

    def compose(self) -> ComposeResult:
        """Return the only widget."""
        yield Canvas()

    def on_mount(self) -> None:
        """Look for the first time, and draw at each tick."""
        self.set_interval(_TICK, self._tick)
        self._tick()

    def on_resize(self, event: events.Resize) -> None:
        """Draw in the new size."""
        self._draw()

    def on_key(self, event: events.Key) -> None:
        """Pass a key to the view."""
        event.stop()
        event.prevent_default()
        key = event.character if event.is_printable and event.character else event.key
        key = "space" if key == " " else key
        screen = self._made
        self._view, action = press(screen.view, key, screen.jobs, self._reader, screen.rows)
        self._act(action)
        self._draw()

    # -- looking --------------------------------------------------------------------------------

    def _tick(self) -> None:
        is_due = time.monotonic() - self._looked >= self._view.interval - _TICK / 2
        if is_due and not self._looking and not self._view.is_paused:
            self._looking, self._looked = True, time.monotonic()
            Thread(target=self._look, daemon=True).start()
        self._draw()

    def _look(self) -> None:
        """Ask the controller, in a thread."""
        try:
            with Client(find_paths(), is_prompt=True) as client:
                if self._reader.uid < 0:
                    self._reader = reader_of(client, may_change=self._may_change)
                self._frame, self._trouble = take(client, self._history, time.time()), ""
        except FgschedError as error:
            self._trouble = error.cause
        self._looking = False
        self.call_from_thread(self._draw)

    def _draw(self) -> None:
        self._view = replace(self._view, width=self.size.width, height=self.size.height)
        now = self._frame.at if self._view.is_paused else time.time()
        self._made = layout.screen(
            self._frame, self._history, self._view, self._reader, now=now, trouble=self._trouble
        )
        self._view = self._made.view
        for canvas in self.query(Canvas):
            canvas.lines = self._made.lines
            canvas.refresh()

    # -- actions --------------------------------------------------------------------------------

    def _act(self, action: Action) -> None:
        if action.name == "quit":
            self.exit()
        elif action.name == "tail":
            self._follow(action.job)
        elif action.name in ("cancel", "why"):
            Thread(target=self._ask, args=(action,), daemon=True).start()

    def _ask(self, action: Action) -> None:
        """Cancel a job, or ask why it is pending, in a thread."""
        try:
            with Client(find_paths(), is_prompt=True) as client:
                if action.name == "cancel":
                    done = client.call(protocol.Cancel(ids=[action.job])).jobs[0]
                    message = done.error.cause if done.error else f"job {action.job}: {done.outcome}"
                    new_fields: dict[str, Any] = {"message": message}
                else:
                    explanations = client.call(protocol.ExplainJobs(ids=[action.job])).jobs
                    lines = tuple(line for explanation in explanations for line in explained(explanation))
                    new_fields = {"panel": "why", "panel_top": 0, "why": lines}
        except FgschedError as error:
            new_fields = {"message": error.cause}
        self._looked = 0.0
        self.call_from_thread(self._change, new_fields)

    def _change(self, new_fields: dict[str, Any]) -> None:
        self._view = replace(self._view, **new_fields)
        self._draw()

    def _follow(self, job: int) -> None:
        """Leave the screen to fgtail until it ends."""
        with self.suspend():
            command = [sys.executable, "-I", "-m", "fgsched.cli.fgtail", "-n", "20", str(job)]
            print(f"-- output of job {job}; Ctrl-C returns to fgtop --", flush=True)
            try:
                subprocess.run(command, check=False)
                input("-- Enter returns to fgtop --")
            except (KeyboardInterrupt, EOFError):
                pass


def show(view: View, *, may_change: bool) -> None:
    """Show the screen until the user quits."""
    Top(view, may_change=may_change).run()
