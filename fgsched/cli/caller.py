"""Who submits: what a job takes over from the process that queues it."""

import os
import pwd
import resource
from collections.abc import Mapping


def account(environ: Mapping[str, str]) -> tuple[str, str]:
    """Name and home of the caller; a number where the user database has no name."""
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        return str(os.getuid()), environ.get("HOME", "/")
    return entry.pw_name, entry.pw_dir


def umask() -> int:
    """The caller's; reading it means setting it, so not for a process with threads."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def rlimits() -> tuple[tuple[int, int, int], ...]:
    """(resource, soft, hard) of each; -1: unlimited, as the kernel's RLIM_INFINITY is read."""
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    numbers = sorted({getattr(resource, name) for name in names})
    return tuple((number, *resource.getrlimit(number)) for number in numbers)
