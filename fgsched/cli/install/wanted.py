"""The directories, files, links and commands of an installation, for what a host has. Pure."""

from collections.abc import Iterator, Mapping

from fgsched.cli import cron
from fgsched.cli.install import texts
from fgsched.cli.install.carry import STATE
from fgsched.cli.install.host import InstallHost
from fgsched.cli.install.plan import ManifestEntry, RunCommand, Want, to_run
from fgsched.cli.install.texts import OPERATORS
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
            text=texts.INITIALISED,
            is_recorded=True,
            about="without its state directory the controller does not start",
        ),
        Want(
            path=CONFIG,
            kind="file",
            text=texts.config(host.hardware),
            is_sites=True,
            about="configuration",
        ),
        Want(path=PRELOAD, kind="file", is_sites=True, about="empty: jobs mount their own over it"),
    ]
    if not host.has_unit:
        unit = texts.unit(host.program)
        contents.append(Want(path=f"{_UNITS}/{UNIT}", kind="file", text=unit, about="the controller"))
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
        text = texts.crontab(entries, [cron.command_line(entry, {}) for entry in entries])
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
