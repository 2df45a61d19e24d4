"""Find out whether jobs can have private mounts here."""

import os
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fgsched.lifecycle.enforcement import MountPlan
from fgsched.system import capture
from fgshim import library, spawner

PRELOAD = Path("/etc/ld.so.preload")
_DEADLINE = 20  # seconds for a trial that takes milliseconds
_NOTE_FOR_USERS = (
    "a user's jobs would run in a user namespace, where setuid programs have no power:"
    ' preload = "namespace" in [fence] of the settings allows it'
)
_MISSING = f"{PRELOAD} does not exist; as root, create it as an empty file"


Nodes = Mapping[str, tuple[str, ...]]  # UUID of a GPU -> its device nodes


def find(
    setting: str, run: Path, nodes: Callable[[], tuple[tuple[str, ...], Nodes]], *, may_make: bool = False
) -> MountPlan:
    """Return the mount plan for the setting `preload` on this host.

    Args:
        nodes: returns the device nodes of all GPUs, and those of each; not called without a namespace.
        may_make: create an empty /etc/ld.so.preload, over which the job's file is mounted, if there is none.
    """
    kind = "root" if os.geteuid() == 0 else "user"
    if setting == "environment":
        return MountPlan(note='preload = "environment" in [fence] of the settings')
    if kind == "user" and setting == "auto":
        return MountPlan(note=_NOTE_FOR_USERS)
    if may_make and kind == "root":
        make_preload(PRELOAD)
    note = why_not(kind, run)
    is_required = setting == "namespace"
    if note:
        return MountPlan(note=note, is_required=is_required)
    all_nodes, own_nodes = nodes()
    return MountPlan(how=kind, is_required=is_required, nodes=all_nodes, nodes_of=own_nodes)


def make_preload(path: Path) -> None:
    """Create an empty preload file if there is none. It has no effect and is not removed."""
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # it exists, or cannot be created, which the trial reports
    os.fchmod(fd, 0o644)
    os.close(fd)


def why_not(kind: str, run: Path) -> str:
    """Return why a program in a private mount namespace would not load the hook; "" if it does."""
    if not PRELOAD.exists():
        return _MISSING
    if kind == "root" and (unreadable := _unreadable_part(library())):
        return f"{unreadable} is not readable by all users: a program that changes its user has no hook"
    try:
        return _try_mounts(kind, run)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)


def _unreadable_part(path: Path) -> Path | None:
    """Return the first part of a path that other users cannot enter or read."""
    for part in (*reversed(path.resolve().parents), path.resolve()):
        needed = stat.S_IXOTH if part.is_dir() else stat.S_IROTH
        if not part.stat().st_mode & needed:
            return part
    return None


def _try_mounts(kind: str, run: Path) -> str:
    with _trial_files(run) as preload:
        command: list[str | Path] = [spawner(), "mounts", kind, preload, "/bin/cat", "/proc/self/maps"]
        outcome = capture.run(command, seconds=_DEADLINE)
    if outcome.status:
        try_mounts = outcome.errors.decode(errors="replace").strip()
        return f"no mounts can be made here: {try_mounts or f'status {outcome.status}'}"
    if b"/libfgshim.so\n" not in outcome.output:
        return f"the linker of this host does not load what {PRELOAD} names"
    return ""


@contextmanager
def _trial_files(run: Path) -> Iterator[Path]:
    """Yield the path of a preload file that names a link to the hook; both are removed afterwards."""
    directory = run / f"preload-{os.urandom(4).hex()}"
    directory.mkdir(mode=0o700)
    hook, preload = directory / "libfgshim.so", directory / "preload"
    try:
        hook.symlink_to(library())
        preload.write_text(f"{hook}\n")
        yield preload
    finally:
        hook.unlink(missing_ok=True)
        preload.unlink(missing_ok=True)
        directory.rmdir()
