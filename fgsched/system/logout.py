"""Tell whether the end of a login ends a user's controller and its jobs."""

import subprocess
from contextlib import suppress
from pathlib import Path

from fgsched.domain.text import lazy_regex

_LINGER = Path("/var/lib/systemd/linger")
_SESSION = lazy_regex(r"/session-[^/\s]+\.scope")
_MANAGER = lazy_regex(r"/user@[0-9]+\.service")
_DEADLINE = 5  # seconds for a question to logind


def reason(cgroups: str, *, kills: bool, lingers: bool) -> str:
    """Return why the last logout of a user ends a process; "" if it does not.

    Args:
        cgroups: those of the process, as /proc/PID/cgroup has them.
        kills: `KillUserProcesses` of logind.
        lingers: whether the user's manager stays without a login.
    """
    if _MANAGER.search(cgroups):
        return "" if lingers else "it runs below the user's service manager, which ends without linger"
    if _SESSION.search(cgroups) and kills:
        return "logind has KillUserProcesses=yes"
    return ""


def reason_for(pid: int, user: str) -> str:
    """Return why the last logout of a user ends a process; "" if it does not, or if that is unknown."""
    with suppress(OSError):
        cgroups = Path(f"/proc/{pid}/cgroup").read_text()
        return reason(cgroups, kills=_kills(), lingers=(_LINGER / user).exists())
    return ""


def _kills() -> bool:
    """Return whether logind ends all processes of a session at its end."""
    command = ["loginctl", "show-session", "--property=KillUserProcesses", "--value"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE, check=True)
        return done.stdout.strip() == "yes"
    return False
