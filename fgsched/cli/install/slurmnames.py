"""Install the names of Slurm's commands in a directory of PATH, with completions, beside no other Slurm."""

import os
import shlex
import stat
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from fgsched.cli import shells
from fgsched.domain.errors import Refused
from fgsched.system import places
from fgsched.system.paths import written
from fgsched.system.safeopen import refuse_unless_safe

NAMES = {  # of Slurm -> the command of fgsched that takes its options
    "sbatch": "fgsub",
    "squeue": "fgq",
    "scancel": "fgcancel",
    "sacct": "fgacct",
    "scontrol": "fgctl",
    "sprio": "fgprio",
    "sattach": "fgctl",
}
BIN = Path(__file__).resolve().parents[2] / "slurm" / "bin"  # one script for each name
_MARK = b"# Written by fgsched slurm-names, which replaces and removes this file."
_SHELL = b"#!/bin/bash -p"  # keeps exported functions, such as that of `module`; -p: without reading BASH_ENV
_PROMPT_LINES = 4  # lines of a program inside jobs, from its first one, that keep the prompts
_WITH_PROMPTS = ("srun", "salloc")  # names that start a shell for a person
_USUAL = ("/usr/local/bin",)  # of all users, whatever PATH root has
_HEAD = 400  # bytes of a file in which the mark is
_NOT_IN_PATH = "{0} is not in PATH. Add to ~/.bashrc: export PATH={0}:$PATH\n"
_ADMINISTRATORS = 0o002  # a group of administrators can write to /usr/local/bin


def command_line(name: str) -> str:
    """Return the command line that runs the command of a name, or prints its words.

    It is not the name itself, which could be that of a real Slurm by then. The native programs protect the
    interpreter from the caller's variables.
    """
    native = Path(sys.executable).with_name("fgq" if name in ("squeue", "scancel") else "fgsub")
    if native.exists():
        return f"{shlex.quote(str(native))} --named={name}"
    return f"{shlex.quote(sys.executable)} -I -m fgsched.slurm.names {name}"


def shell_folders(programs: Path) -> dict[str, Path]:
    """Return the directory of each shell for names in this directory.

    There are none unless it is a `bin` beside a `share`: shells look there, as beside ~/.local/bin.
    """
    if programs.name != "bin" or not (programs.parent / "share").is_dir():
        return {}
    return {shell: programs.parent / place for shell, place in shells.FOLDERS.items()}


def files(programs: Path, names: Iterable[str], mark: str) -> dict[Path, str]:
    """Return the files for names in this directory, with their text.

    `mark`: a comment at the beginning of each.
    """
    return {
        place / shells.FILES[shell].replace("NAME", name): _marked(
            shells.file_text(shell, name, command_line(name)), mark
        )
        for shell, place in shell_folders(programs).items()
        for name in names
    }


def _marked(text: str, mark: str) -> str:
    """Insert a comment, after the line that zsh must find first."""
    first, body = text.split("\n", 1)
    return f"{first}\n{mark}\n{body}" if first.startswith("#compdef") else f"{mark}\n{text}"


def command_of(name: str) -> str:
    """Return the command of fgsched that a name runs; srun runs the tasks of a step itself."""
    return NAMES.get(name, name)


def names() -> list[str]:
    """Return the names, as jobs have them."""
    return sorted(os.listdir(BIN))


def listed() -> str:
    """Return a line for each name: the name, and the command of fgsched that it runs."""
    return "".join(f"{name:<10}{command_of(name)}\n" for name in names())


def install(folder: Path, environ: Mapping[str, str]) -> str:
    """Write a program for each name, and its completions; return the message. Our earlier files are replaced.

    Raises:
        Refused: a file is not ours, PATH has another Slurm, or another user could change a directory.
        StorageError: a directory or a file cannot be written.
    """
    _make(folder)
    _refuse_others(folder, environ)
    for place in shell_folders(folder).values():
        _make(place)
    for name in names():
        _write(folder / name, program(name), 0o755)
    for path, text in _completions(folder).items():
        if _is_ours(path) or not os.path.lexists(path):
            _write(path, os.fsencode(text), 0o644)
    first = f"{', '.join(names())}: written to {folder}\n{_about_completions(folder, 'written to')}"
    return first if _is_in_path(folder, environ) else first + _NOT_IN_PATH.format(shlex.quote(str(folder)))


