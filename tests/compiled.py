"""What tests compile, kept below build/: made once for its sources, by the process that needs it first."""

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

PLACE = Path(__file__).parent.parent / "build/compiled"


def compiled(
    name: str, sources: Iterable[Path], words: Iterable[object], make: Callable[[Path], object]
) -> Path:
    """Return the folder that `make(folder)` filled; it is made again for other sources, words or compilers.

    Nobody may change it. `name` has no blank, at which LD_PRELOAD splits. `words`: what else decides on the
    result, such as flags.
    """
    compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256(repr((compiler, *map(str, words))).encode())
    for path in sorted(sources):
        digest.update(f"{path}\n".encode() + path.read_bytes())
    place = PLACE / f"{name}-{digest.hexdigest()[:20]}"
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            for earlier in PLACE.glob(f"{name}-*"):
                shutil.rmtree(earlier)
            unfinished = PLACE / f".{name}"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(place)
    return place
