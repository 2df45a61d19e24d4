"""GPU frameworks as pip has them, unpacked into the cache: PyTorch, numba-cuda, cuda-core and JAX.

They are large, so only scripts/fetch downloads them. NVIDIA's libraries that PyTorch's wheel is linked to are
not fetched: see tests/fakeruntime.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from cudapackages import NotHere, cache

# group: the packages, without dependencies
PACKAGES = {
    "torch": (
        *("torch==2.15.0", "filelock", "typing-extensions", "sympy", "mpmath", "networkx", "jinja2"),
        *("markupsafe", "fsspec", "numpy", "nvidia-ml-py"),
    ),
    "numba": (
        *("numba-cuda==0.30.4", "numba==0.68.1", "llvmlite", "numpy", "packaging", "cuda-bindings==13.5.0"),
        *("cuda-core==1.2.2", "cuda-pathfinder", "nvidia-nvvm", "nvidia-nvjitlink"),
    ),
    "jax": (
        *("jax==0.10.2", "jaxlib==0.10.2", "jax-cuda13-plugin==0.10.2", "jax-cuda13-pjrt==0.10.2"),
        *("ml-dtypes", "numpy", "opt-einsum", "scipy"),
    ),
}


def folder(group: str) -> Path:
    """Return where a group is unpacked, for this version of Python."""
    return cache() / f"framework-{PACKAGES[group][0].replace('==', '-')}-{sys.implementation.cache_tag}"


def fetch(group: str) -> None:
    """Download and unpack a group. Its folder in the cache exists only when it is complete.

    Raises: NotHere if pip cannot fetch one of the packages.
    """
    if folder(group).exists():
        return
    building = folder(group).with_name(f"{folder(group).name}.building")
    shutil.rmtree(building, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--no-cache-dir"]
    words = [*pip, "--only-binary=:all:", "--retries=0", "--target", building, *PACKAGES[group]]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    if said.returncode:
        shutil.rmtree(building, ignore_errors=True)
        raise NotHere(f"{group}: pip says: {said.stderr.strip().splitlines()[-1:]}")
    building.rename(folder(group))
