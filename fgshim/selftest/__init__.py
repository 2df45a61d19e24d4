"""Check from within a job that its GPU memory limit is enforced, by every way to allocate.

The program (`command`) runs as a process of a job and uses the standard library only.

ways      the ways to allocate device memory
views     the figures that the job sees of its GPU
others    what another process of the job can do
program   runs the checks and prints the results
"""

import sys
from pathlib import Path

OUT_OF_MEMORY = 2
BEYOND = 64 << 20  # bytes above the limit: more than any rounding
_CODE = """
import sys
sys.path.insert(0, sys.argv[1])
from fgshim.selftest.program import main
main(sys.argv[2:])
"""


class NotOffered(Exception):
    """The host's libraries do not have this function."""


def command(verb: str, *numbers: int) -> list[str]:
    """Return the command that runs the program, independent of Python settings in the environment."""
    root = str(Path(__file__).parents[2])
    return [sys.executable, "-I", "-S", "-c", _CODE, root, verb, *map(str, numbers)]
