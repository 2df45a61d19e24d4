"""Directories and files in places that others share: /tmp, a home seen from root, a folder of reports.

Each is reached through descriptors. Type, owner and mode are compared at every use, and no link is followed
that another user could have put there.
"""

import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EEXIST, ELOOP, ENOTDIR, EPERM
from pathlib import Path
from typing import BinaryIO

from fgsched.system import disk

_WRITERS = 0o022  # mode bits with which others may change a directory
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS = 40  # as many as the kernel follows in a path


def is_own(status: os.stat_result) -> bool:
    """Return whether a real directory belongs to this user, and no other user may write to it."""
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & _WRITERS


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
        status = os.lstat(path)
        return is_own(status) and os.path.samestat(status, os.fstat(descriptor))
    return False


def _refused(name: str | Path) -> PermissionError:
    return PermissionError(EACCES, "it is not a directory that only you can change", str(name))


# -- what is written at a path that a person names --------------------------------------------------------


@contextmanager
def folder(path: str | Path, *, make: bool = False, mode: int | None = None) -> Iterator[int]:
    """Open the directory `path` as a descriptor for as long as the block lasts.

    Each component is opened below the one before. A link is followed only if it belongs to root, to this
    user, or, where this is not root, to the owner of its directory: as in /tmp (protected_symlinks).

    Args:
        make: make the directories that are missing.
        mode: of these, whatever the umask. They are made only in directories of this user or of root.

    Raises:
        OSError: a directory is missing or cannot be opened.
        PermissionError: another user's link is on the way.
    """
    try:
        descriptor = _walked(str(path), make=make, mode=mode)
    except OSError as error:
        error.filename = str(path)  # instead of the component
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _walked(path: str, *, make: bool, mode: int | None) -> int:
    descriptor, names = os.open("/", _ENTRY), list(reversed(Path(os.path.abspath(path)).parts[1:]))
    links = 0
    try:
        while names:
            at = _entered(name := names.pop(), descriptor, make=make, mode=mode)
            status = os.fstat(at)
            if stat.S_ISLNK(status.st_mode):
                try:
                    links += 1
                    target = _followed(at, status, os.fstat(descriptor), links)
                finally:
                    os.close(at)
                names.extend(reversed(Path(target).parts))
                if names[-1:] == ["/"]:
                    names.pop()
                    os.close(descriptor)
                    descriptor = os.open("/", _ENTRY)
                continue
            os.close(descriptor)
            descriptor = at
            if not stat.S_ISDIR(status.st_mode):
                raise NotADirectoryError(ENOTDIR, f"{name} is not a directory")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _entered(name: str, above: int, *, make: bool, mode: int | None) -> int:
    try:
        return os.open(name, _ENTRY, dir_fd=above)
    except FileNotFoundError:
        if not make:
            raise
    if mode is not None and os.fstat(above).st_uid not in (0, os.geteuid()):
        raise _refused(name)  # such as the home of another user, which is in the variables of root
    with suppress(FileExistsError):
        os.mkdir(name, 0o777 if mode is None else 0o700, dir_fd=above)
        if mode is not None:
            descriptor = open_own(name, above)
            os.fchmod(descriptor, mode)
            os.close(descriptor)
    return os.open(name, _ENTRY, dir_fd=above)


def _followed(link: int, status: os.stat_result, above: os.stat_result, links: int) -> str:
    """Return the target of an open link that may be followed. Raises OSError."""
    trusted = {0, os.geteuid()} | ({above.st_uid} if os.geteuid() else set())
    if status.st_uid not in trusted:
        raise PermissionError(EACCES, f"uid {status.st_uid} made a link on the way")
    if links > _LINKS:
        raise OSError(ELOOP, os.strerror(ELOOP))
    return os.readlink("", dir_fd=link)


