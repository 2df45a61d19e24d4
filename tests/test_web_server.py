"""The connections of the page: slow requests lose theirs, and what is answered without an end goes on."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from fgsched.web import server
from fgsched.web.server import PageServer, loopback


async def answering(scope, receive, send):
    """Read the whole request and answer; /stream is answered without an end."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    if scope["path"] == "/stream":
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await scope["state_of_test"].wait()
    await send({"type": "http.response.body", "body": b"end"})


@asynccontextmanager
async def serving():
    """A server at a port of its own, and the event that ends its streams."""
    over = asyncio.Event()

    async def app(scope, receive, send):
        await answering({**scope, "state_of_test": over}, receive, send)

    sock = loopback([0])
    page_server = PageServer(app, over.set)
    task = asyncio.ensure_future(page_server.serve([sock]))
    try:
        yield sock.getsockname()[1], over
    finally:
        page_server.should_exit = True
        await task


async def said(port, data):
    """What the server says to a client that sends this and no more, until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"


@pytest.mark.parametrize(
    "data", [b"", b"GET / HT", HEAD, HEAD + b"\r\n12345"], ids=["none", "line", "head", "body"]
)
def test_a_request_that_does_not_become_whole_loses_its_connection(monkeypatch, data):
    monkeypatch.setattr(server, "SECONDS", 0.1)

    async def scenario():
        async with serving() as (port, _):
            return await said(port, data)

    assert asyncio.run(scenario()) == b""


def test_a_second_request_has_the_same_time(monkeypatch):
    monkeypatch.setattr(server, "SECONDS", 0.1)

    async def scenario():
        async with serving() as (port, _):
            return await said(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HT")

    assert asyncio.run(scenario()).count(b"HTTP/1.1 200 OK") == 1


def test_an_answer_without_an_end_outlasts_the_time_of_a_request(monkeypatch):
    monkeypatch.setattr(server, "SECONDS", 0.1)

    async def scenario():
        async with serving() as (port, over):
            pipelined = b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /stream HTTP/1.1\r\nHost: x\r\n\r\n"
            streams = [asyncio.ensure_future(said(port, start)) for start in (pipelined, pipelined[29:])]
            slow = await said(port, b"GET")  # its connection is lost, and theirs is not
            assert slow == b""
            assert await said(port, b"GET") == b""
            assert not any(stream.done() for stream in streams)
            over.set()
            return await asyncio.gather(*streams)

    first, second = asyncio.run(scenario())
    assert first.count(b"begun") == second.count(b"begun") == 1
    assert b"end" in second


def test_a_server_that_ends_ends_its_streams():
    async def scenario():
        async with serving() as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"begun")
        rest = await reader.read()
        writer.close()
        return rest

    assert b"end" in asyncio.run(scenario())


def test_the_port_of_the_last_process_is_taken_if_it_is_free():
    first = loopback([0])
    port = first.getsockname()[1]
    second = loopback([port, 0])
    assert second.getsockname()[1] != port
    first.close()
    again = loopback([port, 0])
    assert again.getsockname() == ("127.0.0.1", port)
    again.close()
    second.close()
