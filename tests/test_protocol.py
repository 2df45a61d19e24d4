"""The table of requests: each has one handler, which returns the answer that the protocol declares."""

import inspect
from typing import get_args, get_origin, get_type_hints

import msgspec
import pytest

from fgsched import codec, protocol
from fgsched.controller.handlers import (
    adopt,
    dispatch,
    explain,
    jobs,
    partitions,
    priority,
    query,
    reservations,
    submission,
)
from fgsched.domain.errors import BadUsage, Unreachable
from fgsched.domain.job import Request
from fgsched.server import LongAnswer, LongQuestion

CLASSES = [
    *(jobs.JobHandlers, jobs.RunningJobHandlers, partitions.PartitionHandlers, priority.PriorityHandlers),
    *(query.QueryHandlers, explain.ExplainHandlers, reservations.ReservationHandlers, dispatch.Dispatcher),
    *(submission.LineHandlers, query.QueueLineHandlers, adopt.ProcessHandlers),
    adopt.AdoptHandlers,
]
APART = {
    *(protocol.Wait, protocol.Stop, protocol.BackUp, protocol.ArchiveJobs, protocol.NoteWarning),
    *(protocol.MakeReport, protocol.Events),
}
DECODER = codec.Decoder(protocol.CALLS)


def declared():
    """(kind of request, type of the answer) of every handler."""
    for kind in CLASSES:
        for _, method in inspect.getmembers(kind, inspect.isfunction):
            hints = get_type_hints(method)
            if hints.get("call") in set(protocol.CALLS) - APART:
                answer = hints["return"]
                parts = [part for part in get_args(answer) if get_origin(part) is LongAnswer]
                answer = parts[0] if parts else answer  # in parts where it is long
                is_long = get_origin(answer) in (LongAnswer, LongQuestion)
                yield hints["call"], get_args(answer)[0] if is_long else answer


def test_every_request_has_a_handler_that_returns_its_answer():
    assert dict(declared()) == {
        kind: protocol.answer_of(kind) for kind in protocol.CALLS if kind not in APART
    }


def test_what_can_be_changed_of_a_job_are_fields_of_its_request():
    assert set(protocol.JobChanges.__struct_fields__) < set(Request.__struct_fields__)


@pytest.mark.parametrize("text", ["caf\udce9", "\udc80\udcff", "plain"])
def test_bytes_that_are_not_utf_8_arrive_as_they_were(text):
    call = protocol.Cancel(ids=[1], reason=text)
    assert DECODER.decode(codec.encode_call(call).strip()).reason == text
    line = codec.encode_answer(protocol.Script(script=text))
    reply = codec.read_reply(line)
    assert codec.decode_answer(bytes(reply.ok), protocol.Script).script == text


@pytest.mark.parametrize(("version", "older"), [(1, "the command"), (3, "the controller")])
def test_a_command_of_another_version_is_told_which_end_is_older(version, older):
    line = codec.encode_call(protocol.Ping()).replace(b'"v":2', b'"v":%d' % version)
    with pytest.raises(Unreachable, match=f"speaks protocol {version}, the controller protocol 2") as told:
        DECODER.decode(line.strip())
    assert told.value.remedy == f"Upgrade {older}, which is the older one."


def test_a_controller_of_another_version_is_refused_with_what_to_do():
    with pytest.raises(Unreachable, match="speaks protocol 1, this command protocol 2") as told:
        codec.read_reply(b'{"v":1,"ok":{"pid":7}}')
    assert "fgsched stop" in told.value.remedy


def test_a_request_that_names_its_user_is_refused():
    with pytest.raises(BadUsage, match="does not name its uid: the kernel tells who asks"):
        DECODER.decode(b'{"v":2,"op":"cancel","ids":[1],"uid":0}')


def test_an_answer_of_another_form_is_a_controller_of_another_release():
    with pytest.raises(Unreachable, match="the controller's answer cannot be read"):
        codec.decode_answer(b'{"jobs":7}', protocol.Outcomes)
    assert msgspec.to_builtins(protocol.Outcome(id=1, outcome="held")) == {"id": 1, "outcome": "held"}
