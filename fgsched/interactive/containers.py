"""Execute a command in a container with the GPUs and the limits of this job.

`python -I -m fgsched.interactive.containers --image=IMAGE [--mounts=LIST] [--workdir=DIR] -- COMMAND …`
or, for the script of a job, `… --script FILE [ARGUMENT]…`. The container runtime replaces this process.
"""

import os
import os.path
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from msgspec import Struct, field

from fgsched.domain.errors import FgschedError, Refused
from fgsched.domain.text import word_list
from fgsched.domain.vendor import VendorFacts
from fgsched.gpus import vendors
from fgsched.interactive.agent import execute
from fgsched.launch.fence import stored_checksum
from fgsched.lifecycle.containers import HEADER_LINES, RUNTIMES, Mount, choose, is_path, parse_mounts
from fgsched.lifecycle.jobvariables import translated

# -- the command lines of the runtimes -----------------------------------------------------------------


DRIVER = "/run/fgsched-driver"  # directory of the libraries of the GPU driver in a container
_CHECK = """\
prove=$1 driver=$2; shift 2
[ -z "$driver" ] || export LD_LIBRARY_PATH="$driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fail() { echo "fgsched: its enforcement does not work in this container: $1" >&2; exit 125; }
"$prove" "$1" "$2" "$3" "$4" </dev/null >/dev/null 2>&1
case $? in
90) ;;
91) fail 'the hook is not loaded' ;;
92|93) fail 'another driver library is found first' ;;
94|95) fail 'the region of the job is missing' ;;
*) loaded=  # it needs glibc 2.34, the hook 2.17
    while read -r line; do
        case $line in *libfgshim.so*) loaded=yes ;; *ld-musl*) loaded=; break ;; esac
    done </proc/$$/maps
    [ "$loaded" ] || echo 'fgsched: warning: the hook does not work in this image, which lacks glibc 2.17' \\
        'or newer: the watchdog ends the job if it uses GPU memory' >&2 ;;
esac
shift 4
"""
_OWN = frozenset({"/proc", "/dev", "/sys", "/run", "/tmp"})  # directories of the host, not of an image
# Name of the job's directory below the one with the files of its fence: the socket of turns comes late.
_OF_THE_HOST_AT = "host"
_OF_THE_HOST = ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/resolv.conf", "/etc/localtime")


_EXECUTE, _RUN = 'exec "$@"\n', '"$@"\n'  # process 1 of a pid namespace ignores signals: it only waits


class ContainerFence(Struct, frozen=True, kw_only=True):
    """The files by which a job's limits hold in its container."""

    folder: str  # the directory of the job
    link: str  # the hook's path there, by which it finds the region
    hook: str  # the file of the hook
    region: str = ""  # "": a job without GPUs
    prover: str = ""  # program that checks the enforcement; "": nothing to check
    proof: tuple[str, ...] = ()  # its arguments: link, job, attempt, seal
    preload: str = ""  # a file for /etc/ld.so.preload

    @property
    def prover_link(self) -> str:
        """The path of the prover in a container."""
        return f"{self.folder}/fgprove"


class Inside(Struct, frozen=True, kw_only=True):
    """A container, whatever runs it."""

    image: str
    words: tuple[str, ...]  # of the command
    workdir: str
    mounts: tuple[Mount, ...]
    devices: tuple[str, ...] = ()  # nodes of the job's GPUs and of the driver
    gpus: tuple[str, ...] = ()  # their names in the host's description for containers
    gpu_option: str = ""  # of apptainer and singularity, for the vendor of the GPUs
    driver: tuple[str, ...] = ()  # libraries and programs of the driver
    fence: ContainerFence | None = None
    environment: Mapping[str, str] = field(default_factory=dict)  # variables that the image must not override
    is_terminal: bool = False

    def command(self, *, driver: str = "", is_first: bool = False) -> tuple[str, ...]:
        """Return the words that check the enforcement, then run the command.

        Args:
            driver: directory of the driver's libraries in the container; "": the runtime shows them itself.
            is_first: the words run as process 1 of a pid namespace.
        """
        fence = self.fence
        if fence is None or not fence.prover:
            return self.words
        text = _CHECK + (_RUN if is_first else _EXECUTE)
        return "/bin/sh", "-c", text, "fgsched", fence.prover_link, driver, *fence.proof, *self.words


