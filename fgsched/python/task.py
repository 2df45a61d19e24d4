"""Run one call in its job, and write what it returned or raised.

The job runs this file by its path, as `python -P task.py FOLDER`. It imports nothing of fgsched, which the
Python of the job may lack.
"""

import hashlib
import io
import json
import mmap
import os
import pickle
import platform
import struct
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

FORMAT = 1  # of the folder of a call
CALL, ARGUMENTS, FACTS, BUFFER = "call", "args", "env.json", "buffer."
VALUE, ERROR = ".out", ".err"  # of a task, behind its index
_LENGTH = struct.Struct("<Q")


def read_call(folder: Path, index: int) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the function and the arguments of a task. Raises whatever its classes raise."""
    buffers = [
        _mapped(folder / f"{BUFFER}{number}") for number in range(len(list(folder.glob(f"{BUFFER}*"))))
    ]
    function, arguments, keywords = pickle.loads((folder / CALL).read_bytes(), buffers=buffers)
    if (folder / ARGUMENTS).exists():
        arguments = (*arguments, *pickle.loads(_part(folder / ARGUMENTS, index)))
    return function, arguments, keywords


def _mapped(path: Path) -> mmap.mmap:
    """Map a buffer; changes stay in this process, and unchanged pages are shared with other tasks."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def _part(path: Path, index: int) -> bytes:
    """Return the bytes of one task: the file begins with the offsets of all tasks."""
    with path.open("rb") as file:
        file.seek(index * _LENGTH.size)
        begin, end = (_LENGTH.unpack(file.read(_LENGTH.size))[0] for _ in range(2))
        file.seek(begin)
        return file.read(end - begin)


def joined(parts: list[bytes]) -> bytes:
    """Return the file of the arguments of all tasks, for `_part`."""
    offset = (len(parts) + 1) * _LENGTH.size
    offsets = [_LENGTH.pack(offset)]
    for part in parts:
        offset += len(part)
        offsets.append(_LENGTH.pack(offset))
    return b"".join([*offsets, *parts])


def write_result(path: Path, content: bytes | memoryview) -> None:
    """Write a file that is there with all its content, or not at all. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def error_file(kind: str, error: BaseException, text: str) -> bytes:
    """Return the content of the file of an error: a line of JSON, and the pickled exception if that works."""
    head = {"kind": kind, "repr": _repr(error), "text": text, "python": platform.python_version()}
    return json.dumps(head).encode() + b"\n" + (_pickled(error) if kind == "raised" else b"")


def _pickled(error: BaseException) -> bytes:
    """Return a pickled exception that can be read again; b"": it cannot."""
    import cloudpickle

    try:
        content: bytes = cloudpickle.dumps(error, protocol=5)
        pickle.loads(content)
    except Exception:
        return b""
    return content


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return object.__repr__(value)


def _run(folder: Path, index: int) -> int:
    """Run a task and write its result; return the exit code of the job."""
    import cloudpickle

    error_path = folder / f"{index}{ERROR}"
    kind = "unreadable"
    try:
        function, arguments, keywords = read_call(folder, index)
        kind = "raised"
        value = function(*arguments, **keywords)
        kind = "unpicklable"
        content = io.BytesIO()
        cloudpickle.dump(value, content, protocol=5)
    except BaseException as error:
        if kind == "raised" and not isinstance(error, Exception):
            kind = "ended"  # sys.exit, or an interrupt
        text = _traceback(error)
        sys.stderr.write(text)
        write_result(error_path, error_file(kind, error, text))
        return 1
    write_result(folder / f"{index}{VALUE}", content.getbuffer())
    return 0


def _traceback(error: BaseException) -> str:
    """Return the traceback of an error without the frame of this program."""
    inner = error.__traceback__.tb_next if error.__traceback__ else None
    return "".join(traceback.format_exception(type(error), error, inner))


def _warn_of_changes(facts: dict[str, Any]) -> None:
    """Tell on standard error if the module of the function has changed since the submission."""
    path = facts.get("module")
    if not path:
        return
    try:
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        digest = ""
    if digest != facts["module_digest"]:
        print(f"fgsched: {path} has changed since the call was submitted", file=sys.stderr)


def main() -> NoReturn:
    """Run the task of this job, unless an earlier attempt of the job has written its result."""
    folder, index = Path(sys.argv[1]), int(os.environ.get("FG_ARRAY_TASK_ID") or 0)
    for ending, code in ((VALUE, 0), (ERROR, 1)):
        if (folder / f"{index}{ending}").exists():
            sys.exit(code)
    facts = json.loads((folder / FACTS).read_text())
    sys.path[:] = facts["path"]
    sys.argv[1:] = []
    _warn_of_changes(facts)
    sys.exit(_run(folder, index))


if __name__ == "__main__":
    main()
