"""What a CUDA context costs on each model of card: as processes have shown it, or as the site says."""

import logging

log = logging.getLogger(__name__)
_LEAST = 8 << 20  # bytes: less is no context, but a look that came at a bad moment
_FAR = 4  # times what the site says: more is no bare context, and would keep small jobs out for good


class ContextCosts:
    """Remembers the least that was seen: a process can have more past its calls, such as code."""

    def __init__(self, default: int) -> None:
        self.default = default  # bytes; 0: nothing is reserved for contexts
        self._seen: dict[str, int] = {}  # model -> bytes

    def of(self, model: str) -> int:
        """What is to be reserved for the contexts of a process on such a card."""
        return min(self._seen.get(model, self.default), _FAR * self.default)

    def learn(self, model: str, size: int) -> None:
        """A process with a context had so much past its calls there, and held still."""
        if _LEAST <= size < self._seen.get(model, size + 1):
            self._seen[model] = size
            log.info("%s: a context costs %d bytes", model, size)
