"""MIG instances: the limits and views of a share of one, and the names that CUDA and NVML have for it."""

from collections.abc import Iterator
from dataclasses import replace

from gpucheck import memory, views
from gpucheck.place import Place
from gpucheck.sheet import NotHere, Row, row


def section(place: Place) -> Iterator[Row]:
    """Check limits and views on the first MIG instance."""
    from fgsched.config.load import Config
    from fgsched.gpus import discover
    from fgsched.gpus.nvidia.nodes import nodes_of

    found = [gpu for gpu in discover(Config(), {}).gpus if gpu.mig]
    if not found:
        raise NotHere("no GPU of this host has MIG instances, which only its administrator can make")
    gpu = found[0]
    yield row("instances", True, ", ".join(f"{one.index}: {one.profile}" for one in found))
    own = nodes_of(found).get(gpu.uuid, ())
    yield row("device files of the first one", len(own) == 3 or None, " ".join(own) or "not listed in /proc")
    instance = replace(place, uuid=gpu.uuid, total=gpu.total, kept={})
    yield from views.nvml(instance)
    yield from memory.families(instance)
