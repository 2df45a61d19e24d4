"""Find the shepherd or spawner that supervises a process."""

import os
from collections.abc import Mapping
from pathlib import Path

from fgsched.system.process import Identity, identify

_PROGRAM = "fgspawn"


def supervisor_above(pid: int, parents: Mapping[int, int]) -> Identity | None:
    """Return the nearest ancestor that is a shepherd or spawner of this user, or None.

    Args:
        parents: {pid: parent pid} of all processes.
    """
    while (pid := parents.get(pid, 0)) > 1:
        found = identify(pid)
        if found is not None and is_ours(pid):
            return found
    return None


def is_ours(pid: int) -> bool:
    """Return whether a process is a shepherd or a spawner of this user."""
    try:
        return is_supervisor(pid) and os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False


def is_supervisor(pid: int) -> bool:
    """Return whether a process is a shepherd or a spawner of any user.

    The program file of another user's process cannot be read; then its name decides.
    """
    try:
        program = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")  # an upgrade deletes the file
    except PermissionError:
        return _has_its_name(pid)
    except OSError:
        return False
    return os.path.basename(program) == _PROGRAM


def _has_its_name(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text() == f"{_PROGRAM}\n"
    except OSError:
        return False
