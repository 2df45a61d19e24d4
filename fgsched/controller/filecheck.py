"""The pages of a large queue that were not checked at the start, a few at a time."""

from fgsched.store import Store

_PAUSE = 0.02  # seconds between two steps


class FileCheck:
    """A step takes about a millisecond where the file is in memory. StorageError once a page is damaged."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0.0

    def due(self, now: float) -> float | None:
        """Seconds until the next step; None: all pages are checked."""
        return max(0.0, self._next - now) if self._store.is_checking else None

    def step(self, now: float) -> None:
        """Check some pages, if it is time."""
        if self._store.is_checking and now >= self._next:
            self._store.check_some()
            self._next = now + _PAUSE
