"""Execute a command in a container with the GPUs and the limits of this job.

`python -I -m fgsched.containers.enter --image=IMAGE [--mounts=LIST] [--workdir=DIR] -- COMMAND [ARGUMENT]…`
or, for the script of a job, `… --script FILE [ARGUMENT]…`. The container runtime replaces this process.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from fgsched.containers import runtimes
from fgsched.containers.inside import ContainerFence, Inside, without_nested
from fgsched.domain.errors import FgschedError, Refused
from fgsched.domain.job import is_instance
from fgsched.interactive.agent import execute
from fgsched.launch.fence import seal_of
from fgsched.lifecycle.containers import HEADER_LINES, RUNTIMES, Mount, choose, is_path, parse_mounts
from fgsched.lifecycle.visible import translated

_FAILED = 125  # exit status of container runtimes for a container that was not started
_HEAD = 4096  # bytes of a region, with its seal
_DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")
_SHARED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_DRIVER_FILES = re.compile(r"lib(cuda|cudadebugger|nvidia-[a-z0-9-]+|nvcuvid|nvoptix)\.so\.1")
_INITS = ("/usr/libexec/podman/catatonit", "/usr/bin/catatonit")
_CDI = ("/etc/cdi", "/var/run/cdi")


class Unpacked:
    """The files of an unpacked image on this host."""

    def names(self, path: str) -> Sequence[str]:
        """Return the sorted names in a directory."""
        return sorted(os.listdir(path))

    def link(self, path: str) -> str | None:
        """Return the target of a symbolic link; None: it is none."""
        return os.readlink(path) if os.path.islink(path) else None

    def is_file(self, path: str) -> bool:
        """Tell whether this is a regular file."""
        return os.path.isfile(path) and not os.path.islink(path)

    def is_directory(self, path: str) -> bool:
        """Tell whether this is a directory."""
        return os.path.isdir(path)


def main() -> None:
    """Enter the container of the arguments; exit with 125 if that fails."""
    try:
        execute(_command(sys.argv[1:], os.environ))
    except (FgschedError, OSError) as error:
        _fail(error)


def _fail(error: FgschedError | OSError) -> NoReturn:
    cause = error.cause if isinstance(error, FgschedError) else f"{error.filename}: {error.strerror}"
    remedy = f"\n{error.remedy}" if isinstance(error, FgschedError) and error.remedy else ""
    print(f"fgsched: container: {cause}{remedy}", file=sys.stderr, flush=True)
    sys.exit(_FAILED)


def _command(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the command line of the runtime. Raises Refused or OSError."""
    given, rest, is_script = _parsed(argv)
    image = _located(given["image"])
    runtime = _runtime(image, environ)
    folder = tempfile.mkdtemp(prefix="container-", dir=_tmpdir(environ))
    inside = Inside(
        image=image,
        words=tuple(_script_words(rest, folder) if is_script else rest),
        workdir=given.get("workdir") or os.getcwd(),
        mounts=_mounts(given.get("mounts", ""), environ),
        devices=devices(environ),
        driver=_driver_files(environ) if runtime in ("bwrap", "podman") else (),
        fence=_fence(folder, environ),
        environment=_environment(environ),
        is_terminal=os.isatty(0),
    )
    if runtime == "bwrap":
        return runtimes.bubblewrap(inside, Unpacked())
    if runtime == "podman":
        return runtimes.podman(
            inside, is_root=not os.geteuid(), init=any(map(os.path.exists, _INITS)), has_cdi=_has_cdi()
        )
    if inside.fence is not None:
        _drop_own_binds(inside.fence)
    return runtimes.apptainer(inside, name=runtime)


def _drop_own_binds(fence: ContainerFence) -> None:
    """Remove the job's own mounts from the variables of apptainer and singularity, which would warn."""
    for name in (f"{runtime}_BIND" for runtime in RUNTIMES):
        binds = os.environ.get(name, "").split(",")
        os.environ[name] = ",".join(one for one in binds if not one.startswith((fence.folder, fence.hook)))


def _located(image: str) -> str:
    """Return an image with an absolute path; of an OCI bundle, as Slurm takes it, its root directory."""
    if not is_path(image):
        return image
    path = os.path.abspath(image)
    is_bundle = os.path.isfile(f"{path}/config.json") and os.path.isdir(f"{path}/rootfs")
    return f"{path}/rootfs" if is_bundle else path


def _parsed(argv: Sequence[str]) -> tuple[dict[str, str], list[str], bool]:
    """Return the options, the rest, and whether the rest begins with the script of a job."""
    given: dict[str, str] = {}
    for at, word in enumerate(argv):
        if word in ("--", "--script"):
            return given, list(argv[at + 1 :]), word == "--script"
        name, _, value = word.removeprefix("--").partition("=")
        given[name] = value
    raise Refused("no command", "")


def _runtime(image: str, environ: Mapping[str, str]) -> str:
    """Return the runtime for an image. Raises Refused."""
    is_directory = os.path.isdir(image)
    if is_path(image) and not os.path.exists(image):
        raise Refused(
            f"there is no image {image}", "Give a directory, a .sif file, or a name such as ubuntu:24.04."
        )
    if is_directory and not os.path.isdir(f"{image}/etc") and not os.path.isdir(f"{image}/bin"):
        raise Refused(f"{image} is not an unpacked root directory", "It has neither etc nor bin.")
    asked = environ.get("FG_CONTAINER_RUNTIME", "")
    return choose(
        image, is_directory=is_directory, asked=asked, has=lambda name: shutil.which(name) is not None
    )


