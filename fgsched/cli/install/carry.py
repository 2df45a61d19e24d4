"""Carry out the actions of `fgsched init` and `fgsched uninstall`, keep the manifest, remove the state."""

import ctypes
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from fgsched.cli.install.plan import Action, LeavePath, Make, ManifestEntry, Remove, RunCommand, Undo, Want
from fgsched.crash import point
from fgsched.domain.errors import NotPermitted, Refused, StorageError
from fgsched.domain.text import shown
from fgsched.system import disk, paths, places
from fgsched.system.cleaner import RemovalTree
from fgsched.system.paths import SYSTEM_RUN
from fgsched.system.safeopen import refuse_unless_safe

STATE = "/var/lib/fgsched"
MANIFEST = f"{STATE}/{paths.MANIFEST}"
_NAMES = "slurm-names "  # beginning of the key of a directory with names of Slurm
_NEW = ".fgsched-init"  # ending of a file that is not complete yet


def below(root: Path, path: str) -> Path:
    """Return a path of the host as a path below `root`."""
    return root / path.lstrip("/")


def refuse_outside(root: Path, paths: Iterable[str]) -> None:
    """Refuse an image in which a link leads to a directory of the host. Raises Refused."""
    for above in dict.fromkeys(below(root, path).parent for path in paths):
        real = Path(os.path.realpath(above))
        if not real.is_relative_to(root):
            raise Refused(f"{above} leads out of the image, to {real}", "Make it a relative link.")


class Manifest:
    """What `fgsched init` made, in the order of its making: path, or key of a command -> ManifestEntry."""

    def __init__(self, root: Path) -> None:
        """Read the manifest, as root only where no other user can write, and only inside of an image.

        Its commands are run, and its files removed, by `fgsched uninstall`.

        Raises:
            Refused: another user could change the manifest, or exchange the directories of the image.
            StorageError: it cannot be read.
        """
        refuse_outside(root, [MANIFEST])
        self._path = below(root, MANIFEST)
        self.entries: dict[str, ManifestEntry] = {}
        try:
            self.entries = msgspec.json.decode(_trusted(self._path, root), type=dict[str, ManifestEntry])
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, msgspec.MsgspecError) as error:
            raise StorageError(
                f"{self._path} cannot be read: {error}", "It lists what fgsched init made."
            ) from None

    @property
    def exists(self) -> bool:
        """Return whether `fgsched init` has run and was not undone."""
        return self._path.exists()

    def note(self, name: str, entry: ManifestEntry) -> None:
        """Store an entry before the action that it describes."""
        self.entries[name] = entry
        self._save()

    def forget(self, name: str) -> None:
        """Remove an entry after its path was removed."""
        self.entries.pop(name, None)
        self._save()

    def note_names(self, folder: str, *, are_there: bool) -> None:
        """Record that a directory has the names of Slurm, or has them no more."""
        if are_there:
            self.note(f"{_NAMES}{folder}", ManifestEntry(kind="command", is_done=True))
        elif f"{_NAMES}{folder}" in self.entries:
            self.forget(f"{_NAMES}{folder}")

    @property
    def files(self) -> list[str]:
        """Return the paths that were made."""
        return [path for path, entry in self.entries.items() if entry.kind != "command"]

    @property
    def name_folders(self) -> list[str]:
        """Return the directories with names of Slurm."""
        return [key.removeprefix(_NAMES) for key in self.entries if key.startswith(_NAMES)]

    def close(self) -> None:
        """Remove the manifest, and the state directory if it is empty."""
        disk.remove(self._path, missing_ok=True)
        if self._path.parent.is_dir() and not any(self._path.parent.iterdir()):
            self._path.parent.rmdir()

    def _save(self) -> None:
        if self._path.parent.is_dir():  # the first entry is that of this directory or of one above
            text = msgspec.json.format(msgspec.json.encode(self.entries), indent=1)
            _write(self._path, text, 0o600)


def _trusted(path: Path, root: Path) -> bytes:
    """Return the content of a file. Raises OSError, and Refused if root must not believe it."""
    if os.geteuid() == 0:
        refuse_unless_safe(root, owner=0)
        path = path.resolve(strict=True)
        refuse_unless_safe(path, owner=0)
    return path.read_bytes()


Run = Callable[[Sequence[str]], str]  # runs a command; "", or why it failed


