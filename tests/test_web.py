"""The page as its users and its attackers meet it: one process, asked over plain sockets."""

import hashlib
import json
import os
import re
import select
import signal
import socket
import time
from contextlib import closing, suppress
from dataclasses import replace

import msgspec
import pytest

from awaiting import PATIENCE
from fgsched.system.paths import Paths
from fgsched.system.webplace import WebOrder, WebPlace, WebStatus, find_webplace, kept_port
from fgsched.web.__main__ import ABANDONED, is_abandoned
from fgsched.web.frame import STATIC
from fgsched.web.guard import HEADERS
from leftovers import remove_outside
from live_host import living
from otheruser import acting
from webclient import Answer, served

HTMX = "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"
PATHS = (
    *("/", "/queue", "/queue?show=ended&q=x", "/job/1", "/live?page=/", "/icon.svg"),
    *("/jobs/cancel", "/none", "/..%2f", "//", "/static", "/open/", "/ended/x"),
)
VERBS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A home with a page and a browser that has opened it."""
    with living(tmp_path_factory.mktemp("web") / "home") as home:
        web, code = served(home)
        try:
            yield home, web.open(code)
        finally:
            home.run("fgsched", "web", "--stop")


@pytest.fixture
def home(page):
    return page[0]


@pytest.fixture
def web(page):
    return page[1]


def events(sock, count):
    """The first events of a stream, as (name, data)."""
    data = b""
    while True:
        shown = re.findall(rb"event: (\w+)\ndata: (.*)\n\n", data)
        if len(shown) >= count:
            return [(name.decode(), json.loads(text)) for name, text in shown]
        part = sock.recv(1 << 16)
        assert part, f"the stream has ended: {data[-300:]}"
        data += part


def stream_of(web, path):
    sock = web.connect()
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {web.host}\r\nCookie: {web.cookie}\r\n\r\n".encode())
    return closing(sock)


# -- who may ask -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cookie", ["", "fgsched-{port}=", "fgsched-{port}=AAAA", "fgsched-1={secret}", "{secret}"]
)
def test_without_a_session_every_path_and_verb_is_401(web, cookie):
    secret = web.cookie.partition("=")[2]
    stranger = replace(web, cookie=cookie.format(port=web.port, secret=secret))
    for path in PATHS:
        for verb in VERBS:
            assert stranger.send(verb, path).status == 401, (verb, path)


def test_the_pages_before_a_session_show_nothing_of_the_host(home, web):
    home.running(name="secret-name")
    stranger = replace(web, cookie="")
    for path in ("/open", "/open?c=x", "/ended", "/static/page.css", "/static/live.js", "/none"):
        answer = stranger.get(path)
        assert answer.status in (200, 401)
        assert "secret-name" not in answer.body


def test_the_link_can_be_looked_at_and_opens_once(home, web):
    stranger, code = served(home)
    assert stranger.port == web.port, "the same process"
    looks = [stranger.get(f"/open?c={code}") for _ in range(3)]
    assert {look.status for look in looks} == {200}
    assert not any("set-cookie" in look.headers for look in looks)
    opened = stranger.post("/open", [("c", code)])
    assert (opened.status, opened.headers["location"]) == (303, "/")
    cookie = opened.headers["set-cookie"]
    assert cookie.startswith(f"fgsched-{web.port}=")
    assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(cookie.split("; "))
    assert "Domain" not in cookie
    again = stranger.post("/open", [("c", code)])
    assert (again.status, "set-cookie" in again.headers) == (403, False)
    assert "Run `fgsched web`" in again.body


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://{name}:1", "https://{name}:{port}", "http://127.0.0.1:{port}"],
)
def test_a_form_of_another_origin_changes_nothing(home, web, origin):
    job = home.submit(hold=True)
    token = web.get(f"/job/{job}").token
    fields = [("token", token), ("job", job), ("sure", 1)]
    origin = origin.format(name=web.name, port=web.port)
    assert web.post("/jobs/cancel", fields, origin=origin).status == 403
    assert web.post("/jobs/cancel", fields, sec_fetch_site="cross-site").status == 403
    assert web.post("/open", [("c", "x")], origin=origin).status == 403
    assert web.post("/ended", [("token", token)], origin=origin).status == 403
    assert [queued.state.word for queued in home.queue("state", id=[job])] == ["PENDING"]


def test_a_change_needs_a_post_with_the_token_of_the_session(home, web):
    job = home.submit(hold=True)
    other, code = served(home)
    token = other.open(code).get("/").token
    fields = [("job", job), ("sure", 1)]
    assert web.post("/jobs/cancel", fields).status == 403
    assert web.post("/jobs/cancel", [*fields, ("token", token)]).status == 403
    own = web.get("/").token
    for verb in ("GET", "HEAD"):
        assert web.send(verb, f"/jobs/cancel?job={job}&sure=1&token={own}").status == 405
    for verb in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert web.send(verb, f"/job/{job}").status == 405
    assert [queued.state.word for queued in home.queue("state", id=[job])] == ["PENDING"]


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example:{port}", "127.0.0.1:{port}", "localhost:{port}", "{name}", "{name}.:{port}"),
        "{name}:1",
        *("x.{name}:{port}", None),
    ],
)
def test_another_name_of_the_host_is_misdirected(web, host):
    given = host and host.format(name=web.name, port=web.port)
    answers = [web.get(path, host=given) for path in ("/", "/open", "/static/live.js")]
    assert {answer.status for answer in answers} == {400 if host is None else 421}


def test_two_names_of_the_host_are_refused(web):
    head = f"GET / HTTP/1.1\r\nHost: {web.host}\r\nHost: evil.example\r\nCookie: {web.cookie}\r\n\r\n"
    assert web.raw(head.encode()).status == 400


def test_every_answer_has_the_headers_of_the_policy(web):
    stranger = replace(web, cookie="")
    answers = {
        "page": web.get("/"),
        "refused": stranger.get("/"),
        "missing": web.get("/none"),
        "misdirected": web.get("/", host="evil.example"),
        "method": web.send("PUT", "/"),
        "open": stranger.get("/open?c=x"),
        "ended": stranger.get("/ended"),
        "icon": web.get("/icon.svg"),
        "no job": web.get("/job/999999"),
        "static": web.get("/static/live.js"),
        "head": web.send("HEAD", "/queue"),
    }
    for name, answer in answers.items():
        kept = {"cache-control": "private, max-age=3600"} if name == "static" else {}
        assert answer.headers.items() >= (HEADERS | kept).items(), name
        assert "server" not in answer.headers
    assert "'unsafe" not in HEADERS["content-security-policy"]


# -- limits ----------------------------------------------------------------------------------------------


def test_large_requests_are_refused(web):
    assert web.get("/", x_long="a" * 70_000).status == 431
    assert web.get("/queue?q=" + "a" * 70_000).status == 431
    big = b"a=" + b"x" * (2 << 20)
    form = "application/x-www-form-urlencoded"
    assert web.send("POST", "/jobs/cancel", body=big, content_type=form).status in (0, 413)
    assert web.send("POST", "/jobs/cancel", body=b"{}", content_type="application/json").status == 415
    fields = b"&".join(b"job=%d" % at for at in range(20_001))
    assert web.send("POST", "/jobs/cancel", body=fields, content_type=form).status == 413
    assert web.raw(b"no http\r\n\r\n").status == 400


def test_of_200_connections_64_are_kept(web):
    socks = [web.connect() for _ in range(200)]
    try:
        for sock in socks:
            sock.sendall(b"GET / HTTP/1.1\r\n")  # and never more
        closed = 0
        for sock in socks[100:]:
            try:
                closed += sock.recv(1) == b""
            except ConnectionError:
                closed += 1
        assert closed == 100
        assert not select.select(socks[:40], [], [], 0)[0], "the first ones are open, and not late"
    finally:
        for sock in socks:
            sock.close()
    assert _until_answered(web).status == 200


def _until_answered(web):
    """The first page when the process has noticed that the others have gone."""
    end = time.monotonic() + PATIENCE
    while (answer := web.get("/")).status == 0:
        assert time.monotonic() < end
    return answer


def test_16_pages_are_live_at_a_time(home, web):
    streams = [stream_of(web, "/live?page=/") for _ in range(16)]
    try:
        for stream in streams:
            assert events(stream.thing, 1)[0][0] == "page"
        refused = web.get("/live?page=/")
        assert (refused.status, "16 pages are open" in refused.body) == (503, True)
    finally:
        for stream in streams:
            stream.thing.close()


# -- pages and forms -------------------------------------------------------------------------------------


def test_a_job_is_followed_without_loading_the_page_again(home, web):
    gate = home.path / "gate-of-page"
    os.mkfifo(gate)
    job = home.submit(f"echo begun; read x < {gate}; echo more")
    home.until_running(job)
    place = re.search(r'data-device="(\d+)" data-inode="(\d+)" data-end="(\d+)"', _with_output(web, job).body)
    with stream_of(web, f"/live?page=/job/{job}&at={'.'.join(place.groups())}") as stream:
        (name, first), *_ = events(stream, 1)
        assert (name, first["title"].partition(" · ")[0]) == ("page", f"R {job} job")
        gate.write_text("go\n")
        data, seen = b"", ""
        while not (b"CD " in data and "more\n" in seen):
            part = stream.recv(1 << 16)
            assert part
            data += part
            seen = "".join(
                json.loads(text)["text"] for text in re.findall(rb"event: output\ndata: (.*)\n\n", data)
            )
    assert seen == "more\n"


def test_a_job_is_submitted_by_the_form_as_by_the_command(home, web):
    script = home.path / "form.sh"
    script.write_text("#!/bin/sh\n#FG --gpus=0.25\nexit 0\n")
    shown = web.get("/submit")
    key = re.search(r'name="key" value="([^"]+)"', shown.body)[1]
    form = {"token": shown.token, "key": key, "script": script, "time": "1h", "arguments": "a 'b c'"}
    refused = web.post("/submit/forecast", (form | {"gpus": "x"}).items())
    assert refused.status == 200
    assert re.search(r'id="e-gpus"[^>]*>--gpus=x', refused.body)
    asked = web.post("/submit/forecast", (form | {"set": "gpus=0.5"}).items())
    assert "At once, on half of GPU" in asked.body
    assert 'name="gpus" value="0.5"' in asked.body
    wrong = web.post("/submit", (form | {"partition": "none-such", "do": "hold"}).items())
    assert (wrong.status, 'aria-invalid="true"' in wrong.body) == (409, True)
    sent = [web.post("/submit", (form | {"do": "hold"}).items()) for _ in range(2)]
    assert sent[0].status == 303
    assert sent[0].headers["location"] == sent[1].headers["location"], "a double click submits one job"
    job = int(sent[0].headers["location"].removeprefix("/job/"))
    document = home.job(job)
    assert (document["held"], document["time_limit"]) == ("user", 3600)
    assert f"fgsub --time=1h --hold {script} a 'b c'" in web.get(f"/job/{job}").body.replace("&#39;", "'")
    again = web.get(f"/submit?again={job}").body.replace("&#39;", "'")
    assert f'value="{script}"' in again
    assert """value="a 'b c'\"""" in again
    web.change("cancel", job)