def _script_words(argv: Sequence[str], folder: str) -> list[str]:
    """Write the script of the job without the lines that enter the container; return its command."""
    text = Path(argv[0]).read_bytes().split(b"\n", HEADER_LINES)[HEADER_LINES]
    script = f"{folder}/script"
    Path(script).write_bytes(text)
    os.chmod(script, 0o700)
    line = text.split(b"\n", 1)[0].removeprefix(b"#!").strip().decode("utf-8", "surrogateescape")
    return [*line.split(None, 1), script, *argv[1:]]


def _mounts(asked: str, environ: Mapping[str, str]) -> tuple[Mount, ...]:
    """Return the directories that a job has on the host (home, work, temporary), and the user's mounts."""
    usual = ["/tmp", environ.get("HOME", ""), os.getcwd(), _tmpdir(environ)]
    found = [Mount(path, path) for path in usual if path not in ("", "/") and os.path.isdir(path)]
    return without_nested(found) + (parse_mounts(asked) if asked else ())


# -- GPUs ----------------------------------------------------------------------------------------------


def devices(environ: Mapping[str, str], about: Path = _DRIVER_GPUS, folder: str = "/dev") -> tuple[str, ...]:
    """Return the device nodes of the job's GPUs, and the nodes that all programs of the driver need.

    If the driver does not list the node of a GPU, as of a MIG instance, the nodes of all GPUs are returned:
    those of other jobs stay closed where the job's namespace closes them.
    """
    uuids = [uuid for uuid in environ.get("FG_GPU_UUIDS", "").split(",") if uuid]
    if not uuids:
        return ()
    minors = _minors(about)
    if all(uuid in minors for uuid in uuids):
        own = [f"{folder}/nvidia{minors[uuid]}" for uuid in uuids]
    else:
        names = sorted(os.listdir(folder))
        own = [f"{folder}/{name}" for name in names if re.fullmatch(r"nvidia[0-9]+", name)]
        own += _instance_nodes(folder) if any(map(is_instance, uuids)) else []
    shared = [f"{folder}{path.removeprefix('/dev')}" for path in _SHARED_NODES]
    return tuple(node for node in [*own, *shared] if os.path.exists(node))


def _instance_nodes(folder: str) -> list[str]:
    """Return the device nodes of MIG instances."""
    return sorted(map(str, Path(folder, "nvidia-caps").glob("nvidia-cap[0-9]*")))


def _minors(about: Path) -> dict[str, str]:
    """Return {UUID: number of the device node}."""
    found = {}
    for file in about.glob("*/information"):
        text = file.read_text(errors="replace")
        uuid, minor = (
            re.search(r"^GPU UUID:\s*(\S+)$", text, re.M),
            re.search(r"^Device Minor:\s*(\d+)$", text, re.M),
        )
        if uuid and minor:
            found[uuid[1]] = minor[1]
    return found


def _tmpdir(environ: Mapping[str, str]) -> str:
    """Return the directory for temporary files; a job may have unset the variable."""
    return environ.get("TMPDIR") or "/tmp"


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the image must not override."""
    uuids = environ.get("FG_GPU_UUIDS", "")
    found = {"NVIDIA_VISIBLE_DEVICES": uuids or "void", "TMPDIR": _tmpdir(environ)}
    link = f"{environ['FG_JOB_DIR']}/libfgshim.so"
    hooked = os.path.exists(link)
    found |= {"CUDA_VISIBLE_DEVICES": _visible(environ, hooked=hooked), "HOME": environ.get("HOME", "/")}
    return found | ({"LD_PRELOAD": link} if hooked else {})


def _visible(environ: Mapping[str, str], *, hooked: bool) -> str:
    """Return CUDA_VISIBLE_DEVICES of the container.

    Without the hook these are UUIDs: a number depends on the device nodes that the container has.
    """
    words = environ.get("CUDA_VISIBLE_DEVICES", "")
    return words if hooked else translated(words, environ, "FG_GPU_UUIDS")


def _driver_files(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the libraries of the GPU driver that the host's dynamic linker finds, and nvidia-smi."""
    if not environ.get("FG_GPU_UUIDS"):
        return ()
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    rows = (line.split() for line in known.splitlines() if "x86-64" in line and " => " in line)
    found = {row[0]: row[-1] for row in rows if _DRIVER_FILES.fullmatch(row[0])}
    program = shutil.which("nvidia-smi")
    return (*found.values(), *([program] if program and found else []))


def _has_cdi() -> bool:
    """Tell whether the host describes its GPUs for containers."""
    return any(any(Path(folder).glob("nvidia*")) for folder in _CDI)


# -- the fence -----------------------------------------------------------------------------------------


def _fence(folder: str, environ: Mapping[str, str]) -> ContainerFence | None:
    """Return the files of the job's limits; None if the job has no hook."""
    place = environ["FG_JOB_DIR"]
    link, region = f"{place}/libfgshim.so", f"{place}/region"
    if not os.path.exists(link):
        return None
    hook = os.path.realpath(link)
    preload = f"{folder}/preload"
    Path(preload).write_text(f"{link}\n")
    if not os.path.exists(region):
        return ContainerFence(folder=place, link=link, hook=hook, preload=preload)
    with open(region, "rb") as file:
        seal = seal_of(file.read(_HEAD))
    job, _, attempt = os.path.basename(place).partition(".")
    return ContainerFence(
        folder=place,
        link=link,
        hook=hook,
        region=region,
        prover=os.path.join(os.path.dirname(hook), "fgprove"),
        proof=(link, job, attempt, f"{seal:x}"),
        preload=preload,
    )


if __name__ == "__main__":
    main()
