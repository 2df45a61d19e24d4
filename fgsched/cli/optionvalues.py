"""Parse the values of fgsub's options: each parser returns a value or raises BadValue."""

import math
import re
import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.job import GPU_COMPUTE, NICEST, WHOLE, EarlySignal
from fgsched.domain.text import BadValue, lazy_regex, quoted
from fgsched.domain.times import parse_time
from fgsched.domain.units import parse_bytes, parse_count, parse_gpus, parse_share, parse_signal, parse_units
from fgsched.jobs.arrays import parse_array
from fgsched.jobs.dependencies import parse_dependency
from fgsched.jobs.enforcement import TIERS
from fgsched.jobs.filenames import ALLOWED, unknown

_LONGEST_NAME = 255
_LONGEST_PATH = 4095
_LONGEST_COMMENT = 4096
_RESOURCE = lazy_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_WORD = lazy_regex(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,63}")
_LATEST_SIGNAL = 65_535  # seconds before the limit


class Amount(Struct, frozen=True):
    """An amount of GPUs, in units of GPUs, fGPUs or shards."""

    unit: str  # "gpu", "fgpu" or "shard"; "none": nothing is said of GPUs
    size: int  # ten-thousandths of the unit
    gpu_type: str = ""
    resources: tuple[tuple[str, int], ...] = ()  # the site's own, beside the cards


class GpuMemory(Struct, frozen=True):
    """Memory of each GPU: bytes, or a part of the GPU in ten-thousandths."""

    size: int = 0  # bytes, or ten-thousandths of the GPU's memory
    part: int = 0


class HostMemory(Struct, frozen=True):
    """Host memory of the job, per CPU, or per GPU."""

    per: str  # "job", "cpu" or "gpu"
    size: int  # bytes; 0: all


def flag(text: str) -> bool:
    """Parse the presence of a flag."""
    return True


def no(text: str) -> bool:
    """Parse the presence of a negated flag."""
    return False


def gpus(text: str) -> Amount:
    """Parse [type:]amount of GPUs. Raises BadValue."""
    gpu_type, count, share = parse_gpus(text)
    return Amount("gpu", count * share, gpu_type)


def fgpu(text: str) -> Amount:
    """Parse an amount in fGPUs. Raises BadValue."""
    return Amount("fgpu", parse_units(text))


def gres(text: str) -> Amount:
    """Parse a list of gpu[:type][:amount], shard:N and NAME[:N]. Raises BadValue."""
    cards: Amount | None = None
    others: dict[str, int] = {}
    for part in text.split(","):
        name, _, rest = part.partition(":")
        if name in ("gpu", "shard"):
            if cards is not None:
                raise BadValue(text, " asks for GPUs twice")
            cards = _cards(text, name, rest)
        elif not _RESOURCE.fullmatch(name) or not re.fullmatch(r"[0-9]{0,5}", rest) or name in others:
            raise BadValue(text, ": invalid generic resource specification (gpu:AMOUNT, or NAME:N)")
        elif rest != "0":
            others[name] = int(rest or 1)
    return replace(cards or Amount("none", 0), resources=tuple(sorted(others.items())))


def _cards(text: str, resource: str, rest: str) -> Amount:
    if resource == "shard":
        if rest and not re.fullmatch(r"[0-9]{1,9}", rest):
            raise BadValue(text, " is not a whole number of shards")
        return Amount("shard", int(rest or 1) * WHOLE)
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_. -]*", rest):
        return Amount("gpu", WHOLE, rest)  # a type alone: one card of it
    try:
        return gpus(rest or "1")
    except BadValue as error:
        raise BadValue(text, error.why) from None


def gpu_memory(text: str) -> GpuMemory:
    """Parse GPU memory, as a size or a percentage. Raises BadValue."""
    try:
        if text.endswith("%"):
            return GpuMemory(part=parse_share(text))
        size = parse_bytes(text)
    except BadValue as error:
        raise BadValue(text, error.why.replace(" or T;", " or T, or % of the card;")) from None
    return GpuMemory(size=size) if size else GpuMemory(part=WHOLE)


def host_memory(per: str) -> Callable[[str], HostMemory]:
    """Return a parser for host memory per "job", "cpu" or "gpu"."""
    return lambda text: HostMemory(per, parse_bytes(text))


def gpu_type(text: str) -> str:
    """Parse a part of a GPU model's name. Raises BadValue."""
    if not _WORD.fullmatch(text):
        raise BadValue(text, " is not a GPU type (use part of one model's name, such as a100)")
    return text


def name(text: str) -> str:
    """Parse a job name. Raises BadValue if it is empty or too long."""
    if not text:
        raise BadValue(text, " is not a name")
    if len(text) > _LONGEST_NAME:
        raise BadValue(text, f" is {len(text)} characters; limit {_LONGEST_NAME}")
    return text


def tier(text: str) -> str:
    """Parse an enforcement level. Raises BadValue."""
    if text not in TIERS:
        raise BadValue(text, f": give {', '.join(TIERS[:-1])} or {TIERS[-1]}")
    return text


