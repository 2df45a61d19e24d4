"""Small files beside the queue, replaced as a whole."""

import os
from contextlib import suppress
from pathlib import Path

PAGE = 4096  # bytes of a page of the queue


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that after a crash at any moment the old or the new one is there, whole and durable."""
    fresh = path.with_name(f"{path.name}.new")
    fd = os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    fresh.rename(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make names that were added, changed or removed there durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    """Make the content of a file durable; a file that is not there needs nothing."""
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
