"""Replace small files beside the queue atomically."""

import os
from contextlib import suppress
from pathlib import Path

PAGE = 4096  # bytes of a page of the queue


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably: after a crash either the old or the new content exists."""
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
    """Make created, changed and removed names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    """Make the content of a file durable. A missing file is ignored."""
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
