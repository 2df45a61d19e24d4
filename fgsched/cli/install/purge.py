"""Remove the state and the run directory of the host's controller, and nothing that lies elsewhere."""

import ctypes
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from fgsched.cli.install.carry import STATE, below
from fgsched.domain.errors import NotPermitted
from fgsched.domain.text import shown
from fgsched.system import places
from fgsched.system.cleaner import RemovalTree
from fgsched.system.paths import SYSTEM_RUN

_ROUNDS = 12  # of one entry: a process may still write to it
_DETACH, _NOFOLLOW = 2, 8  # of umount2(2)
_ESCAPE = re.compile(r"\\([0-7]{3})")
_LIBC = ctypes.CDLL(None, use_errno=True)


def purge(root: Path) -> Iterator[str]:
    """Remove both directories below `root`; yield what was removed, and what was kept and why.

    Users write below the run directory. Only names in open directories are removed: no link is followed and
    no mount is entered, also if a user exchanges directories meanwhile.

    Raises:
        NotPermitted: another user made a link on the way.
    """
    if root == Path("/"):
        _detach_spaces(Path("/proc/self/mountinfo").read_text())
    for path in (below(root, STATE), below(root, str(SYSTEM_RUN))):
        if os.path.lexists(path):
            yield from _remove(path)


def _remove(path: Path) -> Iterator[str]:
    """Remove a directory, or what is in the directory that a link of root's names, and the link."""
    kept_names = []
    try:
        with places.folder(path) as directory:
            entries = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
            try:
                kept_names = [name for name in os.listdir(entries) if not _is_removed(entries, name)]
            finally:
                os.close(entries)
    except PermissionError as error:
        raise NotPermitted(f"{path} is kept: {error.strerror}", "Look at it, then remove it.") from None
    except (FileNotFoundError, NotADirectoryError):
        pass  # a link without a target, or a file
    yield from (
        f"keep {shown(str(path / name))}: something is mounted there, or uses it\n" for name in kept_names
    )
    if not kept_names:
        with places.pinned(path) as pinned_path:
            if pinned_path.is_symlink() or not pinned_path.is_dir():
                pinned_path.unlink()
            else:
                pinned_path.rmdir()
        yield f"remove {path}\n"


def _is_removed(parent: int, name: str) -> bool:
    """Remove an entry of an open directory; return whether it is gone."""
    tree = RemovalTree(parent, name)
    try:
        for _ in range(_ROUNDS):
            while tree.work(lambda: True):
                pass
            tree.close()
            if not tree.exists:
                return True
            if tree.fault is not None:
                return False
        return False
    finally:
        tree.close()


def _detach_spaces(table: str) -> None:
    """Unmount the spaces of users, with all that users have mounted in them, which may never answer.

    Only root can write to the directories above a space.
    """
    for mount in _spaces(table):
        with suppress(OSError), places.pinned(mount) as pinned_path:
            _LIBC.umount2(os.fsencode(pinned_path), _DETACH | _NOFOLLOW)


def _spaces(table: str) -> Sequence[str]:
    """Return the mount points of spaces in the lines of /proc/self/mountinfo."""
    mount_points = []
    for line in table.splitlines():
        fields, _, kind = line.partition(" - ")
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields.split(" ")[4])
        if kind.startswith("tmpfs fgsched ") and Path(point).parent == SYSTEM_RUN / "space":
            mount_points.append(point)
    return mount_points
