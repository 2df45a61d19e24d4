"""A home whose cards are those of the fake driver, with jobs and strangers that do as they are told."""

import os
import select
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from fakecuda import FakeDriver
from fakecuda.job import Live, answers
from live_host import PATIENCE, Home

PATIENT = 60  # seconds in which the driver must answer: on a busy host its probe takes some to start


@dataclass
class Host(Home):
    """A home whose cards are those of the fake driver."""

    driver: FakeDriver | None = None
    open: ExitStack = field(default_factory=ExitStack)
    extra: dict[str, str] = field(default_factory=dict)  # variables of the controller and the commands

    @property
    def environ(self):
        return super().environ | self.driver.env | self.extra

    def live(self, *options):
        """A fakejob as a job of its own: (its id, what tells it what to do)."""
        into, out = (self.path / f"{name}{len(os.listdir(self.path))}" for name in ("in", "out"))
        for pipe in (into, out):
            os.mkfifo(pipe)
        line = f"echo ready >{out}; exec {self.driver.program} - <{into} >{out}"
        done = self.run("fgsub", "--parsable", "--output=/dev/null", *options, "--wrap", line)
        assert (done.status, done.err) == (0, "")
        return int(done.out), Pipes(self, into, out)

    def stranger(self, *commands, **extra):
        """A fakejob outside any job, once it has done this."""
        env = {**os.environ, **self.driver.env, **extra}
        words, pipe = [self.driver.program, "-"], subprocess.PIPE
        live = Live(subprocess.Popen(words, env=env, stdin=pipe, stdout=pipe, text=True))
        self.open.callback(live.process.wait)
        self.open.callback(live.process.kill)
        for command in commands:
            assert live.say(command)[0] == 0
        return live

    def gpu(self, index=0):
        return self.run("fginfo", "--json").json["gpus"][index]


class Pipes:
    """A job's fakejob behind two FIFOs."""

    def __init__(self, host, into, out):
        self._into, self._out = os.open(into, os.O_RDWR), os.open(out, os.O_RDWR)
        host.open.callback(os.close, self._into)
        host.open.callback(os.close, self._out)

    def is_there(self, patience=0):
        return bool(select.select([self._out], [], [], patience)[0])

    def until_ready(self):
        assert self._line() == "ready\n"
        return self

    def _line(self):
        said = b""
        while not said.endswith(b"\n"):
            assert self.is_there(PATIENCE), f"nothing after {said!r}"
            said += os.read(self._out, 1)
        return said.decode()

    def say(self, command):
        os.write(self._into, f"{command}\n".encode())
        return answers(self._line())[0]


def config_of(*, timeout=60, deadline=PATIENT, more=""):
    """The text of a configuration; times are in seconds."""
    sampling = f"[sampling]\ninterval = 1\ndeadline = {deadline}\nclean_timeout = {timeout}\n"
    return f"[host]\ncpus = 64\n{sampling}{more}\n"


@contextmanager
def hosting(path, driver, *gpus, timeout=60, deadline=PATIENT, more=""):
    driver.gpus(*gpus)
    config = config_of(timeout=timeout, deadline=deadline, more=more)
    host = Host(path, devices="auto", config=config, driver=driver)
    try:
        yield host
    finally:
        host.open.close()
        host.leave()
