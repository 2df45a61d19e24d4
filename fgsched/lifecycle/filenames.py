"""Expand %-patterns in the names of output, error and input files."""

import re
from functools import lru_cache
from typing import NamedTuple

from fgsched.domain.job import Job
from fgsched.domain.text import lazy_regex

_HARMFUL = lazy_regex("[/\x00-\x1f\x7f]")  # in a name: it could lead the file elsewhere, or harm a terminal
_ITEM = lazy_regex(r"%([0-9]*)(.?)", re.DOTALL)
_OFFERED = "jAauxh%bgJNnrst"
_LEFT_ALONE = "S"  # Slurm's own letter that has no meaning here
_WIDEST = 10
_OF_THE_JOB = lazy_regex(r"%[0-9]*[jAaJbgnrst]")  # known only once there is a job
ALLOWED = "%j %A %a %u %x %h %% and %b %g %J %N %n %r %s %t"


def is_one_for_all(pattern: str) -> bool:
    """Tell whether a pattern gives all tasks of an array the same file, so that they overwrite each other."""
    return not pattern.startswith("/dev/") and all(item[2] not in "abjJ" for item in _ITEM.finditer(pattern))


class PatternValues(NamedTuple):
    """The values of the patterns for one job."""

    job_id: int
    name: str
    user: str
    home: str
    host: str  # short name
    restarts: int = 0
    array: int = 0  # the id of its array; 0: none
    task: int = 0  # its index there
    gpus: tuple[int, ...] = ()

    def letter(self, letter: str, width: int) -> str:
        match letter:
            case "j" | "J":
                return f"{self.job_id:0{width}d}"
            case "A":
                return f"{self.array or self.job_id:0{width}d}"
            case "r":
                return f"{self.restarts:0{width}d}"
            case "a":
                return f"{self.task:0{width}d}"
            case "b":
                return f"{self.task % 10:0{width}d}"
            case "n" | "t":  # one node, one task of it
                return f"{0:0{width}d}"
        return self._text(letter)

    def _text(self, letter: str) -> str:
        texts = {
            "x": _HARMFUL.sub("_", self.name),
            "u": self.user,
            "h": self.home,
            "N": self.host,
            "s": "batch",
            "g": "-".join(str(gpu) for gpu in self.gpus),
            "%": "%",
        }
        return texts[letter]


def expand(pattern: str, values: PatternValues) -> str:
    """Return the file name of a pattern for one job. A backslash in the pattern disables replacement."""
    if "\\" in pattern:
        return pattern.replace("\\", "")
    *items, ending = _parts(pattern)
    return "".join([text + values.letter(letter, width) for text, letter, width in items]) + ending[0]


@lru_cache(maxsize=256)
def _parts(pattern: str) -> tuple[tuple[str, str, int], ...]:
    """Return (text, following letter, width) of each item, and the remaining text."""
    parts, at = [], 0
    for match in _ITEM.finditer(pattern):
        width, letter = match.groups()
        if letter and letter in _OFFERED:
            parts.append((pattern[at : match.start()], letter, min(int(width[:9] or 0), _WIDEST)))
            at = match.end()
    return (*parts, (pattern[at:], "", 0))


def unknown(pattern: str) -> list[str]:
    """Return the %-items that neither fgsched nor Slurm defines, such as '%q'."""
    return [item for item, letter in _items(pattern) if not letter or letter not in _OFFERED + _LEFT_ALONE]


def left_alone(pattern: str) -> list[str]:
    """Return the %-items of Slurm that fgsched does not replace."""
    return [item for item, letter in _items(pattern) if letter and letter in _LEFT_ALONE]


def needs_the_job(pattern: str) -> bool:
    """Tell whether part of the name is known only after the job is queued or started."""
    return "\\" not in pattern and bool(_OF_THE_JOB.search(pattern.replace("%%", "")))


def needs_the_user(pattern: str) -> bool:
    """Tell whether part of the name is the user or the home directory of the job."""
    return any(letter in ("u", "h") for _, letter in _items(pattern))


def _items(pattern: str) -> list[tuple[str, str]]:
    """Return (item, letter) of each pattern; none if a backslash disables replacement."""
    if "\\" in pattern:
        return []
    return [(f"%{match[2]}", match[2]) for match in _ITEM.finditer(pattern)]


def output_path(job: Job, pattern: str, host: str) -> str:
    """Return the path of a job's output or error file; %h is kept, as the home directory is not looked up."""
    values = PatternValues(
        job_id=job.id,
        name=job.request.name,
        user=job.user,
        home="%h",
        host=host.partition(".")[0],
        restarts=job.restarts,
        array=job.array,
        task=job.task or 0,
        gpus=tuple(hold.gpu for hold in job.holds),
    )
    path = expand(pattern, values)
    if path.startswith(("/", "%h")) or not job.request.chdir:
        return path
    return f"{job.request.chdir.rstrip('/')}/{path}"
