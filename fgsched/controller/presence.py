"""Keep the run directory usable: create again what a cleaner of /tmp removes."""

import logging
import os
from collections.abc import Callable

from fgsched.domain.errors import FgschedError
from fgsched.launch.rundir import RunDir
from fgsched.system import generations
from fgsched.system.inotify import Inotify
from fgsched.system.paths import Paths

log = logging.getLogger("fgsched.controller")
_PAUSE = 0.2  # seconds, so that a program which removes a whole tree meets no new entries
_LONGEST = 60.0  # seconds between two attempts where nothing can be made


class Presence:
    """Watches the run directory and creates missing entries again a moment later."""

    def __init__(self, places: Paths, run: RunDir, listen: Callable[[], None]) -> None:
        """`listen()` accepts requests on a new socket if there is none."""
        self._places, self._run, self._listen = places, run, listen
        self._due: float | None = None
        self._pause = _PAUSE
        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify()
        except OSError as error:  # the user has as many instances as one may have
            log.warning("what is removed from %s is not noticed: %s", run.path, error)
            self._due = _LONGEST
        self._watch()

    @property
    def source(self) -> Inotify | None:
        """Return the descriptor that becomes readable when an entry is removed."""
        return self._inotify

    def _watch(self) -> None:
        if self._inotify is not None:
            self._inotify.watch(self._places.run)
            self._inotify.watch(self._run.path)

    def heard(self, now: float) -> None:
        """Note that an entry was removed."""
        if self._inotify is not None:
            self._inotify.read()
        if self._due is None:
            self._due = now + self._pause

    def due(self, now: float) -> float | None:
        """Return the seconds until the next check of the run directory; None if none is planned."""
        return None if self._due is None else max(0.0, self._due - now)

    def look(self, now: float) -> None:
        """Create missing entries, if a check is due."""
        if self._due is None or now < self._due:
            return
        self._due = None if self._inotify is not None else now + _LONGEST
        if not self._places.queue.exists():
            log.error("%s is gone: the run directory is left as it is", self._places.queue)
            return
        try:
            made = self._made()
        except (OSError, FgschedError) as error:
            log.error("%s cannot be used: %s", self._run.path, error)
            self._pause = min(2 * self._pause, _LONGEST)
            self._due = now + self._pause
            return
        self._pause = _PAUSE
        self._watch()
        if made:
            log.warning("%s: made again after they were removed: %s", self._run.path, ", ".join(made))

    def _made(self) -> list[str]:
        self._places.prepare(os.geteuid())
        made = self._run.mend()
        if not generations.is_linked(self._places.run, self._run.path):
            generations.link(self._places.run, self._run.path)  # by renaming, which is heard here
        if not self._places.socket.is_socket():
            self._listen()
            made.append(self._places.socket.name)
        return made
