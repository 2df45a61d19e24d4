"""Read the output of a job for its page: the end of a regular file of the user's, and what is added to it.

Only the files that the job names are opened, with the rights of the user, and never through a link in the
last part of the path: a job can write there whatever it likes.
"""

import codecs
import os
import re
import stat
from contextlib import suppress
from errno import ELOOP, ENOENT
from typing import NamedTuple

from fgsched.protocol import JobInfo
from fgsched.reports.html import shown
from fgsched.views import job as view

MOST_BACK = 1 << 20  # bytes that are shown of the end of a file, at most
STEP = 64 << 10  # bytes that are read at once
_PSEUDO = ("/proc", "/sys")  # file systems whose files are no output
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_LINES = re.compile(r"\r\n?")


class FileId(NamedTuple):
    """A file, whatever its name."""

    device: int
    inode: int


class FileTail(NamedTuple):
    """The end of a file."""

    path: str
    text: str = ""
    size: int = 0  # bytes of the file
    end: int = 0  # where the text ends in the file
    file: FileId | None = None  # None: it cannot be read
    trouble: str = ""  # why not


def path_of(job: JobInfo, file: str) -> str:
    """Return the path of the output, or of the errors."""
    files = view.files(job)
    return files.stderr if file == "errors" else files.stdout


def opened(path: str) -> int:
    """Open a file of a job; the caller closes it.

    Raises: OSError, if there is no regular file at the path, or the last part of the path is a link.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_dev in _pseudo_devices():
        os.close(descriptor)
        raise OSError(0, "it is not a regular file")
    return descriptor


def _pseudo_devices() -> set[int]:
    devices = set()
    for path in _PSEUDO:
        with suppress(OSError):
            devices.add(os.stat(path).st_dev)
    return devices


def why_unreadable(error: OSError) -> str:
    """Return a clause on a file that cannot be shown."""
    if error.errno == ELOOP:
        return "it is a symbolic link"
    return "there is no such file" if error.errno == ENOENT else error.strerror or "it cannot be read"


def tail_of(job: JobInfo, file: str, uid: int) -> FileTail | None:
    """Return the end of a file of a job; None: the job is not this user's, or its files are hidden."""
    if job.is_private or job.uid != uid:
        return None
    path = path_of(job, file)
    try:
        descriptor = opened(path)
    except OSError as error:
        return FileTail(path, trouble=why_unreadable(error))
    try:
        status = os.fstat(descriptor)
        begin = max(0, status.st_size - STEP)
        data = os.pread(descriptor, STEP, begin)
    except OSError as error:
        return FileTail(path, trouble=why_unreadable(error))
    finally:
        os.close(descriptor)
    whole, end = _whole_characters(data), begin + len(data)
    first = whole.partition("\n")[2] if begin else whole  # a line that begins earlier is left out
    return FileTail(path, plain(first or whole), status.st_size, end, FileId(status.st_dev, status.st_ino))


def _whole_characters(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def plain(text: str) -> str:
    """Return output as text: without escape sequences, and with `?` for other control characters."""
    lines = _LINES.sub("\n", _ESCAPES.sub("", text)).split("\n")
    return "\n".join("\t".join(shown(part) for part in line.split("\t")) for line in lines)


class Addition(NamedTuple):
    """What was added to a file since the last step."""

    text: str
    file: FileId
    end: int  # where the text ends in the file
    is_new: bool  # the text does not continue the one before: the file was replaced, truncated, or too fast


class Follower:
    """Reads what is added to a file. The file is opened again in each step, as it may be replaced."""

    def __init__(self, path: str, file: FileId | None, end: int) -> None:
        """Begin behind `end`, in bytes, of this file."""
        self._path, self._file, self._end = path, file, end
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def step(self) -> Addition | None:
        """Return at most 64 KiB that were added; None: nothing."""
        try:
            descriptor = opened(self._path)
        except OSError:
            return None
        try:
            return self._read(descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int) -> Addition | None:
        status = os.fstat(descriptor)
        is_new = (status.st_dev, status.st_ino) != self._file or status.st_size < self._end
        if is_new:
            self._file, self._end = FileId(status.st_dev, status.st_ino), 0
            self._decoder.reset()
        if status.st_size - self._end > MOST_BACK:  # it grows faster than it can be shown
            self._end = status.st_size - STEP
            is_new = True
            self._decoder.reset()
        data = os.pread(descriptor, STEP, self._end)
        if not data and not is_new:
            return None
        self._end += len(data)
        text = plain(self._decoder.decode(data))
        return Addition(text, FileId(status.st_dev, status.st_ino), self._end, is_new)
