"""The controller's end of the runner of the site's programs, and of the relay of events. It never blocks."""

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fgsched.hooks.programs import HookRun, HookSettings, Ran
from fgsched.system.helper import Helper
from fgsched.system.process import Watch

log = logging.getLogger(__name__)
_PAUSE = 1.0  # seconds between two starts
_SOON = 0.02  # seconds until a full socket is written to again
Done = Callable[[Ran], None]


class HookRunner(Helper):
    """The process that runs the programs of the site, from the first request on.

    If it is killed, the next one runs its unfinished programs again.
    """

    def __init__(self, lock: Path, watch: Watch) -> None:
        """Create it without a process. `watch` calls back once when the process of a pidfd has ended."""
        super().__init__("fgsched.hooks.runner", pause=_PAUSE)
        self._lock, self._number = lock, 0
        self._asked: dict[int, tuple[HookRun, Done]] = {}  # requests without an answer
        self._heard: deque[bytes] = deque()  # outcomes that have arrived and are not passed on
        self.begin(watch, self._note_unfinished)

    def request(self, run: HookRun, callback: Done) -> None:
        """Ask the process to run a program; `callback` is called later with its outcome."""
        self._number += 1
        run = replace(run, number=self._number)
        self._asked[run.number] = run, callback
        if self.is_running:
            self._ask(run)
        else:
            self.look(time.monotonic())

    def due(self, now: float) -> float | None:
        """Return the seconds until `look` is due; None: it is not. `now`: monotonic."""
        if self._heard:
            return 0.0
        if not self.is_running:
            return self.pause_left(now) if self._asked else None
        return _SOON if self.has_unsent else None

    def look(self, now: float) -> None:
        """Start the process if it is needed, and send what the socket did not take. `now`: monotonic."""
        self._pass_on()
        if self.is_running:
            self.flush()
        elif self._asked and not self.pause_left(now):
            self._start(now)

    def _start(self, now: float) -> None:
        try:
            self.launch(str(self._lock), now=now)
        except OSError as error:
            log.error("the programs of the site cannot be run: %s", error)
            return
        for run, _ in list(self._asked.values()):
            self._ask(run)

    def _ask(self, run: HookRun) -> None:
        self.send(msgspec.json.encode(run) + b"\n")

    def _note_unfinished(self) -> None:
        self.receive()
        if self._asked:
            log.warning(
                "the runner of the site's programs has ended; %d programs are repeated", len(self._asked)
            )

    def receive(self) -> None:
        """Pass on the outcomes that have arrived; never blocks."""
        self._heard += self.lines()
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass on outcomes. If this raises an exception for one, `look` passes on the rest."""
        while self._heard:
            with suppress(msgspec.MsgspecError):
                ran = msgspec.json.decode(self._heard.popleft(), type=Ran)
                _, callback = self._asked.pop(ran.number, (None, None))
                if callback is not None:
                    callback(ran)


class RelayProcess:
    """The process that passes events on to a command or a socket of the site, if it has one."""

    def __init__(self, mode: str, watch: Watch) -> None:
        """`mode`: user or system; `watch` calls back once when the process of a pidfd has ended."""
        self._mode, self._watch = mode, watch
        self._target = "", ""  # command, socket
        self._helper: Helper | None = None

    def configure(self, settings: HookSettings) -> None:
        """Use these settings from the next `look` on."""
        target = settings.events_command, "" if settings.events_command else settings.events_socket
        if target == self._target:
            return
        self._target = target
        if self._helper is not None:
            self._helper.release()
            self._helper = None
        if any(target):
            self._helper = Helper("fgsched.hooks.relay", pause=_PAUSE)
            self._helper.begin(self._watch, lambda: None)

    def due(self, now: float) -> float | None:
        """Return the seconds until `look` is due; None: it is not. `now`: monotonic."""
        helper = self._helper
        return None if helper is None or helper.is_running else helper.pause_left(now)

    def look(self, now: float) -> None:
        """Start the process if it is needed. `now`: monotonic."""
        if self._helper is not None and self.due(now) == 0.0:
            try:
                self._helper.launch(self._mode, *self._target, now=now)
            except OSError as error:
                log.error("no events are passed on: %s", error)

    def close(self) -> None:
        """End the process; kill it after a second."""
        if self._helper is not None:
            self._helper.close()
