"""Pending jobs that are read without decoding their rows: valid rows only, and equal to decoded ones."""

import random

import pytest

from fgsched.controller.jobtable import JobTable
from fgsched.domain.job import Demand, Job, Request
from fgsched.domain.states import JobState
from fgsched.store.freshrows import Part
from fgsched.store.rows import PendingJobs, PendingRows, parse_request, request_text

REQUESTS = [
    Request(name="a", args=("--lr", "0.1"), submit_line="fgsub a --lr 0.1"),
    Request(name="bb", args=("--lr", "0.2", ""), submit_line="fgsub bb --lr 0.2"),
    Request(name="", comment="c", demand=Demand(gpus=1, share=1250)),
    Request(name="ünïcode", submit_line="", rlimits=((1, 2, 3),), args=("]", "[,")),
    Request(name='quo"te', args=('"]',), submit_line='a "b"'),
    Request(name="back\\slash", args=("\t",)),
    Request(name="n" * 255, output="%x.out", args=("w" * 5000,)),
    Request(name="later", begin=5),
    Request(name="after", dependency="afterok:1"),
]


def rows_of(texts):
    return [(number, (7, 8, "ann"), text.encode(), float(number)) for number, text in enumerate(texts, 1)]


def part_of(texts, users="ann"):
    """The part with the rows of `rows_of`, as the queue file gives it."""
    numbers, size = range(1, len(texts) + 1), len(texts)
    names = [users] * size if isinstance(users, str) else users
    columns = ([*numbers], [7] * size, [8] * size)
    ids, uids, gids = (",".join(map(str, column)).encode() for column in columns)
    ticks = ",".join(str(number << 22) for number in numbers).encode()
    requests = "\x1e".join(texts).encode(errors="surrogateescape")
    return Part(size, ids, uids, gids, "\x1e".join(names).encode(), requests, ticks)


def job_of(number, request):
    return Job(id=number, uid=7, gid=8, user="ann", request=request, submitted_at=float(number))


def each(found):
    """The jobs, and the numbers of the rows that were not read, in order."""
    for one in found:
        if isinstance(one, PendingJobs):
            yield from map(one.job, one.ids)
        else:
            yield getattr(one, "job", one)


def test_every_row_gives_the_job_that_was_submitted():
    texts = [request_text(request) for request in REQUESTS * 2]
    expected = [job_of(number, request) for number, request in enumerate(REQUESTS * 2, 1)]
    assert list(each(PendingRows().read_each(rows_of(texts)))) == expected
    assert list(each(PendingRows().read(part_of(texts)))) == expected


def test_rows_that_differ_in_name_arguments_and_submission_line_have_one_kind():
    (found,) = PendingRows().read_each(rows_of(map(request_text, REQUESTS[:2])))
    assert len(list(found.by_kind())) == 1


def test_a_part_of_one_kind_is_read_whole():
    names = [request_text(Request(name=f"a{number}", submit_line=f"fgsub {number}")) for number in range(9)]
    (found,) = PendingRows().read(part_of(names))
    assert [job.request.name for job in each([found])] == [f"a{number}" for number in range(9)]
    assert [since for _, since in found.by_kind()] == [{number: float(number) for number in range(1, 10)}]


def test_a_damaged_request_that_contains_a_whole_one_leaves_its_part_to_the_reader_of_damaged_rows():
    assert list(each(PendingRows().read(part_of([LIKE, f"{LIKE}\x1e{LIKE}", LIKE])))) == [1, 2, 3]


@pytest.mark.parametrize("at", ["soon", None, -1.0, 2.0**60, b""])
def test_a_time_of_submission_that_is_damaged_is_left_to_the_reader_of_damaged_rows(at):
    text = request_text(REQUESTS[0]).encode()
    assert PendingRows().read_each([(1, (7, 8, "ann"), text, at)]) == [1]


@pytest.mark.parametrize("who", [(-1, 8, "ann"), (7, 2**32, "ann")])
def test_an_absurd_owner_is_left_to_the_reader_of_damaged_rows(who):
    assert PendingRows().read_each([(1, who, request_text(REQUESTS[0]).encode(), 1.0)]) == [1]


def test_a_quotation_mark_before_a_bracket_does_not_hide_damage():
    texts = [request_text(Request(name="a", args=("]", "[,"))), request_text(Request(name="a", args=("",)))]
    broken = [texts[0].replace('["]', '[","]'), texts[0].replace('["]', "[]"), texts[1].replace('""', '"')]
    first, second, *others = each(PendingRows().read_each(rows_of([*texts, *broken])))
    assert [first.request.args, second.request.args] == [("]", "[,"), ("",)]
    assert others == [3, 4, 5]


def test_arguments_and_a_submission_line_are_not_taken_for_each_other():
    valid = ['{"name":"z","args":[""],"submit_line":"]"}', '{"name":"z","args":["x"]}']
    broken = ['{"name":"z","submit_line":"fgsub ["]"}', '{"name":"z","args":["x],"submit_line":"fgsub [a]"]}']
    assert list(each(PendingRows().read_each(rows_of([*valid, *broken]))))[2:] == [3, 4]


