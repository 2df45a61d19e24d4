"""Read what a submission takes from the submitting process, and check its files and directories."""

import os
import pwd
import resource
import stat
import time
from collections.abc import Mapping
from typing import BinaryIO

from msgspec import Struct

from fgsched.domain.errors import BadUsage
from fgsched.domain.text import shown
from fgsched.domain.times import find_time, format_time
from fgsched.lifecycle.containers import choose, is_path
from fgsched.lifecycle.filenames import PatternValues, expand, needs_the_job
from fgsched.lifecycle.jobscript import SIZE_LIMIT, accept, carries_headers, mebibytes, too_large
from fgsched.submission.options import AnySetting, unexpanded
from fgsched.system.process import umask

STDIN = "standard input"
_OPEN = ("/dev/fd/", "/proc/self/fd/")
_KINDS = {
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "FIFO",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFSOCK: "socket",
}


class Source(Struct, frozen=True):
    """The text of the first word after the options."""

    name: str  # as messages call it
    data: bytes = b""
    program: str = ""  # not a script but a program, to be run by one; how a shell calls it


class NoScript(BadUsage):
    """Raised if no script is named and none comes on standard input."""


class Process:
    """The submitting process itself."""

    def __init__(self, environ: Mapping[str, str], cwd: str, stdin: BinaryIO | None = None) -> None:
        self.environ, self.umask, self.rlimits = environ, umask(), rlimits()
        self.cwd, self._stdin = cwd, stdin
        self._of_stdin: Source | None = None  # it can be read once

    def account(self) -> tuple[str, str]:
        """Return name and home directory of the caller; the uid if the user database has no name."""
        return account(self.environ)

    def moment(self, text: str) -> tuple[float, str]:
        """Return a time in seconds since the epoch, and a remark about it; "" if there is none."""
        now = time.time()
        moment, is_skipped = find_time(text, now)
        if moment < now:
            return moment, "has passed; the job can start now"
        skipped = f"is skipped by the change of the clocks; the job can start at {format_time(moment)}"
        return moment, skipped if is_skipped else ""

    def script(self, word: str | None, directory: str) -> Source:
        """Read the script that `word` names, or standard input; jobs run in `directory`. Raises BadUsage."""
        if word is None:
            self._of_stdin = self._of_stdin or load_stdin(self._stdin)
            return self._of_stdin
        return load(word, self.cwd, directory, self.environ)

    def job_directory(self, setting: AnySetting | None) -> str:
        """Return an absolute directory that the submitter can enter. Raises BadUsage."""
        return job_directory(setting, self.cwd)

    def check_interpreter(self, name: str, data: bytes, directory: str, path: str) -> None:
        """Refuse a script whose interpreter cannot be executed. Raises BadUsage."""
        program, is_in_path = interpreter(data)
        if not program:
            return
        if is_in_path:
            if not is_in(path, program):
                raise BadUsage(
                    f"{name}: its interpreter {shown(program)} is not in PATH", "Correct its first line."
                )
        elif not is_program(os.path.join(directory, program)):
            raise BadUsage(
                f"{name}: its interpreter {shown(program)} does not exist or cannot be executed",
                "Correct its first line.",
            )

    def check_container(self, setting: AnySetting, image: str, environ: Mapping[str, str]) -> None:
        """Refuse an image that does not exist, or that no container runtime of the host can run.

        Args:
            image: as the job has it, a path or a reference.
            environ: the variables of the job.

        Raises: BadValue, Refused.
        """
        if is_path(image) and not os.path.exists(image):
            raise setting.bad(": No such file or directory")
        path = environ.get("PATH", os.defpath)
        choose(
            image,
            is_directory=is_path(image) and os.path.isdir(image),
            runtime=environ.get("FG_CONTAINER_RUNTIME", ""),
            has=lambda name: is_in(path, name),
        )

    def is_file(self, path: str) -> bool:
        """Tell whether a path, which can be relative to the current directory, is a file."""
        return os.path.isfile(os.path.join(self.cwd, path))

    def is_writable(self, directory: str) -> bool:
        """Tell whether the submitter can create files in a directory."""
        return os.access(directory, os.W_OK | os.X_OK)

    def check_output(self, setting: AnySetting, values: PatternValues, chdir: str, *, make: bool) -> str:
        """Check that the directory of an output file exists, or create it with `make`.

        Return a warning if the caller cannot write the file now; "" if they can. Raises BadUsage.
        """
        output_directory(setting, values, chdir, make=make)
        if needs_the_job(os.path.dirname(setting.text)):
            return ""
        path = os.path.join(chdir, expand(setting.text, values))
        if is_writable(path):
            return ""
        return f"{setting.label}: you cannot write {shown(path)}; the job fails if that is so at its start"

    def check_input(self, setting: AnySetting, values: PatternValues, chdir: str) -> str:
        """Return a warning if the caller cannot read the input file now; "" if they can."""
        if needs_the_job(setting.text):
            return ""
        path = os.path.join(chdir, expand(setting.text, values))
        if os.access(path, os.R_OK):
            return ""
        why = "you cannot read" if os.path.exists(path) else "there is no"
        return f"{setting.label}: {why} {shown(path)}; the job fails if that is so at its start"


