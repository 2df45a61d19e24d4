"""Check that only trusted users can change a program of the site."""

import os
import stat
from pathlib import Path

from fgsched.domain.errors import Refused
from fgsched.domain.text import storable
from fgsched.hooks.settings import HookSettings

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
