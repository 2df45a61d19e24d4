"""The hook built with a sanitizer: its generated C, under the fake driver and the real linker.

A sanitizer's runtime asks the linker for functions before it is ready: this build leaves the linker's own
functions alone, and the program is one that is linked against the driver.
"""

import shutil
import subprocess
import sysconfig
from functools import partial
from pathlib import Path

import pytest

import fgshim
from compiled import compiled
from fgshim import calls

SANITIZERS = {"address": "libasan.so", "thread": "libtsan.so", "undefined": "libubsan.so"}
FLAGS = ("-O1", "-g", "-w", "-D_GNU_SOURCE", "-fPIC", "-ffunction-sections", "-fdata-sections", "-shared")
STRICT = ("-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "--param", "asan-globals=0")
LINK = ("-Wl,-Bsymbolic", "-Wl,--gc-sections", "-Wl,-z,lazy")
SOURCES = Path(fgshim.__file__).parent


def runtime(name: str) -> str:
    """The sanitizer's library; skips where the compiler has none."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("no gcc here to build with a sanitizer")
    asked = [gcc, f"-print-file-name={SANITIZERS[name]}"]
    found = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"the compiler here has no {name} sanitizer")
    return found


def build(name: str) -> Path:
    """The hook's library under this sanitizer."""
    source = SOURCES / "hook.c"
    if not source.exists():
        pytest.skip("the hook's C is not here: run setup.py build_ext --inplace")
    folders = SOURCES / "hook", SOURCES / "include"
    sources = [source, Path(__file__), *(path for folder in folders for path in folder.glob("*.[ch]"))]
    return compiled(f"hook-{name}", sources, (), partial(_compile, name)) / "libfgshim.so"


def _compile(name: str, folder: Path) -> None:
    source = SOURCES / "hook.c"
    visible = " ".join(f"{call.export};" for call in calls.CALLS if call.library != calls.LINKER)
    (folder / "map").write_text(f"{{ global: {visible} local: *; }};\n")
    folders = (sysconfig.get_path("include"), SOURCES, SOURCES.parent, SOURCES / "hook", SOURCES / "include")
    includes = [f"-I{folder}" for folder in folders]
    target = folder / "libfgshim.so"
    words = ["gcc", *FLAGS, *STRICT, *LINK, f"-fsanitize={name}", f"-Wl,--version-script={folder / 'map'}"]
    own = [path for path in (SOURCES / "hook").glob("*.c") if path.name != "linker_stubs.c"]
    subprocess.run([*words, *includes, source, *own, "-o", target], check=True)


def without_random_addresses() -> list[str]:
    """The thread sanitizer needs its part of the address space free."""
    words = ["setarch", "-R"]
    if (
        shutil.which("setarch")
        and not subprocess.run([*words, "true"], capture_output=True, check=False).returncode
    ):
        return words
    return []
