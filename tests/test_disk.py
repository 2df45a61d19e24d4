"""Durable files: all changes of them go through one module, and data whose sync failed are written again."""

import ast
import errno
import os
from pathlib import Path

import pytest

from fgsched.accounting import guard
from fgsched.store import files
from fgsched.store.files import Marker
from fgsched.system import disk
from fgsched.system.disk import Kernel
from live_host import ROOT

# Why a module may change files by itself: no other module does.
PYTHON = ("python/calls.py", "python/task.py")
PASSING = {
    "the run directory, which a restart of the host empties": [
        *("interactive/link.py", "launch/fence.py", "launch/rundir.py", "server.py", "slurm/running.py"),
        *("system/containers.py", "system/generations.py", "system/paths.py"),
        *("system/runplace.py", "system/ownhost.py", "system/cleaner.py"),
    ],
    "directories of jobs, which are emptied at their ends": ["system/spaces.py"],
    "the namespace of one job, or a directory of one test": [
        *("interactive/containers.py", "gpus/hooktest.py", "system/mounts.py"),
    ],
    "keys of submissions, which only repeat a command on the same boot": ["system/unanswered.py"],
    "the record of the host, a link that is only moved away": ["system/ownhost.py"],
    "a log, moved aside when it is long": ["controller/decisionlog.py"],
    "files of users": ["cli/fgctl.py", "system/places.py", "reports/folder.py", *PYTHON],
    "locks": ["accounting/guard.py", "accounting/accountant.py", "mail/mailer.py", "hooks/runner.py"],
    "pipes and terminals": [
        *("cli/runningjob.py", "controller/__main__.py", "controller/fencing.py", "gpus/supervisor.py"),
        *("interactive/terminal.py", "simulate/reporter.py", "slurm/streams.py", "slurm/streams.py"),
        *("system/capture.py", "system/names.py", "system/pam.py", "controller/mailing.py", "cli/command.py"),
        *("interactive/agent.py", "interactive/connected.py", "python/waiting.py"),
    ],
    "sockets, log and address of a page, which its next process makes again": [
        *("cli/web.py", "system/webplace.py", "web/__main__.py"),
    ],
    "settings of the kernel": ["system/cgroups.py", "system/safeopen.py", "system/nice.py"],
    "the index of a log, which SQLite makes anew": ["store/opening.py", "store/recovering.py"],
    "a copy in a directory that is removed": ["accounting/backup.py", "store/recovering.py", "store/wal.py"],
    "links and stamps of an installation, which `fgsched init` makes again": [
        *("cli/install/carry.py", "cli/install/run.py", "cli/install/slurmnames.py"),
    ],
}
PASSED = {name for names in PASSING.values() for name in names}
KEEPING = {"store", "mail", "accounting", "reports"}  # packages whose files outlive the host's restart
SYNCS = {"fsync", "fdatasync"}
OF_OS = SYNCS | {
    *("rename", "renames", "replace", "truncate", "ftruncate", "write", "pwrite", "writev", "pwritev"),
    *("link", "symlink", "unlink", "remove", "sendfile", "copy_file_range", "posix_fallocate"),
}
OF_PATHS = {"write_text", "write_bytes", "touch", "unlink", "hardlink_to", "symlink_to"}
OF_SHUTIL = {"copy", "copy2", "copyfile", "copytree", "move", "rmtree"}
WRITING = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"}


