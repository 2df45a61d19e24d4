"""Record the name of the accounts in a file beside them, so that missing accounts are not replaced."""

from pathlib import Path

from fgsched.domain.errors import StorageError
from fgsched.system import disk


def path_of(accounts: Path) -> Path:
    """Return the path of the marker file of an accounts file."""
    return accounts.with_name("accounts.initialised")


def expect(accounts: Path) -> bool:
    """Tell whether the accounts are new: there is no file, or an empty one that no marker names.

    Raises:
        StorageError: the file is missing, and there were accounts before.
    """
    try:
        return accounts.stat().st_size == 0 and not path_of(accounts).exists()
    except FileNotFoundError:
        refuse_missing(accounts)
    return True


def refuse_missing(accounts: Path) -> None:
    """Refuse missing accounts if there were accounts before. Raises StorageError."""
    if path_of(accounts).exists():
        raise StorageError(
            f"the accounts {accounts} are missing",
            f"Restore the file, or remove {path_of(accounts)} to start with empty accounts.",
        ) from None


def name_of(accounts: Path) -> str | None:
    """Return the recorded name of the accounts, or None."""
    marker = path_of(accounts)
    return (marker.read_text().strip() or None) if marker.exists() else None


def other(accounts: Path, name: str, expected: str) -> str:
    """Return the error for accounts with another name than the recorded one."""
    return (
        f"{accounts} contains other accounts: its name is {name}, and {expected} is expected (remove"
        f" {path_of(accounts)} to accept this file)"
    )


def compare(accounts: Path, name: str) -> None:
    """Record the name of the accounts, or compare it with the recorded one.

    Raises:
        StorageError: the names differ, so the file was exchanged.
    """
    marker, known_name = path_of(accounts), name_of(accounts)
    if known_name and known_name != name:
        raise StorageError(
            f"{accounts} contains other accounts: its name is {name}, and {known_name} is expected",
            f"Restore the file, or remove {marker} to accept this one.",
        )
    if not known_name:
        disk.write_marker(marker, f"{name}\n".encode())
