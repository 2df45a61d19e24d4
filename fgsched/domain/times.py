"""Parse and format times: durations in seconds, times in epoch seconds, local time for output."""

import re
import time

from msgspec import Struct

from fgsched.domain.text import BadValue, lazy_regex

MINUTE, HOUR, DAY, WEEK = 60, 3600, 86_400, 604_800
FOREVER = -1  # as a time for which something is kept, in seconds: no limit
_LONGEST_LIMIT = 366 * DAY
_YEAR = 365 * DAY

_UNLIMITED = {"0", "-1", "infinite", "unlimited"}
_NOT_A_DURATION = (
    " is not a duration (use minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S, 90s, 2h, 1d12h or unlimited)"
)
_SPELLED = lazy_regex(
    r"(?:([0-9]{1,40})d)?(?:([0-9]{1,40})h)?(?:([0-9]{1,40})m)?(?:([0-9]{1,40})s)?", re.IGNORECASE
)
_WITH_DAYS = lazy_regex(r"([0-9]{1,40})-([0-9]{1,40})(?::([0-9]{1,40}))?(?::([0-9]{1,40}))?")
_CLOCKED = lazy_regex(r"([0-9]{1,40})(?::([0-9]{1,40}))?(?::([0-9]{1,40}))?")


def parse_duration(text: str, longest: int = _LONGEST_LIMIT) -> int:
    """Parse a duration into seconds; 0 is no limit. A bare number is in minutes.

    Raises BadValue, also for more than `longest` seconds.
    """
    if text.lower() in _UNLIMITED:
        return 0
    seconds = _duration(text)
    if seconds > longest:
        raise BadValue(text, f": limit is at most {longest // DAY} days")
    return seconds


def _duration(text: str) -> int:
    if match := _WITH_DAYS.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return days * DAY + hours * HOUR + minutes * MINUTE + seconds
    if match := _CLOCKED.fullmatch(text):
        parts = [int(part) for part in match.groups() if part is not None]
        first, second, third = (*parts, 0, 0)[:3] if len(parts) == 3 else (0, *parts, 0)[:3]
        return first * HOUR + second * MINUTE + third
    match = _SPELLED.fullmatch(text)
    if not text or not match:
        raise BadValue(text, _NOT_A_DURATION)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * DAY + hours * HOUR + minutes * MINUTE + seconds


def format_runtime(seconds: float) -> str:
    """Format seconds as in the queue: 0:07, 12:03, 2-03:04:05; INVALID if negative or above a year."""
    whole = int(seconds)
    if seconds < 0 or whole > _YEAR:
        return "INVALID"
    return _clocked(whole)


def _clocked(whole: int) -> str:
    days, seconds_of_day = divmod(whole, DAY)
    hours, minutes, seconds = seconds_of_day // HOUR, seconds_of_day % HOUR // MINUTE, seconds_of_day % MINUTE
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def format_elapsed(seconds: float) -> str:
    """Format seconds as in accounting: 00:00:07, 2-03:04:05."""
    days, seconds_of_day = divmod(max(0, int(seconds)), DAY)
    clock = (
        f"{seconds_of_day // HOUR:02d}:{seconds_of_day % HOUR // MINUTE:02d}:{seconds_of_day % MINUTE:02d}"
    )
    return f"{days}-{clock}" if days else clock


def format_limit(seconds: int) -> str:
    """Format a time limit in seconds; 0 is UNLIMITED."""
    return _clocked(seconds) if seconds else "UNLIMITED"


# --- points in time ---------------------------------------------------------------------------------------

