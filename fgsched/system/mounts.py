"""Whether jobs can have mounts of their own here, found out by making some; which node is which card's."""

import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from fgsched.domain.job import Gpu
from fgsched.jobs.private import MountPlan
from fgshim import library, spawner

PRELOAD = Path("/etc/ld.so.preload")
_DEVICES = Path("/dev")
_CARDS = Path("/proc/driver/nvidia/gpus")
_DEADLINE = 20  # seconds for what should take none
_USERS = (
    "a user's jobs would run in a user namespace, where setuid programs have no power:"
    ' preload = "namespace" in [fence] of the settings allows it'
)
_MISSING = f"{PRELOAD} is not there, so nothing can be mounted over it: root can make an empty one"


def find(wish: str, run: Path, cards: Iterable[Gpu], *, may_make: bool = False) -> MountPlan:
    """What `preload = wish` comes to here; `may_make`: the empty file that is mounted over, if need be."""
    how = "root" if os.geteuid() == 0 else "user"
    if wish == "environment":
        return MountPlan(note='preload = "environment" in [fence] of the settings')
    if how == "user" and wish == "auto":
        return MountPlan(note=_USERS)
    if may_make and how == "root":
        make_preload(PRELOAD)
    note = why_not(how, run)
    is_required = wish == "namespace"
    if note:
        return MountPlan(note=note, is_required=is_required)
    return MountPlan(how=how, is_required=is_required, nodes=nodes(), node_of=nodes_of(cards))


def make_preload(path: Path) -> None:
    """An empty one changes nothing for anybody, and is left in place."""
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # it is there, or cannot be made: the trial tells
    os.fchmod(fd, 0o644)
    os.close(fd)


def why_not(how: str, run: Path) -> str:
    """Why a program in a namespace of its own would not have the hook; "" if it has."""
    if not PRELOAD.exists():
        return _MISSING
    if how == "root" and (closed := _closed(library())):
        return (
            f"{closed} cannot be read by every user, so programs that become another would not find the hook"
        )
    try:
        return _tried(how, run)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)


def _closed(path: Path) -> Path | None:
    """The first part of a path that others cannot pass, or read."""
    for part in (*reversed(path.resolve().parents), path.resolve()):
        needed = stat.S_IXOTH if part.is_dir() else stat.S_IROTH
        if not part.stat().st_mode & needed:
            return part
    return None


def _tried(how: str, run: Path) -> str:
    with tempfile.TemporaryDirectory(prefix="preload-", dir=run) as name:
        hook, preload = Path(name, "libfgshim.so"), Path(name, "preload")
        hook.symlink_to(library())
        preload.write_text(f"{hook}\n")
        done = subprocess.run(
            [spawner(), "mounts", how, preload, "/bin/cat", "/proc/self/maps"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_DEADLINE,
            check=False,
        )
    if done.returncode:
        return f"no mounts can be made here: {done.stderr.strip() or f'status {done.returncode}'}"
    if "/libfgshim.so\n" not in done.stdout:
        return f"the linker of this host does not load what {PRELOAD} names"
    return ""


def nodes(devices: Path = _DEVICES) -> tuple[str, ...]:
    """The nodes of cards: those of the driver's control and of unified memory have no number."""
    found = (path for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
    return tuple(sorted(map(str, found)))


def nodes_of(cards: Iterable[Gpu], *, about: Path = _CARDS, devices: Path = _DEVICES) -> dict[str, str]:
    """UUID -> node, as the driver tells; its number is not the card's index."""
    minors = {}
    for file in about.glob("*/information"):
        if minor := re.search(r"^Device Minor:\s*(\d+)$", file.read_text(), re.MULTILINE):
            minors[_address(file.parent.name)] = f"{devices}/nvidia{minor[1]}"
    return {card.uuid: minors[_address(card.pci)] for card in cards if _address(card.pci) in minors}


def _address(pci: str) -> tuple[str, ...]:
    """0000:1B:00.0 and 00000000:1b:00.0 are one."""
    domain, _, rest = pci.lower().partition(":")
    return domain[-4:], rest