@contextmanager
def pinned(path: str | Path, *, make: bool = False, mode: int | None = None) -> Iterator[Path]:
    """Yield a path to the same name in the open directory: no later link on the way leads elsewhere.

    `make`, `mode`: of directories that are missing, as `folder` has them.

    Raises:
        OSError: of the block, with the path that the caller named.
        PermissionError: another user owns what is there, or made a link on the way.
    """
    target = Path(path)
    with folder(target.parent, make=make, mode=mode) as parent:
        if mode is not None and os.fstat(parent).st_uid not in (0, os.geteuid()):
            raise _refused(target.parent)
        pinned_path = Path(f"/proc/self/fd/{parent}") / target.name
        try:
            _refuse_foreign(pinned_path)
            yield pinned_path
        except OSError as error:
            if Path(os.fsdecode(error.filename or "")).parent == pinned_path.parent:
                error.filename, error.filename2 = str(target), None
            raise


def read_own(path: str | Path, most: int) -> bytes:
    """Return a file of this user, at most `most` bytes; b"" if there is none.

    A pipe, which never answers, a device, which never ends, and a file of another user are not read: root may
    have the variables of another user's login, such as HOME.

    Raises:
        OSError: it cannot be read.
        PermissionError: it is no regular file of this user, or another user made a link on the way.
    """
    try:
        with pinned(path) as pinned_path:
            descriptor = os.open(pinned_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(EACCES, "it is no regular file of yours", str(path))
        return file.read(most)


def replace_file(
    path: str | Path,
    data: bytes,
    mode: int = 0o666,
    *,
    make: bool = False,
    folder_mode: int | None = None,
    exact_mode: bool = False,
) -> None:
    """Replace a file atomically and durably, as `disk.replace_file` does, where others may write too.

    A link in its place is replaced, not followed.

    Args:
        mode: of the new file, less the umask unless `exact_mode`.
        make: make the directories that are missing, with `folder_mode` as `folder` has it.

    Raises:
        OSError: it cannot be written.
        PermissionError: another user owns what is there, or made a link on the way.
    """
    with pinned(path, make=make, mode=folder_mode) as pinned_path:
        disk.replace_file(pinned_path, data, mode, fresh=_fresh(pinned_path), exact_mode=exact_mode)


@contextmanager
def new_file(path: str | Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Open a file that gets the name `path` once the block has written it; it replaces nothing.

    Raises:
        FileExistsError: there is a file of this name, or a link.
        OSError: it cannot be written.
        PermissionError: another user owns what is there, exchanged the new file, or made a link on the way.
    """
    with pinned(path) as pinned_path:
        fresh, flags = _fresh(pinned_path), os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW
        with os.fdopen(disk.kernel.open(fresh, flags, mode), "w+b") as file:
            try:
                yield file
                file.flush()
                disk.sync(file.fileno())
                disk.link(fresh, pinned_path)
                if not os.path.samestat(os.lstat(pinned_path), os.fstat(file.fileno())):
                    raise PermissionError(EACCES, "another process exchanged the new file", str(path))
            finally:
                with suppress(OSError):
                    disk.remove(fresh)
        disk.sync_directory(pinned_path.parent)


def _fresh(path: Path) -> Path:
    return path.with_name(f".{path.name[:100]}.{os.urandom(6).hex()}.new")


def _refuse_foreign(path: Path) -> None:
    """Refuse to replace what belongs to another user. Raises PermissionError."""
    with suppress(FileNotFoundError):
        owner = os.lstat(path).st_uid
        if owner != os.geteuid():
            raise PermissionError(EACCES, f"what is there belongs to uid {owner}", str(path))


# -- with the rights of a user, or without following links ---------------------------------------------


@contextmanager
def rights_of(uid: int) -> Iterator[None]:
    """Give this process the rights of a user on files for as long as the block lasts, if it is root's.

    Root that opens a path of a user would follow the user's links to any file, and open any device.

    Raises:
        PermissionError: the user has no account.
    """
    if os.geteuid() != 0 or uid == 0:
        yield
        return
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        raise PermissionError(EPERM, f"uid {uid} has no account") from None
    groups = os.getgroups()
    os.setgroups(os.getgrouplist(account.pw_name, account.pw_gid))
    os.setegid(account.pw_gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def create_own(path: str, mode: int) -> int:
    """Open an empty file for writing: a new one, or one of the caller without another name.

    For a name that the caller did not choose, in a directory in which others may have planted links.

    Raises:
        OSError: the file cannot be written; EEXIST if it is a link, not a regular file or of another user.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise FileExistsError(EEXIST, os.strerror(EEXIST), path)
    os.ftruncate(descriptor, 0)
    return descriptor
