"""NVIDIA's nvidia-smi and libnvidia-ml of several driver branches, from Debian's archive.

Fetched once with apt into a cache, without root and without a change of the host's apt; never stored here.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cudapackages import NotHere, cache

RELEASES = {"535": "bookworm", "550": "trixie", "555": "experimental"}  # branch: Debian release that has it
PACKAGES = ("nvidia-smi", "libnvidia-ml1")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True, slots=True)
class DriverTools:
    """The unpacked packages of one branch."""

    branch: str
    folder: Path

    @property
    def smi(self) -> Path:
        return next(path for path in self.folder.rglob("nvidia-smi") if path.parent.name == "current")

    @property
    def library(self) -> Path:
        return next(path for path in self.folder.rglob("libnvidia-ml.so.*.*") if not path.is_symlink())

    @property
    def version(self) -> str:
        """The version that the driver reports, such as 535.261.03."""
        return self.library.name.removeprefix("libnvidia-ml.so.")


def tools(branch: str) -> DriverTools:
    """Return the tools of a branch from the cache, or fetch them.

    Raises: NotHere if they are not in the cache and apt cannot fetch them.
    """
    folder = cache() / f"nvidia-driver-{branch}"
    if not folder.exists():
        _fetch(branch, folder)
    return DriverTools(branch, folder)


def _fetch(branch: str, folder: Path) -> None:
    """Download and unpack; `folder` exists only when it is complete."""
    if not KEYRING.exists() or not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise NotHere("NVIDIA's driver packages need apt and Debian's keyring, which are not here")
    building = folder.with_name(f"{folder.name}.{os.getpid()}")
    building.mkdir(parents=True)
    try:
        env = _apt(building, RELEASES[branch])
        for words in (["update"], ["download", *(f"{name}={branch}.*" for name in PACKAGES)]):
            done = subprocess.run(
                ["apt-get", "-q", *words], cwd=building, env=env, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise NotHere(f"apt-get {words[0]}: {done.stderr.strip().splitlines()[-1:]}")
        for package in building.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, building / "root"], check=True)
        (building / "root").rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _apt(folder: Path, release: str) -> dict[str, str]:
    """An environment in which apt uses directories of its own."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    source = f"deb [signed-by={KEYRING}] http://deb.debian.org/debian {release} non-free\n"
    (folder / "sources.list").write_text(source)
    (folder / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{folder}/sources.list";\nDir::Etc::sourceparts "-";\n'
        f'Dir::State "{folder}/state";\nDir::State::status "/dev/null";\nDir::Cache "{folder}/cache";\n'
        'Acquire::Retries "0";\nAcquire::http::Timeout "20";\n'
    )
    return {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}
