"""Parse and format numbers: shares, GPU amounts, bytes, job ids, signals, index lists.

Only ASCII digits are digits, and no input is ever converted to a float.
"""

import re
import signal
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from fgsched.domain.errors import BadUsage, NoSuchJob
from fgsched.domain.job import WHOLE
from fgsched.domain.text import BadValue, lazy_regex, shown

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30  # bytes
GIBIBYTE = 1 << 30
_MOST_GPUS = 65_535
_MOST_IDS = 100_000  # ids that one list may name
_LARGEST_ID = (1 << 63) - 1

_COMMA = " is not a number (it is an amount with a decimal point, such as 0.5, and no list of GPUs)"
_NOT_A_NUMBER = " is not a number (use 0 < fraction ≤ 1 or a whole number)"
_DECIMAL = lazy_regex(r"([0-9]{0,20})(?:\.([0-9]{0,20}))?")
_PERCENT = lazy_regex(r"([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})%")
_RATIO = lazy_regex(r"([0-9]{1,9})/([0-9]{1,9})")
_WITH_COMMA = lazy_regex(r"[0-9]+(?:,[0-9]+)+")
_SIZE = lazy_regex(
    r"([0-9]{1,30})(?:\.([0-9]{1,9}))?([KMGTkmgt])?(?:(?<=[KMGTkmgt])(?:i?b|i))?", re.IGNORECASE
)
_IDS = lazy_regex(r"([0-9]{1,40})(?:-([0-9]{1,40}))?")
_POWER = {"K": 10, "M": 20, "G": 30, "T": 40}


class SubmitContext(Struct, frozen=True, kw_only=True):
    """What commands need to know of the controller to parse a submission and to warn about it."""

    shards_per_gpu: int = 0  # 0: the site defines none
    fgpu_per_gpu: int = 0  # 0: the site defines none
    share_step: int = 1  # ten-thousandths; shares are multiples of this
    context_memory: int = 0  # bytes: the smallest charge of a context on a GPU of the host; 0: unknown
    undefined: tuple[str, ...] = ()  # options whose names the site does not define: "account", "qos"
    known: tuple[str, ...] = ()  # of them, what jobs of this user have: "account=NAME", "qos=NAME"
    own: bool = True  # whether the controller is the user's, and not that of the host
    devices: str = ""  # FG_DEVICES of the controller
    limits: tuple[tuple[int, int], ...] = ()  # (resource, hard limit) of the controller, where it has one
    config_file: str = ""  # path that the controller reads; "": a controller of an earlier version
    host_memory: int = 0  # bytes for jobs; 0: not counted
    cpus: int = 0  # of the host; 0: unknown
    partition_gpus: Mapping[str, int] = field(default_factory=dict)  # partition -> its number of whole GPUs
    aliases: Mapping[str, str] = field(default_factory=dict)  # name of a GPU type -> part of the model's name
    features: tuple[str, ...] = ()  # of the host
    gpu_features: tuple[str, ...] = ()  # features and models of its GPUs
    ignores: tuple[str, ...] = ()  # unknown values that are ignored: "constraint", "gres", "reservation" …
    unsaid: tuple[str, ...] = ()  # names of `ignores` without a warning
    partitions: tuple[str, ...] = ()
    reservations: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()  # countable resources of the site
    partition: str = "main"  # of a job that names none
    mails: bool = True  # whether the host sends mails
    hints: bool = True  # whether fgsub compares requests with earlier runs
    defaults: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # partition -> option -> value


def _scaled(text: str, scale: int) -> tuple[int, bool] | None:
    """Return a decimal number times `scale`, rounded down, and whether it is exact; None if invalid."""
    match = _DECIMAL.fullmatch(text)
    if not match or not (match[1] or match[2]):
        return None
    fraction = match[2] or ""
    amount, remainder = divmod(int(match[1] + fraction) * scale, 10 ** len(fraction))
    return amount, remainder == 0


