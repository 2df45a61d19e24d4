"""Read the file of `srun --multi-prog`, which assigns a program to each task."""

import shlex
from collections.abc import Sequence

from fgsched.slurm.step import StepRefused


def read_programs(command: Sequence[str], tasks: int) -> tuple[tuple[str, ...], ...]:
    """Return the words of each task's program, with %t and %o replaced. Raises StepRefused.

    Args:
        command: the path of the file, and arguments for every program.
        tasks: number of tasks; '*' in the file means the tasks that no other line names.
    """
    path, *more = command
    try:
        with open(path) as file:
            lines = file.read().replace("\\\n", " ").splitlines()
    except OSError as error:
        raise StepRefused(
            f"srun: error: Unable to open configuration file {path}: {error.strerror}", 1
        ) from None
    found: dict[int, tuple[str, ...]] = {}
    others: dict[int, tuple[str, ...]] = {}  # of '*'
    for line in lines:
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:  # a quote that is not closed
            raise StepRefused(f"srun: error: Configuration file {path} invalid: {error}", 1) from None
        if not words:
            continue
        ranks = _ranks(words[0], tasks)
        for offset, task in enumerate(ranks):
            values = {"%t": str(task), "%o": str(offset)}
            programs = others if words[0] == "*" else found
            programs[task] = tuple(_replaced(word, values) for word in words[1:])
    found = {**others, **found}
    missing = [task for task in range(tasks) if not found.get(task)]
    if missing:
        raise StepRefused(
            f"srun: error: Configuration file {path} invalid: no record for task id {missing[0]}", 1
        )
    return tuple((*found[task], *more) for task in range(tasks))


def _ranks(text: str, tasks: int) -> list[int]:
    if text == "*":
        return list(range(tasks))
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise StepRefused(f"srun: error: Configuration file invalid task specification: {text}", 1)
        ranks += range(int(first), int(last or first) + 1)
    return ranks


def _replaced(word: str, values: dict[str, str]) -> str:
    for letter, value in values.items():
        word = word.replace(letter, value)
    return word
