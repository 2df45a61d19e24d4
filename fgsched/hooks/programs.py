"""The programs of a site: settings, one run and its outcome; only trusted users may change a program."""

import os
import stat
from pathlib import Path

from msgspec import Struct

from fgsched.domain.errors import Refused
from fgsched.domain.text import storable

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def base(hook: str) -> dict[str, str]:
    """Return the variables that every program of the site has. None is inherited from the controller."""
    return {"PATH": _PATH, "HOME": "/", "SHELL": "/bin/sh", "LC_ALL": "C.UTF-8", "FG_HOOK": hook}


class HookSettings(Struct, frozen=True, kw_only=True):
    """The programs of a site ("": none) and their time limits in seconds."""

    prolog: str = ""
    epilog: str = ""
    task_prolog: str = ""
    submit_filter: str = ""
    prolog_time: float = 60
    epilog_time: float = 60
    submit_filter_time: float = 10
    events_command: str = ""  # gets batches of events
    events_socket: str = ""  # gets events


NO_HOOKS = HookSettings()


class HookRun(Struct, frozen=True, kw_only=True):
    """One run of a program."""

    path: str
    seconds: float  # time limit
    environment: dict[str, str]
    input: str = ""  # for its standard input
    keep: int = 0  # bytes of its standard output that the outcome has
    uid: int = -1  # of the user as whom it runs; -1: as the controller
    gid: int = -1
    number: int = 0  # of the request, which the outcome repeats
    owner: int = -1  # user for whom it runs; each user has a share of the programs that run at a time


class Ran(Struct, frozen=True, kw_only=True):
    """The outcome of a run."""

    number: int
    problem: str = ""  # such as "exited with status 3"; "": it exited with status 0
    status: int = -1  # exit status; -1: it did not exit by itself
    output: str = ""  # the first bytes of its standard output
    said: str = ""  # the last line of its standard error, for the log of the controller


# -- who may change a program --------------------------------------------------------------------------


_FIRST_LINE = 256  # bytes of it that the kernel reads


def refuse_unsafe_program(name: str, path: str, owner: int) -> None:
    """Check that only root and `owner` can change a program or a directory above it.

    Raises:
        Refused: the program or its interpreter is missing, not executable, behind a symbolic link, or can be
            changed.
    """
    place = Path(path)
    try:
        if place.resolve(strict=True) != place:
            raise Refused(
                f"{name}: {path} is not a plain path: a part of it is a symbolic link, '.' or '..'.",
                f"Name the file itself: {place.resolve()}",
            )
        _refuse_foreign(name, place, owner)
    except OSError as error:
        raise Refused(f"{name}: {path}: {error.strerror}.", "Correct the path of the program.") from None
    mode = place.stat().st_mode
    if not stat.S_ISREG(mode) or not os.access(path, os.X_OK):
        raise Refused(
            f"{name}: {path} is not an executable file ({stat.filemode(mode)}).", f"chmod 755 {path}"
        )
    _refuse_missing_interpreter(name, place)


def refuse_unsafe_directory(name: str, place: Path, owner: int) -> None:
    """Check that only root and `owner` can change a directory or one above it. Raises Refused, OSError."""
    if place.resolve(strict=True) != place:
        raise Refused(f"{name}: a part of {place} is a symbolic link.", f"Name {place.resolve()} instead.")
    _refuse_foreign(name, place, owner)


def _refuse_missing_interpreter(name: str, place: Path) -> None:
    words = _first_line(place)[2:].split(maxsplit=1)
    if words and words[0].startswith(b"/") and not os.path.exists(words[0]):
        interpreter = storable(words[0].decode(errors="replace"))
        raise Refused(
            f"{name}: {place}: its interpreter {interpreter} does not exist, which its first line names.",
            "Install the interpreter, or correct the first line of the program.",
        )


def _first_line(place: Path) -> bytes:
    """Return the first line of a script; empty for other programs, and for one that cannot be read."""
    try:
        with open(place, "rb") as program:
            first = program.read(_FIRST_LINE).partition(b"\n")[0]
    except PermissionError:
        return b""
    return first if first.startswith(b"#!") else b""


def _refuse_program_of_root_alone(name: str, path: Path) -> None:
    """Check that users can execute a program that runs as they. Raises Refused, OSError."""
    for place in (path, *path.parents):
        mode = place.stat().st_mode
        if not mode & 0o011:
            raise Refused(
                f"{name}: users cannot execute {path}: the mode of {place} is {stat.S_IMODE(mode):04o}.",
                f"chmod a+rx {place}",
            )


def _refuse_foreign(name: str, path: Path, owner: int) -> None:
    writers = 0o022 if owner == 0 else 0o002
    for place in (path, *path.parents):
        status = place.stat()
        sticky = place != path and status.st_mode & stat.S_ISVTX  # only the owner of an entry can replace it
        if status.st_uid not in (0, owner):
            raise Refused(
                f"{name}: {place} belongs to uid {status.st_uid}, who could change the program {path}.",
                f"chown root {place}",
            )
        if status.st_mode & writers and not sticky:
            mode = stat.S_IMODE(status.st_mode)
            raise Refused(
                f"{name}: {place} can be written by others (mode {mode:04o}), who could change {path}.",
                f"chmod go-w {place}",
            )


def check_programs(settings: HookSettings, mode: str) -> None:
    """Check the programs of the settings. `mode`: user or system. Raises Refused, with the path."""
    owner = os.geteuid() if mode == "user" else 0
    for name in ("prolog", "epilog", "task_prolog", "submit_filter"):
        if path := getattr(settings, name):
            refuse_unsafe_program(f"[hooks] {name}", path, owner)
    if settings.task_prolog and mode == "system":
        _refuse_program_of_root_alone("[hooks] task_prolog", Path(settings.task_prolog))
    if settings.events_command:
        refuse_unsafe_program("[events] command", settings.events_command, owner)
