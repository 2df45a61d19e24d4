"""Find out whether jobs can have private mounts here, and which device node belongs to which GPU."""

import os
import re
import stat
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fgsched.domain.job import Gpu
from fgsched.lifecycle.enforcement import MountPlan
from fgsched.system import capture, instancefiles
from fgshim import library, spawner

PRELOAD = Path("/etc/ld.so.preload")
_DEVICES = Path("/dev")
_DRIVER = Path("/proc/driver/nvidia")
_DEADLINE = 20  # seconds for a trial that takes milliseconds
_NOTE_FOR_USERS = (
    "a user's jobs would run in a user namespace, where setuid programs have no power:"
    ' preload = "namespace" in [fence] of the settings allows it'
)
_MISSING = f"{PRELOAD} does not exist; as root, create it as an empty file"


def find(setting: str, run: Path, gpus: Iterable[Gpu], *, may_make: bool = False) -> MountPlan:
    """Return the mount plan for the setting `preload` on this host.

    Args:
        may_make: create an empty /etc/ld.so.preload, over which the job's file is mounted, if there is none.
    """
    how = "root" if os.geteuid() == 0 else "user"
    if setting == "environment":
        return MountPlan(note='preload = "environment" in [fence] of the settings')
    if how == "user" and setting == "auto":
        return MountPlan(note=_NOTE_FOR_USERS)
    if may_make and how == "root":
        make_preload(PRELOAD)
    note = why_not(how, run)
    is_required = setting == "namespace"
    if note:
        return MountPlan(note=note, is_required=is_required)
    return MountPlan(how=how, is_required=is_required, nodes=nodes(), nodes_of=nodes_of(gpus))


def make_preload(path: Path) -> None:
    """Create an empty preload file if there is none. It has no effect and is not removed."""
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # it exists, or cannot be created, which the trial reports
    os.fchmod(fd, 0o644)
    os.close(fd)


def why_not(how: str, run: Path) -> str:
    """Return why a program in a private mount namespace would not load the hook; "" if it does."""
    if not PRELOAD.exists():
        return _MISSING
    if how == "root" and (unreadable := _unreadable_part(library())):
        return f"{unreadable} is not readable by all users: a program that changes its user has no hook"
    try:
        return _try_mounts(how, run)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)


def _unreadable_part(path: Path) -> Path | None:
    """Return the first part of a path that other users cannot enter or read."""
    for part in (*reversed(path.resolve().parents), path.resolve()):
        needed = stat.S_IXOTH if part.is_dir() else stat.S_IROTH
        if not part.stat().st_mode & needed:
            return part
    return None


def _try_mounts(how: str, run: Path) -> str:
    with _trial_files(run) as preload:
        command: list[str | Path] = [spawner(), "mounts", how, preload, "/bin/cat", "/proc/self/maps"]
        done = capture.run(command, seconds=_DEADLINE)
    if done.status:
        said = done.errors.decode(errors="replace").strip()
        return f"no mounts can be made here: {said or f'status {done.status}'}"
    if b"/libfgshim.so\n" not in done.output:
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


def nodes(*, about: Path = _DRIVER, devices: Path = _DEVICES) -> tuple[str, ...]:
    """Return the device nodes of GPUs and MIG instances, without the nodes for control and unified memory."""
    found = (path for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
    return (*sorted(map(str, found)), *instancefiles.all_nodes(about=about / "capabilities", devices=devices))


def nodes_of(
    gpus: Iterable[Gpu], *, about: Path = _DRIVER, devices: Path = _DEVICES
) -> dict[str, tuple[str, ...]]:
    """Return {UUID: device nodes}; the number of a node is not the index of its GPU."""
    minors = {}
    for file in (about / "gpus").glob("*/information"):
        if minor := re.search(r"^Device Minor:\s*(\d+)$", file.read_text(), re.MULTILINE):
            minors[_address(file.parent.name)] = int(minor[1])
    found = {}
    for gpu in gpus:
        if (number := minors.get(_address(gpu.pci))) is not None:
            place = {"about": about / "capabilities", "devices": devices}
            own = instancefiles.nodes(number, gpu.mig, **place) if gpu.mig else ()
            found[gpu.uuid] = (f"{devices}/nvidia{number}", *own)
    return found


def _address(pci: str) -> tuple[str, ...]:
    """Return a PCI address in one form: 0000:1B:00.0 and 00000000:1b:00.0 are equal."""
    domain, _, rest = pci.lower().partition(":")
    return domain[-4:], rest
