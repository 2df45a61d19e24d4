"""A file system whose program never answers (FUSE), as a user can mount one over what is the user's."""

import ctypes
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_LIBC = ctypes.CDLL(None, use_errno=True)
_DETACH = 2  # of umount2(2)


def _is_possible() -> bool:
    return os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)


needs_fuse = pytest.mark.skipif(not _is_possible(), reason="FUSE: root with /dev/fuse")


@contextmanager
def mounted(place: Path) -> Iterator[None]:
    """Mount it over a file or a directory for the time of the block."""
    kind = stat.S_IFMT(place.lstat().st_mode)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode={kind:o},user_id=65534,group_id=65534,allow_other"
    try:
        assert _LIBC.mount(b"silent", os.fsencode(place), b"fuse", 0, options.encode()) == 0
        yield
    finally:
        os.close(device)  # whoever waits for an answer is told that there will be none
        _LIBC.umount2(os.fsencode(place), _DETACH)
