"""Warnings about properties of a command that the running controller does not have."""

import os
from collections.abc import Iterable, Iterator, Mapping

from fgsched.domain.text import shown
from fgsched.domain.units import SubmitContext
from fgsched.system import limits
from fgsched.system.paths import CONFIG_VARIABLES


def about_controller(
    environ: Mapping[str, str], rlimits: Iterable[tuple[int, int, int]], site: SubmitContext
) -> Iterator[str]:
    """Yield a warning about each property of this process that the running controller does not have."""
    yield from about_variables(environ, site)
    yield from about_limits(rlimits, site)


def about_variables(environ: Mapping[str, str], site: SubmitContext) -> Iterator[str]:
    """Yield a warning about each variable of the command that differs from what the controller uses."""
    if not site.config_file:  # a controller of an earlier version does not tell
        return
    devices = environ.get("FG_DEVICES", "")
    if devices and devices != site.devices:
        used = f"FG_DEVICES={shown(site.devices)}" if site.devices else "no FG_DEVICES"
        yield _without_effect("FG_DEVICES", devices, f"was started with {used}", site)
    name = next((name for name in CONFIG_VARIABLES if environ.get(name)), "")
    if name and os.path.normpath(environ[name]) != site.config_file:
        yield _without_effect(name, environ[name], f"reads {shown(site.config_file)}", site)


def _without_effect(name: str, value: str, why: str, site: SubmitContext) -> str:
    remedy = "; fgsched stop, and the next command starts the controller with it" if site.own else ""
    return f"{name}={shown(value)} has no effect: the controller {why}{remedy}"


def about_limits(rlimits: Iterable[tuple[int, int, int]], site: SubmitContext) -> Iterator[str]:
    """Yield a warning about the limits of this process that the user's controller cannot give to its jobs.

    Only root can raise a hard limit again, so those of the command that started the controller bind all jobs.
    """
    hard = dict(site.limits) if site.own else {}
    lower = [number for number, soft, _ in rlimits if number in hard and not 0 <= soft <= hard[number]]
    if lower:
        listed = ", ".join(f"{limits.name_of(number)} {hard[number]}" for number in lower)
        yield (
            "the controller was started with lower limits than those of this command, and they bind its jobs:"
            f" {listed}; fgsched stop, and the next command starts it with its own"
        )
