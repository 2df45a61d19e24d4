"""The page in a real browser."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from browser import CHROMIUM, browser
from live_host import attempts
from webclient import served

pytestmark = [
    pytest.mark.chromium,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
]


class Neighbour(BaseHTTPRequestHandler):
    """The server of another user, which keeps the cookies that a browser sends and sets one of its own."""

    cookies: list[str]

    def do_GET(self):
        self.cookies.append(self.headers.get("Cookie", ""))
        self.send_response(200)
        self.send_header("Set-Cookie", "neighbour=1; SameSite=Strict; Path=/")
        self.end_headers()

    def log_message(self, *words):
        pass


@contextmanager
def neighbour():
    """Serve at a port of the loopback; yield the port and the list of cookies."""
    handler = type("Handler", (Neighbour,), {"cookies": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1], handler.cookies
        finally:
            server.shutdown()
            thread.join()


def visit(page, address):
    """Open an address, and return when it is loaded."""
    page.call("Page.navigate", url=address)
    page.value("new Promise(done => document.readyState == 'complete' ? done(1) : onload = () => done(1))")


def test_the_cookie_of_the_page_reaches_no_server_of_another_user(home, tmp_path):
    web, code = served(home)
    try:
        with (
            browser(tmp_path / "profile") as page,
            neighbour() as (port, cookies),
            neighbour() as (other, more),
        ):
            visit(page, f"http://{web.host}/open?c={code}")
            page.value("void setTimeout(() => document.querySelector('form button').click())")
            for _ in attempts():
                if page.value("document.querySelector('nav') && location.pathname") == "/":
                    break
            assert page.value("document.querySelectorAll('nav a').length") > 1
            visit(page, f"http://127.0.0.1:{port}/")
            visit(page, f"http://localhost:{port}/")
            visit(page, f"http://127.0.0.1:{other}/")
            assert not [cookie for cookie in cookies if "fgsched" in cookie]
            assert more[0] == "neighbour=1"  # a browser sends the cookie of one port to another one
    finally:
        home.run("fgsched", "web", "--stop")
