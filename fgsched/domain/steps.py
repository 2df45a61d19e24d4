"""Long computations that are made in steps, so that other work can be done between the steps."""

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")
Steps = Generator[None, None, Result]


def finish(steps: Steps[Result]) -> Result:
    """Make all steps that are left, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
