"""The options of fgq: the parser without click says what click says; and what the controller leaves alone."""

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import World, a_demand, a_gpu
from fgsched import protocol
from fgsched.cli.fgq import fgq
from fgsched.controller.caller import Caller
from fgsched.controller.handlers import queueline
from fgsched.controller.handlers.fields import Live
from fgsched.controller.handlers.query import QueryHandlers
from fgsched.domain.errors import BadUsage
from fgsched.views import choices, table

WORDS = sorted(
    {spelled for option in table.OPTIONS for spelled in option.spelled.split()}
    | {
        "--user=ann",
        "--noheader=1",
        "--sort=-i",
        "-o%i",
        "-hl",
        "-ho",
        "-lj7",
        "--color=never",
        "--color=red",
    }
    | {"--states=", "--jo", "--nope", "-5", "-", "--", "", "7", "ann", "R,PD", "-i3", "-i0", "%i %T", "é"}
)


def by_click(words: list[str]) -> dict[str, object] | None:
    """The values that click reads; None: it refuses the line, or prints help."""
    context = click.Context(fgq, info_name="fgq")
    try:
        super(type(fgq), fgq).parse_args(context, list(words))
    except (click.UsageError, click.exceptions.Exit):
        return None
    return context.params


@given(st.lists(st.sampled_from(WORDS), max_size=5))
def test_a_line_that_is_read_without_click_has_the_values_that_click_reads(words):
    try:
        ours = table.read(words)
    except table.Unread:
        return
    assert ours == by_click(words)


def test_the_lines_of_programs_are_read_without_click():
    read = table.read(["-h", "-o", "%i %T", "--me", "-tR,PD", "-j", "7", "--jobs=8", "-hr", "-S", "-p"])
    usual = {"noheader": True, "form": "%i %T", "me": True, "states": ("R,PD",), "jobs": ("7", "8")}
    assert {name: value for name, value in read.items() if value} == {
        **usual,
        "expand": True,
        "sort": "-p",
        "colour": "auto",
    }


LONG = {"_MOST": ("-h",), "_MOST_NAMED": ("-j", "1,2"), "_MOST_TASKS": ("-r",)}


@pytest.mark.parametrize(("limit", "line"), LONG.items(), ids=LONG)
def test_a_line_whose_answer_would_delay_other_users_is_left_to_the_python_command(limit, line, monkeypatch):
    world = World([a_gpu(0)])
    world.submit([a_demand(10_000)])
    world.submit([a_demand(10_000)], array="0-2")
    world.settle()
    handlers = queueline.QueueLineHandlers(QueryHandlers(world.engine, lambda job: []))
    caller = Caller(1000, 1000, "ann", is_operator=True)
    call = protocol.QueueLine(name="fgq", words=line)
    assert not handlers.queue_line(caller, call, world.now).whole().elsewhere
    monkeypatch.setattr(queueline, limit, 1)
    assert handlers.queue_line(caller, call, world.now).whole().elsewhere


COSTLY = {
    "wide cells": ("-o", "%9999i %9999j"),
    "a column many times": ("-o", "%k" * 60),
    "many columns": ("-O", ",".join(["JobID,Name,UserName"] * 40)),
    "many keys": ("-S", ",".join(["i"] * 100)),
    "a long line": ("-j", "1," * 4000 + "1"),
}


@pytest.mark.parametrize("line", COSTLY.values(), ids=COSTLY)
def test_a_line_whose_rows_would_take_much_memory_or_time_is_left_to_the_python_command(line):
    world = World([a_gpu(0)])
    world.submit([a_demand(10_000)])
    handlers = queueline.QueueLineHandlers(QueryHandlers(world.engine, lambda job: []))
    caller = Caller(1000, 1000, "ann", is_operator=True)
    call = protocol.QueueLine(name="fgq", words=line)
    assert handlers.queue_line(caller, call, world.now).whole() == protocol.QueueLines(
        lines=[], elsewhere=True
    )


def test_steps_which_are_read_from_files_of_users_are_read_for_few_jobs_at_once():
    world = World([a_gpu(0)])
    for _ in range(5):
        world.submit([a_demand(1000)])
    world.settle()
    read = []
    live = Live(srun_steps=lambda job: read.append(job.id) or [])
    answers = QueryHandlers(world.engine, lambda job: [], live)
    caller = Caller(1000, 1000, "ann", is_operator=True)
    call = protocol.ListQueue(fields=["id", "srun_steps"], where=protocol.Where())
    found = [([job.id for job in piece], list(read)) for piece in answers.rows(caller, call, world.now)]
    assert found == [([1, 2], [1, 2]), ([3, 4], [1, 2, 3, 4]), ([5], [1, 2, 3, 4, 5])]


def test_a_list_of_jobs_is_limited_as_a_whole():
    with pytest.raises(BadUsage) as raised:
        choices.ids(["1-60000,7_3", "100001-160000"], 100_000)
    assert raised.value.cause == "the lists name more than 100000 jobs"
    assert len(choices.ids(["1-60000,7_3", "100001-160000"])) == 120_001


def test_a_user_from_whom_the_site_hides_other_users_gets_no_row_of_theirs():
    world = World([a_gpu(0)])
    world.submit([a_demand(2500)])
    world.settle()
    owner = world.engine.jobtable.jobs[1]
    handlers = queueline.QueueLineHandlers(QueryHandlers(world.engine, lambda job: []))
    call = protocol.QueueLine(name="squeue", words=("-ho", "%i %C"))

    def text(uid: int, name: str) -> str:
        caller = Caller(uid, uid, name, is_operator=False, is_confined=True)
        return "".join(handlers.queue_line(caller, call, world.now).whole().lines)

    assert (text(owner.uid, owner.user), text(7777, "bob")) == ("1 1\n", "")
