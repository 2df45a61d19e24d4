"""Find the container runtimes of this host."""

import os

from fgsched.jobs.containers import RUNTIMES


def installed() -> tuple[str, ...]:
    """Return the runtimes of RUNTIMES that are installed; singularity may be another name of apptainer."""
    found = {name: _program(name.lower()) for name in RUNTIMES}
    paths = {os.path.realpath(path): name for name, path in reversed(found.items()) if path}
    return tuple(sorted(paths.values()))


def _program(name: str) -> str:
    """Return the path of a program in PATH; "" if there is none."""
    paths = (os.path.join(directory, name) for directory in os.get_exec_path())
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), "")