LIKE = '{"name":"z","demand":{"gpus":1,"share":9},"submit_line":"fgsub z","qos":"q"}'


@pytest.mark.parametrize(
    "text",
    [
        '{"name":"z","demand":{"gpus":1,"share":9},"submit_line":","qos":"q"}',  # one mark for begin and end
        '{"name":"z","demand":{"gpus":1,"share":9},"submit_line":"a"b","qos":"q"}',
        '{"name":"z","demand":{"gpus":1,"share":9},"submit_line":"a\\","qos":"q"}',
        '{"name":"z\1","demand":{"gpus":1,"share":9},"submit_line":"a","qos":"q"}',
        '["name":"z","demand":{"gpus":1,"share":9},"submit_line":"a","qos":"q"}',
        '{"name":"' + "z" * 256 + '","demand":{"gpus":1,"share":9},"submit_line":"a","qos":"q"}',
        '{"name":"z","demand":{"gpus":1,"share":9},"submit_line":"' + "a" * 2**20 + '","qos":"q"}',
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_damage_in_the_varying_part_of_a_request_is_seen_after_one_like_it(text, whole):
    rows, texts = PendingRows(), [LIKE, text]
    valid, after = each(rows.read(part_of(texts)) if whole else rows.read_each(rows_of(texts)))
    assert valid.request.submit_line == "fgsub z"
    assert (None if after == 2 else after.request) == parsed(text)


def test_jobs_of_two_owners_with_like_requests_keep_their_owners():
    rows = [(1, (7, 8, "ann"), LIKE.encode(), 1.0), (2, (9, 8, "bob"), LIKE.encode(), 1.0)]
    assert [job.uid for job in each(PendingRows().read_each(rows))] == [7, 9]
    found = PendingRows().read(part_of([LIKE] * 3, users=["ann", "bob", "ann"]))
    assert [job.user for job in each(found)] == ["ann", "bob", "ann"]


def test_no_damaged_request_passes_for_a_valid_one():
    words = [(), ("",), ("]",), ("a", "]b"), (",",), ("[", "x"), ("x" * 300, "", "")]
    lines = ["", "]", ",", "fgsub [a]"]
    more = [Request(name="z", args=args, submit_line=line) for args in words for line in lines]
    chance, texts = random.Random(11), [request_text(request) for request in REQUESTS + more]
    rows = PendingRows()
    rows.read_each(rows_of(texts))  # the valid requests to which a damaged one can be similar
    for _ in range(10_000):
        valid = chance.choice(texts)
        text = damaged(chance, valid)
        _, *found = each(rows.read(part_of([valid, text])))
        assert [None if one == 2 else one.request for one in found] == [parsed(text)], text


def damaged(chance, text):
    """Change, remove or insert some characters."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        at = chance.randrange(len(text))
        new = chance.choice(('"', ",", "\\", "\x1e", "]", "[", "\x01", "\x7f", "x", "", '","', "{", "}", ":"))
        text = text[:at] + new + text[at + chance.choice((0, 1)) :]
    return text


def parsed(text):
    try:
        return parse_request(text)
    except Exception:
        return None


def both_tables():
    """A table into which the jobs were put one by one, and one with undecoded rows."""
    texts = [request_text(request) for request in REQUESTS * 3]
    one_by_one, at_once = JobTable(), JobTable()
    for job in each(PendingRows().read(part_of(texts))):
        one_by_one.put(job)
    pending, others = PendingRows().read_all([part_of(texts)])
    at_once.put_pending(pending)
    for past in others:
        at_once.put(past.job)
    return one_by_one, at_once


def test_a_table_of_undecoded_rows_is_equal_to_one_of_jobs():
    one_by_one, at_once = both_tables()
    assert at_once._queued == one_by_one._queued
    assert at_once.owners() == one_by_one.owners()
    ids = sorted(at_once.jobs)
    assert ids == list(one_by_one.jobs)
    assert [at_once._queue.entry(one) for one in ids] == [one_by_one._queue.entry(one) for one in ids]
    assert {group.kind: list(group.in_order()) for group in at_once._queue.groups} == {
        group.kind: list(group.in_order()) for group in one_by_one._queue.groups
    }
    assert list(at_once.wait_index.same(at_once.jobs[1])) == [1, 10, 19]
    assert at_once.jobs.rows()[:] == list(one_by_one.jobs.values())
    assert sorted(at_once.jobs.values(), key=lambda job: job.id) == list(one_by_one.jobs.values())


def test_a_part_of_the_jobs_is_decoded_alone_and_a_changed_job_replaces_its_row():
    _, table = both_tables()
    rows = table.jobs.rows()
    table.put(table.jobs[1].changed(state=JobState.CANCELLED, ended_at=5.0))
    table.put(table.jobs[2].changed(held="user"))
    assert [job.id for job in rows[0:2]] == [1, 2]
    assert (table.jobs.get(1), 1 in table.jobs, table.jobs[2].held) == (None, False, "user")
    assert [job.id for job in table.jobs.rows()[:2]] == [2, 3]
    assert sorted(job.id for job in table.jobs.values())[:2] == [2, 3]
    assert len(table.jobs) == len(rows) - 1
