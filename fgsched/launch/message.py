"""Encode the launch message, with which the spawner and the shepherd start an attempt (docs/native.md)."""

import struct
from functools import lru_cache

import fgshim.region as region

from fgsched.domain.errors import Refused
from fgsched.domain.units import parse_indices
from fgsched.jobs.launchspec import Launch

_HEADER = struct.Struct("<IIQ12I5q2IQ2I")
_LIMIT = struct.Struct("<iiqq")
_MAGIC = 0x314C4746
_APPEND, _BECOME_USER, _OWN_MOUNTS, _OWN_USERS, _VERIFY_ENFORCEMENT = 1, 2, 8, 16, 32
_MAX_BYTES = 8 * 2**20  # the spawner closes the connection at a longer message
_MAX_CPUS = 8192  # highest number of a CPU that the spawner accepts
_MOUNTS = {"": 0, "root": _OWN_MOUNTS, "user": _OWN_MOUNTS | _OWN_USERS}


def pack(launch: Launch, script: bytes, region_head: bytes) -> bytes:
    """Encode a launch message in the layout of docs/native.md.

    Args:
        script: the job script; empty if the command is in `launch.args`.
        region_head: the header of the region of the hook; empty for a job without the hook.

    Raises:
        Refused: the message is larger than 8 MiB.
    """
    streams = (launch.files.stdin, launch.files.stdout, launch.files.errors)
    texts = (launch.run, launch.space, launch.chdir, *streams, launch.tmpdir, launch.hook, launch.shared)
    words = [text.encode(errors="surrogateescape") for text in (*texts, *launch.args)]
    cpus = cpu_words(launch.cpus)
    parts = (
        struct.pack(f"<{len(launch.groups)}I", *launch.groups),
        *(_LIMIT.pack(resource, 0, soft, hard) for resource, soft, hard in launch.rlimits),
        cpus,
        b"\0".join(words),
        b"\0",
        launch.environment,
        *(f"{node}\0".encode() for node in launch.closed),
        *(_cgroup(directory, settings) for directory, settings in launch.cgroups),
        script,
        region_head,
    )
    length = _HEADER.size + sum(map(len, parts))
    if length > _MAX_BYTES:
        raise Refused("script, arguments and environment together are larger than 8 MiB")
    sizes = (len(script), len(region_head), region.SIZE if region_head else 0)
    return b"".join((_header(launch, length, sizes, len(cpus) // 8), *parts))


def _header(launch: Launch, length: int, sizes: tuple[int, int, int], cpu_words: int) -> bytes:
    """Encode the fixed part; `sizes` are the bytes of the script, the region's header and the region."""
    number, target, before = launch.early
    flags = _APPEND * launch.append | _BECOME_USER * launch.become_user | _MOUNTS[launch.mounts]
    flags |= _VERIFY_ENFORCEMENT * launch.proves
    return _HEADER.pack(
        *(_MAGIC, length, launch.job, launch.attempt, flags, launch.uid, launch.gid, launch.umask),
        *(len(launch.groups), len(launch.rlimits), len(launch.args), launch.environment.count(b"\0")),
        *(len(launch.cgroups), number, target),
        *(launch.time_limit, before, launch.grace, launch.leftover_grace, launch.last_wait),
        *sizes,
        *(len(launch.closed), cpu_words),
    )


@lru_cache(maxsize=256)
def cpu_words(listed: str) -> bytes:
    """Encode a CPU list such as '0,65' as 64-bit words, lowest CPU first; CPUs from 8192 on are omitted."""
    mask = sum(1 << cpu for cpu in parse_indices(listed) if cpu < _MAX_CPUS) if listed else 0
    return mask.to_bytes((mask.bit_length() + 63) // 64 * 8, "little")


def _cgroup(directory: str, settings: tuple[str, ...]) -> bytes:
    return "".join(f"{text}\0" for text in (directory, str(len(settings)), *settings)).encode()
