"""CUDA's own packages, to compare us with the real thing: fetched once, kept in a cache, never in here."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

PACKAGES = {12: "nvidia-cuda-runtime-cu12==12.9.79", 13: "nvidia-cuda-runtime==13.5.37"}
TYPEDEF = re.compile(r"\*PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)")


class NotHere(Exception):
    """Neither a cache has the package nor an index gives it; the message says why."""


@dataclass(frozen=True, slots=True, order=True)
class Abi:
    """One ABI of a driver function, as the headers tell of it."""

    name: str
    version: int
    twin: str = ""


@dataclass(frozen=True, slots=True)
class CudaRuntime:
    """The unpacked package of one major version."""

    major: int
    folder: Path

    @property
    def library(self) -> Path:
        return self._find(f"libcudart.so.{self.major}")

    @property
    def headers(self) -> Path:
        return self._find("cuda.h").parent

    def abis(self) -> set[Abi]:
        """Every typedef of cudaTypedefs.h and of the headers beside it, for OpenGL and the like."""
        text = "".join(path.read_text() for path in self.folder.rglob("cuda*Typedefs.h"))
        return {Abi(name, int(version), twin) for name, version, twin in TYPEDEF.findall(text)}

    def words(self) -> set[str]:
        """Return the functions that the headers name, with the twins that macros make of them."""
        headers = ("cuda.h", "cudaGL.h", "cudaVDPAU.h")
        text = "".join(path.read_text() for name in headers for path in self.folder.rglob(name))
        twins = re.findall(r"__CUDA_API_PT(SZ|DS)\((cu\w+)\)", text)
        return {*re.findall(r"\bcu[A-Z]\w+", text), *(f"{name}_pt{kind.lower()}" for kind, name in twins)}

    def _find(self, name: str) -> Path:
        return next(self.folder.rglob(name))


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "fgsched-tests")


def runtime(major: int) -> CudaRuntime:
    """The package of CUDA 12 or 13, out of the cache or from the index that pip knows."""
    folder = cache() / PACKAGES[major].replace("==", "-")
    if not folder.exists():
        _fetch(PACKAGES[major], folder)
    return CudaRuntime(major, folder)


def _fetch(package: str, folder: Path) -> None:
    """Download and unpack; the folder is there when all of it is."""
    building = folder.with_name(f"{folder.name}.{os.getpid()}")
    building.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    words = [*pip, "--retries=0", "--timeout=20", "--dest", building, package]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    wheels = list(building.glob("*.whl"))
    if not wheels:
        shutil.rmtree(building)
        raise NotHere(f"{package} is not in the cache, and pip says: {done.stderr.strip().splitlines()[-1:]}")
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(building)
    wheels[0].unlink()
    try:
        building.rename(folder)
    except OSError:  # another run of the tests was quicker
        shutil.rmtree(building)