_NOT_A_TIME = (
    " is not a time (use HH:MM, YYYY-MM-DD, YYYY-MM-DDTHH:MM, MM/DD, now+2hours, today, tomorrow, noon,"
    " midnight, -6h or -7d)"
)
_STEP = {"s": 1, "m": MINUTE, "h": HOUR, "d": DAY, "w": WEEK}
_AGO = lazy_regex(r"-([0-9]{1,9})([smhdw])", re.IGNORECASE)
_NOW = lazy_regex(
    r"now(?:\s*([+-])\s*([0-9]{1,9})\s*(s|sec(?:ond)?s?|m|min(?:ute)?s?|h|hours?|hrs?|d|days?|w|weeks?)?)?",
    re.IGNORECASE,
)
_CLOCK_WORDS = {"midnight": 0, "elevenses": 11, "noon": 12, "fika": 15, "teatime": 16}
_PART = lazy_regex(
    r"""(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})
      | (?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2}))?(?:\s*(?P<half>[ap]m))?
      | (?P<m2>[0-9]{1,2})(?P<sep>[/.])(?P<d2>[0-9]{1,2})(?:(?P=sep)(?P<y2>[0-9]{4}|[0-9]{2}))?
      | (?P<m3>[0-9]{2})(?P<d3>[0-9]{2})(?P<y3>[0-9]{2})?(?![0-9:])
      | (?P<word>today|tomorrow|midnight|elevenses|noon|fika|teatime)
    """,
    re.VERBOSE | re.IGNORECASE,
)


class _Moment(Struct):
    """The parts of a time that were parsed so far; a later part overrides."""

    year: int
    month: int
    day: int
    hour: int = 0
    minute: int = 0
    second: int = 0
    dated: bool = False  # a date was given
    yearless: bool = False  # the date had no year
    clocked: bool = False  # a time of day was given
    skipped: bool = False  # a change of the clocks skips it


def parse_time(text: str, now: float, *, past: bool = False) -> float:
    """Parse a time in any form of the manual into epoch seconds; `now` is in epoch seconds. Raises BadValue.

    A time of day, or a date without a year, means the next one in the future, or with `past` the last one in
    the past. A local time that a change of the clocks skips means the first instant after it.
    """
    return find_time(text, now, past=past)[0]


def find_time(text: str, now: float, *, past: bool = False) -> tuple[float, bool]:
    """Parse a time as `parse_time` does; return also whether a change of the clocks skips it."""
    bare = text.strip()
    if match := _AGO.fullmatch(bare):
        return now - int(match[1]) * _STEP[match[2].lower()], False
    if match := _NOW.fullmatch(bare):
        step = int(match[2] or 0) * _STEP[(match[3] or "s")[0].lower()]
        return (now - step if match[1] == "-" else now + step), False
    today = time.localtime(now)
    moment = _Moment(today.tm_year, today.tm_mon, today.tm_mday)
    _read_parts(text, bare, moment)
    epoch = _epoch(text, moment)
    if past or epoch > now:
        return epoch, moment.skipped
    if moment.clocked and not moment.dated:
        moment.day += 1
    elif moment.yearless and (moment.month, moment.day) < (today.tm_mon, today.tm_mday):
        moment.year += 1
    return _epoch(text, moment), moment.skipped


def _read_parts(text: str, bare: str, moment: _Moment) -> None:
    at = 0
    while at < len(bare) or not bare:
        match = _PART.match(bare, at)
        if not match:
            raise BadValue(text, _NOT_A_TIME)
        _apply(text, match, moment)
        at = match.end()
        # What may stand between a date and a time of day.
        if at < len(bare) - 1 and (bare[at] in "-+ " or (bare[at] in "Tt" and match["year"])):
            at += 1


def _apply(text: str, match: re.Match[str], moment: _Moment) -> None:
    if match["word"]:
        word = match["word"].lower()
        if word in _CLOCK_WORDS:
            moment.hour, moment.minute, moment.second, moment.clocked = _CLOCK_WORDS[word], 0, 0, True
        else:
            moment.day += word == "tomorrow"
            moment.dated = True
    elif match["hour"]:
        moment.hour = _hour(text, int(match["hour"]), (match["half"] or "").lower())
        moment.minute, moment.second, moment.clocked = int(match["minute"]), int(match["second"] or 0), True
    else:
        year = match["year"] or match["y2"] or match["y3"]
        moment.month = int(match["month"] or match["m2"] or match["m3"])
        moment.day = int(match["day"] or match["d2"] or match["d3"])
        moment.dated, moment.yearless = True, year is None
        if year:
            moment.year = int(year) + (2000 if len(year) == 2 else 0)
        if not 1 <= moment.month <= 12 or not 1 <= moment.day <= _days(moment.year, moment.month):
            raise BadValue(text, f": there is no such date; {_form_of_dates(moment)}")
        if match["sep"] == "." and moment.month != moment.day <= 12:
            raise BadValue(text, f" is {_day(moment)} or {_exchanged(moment)}; write the one that is meant")
    if moment.minute > 59 or moment.second > 59 or moment.hour > 23:
        raise BadValue(text, ": there is no such time of day")