def test_an_operator_drains_and_resumes_a_gpu_at_its_page(home, web):
    fields = {"token": web.get("/gpu/0").token, "gpu": 0, "reason": "fan <b>", "back": "/gpu/0"}
    assert web.post("/gpus/drain", fields.items()).headers["location"] == "/gpu/0"
    shown = web.get("/gpu/0").body
    assert "GPU 0 is drained: its jobs continue" in shown
    assert "fan &lt;b&gt;" in shown
    assert [gpu["state"] for gpu in home.gpus() if gpu["index"] == 0] == ["drained"]
    web.post("/gpus/resume", fields.items())
    assert "GPU 0 takes jobs again." in web.get("/gpu/0").body
    for gpu in ("", "x", "99"):
        web.post("/gpus/drain", (fields | {"gpu": gpu}).items())
        assert 'class="note err"' in web.get("/").body
    assert web.get("/gpu/99").status == 400
    assert web.post("/gpus/reset", fields.items()).status == 404


def test_a_pasted_script_runs_with_the_mask_of_the_user(home, web):
    shown = web.get("/submit")
    text = f"#!/bin/sh\r\n#FG --output={home.path}/mask\r\numask\r\n"
    fields = [("token", shown.token), ("key", "k" * 20), ("text", text), ("gpus", "0.25")]
    sent = web.post("/submit", fields)
    assert sent.status == 303, sent.body
    home.wait(int(sent.headers["location"].removeprefix("/job/")))
    own = os.umask(0o022)
    os.umask(own)
    assert (home.path / "mask").read_text().strip() == f"{own:04o}"