def find(word: str, cwd: str, chdir: str, environ: Mapping[str, str]) -> tuple[str, bool]:
    """Locate the script or command; also return whether it was found through PATH.

    A name without a leading dot or slash is looked for in the current directory, in the job's and in PATH.
    """
    here = os.path.join(cwd, word)
    if word.startswith((".", "/")):
        return here, False
    for path in (here, os.path.join(chdir, word)):
        if os.path.lexists(path) and not os.path.isdir(path):
            return path, False
    for entry in environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(entry, word)
        if entry and os.path.isfile(path) and os.access(path, os.X_OK):
            return path, True
    return here, False


def load(word: str, cwd: str, chdir: str, environ: Mapping[str, str]) -> Source:
    """Read the script named by `word`, or identify a program that needs a wrapper. Raises BadUsage."""
    if not word:
        raise BadUsage("the name of the script is empty", "Name a script. Is a shell variable unset?")
    path, on_path = find(word, cwd, chdir, environ)
    name = shown(word)
    if path == "/dev/stdin" or path.startswith(_OPEN):
        return _load_open(path, name)
    try:
        data, size = _read(path, name, program_ok=on_path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a file name"
        is_name = isinstance(error, FileNotFoundError) and "/" not in word
        meant = nearest_file(path) if isinstance(error, FileNotFoundError) else ""
        remedy = "It is neither a file in this directory nor a command in PATH." if is_name else ""
        if meant:
            remedy = f"Did you mean {shown(os.path.join(os.path.dirname(word), meant))}?"
        raise BadUsage(f"cannot read {name}: {why}", remedy) from None
    if data is None:
        return Source(name, program=word if on_path or "/" in word else path)
    if size > SIZE_LIMIT:
        raise too_large(name, f"{mebibytes(size)} MiB")
    accept(name, data)
    return Source(name, data)


def nearest_file(path: str) -> str:
    """Return the name of the file beside a missing one that was probably meant; "" if there is none."""
    from difflib import get_close_matches  # slow to import, and only needed for this message

    folder, name = os.path.split(path)
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError:
        return ""
    extended = [script_name for script_name in names if os.path.splitext(script_name)[0] == name]
    scripts = [script_name for script_name in extended if script_name.endswith(".sh")]
    return next(iter((*scripts, *extended, *get_close_matches(name, names, 1, 0.75))), "")


def _load_open(path: str, name: str) -> Source:
    """Read a script from a descriptor that the shell opened, as for `fgsub <(command)`."""
    try:
        with open(path, "rb") as file:
            return Source(name, _limited(file, name))
    except OSError as error:
        raise BadUsage(f"cannot read {name}: {error.strerror}") from None


def _limited(file: BinaryIO, name: str) -> bytes:
    """Read a script, up to the maximum size. Raises BadUsage."""
    if file.isatty():
        raise NoScript("no script given", "Name a script, or give one on standard input: fgsub train.sh")
    data = file.read(SIZE_LIMIT + 1) or b""
    if not data and name == STDIN:
        raise NoScript(f"{name} is empty", "Name a script: fgsub train.sh")
    if len(data) > SIZE_LIMIT:
        raise too_large(name, f"more than {SIZE_LIMIT >> 20} MiB")
    accept(name, data)
    return data


def _read(path: str, name: str, *, program_ok: bool) -> tuple[bytes | None, int]:
    """Return the text (None for a program) and the size. A FIFO is detected before it is opened."""
    _check_kind(os.stat(path).st_mode, name)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        _check_kind(os.fstat(descriptor).st_mode, name)
        size = os.fstat(descriptor).st_size
        head = file.read(4)
        if head == b"\x7fELF" or (program_ok and head[:2] != b"#!"):
            return None, size
        data = head + file.read(SIZE_LIMIT) if size <= SIZE_LIMIT else head
        if program_ok and not carries_headers(data):
            return None, size  # such as a launcher that needs its own name and place
        return data, max(size, len(data))


def _check_kind(mode: int, name: str) -> None:
    kind = _KINDS.get(stat.S_IFMT(mode))
    if kind:
        raise BadUsage(f"{name} is a {kind}, not a script")


def load_stdin(stdin: BinaryIO | None) -> Source:
    """Read a script from standard input, up to the maximum size. Raises BadUsage."""
    if stdin is None:
        raise NoScript("no script given", "Name a script, or give one on standard input: fgsub train.sh")
    try:
        return Source(STDIN, _limited(stdin, STDIN))
    except OSError as error:
        raise BadUsage(f"cannot read {STDIN}: {error.strerror}") from None


def job_directory(setting: AnySetting | None, cwd: str) -> str:
    """Return an absolute directory that the submitter can enter. Raises BadUsage."""
    if setting is None:
        return cwd
    path = os.path.normpath(os.path.join(cwd, setting.text))
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise setting.bad(": Not a directory")
    except OSError as error:
        raise setting.bad(f": {error.strerror}") from None
    if not os.access(path, os.X_OK):
        raise setting.bad(": Permission denied")
    return path


def output_directory(setting: AnySetting | None, values: PatternValues, chdir: str, *, make: bool) -> None:
    """Check that the directory of an output file exists, or create it with `make`.

    `values` has no job id yet. A directory that depends on the job id is made when the job starts.
    """
    if setting is None:
        return
    parent = os.path.dirname(setting.text)
    if needs_the_job(parent):  # the job makes it when it starts
        return
    path = os.path.join(chdir, expand(setting.text, values))
    shown_parent = shown(os.path.dirname(expand(setting.text, values)))
    try:
        if make:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        if not stat.S_ISDIR(os.stat(os.path.dirname(path)).st_mode):
            raise setting.bad(f": {shown_parent} is not a directory")
    except FileNotFoundError:
        remedy = unexpanded(setting) or "use --mkdir to make it"
        raise setting.bad(f": directory {shown_parent} does not exist ({remedy})") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a file name"
        raise setting.bad(f": directory {shown_parent}: {why}") from None
    if path.endswith("/") or (not needs_the_job(setting.text) and os.path.isdir(path)):
        raise setting.bad(" is a directory, not a file")


def interpreter(data: bytes) -> tuple[str, bool]:
    """Return the program of the #! line, and whether `env` looks it up in PATH; "" if it is not plain."""
    words = data[2:512].split(b"\n", 1)[0].decode("utf-8", "surrogateescape").split()
    if not words or os.path.basename(words[0]) != "env":
        return words[0] if words else "", False
    words_left = words[2:] if words[1:2] == ["-S"] else words[1:]
    is_plain = (
        bool(words_left)
        and not words_left[0].startswith("-")
        and "=" not in words_left[0]
        and "/" not in words_left[0]
    )
    return (words_left[0] if is_plain else ""), True


def is_program(path: str) -> bool:
    """Tell whether the caller can execute a file."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def is_writable(path: str) -> bool:
    """Tell whether the caller can write a file, or create it."""
    if os.path.exists(path):
        return os.access(path, os.W_OK)
    return os.access(os.path.dirname(path), os.W_OK | os.X_OK)


def account(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return name and home directory of the caller; the uid if the user database has no name."""
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        return str(os.getuid()), environ.get("HOME", "/")
    return entry.pw_name, entry.pw_dir


def rlimits() -> tuple[tuple[int, int, int], ...]:
    """Return (resource, soft, hard) of every resource limit; -1 is unlimited."""
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    numbers = sorted({getattr(resource, name) for name in names})
    return tuple((number, *resource.getrlimit(number)) for number in numbers)


def is_in(path: str, name: str) -> bool:
    """Return whether one of the directories of a PATH has a program of this name."""
    return any(is_program(os.path.join(directory, name)) for directory in path.split(os.pathsep))
