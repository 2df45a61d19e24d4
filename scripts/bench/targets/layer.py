"""The layer between a program and its disk (disk.c): built, and put under the controllers of a home."""

import ctypes
import mmap
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CALLS = {name: number for number, name in enumerate(
    ("open", "write", "sync", "rename", "unlink", "fork", "socket", "mkdir", "truncate"), 1
)}  # fmt: skip


class Control(ctypes.Structure):
    """Which calls fail, and how many did; shared with the programs."""

    _fields_ = (
        ("call", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("skip", ctypes.c_int64),
        ("times", ctypes.c_int64),
        ("hits", ctypes.c_int64),
    )


@dataclass
class Layer:
    """`under`: the directory whose files count; `log`: the record of their changes."""

    place: Path
    under: Path
    log: Path
    control: Control

    def fail(self, call: str, error: int, *, skip: int, times: int) -> None:
        """Let `times` calls fail after `skip` more."""
        self.control.call = 0
        self.control.error, self.control.skip, self.control.times = error, skip, times
        self.control.call = CALLS[call]

    def heal(self) -> None:
        self.control.call = 0


@contextmanager
def layered(*, records: bool = False, program: str = "") -> Iterator[Layer]:
    """Set the environment so that controllers that are started in it use the layer."""
    with tempfile.TemporaryDirectory(prefix="fgdisk-", dir=os.environ.get("FG_BENCH_DIR")) as name:
        place = Path(name).resolve()
        under, log, file = place / "under", place / "log", place / "control"
        under.mkdir()
        log.touch()
        file.write_bytes(bytes(mmap.PAGESIZE))
        library = place / "disk.so"
        source = Path(__file__).with_name("disk.c")
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        with file.open("r+b") as opened, mmap.mmap(opened.fileno(), mmap.PAGESIZE) as memory:
            layer = Layer(place, under, log, Control.from_buffer(memory))
            variables = {"FG_BENCH_DIR": str(under), "FGDISK_UNDER": str(under), "LD_PRELOAD": str(library)}
            fails = {"FGDISK_CONTROL": str(file), "FGDISK_PROGRAM": program}
            fails["FGDISK_ALSO"] = "/dev/shm/fgbench-"  # run directories of bench.home
            variables |= {"FGDISK_LOG": str(log)} if records else fails
            before = {key: os.environ.get(key) for key in variables}
            os.environ |= variables
            try:
                yield layer
            finally:
                for key, value in before.items():
                    os.environ.pop(key, None)
                    if value is not None:
                        os.environ[key] = value
                del layer.control
