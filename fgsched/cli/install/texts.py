"""The contents of the files that `fgsched init` writes."""

from collections.abc import Sequence
from importlib import resources

from msgspec import Struct

from fgsched.cli.cron import CronEntry
from fgsched.domain.units import format_mebibytes

OPERATORS = "fgsched-operators"  # the group
INITIALISED = (
    "fgsched init made the state directory of this host. While this file exists, the controller does not\n"
    "start without it, so that a disk that is not mounted is not taken for an empty queue.\n"
)


class InstalledGpu(Struct, frozen=True):
    """A GPU of this host."""

    index: int
    name: str
    memory: int  # bytes


class Hardware(Struct, frozen=True, kw_only=True):
    """What the configuration says about this host."""

    gpus: Sequence[InstalledGpu] = ()
    note: str = ""  # why there are no GPUs
    is_unknown: bool = False  # the driver did not answer: there may be GPUs
    cpus: int  # 0: not known
    memory: int  # bytes


_SIMULATED = "sim:2x16G"


def config(hardware: Hardware) -> str:
    """Return the first configuration, with the GPUs of the host as comments."""
    text = resources.files("fgsched.cli.install").joinpath("fgsched.toml").read_text()
    gpus, devices = _gpus(hardware)
    filled = {
        "CARDS": "\n".join(f"# {line}" for line in gpus),
        "DEVICES": devices,
        "HOST": _processors(hardware),
        "OPERATORS": OPERATORS,
    }
    return _filled(text, filled)


def _processors(hardware: Hardware) -> str:
    if not hardware.cpus:
        return "all CPUs and all memory"
    return f"all {hardware.cpus} CPUs and all {format_mebibytes(hardware.memory)} of memory"


def _gpus(hardware: Hardware) -> tuple[list[str], str]:
    """Return the comment about the GPUs, and the value of `devices`."""
    if hardware.gpus:
        listed = [f"GPU {gpu.index}: {gpu.name}, {format_mebibytes(gpu.memory)}" for gpu in hardware.gpus]
        return ["The GPUs of this host when this file was written:", *listed], "auto"
    if hardware.is_unknown:
        return [f"The GPUs could not be asked when this file was written: {hardware.note}"], "auto"
    why = [
        f"No GPU was found when this file was written: {hardware.note}",
        "Two GPUs are simulated, so that everything can be tried. Jobs on them compute nothing. When the",
        'driver is installed: devices = "auto", then run: fgsched restart --system',
    ]
    return why, _SIMULATED


def unit(program: str) -> str:
    """Return the systemd unit of the host's controller. `program`: the path of fgsched."""
    text = resources.files("fgsched.cli.install").joinpath("fgsched.service").read_text()
    return _filled(text, {"FGSCHED": quoted(program)})


def quoted(path: str) -> str:
    """Return a path as a word of ExecStart=."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if " " in path else escaped


def crontab(entries: Sequence[CronEntry], commands: Sequence[str]) -> str:
    """Return a file for /etc/cron.d, in which each line names the user.

    Args:
        commands: the command line of each entry, for a shell.
    """
    lines = ["# Reports and policies of fgsched. Written by fgsched init; fgsched uninstall removes it."]
    for entry, command in zip(entries, commands, strict=True):
        escaped = command.replace("%", r"\%")
        lines += [f"# {entry.about}", f"{entry.fields} root {escaped}"]
    return "\n".join([*lines, ""])


def _filled(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text
