"""A throw-away home with simulated cards: its controller, its commands, and nothing left of it afterwards."""

import json
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import prestarted
from asking import AskingClient
from awaiting import PATIENCE, rest
from fgsched import protocol
from fgsched.cli import show
from fgsched.controller.handlers.fields import FIELDS
from fgsched.domain.errors import FgschedError
from fgsched.domain.states import JobState
from fgsched.system.paths import Paths
from fgsched.system.process import identify
from leftovers import remove_outside, tmpdirs

ROOT = Path(__file__).parent.parent
_WAIT = re.compile(r"^[\w.-]+: waiting(: the controller| for another mailer:) .*\n", re.MULTILINE)


def module(command: str) -> list[str]:
    """Return the module of one of our commands, or of one of Slurm's names, with the first of its words."""
    return [f"fgsched.cli.{command}"] if command.startswith("fg") else ["fgsched.slurm.names", command]


def without_waiting(said: str) -> str:
    """Leave out the lines of commands that waited for a controller or a mailer, as on a busy host."""
    return _WAIT.sub("", said)


def zone_at_noon() -> dict[str, str]:
    """A time zone in which it is about noon: fgacct shows the jobs since midnight, which must not pass."""
    return {"TZ": f"NOON{time.gmtime().tm_hour - 12:+d}"}


