"""The reports and policies that run regularly, as lines of a crontab or as systemd timers."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from fgsched.domain.errors import BadUsage, Refused
from fgsched.system.paths import CONFIG_VARIABLES
from fgsched.system.places import read_own, replace_file

BEGIN = "# BEGIN fgsched reports (fgsched cron --install replaces this block, and only this block)"
END = "# END fgsched reports"
_MARK = "# Written by fgsched cron --systemd --install, which replaces this file."
_LONGEST = 1 << 16  # bytes of a unit file
_KEPT = ("FG_HOME", *CONFIG_VARIABLES, "TZ")
_LAST_WEEK, _LAST_MONTH = "$(date -d '7 days ago' +%G-W%V)", "$(date -d 'last month' +%Y-%m)"


class CronEntry(Struct, frozen=True, kw_only=True):
    """One command that runs regularly."""

    name: str
    fields: str  # when, as in a crontab
    calendar: str  # when, as OnCalendar= of systemd
    about: str
    words: tuple[str, ...]  # of the command, for a shell


_IDLE = CronEntry(
    name="idle",
    fields="*/10 * * * *",
    calendar="*:00/10",
    about="idle GPUs: does nothing unless [policies] says so",
    words=("fgsched", "policy", "idle", "--quiet"),
)
_STRANGERS = CronEntry(
    name="strangers-policy",
    fields="3-59/10 * * * *",
    calendar="*:03/10",
    about="GPU processes of no job: does nothing unless [policies] says so",
    words=("fgsched", "policy", "strangers", "--quiet"),
)


def entries(to: str, metrics: str = "", *, has_mail: bool = True) -> list[CronEntry]:
    """Return the commands that cron or systemd runs, with their times.

    Args:
        to: the address that gets the reports.
        metrics: the folder of the metrics; "": there are none.
        has_mail: include the reports, which are mailed.
    """
    regular = [_IDLE, _STRANGERS, *([_of_metrics(metrics)] if metrics else [])]
    return [*_mailed(to), *regular] if has_mail else regular


def _mailed(to: str) -> list[CronEntry]:
    """Return the reports, which are mailed."""
    post = ("--to", shlex.quote(to))
    daily = ("failures", "strangers", "health")
    return [
        *(
            CronEntry(
                name=name,
                fields=f"{minute} 6 * * *",
                calendar=f"*-*-* 06:{minute:02d}:00",
                about=f"{name} of the last day, if there are any",
                words=("fgreport", name, "--yesterday", "--only-if", *post),
            )
            for minute, name in zip((5, 7, 9), daily, strict=True)
        ),
        CronEntry(
            name="overview",
            fields="15 6 * * 1",
            calendar="Mon *-*-* 06:15:00",
            about="overview of the last week",
            words=("fgreport", "overview", "--week", f'"{_LAST_WEEK}"', *post),
        ),
        CronEntry(
            name="charge",
            fields="25 6 1 * *",
            calendar="*-*-01 06:25:00",
            about="charge of the last month, as CSV",
            words=("fgreport", "charge", "--month", f'"{_LAST_MONTH}"', "--format", "csv", *post),
        ),
    ]


def _of_metrics(folder: str) -> CronEntry:
    return CronEntry(
        name="metrics",
        fields="*/5 * * * *",
        calendar="*:00/5",
        about="metrics for Prometheus",
        words=("fgreport", "status", "--format", "metrics", "--output", shlex.quote(folder)),
    )


def program(name: str) -> str:
    """Return the path of one of our commands, beside the interpreter; else its name."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else name


def command_line(entry: CronEntry, environ: Mapping[str, str]) -> str:
    """Return the command line for a shell, with the variables that select the controller."""
    variables = [f"{name}={shlex.quote(environ[name])}" for name in _KEPT if environ.get(name)]
    return " ".join([*variables, shlex.quote(program(entry.words[0])), *entry.words[1:]])


# -- a crontab -----------------------------------------------------------------------------------------


def block(to: str, environ: Mapping[str, str], metrics: str = "") -> str:
    """Return the lines for a crontab. `%` ends a command there, and is escaped."""
    lines = [BEGIN]
    for entry in entries(to, metrics):
        command = command_line(entry, environ).replace("%", r"\%")
        lines += [f"# {entry.about}", f"{entry.fields} {command}"]
    return "\n".join([*lines, END, ""])


def merged(crontab: str, lines: str) -> str:
    """Return a crontab with our block replaced, or added at its end. All other lines stay.

    Raises:
        Refused: the marks of the block are damaged.
    """
    crontab_lines = crontab.splitlines(keepends=True)
    begins = [at for at, line in enumerate(crontab_lines) if line.rstrip() == BEGIN]
    ends = [at for at, line in enumerate(crontab_lines) if line.rstrip() == END]
    if not begins and not ends:
        return crontab + ("" if not crontab or crontab.endswith("\n") else "\n") + lines
    if len(begins) != 1 or len(ends) != 1 or begins[0] > ends[0]:
        raise Refused(
            "the block of fgsched in the crontab is damaged", f"Remove its lines with: crontab -e ({BEGIN!r})"
        )
    return "".join([*crontab_lines[: begins[0]], lines, *crontab_lines[ends[0] + 1 :]])


