"""Programs and libraries that tests compile: built once for their sources, by the first that needs them.

They stay in `build/tests`, so that the parallel processes of a run and the runs after it use them again. A
change of a source, of the flags in a Python file among the sources, or of the compiler makes a new folder.
"""

import fcntl
import hashlib
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

PLACE = Path(__file__).parent.parent / "build/tests"
_DONE = "built"  # a file that is made last: a build that was killed is made again


def compiled(name: str, sources: Iterable[Path], build: Callable[[Path], object]) -> Path:
    """Return the folder that `build` has filled for these sources; folders count with all their files."""
    folder = PLACE / f"{name}-{_digest(sources)}"
    if (folder / _DONE).exists():
        return folder
    PLACE.mkdir(parents=True, exist_ok=True)
    with open(PLACE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _DONE).exists():
            for outdated in PLACE.glob(f"{name}-????????????????"):
                shutil.rmtree(outdated)
            folder.mkdir()
            build(folder)
            (folder / _DONE).touch()
    return folder


def _digest(sources: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is not None:
        state = Path(compiler).resolve().stat()
        digest.update(f"{compiler} {state.st_size} {state.st_mtime_ns}".encode())
    for source in sources:
        for file in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if file.is_file() and file.suffix != ".pyc":
                content = file.read_bytes()
                digest.update(f"{file} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16]
