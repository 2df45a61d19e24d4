"""Tell why a library that is preloaded by the environment is not in a process."""

import struct
from pathlib import Path, PurePath
from typing import BinaryIO

_PROC = Path("/proc")
_HEADER = struct.Struct("<4sB11xHHIQQQIHHHHHH")  # of an ELF file of 64 bits
_SEGMENT = struct.Struct("<IIQQQQQQ")
_INTERPRETER = 3  # type of the segment that names the dynamic linker
_AT_SECURE = 23  # entry of the auxiliary vector: 1 if the program has privileges that its user lacks
_MOST_SEGMENTS = 128


def why_not_preloaded(pid: int) -> str:
    """Return the reason in a few words; "" if it is not known, or the process has ended."""
    if _is_secure(pid):
        return "it has the privileges of its file: setuid or capabilities"
    try:
        with (_PROC / str(pid) / "exe").open("rb") as program:
            linker = _linker_of(program)
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except (OSError, struct.error):
        return ""
    except ValueError as error:
        return str(error)
    if linker.startswith("ld-musl"):
        return "it uses the C library musl"
    return "" if any(one.startswith(b"LD_PRELOAD=") for one in variables) else "LD_PRELOAD was removed"


def _linker_of(program: BinaryIO) -> str:
    """Return the file name of a program's dynamic linker. Raises ValueError with why it has none."""
    magic, width, *rest = _HEADER.unpack(program.read(_HEADER.size))
    if magic != b"\x7fELF" or width != 2:
        raise ValueError("it is not a program of 64 bits")
    table, size, count = rest[4], rest[8], rest[9]
    for at in range(min(count, _MOST_SEGMENTS)):
        program.seek(table + at * size)
        kind, _, offset, _, _, length, *_ = _SEGMENT.unpack(program.read(_SEGMENT.size))
        if kind == _INTERPRETER:
            program.seek(offset)
            return PurePath(program.read(min(length, 4096)).rstrip(b"\0").decode(errors="replace")).name
    raise ValueError("it is statically linked")


def _is_secure(pid: int) -> bool:
    """Tell whether the dynamic linker of a process ignored LD_PRELOAD; False if this user may not know."""
    try:
        data = (_PROC / str(pid) / "auxv").read_bytes()
    except OSError:
        return False
    pairs = struct.iter_unpack("@LL", data[: len(data) // 16 * 16])
    return (_AT_SECURE, 1) in pairs
