"""The options of the table are read as click reads them; what the controller leaves alone."""

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from builders import ROOT, World, a_demand, a_gpu
from fgsched import protocol
from fgsched.cli.command import OPERANDS, Listed
from fgsched.cli.fgacct import fgacct
from fgsched.cli.fgcancel import fgcancel
from fgsched.cli.fgeff import fgeff
from fgsched.cli.fginfo import fginfo
from fgsched.cli.fgprio import fgprio
from fgsched.cli.fgq import fgq
from fgsched.cli.fgshare import fgshare
from fgsched.cli.fgstat import fgstat
from fgsched.cli.fgtop import fgtop
from fgsched.controller.caller import Caller
from fgsched.controller.handlers import query
from fgsched.controller.handlers.fields import Live
from fgsched.controller.handlers.query import QueryHandlers
from fgsched.domain.errors import BadUsage, Refused
from fgsched.views import choices
from fgsched.views import options as table

SPELLED = {
    "fgq": (
        *("--user=ann", "--noheader=1", "--sort=-i", "-o%i", "-hl", "-ho", "-lj7", "--color=never"),
        *("--color=red", "--states=", "--jo", "-i3", "-i0", "%i %T", "--form", "--Form"),
    ),
    "fgcancel": (
        *("--user=ann", "--state=", "-fv", "-sTERM", "-s", "-bs", "--sig=9", "--me", "--job", "-v7"),
        *("--reason", "--reason=x y", "--dry", "--int"),
    ),
}
WORDS = ("--nope", "-5", "-", "--", "", "7", "ann", "R,PD", "é", "--clust", "--h", "--he")
COMMANDS = {
    "fgq": (fgq, table.QUEUE),
    "fgcancel": (fgcancel, table.CANCEL),
    "fgprio": (fgprio, table.PRIORITY),
    "fgshare": (fgshare, table.SHARE),
    "fgstat": (fgstat, table.USE),
    "fgeff": (fgeff, table.EFFICIENCY),
    "fgtop": (fgtop, table.SCREEN),
    "fgacct": (fgacct, table.ACCOUNTING),
    "fginfo": (fginfo, table.HOST),
}


def by_click(command: Listed, words: list[str]) -> tuple[object, list[str]] | None:
    """The options and operands that click reads; None: it refuses the line, or prints help."""
    context = click.Context(command, info_name=command.name)
    try:
        super(Listed, command).parse_args(context, list(words))
    except (click.UsageError, click.exceptions.Exit):
        return None
    operands = context.params.pop(OPERANDS, ())
    return command.row.record(**context.params), list(operands)


@pytest.mark.parametrize("name", COMMANDS)
@given(st.data())
def test_a_line_that_is_read_without_click_has_the_values_that_click_reads(name, data):
    command, row = COMMANDS[name]
    spelled = [word for option in row.options for word in option.spelled.split()]
    words = data.draw(st.lists(st.sampled_from([*spelled, *SPELLED.get(name, ()), *WORDS]), max_size=5))
    try:
        ours = row.read(words)
        command._operands(ours[1])
    except table.Unread:
        return
    assert ours == by_click(command, words)


def test_the_lines_of_programs_are_read_without_click():
    words = ["-h", "-o", "%i %T", "--me", "-tR,PD", "-j", "7", "--jobs=8", "-hr", "-S", "-p"]
    read, operands = table.QUEUE.read(words)
    usual = {"noheader": True, "form": "%i %T", "me": True, "states": ("R,PD",), "jobs": ("7", "8")}
    assert {name: value for name, value in asdict(read).items() if value} == {
        **usual,
        "expand": True,
        "sort": "-p",
        "colour": "auto",
    }
    assert operands == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_field_of_the_record_of_its_command(name):
    row = COMMANDS[name][1]
    assert {option.field for option in row.options if option.field} == set(row.record.__struct_fields__)


LONG = {"_MOST": ("-h",), "_MOST_NAMED": ("-j", "1,2"), "_MOST_TASKS": ("-r",)}


@pytest.mark.parametrize(("limit", "line"), LONG.items(), ids=LONG)
def test_a_line_whose_answer_would_delay_other_users_is_left_to_the_python_command(limit, line, monkeypatch):
    world = World([a_gpu(0)])
    world.submit([a_demand(10_000)])
    world.submit([a_demand(10_000)], array="0-2")
    world.settle()
    handlers = query.QueueLineHandlers(QueryHandlers(world.engine, lambda job: []))
    caller = Caller(1000, 1000, "ann", is_operator=True)
    call = protocol.QueueLine(name="fgq", words=line)
    assert not handlers.queue_line(caller, call, world.now).whole().elsewhere
    monkeypatch.setattr(query, limit, 1)
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
    handlers = query.QueueLineHandlers(QueryHandlers(world.engine, lambda job: []))
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


def test_one_job_of_an_array_is_named_by_its_task():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)], array="0-3")
    world.settle()
    handlers = QueryHandlers(world.engine, lambda job: [])
    with pytest.raises(Refused) as raised:
        handlers._one(1, ROOT)
    assert raised.value.cause == "1 is an array of 3 rows"
    assert handlers._one("1_0", ROOT).job.task == 0


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
    handlers = query.QueueLineHandlers(QueryHandlers(world.engine, lambda job: []))
    call = protocol.QueueLine(name="squeue", words=("-ho", "%i %C"))

    def text(uid: int, name: str) -> str:
        caller = Caller(uid, uid, name, is_operator=False, is_confined=True)
        return "".join(handlers.queue_line(caller, call, world.now).whole().lines)

    assert (text(owner.uid, owner.user), text(7777, "bob")) == ("1 1\n", "")