def test_a_forecast_is_no_change_but_needs_the_token(home, web):
    assert web.post("/submit/forecast", [("script", "x")]).status == 403
    fields = [("token", web.get("/submit").token), ("script", "/none")]
    answers = [web.post("/submit/forecast", fields) for _ in range(25)]
    assert {answer.status for answer in answers} == {200}
    moved = web.get("/submit/forecast")
    assert (moved.status, moved.headers["location"]) == (303, "/submit")


def _with_output(web, job) -> Answer:
    """The page of a job that has made its output file."""
    end = time.monotonic() + PATIENCE
    while "data-end=" not in (answer := web.get(f"/job/{job}")).body or "begun" not in answer.body:
        assert time.monotonic() < end
    return answer


def test_a_cancel_asks_first_and_says_what_it_did(home, web):
    job = home.running(name="to-be-cancelled")
    asked = web.change("cancel", job, sure=False)
    assert (asked.status, f"Cancel job {job}?" in asked.body) == (200, True)
    done = web.change("cancel", job)
    assert (done.status, done.headers["location"]) == (303, f"/job/{job}")
    home.wait(job)
    shown = web.get(f"/job/{job}").body
    assert f"Job {job} is cancelled." in shown
    assert "Cancelled</span>" in shown
    assert "is cancelled" not in web.get(f"/job/{job}").body, "a message is shown once"


