"""The completions of Slurm's names for bash, zsh and fish, which lie beside the programs of these names.

No package has them: a Slurm of the host may have its own in the directories of packages.
"""

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from fgsched.cli import shells


def command_line(name: str) -> str:
    """Return the command line that runs the command of a name, or prints its words.

    It is not the name itself, which could be that of a real Slurm by then. The native programs protect the
    interpreter from the caller's variables.
    """
    native = Path(sys.executable).with_name("fgq" if name in ("squeue", "scancel") else "fgsub")
    if native.exists():
        return f"{shlex.quote(str(native))} --named={name}"
    return f"{shlex.quote(sys.executable)} -I -m fgsched.slurm.names {name}"


def folders(programs: Path) -> dict[str, Path]:
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
        for shell, place in folders(programs).items()
        for name in names
    }


def _marked(text: str, mark: str) -> str:
    """Insert a comment, after the line that zsh must find first."""
    first, rest = text.split("\n", 1)
    return f"{first}\n{mark}\n{rest}" if first.startswith("#compdef") else f"{mark}\n{text}"
