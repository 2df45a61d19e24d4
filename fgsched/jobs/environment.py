"""Build the environment of a job from the submitted variables and those of fgsched."""

from collections.abc import Mapping
from functools import lru_cache


def merged(base: bytes, own: Mapping[str, str], hook: str) -> bytes:
    """Return the submitted environment, overridden by `own`, with the hook ahead of other preloads."""
    theirs, preload = _kept(base, frozenset(own))
    ours = "".join([f"{name}={value}\0" for name, value in own.items()])
    whole = theirs + ours.encode(errors="surrogateescape")
    libraries = hook.encode(errors="surrogateescape") + preload if hook else preload[1:]
    return whole + b"LD_PRELOAD=" + libraries + b"\0" if libraries else whole


@lru_cache(maxsize=64)
def _kept(base: bytes, ours: frozenset[str]) -> tuple[bytes, bytes]:
    """Return (remaining submitted environment, its LD_PRELOAD). Jobs of one submission share the result."""
    theirs, preload = [], b""
    for entry in base.split(b"\0")[:-1]:
        name, _, value = entry.partition(b"=")
        if name == b"LD_PRELOAD":
            preload = b":" + value if value else b""
        elif name.decode(errors="surrogateescape") not in ours:
            theirs.append(entry + b"\0")
    return b"".join(theirs), preload
