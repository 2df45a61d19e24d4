"""Periods of reports: names, bounds in local time, days on which the clocks change, and refusals."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgsched.accounting.periods import Choice, Period, chosen
from fgsched.domain.errors import BadUsage
from fgsched.domain.text import BadValue
from history import ZONE, at, ts, zone

NOW = ts(at(2026, 11, 16, 6, 30))


@pytest.fixture(autouse=True)
def berlin():
    with zone():
        yield


def bounds(period: Period) -> tuple[str, str]:
    return period.since_iso, period.until_iso


@pytest.mark.parametrize(
    ("choice", "default", "named", "span"),
    [
        (
            Choice(week="2026-W46"),
            "week",
            ("2026-W46", "9\u201315 November 2026", "week"),
            (at(2026, 11, 9), at(2026, 11, 16)),
        ),
        (
            Choice(month="2026-10"),
            "week",
            ("2026-10", "October 2026", "month"),
            (at(2026, 10, 1), at(2026, 11, 1)),
        ),
        (
            Choice(yesterday=True),
            "week",
            ("2026-11-15", "Sunday 15 November 2026", "day"),
            (at(2026, 11, 15), at(2026, 11, 16)),
        ),
        (
            Choice(),
            "week",
            ("2026-W46", "9\u201315 November 2026", "week"),
            (at(2026, 11, 9), at(2026, 11, 16)),
        ),
        (
            Choice(),
            "day",
            ("2026-11-15", "Sunday 15 November 2026", "day"),
            (at(2026, 11, 15), at(2026, 11, 16)),
        ),
        (Choice(), "month", ("2026-10", "October 2026", "month"), (at(2026, 10, 1), at(2026, 11, 1))),
        (
            Choice(),
            "30 days",
            ("2026-10-17..2026-11-15", "17 October \u2013 15 November 2026", "period"),
            (at(2026, 10, 17), at(2026, 11, 16)),
        ),
        (
            Choice(since="-7d", until="today"),
            "day",
            (
                "2026-11-09T06:00..2026-11-16T00:00",
                "Mon 9 Nov 2026 06:00 \u2013 Mon 16 Nov 2026 00:00",
                "period",
            ),
            (at(2026, 11, 9, 6), at(2026, 11, 16)),
        ),
        (
            Choice(since="2025-12-29", until="2026-01-05"),
            "day",
            ("2026-W01", "29 December 2025 \u2013 4 January 2026", "week"),
            (at(2025, 12, 29), at(2026, 1, 5)),
        ),
        (
            Choice(since="2026-11-16T04:50"),
            "day",
            (
                "2026-11-16T04:00..2026-11-16T06:00",
                "Mon 16 Nov 2026 04:00 \u2013 Mon 16 Nov 2026 06:00",
                "period",
            ),
            (at(2026, 11, 16, 4), at(2026, 11, 16, 6)),
        ),
    ],
)
def test_a_period_has_a_name_and_its_bounds_in_local_time(choice, default, named, span):
    period = chosen(choice, default, NOW)
    assert (period.name, period.label, period.noun) == named
    assert (period.since, period.until) == tuple(ts(one) for one in span)
    assert period.closed


def test_a_week_in_which_the_clocks_change_has_an_hour_more_or_less():
    spring, autumn = (chosen(Choice(week=week), "week", NOW) for week in ("2026-W13", "2026-W43"))
    assert (spring.hours, autumn.hours) == (167, 169)
    assert bounds(autumn) == ("2026-10-19T00:00:00+0200", "2026-10-26T00:00:00+0100")
    assert bounds(autumn.before()) == ("2026-10-12T00:00:00+0200", "2026-10-19T00:00:00+0200")
    assert bounds(chosen(Choice(week="2026-W44"), "week", NOW).before()) == bounds(autumn)


def test_a_week_that_has_not_ended_is_the_part_so_far_and_compared_with_that_part_of_the_last():
    period = chosen(Choice(week="2026-W47"), "week", NOW)
    assert (period.name, period.closed) == ("2026-W47", False)
    assert bounds(period) == ("2026-11-16T00:00:00+0100", "2026-11-16T06:00:00+0100")
    assert bounds(period.before()) == ("2026-11-09T00:00:00+0100", "2026-11-09T06:00:00+0100")


def test_a_month_that_has_not_ended_is_compared_with_that_part_of_the_last():
    period = chosen(Choice(month="2026-11"), "week", NOW)
    assert bounds(period.before()) == ("2026-10-01T00:00:00+0200", "2026-10-16T06:00:00+0200")
    late = chosen(Choice(month="2026-03"), "week", ts(at(2026, 3, 31, 12))).before()
    assert bounds(late) == ("2026-02-01T00:00:00+0100", "2026-03-01T00:00:00+0100")


@pytest.mark.parametrize(
    ("choice", "since", "until"),
    [
        (Choice(month="2026-10"), at(2026, 9, 1), at(2026, 10, 1)),
        (Choice(month="2026-01"), at(2025, 12, 1), at(2026, 1, 1)),
        (Choice(yesterday=True), at(2026, 11, 14), at(2026, 11, 15)),
        (Choice(), at(2026, 9, 17), at(2026, 10, 17)),
        (Choice(since="-6h"), at(2026, 11, 15, 18), at(2026, 11, 16, 0)),
    ],
)
def test_a_period_is_compared_with_the_one_before_it(choice, since, until):
    before = chosen(choice, "30 days", NOW).before()
    assert (before.since, before.until) == (ts(since), ts(until))


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (Choice(week="2026-W48"), "has not begun"),
        (Choice(month="2027-01"), "has not begun"),
        (Choice(week="2026-W54"), "is not a week"),
        (Choice(week="2025-W53"), "is not a week"),
        (Choice(week="W46"), "is not a week"),
        (Choice(month="2026-13"), "is not a month"),
        (Choice(month="2026"), "is not a month"),
        (Choice(since="2026-11-12", until="2026-11-10"), "before it begins"),
        (Choice(since="2026-11-20"), "begins in the future"),
        (Choice(since="2026-11-01", until="2026-11-20"), "ends in the future"),
        (Choice(since="06:10"), "shorter than one hour"),
        (Choice(week="2026-W46", yesterday=True), "exclude each other"),
        (Choice(since="-7d", month="2026-10"), "exclude each other"),
    ],
)
def test_a_period_that_cannot_be_reported_is_refused(choice, told):
    with pytest.raises(BadUsage, match=told):
        chosen(choice, "week", NOW)


def test_a_text_that_is_no_time_is_refused():
    with pytest.raises(BadValue, match="not a time"):
        chosen(Choice(since="last Tuesday"), "week", NOW)


@given(st.integers(1971, 2099), st.integers(1, 52))
def test_weeks_follow_each_other_without_a_gap(year, week):
    later = 6e9
    this = chosen(Choice(week=f"{year}-W{week:02d}"), "week", later)
    assert this.name == f"{year}-W{week:02d}"
    assert this.hours in (167, 168, 169)
    assert this.before().until == this.since
    assert datetime.fromtimestamp(this.since, ZoneInfo(ZONE)).strftime("%G-W%V-%u %H:%M") == (
        f"{year}-W{week:02d}-1 00:00"
    )
