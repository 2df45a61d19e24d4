"""Check that only trusted users can change a file that root reads or executes."""

from pathlib import Path

from fgsched.domain.errors import Refused


def refuse_unless_safe(path: Path, *, owner: int, writers: int = 0o022) -> None:
    """Refuse a file that an untrusted user could change, directly or through a directory above it.

    Args:
        owner: the uid that may own the file and the directories, beside root.
        writers: the mode bits that must not be set; programs may be in a directory that a group of
            administrators can write.

    Raises:
        Refused: the file, or a directory above it, has another owner or such a mode bit.
    """
    path = path.resolve()
    for place in (path, *path.parents):
        found = place.stat()
        # In a sticky directory only the owner of a file can replace it.
        sticky = place != path and found.st_mode & 0o1000
        if found.st_uid not in (0, owner):
            raise Refused(
                f"{place} belongs to uid {found.st_uid}, but root relies on {path}.", f"chown root {place}"
            )
        if found.st_mode & writers and not sticky:
            raise Refused(
                f"{path} is writable by others ({place} has mode {found.st_mode & 0o7777:04o}).",
                f"chmod go-w {place}",
            )
