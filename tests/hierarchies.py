"""The cgroup hierarchies of this host in which tests can make groups."""

import os
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


def usable(*candidates: str) -> Path | None:
    """The first of these hierarchies in which we can make a group."""
    for candidate in candidates:
        group = ROOT / candidate / f"fg-probe-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        has_procs = (group / "cgroup.procs").exists()
        group.rmdir()
        if has_procs:
            return ROOT / candidate
    return None


UNIFIED = usable("unified", ".")
NEEDS_UNIFIED = [pytest.mark.cgroup, pytest.mark.skipif(UNIFIED is None, reason="no writable cgroup v2")]


def unified_of(text: str) -> Path:
    """The group of version 2 in the text of a process's /proc/PID/cgroup."""
    (path,) = [line[3:] for line in text.splitlines() if line.startswith("0::")]
    return UNIFIED / path.lstrip("/")
