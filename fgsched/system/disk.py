"""Change durable files: each write, rename, removal, truncation and synchronisation of a file that is kept.

After a failed sync the kernel may mark pages as written that differ from the disk. A later sync of them
succeeds and writes nothing, and the old bytes can come back at any time. So nothing that only the page cache
holds is trusted after a failed sync: the process writes the data again, into a new file, or ends. The next
process cannot know of the failed sync; it writes again what it relies on (`write_again`).
"""

import errno
import os
from contextlib import suppress
from pathlib import Path

_PIECE = 2**20  # bytes that are copied at once
FULL = {errno.ENOSPC, errno.EDQUOT}


def has_used_up_quota(place: Path) -> bool:
    """Tell whether a quota refuses one MiB more in a directory, which SQLite reports as an I/O error."""
    try:
        fd = os.open(place, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, _PIECE)
        finally:
            os.close(fd)
    except OSError as error:
        return error.errno == errno.EDQUOT
    return False


class Kernel:
    """The system calls that change durable files. Tests replace it to let them fail."""

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        """Open a file, not inherited by programs. Raises OSError."""
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def write(self, fd: int, data: bytes, offset: int) -> int:
        """Write at an offset in bytes; return how many were written. Raises OSError."""
        return os.pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file to `size` bytes. Raises OSError."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Wait until the disk has the file. Raises OSError."""
        os.fsync(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, over another one. Raises OSError."""
        os.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name. Raises OSError."""
        os.link(source, target)

    def remove(self, path: Path) -> None:
        """Remove a name. Raises OSError."""
        os.unlink(path)


kernel = Kernel()


def open_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open or create a file; `sync_directory` makes a new name durable. Raises OSError."""
    return kernel.open(path, flags, mode)


def write(fd: int, data: bytes, offset: int = 0) -> None:
    """Write all bytes at an offset. Raises OSError."""
    while data:
        written = kernel.write(fd, data, offset)
        data, offset = data[written:], offset + written


def sync(fd: int) -> None:
    """Make the content of an open file durable.

    Raises:
        OSError: it is unknown what the disk has: write the data again, or end (see the module).
    """
    kernel.sync(fd)


def sync_file(path: Path) -> None:
    """Make the content of a file durable that this process has written. A missing file is ignored."""
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sync(fd)
        finally:
            os.close(fd)


def sync_directory(path: Path) -> None:
    """Make created, changed and removed names in a directory durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


def rename(source: Path, target: Path) -> None:
    """Rename a file. `sync_directory` makes the name durable. Raises OSError."""
    kernel.rename(source, target)


def link(source: Path, target: Path) -> None:
    """Give a file a second name. `sync_directory` makes the name durable. Raises OSError."""
    kernel.link(source, target)


def remove(path: Path, *, missing_ok: bool = False) -> None:
    """Remove a file. `sync_directory` makes the removal durable. Raises OSError."""
    try:
        kernel.remove(path)
    except FileNotFoundError:
        if not missing_ok:
            raise


def create_file(
    path: Path, data: bytes, mode: int = 0o600, *, syncs: bool = True, exact_mode: bool = False
) -> None:
    """Write a new file in place of an older one of the same name. An error leaves no file.

    `exact_mode`: the umask does not apply. Raises OSError.
    """
    remove(path, missing_ok=True)
    fd = kernel.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, mode)
    try:
        write(fd, data)
        if exact_mode:
            os.fchmod(fd, mode)
        if syncs:
            sync(fd)
    except BaseException:
        with suppress(OSError):
            remove(path)
        raise
    finally:
        os.close(fd)


def replace_file(
    path: Path, data: bytes, mode: int = 0o600, *, fresh: Path | None = None, exact_mode: bool = False
) -> None:
    """Replace a file atomically and durably: after a crash either the old or the new content exists.

    `fresh` is the path of the new file until it is complete. `exact_mode`: the umask does not apply. After an
    error the call must be repeated.

    Raises:
        OSError: the content is the old one, or the new one, and perhaps not durable.
    """
    fresh = fresh or path.with_name(f"{path.name}.new")
    create_file(fresh, data, mode, exact_mode=exact_mode)
    rename(fresh, path)
    sync_directory(path.parent)


def write_marker(path: Path, data: bytes) -> None:
    """Write a file whose existence is relied on. After an error there is none that is perhaps not durable.

    Raises:
        OSError: the file does not exist, or has its old content.
    """
    try:
        replace_file(path, data)
    except OSError:
        with suppress(OSError):
            if path.read_bytes() == data:
                remove(path)
        raise


# -- after a sync that may have failed ----------------------------------------------------------------


def name_again(*paths: Path) -> None:
    """Make the names of files of one directory durable, before anything relies on them. They may be open.

    SQLite ignores the error of a directory's sync, and a failed sync by any process can lose a name for good
    that was made before it. A name that is made again is synchronised by the next sync. Another process that
    opens the file between the two renames does not find it. Raises OSError.
    """
    for path in paths:
        with suppress(FileNotFoundError):
            rename(path, _parked(path))
        restore_name(path)
    sync_directory(paths[0].parent)


def restore_name(path: Path) -> None:
    """Rename a file back whose process was killed between the two renames of `name_again`. Raises OSError."""
    with suppress(FileNotFoundError):
        rename(_parked(path), path)


def _parked(path: Path) -> Path:
    return path.with_name(f"{path.name}.name")


def write_again(
    path: Path, size: int | None = None, *, in_place: bool = False, fresh: Path | None = None
) -> None:
    """Make the first `size` bytes of a file durable, whatever happened to earlier syncs of it.

    They are copied into a new file, `fresh`, which replaces this one. On a full disk, and for `in_place`, the
    same bytes are written in place, which makes their pages dirty again. A missing file is ignored. No other
    program may write the file.

    Raises:
        OSError: the file is perhaps not durable.
    """
    with suppress(FileNotFoundError):
        fd = kernel.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            size = os.fstat(fd).st_size if size is None else size
            fresh = fresh or path.with_name(f"{path.name}.again")
            if in_place or not _is_exchanged(path, fresh, fd, size):
                _pour(fd, fd, size)
                sync(fd)
                sync_directory(path.parent)
        finally:
            os.close(fd)


def _is_exchanged(path: Path, fresh: Path, fd: int, size: int) -> bool:
    """Replace a file by a copy of its first bytes; return False if the disk is full."""
    try:
        _copy(fd, fresh, size, os.fstat(fd).st_mode & 0o777)
    except OSError as error:
        with suppress(OSError):
            remove(fresh)
        if error.errno not in FULL:
            raise
        return False
    rename(fresh, path)
    sync_directory(path.parent)
    return True


def _copy(source: int, fresh: Path, size: int, mode: int) -> None:
    remove(fresh, missing_ok=True)
    target = kernel.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, mode)
    try:
        _pour(source, target, size)
        sync(target)
    finally:
        os.close(target)


def _pour(source: int, target: int, size: int) -> None:
    """Copy bytes through this process: a file system may otherwise share the blocks of the disk instead."""
    for at in range(0, size, _PIECE):
        write(target, os.pread(source, min(_PIECE, size - at), at), at)