def install(lines: str) -> bool:
    """Put the block into the crontab of the caller; return False if it is there already. Raises Refused."""
    before = _read()
    after = merged(before, lines)
    if after == before:
        return False
    done = subprocess.run(["crontab", "-"], input=after, text=True, capture_output=True)
    if done.returncode:
        raise Refused(f"crontab: {done.stderr.strip()}", "The crontab is unchanged.")
    return True


def _read() -> str:
    """Return the crontab of the caller. Raises Refused if it cannot be read."""
    try:
        done = subprocess.run(
            ["crontab", "-l"], text=True, capture_output=True, env=dict(os.environ, LC_ALL="C")
        )
    except FileNotFoundError:
        raise Refused(
            "there is no crontab command here", "Install cron, or use systemd: fgsched cron --systemd"
        ) from None
    if done.returncode and "no crontab for" not in done.stderr:
        raise Refused(f"crontab: {done.stderr.strip()}", "The crontab is unchanged.")
    return done.stdout if not done.returncode else ""


# -- systemd -------------------------------------------------------------------------------------------


def units(to: str, environ: Mapping[str, str], metrics: str = "", *, has_mail: bool = True) -> dict[str, str]:
    """Return the contents of the unit files by their names. `%` and `$` are escaped for systemd."""
    units = {}
    for entry in entries(to, metrics, has_mail=has_mail):
        command = command_line(entry, environ).replace("\\", r"\\").replace('"', r"\"")
        command = command.replace("%", "%%").replace("$", "$$")
        units[f"fgsched-{entry.name}.service"] = (
            f"{_MARK}\n[Unit]\nDescription=fgsched: {entry.about}\n\n"
            f'[Service]\nType=oneshot\nExecStart=/bin/sh -c "{command}"\n'
        )
        units[f"fgsched-{entry.name}.timer"] = (
            f"{_MARK}\n[Unit]\nDescription=fgsched: {entry.about}\n\n"
            f"[Timer]\nOnCalendar={entry.calendar}\nPersistent=true\n\n[Install]\nWantedBy=timers.target\n"
        )
    return units


def install_units(folder: Path, texts: Mapping[str, str]) -> Sequence[Path]:
    """Write unit files; return the paths of the changed ones.

    Raises:
        Refused: a file that is not empty was not written by fgsched, or a file cannot be written.
    """
    paths = {folder / name: text for name, text in texts.items()}
    for path in paths:
        if (text := _unit(path)) and not text.startswith(_MARK):
            raise Refused(f"{path} was not written by fgsched cron", "Move it away, or keep it.")
    try:
        changed = [path for path, text in paths.items() if _unit(path) != text]
        for path in changed:
            replace_file(path, paths[path].encode(), 0o644, make=True)
    except OSError as error:
        raise Refused(f"cannot write to {folder}: {error.strerror}", "Run it as root.") from None
    return changed


def _unit(path: Path) -> str:
    """Return the text of a unit file; "" if there is none, or a link or a pipe, which is replaced."""
    with suppress(OSError):
        return read_own(path, _LONGEST).decode(errors="replace")
    return ""


def unit_folder(environ: Mapping[str, str], uid: int) -> Path:
    """Return where the units of the caller belong. Raises Refused if that is unknown."""
    if uid == 0:
        return Path("/etc/systemd/system")
    home = environ.get("HOME", "")
    if not (config := environ.get("XDG_CONFIG_HOME") or (home and f"{home}/.config")):
        raise Refused("the folder of your systemd units is unknown: HOME is not set", "Set HOME.")
    return Path(config) / "systemd/user"


def run(*, to: str, is_install: bool, is_systemd: bool, environ: Mapping[str, str], metrics: str = "") -> str:
    """Print or install; return what to print. Raises BadUsage or Refused."""
    if not to or any(not char.isprintable() or char.isspace() for char in to):
        raise BadUsage(f"{to!r} is not an address", "Give a user name, or NAME@DOMAIN.")
    if metrics and (not metrics.startswith("/") or not metrics.isprintable()):
        raise BadUsage(f"{metrics!r} is not an absolute path", "Give the folder of node_exporter.")
    if is_systemd:
        return _systemd(units(to, environ, metrics), is_install, environ)
    lines = block(to, environ, metrics)
    if not is_install:
        return lines
    return "the crontab has these lines now\n" if install(lines) else "the crontab has these lines already\n"


def _systemd(texts: Mapping[str, str], is_install: bool, environ: Mapping[str, str]) -> str:
    if not is_install:
        return "\n".join(f"# {name}\n{text}" for name, text in texts.items())
    folder = unit_folder(environ, os.geteuid())
    changed = install_units(folder, texts)
    timers = " ".join(name for name in texts if name.endswith(".timer"))
    user = "" if os.geteuid() == 0 else " --user"
    return (
        f"{len(changed)} files written to {folder}\n"
        f"systemctl{user} daemon-reload && systemctl{user} enable --now {timers}\n"
    )
