"""Rows grouped by the native part: sums as SQLite makes them, and numbers in order."""

import random
import sqlite3

import pytest

from fgsched.reports.grouping import Grouping, Numbers, group, ordered

ROWS = [
    ("ann", 1, 2.5, None, -3.0),
    ("ben", 1, None, None, 8.0),
    ("ann", 1, 0.5, 7, 4.0),
    ("ann", 2, 1.0, 9, None),
]


def test_rows_with_equal_keys_are_summed_up_and_compared():
    found = Grouping((0, 2), [("sum", 2), ("max", 3), ("min", 4)], collected=4, least=0.0)
    group(ROWS, found)
    results = [(one.key, one.rows, one[0], one[1], one[2], list(one.values)) for one in found.groups()]
    assert results == [
        (("ann", 1), 2, 3.0, 7.0, -3.0, [0.0, 4.0]),
        (("ben", 1), 1, None, None, 8.0, [8.0]),
        (("ann", 2), 1, 1.0, 9.0, None, []),
    ]


def test_one_pass_fills_several_groupings():
    names, all_rows = Grouping((0, 1), [("sum", 2)]), Grouping((0, 0), [], required=3)
    group(iter(ROWS), names, all_rows)
    assert [(one.key, one.rows) for one in names.groups()] == [(("ann",), 3), (("ben",), 1)]
    assert [(one.key, one.rows) for one in all_rows.groups()] == [((), 2)]


def test_a_grouping_says_that_it_has_too_many_groups():
    few, enough = Grouping((0, 2), [], most=2), Grouping((0, 2), [], most=3)
    group(ROWS, few), group(ROWS, enough)
    assert (few.is_full, len(few.groups()), enough.is_full) == (True, 2, False)


def test_sums_are_those_of_sqlite():
    chance = random.Random(13)
    rows = [(chance.randrange(40), chance.choice([None, chance.uniform(-1e9, 1e9)])) for _ in range(5000)]
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE one (key INTEGER, value REAL)")
    db.executemany("INSERT INTO one VALUES (?, ?)", rows)
    asked = "SELECT key, count(*), sum(value), max(value), min(value) FROM one GROUP BY key ORDER BY key"
    found = Grouping((0, 1), [("sum", 1), ("max", 1), ("min", 1)])
    group(rows, found)
    ours = sorted((one.key[0], one.rows, one[0], one[1], one[2]) for one in found.groups())
    assert ours == [pytest.approx(row) for row in db.execute(asked)]
    db.close()


@pytest.mark.parametrize("count", [0, 1, 7, 511, 512, 5000])
def test_numbers_are_put_in_order(count):
    chance = random.Random(count)
    kinds = (0.0, -0.0, -1.5, 1e-310, 3.0)
    values = [chance.choice([*kinds, chance.uniform(-1e6, 1e6), float("inf")]) for _ in range(count)]
    half = count // 2
    found = ordered([Numbers(values[:half]), Numbers(), Numbers(values[half:])])
    assert list(found) == sorted(values)
    assert (len(found), list(found)[-1:]) == (count, sorted(values)[-1:])


def test_numbers_are_a_sequence():
    found = Numbers([4.0, 2.0])
    assert (found[0], found[-1], len(found), bool(Numbers())) == (4.0, 2.0, 2, False)
    for index in (2, -3):
        with pytest.raises(IndexError):
            found[index]


def test_a_wrong_use_is_refused():
    with pytest.raises(ValueError, match="too few columns"):
        group([(1,)], Grouping((0, 1), [("sum", 1)]))
    with pytest.raises(ValueError, match="at most 12 columns"):
        Grouping((0, 1), [("sum", 1)] * 13)
    with pytest.raises(TypeError):
        group([("a", "text")], Grouping((0, 1), [("sum", 1)]))
