"""Find the container runtimes of this host."""

import os
import shutil

from fgsched.jobs.containers import RUNTIMES


def installed() -> tuple[str, ...]:
    """Return the runtimes of RUNTIMES that are installed; singularity may be another name of apptainer."""
    found = {name: shutil.which(name.lower()) for name in RUNTIMES}
    paths = {os.path.realpath(path): name for name, path in reversed(found.items()) if path}
    return tuple(sorted(paths.values()))
