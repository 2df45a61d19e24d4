"""The controller: take in events, decide, commit, and then carry out the effects."""

import sys
from importlib import import_module

if "typing_extensions" not in sys.modules:
    # If it is installed, msgspec imports it for names that typing has too: 0.7 MiB, with `inspect`.
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    import_module("msgspec")
    del sys.modules["typing_extensions"]
