"""Keep signals that the controller cannot obey yet, because it is starting."""

import signal

_KEPT = (signal.SIGHUP, signal.SIGUSR1)  # read the configuration; restart. The others end a start.
_came: set[int] = set()


def keep() -> None:
    """Remember SIGHUP and SIGUSR1, which would end this process."""
    for number in _KEPT:
        signal.signal(number, lambda number, _: _came.add(number))


def kept() -> set[int]:
    """Return the remembered signals, and forget them."""
    signals = set(_came)
    _came.clear()
    return signals
