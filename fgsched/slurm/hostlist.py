"""Expand and fold lists of host names: n[1-3,07],x."""

import re

from fgsched.slurm.getopt import BadLine

_MOST = 65_536  # hosts of one range
_PART = re.compile(r"([^\[\],]*)(?:\[([0-9,-]*)\])?([^\[\],]*)")


def expand(text: str) -> list[str]:
    """Return the names of a list, in its order; numbers keep their width. Raises BadLine."""
    names: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
        match = _PART.fullmatch(part)
        if not part:
            continue
        if match is None:
            raise BadLine(f"Invalid hostlist: {part}")
        before, ranges, after = match.groups()
        names += [f"{before}{number}{after}" for number in _numbers(ranges)] if ranges else [part]
    return names


def fold(names: list[str]) -> str:
    """Return names as a host list; names that differ only in a final number become one range."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        match = re.fullmatch(r"(.*?)([0-9]+)", name)
        groups.setdefault(match[1] if match else f"{name}\0", []).append(match[2] if match else "")
    return ",".join(_folded(before, numbers) for before, numbers in groups.items())


def _numbers(ranges: str) -> list[str]:
    found = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or "0").isdecimal():
            raise BadLine(f"Invalid hostlist: [{ranges}]")
        if not 0 <= int(last or first) - int(first) <= _MOST:
            raise BadLine(f"Invalid hostlist: [{ranges}]")
        width = len(first)
        found += [str(number).zfill(width) for number in range(int(first), int(last or first) + 1)]
    return found


def _folded(before: str, numbers: list[str]) -> str:
    if before.endswith("\0"):
        return before[:-1]
    if len(numbers) == 1:
        return f"{before}{numbers[0]}"
    runs: list[list[str]] = []
    for number in sorted(numbers, key=int):
        if runs and int(number) == int(runs[-1][-1]) + 1 and len(number) == len(runs[-1][-1]):
            runs[-1].append(number)
        else:
            runs.append([number])
    listed = ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{before}[{listed}]"