def without_nested(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """Return the mounts whose files are not shown by an earlier mount at the same path."""
    shown_mounts: list[Mount] = []
    for mount in mounts:
        if not any(_shows(other, mount) for other in shown_mounts):
            shown_mounts.append(mount)
    return tuple(shown_mounts)


def _shows(outer: Mount, inner: Mount) -> bool:
    is_plain = outer.source == outer.target and inner.source == inner.target
    is_below = inner.source == outer.source or inner.source.startswith(f"{outer.source.rstrip('/')}/")
    return is_plain and is_below and outer.is_writable >= inner.is_writable


class ImageTree(Protocol):
    """The files of an unpacked image."""

    def names(self, path: str) -> Sequence[str]:
        """Return the sorted names in a directory."""

    def link(self, path: str) -> str | None:
        """Return the target of a symbolic link; None: it is none."""

    def is_file(self, path: str) -> bool:
        """Tell whether this is a regular file."""

    def is_directory(self, path: str) -> bool:
        """Tell whether this is a directory."""


# -- bubblewrap ----------------------------------------------------------------------------------------


def bubblewrap(inside: Inside, tree: ImageTree) -> list[str]:
    """Return the command line of bubblewrap over an unpacked root directory, whose files are read-only."""
    mounts = [*_files_of_the_host(inside.image, tree), *inside.mounts, *_preload(inside)]
    return [
        "bwrap",
        *_root(inside.image, "", [mount.target for mount in mounts], tree),
        *word_list("--dev-bind /proc /proc --ro-bind /sys /sys --dev /dev --dev-bind /dev/shm /dev/shm"),
        *word_list("--tmpfs /run"),
        *(word for node in inside.devices for word in ("--dev-bind", node, node)),
        *(word for mount in mounts for word in _bound(mount)),
        *_fenced(inside),
        *(word for path in inside.driver for word in ("--ro-bind", path, f"{DRIVER}/{_base(path)}")),
        *(word for name, value in inside.environment.items() for word in ("--setenv", name, value)),
        "--chdir",
        inside.workdir,
        "--",
        *inside.command(driver=DRIVER if inside.driver else ""),
    ]


def _root(image: str, above: str, targets: Sequence[str], tree: ImageTree) -> Iterator[str]:
    """Yield the options that show an image: each entry of its root is bound.

    A directory of the image that lacks a mount point is made, and its entries are bound in it.
    """
    for name in tree.names(f"{image}{above}"):
        path = f"{above}/{name}"
        target = tree.link(f"{image}{path}")
        if path in _OWN:
            continue
        if target is not None:
            yield from ("--symlink", target, path)
        elif tree.is_directory(f"{image}{path}") and _lacks_one(image, path, targets, tree):
            yield from ("--dir", path)
            yield from _root(image, path, targets, tree)
        else:
            yield from ("--ro-bind", f"{image}{path}", path)


def _lacks_one(image: str, path: str, targets: Sequence[str], tree: ImageTree) -> bool:
    below = [target for target in targets if target.startswith(f"{path}/")]
    return any(not (tree.is_file(f"{image}{one}") or tree.is_directory(f"{image}{one}")) for one in below)


def _files_of_the_host(image: str, tree: ImageTree) -> list[Mount]:
    """Return the host's files about users and names, where the image has such a file."""
    return [Mount(path, path, False) for path in _OF_THE_HOST if tree.is_file(image + path)]


def _preload(inside: Inside) -> list[Mount]:
    fence = inside.fence
    return [Mount(fence.preload, "/etc/ld.so.preload", False)] if fence and fence.preload else []


def _bound(mount: Mount) -> tuple[str, str, str]:
    return "--bind" if mount.is_writable else "--ro-bind", mount.source, mount.target


def _fenced(inside: Inside) -> list[str]:
    """Return the options that show the directory of the job with the files of its fence alone."""
    fence = inside.fence
    if fence is None:
        return []
    options = ["--tmpfs", fence.folder, "--ro-bind", fence.hook, fence.link]
    options += ["--bind", fence.folder, f"{fence.folder}/{_OF_THE_HOST_AT}"]
    options += ["--bind", fence.region, fence.region] if fence.region else []
    return options + (["--ro-bind", fence.prover, fence.prover_link] if fence.prover else [])


def _base(path: str) -> str:
    return os.path.basename(path)


# -- podman --------------------------------------------------------------------------------------------


def podman(inside: Inside, *, is_root: bool, init: bool, has_cdi: bool) -> list[str]:
    """Return the command line of podman. The container stays in the cgroup of the job.

    Args:
        is_root: root starts it; other users keep their uid in the container.
        init: there is an init for containers, which passes signals on.
        has_cdi: the host describes its GPUs for containers, with the libraries of the driver (CDI).
    """
    by_name = has_cdi and bool(inside.devices)
    driver = () if by_name else inside.driver
    shown = [
        *inside.mounts,
        *_preload(inside),
        *(Mount(path, f"{DRIVER}/{_base(path)}", False) for path in driver),
    ]
    return [
        *word_list("podman run --rm --interactive --cgroups=disabled --network=host --env-host"),
        *word_list("--log-driver=none --security-opt=label=disable"),
        f"--workdir={inside.workdir}",
        *(["--tty"] if inside.is_terminal else []),
        *(["--init"] if init else []),
        *([] if is_root else ["--userns=keep-id"]),
        *(f"--env={name}={value}" for name, value in inside.environment.items()),
        *(_volume(mount) for mount in shown),
        *_volumes_of_fence(inside),
        *_gpus(inside, by_name=by_name),
        *(["--rootfs"] if is_path(inside.image) else []),
        inside.image,
        *inside.command(driver=DRIVER if driver else "", is_first=not init),
    ]


def _volume(mount: Mount) -> str:
    return f"--volume={mount.source}:{mount.target}" + ("" if mount.is_writable else ":ro")


def _volumes_of_fence(inside: Inside) -> list[str]:
    fence = inside.fence
    if fence is None:
        return []
    volumes = [f"--tmpfs={fence.folder}", f"--volume={fence.hook}:{fence.link}:ro"]
    volumes += [f"--volume={fence.folder}:{fence.folder}/{_OF_THE_HOST_AT}"]
    volumes += [f"--volume={fence.region}:{fence.region}"] if fence.region else []
    return volumes + ([f"--volume={fence.prover}:{fence.prover_link}:ro"] if fence.prover else [])


def _gpus(inside: Inside, *, by_name: bool) -> list[str]:
    if by_name:
        return [f"--device={name}" for name in inside.gpus]
    return [f"--device={node}" for node in inside.devices]


# -- apptainer and singularity -------------------------------------------------------------------------


def apptainer(inside: Inside, *, name: str) -> list[str]:
    """Return the command line of apptainer or singularity, which shows /dev, /proc, /sys and /tmp itself."""
    fence = inside.fence
    shown = [*inside.mounts, *_preload(inside)]
    if fence is not None:
        shown += [Mount(fence.folder, fence.folder), Mount(fence.hook, fence.hook, False)]
    if fence is not None and fence.prover:
        shown.append(Mount(fence.prover, fence.prover, False))
    image = inside.image if is_path(inside.image) or "://" in inside.image else f"docker://{inside.image}"
    return [
        name,
        "--quiet",
        "exec",
        *([inside.gpu_option] if inside.devices and inside.gpu_option else []),
        *(f"--bind={mount.source}:{mount.target}" + ("" if mount.is_writable else ":ro") for mount in shown),
        *(f"--env={key}={value}" for key, value in inside.environment.items() if key != "HOME"),
        f"--pwd={inside.workdir}",
        image,
        *_by_path(inside),
    ]


def _by_path(inside: Inside) -> list[str]:
    """Return the words of the command, with the prover at its own path."""
    fence = inside.fence
    words = inside.command()
    return [fence.prover if fence and word == fence.prover_link else word for word in words]


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
        words=tuple(_write_script(program, folder) if is_script else program),
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
        return bubblewrap(inside, Unpacked())
    if runtime == "podman":
        return podman(
            inside, is_root=not os.geteuid(), init=any(map(os.path.exists, _INITS)), has_cdi=vendor.has_cdi()
        )
    if inside.fence is not None:
        _drop_own_binds(inside.fence)
    return apptainer(inside, name=runtime)


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
        image, is_directory=is_directory, runtime=runtime, has=lambda name: shutil.which(name) is not None
    )


def _write_script(argv: Sequence[str], folder: str) -> list[str]:
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
        vendor.selection: _visible_devices(words, environ, hooked=hooked),
        "HOME": environ.get("HOME", "/"),
    }
    return environment | ({"LD_PRELOAD": link} if hooked else {})


def _visible_devices(words: str, environ: Mapping[str, str], *, hooked: bool) -> str:
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
        seal = stored_checksum(file.read(_HEAD))
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
