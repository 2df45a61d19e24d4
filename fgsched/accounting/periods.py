"""Parse, name and compare the periods of reports: days, weeks, months and spans, in the host's time zone.

A day begins at local midnight, so a week with a change of the clocks has 167 or 169 hours.
"""

import re
import time
from typing import Literal

from msgspec import Struct

from fgsched.domain.errors import BadUsage
from fgsched.domain.text import word_list
from fgsched.domain.times import DAY, HOUR, format_time, parse_time

Noun = Literal["week", "month", "day", "period"]
Default = Literal["day", "week", "30 days", "month"]
_WEEK = re.compile(r"([0-9]{4})-?[Ww]([0-9]{2})")
_MONTH = re.compile(r"([0-9]{4})-([0-9]{2})")
_ISO = "%Y-%m-%dT%H:%M:%S%z"
_DASH = "\u2013"
_MONTHS = word_list(
    """January February March April May June July August September October November December"""
)
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_FIRST_YEAR, _LAST_YEAR = 1971, 9998


class Period(Struct, frozen=True, kw_only=True):
    """A period that begins and ends at full hours of the host's time zone."""

    since: float  # epoch seconds
    until: float  # epoch seconds, exclusive
    noun: Noun
    closed: bool  # it has ended

    @property
    def name(self) -> str:
        """Return the short name: 2026-W46, 2026-11, 2026-11-15, or two dates."""
        first, last = time.localtime(self.since), time.localtime(self.until - 1)
        if self.noun == "week":
            return time.strftime("%G-W%V", first)
        if self.noun == "month":
            return time.strftime("%Y-%m", first)
        if self.noun == "day":
            return time.strftime("%Y-%m-%d", first)
        if self.is_of_whole_days:
            return f"{time.strftime('%Y-%m-%d', first)}..{time.strftime('%Y-%m-%d', last)}"
        form = "%Y-%m-%dT%H:%M"
        return f"{time.strftime(form, first)}..{time.strftime(form, time.localtime(self.until))}"

    @property
    def label(self) -> str:
        """Return the dates for a heading: 9 to 15 November 2026, with a dash."""
        first, last = time.localtime(self.since), time.localtime(self.until - 1)
        if not self.is_of_whole_days:
            return f"{_moment(self.since)} {_DASH} {_moment(self.until)}"
        if self.noun == "day":
            return f"{_WEEKDAYS[first.tm_wday]} {_date(last)}"
        if self.noun == "month" and time.localtime(self.until).tm_mday == 1:
            return f"{_MONTHS[first.tm_mon - 1]} {first.tm_year}"
        if first.tm_year != last.tm_year:
            return f"{_date(first)} {_DASH} {_date(last)}"
        if first.tm_mon != last.tm_mon:
            return f"{first.tm_mday} {_MONTHS[first.tm_mon - 1]} {_DASH} {_date(last)}"
        if first.tm_mday == last.tm_mday:
            return _date(last)
        return f"{first.tm_mday}{_DASH}{_date(last)}"

    @property
    def is_of_whole_days(self) -> bool:
        """Tell whether the period begins and ends at midnight."""
        return _is_midnight(self.since) and _is_midnight(self.until)

    @property
    def since_iso(self) -> str:
        return format_time(self.since, _ISO)

    @property
    def until_iso(self) -> str:
        return format_time(self.until, _ISO)

    @property
    def hours(self) -> int:
        """Return the number of hours; a change of the clocks adds or removes one."""
        return round((self.until - self.since) / HOUR)

    def before(self) -> "Period":
        """Return the period to compare with: the same part of the month or week before, or as many days."""
        if self.noun == "month":
            since, until = _month_earlier(self.since), _month_earlier(self.until)
            return Period(since=since, until=min(until, self.since), noun="month", closed=True)
        if not self.is_of_whole_days and self.noun == "period":
            return Period(since=2 * self.since - self.until, until=self.since, noun="period", closed=True)
        days = 7 if self.noun == "week" else round((self.until - self.since) / DAY)
        return Period(
            since=_days_earlier(self.since, days),
            until=_days_earlier(self.until, days),
            noun=self.noun,
            closed=True,
        )


class Choice(Struct, frozen=True, kw_only=True):
    """The options of a command that choose a period, as given."""

    since: str = ""
    until: str = ""
    week: str = ""
    month: str = ""
    yesterday: bool = False


def chosen(choice: Choice, default: Default, now: float) -> Period:
    """Return the period of a report; `now` is in epoch seconds.

    Without a choice it is the last whole day, the last seven or thirty whole days, or the last month.
    Raises BadUsage if options contradict each other, and for a reversed period or one in the future.
    """
    names = [
        name
        for name, value in (
            ("--since or --until", choice.since or choice.until),
            ("--week", choice.week),
            ("--month", choice.month),
            ("--yesterday", choice.yesterday),
        )
        if value
    ]
    if len(names) > 1:
        raise BadUsage(f"{names[0]} and {names[1]} exclude each other", "Choose the period with one of them.")
    if choice.week:
        return _clipped(*_week(choice.week), "week", now)
    if choice.month:
        return _clipped(*_month(choice.month), "month", now)
    if choice.since or choice.until:
        return _span(choice.since, choice.until, now)
    return _usual("day" if choice.yesterday else default, now)


