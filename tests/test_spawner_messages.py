"""fgspawn reads messages: a bad one is refused, noise ends the conversation, pieces are put together."""

import errno
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from fixtures_spawner import NEEDS_SPAWNER
from spawner_driver import HEAD, PATIENCE, Launch, Result

pytestmark = NEEDS_SPAWNER


def broken(**changes) -> bytes:
    """A launch message with some fields of its head replaced, by index."""
    message = Launch(run=Path("/tmp/run"), script=b"#!/bin/sh\n", job=9).pack()
    fields = list(HEAD.unpack_from(message))
    for index, value in changes.items():
        fields[int(index[1:])] = value
    return HEAD.pack(*fields) + message[HEAD.size :]


@pytest.mark.parametrize(
    "message",
    [
        broken(_3=0), broken(_7=0o1000), broken(_5=2**32 - 1), broken(_8=2**31),
        broken(_9=17), broken(_10=5), broken(_11=2**32 - 1), broken(_12=9), broken(_13=65),
        broken(_14=3), broken(_15=-1), broken(_17=2**62), broken(_19=-1), broken(_20=0),
        broken(_20=2**32 - 1),
        broken(_4=32), broken(_4=16), broken(_4=26), broken(_23=1),
        broken(_21=1), broken(_22=2**40), broken(_2=0),
        Launch(run=Path("run"), script=b"x", job=9).pack(),
        Launch(run=Path("/r" * 3000), script=b"x", job=9).pack(),
        Launch(run=Path("/r"), script=b"x", job=9, hook="relative").pack(),
        Launch(run=Path("/r"), script=b"x", job=9, cgroups=(("/c", ("../x=1",)),)).pack(),
    ],
)  # fmt: skip
def test_a_malformed_message_is_refused_and_the_next_one_served(spawner, message):
    spawner.socket.sendall(message)
    answer = spawner.answer()
    assert (answer.pid, answer.errno) == (0, errno.EINVAL)
    assert spawner.launch("#!/bin/sh\nexit 4\n").result().exit_code == 4
    spawner.expected = b"fgspawn: job %d: launch refused: Invalid argument\n" % answer.job


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.0\r\n\r\n", broken(_1=20), broken(_1=9 << 20)])
def test_what_is_no_message_ends_the_conversation(spawner, noise):
    spawner.socket.sendall(noise)
    with suppress(ConnectionResetError):  # when it leaves bytes unread
        assert spawner.socket.recv(1) == b""
    spawner.expected = b"fgspawn: what came over the socket is no message; listening no more\n"


def test_a_message_may_come_in_pieces_and_two_at_once(spawner):
    one = Launch(run=spawner.run, script=b"#!/bin/sh\nexit 5\n", job=1).pack()
    two = Launch(run=spawner.run, script=b"#!/bin/sh\nexit 6\n", job=2).pack()
    spawner.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for part in (one[:3], one[3:50], one[50:] + two[:-1], two[-1:]):
        spawner.socket.sendall(part)
    assert {spawner.answer().job, spawner.answer().job} == {1, 2}
    spawner.socket.shutdown(socket.SHUT_WR)
    spawner.process.wait(PATIENCE)
    codes = [Result.read(spawner.run / "result" / f"{job}.1").exit_code for job in (1, 2)]
    assert codes == [5, 6]
