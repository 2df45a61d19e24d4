"""Device memory taken in every way that the host's libraries offer: is it refused where it should be?

Runs where a job runs, as a program of its own (`command`), and needs the standard library alone.

ways      how memory can be taken
views     what is told of the card
others    what another process of the job can do
program   the program: runs them, and prints what was found
"""

import sys
from pathlib import Path

OUT_OF_MEMORY = 2
BEYOND = 64 << 20  # bytes more than the limit: no rounding explains them
_CODE = """
import sys
sys.path.insert(0, sys.argv[1])
from fgshim.selftest.program import main
main(sys.argv[2:])
"""


class NotOffered(Exception):
    """This host's libraries have no such thing."""


def command(verb: str, *numbers: int) -> list[str]:
    """What runs the program: nothing that a user's environment says of Python matters to it."""
    root = str(Path(__file__).parents[2])
    return [sys.executable, "-I", "-S", "-c", _CODE, root, verb, *map(str, numbers)]
