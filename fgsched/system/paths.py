"""Paths of the state, the run directory, the socket and the configuration of a controller.

The environment selects paths, never policy. Only `Paths.prepare` creates directories.
"""

import errno
import os
import pwd
import socket
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.errors import AlreadyRunning, BadUsage, FgschedError, StorageError, Unreachable
from fgsched.domain.text import clean, quoted

SYSTEM_RUN = Path("/run/fgsched")
_SYSTEM_STATE = Path("/var/lib/fgsched")
_SYSTEM_CONFIG = Path("/etc/fgsched/fgsched.toml")
INITIALISED = Path("/etc/fgsched/initialised")  # `fgsched init` made the state directory of this host
MANIFEST = "init.json"  # what `fgsched init` made, in the state directory
_REMEDIES = {  # errors of the file system, not of the path
    errno.EROFS: "The file system is read-only. Mount it for writing, then repeat the command.",
    errno.ENOSPC: "Free some space there.",
    errno.EDQUOT: "Your quota there is used up. Free some space.",
    errno.EIO: "Check the disk.",
}
CONFIG_VARIABLES = ("FGSCHED_CONFIG", "FG_CONFIG")  # the first that is set names the configuration file
_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid of SO_PEERCRED
SOCKET_PATH_MAX = 107  # bytes: the kernel's limit for the path of a socket