def _usual(default: Default, now: float) -> Period:
    today = time.localtime(now)
    end = _midnight(today.tm_year, today.tm_mon, today.tm_mday)
    if default == "month":
        this = _midnight(today.tm_year, today.tm_mon, 1)
        return Period(
            since=_midnight(today.tm_year, today.tm_mon - 1, 1), until=this, noun="month", closed=True
        )
    days = {"day": 1, "week": 7, "30 days": 30}[default]
    return _named(_days_earlier(end, days), end, now)


def _span(since: str, until: str, now: float) -> Period:
    end = _full_hour(parse_time(until, now, past=True)) if until else _full_hour(now)
    begin = _full_hour(parse_time(since, now, past=True)) if since else _days_earlier(end, 7)
    if end > now:
        raise BadUsage(f"the period ends in the future ({_moment(end)})", "Choose an earlier --until.")
    if begin >= now:
        raise BadUsage(f"the period begins in the future ({_moment(begin)})", "Choose an earlier --since.")
    if begin > end:
        raise BadUsage(
            f"the period ends ({_moment(end)}) before it begins ({_moment(begin)})",
            "Exchange --since and --until.",
        )
    if begin == end:
        raise BadUsage("the period is shorter than one hour", "Periods begin and end at full hours.")
    return _named(begin, end, now)


def _named(since: float, until: float, now: float) -> Period:
    """Return a period; its noun is "day", "week" or "month" if it is exactly one."""
    first = time.localtime(since)
    noun: Noun = "period"
    if _is_midnight(since):
        if until == _days_earlier(since, -1):
            noun = "day"
        elif first.tm_wday == 0 and until == _days_earlier(since, -7):
            noun = "week"
        elif first.tm_mday == 1 and until == _midnight(first.tm_year, first.tm_mon + 1, 1):
            noun = "month"
    return Period(since=since, until=until, noun=noun, closed=until <= now)


def _clipped(since: float, until: float, noun: Noun, now: float) -> Period:
    """Return a week or month, until the last full hour if it has not ended.

    Raises:
        BadUsage: it has not begun, or less than an hour ago.
    """
    if since >= _full_hour(now):
        raise BadUsage(
            f"the {noun} has not begun, or less than an hour ago ({_moment(since)})",
            f"Choose an earlier {noun}.",
        )
    return Period(since=since, until=min(until, _full_hour(now)), noun=noun, closed=until <= now)


def _week(text: str) -> tuple[float, float]:
    match = _WEEK.fullmatch(text)
    year, number = (int(match[1]), int(match[2])) if match else (0, 0)
    if not match or not _FIRST_YEAR <= year <= _LAST_YEAR or not 1 <= number <= _weeks(year):
        raise BadUsage(f"'{text[:20]}' is not a week", "Use a week of ISO 8601, such as 2026-W46.")
    fourth = time.localtime(_midnight(year, 1, 4))  # always in the first week
    day = 4 - fourth.tm_wday + 7 * (number - 1)
    return _midnight(year, 1, day), _midnight(year, 1, day + 7)


def _weeks(year: int) -> int:
    """Return the number of ISO weeks of a year."""
    return int(time.strftime("%V", time.localtime(_midnight(year, 12, 28))))


def _month(text: str) -> tuple[float, float]:
    match = _MONTH.fullmatch(text)
    year, number = (int(match[1]), int(match[2])) if match else (0, 0)
    if not match or not _FIRST_YEAR <= year <= _LAST_YEAR or not 1 <= number <= 12:
        raise BadUsage(f"'{text[:20]}' is not a month", "Use a year and a month, such as 2026-10.")
    return _midnight(year, number, 1), _midnight(year, number + 1, 1)


# -- local time ----------------------------------------------------------------------------------------


def _midnight(year: int, month: int, day: int) -> float:
    """Return the begin of a day in epoch seconds; month 0 is December of the year before, and so on."""
    epoch = time.mktime((year, month, day, 0, 0, 0, 0, 0, -1))
    if time.localtime(epoch).tm_hour > 12:  # this midnight does not exist: the day begins an hour later
        epoch += HOUR
    return epoch


def _days_earlier(moment: float, days: int) -> float:
    local = time.localtime(moment)
    if _is_midnight(moment):
        return _midnight(local.tm_year, local.tm_mon, local.tm_mday - days)
    return time.mktime((local.tm_year, local.tm_mon, local.tm_mday - days, local.tm_hour, 0, 0, 0, 0, -1))


def _month_earlier(moment: float) -> float:
    """Return the same day and hour of the month before; 31 March becomes 3 March, or 2 in a leap year."""
    local = time.localtime(moment)
    return _midnight(local.tm_year, local.tm_mon - 1, local.tm_mday) + HOUR * local.tm_hour


def _is_midnight(moment: float) -> bool:
    local = time.localtime(moment)
    return moment == _midnight(local.tm_year, local.tm_mon, local.tm_mday)


def _full_hour(moment: float) -> float:
    local = time.localtime(moment)
    return float(int(moment) - 60 * local.tm_min - local.tm_sec)


def _date(day: time.struct_time) -> str:
    return f"{day.tm_mday} {_MONTHS[day.tm_mon - 1]} {day.tm_year}"


def _moment(moment: float) -> str:
    day = time.localtime(moment)
    date = f"{_WEEKDAYS[day.tm_wday][:3]} {day.tm_mday} {_MONTHS[day.tm_mon - 1][:3]} {day.tm_year}"
    return f"{date} {day.tm_hour:02d}:{day.tm_min:02d}"
