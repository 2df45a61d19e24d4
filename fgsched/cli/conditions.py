"""Read the options that delay or repeat a job: array, dependency, begin, deadline, requeue."""

from collections.abc import Mapping
from typing import Any

from fgsched.cli.options import Setting
from fgsched.domain.errors import BadUsage
from fgsched.jobs.arrays import parse_array


def conditions(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the fields of the request that these options set. Raises BadUsage."""
    found: dict[str, Any] = {}
    if "array" in settings:
        found["array"], found["throttle"] = parse_array(settings["array"].text)
    for slot, field in (
        ("dependency", "dependency"),
        ("kill-on-invalid-dep", "kill_invalid"),
        ("begin", "begin"),
        ("deadline", "deadline"),
        ("requeue", "requeue"),
    ):
        if slot in settings:
            found[field] = settings[slot].value
    _check_times(settings, found)
    return found


def _check_times(settings: Mapping[str, Setting], found: Mapping[str, Any]) -> None:
    """Refuse a deadline that is too early for the time limit or the begin time."""
    if "deadline" not in found:
        return
    limit = settings["time"].value if "time" in settings else 0
    if found.get("begin", 0) + (limit if isinstance(limit, int) else 0) > found["deadline"]:
        what = " and ".join(f"--{name}" for name in ("begin", "time") if name in settings)
        raise BadUsage(
            f"{settings['deadline'].label}={settings['deadline'].text}: {what} leave no time for it"
        )


def labels(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the fields that take the option text unchanged."""
    slots = ("account", "qos", "reservation", "tier", "gpu-compute")
    return {slot.replace("-", "_"): settings[slot].text for slot in slots if slot in settings}
