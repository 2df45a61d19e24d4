"""Who supervises a process: the nearest shepherd or spawner above it that belongs to us."""

import os
from collections.abc import Mapping
from pathlib import Path

from fgsched.system.process import Identity, identify

_PROGRAM = "fgspawn"


def supervisor_above(pid: int, above: Mapping[int, int]) -> Identity | None:
    """The nearest one; `above` is the parent of every process. None where there is none."""
    while (pid := above.get(pid, 0)) > 1:
        found = identify(pid)
        if found is not None and is_ours(pid):
            return found
    return None


def is_ours(pid: int) -> bool:
    """Whether a process is a shepherd or a spawner of this user; an upgrade deletes the program they run."""
    try:
        return is_supervisor(pid) and os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False


def is_supervisor(pid: int) -> bool:
    """The same of any user; of another user's process the program cannot be read, but its name."""
    try:
        program = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except PermissionError:
        return _is_named_so(pid)
    except OSError:
        return False
    return os.path.basename(program) == _PROGRAM


def _is_named_so(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text() == f"{_PROGRAM}\n"
    except OSError:
        return False
