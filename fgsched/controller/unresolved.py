"""Pids that a card lists and no process here has: a container's view, or what the driver has not cleared."""

import logging
from collections.abc import Iterable

log = logging.getLogger(__name__)


class Unresolved:
    """Remembers since when each is listed so. Decides nothing; it tells an operator, once."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self.pids: tuple[int, ...] = ()  # those that were so for a whole look
        self._told = False

    def saw(self, pids: Iterable[int], *, now: float, interval: float) -> None:
        """A look found these. `interval`: seconds for which an ended process may still be listed."""
        self._since = {pid: self._since.get(pid, now) for pid in pids}
        self.pids = tuple(sorted(pid for pid, since in self._since.items() if now - since >= interval))
        if self.pids and not self._told:
            self._told = True
            listed = ", ".join(map(str, self.pids))
            log.warning(
                "the driver lists processes that do not exist in this PID namespace: %s; in a container, "
                "run the controller in the host's, or every job that ends leaves its card suspect",
                listed,
            )
