"""Fences: the hook and a region for programs that are no jobs. fgfence makes them.

A fence has a directory like that of a job, with the region and a link to the hook. It lasts until its
programs have ended.
"""

import fcntl
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import fgshim.region as region
from msgspec import Struct

from fgsched.domain.errors import Refused
from fgsched.domain.job import FENCE_DIR, Demand, Gpu, GpuState, Hold, Reading
from fgsched.domain.units import format_mebibytes
from fgsched.lifecycle.launchspec import job_dir
from fgsched.scheduling.placement import cost, is_suitable
from fgsched.system import locks
from fgsched.system.paths import refuse_of_others
from fgsched.system.process import parents, started_with

ATTEMPT = 1
_LINK, _REGION = "libfgshim.so", "region"
PODMAN_SETTINGS = "containers.conf"  # in the directory of a fence
_SEAL = struct.Struct("<96xQ")  # the checksum of a region: region.h


class FenceDirectory(Struct, frozen=True):
    """The directory of all fences of a user."""

    run: Path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the directory, and keep other fences from starting and ending. Raises Refused."""
        folder = self.run / "job"
        try:
            refuse_of_others(state := self.run.parent.parent)
        except PermissionError as error:
            cause = f"{state} cannot be used: {error.strerror}"
            raise Refused(cause, "Set FG_HOME to a directory of yours.") from None
        self.run.parent.parent.mkdir(parents=True, exist_ok=True)
        for path in (self.run.parent, self.run, folder):
            path.mkdir(mode=0o700, exist_ok=True)
            status = path.lstat()
            is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if not is_own or stat.S_IMODE(status.st_mode) & 0o022:
                raise Refused(f"{path} belongs to another user, or others can write there", "Remove it.")
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            locks.lock(descriptor, folder, "another fgfence")
            yield
        finally:
            os.close(descriptor)

    def path(self, number: int) -> Path:
        """Return the directory of a fence."""
        return Path(job_dir(str(self.run), number, ATTEMPT))

    def create(self, number: int, head: bytes, hook: Path) -> int:
        """Create the directory of a fence; return the descriptor that shows that the fence is watched.

        Raises OSError.
        """
        folder = self.path(number)
        remove(folder)
        folder.mkdir(mode=0o700)
        descriptor = os.open(folder / _REGION, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, head)
        os.truncate(descriptor, region.SIZE)
        (folder / _LINK).symlink_to(hook)
        return descriptor

    def sweep(self) -> None:
        """Remove the fences whose watcher and programs have ended. Under the lock."""
        for folder in (self.run / "job").iterdir():
            if not _is_watched(folder) and not members(folder, 0):
                remove(folder)

    def given(self) -> dict[str, int]:
        """Return {UUID: bytes} that the living fences of the user may hold together. Under the lock."""
        sizes: dict[str, int] = {}
        for folder in (self.run / "job").iterdir():
            with suppress(OSError, ValueError):
                for gpu in region.read(folder / _REGION, owner=os.geteuid()).gpus:
                    sizes[gpu.uuid] = sizes.get(gpu.uuid, 0) + int(gpu.limit)
        return sizes


def stored_checksum(head: bytes) -> int:
    """Return the checksum that is stored in the head of a region."""
    return int(_SEAL.unpack_from(head)[0])


def _is_watched(folder: Path) -> bool:
    try:
        with (folder / _REGION).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def remove(folder: Path) -> None:
    """Remove the directory of a fence, as far as it has the files of one."""
    for name in (_REGION, _LINK, PODMAN_SETTINGS):
        with suppress(OSError):
            (folder / name).unlink()
    with suppress(OSError):
        folder.rmdir()


def members(folder: Path, root: int) -> set[int]:
    """Return the pids of the programs in a fence: started with its variable, or descendants of `root`."""
    above = parents()
    pids = {pid for pid in above if started_with(pid, FENCE_DIR) == str(folder)} - {os.getpid()}
    return pids | {pid for pid in above if root and _is_below(pid, root, above)}


def _is_below(pid: int, root: int, above: Mapping[int, int]) -> bool:
    while pid > 1 and pid != root:
        pid = above.get(pid, 0)
    return pid == root


def choose(
    demand: Demand,
    gpus: tuple[Gpu, ...],
    readings: Mapping[int, Reading],
    reserved: Mapping[str, int],
    listing: str = "",
) -> list[tuple[Gpu, Hold]]:
    """Return the GPUs of a fence, in the order of their use, and the part of each.

    Args:
        readings: the present use of each GPU, by index.
        reserved: {UUID: bytes} of the user's other fences.
        listing: command that lists the GPUs of the driver, for messages.

    Raises:
        Refused: too few GPUs have the type and the memory.
    """
    able = [gpu for gpu in gpus if gpu.state is GpuState.OK and is_suitable(gpu, demand)]
    parts = [(gpu, cost(demand, gpu)) for gpu in able]
    fitting = [part for part in parts if reserved.get(part[0].uuid, 0) + part[1].memory <= part[0].usable]
    fitting.sort(
        key=lambda part: (reserved.get(part[0].uuid, 0), _used(readings, part[0].index), part[0].index)
    )
    if len(fitting) < demand.gpus:
        raise Refused(*_too_few(demand, parts, reserved, listing))
    return fitting[: demand.gpus]


def _used(readings: Mapping[int, Reading], index: int) -> int:
    return readings[index].used if index in readings else 0


def _too_few(
    demand: Demand, parts: list[tuple[Gpu, Hold]], reserved: Mapping[str, int], listing: str
) -> tuple[str, str]:
    """Return the cause and the remedy if too few GPUs can have a fence."""
    if len(parts) < demand.gpus:
        return f"there are {len(parts)} GPUs to choose from, and {demand.gpus} are needed", listing
    about = "; ".join(
        f"GPU {gpu.index}: {format_mebibytes(hold.memory)} of {format_mebibytes(gpu.usable)}"
        + (
            f", and your other fences have {format_mebibytes(reserved[gpu.uuid])}"
            if gpu.uuid in reserved
            else ""
        )
        for gpu, hold in parts
    )
    return f"the memory does not fit: {about}", "Ask for less, or wait until another fence has ended."
