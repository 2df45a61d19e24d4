"""Keep the files in the state directory private: they contain scripts, environments and names of users."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from fgsched.system.paths import Paths

_OTHERS, _WRITERS = 0o077, 0o022
_OURS = ("queue.", "accounts.", "audit.log", "fgsched.log")  # how the names of the files begin


def open_to_others(places: Paths) -> list[Path]:
    """Return what other users may access of the state: files of fgsched, `mail`, and its own directory.

    A directory that FG_HOME names may contain files of the user's for others; it is not returned. What cannot
    be examined is left out.
    """
    return [path for path in _ours(places) if _mode(path) & _OTHERS]


def close_to_others(places: Paths) -> list[Path]:
    """Remove the permissions of other users; return the paths, changed or not.

    A queue that others could write stays as it is, and is refused when it is opened.
    """
    found = [path for path in open_to_others(places) if path != places.queue or not _mode(path) & _WRITERS]
    for path in found:
        try:
            os.chmod(path, _mode(path) & ~_OTHERS, follow_symlinks=True)
        except OSError:  # a read-only file system: the caller names the path all the same
            continue
    return found


def _ours(places: Paths) -> Iterator[Path]:
    if not places.is_named:
        yield places.state
    try:
        names = sorted(os.listdir(places.state))
    except OSError:
        return
    for name in names:
        if name == "mail" or name.startswith(_OURS):
            yield places.state / name


def _mode(path: Path) -> int:
    """Return the permissions of a file or directory of this user; 0 for anything else."""
    try:
        found = path.lstat()
    except OSError:
        return 0
    is_plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return stat.S_IMODE(found.st_mode) if is_plain and found.st_uid == os.geteuid() else 0
