"""fgrun --jupyter: the port of a job, the token, the address, the end. A small server replaces Jupyter."""

import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from fgsched.cli.fgrun import command_of
from fgsched.domain.errors import Refused
from fgsched.interactive.agent import reserve_port
from interactive_driver import finish, last, module
from live_host import living

JUPYTER = f"""#!{sys.executable}
import http.server, os, signal, sys

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(" ".join([os.environ["JUPYTER_TOKEN"], *sys.argv[1:]]).encode())

    def log_message(self, *words):
        pass

class Server(http.server.HTTPServer):
    def handle_error(self, *of_a_closed_connection):
        pass

signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
given = dict(word.lstrip("-").split("=") for word in sys.argv[1:] if "=" in word)
Server((given["ip"], int(given["port"])), Answer).serve_forever()
"""
ADDRESS = re.compile(r"fgrun: open (http://127\.0\.0\.1:([0-9]+)/(?:lab|tree)\?token=([0-9a-f]{48}))\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with living(tmp_path_factory.mktemp("jupyter") / "home") as found:
        yield found


def environment(folder, *kinds):
    """Variables with a PATH that has these kinds of Jupyter, and no others."""
    folder.mkdir(exist_ok=True)
    for kind in kinds:
        (folder / f"jupyter-{kind}").write_text(JUPYTER)
        (folder / f"jupyter-{kind}").chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def started(home, *words, kinds=("lab",)):
    assert home.client  # a controller runs: the command says nothing of its start
    pipe = subprocess.PIPE
    environ = home.environ | environment(home.path / "bin", *kinds)
    command = [*module("fgrun"), "--jupyter", *words]
    return subprocess.Popen(command, env=environ, cwd=home.path, stdout=pipe, stderr=pipe, text=True)


def test_the_address_is_printed_when_the_server_answers_and_ctrl_c_ends_it(home):
    process = started(home, "--gpus=0.25", "--time=5", "lab", "--debug")
    assert re.fullmatch(
        r"fgrun: Jupyter answers; job \d+ ends at \d{4}-\d\d-\d\dT[\d:]{8}, or with Ctrl-C\n",
        process.stderr.readline(),
    )
    address, port, token = ADDRESS.fullmatch(process.stderr.readline()).groups()
    user, host = last(home)["user"], os.uname().nodename
    forward = f"fgrun: from another computer, first: ssh -N -L {port}:127.0.0.1:{port} {user}@{host}\n"
    assert process.stderr.readline() == forward
    options = f"--no-browser --ip=127.0.0.1 --port={port} --port-retries=0 --log-level=WARN -y --debug"
    with urllib.request.urlopen(address) as answer:
        assert answer.read().decode() == f"{token} {options}"
    assert token not in home.run("fgctl", "write", "batch_script", str(last(home)["id"]), "-").out
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 0


def test_the_server_ends_at_the_time_limit(home):
    assert finish(started(home, "--time=1s"))[0] == 143
    assert last(home)["state"] == "TIMEOUT"


def test_the_kind_and_its_program_are_found_in_path(tmp_path):
    both = environment(tmp_path / "both", "lab", "notebook")
    one = environment(tmp_path / "one", "notebook")
    assert command_of([], both)[0] == f"{tmp_path}/both/jupyter-lab"
    assert command_of(["notebook"], both)[0] == f"{tmp_path}/both/jupyter-notebook"
    assert command_of(["--debug"], one)[::8] == [f"{tmp_path}/one/jupyter-notebook"]
    with pytest.raises(Refused) as raised:
        command_of([], {"PATH": f"{tmp_path}/none"})
    assert raised.value.cause == "there is no jupyter-lab or jupyter-notebook in PATH"
    assert raised.value.remedy.endswith("pip install jupyterlab")


def test_no_port_is_reserved_twice_and_a_server_can_listen_at_a_reserved_port():
    reserved = [reserve_port() for _ in range(100)]
    assert len({one.getsockname() for one in reserved}) == 100
    with reserve_port() as first, reserve_port() as server:
        server.close()
        listening = type(first)()
        listening.setsockopt(1, 2, 1)  # SO_REUSEADDR, as servers do
        listening.bind(first.getsockname())
        listening.listen()
        assert listening.getsockname() == first.getsockname()
        listening.close()
    for one in reserved:
        one.close()


def test_jupyter_on_a_terminal_of_the_job_is_refused(home):
    done = home.run("fgrun", "--jupyter", "--pty")
    assert (done.status, done.err.splitlines()[0]) == (
        2,
        "fgrun: error: --jupyter starts a job without a terminal",
    )