def _opens_for_writing(call: ast.Call) -> bool:
    words = ast.unparse(call.func)
    if words == "os.open":
        return any(flag in ast.unparse(call) for flag in WRITING)
    if (words != "open" and not words.endswith(".open")) or words in {"disk.open", "kernel.open"}:
        return False
    modes = call.args[1:2] if words == "open" else call.args[:1]
    modes += [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    return any(isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax+") for mode in modes)


def _changes_a_file(call: ast.Call) -> bool:
    if _opens_for_writing(call):
        return True
    if not isinstance(call.func, ast.Attribute):
        return False
    owner, name = ast.unparse(call.func.value), call.func.attr
    if owner in {"os", "shutil"}:
        return name in (OF_OS if owner == "os" else OF_SHUTIL)
    is_of_path = name in OF_PATHS or (
        name in {"rename", "replace"} and len(call.args) == 1 and not call.keywords
    )
    return is_of_path and owner not in {"disk", "places", "kernel"}


def changes(path: Path) -> list[str]:
    """Return the calls that change files without the module `disk`."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [ast.unparse(call.func) for call in calls if _changes_a_file(call)]


def test_only_one_module_writes_synchronises_renames_and_removes_durable_files():
    modules = {str(path.relative_to(ROOT / "fgsched")): path for path in (ROOT / "fgsched").rglob("*.py")}
    others = {name: found for name, path in modules.items() if (found := changes(path))}
    assert set(others) - {"system/disk.py"} - PASSED == set(), others
    assert set(others) >= PASSED, "a module of the list changes no files any more"
    for name in PASSED - {"python/task.py"}:  # it runs with a Python that may have no fgsched
        assert not {f"os.{call}" for call in SYNCS} & set(others[name]), name


ALONE = {  # the calls of the modules that keep files, beside those of `disk`
    "accounting/accountant.py": {"path.open", "os.write"},
    "accounting/backup.py": {"shutil.rmtree", "shutil.copyfile", "tarfile.open"},
    "accounting/guard.py": {"place.open"},
    "reports/folder.py": {"os.unlink"},
    "mail/mailer.py": {"(path / 'lock').open", "place.open", "os.write"},
    "store/opening.py": {"path.with_name(f'{path.name}-shm').unlink"},
    "store/recovering.py": {
        *("path.with_name(f'{path.name}-shm').unlink", "shutil.rmtree", "shutil.copyfile"),
        "again.open",
    },
    "store/wal.py": {"copy.write_bytes", "os.open"},
}


def test_the_modules_that_keep_files_change_nothing_else_by_themselves():
    root = ROOT / "fgsched"
    found = {
        str(path.relative_to(root)): set(calls)
        for package in KEEPING
        for path in (root / package).rglob("*.py")
        if (calls := changes(path))
    }
    assert found == ALONE


class Failing(Kernel):
    """A kernel of which one call fails once, with this error."""

    def __init__(self, call: str, error: int) -> None:
        self._call, self._error = call, error
        self.synced: list[str] = []

    def _fail(self, call: str) -> None:
        if call == self._call:
            self._call = ""
            raise OSError(self._error, os.strerror(self._error))

    def write(self, fd: int, data: bytes, offset: int) -> int:
        self._fail("write")
        return super().write(fd, data[:7], offset)  # the kernel may write less than it was given

    def sync(self, fd: int) -> None:
        self._fail("directory" if os.path.isdir(f"/proc/self/fd/{fd}") else "sync")
        self.synced.append(os.readlink(f"/proc/self/fd/{fd}"))

    def rename(self, source: Path, target: Path) -> None:
        self._fail("rename")
        super().rename(source, target)


@pytest.fixture
def failing(monkeypatch):
    def begin(call: str, error: int = errno.EIO) -> Failing:
        monkeypatch.setattr(disk, "kernel", kernel := Failing(call, error))
        return kernel

    return begin


@pytest.mark.parametrize("call", ["write", "sync", "rename"])
def test_a_file_that_cannot_be_replaced_is_the_old_one_and_can_be_replaced_later(tmp_path, failing, call):
    path = tmp_path / "a"
    path.write_bytes(b"old content")
    failing(call)
    with pytest.raises(OSError, match="Input/output"):
        disk.replace_file(path, b"the new content")
    assert path.read_bytes() == b"old content"
    disk.replace_file(path, b"the new content")
    assert path.read_bytes() == b"the new content"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("call", ["write", "sync", "rename", "directory"])
@pytest.mark.parametrize("name", ["queue.initialised", "accounts.initialised"])
def test_a_marker_that_is_perhaps_not_durable_does_not_exist(tmp_path, failing, call, name):
    def write() -> None:
        if name == "queue.initialised":
            files.write_marker(tmp_path / "queue.db", Marker("a", 1.0))
        else:
            guard.record_name(tmp_path / "accounts.db", "a")

    failing(call)
    with pytest.raises(OSError, match="Input/output"):
        write()
    assert not (tmp_path / name).exists()
    write()
    assert (tmp_path / name).exists()
    kernel = failing("")
    write()
    assert kernel.synced == [], "each start would cost a sync"


def test_a_file_that_is_written_again_is_another_file_of_the_same_bytes(tmp_path, failing):
    path = tmp_path / "a"
    path.write_bytes(bytes(range(200)) * 20_000)
    path.chmod(0o640)
    before = path.stat()
    kernel = failing("")
    kernel.write = Kernel().write
    disk.write_again(path, 3_000_000)
    assert path.read_bytes() == (bytes(range(200)) * 20_000)[:3_000_000]
    assert path.stat().st_ino != before.st_ino
    assert path.stat().st_mode == before.st_mode
    assert kernel.synced == [str(tmp_path / "a.again"), str(tmp_path)]


def test_on_a_full_disk_the_same_bytes_are_written_in_place(tmp_path, failing):
    path = tmp_path / "a"
    path.write_bytes(b"content")
    before = path.stat().st_ino
    kernel = failing("write", errno.ENOSPC)
    disk.write_again(path)
    assert (path.read_bytes(), path.stat().st_ino) == (b"content", before)
    assert kernel.synced == [str(path), str(tmp_path)]
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("call", ["write", "sync", "rename"])
def test_an_error_while_a_file_is_written_again_is_told_and_the_file_remains(tmp_path, failing, call):
    path = tmp_path / "a"
    path.write_bytes(b"content")
    failing(call)
    with pytest.raises(OSError, match="Input/output"):
        disk.write_again(path)
    assert path.read_bytes() == b"content"
