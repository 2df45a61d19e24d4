"""What lives beside and inside other people's programs: the hook, the spawner, the region."""

from pathlib import Path


def library() -> Path:
    """The allocator hook, to be preloaded."""
    return Path(__file__).parent / "libfgshim.so"


def spawner() -> Path:
    """The program that forks a shepherd for each job."""
    return Path(__file__).parent / "fgspawn"
