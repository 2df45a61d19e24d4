"""What a container shows of the host and of its job."""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from fgsched.lifecycle.containers import Mount

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
    kept: list[Mount] = []
    for mount in mounts:
        if not any(_shows(other, mount) for other in kept):
            kept.append(mount)
    return tuple(kept)


def _shows(outer: Mount, inner: Mount) -> bool:
    is_plain = outer.source == outer.target and inner.source == inner.target
    is_below = inner.source == outer.source or inner.source.startswith(f"{outer.source.rstrip('/')}/")
    return is_plain and is_below and outer.is_writable >= inner.is_writable
