"""The native parts of fgsched: hook, spawner, prover and region."""

from pathlib import Path


def library() -> Path:
    """Return the path of the hook, which is preloaded into jobs."""
    return Path(__file__).parent / "libfgshim.so"


def spawner() -> Path:
    """Return the path of the spawner, which forks a shepherd for each job."""
    return Path(__file__).parent / "fgspawn"
