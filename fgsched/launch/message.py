"""The launch message: all that spawner and shepherd are told of an attempt, as docs/native.md lays it out."""

import struct
from functools import lru_cache

import fgshim.region as region

from fgsched.domain.errors import Refused
from fgsched.domain.units import parse_indices
from fgsched.jobs.launchspec import Launch

_HEADER = struct.Struct("<IIQ12I5q2IQ2I")
_LIMIT = struct.Struct("<iiqq")
_MAGIC = 0x314C4746
_APPEND, _BECOME_USER, _OWN_MOUNTS, _OWN_USERS, _PROVE_FENCE = 1, 2, 8, 16, 32
_LONGEST = 8 * 2**20  # of a launch message: at a longer one the spawner hangs up
_MOST_CPUS = 8192  # that the spawner takes
_MOUNTS = {"": 0, "root": _OWN_MOUNTS, "user": _OWN_MOUNTS | _OWN_USERS}


def pack(launch: Launch, script: bytes, region_head: bytes) -> bytes:
    """One launch message, as docs/native.md lays it out."""
    its, (number, target, before) = launch.files, launch.early
    streams = (its.stdin, its.stdout, its.errors)
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
    if length > _LONGEST:
        raise Refused("script, arguments and environment together are larger than 8 MiB")
    flags = _APPEND * launch.append | _BECOME_USER * launch.become_user | _MOUNTS[launch.mounts]
    flags |= _PROVE_FENCE * launch.proves
    head = _HEADER.pack(
        *(_MAGIC, length, launch.job, launch.attempt, flags, launch.uid, launch.gid, launch.umask),
        *(len(launch.groups), len(launch.rlimits), len(launch.args), launch.environment.count(b"\0")),
        *(len(launch.cgroups), number, target),
        *(launch.time_limit, before, launch.grace, launch.leftover_grace, launch.last_wait),
        *(len(script), len(region_head), region.SIZE if region_head else 0),
        *(len(launch.closed), len(cpus) // 8),
    )
    return b"".join((head, *parts))


@lru_cache(maxsize=256)
def cpu_words(listed: str) -> bytes:
    """'0,65' as the bits of 64-bit words, the lowest CPU first; without those that no kernel has."""
    mask = sum(1 << cpu for cpu in parse_indices(listed) if cpu < _MOST_CPUS) if listed else 0
    return mask.to_bytes((mask.bit_length() + 63) // 64 * 8, "little")


def _cgroup(directory: str, settings: tuple[str, ...]) -> bytes:
    return "".join(f"{text}\0" for text in (directory, str(len(settings)), *settings)).encode()
