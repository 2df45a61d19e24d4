"""Convert between array texts such as '0-15:4,20%2' and sets of indices, stored as the bits of an integer."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from fgsched.domain.errors import BadUsage
from fgsched.domain.job import Request
from fgsched.domain.text import BadValue, lazy_regex, quoted
from fgsched.domain.units import format_indices

MOST = 100_001  # indices are below it
LONGEST = 8192  # characters of a list, written in its shortest form
_PART = lazy_regex(r"([0-9]{1,30})(?:-([0-9]{1,30})(?::([0-9]{1,30}))?)?")
_TASKS = lazy_regex(r"([0-9]{1,18})_(?:([0-9]{1,6})|\[([0-9,:-]{1,8192})\])")
_INDEX = lazy_regex(r"[0-9]{1,6}")


def parse_array(text: str) -> tuple[str, int]:
    """Parse an array; return (canonical indices, maximum of running tasks or 0). Raises BadValue."""
    listed, percent, most = text.strip().partition("%")
    if percent and not (re.fullmatch(r"[0-9]{1,6}", most) and int(most)):
        raise BadValue(text, f": {quoted(percent + most)} is not a number of tasks that may run at a time")
    if listed.startswith("[") and listed.endswith("]"):
        listed = listed[1:-1]
    indices = format_array(parse_tasks(listed, whole=text))
    if len(indices) > LONGEST:
        raise BadValue(text, f" is a list of {len(indices)} characters; limit {LONGEST}")
    return indices, int(most or 0)


def parse_tasks(listed: str, *, whole: str = "") -> int:
    """Parse an index list such as '1-5,8' into bits. Raises BadValue for the first invalid part."""
    if _INDEX.fullmatch(listed) and int(listed) < MOST:
        return 1 << int(listed)
    ranges = [_range(part, whole or listed) for part in listed.split(",")]
    if len(ranges) == 1 and ranges[0][2] == 1:
        first, last, _ = ranges[0]
        return (1 << last + 1) - (1 << first)
    flags = bytearray(b"0" * (1 + max(last for _, last, _ in ranges)))
    for first, last, step in ranges:
        flags[first : last + 1 : step] = b"1" * len(range(first, last + 1, step))
    return int(bytes(flags[::-1]), 2)


def _range(part: str, whole: str) -> tuple[int, int, int]:
    match = _PART.fullmatch(part)
    if not match:
        raise BadValue(whole, f": {quoted(part)} is not an index or a range (such as 3, 0-15 or 0-15:4)")
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if not step:
        raise BadValue(whole, f": the step of {quoted(part)} is 0")
    if last < first:
        raise BadValue(whole, f": {quoted(part)} runs backwards")
    if last >= MOST:
        count = (last - first) // step + 1
        if count > MOST:
            raise BadValue(whole, f" is an array of {count} tasks; limit {MOST - 1}")
        raise BadValue(whole, f": an index is at most {MOST - 1}")
    return first, last, step


def tasks(bits: int) -> Iterator[int]:
    """Yield the indices of a bit set in ascending order."""
    text = bin(bits)[:1:-1]
    at = text.find("1")
    while at >= 0:
        yield at
        at = text.find("1", at + 1)


def lowest(bits: int) -> int:
    """Return the lowest index of a non-empty bit set."""
    return (bits & -bits).bit_length() - 1


@lru_cache(maxsize=256)
def bits_of(text: str) -> int:
    """Return the indices of a request's array, which was checked before, as bits."""
    return parse_tasks(text)


@lru_cache(maxsize=256)
def format_array(bits: int) -> str:
    """Format a bit set: '0-15:4' if the step is constant, otherwise '0,2-4'."""
    indices = list(tasks(bits))
    if (step := _step(indices)) > 1:
        return f"{indices[0]}-{indices[-1]}:{step}"
    return format_indices(indices)


def _step(indices: list[int]) -> int:
    """Return the constant step between at least three indices, or 0."""
    if len(indices) < 3:
        return 0
    step = indices[1] - indices[0]
    return step if indices == list(range(indices[0], indices[-1] + 1, step)) else 0


@lru_cache(maxsize=256)
def variables(text: str) -> dict[str, int]:
    """Return COUNT, MIN, MAX and STEP of an array, for the environment of its tasks."""
    indices = list(tasks(bits_of(text)))
    return {"COUNT": len(indices), "MIN": indices[0], "MAX": indices[-1], "STEP": _step(indices) or 1}


def size(request: Request) -> int:
    """Return the number of jobs that a submission creates."""
    return bits_of(request.array).bit_count() if request.array else 1


def bits_from(indices: Iterable[int]) -> int:
    listed = list(indices)
    flags = bytearray(b"0" * (1 + max(listed, default=0)))
    for index in listed:
        flags[index] = ord("1")
    return int(bytes(flags[::-1]), 2)


def split_reference(reference: Any) -> tuple[int, int | None]:
    """Split a reference into (job or array, tasks as bits, or None for all). Raises BadUsage."""
    if type(reference) is int:
        return reference, None
    match = _TASKS.fullmatch(reference) if isinstance(reference, str) else None
    if not match:
        raise BadUsage(f"{quoted(str(reference))} is not a job id")
    return int(match[1]), parse_tasks(match[2] or match[3], whole=str(reference))
