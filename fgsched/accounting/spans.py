"""Find the time zone of the host, and its hours and days that contain a time, in seconds since the epoch."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from fgsched.domain.times import HOUR


def hour_of(at: float, zone: tzinfo) -> tuple[int, int]:
    """Return begin and end of the full hour of `zone` that contains `at`, in epoch seconds.

    A change of the zone's offset ends an hour and begins another, so hours never overlap.
    """
    offset = _offset(at, zone)
    begin = int((at + offset) // HOUR * HOUR - offset)
    end = begin + HOUR
    if _offset(begin, zone) != offset:
        begin = _change(begin, int(at), zone)
    if _offset(end - 1, zone) != offset:
        end = _change(int(at), end - 1, zone)
    return begin, end


def day_of(at: float, zone: tzinfo) -> tuple[int, int]:
    """Return begin and end of the day of `zone` that contains `at`, in epoch seconds.

    A day has 23, 24 or 25 hours, as the zone's offset changes.
    """
    midnight = datetime.fromtimestamp(at, zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    following = (midnight.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=zone)
    return int(midnight.timestamp()), int(following.timestamp())


def _offset(at: float, zone: tzinfo) -> int:
    """Return the seconds by which local time is ahead of UTC at `at`."""
    offset = datetime.fromtimestamp(at, UTC).astimezone(zone).utcoffset()
    return int(offset.total_seconds()) if offset else 0


def _change(before: int, after: int, zone: tzinfo) -> int:
    """Return the first second with the offset of `after`, which differs from that of `before`."""
    offset = _offset(after, zone)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(middle, zone) == offset:
            after = middle
        else:
            before = middle
    return after


_LOCAL = Path("/etc/localtime")


def host_zone(environ: Mapping[str, str], local: Path = _LOCAL) -> tzinfo:
    """Return the time zone that TZ names, else that of the file /etc/localtime, else UTC.

    A zone that TZ describes with rules, such as CET-1CEST, has its present offset all year.
    """
    named = environ.get("TZ", "").removeprefix(":")
    if named:
        with suppress(ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
            return ZoneInfo(named)
        return datetime.now().astimezone().tzinfo or UTC
    with suppress(OSError, ValueError), local.open("rb") as file:
        return ZoneInfo.from_file(file, key="localtime")
    return UTC
