"""Find the time zone of the host."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

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
