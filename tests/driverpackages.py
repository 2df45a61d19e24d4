"""NVIDIA's libcuda, libnvidia-ml and nvidia-smi of many driver branches.

Those that Debian's non-free component has are fetched once into a cache, with apt, from the mirror that this
host is configured for. This needs no root and does not change the host's apt. Other branches are those of the
driver that is installed on the host. Nothing is installed, and nothing is stored in the repository.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from cudapackages import NotHere, cache

# branch: the flavour in the names of its packages
BRANCHES = {
    "340": "legacy-340xx",
    "390": "legacy-390xx",
    "418": "tesla-418",
    "450": "tesla-450",
    "460": "tesla-460",
    "470": "tesla-470",
    "525": "tesla",
    "535": "",
    "550": "",
    "555": "",
}
INSTALLED = ("580",)  # branches that Debian does not have
MPS_BRANCH = "535"
LOADERS = ("390", "418")  # their libcuda needs a library of another package
SUITES = ("bookworm", "trixie", "sid", "experimental")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
COMMANDS = ("apt-get", "dpkg-deb")
USUAL_FOLDERS = ("/usr/local/nvidia/lib64", f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64")


@dataclass(frozen=True, slots=True)
class Driver:
    """NVIDIA's files of one branch."""

    branch: str
    smi: Path
    nvml: Path
    cuda: Path
    libraries: tuple[Path, ...]  # all shared libraries, without the links to them

    @property
    def version(self) -> str:
        """The version that the driver reports, such as 535.261.03."""
        return self.cuda.name.removeprefix("libcuda.so.")


def driver(branch: str) -> Driver:
    """Return a branch from the cache, and fetch it if it is missing there; or the driver of the host.

    Raises: NotHere if it is not in the cache and apt cannot fetch it, or if the host has no such driver.
    """
    if branch in INSTALLED:
        return installed(branch)
    folder = _folder(branch)
    if not folder.exists():
        with FileLock(cache() / "drivers.lock"):
            fetch([branch])
    return _unpacked(branch, folder)


def installed(branch: str) -> Driver:
    """Return the driver that is installed on the host, if it is of this branch.

    Raises: NotHere if nvidia-smi is missing or of another branch, or if a library of its version is missing.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise NotHere(f"branch {branch} is not in Debian, and no nvidia-smi is in PATH")
    version = _version_of(program)
    if version.partition(".")[0] != branch:
        raise NotHere(f"branch {branch} is not in Debian, and {program} is of version {version or 'unknown'}")
    nvml, cuda = (_library(f"lib{name}.so.{version}") for name in ("nvidia-ml", "cuda"))
    return Driver(branch, Path(program).resolve(), nvml, cuda, (nvml, cuda))


def _version_of(program: str) -> str:
    """Return the version in the help of nvidia-smi, which needs neither a GPU nor a library."""
    said = subprocess.run([program, "-h"], capture_output=True, text=True, check=False).stdout
    found = re.search(r" v(\d+(?:\.\d+)+)$", said, re.MULTILINE)
    return found[1] if found else ""


def _library(name: str) -> Path:
    """Find a library by the name of its file, with its version."""
    for folder in (*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_linker_folders(), *USUAL_FOLDERS):
        if folder and (path := Path(folder, name)).is_file():
            return path.resolve()
    raise NotHere(f"{name} of the driver that is installed here was not found")


def _linker_folders() -> list[str]:
    """Return the folders in which the dynamic linker finds NVIDIA's libraries."""
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    return re.findall(r"lib(?:nvidia-ml|cuda)\.so\.1 .*=> (.+)/", known)


def _unpacked(branch: str, folder: Path) -> Driver:
    """Find the files of a branch in its packages, without the links to them."""

    def files(pattern: str) -> list[Path]:
        return [path for path in folder.rglob(pattern) if path.is_file() and not path.is_symlink()]

    def file(pattern: str) -> Path:
        return next(path for path in files(pattern) if "nvidia" in path.parent.parent.name)

    libraries = tuple(files("lib*.so.*.*"))
    return Driver(branch, file("nvidia-smi"), file("libnvidia-ml.so.*.*"), file("libcuda.so.*.*"), libraries)


