"""Whether root may obey a file: nobody else can change it."""

from pathlib import Path

from fgsched.domain.errors import Refused


def refuse_unless_safe(path: Path, *, owner: int, writers: int = 0o022) -> None:
    """Refuse a file that, itself or by a directory above it, somebody else could change.

    `writers` are the bits of those who must not; programs may lie where a group of administrators installs.
    """
    path = path.resolve()
    for place in (path, *path.parents):
        found = place.stat()
        # In a sticky directory only the owners replace files.
        sticky = place != path and found.st_mode & 0o1000
        if found.st_uid not in (0, owner):
            raise Refused(
                f"{place} belongs to uid {found.st_uid}, and root obeys {path}.", f"chown root {place}"
            )
        if found.st_mode & writers and not sticky:
            raise Refused(
                f"{path} is writable by others ({place} has mode {found.st_mode & 0o7777:04o}).",
                f"chmod go-w {place}",
            )
