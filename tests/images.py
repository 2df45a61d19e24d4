"""Root directories for containers, made from the host's files, and the runtimes that run here."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from awaiting import PATIENCE

_PROGRAMS = ("sh", "cat", "env", "grep", "id", "ls", "setsid", "sleep")
_PODMAN = """#!/bin/sh
# A storage of its own. crun refuses hosts with both versions of cgroups, so one of them is hidden.
exec unshare --mount sh -c 'umount -R /sys/fs/cgroup/unified 2>/dev/null
exec {podman} --storage-driver vfs --root {folder}/store --runroot {folder}/run "$@"' podman "$@"
"""
_ULIMITS = '[containers]\ndefault_ulimits = ["nofile=1000:1000", "nproc=1000:1000"]\n'


def unpacked(folder: Path) -> Path:
    """Make a root directory with a shell and a few programs; etc/image marks it."""
    for name in _PROGRAMS:
        program = shutil.which(name)
        assert program, name
        _copy(Path(program), folder / "bin" / name)
        said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+)", said):
            _copy(Path(library), folder / library[1:])
    for name in ("etc", "tmp", "var/tmp", "proc", "dev", "sys", "run", "root"):
        (folder / name).mkdir(parents=True)
    (folder / "etc/image").write_text("the image\n")
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    return folder


def _copy(source: Path, target: Path) -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


class Runtime:
    """A container runtime that runs here, and the image that it takes."""

    def __init__(self, name: str, image: str, **variables: str) -> None:
        self.name, self.image = name, image
        self.variables = {"FG_CONTAINER_RUNTIME": name, **variables}


def bubblewrap(folder: Path) -> Runtime:
    """Raises OSError or CalledProcessError if bubblewrap does not run here."""
    image = unpacked(folder / "image")
    _try("bwrap", "--ro-bind", "/", "/", "--dev-bind", "/proc", "/proc", "true")
    return Runtime("bwrap", str(image))


def apptainer(folder: Path) -> Runtime:
    """Raises OSError or CalledProcessError if apptainer does not run here."""
    image = unpacked(folder / "image")
    _try("apptainer", "--quiet", "exec", "--userns", str(image), "/bin/sh", "-c", "true")
    return Runtime("apptainer", str(image), APPTAINER_USERNS="1")


def sif(folder: Path) -> Runtime:
    """Raises OSError or CalledProcessError if apptainer does not build and run an image file here."""
    image = folder / "image.sif"
    _try("apptainer", "--quiet", "build", str(image), str(unpacked(folder / "image")))
    _try("apptainer", "--quiet", "exec", "--userns", str(image), "/bin/sh", "-c", "true")
    return Runtime("apptainer", str(image), APPTAINER_USERNS="1")


def podman(folder: Path) -> Runtime:
    """Raises OSError or CalledProcessError if podman does not run here."""
    real = shutil.which("podman")
    if not real or os.geteuid():
        raise OSError("podman is tried by root only" if real else "podman is not installed")
    image = unpacked(folder / "image")
    shim, settings = folder / "bin" / "podman", folder / "containers.conf"
    shim.parent.mkdir()
    shim.write_text(_PODMAN.format(podman=real, folder=folder))
    shim.chmod(0o755)
    settings.write_text(_ULIMITS)
    variables = {"PATH": f"{shim.parent}:{os.environ['PATH']}", "CONTAINERS_CONF": str(settings)}
    archive = subprocess.run(["tar", "-C", image, "-c", "."], capture_output=True, check=True).stdout
    words = [shim, "import", "-", "fgsched-test"]
    subprocess.run(words, input=archive, env=os.environ | variables, capture_output=True, check=True)
    run = (
        "run",
        "--rm",
        "--cgroups=disabled",
        "--network=host",
        "localhost/fgsched-test",
        "/bin/sh",
        "-c",
        "true",
    )
    _try(str(shim), *run, env=os.environ | variables)
    return Runtime("podman", "localhost/fgsched-test", **variables)


def _try(*words: str, **more: object) -> None:
    subprocess.run(words, capture_output=True, check=True, timeout=PATIENCE, **more)


@cache
def static_shell() -> str:
    """Return the path of a statically linked busybox; "" if there is none."""
    found = shutil.which("busybox")
    said = subprocess.run(["ldd", found], capture_output=True, text=True, check=False) if found else None
    return found if found and said and said.returncode else ""
