"""The directories, files, links and commands of an installation, for what a host has, and their texts."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources

from fgsched.cli import cron
from fgsched.cli.cron import CronEntry
from fgsched.cli.install.carry import STATE
from fgsched.cli.install.host import OPERATORS, Hardware, InstallHost
from fgsched.cli.install.plan import ManifestEntry, RunCommand, Want, to_run
from fgsched.domain.units import format_mebibytes
from fgsched.system.paths import INITIALISED

UNIT = "fgsched.service"
CONFIG = "/etc/fgsched/fgsched.toml"
PRELOAD = "/etc/ld.so.preload"
_UNITS = "/etc/systemd/system"


def wants(host: InstallHost, to: str) -> list[Want]:
    """Return what must be on disk. `to`: the address that gets the reports."""
    contents = [
        Want(path=STATE, kind="directory", mode=0o700, about="queue, accounts, mails, manifest"),
        Want(path="/etc/fgsched", kind="directory", mode=0o755, about="configuration"),
        Want(
            path=str(INITIALISED),
            kind="file",
            text=INITIALISED_TEXT,
            is_recorded=True,
            about="without its state directory the controller does not start",
        ),
        Want(
            path=CONFIG,
            kind="file",
            text=config(host.hardware),
            is_sites=True,
            about="configuration",
        ),
        Want(path=PRELOAD, kind="file", is_sites=True, about="empty: jobs mount their own over it"),
    ]
    if not host.has_unit:
        unit_text = unit(host.program)
        contents.append(Want(path=f"{_UNITS}/{UNIT}", kind="file", text=unit_text, about="the controller"))
    contents += _regular(host, to)
    for path, file in sorted(host.links.items()):
        contents.append(Want(path=path, kind="link", text=file, about="so that it is found"))
    return contents


def _regular(host: InstallHost, to: str) -> Iterator[Want]:
    """Yield the files that make reports and policies run regularly: timers, or lines for cron."""
    if host.systemd:
        for name, text in cron.units(to, {}, has_mail=host.has_mail).items():
            yield Want(path=f"{_UNITS}/{name}", kind="file", text=text, about="reports and policies")
    elif host.has_cron:
        entries = cron.entries(to, has_mail=host.has_mail)
        text = crontab(entries, [cron.command_line(entry, {}) for entry in entries])
        yield Want(path="/etc/cron.d/fgsched", kind="file", text=text, about="reports and policies")


def group_commands(
    host: InstallHost, manifest: Mapping[str, ManifestEntry], root: str
) -> Iterator[RunCommand]:
    """Yield the commands that make the group of the operators."""
    where = () if root == "/" else ("--prefix", root)
    group = RunCommand(
        key=f"group {OPERATORS}",
        words=("groupadd", "--force", "--system", *where, OPERATORS),
        undo=("groupdel", *where, OPERATORS),
        about="its members may manage every job",
    )
    yield from _due(group, manifest, is_there=host.has_group)
    if host.operator and root == "/" and (not host.has_group or group.key in manifest):
        member = RunCommand(
            key=f"member {host.operator}",
            words=("gpasswd", "--add", host.operator, OPERATORS),
            about="the user who ran sudo is an operator",
        )
        yield from _due(member, manifest, is_there=False)


def unit_commands(
    host: InstallHost, manifest: Mapping[str, ManifestEntry], root: str, *, is_new: bool
) -> Iterator[RunCommand]:
    """Yield the commands that make systemd know and start the units.

    Args:
        is_new: a unit file was written or replaced.
    """
    if not host.systemd:
        return
    is_running, where = host.systemd == "running", () if root == "/" else ("--root", root)
    units = cron.units("root", {}, has_mail=host.has_mail)
    timers = [name for name in units if name.endswith(".timer")]
    if is_running and is_new:
        yield RunCommand(key="reload", words=("systemctl", "daemon-reload"), about="read the unit files")
    now = ("--now",) if is_running else ()
    for unit in (UNIT, *timers):
        command = RunCommand(
            key=f"enable {unit}",
            words=("systemctl", *where, "enable", *now, unit),
            undo=("systemctl", *where, "disable", *now, unit),
            about="start it now and with the host" if now else "start it with the host",
        )
        yield from _due(command, manifest, is_there=unit in host.enabled)


def _due(
    command: RunCommand, manifest: Mapping[str, ManifestEntry], *, is_there: bool
) -> Iterator[RunCommand]:
    return (run_command for run_command in to_run(command, manifest.get(command.key), is_there=is_there))


# -- the contents of the files -------------------------------------------------------------------------


INITIALISED_TEXT = (
    "fgsched init made the state directory of this host. While this file exists, the controller does not\n"
    "start without it, so that a disk that is not mounted is not taken for an empty queue.\n"
)


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
