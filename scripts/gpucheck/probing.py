"""The program `probe` (probe.c), which uses the driver alone: its build and its runs."""

import shutil
import subprocess
import time
from typing import Any

from gpucheck.place import ROOT, Place, said
from gpucheck.sheet import NotHere

PROGRAM = ROOT / "build" / "gpu-check" / "probe"
_SOURCE = ROOT / "scripts" / "gpucheck" / "probe.c"


def build() -> str:
    """Build the program if it is older than its source; return why that fails, or ""."""
    if PROGRAM.exists() and PROGRAM.stat().st_mtime >= _SOURCE.stat().st_mtime:
        return ""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return f"there is no C compiler here, and no {PROGRAM} (scripts/gpu-check --build makes it elsewhere)"
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-O2", str(_SOURCE), "-o", str(PROGRAM), "-ldl", "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"probe.c cannot be built: {done.stderr.strip()[-160:]}" if done.returncode else ""


def command(verb: str, *words: object) -> list[str]:
    """Return a command line of the program. Raises NotHere if it cannot be built."""
    if why := build():
        raise NotHere(why)
    return [str(PROGRAM), verb, *map(str, words)]


def turns(place: Place) -> str:
    """Return the turns of the kernel's loop in a microsecond, measured once on the free GPU."""
    if not place.turns:
        place.turns = str(said(place.run(*command("calibrate")))["turns"])
    return place.turns


def clock(ahead: float) -> float:
    """Return the time of CLOCK_MONOTONIC in `ahead` seconds, as programs of the host count it."""
    return time.monotonic() + ahead


def asked(place: Place, verb: str, *words: object, **env: str) -> dict[str, Any]:
    """Run the program to its end and return what it printed."""
    return said(place.run(*command(verb, *words), TURNS=turns(place), **env))
