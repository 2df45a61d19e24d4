"""Start, find and end the process of the user's page (`fgsched web`), and make the code that opens it."""

import hashlib
import os
import secrets
import select
import socket
import subprocess
import sys
import time
from importlib.util import find_spec

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fgsched import __version__, protocol
from fgsched.client import find_paths
from fgsched.domain.errors import BadUsage, Refused, Unreachable
from fgsched.domain.text import clean
from fgsched.domain.times import format_runtime
from fgsched.system.paths import written
from fgsched.system.preloading import put_aside
from fgsched.system.webplace import WebOptions, WebOrder, WebPlace, WebStatus, find_webplace
from fgsched.views.choices import me
from fgsched.views.display import host_name

PARTS = ("starlette", "uvicorn", "h11")  # packages that the page needs
_INSTALL = (
    "Install them: pip install 'fgsched[web]'\n"
    "On Debian and Ubuntu: apt install python3-starlette python3-uvicorn"
)
_TIME_FORMATS = ("FG_TIME_FORMAT", "SLURM_TIME_FORMAT")  # without them, times of today have no date
_START = 30.0  # seconds that the process has for its start
_STOP = 10.0  # seconds that it has for its end
_PAUSE = 0.05  # seconds between two looks


class WebCommand(Struct, frozen=True, kw_only=True):
    """The options of `fgsched web`."""

    socket: bool
    read_only: bool
    browser: bool
    keep: bool
    status: bool
    stop: bool


def serve(options: WebCommand) -> str:
    """Carry out the command, and return what it prints.

    Raises:
        BadUsage: options exclude each other.
        Refused: a package is missing, or the page is served in another way.
        Unreachable: the process does not start or does not answer.
    """
    if options.status and options.stop:
        raise BadUsage("--status and --stop exclude each other")
    place = find_webplace(find_paths(), os.environ, os.geteuid())
    if options.stop:
        return _stopped(place)
    if options.status:
        status = place.ask(WebOrder(op="status"))
        return "The page is not served.\n" if status is None else _described(status, place)
    return _opened(options, place)


def _opened(options: WebCommand, place: WebPlace) -> str:
    """Start the process unless it runs, give it a code, and return the address."""
    _refuse_without_parts()
    code = secrets.token_urlsafe(32)
    digest = hashlib.sha256(code.encode()).hexdigest()
    order = WebOrder(op="open", code=digest, read_only=options.read_only, keep=options.keep)
    status = _present(place)
    if status is None:
        _start(WebOptions(socket=options.socket, keep=options.keep), place)
    elif options.socket == bool(status.port):
        how = f"at port {status.port}" if status.port else f"at {place.http}"
        raise Refused(f"the page is served {how} already", "End that first: fgsched web --stop")
    status = place.ask(order)
    if status is None:
        raise Unreachable("the process of the page has ended", f"Its log tells why: {place.log}")
    if options.browser and status.port:
        _browse(f"http://{status.name}:{status.port}/open?c={code}")
    return _address(status, place, code)


def _refuse_without_parts() -> None:
    missing = [name for name in PARTS if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise Refused(f"the page needs {', '.join(missing)}, which {verb} not installed", _INSTALL)


def _present(place: WebPlace) -> WebStatus | None:
    """Return the state of the process; one of another version is ended."""
    status = place.ask(WebOrder(op="status"))
    if status is not None and status.version != __version__:
        _end(place)
        return None
    return status


def _start(options: WebOptions, place: WebPlace) -> None:
    """Start the process in its own session. A second one that starts at the same time ends by itself."""
    read_end, write_end = os.pipe()
    added = {} if any(map(os.environ.get, _TIME_FORMATS)) else {_TIME_FORMATS[0]: "relative"}
    options = replace(options, added=tuple(added))
    with written(place.log):
        log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    child = subprocess.Popen(
        [sys.executable, "-I", "-m", "fgsched.web", str(write_end), msgspec.json.encode(options).decode()],
        pass_fds=[write_end],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        env={**put_aside(os.environ), **added},
        start_new_session=True,
    )
    os.close(write_end)
    os.close(log)
    with open(read_end, "rb") as pipe:
        line = pipe.readline() if select.select([pipe], [], [], _START)[0] else b""
    child.returncode = 0  # it outlives us
    if not line:
        raise Unreachable("the process of the page did not start", f"Its log tells why: {place.log}")
    message = msgspec.json.decode(line)
    if "cause" in message:
        raise msgspec.convert(message, protocol.Problem).error()
    if "already" in message:
        _await_process(place)


def _await_process(place: WebPlace) -> None:
    """Wait for a process that another command starts."""
    end = time.monotonic() + _START
    while place.ask(WebOrder(op="status")) is None and time.monotonic() < end:
        time.sleep(_PAUSE)


def _stopped(place: WebPlace) -> str:
    if not _end(place):
        return "The page is not served.\n"
    return "The page has ended. Jobs are not affected.\n"


def _end(place: WebPlace) -> bool:
    """End the process, and wait for its end; return False if there is none. Raises Unreachable."""
    status = place.ask(WebOrder(op="stop"))
    if status is None:
        return False
    try:
        ended = os.pidfd_open(status.pid)
    except ProcessLookupError:
        return True
    try:
        if not select.select([ended], [], [], _STOP)[0]:
            raise Unreachable(f"the process of the page (pid {status.pid}) does not end", "End it with kill.")
    finally:
        os.close(ended)
    return True


def _browse(address: str) -> None:
    import webbrowser  # only --open needs it

    webbrowser.open(address)


def _address(status: WebStatus, place: WebPlace, code: str) -> str:
    """Return the address of the page, and how to reach it from another computer."""
    host, user = socket.getfqdn() or host_name(), clean(me())
    if not status.port:
        return (
            f"ssh -N -L 8765:{place.http} {user}@{host}    on your computer, then open there:\n"
            f"http://{status.name}:8765/open?c={code}\n"
            "The link opens the page once, within two minutes.\n"
        )
    return (
        f"http://{status.name}:{status.port}/open?c={code}\n"
        "The link opens the page once, within two minutes. From another computer, first:\n"
        f"ssh -N -L {status.port}:127.0.0.1:{status.port} {user}@{host}\n"
    )


def _described(status: WebStatus, place: WebPlace) -> str:
    where = f"http://{status.name}:{status.port}/" if status.port else str(place.http)
    ends = "stays" if status.keep else "ends after 30 minutes without an open page"
    lines = {
        "page": f"served at {where}, pid {status.pid}, version {status.version}",
        "up": f"{format_runtime(time.time() - status.since)}; {ends}",
        "open": f"{status.streams} pages, {status.sessions} sessions",
        "log": str(place.log),
    }
    return "".join(f"{name:<12}{value}\n" for name, value in lines.items())