def _day(moment: _Moment) -> str:
    return f"{moment.year}-{moment.month:02d}-{moment.day:02d}"


def _exchanged(moment: _Moment) -> str:
    """Return the date with day and month exchanged."""
    return f"{moment.year}-{moment.day:02d}-{moment.month:02d}"


def _form_of_dates(moment: _Moment) -> str:
    """Return the form of dates, with the date that was meant if day and month are exchanged."""
    if moment.month > 12 and 1 <= moment.day <= 12 and moment.month <= _days(moment.year, moment.day):
        year = "" if moment.yearless else f", such as {_exchanged(moment)}"
        return f"dates are written YYYY-MM-DD or MM/DD{year}"
    return "dates are written YYYY-MM-DD or MM/DD"


def _hour(text: str, hour: int, half: str) -> int:
    if not half:
        return hour
    if not 1 <= hour <= 12:
        raise BadValue(text, ": there is no such time of day")
    return hour % 12 + (12 if half == "pm" else 0)


def _days(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def _epoch(text: str, moment: _Moment) -> float:
    clock = requested_clock = [moment.hour, moment.minute, moment.second]
    for _ in range(24 * 60):  # a gap in local time is at most a day long
        try:
            epoch = time.mktime(
                (moment.year, moment.month, moment.day, clock[0], clock[1], clock[2], 0, 0, -1)
            )
        except (OverflowError, ValueError):
            raise BadValue(text, ": out of range") from None
        local = time.localtime(epoch)
        if [local.tm_hour, local.tm_min, local.tm_sec] == [clock[0] % 24, clock[1] % 60, clock[2]]:
            moment.skipped = clock is not requested_clock
            return epoch
        clock = [clock[0], clock[1] + 1, 0] if clock[1] < 59 else [clock[0] + 1, 0, 0]
    raise BadValue(text, ": there is no such time of day")


# --- printed ----------------------------------------------------------------------------------------------

_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def format_time(
    epoch: float | None, style: str = "standard", *, now: float | None = None, unknown: str = "N/A"
) -> str:
    """Format epoch seconds as local time; `unknown` replaces None.

    `style` is the value of FG_TIME_FORMAT: standard, relative (to `now`), or a format of strftime.
    """
    if epoch is None:
        return unknown
    try:
        local = time.localtime(epoch)
        if style == "relative" and now is not None:
            return _relative(local, now)
        form = "%Y-%m-%dT%H:%M:%S" if style in ("", "standard", "relative") else style
        return time.strftime(form, local)
    except (OverflowError, ValueError, OSError):
        return unknown


def _relative(local: time.struct_time, now: float) -> str:
    today = time.localtime(now)
    days = round((_noon(local) - _noon(today)) / DAY)
    clock = time.strftime("%H:%M", local)
    if days == 0:
        return time.strftime("%H:%M:%S", local)
    if abs(days) == 1:
        return f"{'Ystday' if days < 0 else 'Tomorr'} {clock}"
    if abs(days) < 7:
        return f"{_WEEKDAYS[local.tm_wday]} {clock}"
    day = f"{local.tm_mday} {_MONTHS[local.tm_mon - 1]}"
    return f"{day} {clock}" if local.tm_year == today.tm_year else f"{day} {local.tm_year}"


def _noon(local: time.struct_time) -> float:
    return time.mktime((local.tm_year, local.tm_mon, local.tm_mday, 12, 0, 0, 0, 0, -1))