@dataclass(frozen=True, slots=True)
class Done:
    """What a command said, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Home:
    """`home.run("fgq", "-h")`; `home.submit(...)`; `home.client.ask(...)`."""

    path: Path
    devices: str = "sim:2x16G"
    config: str = '[host]\ncpus = 64\n[mail]\nsend = "off"\n'
    _wait_index: list[int] = field(default_factory=list)
    _client: AskingClient | None = None

    def __post_init__(self) -> None:
        self.path.mkdir(mode=0o700, exist_ok=True)
        (self.path / "fgsched.toml").write_text(self.config)

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        ours = {"FG_HOME": str(self.path), "FG_DEVICES": self.devices, "PYTHONPATH": str(ROOT)}
        return kept | ours | {"TZ": "UTC", "LC_ALL": "C.UTF-8", "FG_DEBUG": "1", "HISTFILE": ""}

    @property
    def paths(self) -> Paths:
        return Paths.find(self.environ, os.geteuid())

    @property
    def client(self) -> AskingClient:
        """Direct use of the socket; the first use starts the controller."""
        if self._client is None:
            self.run("fgq", "-h")  # it starts the controller, with this home's environment
            self._client = AskingClient(self.paths, may_start=False)
        return self._client

    def run(self, command: str, *words: str, env: Mapping[str, str] | None = None, **more: Any) -> Done:
        """Run one of our commands, or of Slurm's names, to its end.

        That it waited for a start, as on a busy host, is left out.
        """
        pipe = subprocess.PIPE
        given = {"stdout": pipe, "stderr": pipe, "text": True, "errors": "replace", "timeout": PATIENCE}
        given |= {"cwd": self.path, "env": self.environ | dict(env or {})} | more
        program = [*module(command), *words]
        if prestarted.fits(given["env"]) and set(more) <= {"input", "cwd", "stdin", "text", "errors"}:
            done = prestarted.run(program, **given)
        else:
            done = subprocess.run([sys.executable, "-m", *program], **given)
        out, err = ("" if text is None else text for text in (done.stdout, done.stderr))
        return Done(done.returncode, out, without_waiting(err) if isinstance(err, str) else err)

    def submit(
        self, script: str = "exit 0", *, count: int = 1, hold: bool = False, share: int = 2500, **more: Any
    ) -> int:
        """The first id of `count` equal jobs; `more` are fields of the request."""
        demand = {"gpus": 1, "share": share} if share else {}
        request = {"name": "job", "chdir": str(self.path), "demand": demand} | more
        answer = self.client.ask(
            "submit",
            key=secrets.token_hex(16),
            scripts=[f"#!/bin/sh\n{script}\n"],
            environments=[{"PATH": os.environ["PATH"]}],
            requests=[request],
            jobs=[[0, 0, 0, hold]] * count,
        )
        return int(answer["first"])

    def job(self, job: int | str) -> dict[str, Any]:
        """All about a job, as fgctl show job --json has it."""
        return show.DOCUMENTS["job"](self.client.call(protocol.ShowJob(id=job)))

    def queue(self, *fields: str, **where: Any) -> list[protocol.JobInfo]:
        """Some attributes of the open jobs."""
        call = protocol.ListQueue(fields=fields, where=protocol.Where(**where))
        return list(self.client.call(call).jobs)

    def history(self, *ids: int | str) -> list[dict[str, Any]]:
        """All about the named jobs, or about all jobs, ended jobs included."""
        call = protocol.ListHistory(fields=list(FIELDS), ids=ids or None)
        return [show.DOCUMENTS["job"](job) for job in self.client.call(call).jobs]

    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs, as fgctl show gpu --json has them."""
        return [show.DOCUMENTS["gpu"](one) for one in self.client.call(protocol.ListGpus()).gpus]

    def why(self, job: int) -> str:
        """Why a job does not run, as a client puts it."""
        return str(self.run("fgq", "-h", "-j", str(job), "-O", "Why:0").lines[0])

    def ended(self, script: str = "exit 0", **more: Any) -> int:
        """A job that is over."""
        job_id = self.submit(script, **more)
        self.wait(job_id)
        return job_id

    def wait(self, *ids: int) -> list[dict[str, Any]]:
        """How these jobs ended."""
        return list(self.client.ask("wait", ids=list(ids), patience=PATIENCE)["jobs"])

    def running(self, **more: Any) -> int:
        """A job whose script runs, and goes on until it is cancelled or the home is left."""
        gate = self.path / f"gate{len(self._wait_index)}"
        os.mkfifo(gate)
        said = os.open(gate, os.O_RDWR)
        self._wait_index.append(said)
        job_id = self.submit(f"echo >{gate}; exec sleep 1000000", **more)
        assert select.select([said], [], [], PATIENCE)[0], self.job(job_id)
        self.until_running(job_id)
        return job_id

    def until_running(self, job: int) -> None:
        """Ask until the controller knows that a job runs: its script can be faster than the report."""
        latest = time.monotonic() + PATIENCE
        while self.client.call(protocol.ShowJob(id=job)).state is JobState.STARTING:
            assert time.monotonic() < latest, "the controller was not told that the job runs"

    def job_dir(self, job: int, attempt: int = 1) -> str:
        """FG_JOB_DIR of an attempt, which has no links in it."""
        return f"{(self.paths.run / 'job').resolve()}/{job}.{attempt}"

    def disconnect(self) -> None:
        """Close the connection to the controller; the next use of `client` opens another one."""
        if self._client:
            self._client.__exit__()
        self._client = None

    def leave(self) -> None:
        """Cancel all, stop the controller, and see that it is gone with all its processes and TMPDIRs."""
        for gate in self._wait_index:
            os.close(gate)
        try:
            pid = self._running_controller()
            if pid:
                self._stop(pid)
            self._stop_successors()
        finally:
            if self._client:
                self._client.__exit__()
        assert not processes_of(self.path), "a process was left"
        left = tmpdirs(self.paths)
        remove_outside(self.paths)
        assert not (pid and left), f"the controller that was stopped has left {left}"

    def _stop_successors(self) -> None:
        """Stop a controller that a command had started beside the one that was stopped, while it imported."""
        end = time.monotonic() + PATIENCE
        while (left := processes_of(self.path)) and time.monotonic() < end:
            if pid := self._running_controller():
                self.disconnect()
                with suppress(FgschedError):  # it is ending
                    self._stop(pid)
            else:
                with suppress(ProcessLookupError):
                    ended = os.pidfd_open(left[0])
                    select.select([ended], [], [], 0.1)
                    os.close(ended)

    def _running_controller(self) -> int:
        """Its pid; 0 if there is none. Asks without starting one."""
        lock = self.paths.lock
        if not self.paths.socket.exists() or not lock.exists():
            return 0
        pid = int(lock.read_text() or 0)  # a controller that is starting is about to write it
        return pid if identify(pid) else 0

    def _stop(self, pid: int) -> None:
        watched = os.pidfd_open(pid)
        signal.pidfd_send_signal(watched, signal.SIGCONT)  # a test that failed may have left it stopped
        try:
            client = self._client or AskingClient(self.paths, may_start=False)
            self._client = client
            ids = [job.id for job in client.call(protocol.ListQueue(fields=("id",))).jobs]
            client.ask("cancel", ids=ids, patience=PATIENCE)
            client.ask("signal", ids=ids, signal=int(signal.SIGKILL), patience=PATIENCE)
            client.ask("wait", ids=ids, patience=PATIENCE)
            client.ask("stop")
        except FgschedError:
            signal.pidfd_send_signal(watched, signal.SIGTERM)
            raise
        finally:
            assert select.select([watched], [], [], PATIENCE)[0], "the controller does not stop"
            os.close(watched)


def attempts() -> Iterator[None]:
    """Yield again and again while a test is patient: for what no event tells."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        yield
        rest()


def processes_of(home: Path) -> Sequence[int]:
    """Processes that name this home in their environment, and are none of pytest's own."""
    wanted, job = f"FG_HOME={home}".encode(), f"FG_JOB_DIR={home}/".encode()
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if wanted in environment or any(entry.startswith(job) for entry in environment):
                found.append(int(process.name))
    return found


@contextmanager
def living(path: Path, **about: Any) -> Iterator[Home]:
    """A home for as long as the block lasts."""
    home = Home(path, **about)
    try:
        yield home
    finally:
        home.leave()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with living(tmp_path / "home") as one:
        yield one
