"""Read the attributes that a job inherits from the submitting process."""

import os
import pwd
import resource
from collections.abc import Mapping


def account(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return name and home directory of the caller; the uid if the user database has no name."""
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        return str(os.getuid()), environ.get("HOME", "/")
    return entry.pw_name, entry.pw_dir


def umask() -> int:
    """Return the umask. Reading it sets it for a moment, so the process must have no other threads."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def rlimits() -> tuple[tuple[int, int, int], ...]:
    """Return (resource, soft, hard) of every resource limit; -1 is unlimited."""
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    numbers = sorted({getattr(resource, name) for name in names})
    return tuple((number, *resource.getrlimit(number)) for number in numbers)
