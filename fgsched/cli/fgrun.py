"""fgrun: run a command as a job in the foreground, with the streams or the terminal of the caller."""

import os
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import click
from msgspec import structs

from fgsched import protocol
from fgsched.cli import fgsub
from fgsched.cli.command import Command, OptionsCommand, run
from fgsched.cli.fgwait import exit_code
from fgsched.client import Client, find_paths
from fgsched.domain.errors import BadUsage, Refused
from fgsched.domain.job import Request
from fgsched.domain.states import JobState
from fgsched.interactive import link
from fgsched.interactive.agent import LOOPBACK, PORT
from fgsched.interactive.connected import ConnectionPlan, Detached, Interrupted
from fgsched.interactive.session import Session, join
from fgsched.lifecycle.containers import entering
from fgsched.protocol import JobInfo
from fgsched.submission import prepare as submission
from fgsched.submission.options import AnySetting, given, read
from fgsched.submission.request import parts
from fgsched.submission.table import FOREGROUND
from fgsched.system import preloading
from fgsched.system.unanswered import new_key
from fgsched.views import wording
from fgsched.views.display import shown_time

_SILENT = ("--output=/dev/null", "--error=/dev/null", "--input=/dev/null")  # unconnected streams
_SCRIPT = 'exec "$FG_PYTHON" -I -m fgsched.interactive.agent'


_KINDS = ("lab", "notebook", "server")
_ADDRESS = (f"--ip={LOOPBACK}", f"--port={PORT}", "--port-retries=0")
_OPTIONS = ("--no-browser", *_ADDRESS, "--log-level=WARN", "-y")  # -y: Ctrl-C does not ask
_PATIENCE = 1.0  # seconds for an answer
_LISTENS = "0A"  # the state of a socket in /proc/net/tcp