class Carrier:
    """Carries out actions; after a crash at any point a second run completes the work."""

    def __init__(
        self,
        root: Path,
        manifest: Manifest,
        run: Run,
        step: Callable[[], None] = lambda: point("install_step"),
    ) -> None:
        """Set the directory below which files are made. `step` is called between any two steps."""
        self._root, self._manifest, self._run, self._step = root, manifest, run, step

    def carry(self, actions: Iterable[Action]) -> None:
        """Carry out actions in their order.

        Raises:
            NotPermitted: this process may not write there.
            Refused: a command failed.
            StorageError: a file cannot be written.
        """
        for action in actions:
            try:
                self._carry(action)
            except PermissionError as error:
                why = f"cannot write {error.filename}: {error.strerror}"
                raise NotPermitted(why, "Run it as root.") from None
            except OSError as error:
                raise StorageError(f"cannot write {error.filename}: {error.strerror}") from None
            self._step()

    def _carry(self, action: Action) -> None:
        match action:
            case Make(want, was):
                self._make(want, was)
            case RunCommand():
                self._command(action)
            case Remove(path, kind):
                self._remove(path, kind)
            case Undo(key, words):
                self._undo(key, words)
            case LeavePath(path):
                self._manifest.forget(path)

    def _make(self, want: Want, was: str) -> None:
        self._manifest.note(want.path, ManifestEntry(kind=want.kind, digest=want.digest, was=was))
        self._step()
        path = below(self._root, want.path)
        if want.kind == "directory":
            with places.folder(path, make=True, mode=want.mode):
                pass
        elif want.kind == "file":
            _write(path, want.text.encode(), want.mode, self._step)
        else:
            _link(path, want.text)

    def _command(self, command: RunCommand) -> None:
        self._manifest.note(command.key, ManifestEntry(kind="command", undo=command.undo))
        self._step()
        if why := self._run(command.words):
            raise Refused(f"{' '.join(command.words)}: {why}", "Mend this, then run fgsched init again.")
        self._step()
        self._manifest.note(command.key, ManifestEntry(kind="command", undo=command.undo, is_done=True))

    def _remove(self, path: str, kind: str) -> None:
        target = below(self._root, path)
        if kind == "directory":
            if path != STATE and not any(target.iterdir()):
                with places.pinned(target) as pinned:
                    pinned.rmdir()
        else:
            with suppress(FileNotFoundError), places.pinned(target) as pinned:
                disk.remove(pinned.with_name(pinned.name + _NEW), missing_ok=True)
                disk.remove(pinned, missing_ok=True)
        self._step()
        self._manifest.forget(path)

    def _undo(self, key: str, words: Sequence[str]) -> None:
        """Take back a command; a failure, as for what an administrator took back already, is no obstacle."""
        self._run(words)
        self._step()
        self._manifest.forget(key)


def _write(path: Path, content: bytes, mode: int, step: Callable[[], None] = lambda: None) -> None:
    """Create or replace a file, so that it has the old or the new content at any time."""
    with places.pinned(path) as pinned:
        new = pinned.with_name(path.name + _NEW)
        disk.create_file(new, content, mode, exact_mode=True)
        step()
        disk.rename(new, pinned)
        disk.sync_directory(pinned.parent)


def _link(path: Path, target: str) -> None:
    with places.pinned(path) as pinned:
        new = pinned.with_name(path.name + _NEW)
        disk.remove(new, missing_ok=True)
        new.symlink_to(target)
        disk.rename(new, pinned)
        disk.sync_directory(pinned.parent)


def run(words: Sequence[str]) -> str:
    """Run a command to its end; return "", or why it failed."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error.strerror)
    message = done.stderr.strip() or done.stdout.strip()
    return "" if done.returncode == 0 else message or f"exit status {done.returncode}"


# -- the state and the run directory of the host's controller ------------------------------------------


_ROUNDS = 12  # of one entry: a process may still write to it
_DETACH, _NOFOLLOW = 2, 8  # of umount2(2)
_ESCAPE = re.compile(r"\\([0-7]{3})")
_LIBC = ctypes.CDLL(None, use_errno=True)


def purge(root: Path) -> Iterator[str]:
    """Remove both directories below `root`; yield what was removed, and what was kept and why.

    Users write below the run directory. Only names in open directories are removed: no link is followed and
    no mount is entered, also if a user exchanges directories meanwhile.

    Raises:
        NotPermitted: another user made a link on the way.
    """
    if root == Path("/"):
        _detach_spaces(Path("/proc/self/mountinfo").read_text())
    for path in (below(root, STATE), below(root, str(SYSTEM_RUN))):
        if os.path.lexists(path):
            yield from _remove(path)


def _remove(path: Path) -> Iterator[str]:
    """Remove a directory, or what is in the directory that a link of root's names, and the link."""
    kept_names = []
    try:
        with places.folder(path) as directory:
            entries = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
            try:
                kept_names = [name for name in os.listdir(entries) if not _is_removed(entries, name)]
            finally:
                os.close(entries)
    except PermissionError as error:
        raise NotPermitted(f"{path} is kept: {error.strerror}", "Look at it, then remove it.") from None
    except (FileNotFoundError, NotADirectoryError):
        pass  # a link without a target, or a file
    yield from (
        f"keep {shown(str(path / name))}: something is mounted there, or uses it\n" for name in kept_names
    )
    if not kept_names:
        with places.pinned(path) as pinned_path:
            if pinned_path.is_symlink() or not pinned_path.is_dir():
                pinned_path.unlink()
            else:
                pinned_path.rmdir()
        yield f"remove {path}\n"


def _is_removed(parent: int, name: str) -> bool:
    """Remove an entry of an open directory; return whether it is gone."""
    tree = RemovalTree(parent, name)
    try:
        for _ in range(_ROUNDS):
            while tree.work(lambda: True):
                pass
            tree.close()
            if not tree.exists:
                return True
            if tree.fault is not None:
                return False
        return False
    finally:
        tree.close()


def _detach_spaces(table: str) -> None:
    """Unmount the spaces of users, with all that users have mounted in them, which may never answer.

    Only root can write to the directories above a space.
    """
    for mount in _spaces(table):
        with suppress(OSError), places.pinned(mount) as pinned_path:
            _LIBC.umount2(os.fsencode(pinned_path), _DETACH | _NOFOLLOW)


def _spaces(table: str) -> Sequence[str]:
    """Return the mount points of spaces in the lines of /proc/self/mountinfo."""
    mount_points = []
    for line in table.splitlines():
        fields, _, kind = line.partition(" - ")
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields.split(" ")[4])
        if kind.startswith("tmpfs fgsched ") and Path(point).parent == SYSTEM_RUN / "space":
            mount_points.append(point)
    return mount_points