def mps_control() -> Path:
    """Return NVIDIA's control program of MPS, from the cache; fetch it if it is missing there.

    Raises: NotHere if it is not in the cache and apt cannot fetch it.
    """
    folder = cache() / f"mps-{MPS_BRANCH}"
    if not folder.exists():
        with FileLock(cache() / "drivers.lock"):
            _fetch_mps(folder)
    return folder / "usr/bin/nvidia-cuda-mps-control"


def _fetch_mps(folder: Path) -> None:
    if folder.exists():
        return
    building = cache() / f"mps.{os.getpid()}"
    building.mkdir(parents=True)
    try:
        env = _apt_environment(building)
        _apt(["update"], building, env)
        _apt(["download", f"nvidia-cuda-mps={MPS_BRANCH}.*"], building, env)
        for package in building.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, building / "root"], check=True)
        (building / "root").rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def fetch(branches: Iterable[str]) -> None:
    """Fetch the branches that are not in the cache.

    Raises: NotHere if apt cannot fetch one of them; the earlier ones are then in the cache.
    """
    missing = [branch for branch in branches if not _folder(branch).exists()]
    if not missing:
        return
    building = cache() / f"drivers.{os.getpid()}"
    building.mkdir(parents=True)
    try:
        env = _apt_environment(building)
        _apt(["update"], building, env)
        for branch in missing:
            _fetch(branch, building, env)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _folder(branch: str) -> Path:
    return cache() / f"driver-{branch}"


def packages(branch: str) -> list[str]:
    """Return the names of the packages of a branch."""
    flavour = BRANCHES[branch]
    if not flavour:
        return ["libcuda1", "libnvidia-ml1", "nvidia-smi"]
    loader = [f"libnvidia-{flavour}-fatbinaryloader"] if branch in LOADERS else []
    return [f"libnvidia-{flavour}-cuda1", f"libnvidia-{flavour}-ml1", f"nvidia-{flavour}-smi", *loader]


def _fetch(branch: str, building: Path, env: dict[str, str]) -> None:
    """Download and unpack one branch. Its folder in the cache exists only when it is complete."""
    archives, root = building / branch, building / f"{branch}.root"
    archives.mkdir()
    _apt(["download", *(f"{name}={branch}.*" for name in packages(branch))], archives, env)
    for package in archives.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    root.rename(_folder(branch))


def _apt(words: list[str], folder: Path, env: dict[str, str]) -> None:
    said = subprocess.run(
        ["apt-get", "-q", *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    if said.returncode:
        raise NotHere(f"apt-get {words[0]}: {said.stderr.strip().splitlines()[-1:]}")


def _mirror() -> str:
    """Return the address of the mirror from which this host gets its own release of Debian."""
    if not KEYRING.exists() or not all(map(shutil.which, COMMANDS)):
        raise NotHere("NVIDIA's driver packages need apt and Debian's keyring, which are not here")
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    words = ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    for release, address in (line.split() for line in said.splitlines()):
        if release == codename:
            return address
    raise NotHere("apt on this host has no mirror of Debian from which to fetch NVIDIA's driver packages")


def _apt_environment(folder: Path) -> dict[str, str]:
    """Return an environment in which apt uses directories of its own and the non-free component."""
    mirror = _mirror()
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    sources = [f"deb [signed-by={KEYRING}] {mirror} {suite} non-free\n" for suite in SUITES]
    (folder / "sources.list").write_text("".join(sources))
    (folder / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{folder}/sources.list";\nDir::Etc::sourceparts "-";\n'
        f'Dir::State "{folder}/state";\nDir::State::status "/dev/null";\nDir::Cache "{folder}/cache";\n'
        'Acquire::Languages "none";\nAcquire::Retries "0";\nAcquire::http::Timeout "20";\n'
    )
    return {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}
