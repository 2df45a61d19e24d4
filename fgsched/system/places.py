"""Directories and files in places that others share: /tmp, a home seen from root, a folder of reports.

Each is reached through descriptors. Type, owner and mode are compared at every use, and no link is followed
that another user could have put there.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, ELOOP, ENOTDIR
from pathlib import Path

from fgsched.system import disk

_WRITERS = 0o022  # mode bits with which others may change a directory
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS = 40  # as many as the kernel follows in a path


def is_own(found: os.stat_result) -> bool:
    """Return whether a real directory belongs to this user, and no other user may write to it."""
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & _WRITERS


def open_own(name: str | Path, parent: int | None = None) -> int:
    """Open a directory that only this user can change; the caller closes it.

    Raises:
        OSError: there is none.
        PermissionError: it is a link, no directory, of another user, or others may write to it.
    """
    try:
        descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError as error:
        if error.errno in (ELOOP, ENOTDIR):
            raise _refused(name) from None
        raise
    if not is_own(os.fstat(descriptor)):
        os.close(descriptor)
        raise _refused(name)
    return descriptor


def make_own(name: str | Path, parent: int | None = None) -> int:
    """Open a directory as `open_own` does, after making it if it is missing."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    return open_own(name, parent)


def is_still(descriptor: int, path: str) -> bool:
    """Return whether a path leads to the open directory, and it is still this user's alone."""
    with suppress(OSError):
        found = os.lstat(path)
        return is_own(found) and os.path.samestat(found, os.fstat(descriptor))
    return False


def _refused(name: str | Path) -> PermissionError:
    return PermissionError(EACCES, "it is not a directory that only you can change", str(name))


# -- what is written at a path that a person names --------------------------------------------------------


@contextmanager
def folder(path: str | Path, *, make: bool = False) -> Iterator[int]:
    """Open the directory `path` as a descriptor for as long as the block lasts.

    Each component is opened below the one before. A link is followed only if it belongs to root, to this
    user, or, where this is not root, to the owner of its directory: as in /tmp (protected_symlinks).

    Args:
        make: make the directories that are missing.

    Raises:
        OSError: a directory is missing or cannot be opened.
        PermissionError: another user's link is on the way.
    """
    descriptor, left = os.open("/", _ENTRY), list(reversed(Path(os.path.abspath(path)).parts[1:]))
    links = 0
    try:
        while left:
            at = _entered(name := left.pop(), descriptor, make=make)
            found = os.fstat(at)
            if stat.S_ISLNK(found.st_mode):
                try:
                    links += 1
                    target = _followed(at, found, os.fstat(descriptor), str(path), links)
                finally:
                    os.close(at)
                left.extend(reversed(Path(target).parts))
                if left[-1:] == ["/"]:
                    left.pop()
                    os.close(descriptor)
                    descriptor = os.open("/", _ENTRY)
                continue
            os.close(descriptor)
            descriptor = at
            if not stat.S_ISDIR(found.st_mode):
                raise NotADirectoryError(ENOTDIR, f"{name} is not a directory", str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def _entered(name: str, above: int, *, make: bool) -> int:
    try:
        return os.open(name, _ENTRY, dir_fd=above)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=above)
    return os.open(name, _ENTRY, dir_fd=above)


def _followed(link: int, found: os.stat_result, above: os.stat_result, path: str, links: int) -> str:
    """Return the target of an open link that may be followed. Raises OSError."""
    trusted = {0, os.geteuid()} | ({above.st_uid} if os.geteuid() else set())
    if found.st_uid not in trusted:
        raise PermissionError(EACCES, f"uid {found.st_uid} made a link on the way", path)
    if links > _LINKS:
        raise OSError(ELOOP, os.strerror(ELOOP), path)
    return os.readlink("", dir_fd=link)


def replace_file(path: str | Path, data: bytes, mode: int = 0o666, *, make: bool = False) -> None:
    """Replace a file atomically and durably, as `disk.replace_file` does, where others may write too.

    A link in its place is replaced, not followed.

    Args:
        mode: of the new file, less the umask.
        make: make the directories that are missing.

    Raises:
        OSError: it cannot be written.
        PermissionError: another user owns what is there, or made a link on the way.
    """
    target = Path(path)
    with folder(target.parent, make=make) as parent:
        _refuse_foreign(target.name, parent)
        here = Path(f"/proc/self/fd/{parent}")
        fresh = here / f".{target.name[:100]}.{os.urandom(6).hex()}.new"
        disk.replace_file(here / target.name, data, mode, fresh=fresh)


def _refuse_foreign(name: str, parent: int) -> None:
    """Refuse to replace what belongs to another user. Raises PermissionError."""
    with suppress(FileNotFoundError):
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if found.st_uid != os.geteuid():
            raise PermissionError(EACCES, f"what is there belongs to uid {found.st_uid}", name)
