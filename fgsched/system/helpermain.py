"""Run `main` of a module of this installation: python3 -I .../helpermain.py MODULE [ARGUMENT...].

ps shows the process with this path and the name of the module. The first argument is sys.argv[1].
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # msgspec would import typing_extensions, if it is installed, for names that typing has too: 0.7 MiB.
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    root = str(Path(__file__).parents[2])
    if root not in sys.path:
        sys.path.insert(0, root)
    del sys.argv[0]
    importlib.import_module(sys.argv[0]).main()
