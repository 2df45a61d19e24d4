"""The arbiter's process, told of jobs as the controller does it."""

import mmap
import os
import socket
import struct
import subprocess
from pathlib import Path
from typing import IO

import fgshim
from fgshim import region

SPAWNER = Path(fgshim.__file__).with_name("fgspawn")
POLICIES = region.POLICIES
WELCOME = struct.Struct("<3I16I")


class Arbiter:
    """A running arbiter; `with` ends it."""

    def __init__(self, lock: Path, log: IO[str] | None = None, program: Path = SPAWNER) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [program, "turns", str(theirs.fileno()), lock]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=log)
        theirs.close()

    def add(
        self, job: int, folder: Path, policy: str, share: int, gpu: int = 0, *, uid: int | None = None
    ) -> Path:
        """Tell of a job with one GPU, of this user or `uid`. Return its socket; it may not be there yet."""
        owner = os.geteuid() if uid is None else uid
        words = f"+ {job} 1 {owner} 1 0 {gpu} {POLICIES[policy]} {share} {folder}"
        self.control.send(words.encode())
        return folder / "turns"

    def remove(self, job: int) -> None:
        self.control.send(f"- {job} 1".encode())

    def others(self, count: int, gpu: int = 0) -> None:
        self.control.send(f"o {gpu} {count}".encode())

    def __enter__(self) -> "Arbiter":
        return self

    def __exit__(self, *unused: object) -> None:
        self.control.close()
        self.process.kill()
        self.process.wait()


class Page:
    """A job's page, as one more process of the job has it."""

    def __init__(self, path):
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.connection.connect(str(path))
        except OSError:
            self.connection.close()
            raise
        data, [file], _, _ = socket.recv_fds(self.connection, WELCOME.size, 16)
        _, self.seat, pages, *_ = WELCOME.unpack(data)
        assert pages == 1
        self.file = file
        self.memory = mmap.mmap(file, 4096)

    @property
    def word(self):
        return struct.unpack_from("<I", self.memory)[0]

    def poke(self):
        self.connection.send(b"x")

    def close(self):
        self.connection.close()
        self.memory.close()
        os.close(self.file)
