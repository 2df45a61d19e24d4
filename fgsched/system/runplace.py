"""Place the run directory of FG_HOME in memory, where the host has a directory of the user for it.

A job creates and removes some ten files in the run directory. On the file system of the queue, each commit of
the queue waits for these changes too.
"""

import logging
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from fgsched.domain.errors import StorageError
from fgsched.system.paths import Paths, linked

log = logging.getLogger("fgsched.controller")
_LONGEST = 64  # bytes of XDG_RUNTIME_DIR, of the 107 for the path of a socket
_LONG_LIVED = ("hooks.lock", "mps.lock", "fence")  # of programs that may run without a controller


def placed(places: Paths, environ: Mapping[str, str], uid: int, boot: str) -> Paths:
    """Return the paths with the run directory of FG_HOME in XDG_RUNTIME_DIR; `FG_HOME/run` is a link to it.

    XDG_RUNTIME_DIR must be on another file system. A run directory with attempts of this boot keeps its
    place. The caller holds the lock of the state directory. `boot`: id of the current boot.

    Raises:
        StorageError: the link cannot be written.
    """
    link = places.home / "run"
    if places.mode != "user" or places.run not in (link, linked(link, uid)):
        return places
    try:
        return _placed(places, link, _memory(environ, places.home, uid), uid, boot)
    except OSError as error:
        cause = f"{link} cannot be replaced: {error.strerror}"
        raise StorageError(cause, "Remove it while no job of this controller runs.") from None


def _placed(places: Paths, link: Path, memory: Path | None, uid: int, boot: str) -> Paths:
    target = linked(link, uid)
    if target is not None:
        if _is_private(target, uid):
            return places
        link.unlink()  # of an earlier login or boot
    elif memory is None or not _removed(link, boot):
        return places
    if memory is None:
        link.mkdir(0o700)
        return replace(places, run=link, run_link=None)
    target = memory / f"fgsched-{os.urandom(4).hex()}"
    target.mkdir(0o700)
    link.symlink_to(target)
    log.info("the run directory is %s", target)
    return replace(places, run=target, run_link=link)


def _memory(environ: Mapping[str, str], home: Path, uid: int) -> Path | None:
    """Return the user's directory for run-time files, if it is on another file system than FG_HOME.

    None if programs cannot be executed there, or if its path cannot be used for a socket or the linker.
    """
    name = environ.get("XDG_RUNTIME_DIR", "")
    if not os.path.isabs(name) or ":" in name or any(map(str.isspace, name)) or len(name) > _LONGEST:
        return None
    path = Path(os.path.normpath(name))
    with suppress(OSError):
        is_other = path.stat().st_dev != home.stat().st_dev
        if is_other and _is_private(path, uid) and not os.statvfs(path).f_flag & os.ST_NOEXEC:
            return path
    return None


def _is_private(path: Path, uid: int) -> bool:
    """Return whether this is a directory of the user that others cannot change."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & 0o022


def _removed(run: Path, boot: str) -> bool:
    """Remove a run directory without attempts of this boot; return whether it is gone."""
    with suppress(OSError):
        run.rmdir()
    if not run.is_dir():
        return not os.path.lexists(run)
    if _is_used(run, boot):
        return False
    from shutil import rmtree  # 0.2 MiB, and only the directory of an earlier boot needs it

    rmtree(run)
    return True


def _is_used(run: Path, boot: str) -> bool:
    """Return whether a program of this boot may use files in a run directory."""
    if any((run / name).exists() for name in _LONG_LIVED):
        return True
    claims = (*run.glob("claim*/*"), *run.glob("*/claim*/*"))
    return any(claim.is_symlink() and os.readlink(claim).endswith(f":{boot}") for claim in claims)