class Paths(Struct, frozen=True, kw_only=True):
    """The paths of one controller and its clients."""

    mode: Literal["user", "system"]
    home: Path  # $FG_HOME, or the state directory
    state: Path  # persistent: the queue, the log
    run: Path  # lasts until reboot: socket, claims, results, job directories
    run_link: Path | None = None  # the link of the state directory to `run`; None: there is none
    is_named: bool = False  # FG_HOME names the directory: it may contain other files of the user
    config_file: Path
    config_named: str = ""  # the variable that names it: the file must exist

    @property
    def queue(self) -> Path:
        """Return the path of the queue file."""
        return self.state / "queue.db"

    @property
    def accounts(self) -> Path:
        """Return the path of the accounts: ended jobs and samples."""
        return self.state / "accounts.db"

    @property
    def mail(self) -> Path:
        """Return the path of the queue of mails."""
        return self.state / "mail"

    @property
    def lock(self) -> Path:
        """Return the path of the lock that a running controller holds."""
        return self.state / "lock"

    @property
    def log(self) -> Path:
        """Return the path of the log of a user's controller."""
        return self.state / "fgsched.log"

    @property
    def audit(self) -> Path:
        """Return the path of the audit log."""
        return self.state / "audit.log"

    @property
    def socket(self) -> Path:
        """Return the path of the controller's socket, through the link if that is short enough."""
        path = (self.run_link or self.run) / "socket"
        return path if len(os.fsencode(path)) + len(".new") <= SOCKET_PATH_MAX else self.run / "socket"

    @classmethod
    def find(
        cls,
        environ: Mapping[str, str],
        uid: int,
        *,
        system: bool = False,
        system_run: Path = SYSTEM_RUN,
        initialised: Path = INITIALISED,
    ) -> "Paths":
        """Find the paths of the controller that a user addresses; creates nothing.

        FG_HOME comes first, then the controller of the host if `system` is set, its socket exists, or
        `fgsched init` has prepared the host, then the controller of the user.

        Raises:
            BadUsage: a variable has a relative path, or the user has no home directory.
        """
        named = next((name for name in CONFIG_VARIABLES if environ.get(name)), "")
        if environ.get("FG_HOME") and not system:
            paths = _of_home(_absolute("FG_HOME", environ["FG_HOME"]), uid)
        elif system or (system_run / "socket").exists() or initialised.exists():
            paths = _of_the_host(system_run)
        else:
            paths = _of_the_user(environ, uid)
        if named:
            config_file = _absolute(named, environ[named])
            paths = replace(paths, config_file=config_file, config_named=named)
        return paths

    def refreshed(self, uid: int) -> "Paths":
        """Return the paths with the run directory that a controller has chosen meanwhile."""
        if self.mode == "system" or not os.path.lexists(self.state / "run"):
            return self
        run, link = _run_of(self.state, uid)
        return replace(self, run=run, run_link=link)

    def own_run(self, environ: Mapping[str, str], uid: int) -> Path:
        """Return the run directory of the user's own controller; it may not exist."""
        return self.own(environ, uid).run

    def own(self, environ: Mapping[str, str], uid: int) -> "Paths":
        """Return the paths of the user's own controller, which may run beside that of the host."""
        return self if self.mode == "user" else _of_the_user(environ, uid)

    def prepare(self, uid: int) -> None:
        """Create the state and run directories, or check their owner and mode. For the controller.

        Raises:
            Unreachable: a directory has another owner, can be written by others, or cannot be created.
            StorageError: the file system is full, read-only or failing.
        """
        self.refuse_lost_state()
        for directory in (self.state, self.run):
            if directory == self.run and self.is_lost:
                continue  # the next controller makes another one
            try:
                self._make(directory)
            except OSError as error:
                raise self._error_of(directory, error) from None
            self._check(self._behind_link(directory, uid), uid)
        self._mend_link()

    def refuse_lost_state(self) -> None:
        """Refuse to begin an empty queue where the disk of the host's queue is not mounted.

        Raises: StorageError.
        """
        if self.mode == "system" and INITIALISED.exists() and not (self.state / MANIFEST).exists():
            raise StorageError(
                f"{self.state} is missing or is not the one that fgsched init made: it has no {MANIFEST}",
                "Mount its disk. If the disk is lost: fgsched init, then restore a backup.",
            )

    def _mend_link(self) -> None:
        """Make the link again if it was removed; a command may have made an empty directory in its place."""
        if self.run_link is not None and not self.run_link.is_symlink():
            with suppress(OSError):
                if self.run_link.is_dir():
                    self.run_link.rmdir()
                self.run_link.symlink_to(self.run)

    def _behind_link(self, directory: Path, owner: int) -> Path:
        """Return the target of the run directory of a user if it is a link; no other one may be a link."""
        is_of_home = self.mode == "user" and directory == self.state / "run"
        return (linked(directory, owner) if is_of_home else None) or directory

    @property
    def is_lost(self) -> bool:
        """Return whether the link leads nowhere, or to a directory that another user has made there.

        Its directory was removed: with a file system of an earlier login or boot, or by a cleaner of /tmp.
        """
        return (
            self.run_link is not None
            and not is_private(self.run, os.geteuid())
            and (os.path.lexists(self.run) or not self.run.parent.is_dir())
        )

    def _make(self, directory: Path) -> None:
        if self.mode == "user":
            refuse_of_others(directory)
        missing = [parent for parent in directory.parents if not parent.exists()]
        for parent in reversed(missing):
            with suppress(FileExistsError):
                parent.mkdir(0o755)  # whatever the umask: others could exchange what is below
        with suppress(FileExistsError):
            directory.mkdir(0o700)
            if self._is_shared(directory):
                directory.chmod(0o711)

    def check(self, uid: int) -> None:
        """Check that the run directory belongs to the controller, before its socket is trusted. For clients.

        A directory that does not exist is accepted: the connection fails later.

        Raises:
            Unreachable: the directory has another owner, can be written by others, or cannot be examined.
            StorageError: the file system fails.
        """
        owner = 0 if self.mode == "system" else uid
        if self.is_lost:
            return
        try:
            self._check(self._behind_link(self.run_link or self.run, owner), owner)
        except (FileNotFoundError, PermissionError):
            return  # connecting to the socket reports it
        except OSError as error:
            raise self._error_of(self.run, error) from None

    def _error_of(self, directory: Path, error: OSError) -> FgschedError:
        if error.errno in _REMEDIES:
            return StorageError(f"{directory} cannot be used: {error.strerror}", _REMEDIES[error.errno])
        remedy = "" if self.mode == "system" else "Set FG_HOME to a directory of yours."
        return Unreachable(f"{directory} cannot be used: {error.strerror}.", remedy)

    def _is_shared(self, directory: Path) -> bool:
        """Return whether jobs of every user must reach their own directories below `directory`."""
        return self.mode == "system" and directory == self.run

    def _check(self, directory: Path, owner: int) -> None:
        """Check the type, owner and mode of a directory: any user can create entries in /tmp."""
        status = directory.lstat()
        if stat.S_ISLNK(status.st_mode):
            fault = "is a symbolic link"
        elif not stat.S_ISDIR(status.st_mode):
            fault = "is not a directory"
        elif status.st_uid != owner:
            fault = f"belongs to uid {status.st_uid}, not to uid {owner}"
        elif status.st_mode & 0o022:
            fault = f"can be changed by others (mode {stat.S_IMODE(status.st_mode):04o})"
        else:
            return
        raise Unreachable(
            f"{directory} {fault}.",
            f"Remove it, or make it a directory of uid {owner} that others cannot write (chmod go-w), "
            "or set FG_HOME to another directory.",
        )