def remove(folder: Path) -> str:
    """Remove the programs and completions that `install` wrote; return the message. All other files stay."""
    present = [name for name in names() if os.path.lexists(folder / name)]
    ours = [name for name in present if _is_ours(folder / name)]
    others = [name for name in present if name not in ours]
    completions = [*filter(_is_ours, _completions(folder))]
    for path in (*(folder / name for name in ours), *completions):
        _unlink(path)
    removed = f"{', '.join(ours) or 'nothing'}: removed from {folder}\n"
    removed += _about_completions(folder, "removed from") if completions else ""
    return removed + (f"{', '.join(others)}: not of fgsched, left there\n" if others else "")


def folders(recorded: Iterable[str], environ: Mapping[str, str]) -> list[Path]:
    """Return the directories with names that root has installed: recorded ones, and those of root's PATH."""
    places = [*recorded, *_USUAL, *environ.get("PATH", "").split(":")]
    present = [Path(place) for place in dict.fromkeys(places) if place and Path(place) != BIN]
    return [place for place in present if any(_is_of_root(place / name) for name in names())]


def _is_of_root(path: Path) -> bool:
    return _is_ours(path) and path.stat().st_uid == 0


def own_in_path(environ: Mapping[str, str]) -> list[str]:
    """Return the names that run fgsched where PATH finds them first, as inside jobs."""
    folders = [Path(place) for place in environ.get("PATH", "").split(":") if place]
    first = {
        name: next((place / name for place in folders if os.access(place / name, os.X_OK)), None)
        for name in names()
    }
    return [name for name, path in first.items() if path and (path.parent == BIN or _is_ours(path))]


def program(name: str) -> bytes:
    """Return the program of one name."""
    command = command_line(name)
    before = _prompts(name) if name in _WITH_PROMPTS else b""
    return b'%s\n%s\n%sexec %s "$@"\n' % (_SHELL, _MARK, before, os.fsencode(command))


def _prompts(name: str) -> bytes:
    """Return the lines of the program inside jobs that keep the prompts of the caller."""
    return b"".join((BIN / name).read_bytes().splitlines(keepends=True)[1:_PROMPT_LINES])


def _completions(folder: Path) -> dict[Path, str]:
    return files(folder, names(), _MARK.decode())


def _about_completions(folder: Path, done: str) -> str:
    shares = shell_folders(folder)
    return f"completions for {', '.join(shares)}: {done} {folder.parent / 'share'}\n" if shares else ""


def _refuse_others(folder: Path, environ: Mapping[str, str]) -> None:
    others = [path for path in _found([str(folder)]) if not _is_ours(path)]
    if others:
        raise Refused(
            f"{', '.join(map(str, others))}: not of fgsched, so nothing was written",
            "Choose another directory, or remove them first.",
        )
    slurm = [path for path in _found(environ.get("PATH", "").split(":")) if not _is_ours(path)]
    if slurm:
        raise Refused(
            f"this host has a Slurm, or commands with its names: {', '.join(map(str, slurm))}",
            "Nothing was written. Use fgsub, fgq, …; inside jobs these commands have Slurm's names.",
        )


def _found(folders: Iterable[str]) -> list[Path]:
    """Return the existing files of these names, without those of jobs."""
    present = [Path(folder) for folder in dict.fromkeys(folders) if folder and Path(folder) != BIN]
    return [place / name for place in present for name in names() if os.path.lexists(place / name)]


def _is_ours(path: Path) -> bool:
    with suppress(OSError):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO in PATH answers never
        with os.fdopen(os.open(path, flags), "rb") as file:
            is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return is_file and _MARK in file.read(_HEAD).splitlines()
    return False


def _is_in_path(folder: Path, environ: Mapping[str, str]) -> bool:
    return any(
        Path(place).resolve() == folder.resolve() for place in environ.get("PATH", "").split(":") if place
    )


def _make(folder: Path) -> None:
    """Create a directory; root's must be one that only root can change, and is readable for all users.

    Raises:
        Refused: another user could change it.
        StorageError: it cannot be created.
    """
    is_root = os.geteuid() == 0
    with written(folder), places.folder(folder, make=True, mode=0o755 if is_root else None):
        if is_root:
            refuse_unless_safe(folder, owner=0, writers=_ADMINISTRATORS)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replace a file at once, so that a command that starts meanwhile finds the old or the new one.

    Raises:
        StorageError: it cannot be written.
    """
    with written(path):
        places.replace_file(path, data, mode, exact_mode=True)


def _unlink(path: Path) -> None:
    """Remove a file of ours, where its directory is opened once. Raises StorageError."""
    with written(path), places.pinned(path) as pinned_path:
        if _is_ours(pinned_path):
            pinned_path.unlink()
