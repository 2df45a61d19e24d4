"""Execute a command in a container with the GPUs and the limits of this job.

`python -I -m fgsched.interactive.containers --image=IMAGE [--mounts=LIST] [--workdir=DIR] -- COMMAND …`
or, for the script of a job, `… --script FILE [ARGUMENT]…`. The container runtime replaces this process.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from fgsched.domain.errors import FgschedError, Refused
from fgsched.domain.vendor import VendorFacts
from fgsched.gpus import vendors
from fgsched.interactive import runtimes
from fgsched.interactive.agent import execute
from fgsched.interactive.runtimes import ContainerFence, Inside, without_nested
from fgsched.launch.fence import seal_of
from fgsched.lifecycle.containers import HEADER_LINES, RUNTIMES, Mount, choose, is_path, parse_mounts
from fgsched.lifecycle.jobvariables import translated

_FAILED = 125  # exit status of container runtimes for a container that was not started
_HEAD = 4096  # bytes of a region, with its seal
_INITS = ("/usr/libexec/podman/catatonit", "/usr/bin/catatonit")


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
    values, program, is_script = _parsed(argv)
    image = _located(values["image"])
    runtime = _runtime(image, environ)
    vendor, uuids = vendors.of_job(environ), _uuids(environ)
    folder = tempfile.mkdtemp(prefix="container-", dir=_tmpdir(environ))
    inside = Inside(
        image=image,
        words=tuple(_script_words(program, folder) if is_script else program),
        workdir=values.get("workdir") or os.getcwd(),
        mounts=_mounts(values.get("mounts", ""), environ),
        devices=vendor.container_nodes(uuids) if uuids else (),
        driver=vendor.container_files() if uuids and runtime in ("bwrap", "podman") else (),
        fence=_fence(folder, environ),
        gpu_option=vendor.facts.apptainer,
        environment=_environment(environ, vendor.facts),
        gpus=tuple(f"{vendor.facts.cdi}={uuid}" for uuid in uuids if vendor.facts.cdi),
        is_terminal=os.isatty(0),
    )
    if runtime == "bwrap":
        return runtimes.bubblewrap(inside, Unpacked())
    if runtime == "podman":
        return runtimes.podman(
            inside, is_root=not os.geteuid(), init=any(map(os.path.exists, _INITS)), has_cdi=vendor.has_cdi()
        )
    if inside.fence is not None:
        _drop_own_binds(inside.fence)
    return runtimes.apptainer(inside, name=runtime)


def _drop_own_binds(fence: ContainerFence) -> None:
    """Remove the job's own mounts from the variables of apptainer and singularity, which would warn."""
    for name in (f"{runtime}_BIND" for runtime in RUNTIMES):
        binds = os.environ.get(name, "").split(",")
        os.environ[name] = ",".join(bind for bind in binds if not bind.startswith((fence.folder, fence.hook)))


def _located(image: str) -> str:
    """Return an image with an absolute path; of an OCI bundle, as Slurm takes it, its root directory."""
    if not is_path(image):
        return image
    path = os.path.abspath(image)
    is_bundle = os.path.isfile(f"{path}/config.json") and os.path.isdir(f"{path}/rootfs")
    return f"{path}/rootfs" if is_bundle else path


def _parsed(argv: Sequence[str]) -> tuple[dict[str, str], list[str], bool]:
    """Return the options, the rest, and whether the rest begins with the script of a job."""
    values: dict[str, str] = {}
    for at, word in enumerate(argv):
        if word in ("--", "--script"):
            return values, list(argv[at + 1 :]), word == "--script"
        name, _, value = word.removeprefix("--").partition("=")
        values[name] = value
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
    runtime = environ.get("FG_CONTAINER_RUNTIME", "")
    return choose(
        image, is_directory=is_directory, asked=runtime, has=lambda name: shutil.which(name) is not None
    )


def _script_words(argv: Sequence[str], folder: str) -> list[str]:
    """Write the script of the job without the lines that enter the container; return its command."""
    text = Path(argv[0]).read_bytes().split(b"\n", HEADER_LINES)[HEADER_LINES]
    script = f"{folder}/script"
    Path(script).write_bytes(text)
    os.chmod(script, 0o700)
    line = text.split(b"\n", 1)[0].removeprefix(b"#!").strip().decode("utf-8", "surrogateescape")
    return [*line.split(None, 1), script, *argv[1:]]


def _mounts(mounts_text: str, environ: Mapping[str, str]) -> tuple[Mount, ...]:
    """Return the directories that a job has on the host (home, work, temporary), and the user's mounts."""
    usual = ["/tmp", environ.get("HOME", ""), os.getcwd(), _tmpdir(environ)]
    mounts = [Mount(path, path) for path in usual if path not in ("", "/") and os.path.isdir(path)]
    return without_nested(mounts) + (parse_mounts(mounts_text) if mounts_text else ())


# -- GPUs ----------------------------------------------------------------------------------------------


def _tmpdir(environ: Mapping[str, str]) -> str:
    """Return the directory for temporary files; a job may have unset the variable."""
    return environ.get("TMPDIR") or "/tmp"


def _uuids(environ: Mapping[str, str]) -> list[str]:
    return [uuid for uuid in environ.get("FG_GPU_UUIDS", "").split(",") if uuid]


def _environment(environ: Mapping[str, str], vendor: VendorFacts) -> dict[str, str]:
    """Return the variables that the image must not override."""
    environment = {"TMPDIR": _tmpdir(environ)}
    if vendor.uuids:
        environment[vendor.uuids] = environ.get("FG_GPU_UUIDS") or vendor.no_uuids
    link = f"{environ['FG_JOB_DIR']}/libfgshim.so"
    hooked = os.path.exists(link)
    words = environ.get(vendor.selection, "")
    environment |= {
        vendor.selection: _visible(words, environ, hooked=hooked),
        "HOME": environ.get("HOME", "/"),
    }
    return environment | ({"LD_PRELOAD": link} if hooked else {})


def _visible(words: str, environ: Mapping[str, str], *, hooked: bool) -> str:
    """Return the words that select the GPUs in the container, from those of the job.

    Without the hook these are UUIDs: a number depends on the device nodes that the container has.
    """
    return words if hooked else translated(words, environ, "FG_GPU_UUIDS")


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
