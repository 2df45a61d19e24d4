"""Find the container runtimes of this host, and write the settings of podman."""

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fgsched.lifecycle.containers import RUNTIMES, podman_settings, podman_variable
from fgsched.system import capture

_OF_THE_SITE = (Path("/etc/containers/containers.conf"), Path("/etc/containers/containers.conf.d"))
_PATIENCE = 10  # seconds for podman to print its version


def installed() -> tuple[str, ...]:
    """Return the runtimes of RUNTIMES that are installed; singularity may be another name of apptainer."""
    programs = {name: _program(name.lower()) for name in RUNTIMES}
    paths = {os.path.realpath(path): name for name, path in reversed(programs.items()) if path}
    return tuple(sorted(paths.values()))


def _program(name: str) -> str:
    """Return the path of a program in PATH; "" if there is none."""
    paths = (os.path.join(directory, name) for directory in os.get_exec_path())
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), "")


def write_podman_settings(
    file: Path, shown: Sequence[str], hook: str, of_gpus: Sequence[str], *, preload: bool
) -> dict[str, str]:
    """Write the settings of podman for containers that jobs start; return the variable that names them.

    Returns {} without podman, if the file cannot be written, or if the site's settings would be hidden.
    """
    path = _program("podman")
    version = _version(path) if path else ""
    variable = podman_variable(version, has_settings=any(place.exists() for place in _OF_THE_SITE))
    if not variable:
        return {}
    text = podman_settings(variable, shown, hook, of_gpus, preload=preload)
    try:
        fresh = file.with_name(f".{file.name}")
        fresh.write_text(text)
        fresh.chmod(0o644)
        fresh.rename(file)
    except OSError:
        return {}
    return {variable: str(file)}


@cache
def _version(path: str) -> str:
    """Return the version of podman; "" if it does not print one."""
    try:
        outcome = capture.run([path, "--version"], seconds=_PATIENCE)
    except (OSError, subprocess.SubprocessError):
        return ""
    return outcome.output.decode(errors="replace").rpartition(" ")[2].strip()
