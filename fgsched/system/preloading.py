"""Variables of the dynamic loader, and why a preloaded library is not in a process.

Jobs and commands of users get these variables, and the own interpreters do not.
"""

import struct
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from pathlib import PurePath
from shlex import quote

_HEADER = struct.Struct("<4sB11xHHIQQQIHHHHHH")  # of an ELF file of 64 bits
_SEGMENT = struct.Struct("<IIQQQQQQ")
_INTERPRETER = 3  # type of the segment that names the dynamic linker
_AT_SECURE = 23  # entry of the auxiliary vector: 1 if the program has privileges that its user lacks
_MOST_SEGMENTS = 128
_ASIDE = "FG_CALLER_"  # before the name of a variable that is put aside
_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT")


def why_not_preloaded(pid: int) -> str:
    """Return the reason in a few words; "" if it is not known, or the process has ended."""
    from fgsched.system.process import file_of  # each command imports this module

    if _is_secure(pid):
        return "it has the privileges of its file: setuid or capabilities"
    try:
        linker = _linker_of(partial(file_of, pid, "exe"))
        variables = file_of(pid, "environ").split(b"\0")
    except (OSError, struct.error):
        return ""
    except ValueError as error:
        return str(error)
    if linker.startswith("ld-musl"):
        return "it uses the C library musl"
    return (
        "" if any(variable.startswith(b"LD_PRELOAD=") for variable in variables) else "LD_PRELOAD was removed"
    )


def _linker_of(read: Callable[[int, int], bytes]) -> str:
    """Return the file name of a program's dynamic linker. Raises ValueError with why it has none.

    Args:
        read: returns a part of the program, by offset and length.
    """
    magic, width, *rest = _HEADER.unpack(read(0, _HEADER.size))
    if magic != b"\x7fELF" or width != 2:
        raise ValueError("it is not a program of 64 bits")
    table, size, count = rest[4], rest[8], rest[9]
    segments = read(table, min(count, _MOST_SEGMENTS) * size)
    for at in range(0, len(segments), size):
        kind, _, offset, _, _, length, *_ = _SEGMENT.unpack_from(segments, at)
        if kind == _INTERPRETER:
            return PurePath(read(offset, min(length, 4096)).rstrip(b"\0").decode(errors="replace")).name
    raise ValueError("it is statically linked")


def _is_secure(pid: int) -> bool:
    """Tell whether the dynamic linker of a process ignored LD_PRELOAD; False if this user may not know."""
    from fgsched.system.process import file_of

    try:
        data = file_of(pid, "auxv")
    except OSError:
        return False
    pairs = struct.iter_unpack("@LL", data[: len(data) // 16 * 16])
    return (_AT_SECURE, 1) in pairs


_own: dict[str, str | None] = {}  # variable that was put aside -> its value for the own interpreters


def restore(environ: MutableMapping[str, str]) -> None:
    """Give the variables back to the environment; the loader of this process has read it."""
    for name in _VARIABLES:
        if (value := environ.pop(_ASIDE + name, None)) is not None:
            _own[name] = environ.get(name)
            environ[name] = value


def put_aside(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for another own interpreter: the variables are put aside as for this process."""
    changed = dict(environ)
    for name, own_value in _own.items():
        if (value := changed.pop(name, None)) is not None:
            changed[_ASIDE + name] = value
        if own_value is not None:
            changed[name] = own_value
    return changed


def put_aside_in_shell() -> str:
    """Return shell code for a job's script before an own interpreter, which has to `restore` its environment.

    The folders of LD_LIBRARY_PATH may have other versions of its libraries.
    "": nothing was put aside for this process.
    """
    name = "LD_LIBRARY_PATH"
    if name not in _own:
        return ""
    folder = _own[name]
    export = f"export {name}={quote(folder)}; " if folder else ""
    return f'export {_ASIDE}{name}="${name}"; unset {name}; {export}'


def of_users(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the variables as the caller of the first command had them."""
    changed = dict(environ)
    for name in _VARIABLES:
        if (value := changed.pop(_ASIDE + name, None)) is not None:
            changed[name] = value
    return changed
