"""Containers of jobs: parse image and mounts, and write the line by which a job enters its container."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from fgsched.domain.errors import Refused
from fgsched.domain.job import Request
from fgsched.domain.text import BadValue
from fgsched.lifecycle.jobscript import command_line

ENTER = '"$FG_PYTHON" -I -m fgsched.interactive.containers'  # in a shell of a job
HEADER_LINES = 2  # before the text of a script that runs in a container
_MODES = {"": True, "rw": True, "ro": False}


class Mount(Struct, frozen=True):
    """One directory or file of the host in a container."""

    source: str
    target: str
    is_writable: bool = True


def parse_image(text: str) -> str:
    """Return an image in the form of its runtime: a path, or a reference to a registry.

    `registry#name` is a reference in the form of Pyxis. Raises BadValue.
    """
    if not text or text.startswith("-") or any(ord(char) < 0x21 or ord(char) == 0x7F for char in text):
        raise BadValue(
            text, " is not an image: give a directory, a .sif file, or a name such as ubuntu:24.04"
        )
    return text if is_path(text) else text.replace("#", "/", 1)


def is_path(image: str) -> bool:
    """Tell whether an image is a file or a directory, not a reference to a registry."""
    return image.startswith(("/", "./", "../")) or image in (".", "..") or image.endswith((".sif", ".sqsh"))


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Parse SOURCE[:TARGET[:ro|rw]],… of --container-mounts. Raises BadValue."""
    mounts = []
    for part in text.split(","):
        source, *options = part.split(":")
        target, mode = options[0] if options else source, options[1] if len(options) > 1 else ""
        if not (source.startswith("/") and target.startswith("/")) or len(options) > 2 or mode not in _MODES:
            raise BadValue(text, " is not a list of mounts: /SOURCE[:/TARGET[:ro]], separated by commas")
        mounts.append(Mount(source, target, _MODES[mode]))
    return tuple(mounts)


def options(image: str, mounts: str, workdir: str) -> list[str]:
    """Return the words of `fgsched.interactive.containers` for these options."""
    more = [f"--mounts={mounts}"] if mounts else []
    return [f"--image={image}", *more, *([f"--workdir={workdir}"] if workdir else [])]


def of_request(request: Request) -> list[str]:
    """Return the words of `fgsched.interactive.containers` for a request with a container."""
    return options(request.container, request.container_mounts, request.container_workdir)


# -- the runtime ----------------------------------------------------------------------------------------

_FOR_DIRECTORIES = ("bwrap", "apptainer", "singularity", "podman")
_FOR_FILES = ("apptainer", "singularity")
_FOR_REFERENCES = ("podman", "apptainer", "singularity")


def choose(image: str, *, is_directory: bool, runtime: str, has: Callable[[str], bool]) -> str:
    """Return the runtime for an image.

    Args:
        runtime: the runtime that the user named; "": the first that is installed.
        has: tells whether a program is installed.

    Raises:
        Refused: there is no such runtime, or it cannot run a job.
    """
    able = _FOR_DIRECTORIES if is_directory else _FOR_FILES if is_path(image) else _FOR_REFERENCES
    if runtime == "docker":
        raise Refused(
            "docker cannot run the container of a job: its daemon starts it outside the job",
            "podman runs the same images.",
        )
    if runtime and runtime not in able:
        raise Refused(f"{runtime} cannot run this image", f"Use {_listed(able)}.")
    chosen = next((name for name in ([runtime] if runtime else able) if has(name)), "")
    if not chosen:
        runtimes = _listed([runtime] if runtime else able)
        raise Refused(
            f"no container runtime for this image is installed here: {runtimes}",
            "Ask the administrator of the host to install one.",
        )
    return chosen


def _listed(names: Sequence[str]) -> str:
    return " or ".join(names)


# -- containers that a script starts itself ------------------------------------------------------------

RUNTIMES = ("APPTAINER", "SINGULARITY")  # beginnings of their variables


def variables(folder: str, hook: str, runtimes: Sequence[str], *, preload: bool) -> dict[str, str]:
    """Return the variables by which containers that a job starts have the hook.

    Args:
        folder: of the job.
        hook: the file to which the link there leads.
        runtimes: the installed ones of RUNTIMES.
        preload: the folder has a file for /etc/ld.so.preload.
    """
    binds = [folder, f"{hook}:{hook}:ro", *([f"{folder}/preload:/etc/ld.so.preload:ro"] if preload else [])]
    settings = {}
    for name in runtimes:
        settings[f"{name}_BIND"] = ",".join(binds)
        settings[f"{name}ENV_LD_PRELOAD"] = f"{folder}/libfgshim.so"
    return settings


PODMAN = "CONTAINERS_CONF_OVERRIDE"  # names settings in addition to those of the site and the user
OLDER_PODMAN = "CONTAINERS_CONF"  # names the only settings that are read
_APPENDS = (4, 8)  # the first version of podman whose settings can extend a list
_PASSED = ("LD_PRELOAD", "FG_JOB_DIR", "FG_FENCE_DIR")


def podman_variable(version: str, *, has_settings: bool) -> str:
    """Return the variable that names settings for podman; "" if no variable does so without loss.

    Args:
        version: of podman, such as 4.3.1.
        has_settings: the site has settings for podman, which `OLDER_PODMAN` would hide.
    """
    if not (numbers := tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())):
        return ""
    if numbers >= _APPENDS:
        return PODMAN
    return "" if has_settings else OLDER_PODMAN


def podman_settings(
    variable: str, shown: Sequence[str], hook: str, of_gpus: Sequence[str], *, preload: bool
) -> str:
    """Return settings (containers.conf) by which podman shows a container the hook of the job around it.

    The settings are the same for all jobs: variables have the values of the process that starts podman.

    Args:
        variable: that of `podman_variable`.
        shown: directories that contain the directories of jobs.
        hook: the file to which the link in a job's directory leads.
        of_gpus: the variables by which programs find the GPUs of a job.
        preload: jobs have an /etc/ld.so.preload of their own.
    """
    volumes = [*(f"{path}:{path}" for path in shown), f"{hook}:{hook}:ro"]
    volumes += ["/etc/ld.so.preload:/etc/ld.so.preload:ro"] if preload else []
    more = ["{append = true}"] if variable == PODMAN else []
    lists = {"env": (*_PASSED, *of_gpus), "volumes": volumes}
    lines = [f"{name} = [{', '.join([*map(_quoted, values), *more])}]" for name, values in lists.items()]
    return "\n".join(["[containers]", "label = false", *lines, ""])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def wrapped(script: bytes, request: Request) -> bytes:
    """Return the script that enters the container, which the request has, and runs `script` there."""
    line = f'exec {ENTER} {command_line(of_request(request))} --script "$0" "$@"\n'
    return b"#!/bin/sh\n" + line.encode("utf-8", "surrogateescape") + script


def entering(request: Request, words: Sequence[str]) -> str:
    """Return the part of a shell's line that runs a command, in the container of a request if it has one."""
    if not request.container:
        return command_line(list(words))
    return f"{ENTER} {command_line([*of_request(request), '--', *words])}"
