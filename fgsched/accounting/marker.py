"""Record beside the accounts which ones they are, so that missing accounts are not replaced by empty ones."""

import os
from pathlib import Path

from fgsched.domain.errors import StorageError


def path_of(accounts: Path) -> Path:
    """Return the path of the marker file of an accounts file."""
    return accounts.with_name("accounts.initialised")


def expect(accounts: Path) -> bool:
    """Tell whether the accounts must be made; their file is created then, empty.

    Raises:
        StorageError: the file is missing, and there were accounts here before.
    """
    try:
        return accounts.stat().st_size == 0 and not path_of(accounts).exists()
    except FileNotFoundError:
        refuse_missing(accounts)
    os.close(os.open(accounts, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    return True


def refuse_missing(accounts: Path) -> None:
    """Refuse missing accounts if there were accounts here before. Raises StorageError."""
    if path_of(accounts).exists():
        raise StorageError(
            f"{accounts} is missing, and there were accounts here before",
            f"Bring it back, or remove {path_of(accounts)} to start with empty accounts.",
        ) from None


def compare(accounts: Path, name: str) -> None:
    """Record the name of the accounts, or compare it with the recorded one.

    Raises:
        StorageError: the file has other accounts than those that were here.
    """
    marker = path_of(accounts)
    known = marker.read_text().strip() if marker.exists() else ""
    if known and known != name:
        raise StorageError(
            f"{accounts} has other accounts ({name}) than those that were here ({known})",
            f"Bring the file back, or remove {marker} to go on with this one.",
        )
    if not known:
        marker.write_text(f"{name}\n")
