"""sattach: fgsched attaches to the job of a step."""

from collections.abc import Sequence

from fgsched.slurm.getopt import BadLine, parse

_HARMLESS = ("pty", "quiet", "verbose")  # the terminal of the job is used if it has one


def arguments(words: Sequence[str]) -> list[str]:
    """Return the arguments of fgctl for steps or jobs. Raises BadLine for options about a step's tasks."""
    return ["attach", *_jobs(words)]


def _jobs(words: Sequence[str]) -> list[str]:
    """Return the jobs of the steps, or --help. Raises BadLine for options about a step's tasks."""
    given, operands = parse("sattach", words, permute=True)
    for name in (name for name, _ in given if name not in _HARMLESS):
        if name in ("help", "usage"):
            return ["--help"]
        raise BadLine(f"--{name} is not supported yet: fgsched attaches to a job, not to tasks of a step")
    return [word.partition(".")[0] for word in operands]
