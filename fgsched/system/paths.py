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
_SOCKET_PATH_MAX = 107  # bytes: the kernel's limit for the path of a socket


class Paths(Struct, frozen=True, kw_only=True):
    """The paths of one controller and its clients."""

    mode: Literal["user", "system"]
    home: Path  # $FG_HOME, or the state directory
    state: Path  # persistent: the queue, the log
    run: Path  # lasts until reboot: socket, claims, results, job directories
    run_link: Path | None = None  # the link of FG_HOME to `run`; None: there is none
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
        """Return the path of the controller's socket, which is valid when the link leads to another place."""
        return (self.run_link or self.run) / "socket"

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
            BadUsage: a variable has a relative path, the user has no home directory, or the path of the
                run directory cannot be used by the linker.
            Unreachable: the path is too long for a socket.
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
        _refuse_unusable(paths.run)
        _refuse_unusable(paths.socket.parent)
        return paths

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
            if self._is_gone(directory):
                continue
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
        """Return the target of the run directory of FG_HOME if it is a link; no other one may be a link."""
        is_of_home = self.mode == "user" and directory == self.home / "run"
        return (linked(directory, owner) if is_of_home else None) or directory

    def _is_gone(self, directory: Path) -> bool:
        """Return whether the link leads to a file system of an earlier login or boot."""
        return self.run_link is not None and directory == self.run and not directory.parent.is_dir()

    def _make(self, directory: Path) -> None:
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
        found = directory.lstat()
        if stat.S_ISLNK(found.st_mode):
            fault = "is a symbolic link"
        elif not stat.S_ISDIR(found.st_mode):
            fault = "is not a directory"
        elif found.st_uid != owner:
            fault = f"belongs to uid {found.st_uid}, not to uid {owner}"
        elif found.st_mode & 0o022:
            fault = f"can be changed by others (mode {stat.S_IMODE(found.st_mode):04o})"
        else:
            return
        raise Unreachable(
            f"{directory} {fault}.",
            f"Remove it, or make it a directory of uid {owner} that others cannot write (chmod go-w), "
            "or set FG_HOME to another directory.",
        )


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
    run = home / "run"
    target = linked(run, uid)
    return Paths(
        mode="user",
        home=home,
        state=home,
        run=target or run,
        run_link=run if target else None,
        config_file=home / "fgsched.toml",
    )


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
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    run = Path(runtime) / "fgsched" if os.path.isabs(runtime) else Path(f"/tmp/fgsched-{uid}")
    return Paths(mode="user", home=state, state=state, run=run, config_file=config)


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


def _refuse_unusable(run: Path) -> None:
    """Refuse a path with which every job would fail later."""
    path = str(run)
    if ":" in path or any(letter.isspace() for letter in path):
        raise BadUsage(
            f"The path of the run directory {quoted(path)} has a blank or a colon: "
            "LD_PRELOAD cannot name files below it.",
            "Set FG_HOME or XDG_RUNTIME_DIR to a directory whose path has neither.",
        )
    socket = os.fsencode(run / "socket")
    if len(socket) > _SOCKET_PATH_MAX:
        raise Unreachable(
            f"The path of the socket, {run / 'socket'}, has {len(socket)} bytes; "
            f"the kernel accepts {_SOCKET_PATH_MAX}.",
            "Set FG_HOME or XDG_RUNTIME_DIR to a directory with a shorter path.",
        )


@contextmanager
def taken(places: Paths) -> Iterator[None]:
    """Hold the lock of the state directory, which the kernel releases when the process ends.

    Raises: AlreadyRunning, if another controller has it.
    """
    from filelock import FileLock, Timeout  # a command that takes no lock does not pay for it

    lock = FileLock(places.lock, timeout=0)
    try:
        with written(places.lock):
            lock.acquire()
            listener = _listener(places.socket)  # another controller, whose lock file was removed
            places.lock.write_text(f"{listener or os.getpid()}\n")
    except Timeout:
        raise _other(places.lock.read_text().strip() or "?") from None
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
