"""Durable files: all changes of them go through one module, and data whose sync failed are written again."""

import ast
import errno
import os
from pathlib import Path

import pytest

from fgsched.accounting import marker
from fgsched.store import files
from fgsched.store.files import Marker
from fgsched.system import disk
from fgsched.system.disk import Kernel
from live_host import ROOT

# Modules that rename or truncate other files: those that no restart of the host outlives, and logs.
PASSING = {
    "controller/decisionlog.py": "a log, moved aside when it is long",
    "launch/fence.py": "the region of a job, in the run directory",
    "server.py": "the socket, in the run directory",
    "slurm/slots.py": "locks, in the run directory",
    "system/cleaner.py": "names and files of ended jobs that are removed",
    "system/ownhost.py": "the record of the host, a link that is only moved away",
    "system/containers.py": "settings of podman, in the run directory",
    "system/generations.py": "the directories of controllers, in the run directory",
    "system/spaces.py": "the directories of TMPDIRs",
    "system/unanswered.py": "keys of submissions, which only repeat a command on the same boot",
    "system/userfiles.py": "the output files of users",
}
CHANGES = {"fsync", "fdatasync", "rename", "renames", "replace", "truncate", "ftruncate"}


def changes(path: Path) -> list[str]:
    """Return the calls that synchronise, rename or truncate a file."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    names = [(node.func, node.args, node.keywords) for node in calls if isinstance(node.func, ast.Attribute)]
    return [
        ast.unparse(func)
        for func, args, keywords in names
        if (isinstance(func.value, ast.Name) and func.value.id == "os" and func.attr in CHANGES)
        or (
            func.attr in {"rename", "replace"}
            and len(args) == 1
            and not keywords
            and ast.unparse(func.value) != "disk"
        )
    ]


def test_only_one_module_synchronises_renames_and_truncates_durable_files():
    modules = {str(path.relative_to(ROOT / "fgsched")): path for path in (ROOT / "fgsched").rglob("*.py")}
    others = {name: found for name, path in modules.items() if (found := changes(path))}
    assert set(others) - {"system/disk.py"} - set(PASSING) == set(), others
    assert set(PASSING) <= set(others), "a module of the list changes no files any more"
    for name in set(PASSING):
        assert not {"os.fsync", "os.fdatasync"} & set(others[name]), name


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
            marker.compare(tmp_path / "accounts.db", "a")

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