def test_hold_release_and_a_refusal_come_back_to_the_page(home, web):
    job = home.submit(hold=True)
    assert web.change("release", job).status == 303
    home.wait(job)
    assert web.change("hold", job).status == 303
    assert 'class="note err"' in web.get(f"/job/{job}").body
    assert web.change("none", job).status == 404
    token = web.get("/queue").token
    empty = web.post("/jobs/hold", [("token", token), ("back", "//evil.example/")])
    assert (empty.status, empty.headers["location"]) == (303, "/")
    assert "no job is selected" in web.get("/").body


def test_a_change_that_would_start_a_job_is_applied_with_its_button(home, web):
    first = [home.running(share=6000) for _ in range(2)]
    job = home.submit("exit 0", share=10_000, name="waits")
    shown = web.get(f"/job/{job}").body
    assert "Why it waits" in shown
    form = next(form for form in re.findall(r"<form.*?</form>", shown, re.DOTALL) if "/jobs/update" in form)
    fields = re.findall(r'name="(\w+)" value="([^"]*)"', form)
    assert web.post("/jobs/update", fields).status == 303
    assert home.wait(job)[0]["state"] == "COMPLETED"
    home.client.ask("cancel", ids=first)
    home.wait(*first)


def test_the_queue_and_its_selected_jobs(home, web):
    jobs = [home.submit(hold=True, name="chosen") for _ in range(3)]
    shown = web.get("/queue?q=chosen").body
    assert [f'value="{job}"' in shown for job in jobs] == [True] * 3
    token = web.get("/queue").token
    fields = [("token", token), ("back", "/queue?q=chosen"), ("sure", "1"), *(("job", job) for job in jobs)]
    done = web.post("/jobs/cancel", fields)
    assert (done.status, done.headers["location"]) == (303, "/queue?q=chosen")
    assert "3 jobs are cancelled." in web.get("/queue?q=chosen").body
    assert not [job for job in home.queue("id") if job.id in jobs]


def test_an_array_has_its_tasks_and_reports_are_listed(home, web):
    array = home.submit(hold=True, array="0-3", name="swept")
    assert "4 tasks: 0 run, 4 wait, 0 have ended." in web.get(f"/array/{array}").body
    home.client.ask("cancel", ids=[array])
    assert web.get("/reports").status == 200
    assert "There is no report x" in web.get("/reports/x").body
    assert "Nothing is accounted yet" in web.get("/reports/me").body