def refuse_of_others(directory: Path) -> None:
    """Refuse to make a directory of root's that another user could exchange, as in a HOME that `su` has kept.

    Raises:
        PermissionError: it would lie in a directory of another user, or such a user made a link on the way.
    """
    if os.geteuid() != 0:
        return
    from fgsched.system import places  # only root needs it

    nearest = next(path for path in (directory, *directory.parents) if os.path.lexists(path))
    with places.folder(nearest) as descriptor:
        owner = os.fstat(descriptor).st_uid
    if nearest != directory and owner != 0:
        raise PermissionError(errno.EACCES, f"{nearest} belongs to uid {owner}")


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Convert errors of creating or writing `path`.

    Raises:
        StorageError: the file cannot be created or written. A TimeoutError, of a lock, passes unchanged.
    """
    try:
        yield
    except TimeoutError:
        raise  # a lock that another process holds
    except OSError as error:
        raise unwritten(error, path) from None


def unwritten(error: OSError, path: object) -> StorageError:
    """Return the error for a file that cannot be written."""
    return StorageError(f"cannot write {path}: {error.strerror}", _REMEDIES.get(error.errno or 0, ""))


def is_of_the_disk(error: OSError) -> bool:
    """Return whether the file system caused the error, as when it is full, and not the path."""
    return error.errno in _REMEDIES


def _of_home(home: Path, uid: int) -> Paths:
    config_file = home / "fgsched.toml"
    run, link = _run_of(home, uid)
    return Paths(
        mode="user", home=home, state=home, run=run, run_link=link, config_file=config_file, is_named=True
    )


def _run_of(state: Path, uid: int) -> tuple[Path, Path | None]:
    """Return `run` and `run_link` of a state directory."""
    run = state / "run"
    target = linked(run, uid)
    return target or run, run if target else None


def is_private(path: Path, uid: int) -> bool:
    """Return whether this is a directory of the user that others cannot change."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == uid and not status.st_mode & 0o022


def linked(path: Path, owner: int) -> Path | None:
    """Return the absolute target of a symbolic link of this owner; None if `path` is anything else."""
    try:
        target = os.readlink(path) if path.lstat().st_uid == owner else ""
    except OSError:
        return None
    return Path(target) if os.path.isabs(target) and os.path.normpath(target) == target else None


def _of_the_host(run: Path) -> Paths:
    return Paths(mode="system", home=_SYSTEM_STATE, state=_SYSTEM_STATE, run=run, config_file=_SYSTEM_CONFIG)


def _of_the_user(environ: Mapping[str, str], uid: int) -> Paths:
    state = _xdg(environ, uid, name="XDG_STATE_HOME", default=".local/state") / "fgsched"
    config = _xdg(environ, uid, name="XDG_CONFIG_HOME", default=".config") / "fgsched" / "fgsched.toml"
    run, link = _run_of(state, uid)
    return Paths(mode="user", home=state, state=state, run=run, run_link=link, config_file=config)


def _xdg(environ: Mapping[str, str], uid: int, *, name: str, default: str) -> Path:
    """Return an XDG base directory; a relative path is ignored, as the specification requires."""
    value = environ.get(name, "")
    return Path(value) if os.path.isabs(value) else _home(environ, uid) / default


def _home(environ: Mapping[str, str], uid: int) -> Path:
    if environ.get("HOME"):
        return _absolute("HOME", environ["HOME"])
    try:
        return Path(pwd.getpwuid(uid).pw_dir)
    except KeyError:
        raise BadUsage(
            f"uid {uid} has no home directory: HOME is not set and no account has this uid.",
            "Set FG_HOME to a directory of yours.",
        ) from None


def _absolute(name: str, text: str) -> Path:
    if not os.path.isabs(text):
        raise BadUsage(
            f"{name} is {quoted(text)}, which is a relative path.",
            f"Give an absolute path, such as {name}={clean(os.path.abspath(text))}",
        )
    return Path(os.path.normpath(text))


@contextmanager
def taken(paths: Paths) -> Iterator[None]:
    """Hold the lock of the state directory, which the kernel releases when the process ends.

    Raises: AlreadyRunning, if another controller has it.
    """
    from filelock import FileLock, Timeout  # a command that takes no lock does not pay for it

    lock = FileLock(paths.lock, timeout=0)
    try:
        with written(paths.lock):
            lock.acquire()
            listener = _listener(paths.socket)  # another controller, whose lock file was removed
            paths.lock.write_text(f"{listener or os.getpid()}\n")
    except Timeout:
        raise _other(paths.lock.read_text().strip() or "?") from None
    try:
        if listener:
            raise _other(listener)
        yield
    finally:
        lock.release()


def _other(pid: int | str) -> AlreadyRunning:
    return AlreadyRunning(f"another controller is running (pid {pid})", "Stop it first: fgsched stop")


def _listener(path: Path) -> int:
    """Return the pid of the process that listens at a socket; 0 if there is none."""
    with socket.socket(socket.AF_UNIX) as line, suppress(OSError):
        line.setblocking(False)
        line.connect(str(path))
        pid, _, _ = _CREDENTIALS.unpack(
            line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        return int(pid)
    return 0
