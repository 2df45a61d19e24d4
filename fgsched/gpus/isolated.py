"""How our own helper processes are started: this very fgsched, and nothing that a user's environment says."""

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
# Without `-I` a PYTHONPATH or a file in the working directory could put its own code in our place.
_CODE = """
import importlib, sys
if sys.argv[1] not in sys.path:
    sys.path.insert(0, sys.argv[1])
importlib.import_module(sys.argv[2]).main()
"""


def isolated(module: str, *arguments: str) -> list[str]:
    """The command that runs `main` of a module; the arguments begin at sys.argv[3]."""
    return [sys.executable, "-I", "-c", _CODE, str(_ROOT), module, *arguments]