def test_what_does_not_exist_is_named(web):
    assert web.get("/job/999999").status == 404
    assert "Invalid job id specified: 999999" in web.get("/job/999999").body
    assert web.get("/job/x;y").status == 400
    assert web.get("/live?page=/none").status == 404
    assert web.get("/static/..%2f__init__.py").status == 404
    assert web.get("/static/none.css").status == 404


def test_a_read_only_page_has_no_forms_and_no_output(home):
    job = home.ended("echo secret-output")
    stranger, code = served(home, "--read-only")
    corridor = stranger.open(code)
    shown = corridor.get(f"/job/{job}").body
    assert "secret-output" not in shown
    assert re.findall(r'<form method="post" action="([^"]+)"', shown) == ["/ended"]
    refused = corridor.post("/jobs/cancel", [("token", corridor.get("/").token), ("job", job), ("sure", 1)])
    assert (refused.status, "read-only" in refused.body) == (403, True)


def test_the_end_of_a_session_ends_its_streams(home, web):
    stranger, code = served(home)
    browser = stranger.open(code)
    with stream_of(browser, "/live?page=/queue") as stream:
        assert events(stream, 1)[0][0] == "page"
        done = browser.post("/ended", [("token", browser.get("/").token)])
        assert (done.status, "The session has ended" in done.body) == (200, True)
        rest = b""
        while part := stream.recv(1 << 16):
            rest += part
        assert b"event: ended" in rest
    assert browser.get("/").status == 401
    assert web.get("/").status == 200


def test_pages_keep_what_they_know_while_the_controller_is_away(tmp_path):
    with living(tmp_path / "home") as home:
        stranger, code = served(home)
        web = stranger.open(code)
        try:
            job = home.submit(hold=True, name="kept")
            web.get("/queue")
            token = web.get("/").token
            home.client.ask("cancel", ids=[job])
            home.disconnect()
            home.run("fgsched", "stop")
            refused = web.post("/jobs/hold", [("token", token), ("job", job)])
            assert (refused.status, "fgsched start" in refused.body) == (503, True)
            shown = web.get("/queue")
            assert (shown.status, "The controller does not answer since" in shown.body) == (200, True)
            home.run("fgsched", "start")
            assert "does not answer" not in web.get("/queue").body
        finally:
            home.run("fgsched", "web", "--stop")


# -- the command -----------------------------------------------------------------------------------------


def test_the_command_finds_the_process_keeps_its_port_and_ends_it(tmp_path):
    with living(tmp_path / "home") as home:
        assert home.run("fgsched", "web", "--status").out == "The page is not served.\n"
        assert home.run("fgsched", "web", "--stop").out == "The page is not served.\n"
        first, _ = served(home, "--keep")
        status = home.run("fgsched", "web", "--status").out
        assert f"served at http://{first.name}:{first.port}/" in status
        assert "stays" in status
        refused = home.run("fgsched", "web", "--socket")
        assert (refused.status, f"at port {first.port} already" in refused.err) == (1, True)
        assert home.run("fgsched", "web", "--stop", "--status").status == 2
        assert home.run("fgsched", "web", "--stop").out == "The page has ended. Jobs are not affected.\n"
        second, code = served(home)
        assert (second.name, second.port) == (first.name, first.port)
        assert second.open(code).get("/").status == 200
        home.run("fgsched", "web", "--stop")
        assert not [path for path in home.paths.run.iterdir() if path.suffix in (".ctl", ".sock")]


def test_a_restart_ends_every_session(tmp_path):
    with living(tmp_path / "home") as home:
        stranger, code = served(home)
        browser = stranger.open(code)
        home.run("fgsched", "web", "--stop")
        again, _ = served(home)
        assert again.port == browser.port
        assert browser.get("/").status == 401
        home.run("fgsched", "web", "--stop")


