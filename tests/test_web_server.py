"""The connections of the page: slow requests lose theirs, and what is answered without an end goes on."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from fgsched.web import server
from fgsched.web.server import PageServer, loopback


def _has_ipv6():
    socks = loopback(0)
    close(socks)
    return len(socks) == 2


def close(socks):
    for sock in socks:
        sock.close()


HAS_IPV6 = _has_ipv6()


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

    socks = loopback(0)
    page_server = PageServer(app, over.set)
    task = asyncio.ensure_future(page_server.serve(socks))
    try:
        yield socks[0].getsockname()[1], over
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
    first = loopback(0)
    port = first[0].getsockname()[1]
    second = loopback(port)
    assert port not in {sock.getsockname()[1] for sock in second}
    close(first)
    again = loopback(port)
    assert {sock.getsockname()[:2] for sock in again} <= {("127.0.0.1", port), ("::1", port)}
    close(again + second)


@pytest.mark.skipif(not HAS_IPV6, reason="this host has no IPv6")
def test_a_port_that_another_user_has_for_ipv6_is_not_taken():
    """A browser asks both addresses of the page, and would send the cookie to the other user."""
    squatter = socket.create_server(("::1", 0), family=socket.AF_INET6)
    port = squatter.getsockname()[1]
    socks = loopback(port)
    assert [sock.getsockname()[1] for sock in socks] == [socks[0].getsockname()[1]] * 2
    assert socks[0].getsockname()[1] != port
    close(socks)
    squatter.close()
