"""Show clients that a controller is starting: a symbolic link beside its socket names the process.

The link exists from the lock of the controller until its first request, and while it executes itself again.
A killed controller leaves a link to a process that no longer exists; the next one replaces it.
"""

import os
from contextlib import suppress
from pathlib import Path

from fgsched.system.process import Identity, identify, is_alive


def _link(socket: Path) -> Path:
    return socket.with_name("starting")


def show_start(socket: Path) -> None:
    """Name this process as the controller that is starting. On a full disk it starts without the link."""
    link, identity = _link(socket), identify(os.getpid())
    if identity is not None:
        with suppress(OSError):
            link.unlink(missing_ok=True)
            link.symlink_to(f"{identity.pid}:{identity.start}:{identity.boot}")


def clear_start(socket: Path) -> None:
    """Remove the link, if there is one."""
    with suppress(OSError):
        _link(socket).unlink(missing_ok=True)


def starting(socket: Path) -> int:
    """Return the pid of the controller that is starting; 0 if none is."""
    try:
        pid, start, boot = os.readlink(_link(socket)).split(":")
        identity = Identity(int(pid), int(start), boot)
    except (OSError, ValueError):
        return 0
    return identity.pid if is_alive(identity) else 0
