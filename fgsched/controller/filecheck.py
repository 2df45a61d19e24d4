"""Check the pages of a large queue that were not checked at the start, a few at a time."""

from fgsched.store import Store

_PAUSE = 0.02  # seconds between two steps


class FileCheck:
    """The remaining check. A step takes about 1 ms if the file is cached."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0.0

    def due(self, now: float) -> float | None:
        """Return the seconds until the next step, or None if all pages are checked."""
        return max(0.0, self._next - now) if self._store.is_checking else None

    def step(self, now: float) -> None:
        """Check some pages, if a step is due.

        Raises:
            StorageError: a page is damaged.
        """
        if self._store.is_checking and now >= self._next:
            self._store.check_some()
            self._next = now + _PAUSE