def test_without_its_packages_the_command_names_the_line_that_installs_them(home, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "found = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'starlette' else found(name, *more)\n"
    )
    done = home.run("fgsched", "web", env={"PYTHONPATH": f"{tmp_path}:{home.environ['PYTHONPATH']}"})
    assert done.status == 1
    assert "the page needs starlette, which is not installed" in done.err
    assert "pip install 'fgsched[web]'" in done.err


def test_a_unix_socket_is_for_its_user_alone(tmp_path):
    with living(tmp_path / "home") as home:
        stranger, code = served(home, "--socket")
        try:
            assert stranger.path.stat().st_mode & 0o777 == 0o600
            browser = stranger.open(code)
            assert browser.get("/").status == 200
            assert browser.get("/", host="evil.example:8765").status == 421
            if os.geteuid() == 0:
                _is_closed_to_another_user(home, stranger)
        finally:
            home.run("fgsched", "web", "--stop")


def _is_closed_to_another_user(home, web):
    """Another user who reaches the socket, as after a change of its mode, gets no answer."""
    assert _heard_by_another_user(web.path, f"GET / HTTP/1.1\r\nHost: {web.host}\r\n\r\n".encode()) == b""
    assert web.get("/ended").status == 200


def _heard_by_another_user(path, data):
    """What a process of another user hears at a socket that it can reach."""
    for place in (path, *path.parents[:-1]):
        place.chmod(place.stat().st_mode | (0o006 if place == path else 0o001))
    read_end, write_end = os.pipe()

    def ask():
        os.close(read_end)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            with suppress(ConnectionError):
                sock.sendall(data)
                os.write(write_end, sock.recv(1000))
        os.write(write_end, b"end")
        signal.pause()

    with acting(65_534, ask):
        os.close(write_end)
        with open(read_end, "rb") as pipe:
            heard = b""
            while not heard.endswith(b"end"):
                part = os.read(pipe.fileno(), 4096)
                assert part, "the other user could not connect"
                heard += part
    return heard.removesuffix(b"end")


@pytest.mark.root
def test_another_user_has_no_word_with_the_process(page):
    home, _ = page
    place = WebPlace(run=home.paths.run)
    order = WebOrder(op="open", code=hashlib.sha256(b"x").hexdigest())
    assert _heard_by_another_user(place.control, msgspec.json.encode(order) + b"\n") == b""
    assert isinstance(place.ask(WebOrder(op="status")), WebStatus)


def test_a_run_directory_that_others_can_change_is_refused(tmp_path):
    with living(tmp_path / "home") as home:
        home.client  # noqa: B018
        home.paths.run.chmod(0o722)
        refused = home.run("fgsched", "web")
        home.paths.run.chmod(0o700)
        assert refused.status in (4, 5)


def test_the_process_ends_without_an_open_page():
    assert not is_abandoned(0.0, 0, ABANDONED, keep=False)
    assert is_abandoned(0.0, 0, ABANDONED + 1, keep=False)
    assert not is_abandoned(0.0, 1, ABANDONED + 1, keep=False)
    assert not is_abandoned(0.0, 0, ABANDONED + 1, keep=True)


def test_a_port_that_was_not_one_is_not_used_again(tmp_path):
    place = WebPlace(run=tmp_path)
    for text, port in (("", 0), ("80\n", 0), ("x", 0), ("99999", 0), ("43121\n", 43121)):
        place.port.write_text(text)
        assert kept_port(place) == port


def test_the_user_of_a_shared_controller_has_a_place_of_their_own(tmp_path):
    environ = {"HOME": str(tmp_path)}
    shared = Paths.find(environ, os.geteuid(), system=True)
    place = find_webplace(shared, environ, os.geteuid())
    assert (place.run.resolve().stat().st_uid, place.run.stat().st_mode & 0o777) == (os.geteuid(), 0o700)
    assert place == find_webplace(shared, environ, os.geteuid())
    remove_outside(shared.own(environ, os.geteuid()))


def test_htmx_is_the_release_that_is_named():
    text = (STATIC / "htmx.min.js").read_bytes()
    assert b'"4.0.1"' in text
    assert hashlib.sha256(text).hexdigest() == HTMX
    assert "Zero-Clause BSD" in (STATIC / "htmx-LICENSE.txt").read_text()