def parse_units(text: str) -> int:
    """Parse an amount of GPUs into ten-thousandths: '0.5', '50%', '1/2', '2'. Raises BadValue.

    A ratio is rounded down, so that three thirds fit on a GPU; decimals must be exact.
    """
    if match := _RATIO.fullmatch(text):
        if not int(match[2]):
            raise BadValue(text, _NOT_A_NUMBER)
        amount, exact, small = int(match[1]) * WHOLE // int(match[2]), True, int(match[1]) > 0
    else:
        percent = _PERCENT.fullmatch(text)
        scaled = _scaled(percent[1], WHOLE // 100) if percent else _scaled(text, WHOLE)
        if scaled is None:
            is_size = re.fullmatch(r"[0-9.]+[MGTmgt]i?[bB]?", text)
            hint = f" is an amount of memory; use --gpu-mem={text}" if is_size else _NOT_A_NUMBER
            raise BadValue(text, _COMMA if _WITH_COMMA.fullmatch(text) else hint)
        amount, exact = scaled
        small = not exact
    if amount == 0 and small:
        raise BadValue(text, ": smallest share is 0.0001")
    if not exact:
        low, high = format_share(amount), format_share(amount + 1)
        raise BadValue(text, f" has more than four decimals; use {low} or {high}")
    return amount


def parse_share(text: str) -> int:
    """Parse a fraction of one GPU into 1 to 10000 ten-thousandths. Raises BadValue."""
    share = parse_units(text)
    if not 1 <= share <= WHOLE:
        raise BadValue(text, " is not a share of one GPU (use 0 < fraction ≤ 1)")
    return share


def parse_gpus(text: str) -> tuple[str, int, int]:
    """Parse '[type:]AMOUNT' into (type, GPUs, share of each): 'a100:0.5' is ('a100', 1, 5000).

    Raises BadValue.

    The share is in ten-thousandths of a GPU.
    """
    gpu_type, colon, amount = text.rpartition(":")
    if colon and not gpu_type:
        raise BadValue(text, " has no GPU type before the colon")
    try:
        count, share = split_units(parse_units(amount))
    except BadValue as error:
        raise BadValue(text, error.why) from None
    except ValueError as error:
        raise BadValue(text, str(error)) from None
    return gpu_type, count, share


def split_units(units: int) -> tuple[int, int]:
    """Split ten-thousandths into (GPUs, share of each). Raises ValueError for an impossible amount."""
    if units == 0:
        return 0, 0
    if units < WHOLE:
        return 1, units
    count, remainder = divmod(units, WHOLE)
    if remainder:
        raise ValueError(
            f": fractions above one GPU are not possible; use {count} or {count + 1}, or --gpu-mem"
            " (above 1 only whole GPUs)"
        )
    if count > _MOST_GPUS:
        raise ValueError(": no host has so many GPUs")
    return count, WHOLE


def neighbours(share: int, step: int) -> tuple[int, int]:
    """Return the next lower and the next higher multiple of the step, in ten-thousandths."""
    low = max(step, min(share // step * step, WHOLE // step * step - step))
    return low, low + step


def format_share(units: int) -> str:
    """Format ten-thousandths: 5000 is '0.5', 20000 is '2'."""
    whole, part = divmod(units, WHOLE)
    return f"{whole}.{part:04d}".rstrip("0") if part else str(whole)


def parse_bytes(text: str, *, default_unit: str = "M") -> int:
    """Parse memory into bytes, rounded up to MiB: '10' (default unit), '8G', '1.5g'. Raises BadValue."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise BadValue(text, " is not a size (use a number and K, M, G or T; without a unit it is MiB)")
    fraction = match[2] or ""
    scaled = int(match[1] + fraction) << _POWER[(match[3] or default_unit).upper()]
    mebibytes: int = -(-scaled // (10 ** len(fraction) * MIB))
    if mebibytes * MIB >= 1 << 63:
        raise BadValue(text, " is larger than 2^63 bytes")
    return mebibytes * MIB


def format_mebibytes(size: int) -> str:
    """Format bytes as '8192M', rounded up."""
    return f"{-(-size // MIB)}M"


def format_exact(size: int) -> str:
    """Format bytes as Slurm does: in the largest unit from M in which the number, rounded up, is whole."""
    amount, unit = -(-size // MIB), 0
    while amount and amount % 1024 == 0 and unit < len(_EXACT_UNITS) - 1:
        amount, unit = amount // 1024, unit + 1
    return f"{amount}{_EXACT_UNITS[unit]}" if amount else "0"


_EXACT_UNITS = "MGTP"


def parse_count(text: str) -> int:
    """Parse a whole number of at least one. Raises BadValue."""
    if re.fullmatch(r"[0-9]{10,}", text):
        raise BadValue(text, " is larger than 999999999")
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) == 0:
        raise BadValue(text, " is not a whole number of at least 1")
    return int(text)


def parse_ids(text: str) -> list[int]:
    """Parse job ids of a list such as '7,10-14', in its order.

    Raises:
        BadUsage: the list is malformed.
        NoSuchJob: an id is too large for any job.
    """
    ids: list[int] = []
    for part in text.split(","):
        match = _IDS.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if first == 0 or last < first:
            raise BadUsage(
                f"{shown(part)} is not a job id (use a number such as 12, or a range such as 10-14)"
            )
        if last > _LARGEST_ID:
            raise NoSuchJob(f"job {shown(part)} does not exist")
        if len(ids) + last - first >= _MOST_IDS:
            raise BadUsage(f"{shown(text)} names more than {_MOST_IDS} jobs")
        ids.extend(range(first, last + 1))
    return ids


def parse_signal(text: str) -> int:
    """Parse a signal name, in any case and with or without SIG, or number. Raises BadValue."""
    names = signal.Signals.__members__
    number = int(text) if re.fullmatch(r"[0-9]{1,3}", text) else 0
    number = number or int(names.get("SIG" + text.upper().removeprefix("SIG"), 0))
    if number not in signal.valid_signals():
        allowed = " ".join(sorted(name.removeprefix("SIG") for name in names))
        raise BadValue(text, f" is not a signal (use 1 to 64, or one of {allowed})")
    return number


def signal_name(number: int) -> str:
    """Return the name of a signal (15 is 'TERM'), or its number if it has none."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)


def parse_indices(text: str) -> tuple[int, ...]:
    """Parse an index list such as '0,2-3' into unique ascending indices. Raises BadValue."""
    chosen: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise BadValue(text, " is not a list of indices (such as 0,2-3)")
        chosen.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(chosen))


def format_indices(indices: Iterable[int]) -> str:
    """Format indices: (0, 2, 3, 4) is '0,2-4'."""
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