def command_of(words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the command of a Jupyter in PATH; `words`: its kind, if that is chosen, and its options.

    Raises:
        Refused: PATH has none.
    """
    import shutil  # only this option needs it

    kinds, options = (words[:1], words[1:]) if words and words[0] in _KINDS else (_KINDS[:2], words)
    for kind in kinds:
        program = shutil.which(f"jupyter-{kind}", path=environ.get("PATH", os.defpath))
        if program is not None:
            return [program, *_OPTIONS, *options]
    names = " or ".join(f"jupyter-{kind}" for kind in kinds)
    raise Refused(
        f"there is no {names} in PATH",
        "Activate the environment that has it, or install it there: pip install jupyterlab",
    )


class JupyterServer:
    """The Jupyter of one job."""

    def __init__(self, program: str, say: Callable[[str], None]) -> None:
        """`program` is the path of Jupyter; `say` prints a line."""
        self.token = secrets.token_hex(24)
        self._page = "lab" if program.endswith("lab") else "tree"
        self._say = say

    @property
    def variables(self) -> dict[str, str]:
        """The variables of the job that Jupyter reads."""
        return {"JUPYTER_TOKEN": self.token}

    def look(self, port: int, show_job: Callable[[], JobInfo]) -> bool:
        """Print the address if the server answers at a port, and return whether it did."""
        if not (_is_own_listener(port) and _answers(port)):
            return False
        job, host = show_job(), os.uname().nodename
        self._say(f"Jupyter answers; {_limit(job)}")
        self._say(f"open http://{LOOPBACK}:{port}/{self._page}?token={self.token}")
        self._say(f"from another computer, first: ssh -N -L {port}:{LOOPBACK}:{port} {job.user}@{host}")
        return True


def _limit(job: JobInfo) -> str:
    """Return until when a job runs, and how its user ends it."""
    if not job.time_limit or job.started_at is None:
        return f"job {job.id} has no time limit: Ctrl-C ends it"
    return f"job {job.id} ends at {shown_time(job.started_at + job.time_limit)}, or with Ctrl-C"


def _is_own_listener(port: int) -> bool:
    """Return whether a process of this user listens at a port of the loopback."""
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table][1:]
    address = f"0100007F:{port:04X}"
    return any(row[1] == address and row[3] == _LISTENS and int(row[7]) == os.geteuid() for row in rows)


def _answers(port: int) -> bool:
    """Return whether a server answers a request of HTTP."""
    try:
        with closing(socket.create_connection((LOOPBACK, port), _PATIENCE)) as connection:
            connection.sendall(b"GET /api HTTP/1.0\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False


class FgrunCommand(Command, OptionsCommand):
    """The options of fgsub, without the options of a batch job, and those of a command in the foreground."""

    shortens = False  # its own reader does that, up to the command
    command = "fgrun"
    more = FOREGROUND


class Foreground:
    """A command that runs as a job in the foreground."""

    name = "fgrun"  # of the command, in messages
    patience: float | None = None  # seconds that the job may wait
    stays = False  # the job survives the loss of the caller
    server: JupyterServer | None = None  # that the command is
    leaves = False  # this process ends as soon as the job has started
    queued: tuple[str, ...] = ("job {job} queued and waiting for resources",)  # lines about a job that waits

    def __init__(self, settings: Sequence[AnySetting], command: Sequence[str], *, is_terminal: bool) -> None:
        """Prepare a command; `is_terminal`: it gets a terminal. Raises BadUsage for options of batch jobs."""
        self.command, self.is_terminal = list(command), is_terminal
        self.link, self.directory = link.new_name(), Path()
        self.streams = _streams(settings)
        self._settings = settings
        for setting in settings:
            if "fgrun" not in setting.option.commands:
                raise BadUsage(f"--{setting.option.name} is for batch jobs", "Submit it with fgsub.")
            if is_terminal and setting.option.slot in ("output", "error", "input"):
                raise BadUsage(f"--{setting.option.name} and --pty exclude each other")

    def prepared(self, about: protocol.About) -> submission.Prepared:
        """Return the submission: a script of one line, which connects to this process. Raises BadUsage.

        Args:
            about: the controller that gets the submission.
        """
        named = [] if given(self._settings, "job-name") else [f"--job-name={_title(self.command[0])}"]
        forced, _ = read([*named, *_silent(self._settings), "--no-requeue"])
        script, _ = read(["--wrap=true"])  # replaced below
        job = submission.prepare_in_foreground(
            [*forced, *self._settings, *script], environ=os.environ, cwd=fgsub.directory(), site=about.site
        )
        request = structs.replace(job.submission.request, submit_line=self._line())
        if request.array:
            raise BadUsage("FGSUB_ARRAY is for batch jobs", "Unset it, or submit the jobs with fgsub.")
        place = shlex.quote(link.words(self.link, self.directory))
        aside = preloading.put_aside_in_shell()
        lines = f"#!/bin/sh\nexport {link.VARIABLE}={place}; {aside}{_SCRIPT} {self._inner(request)}\n"
        text = lines.encode("utf-8", "surrogateescape")
        request = structs.replace(request, container="", container_mounts="", container_workdir="")
        return structs.replace(job, submission=structs.replace(job.submission, request=request, script=text))

    def _inner(self, request: Request) -> str:
        """Return the command as a part of a shell's line. The agent stays outside a container."""
        return entering(request, self.command)

    def _line(self) -> str:
        return submission.submit_line([self.name, *sys.argv[1:]])

    def started(self, job: int) -> None:
        """Do nothing: a command may print a line when the job has been connected."""

    def ended(self, job: protocol.JobInfo) -> str:
        """Return the line about an end that the exit code does not tell."""
        return f"{self.name}: job {job.id} ended as {job.state.value}"

    def run(self) -> int:
        """Submit the job, follow it to its end, and return its exit code. Raises the errors of the client."""
        with Client(find_paths(), names_variables=False) as client, ExitStack() as opened:
            about = client.call(protocol.Ping())  # its start may make the run directory
            self.directory = link.callers(client.paths.own_run(os.environ, os.geteuid()))
            listener = opened.enter_context(link.listen(self.link, self.directory))
            job = self.prepared(about)
            for warning in dict.fromkeys(job.warnings):
                click.echo(f"{self.name}: warning: {warning}", err=True)
            ids = client.call(protocol.Submit(**parts([job]), key=new_key(time.time())), patience=60)
            for warning in ids.warnings:
                click.echo(f"{self.name}: warning: {warning}", err=True)
            plan = ConnectionPlan(
                name=self.name,
                job=ids.first,
                streams=self.streams,
                terminal=self.is_terminal,
                quiet=job.flags.quiet,
                queued=self.queued,
                patience=self.patience,
                stays=self.stays,
                leaves=self.leaves,
                variables={} if self.server is None else self.server.variables,
                serves=self._serving(client, ids.first),
            )
            session = Session(client, ids.first, listener, plan, lambda: _forecast(client, ids.first))
            try:
                session.follow(lambda: self.started(ids.first))
            except Interrupted as interrupted:
                return 128 + interrupted.number
            except Detached as detached:
                click.echo(detached_line(self.name, ids.first, detached), err=True)
                return 0
            return 0 if self.leaves else self._end(client, ids.first)

    def _serving(self, client: Client, job: int) -> Callable[[int], bool] | None:
        """Return what looks for the server of a job at a port; None if the job is no server."""
        server = self.server
        if server is None:
            return None
        return lambda port: server.look(port, lambda: client.call(protocol.ShowJob(id=job)))

    def _end(self, client: Client, job: int) -> int:
        """Report an end that the exit code does not tell, and return the exit code."""
        ended = client.call(protocol.Wait(ids=[job]), patience=60).jobs
        about = client.call(protocol.ShowJob(id=job))
        if about.state not in (JobState.COMPLETED, JobState.FAILED):
            click.echo(self.ended(about), err=True)
        for text in (about.detail, about.refused):
            if text:
                click.echo(f"{self.name}: job {job}: {text}", err=True)
        return exit_code(ended)


@click.command(
    cls=FgrunCommand,
    epilog="fgrun --gpus=0.5 --time=2h --pty bash",
    options_metavar="[OPTION]... [COMMAND] [ARGUMENT]...",
)
def fgrun(settings: Sequence[AnySetting], words: Sequence[str]) -> int:
    """Run a command as a job in the foreground, and exit with its code."""
    is_terminal = given(settings, "pty") is not None
    is_jupyter = given(settings, "jupyter") is not None
    if is_jupyter and (is_terminal or given(settings, "jobid") is not None):
        raise BadUsage("--jupyter starts a job without a terminal", "Leave --pty and --jobid out.")
    if not words and not is_terminal and not is_jupyter:
        raise BadUsage("name a command, or --pty for a shell")
    if (job := given(settings, "jobid")) is not None:
        return _inside(int(job), settings, words or [shell(os.environ)], is_terminal=is_terminal)
    of_the_job = [setting for setting in settings if setting.option.name not in FOREGROUND]
    command = command_of(words, os.environ) if is_jupyter else words or [shell(os.environ)]
    foreground = Foreground(of_the_job, command, is_terminal=is_terminal)
    if is_jupyter:
        foreground.server = JupyterServer(command[0], lambda text: _say(foreground.name, text))
    foreground.stays = given(settings, "no-hangup") is not None
    return foreground.run()


def _say(name: str, text: str) -> None:
    click.echo(f"{name}: {text}", err=True)


def detached_line(name: str, job: int, detached: Detached) -> str:
    """Return the line about a job that runs on without this terminal."""
    why = "another terminal was attached to job" if detached.is_taken else "detached from job"
    return f"{name}: {why} {job}, which continues; fgctl attach {job} returns to it"


def _inside(job: int, settings: Sequence[AnySetting], words: Sequence[str], *, is_terminal: bool) -> int:
    """Run a command inside a running job; return its exit code. Raises BadUsage for options of a new job."""
    for setting in settings:
        if setting.option.name not in ("pty", "jobid", "quiet"):
            raise BadUsage(
                f"--{setting.option.name} and --jobid exclude each other: the job has its resources"
            )
    return run_inside(job, words, name="fgrun", is_terminal=is_terminal, quiet="quiet" in _names(settings))


def run_inside(job: int, command: Sequence[str], *, name: str, is_terminal: bool, quiet: bool) -> int:
    """Run a command inside a running job of the caller; return its exit code. Raises the errors of `join`."""
    plan = ConnectionPlan(name=name, job=job, terminal=is_terminal, quiet=quiet)
    with Client(find_paths()) as client:
        try:
            return join(client, job, plan, tuple(command))
        except Interrupted as interrupted:
            return 128 + interrupted.number


def _names(settings: Sequence[AnySetting]) -> set[str]:
    return {setting.option.name for setting in settings}


def shell(environ: Mapping[str, str]) -> str:
    """Return the caller's shell."""
    return environ.get("SHELL") or "/bin/sh"


def _streams(settings: Sequence[AnySetting]) -> tuple[int, ...]:
    """Return the caller's streams that the job gets; the others are files that options name."""
    slots = {setting.option.slot for setting in settings}
    files = {0: "input" in slots, 1: "output" in slots, 2: bool({"output", "error"} & slots)}
    return tuple(stream for stream, is_file in files.items() if not is_file)


def _silent(settings: Sequence[AnySetting]) -> list[str]:
    """Return the options for the streams that are connected. FGSUB_OUTPUT and its like have no effect."""
    slots = {setting.option.slot for setting in settings}
    unnamed = [word for word in _SILENT if word[2:].partition("=")[0] not in slots]
    return [word for word in unnamed if not ("output" in slots and word.startswith("--error"))]


def _title(command: str) -> str:
    return os.path.basename(command)[:255] or "fgrun"


def _forecast(client: Client, job: int) -> str:
    """Return why a job is pending, and its expected start, in one line."""
    jobs = client.call(protocol.ExplainJobs(ids=[job])).jobs
    if not jobs or jobs[0].state is not JobState.PENDING:
        return ""
    about = jobs[0]
    why = (
        next((text for blocker in about.blockers if (text := wording.why(blocker.cause))), "")
        or about.reason.value
    )
    ahead = f"{about.start.before} jobs end before it" if about.start and about.start.before else ""
    return "; ".join(
        [part for part in (f"job {job}: {why}", ahead, *wording.starts(about.start)[-1:]) if part]
    )


def main() -> None:
    run(fgrun)


if __name__ == "__main__":
    main()