def gpu_compute(text: str) -> str:
    """Parse a compute-sharing policy. Raises BadValue."""
    if text not in GPU_COMPUTE:
        raise BadValue(text, ": give hard, fair or none")
    return text


def partition(text: str) -> str:
    """Parse a list of partition names. Raises BadValue."""
    if not all(_WORD.fullmatch(name) for name in text.split(",")):
        raise BadValue(text, ": invalid partition name")
    return text


def label(text: str) -> str:
    """Parse the name of an account or QOS. Raises BadValue."""
    if not _WORD.fullmatch(text):
        raise BadValue(text, " is not a name")
    return text


def reservation(text: str) -> str:
    """Parse the name of a reservation. Raises BadValue."""
    if not 0 < len(text) <= 64 or not text.isprintable() or "," in text:
        raise BadValue(text, " is not the name of a reservation")
    return text


def nice(text: str) -> int:
    """Parse a nice value. Raises BadValue."""
    if not re.fullmatch(r"-?[0-9]{1,10}", text) or abs(int(text)) > NICEST:
        raise BadValue(text, f" is not a number up to {NICEST}")
    return int(text)


def path(text: str) -> str:
    """Parse a path. Raises BadValue if it is empty, too long, or has control characters."""
    if not text:
        raise BadValue(text, " is not a path")
    if len(text.encode("utf-8", "surrogateescape")) > _LONGEST_PATH:
        raise BadValue(text, f" is longer than {_LONGEST_PATH} bytes")
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in text):
        raise BadValue(text, ": control characters are not allowed in a file name")
    return text


def pattern(text: str) -> str:
    """Parse a file name with % patterns. Raises BadValue for an unknown pattern."""
    if items := unknown(path(text)):
        named = " ".join(item if item.isprintable() else ascii(item)[1:-1] for item in items)
        raise BadValue(text, f": unknown {named}; allowed {ALLOWED}")
    return text


def open_mode(text: str) -> str:
    """Parse append or truncate. Raises BadValue."""
    if text not in ("append", "truncate"):
        raise BadValue(text, " is not append or truncate")
    return text


def comment(text: str) -> str:
    """Parse a comment. Raises BadValue if it is too long."""
    if len(text) > _LONGEST_COMMENT:
        raise BadValue(text, f" is {len(text)} characters; limit {_LONGEST_COMMENT}")
    return text


def anything(text: str) -> str:
    """Accept any text."""
    return text


def command(text: str) -> str:
    """Parse a shell command line. Raises BadValue if it is blank."""
    if not text.strip():
        raise BadValue(text, " is not a command")
    return text


def count(text: str) -> int:
    """Parse a positive whole number. Raises BadValue."""
    return parse_count(text)


def array(text: str) -> tuple[str, int]:
    """Parse an array; return (canonical indices, maximum of running tasks). Raises BadValue."""
    return parse_array(text)


def dependency(text: str) -> str:
    """Parse a dependency list into its canonical form. Raises BadValue."""
    return str(parse_dependency(text))


def yes_or_no(text: str) -> str:
    """Parse yes or no. Raises BadValue."""
    if text not in ("yes", "no"):
        raise BadValue(text, " is not yes or no")
    return text


def begin(text: str) -> int:
    """Parse an earliest start into epoch seconds; 0 for a time in the past. Raises BadValue."""
    now = time.time()
    found = parse_time(text, now)
    return math.ceil(found) if found > now else 0


def deadline(text: str) -> int:
    """Parse a deadline into epoch seconds. Raises BadValue if it has passed."""
    now = time.time()
    found = parse_time(text, now)
    if found <= now:
        raise BadValue(text, " has passed")
    return int(found)


def only_one(text: str) -> int:
    """Parse a number of tasks or nodes. Raises BadValue unless it is 1."""
    if text not in ("1", "1-1"):
        raise BadValue(text, ": a job here is one task on a single host; only 1 is possible")
    return 1


def early_signal(text: str) -> EarlySignal:
    """Parse [B:|C:]SIG[@SEC]; SEC is in seconds before the time limit. Raises BadValue.

    B: sends the signal to the shell only, C: to its children only.
    """
    target, colon, rest = text.rpartition(":")
    targets = {"": "all", "B": "shell", "C": "children"}
    named, at, before = rest.partition("@")
    if target not in targets or (colon and not target):
        raise BadValue(text, f": {quoted(target + ':')} is not B: (the shell only) or C: (its children only)")
    if at and (not re.fullmatch(r"[0-9]{1,6}", before) or int(before) > _LATEST_SIGNAL):
        raise BadValue(text, f": seconds before the limit are 0 to {_LATEST_SIGNAL}")
    try:
        number = parse_signal(named)
    except BadValue as error:
        raise BadValue(text, error.why) from None
    return EarlySignal(signal=number, before=int(before) if at else 60, target=targets[target])
