"""fgrun --jupyter: start Jupyter on a port of the job, and print its address when it answers.

The job's agent reserves the port: it binds one that the kernel chooses, so no other job gets it. The token is
passed to the job over the connection, because scripts are stored and command lines are visible to all users.
"""

import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from fgsched.domain.errors import Refused
from fgsched.interactive.agent import LOOPBACK, PORT
from fgsched.protocol import JobInfo
from fgsched.views.display import shown_time

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

    def look(self, port: int, asked: Callable[[], JobInfo]) -> bool:
        """Print the address if the server answers at a port; return whether it did. `asked` gets the job."""
        if not (_is_own(port) and _answers(port)):
            return False
        job, host = asked(), os.uname().nodename
        self._say(f"Jupyter answers; {_limit(job)}")
        self._say(f"open http://{LOOPBACK}:{port}/{self._page}?token={self.token}")
        self._say(f"from another computer, first: ssh -N -L {port}:{LOOPBACK}:{port} {job.user}@{host}")
        return True


def _limit(job: JobInfo) -> str:
    """Return until when a job runs, and how its user ends it."""
    if not job.time_limit or job.started_at is None:
        return f"job {job.id} has no time limit: Ctrl-C ends it"
    return f"job {job.id} ends at {shown_time(job.started_at + job.time_limit)}, or with Ctrl-C"


def _is_own(port: int) -> bool:
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
