"""Print numbers, each in one form for all formats of a report."""

from collections.abc import Sequence

from fgsched.domain.times import HOUR, MINUTE
from fgsched.domain.units import GIB
from fgsched.reports.model import DASH, Change, Number, Tone

_TONES: dict[int, Tone] = {1: "good", 0: "", -1: "bad"}


def grouped(value: float, decimals: int = 0) -> str:
    """Return a number with commas for thousands, and without a minus sign before zero."""
    text = f"{value:,.{decimals}f}"
    return text[1:] if text.strip("-0.,") == "" and text.startswith("-") else text


def unknown(unit: str) -> Number:
    """Return the number that is not known or does not apply."""
    return Number(None, unit, DASH)


def hours(seconds: float) -> Number:
    """Return GPU seconds as GPU-hours with one decimal, for tables."""
    return Number(seconds / HOUR, "GPU-hours", grouped(seconds / HOUR, 1))


def brief_hours(seconds: float) -> str:
    """Return GPU seconds as GPU-hours for a sentence: one decimal below 100, none from there on."""
    value = seconds / HOUR
    return grouped(value, 1 if value < 99.95 and round(value, 1) != round(value) else 0)


def count(value: int, unit: str = "jobs") -> Number:
    return Number(value, unit, grouped(value))


def counted(value: int, singular: str, many: str = "") -> str:
    """Return a count with its noun: '1 job', '1,204 jobs'."""
    return f"{grouped(value)} {singular if value == 1 else many or singular + 's'}"


def share(part: float, whole: float, decimals: int = 1) -> Number:
    """Return a part of a whole in per cent; unknown if the whole is nothing."""
    if whole <= 0:
        return unknown("%")
    value = 100 * part / whole
    return Number(value, "%", f"{grouped(value, decimals)} %")


def rate(part: float, whole: float) -> Number:
    """Return an efficiency or a utilisation in per cent, without decimals."""
    return share(part, whole, 0)


def shares(parts: Sequence[float]) -> list[Number]:
    """Return the parts of a whole in per cent, rounded by largest remainder, so that they add up to 100.0.

    If the whole is nothing, all are unknown.
    """
    whole = sum(parts)
    if whole <= 0:
        return [unknown("%") for _ in parts]
    exact = [1000 * part / whole for part in parts]
    tenths = [int(value) for value in exact]
    order = sorted(range(len(parts)), key=lambda at: (tenths[at] - exact[at], at))
    for at in order[: 1000 - sum(tenths)]:
        tenths[at] += 1
    return [Number(tenth / 10, "%", f"{tenth / 10:.1f} %") for tenth in tenths]


def duration(seconds: float | None) -> Number:
    """Return seconds in at most two units: '< 1 min', '38 min', '4 h 47 min', '1 d 19 h'."""
    if seconds is None:
        return unknown("seconds")
    return Number(seconds, "seconds", duration_text(seconds))


def duration_text(seconds: float) -> str:
    """Format seconds in at most two units."""
    if seconds < MINUTE:
        return "< 1 min"
    minutes = round(seconds / MINUTE)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    whole = round(seconds / HOUR)
    return f"{whole // 24} d {whole % 24} h"


def gibibytes(size: float | None, decimals: int = 1) -> Number:
    """Return bytes as '19.1 GiB'."""
    if size is None:
        return unknown("bytes")
    return Number(size, "bytes", f"{grouped(size / GIB, decimals)} GiB")


def plain_gibibytes(size: float) -> str:
    """Return bytes in GiB without the unit: one decimal, none if it is whole."""
    return grouped(size / GIB, 0 if round(size / GIB, 1) == round(size / GIB) else 1)


def memory_hours(byte_seconds: float) -> Number:
    """Return byte-seconds as GiB-hours, for tables."""
    value = byte_seconds / GIB / HOUR
    return Number(value, "GiB-hours", grouped(value, 0))


# -- changes against the earlier period ----------------------------------------------------------------


def _change(difference: float, text: str, unit: str, good: int, least: float) -> Change:
    """`good` is 1 if more is better, -1 if less is better, 0 if neither."""
    if abs(difference) < least:
        return Change(difference, unit, "same", "unchanged")
    if difference > 0:
        return Change(difference, unit, "up", text, _TONES[good])
    return Change(difference, unit, "down", text, _TONES[-good])


def points(now: Number, before: Number, good: int = 0) -> Change | None:
    """Return the difference of two percentages as printed, in points; None if one is unknown."""
    if now.value is None or before.value is None:
        return None
    decimals = len(now.text.rstrip(" %").partition(".")[2])
    difference = round(now.value, decimals) - round(before.value, decimals)
    text = f"{grouped(abs(difference), decimals)} points"
    return _change(difference, text, "points", good, 0.5 * 10**-decimals)


def by_hours(now: float, before: float, good: int = 0) -> Change:
    """Return the difference of two sums of GPU seconds, in hours."""
    difference = (now - before) / HOUR
    return _change(difference, f"{grouped(abs(difference), 1)} h", "GPU-hours", good, 0.05)


def by_count(now: int, before: int, good: int = 0) -> Change:
    return _change(now - before, grouped(abs(now - before)), "jobs", good, 0.5)


def by_duration(now: float | None, before: float | None, good: int = -1) -> Change | None:
    """Return the difference of two durations in seconds; None if one is unknown."""
    if now is None or before is None:
        return None
    return _change(now - before, duration_text(abs(now - before)), "seconds", good, MINUTE / 2)
