"""Text and integers: what users type, and what is printed."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgsched.domain import times, units
from fgsched.domain.errors import BadUsage, FgschedError, NoSuchJob
from fgsched.domain.text import shown

NOT_A_NUMBER = "is not a number (use 0 < fraction ≤ 1 or a whole number)"
DAY = 86_400


def cause(function, text, **options):
    with pytest.raises(BadUsage) as raised:
        function(text, **options)
    return raised.value.cause


@pytest.fixture
def berlin(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


# --- shares -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "share"),
    [("0.5", 5000), (".5", 5000), ("50%", 5000), ("1/2", 5000), ("12.5%", 1250), ("1", 10_000),
     ("1.0", 10_000), ("100%", 10_000), ("0.0001", 1), ("1/3", 3333), ("2/3", 6666), ("0.10000", 1000)],
)  # fmt: skip
def test_a_share_is_read_in_every_form_that_users_write(text, share):
    assert units.parse_share(text) == share


def test_ten_tenths_are_one_card():
    assert sum(units.parse_share("0.1") for _ in range(10)) == units.parse_share("1")


@pytest.mark.parametrize(
    "text",
    [
        "0.5.5",
        "abc",
        "nan",
        "inf",
        "1e308",
        "0x1",
        "\u0660\u066b\u0665",
        "1_0",
        "-1",
        "+1",
        ".",
        "0.55x",
        "1/0",
        "½",
        "5 0",
    ],
)
def test_what_is_no_ascii_number_is_refused(text):
    assert cause(units.parse_gpus, text) == f"{shown(text)} {NOT_A_NUMBER}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"'' {NOT_A_NUMBER}"),
        ("0.0000001", "0.0000001: smallest share is 0.0001"),
        ("1/99999", "1/99999: smallest share is 0.0001"),
        ("0.00015", "0.00015 has more than four decimals; use 0.0001 or 0.0002"),
        (
            "1.25",
            "1.25: fractions above one GPU are not possible; use 1 or 2, or --gpu-mem"
            " (above 1 only whole GPUs)",
        ),
        (
            "a100:2.5",
            "a100:2.5: fractions above one GPU are not possible; use 2 or 3, or --gpu-mem"
            " (above 1 only whole GPUs)",
        ),
        ("99999999", "99999999: no host has so many GPUs"),
        (":1", ":1 has no GPU type before the colon"),
        ("\x1b[31m", f"'\\x1b[31m' {NOT_A_NUMBER}"),
        ("9" * 100 + "x", "9" * 80 + f"… {NOT_A_NUMBER}"),
    ],
)
def test_a_bad_amount_is_shown_with_what_is_allowed(text, message):
    assert cause(units.parse_gpus, text) == message


@pytest.mark.parametrize(
    ("text", "amount"),
    [("0", ("", 0, 0)), ("0.5", ("", 1, 5000)), ("1", ("", 1, 10_000)), ("2", ("", 2, 10_000)),
     ("a100:0.5", ("a100", 1, 5000)), ("A100-SXM4:2", ("A100-SXM4", 2, 10_000)), ("200%", ("", 2, 10_000))],
)  # fmt: skip
def test_an_amount_of_gpus_is_a_type_a_count_and_a_share(text, amount):
    assert units.parse_gpus(text) == amount


@given(st.integers(1, 10_000))
def test_a_share_survives_being_printed(share):
    assert units.parse_share(units.format_share(share)) == share


@given(st.integers(1, 10_000), st.integers(1, 5000))
def test_the_neighbours_of_a_share_are_legal(share, step):
    low, high = units.neighbours(share, step)
    assert low % step == 0
    assert 0 < low < high <= 10_000


# --- bytes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mebibytes"),
    [("10", 10), ("10M", 10), ("10mb", 10), ("10GB", 10_240), ("10gib", 10_240), ("1T", 1 << 20), ("1K", 1),
     ("1025k", 2), ("1.5G", 1536), ("0", 0)],
)  # fmt: skip
def test_memory_is_read_with_its_unit_and_rounded_up_to_mebibytes(text, mebibytes):
    assert units.parse_bytes(text) == mebibytes << 20


@pytest.mark.parametrize("text", ["1e3M", "-5G", "", "G", "10B", "5X", "\u0665", "1.G", "1 G"])
def test_what_is_no_size_is_refused_with_the_rule_for_units(text):
    rule = "is not a size (use a number and K, M, G or T; without a unit it is MiB)"
    assert cause(units.parse_bytes, text) == f"{shown(text)} {rule}"


def test_a_size_that_no_integer_holds_is_refused():
    assert cause(units.parse_bytes, "99999999T") == "99999999T is larger than 2^63 bytes"


@given(st.integers(0, (1 << 42) - 1))
def test_a_size_survives_being_printed(mebibytes):
    size = mebibytes << 20
    assert units.parse_bytes(units.format_mebibytes(size)) == size


# --- durations --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("1:30", 90), ("1-0", DAY), ("1-00:00", DAY), ("24:00:00", DAY), ("00:00:00", 0), ("0", 0),
     ("-1", 0), ("Infinite", 0), ("UNLIMITED", 0), ("1-2:3", DAY + 7380), ("1-02:03:04", DAY + 7384),
     ("90s", 90), ("2h", 7200), ("1d12h", 129_600), ("5m", 300), ("366-0", 366 * DAY)],
)  # fmt: skip
def test_a_duration_has_slurms_meaning(text, seconds):
    assert times.parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0:600", 600), ("1:60", 120), ("1:60:00", 7200), ("99:99:99", 362_439), ("1-1:60", 93_600)],
)
def test_minutes_and_seconds_can_be_more_than_59_as_in_slurm(text, seconds):
    assert times.parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("400-0", "400-0: limit is at most 366 days"),
        ("999999999-0", "999999999-0: limit is at most 366 days"),
        ("2147483648", "2147483648: limit is at most 366 days"),
        ("18446744073709551616s", "18446744073709551616s: limit is at most 366 days"),
        ("1:99999999999:00", "1:99999999999:00: limit is at most 366 days"),
        (
            "∞",
            "∞ is not a duration (use minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S, 90s, 2h, 1d12h or unlimited)",
        ),
    ],
)
def test_a_bad_duration_names_its_field(text, message):
    assert cause(times.parse_duration, text) == message


@given(st.integers(1, 365 * DAY))
def test_a_duration_survives_being_printed(seconds):
    printed = times.format_runtime(seconds)
    assert times.parse_duration(printed) == seconds
    assert times.parse_duration(times.format_limit(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "queue", "accounting"),
    [(0, "0:00", "00:00:00"), (723, "12:03", "00:12:03"), (3600, "1:00:00", "01:00:00"),
     (2 * DAY + 11_045, "2-03:04:05", "2-03:04:05"), (-1, "INVALID", "00:00:00")],
)  # fmt: skip
def test_run_time_is_printed_as_the_queue_and_as_accounting_do(seconds, queue, accounting):
    assert (times.format_runtime(seconds), times.format_elapsed(seconds)) == (queue, accounting)


def test_no_limit_is_printed_as_unlimited():
    assert times.format_limit(0) == "UNLIMITED"


# --- points in time ---------------------------------------------------------------------------------------

NOW = 1_795_206_600.0  # 2026-11-20T20:30:00 UTC, a Friday


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("21:15", "2026-11-20T21:15:00"),
        ("18:00", "2026-11-21T18:00:00"),  # passed today
        ("9:05:07 PM", "2026-11-20T21:05:07"),
        ("12:30 am", "2026-11-21T00:30:00"),
        ("1225", "2026-12-25T00:00:00"),
        ("122527", "2027-12-25T00:00:00"),
        ("01/02", "2027-01-02T00:00:00"),  # passed this year
        ("12.25.26", "2026-12-25T00:00:00"),
        ("12/25-18:30", "2026-12-25T18:30:00"),
        ("2026-12-25T18:30", "2026-12-25T18:30:00"),
        ("now", "2026-11-20T20:30:00"),
        ("now+90", "2026-11-20T20:31:30"),
        ("now+2hours", "2026-11-20T22:30:00"),
        ("now+1min", "2026-11-20T20:31:00"),
        ("now+30sec", "2026-11-20T20:30:30"),
        ("now+2hrs", "2026-11-20T22:30:00"),
        ("now+1week", "2026-11-27T20:30:00"),
        ("now-3days", "2026-11-17T20:30:00"),
        ("today", "2026-11-20T00:00:00"),
        ("tomorrow", "2026-11-21T00:00:00"),
        ("midnight", "2026-11-21T00:00:00"),
        ("noon", "2026-11-21T12:00:00"),
        ("elevenses", "2026-11-21T11:00:00"),
        ("fika", "2026-11-21T15:00:00"),
        ("teatime", "2026-11-21T16:00:00"),
        ("tomorrow18:00", "2026-11-21T18:00:00"),
        ("-6h", "2026-11-20T14:30:00"),
        ("-7d", "2026-11-13T20:30:00"),
    ],
)
def test_a_point_in_time_is_read_in_every_form_of_the_manual(utc, text, printed):
    assert times.format_time(times.parse_time(text, NOW)) == printed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "foo",
        "25:00",
        "2026-02-30",
        "13/01",
        "99:99",
        "13:00 pm",
        "2026-11-20T",
        "now+",
        "\u0661\u0668:\u0660\u0660",
    ],
)
def test_a_bad_point_in_time_is_refused(utc, text):
    assert cause(times.parse_time, text, now=NOW).startswith(shown(text))


def test_history_does_not_move_a_time_of_day_to_tomorrow(utc):
    assert times.format_time(times.parse_time("18:00", NOW, past=True)) == "2026-11-20T18:00:00"


def test_an_hour_that_the_clocks_leave_out_means_the_first_instant_after_it(berlin):
    assert times.format_time(times.parse_time("2027-03-28T02:30", NOW)) == "2027-03-28T03:00:00"


def test_a_gap_of_half_an_hour_is_not_taken_for_an_hour(monkeypatch, utc):
    monkeypatch.setenv("TZ", "Australia/Lord_Howe")
    time.tzset()
    assert times.format_time(times.parse_time("2026-10-04T02:10", NOW)) == "2026-10-04T02:30:00"


@pytest.mark.parametrize(
    ("style", "printed"),
    [
        ("", "2026-11-21T20:30:00"),
        ("standard", "2026-11-21T20:30:00"),
        ("relative", "Tomorr 20:30"),
        ("%H", "20"),
    ],
)
def test_the_format_of_times_is_the_users_choice(utc, style, printed):
    assert times.format_time(NOW + DAY, style, now=NOW) == printed


def test_an_unknown_time_is_not_available():
    assert times.format_time(None) == "N/A"


# --- ids, signals, indices --------------------------------------------------------------------------------


def test_ids_may_be_listed_and_ranged():
    assert units.parse_ids("7,10-14,3") == [7, 10, 11, 12, 13, 14, 3]


@pytest.mark.parametrize("text", ["abc", "-5", "0", "1.5", "5-1", "", "1,,2", "\u0667"])
def test_what_is_no_job_id_is_wrong_usage(text):
    assert "is not a job id" in cause(units.parse_ids, text)


def test_an_id_too_large_for_any_job_is_a_job_that_does_not_exist():
    with pytest.raises(NoSuchJob) as raised:
        units.parse_ids("99999999999999999999")
    assert raised.value.cause == "job 99999999999999999999 does not exist"


def test_a_range_without_bounds_is_refused_before_it_is_counted_out():
    assert cause(units.parse_ids, "1-999999999999") == "1-999999999999 names more than 100000 jobs"


@pytest.mark.parametrize(
    ("text", "number"), [("KILL", 9), ("sigterm", 15), ("SigUsr1", 10), ("64", 64), ("1", 1)]
)
def test_a_signal_has_a_name_or_a_number(text, number):
    assert units.parse_signal(text) == number


@pytest.mark.parametrize("text", ["SIGFOO", "0", "65", "", "-9", "SIG_DFL", "9.0"])
def test_a_bad_signal_is_answered_with_the_list(text):
    message = cause(units.parse_signal, text)
    assert message.startswith(f"{shown(text)} is not a signal (use 1 to 64, or one of ABRT ALRM BUS")


@given(st.integers(1, 31))
def test_a_signals_name_leads_back_to_it(number):
    assert units.parse_signal(units.signal_name(number)) == number


@given(st.sets(st.integers(0, 300), min_size=1))
def test_an_index_list_survives_being_printed(indices):
    assert units.parse_indices(units.format_indices(indices)) == tuple(sorted(indices))


# --- anything at all --------------------------------------------------------------------------------------

PARSERS = [
    units.parse_share,
    units.parse_gpus,
    units.parse_bytes,
    units.parse_count,
    times.parse_duration,
    units.parse_ids,
    units.parse_signal,
    units.parse_indices,
    lambda text: times.parse_time(text, NOW),
]


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.one_of(st.text(), st.text("0123456789.:-/%@+TGMK,dhms apn", max_size=30)))
def test_any_text_gives_a_value_or_an_error_on_one_printable_line(parse, text):
    try:
        parse(text)
    except FgschedError as error:
        assert error.cause.isprintable()  # noqa: PT017


@pytest.mark.parametrize("text", ["0,5", "1,5", "0,1,2"])
def test_a_comma_in_an_amount_of_gpus_is_answered_with_the_point(text):
    """A decimal comma, or indices as in CUDA_VISIBLE_DEVICES."""
    rule = "is not a number (it is an amount with a decimal point, such as 0.5, and no list of GPUs)"
    assert cause(units.parse_gpus, text) == f"{text} {rule}"


@pytest.mark.parametrize("text", ["8G", "8GB", "8Gi", "8GiB", "8gi", "8192Mi"])
def test_a_size_has_the_units_of_other_programs(text):
    assert units.parse_bytes(text) == 8 << 30
