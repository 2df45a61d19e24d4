"""The GPUs of the host and their use, from the driver of a vendor or simulated.

backend      the interface of a vendor: its files, questions and reports
vendors      the list of the vendors
nvidia       the vendor NVIDIA
mig          the MIG instances that the driver shows
simulated    simulated GPUs
selection    the GPUs that jobs may use
inventory    the GPUs at the start of a controller or command
ownership    ensure that one controller of the host allocates a GPU
sampler      the controller's end: asks and never blocks
supervisor   the process that enforces a deadline on the probe
probe        the process that queries the driver and may hang
processes    who runs a process, and its load from the samples of a driver
hooktest     the process that tests the hook and may hang
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fgsched.gpus.backend import HOOK_TEST, INVENTORY, LIMIT, READING, Person
    from fgsched.gpus.inventory import Inventory, attach, check, discover
    from fgsched.gpus.sampler import SLACK, AnySampler, GpuAnswer, Sampler, external

_HOMES = {
    **dict.fromkeys(("HOOK_TEST", "INVENTORY", "LIMIT", "READING", "Person"), "backend"),
    **dict.fromkeys(("Inventory", "attach", "check", "discover"), "inventory"),
    **dict.fromkeys(("SLACK", "AnySampler", "GpuAnswer", "Sampler", "external"), "sampler"),
}
__all__ = [
    "HOOK_TEST",
    "INVENTORY",
    "LIMIT",
    "READING",
    "SLACK",
    "AnySampler",
    "GpuAnswer",
    "Inventory",
    "Person",
    "Sampler",
    "attach",
    "check",
    "discover",
    "external",
]


def __getattr__(name: str) -> object:
    """Import a name when it is used for the first time: commands need the values of a vendor only."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"fgsched.gpus.{_HOMES[name]}"), name)
    return value
