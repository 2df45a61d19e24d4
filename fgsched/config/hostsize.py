"""Compare the CPUs and the host memory of a configuration with those of the host."""

import os
from collections.abc import Iterator

from msgspec import Struct

from fgsched.config.schema import Config
from fgsched.domain.units import format_mebibytes

REMEDY = "Set [host] cpus and memory to what the host has, or remove the keys."


class HostSize(Struct, frozen=True, kw_only=True):
    """The CPUs and the memory of a host."""

    cpus: int
    memory: int  # bytes


def this_host() -> HostSize:
    """Return the size of this host, whatever CPUs this process is bound to."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return HostSize(cpus=os.cpu_count() or 1, memory=memory)


def excesses(config: Config, host: HostSize) -> list[str]:
    """Return a sentence for each setting that names more CPUs or memory than there are.

    Jobs are packed into what the configuration says, so an excess makes them share CPUs, or lets the
    kernel kill them for memory. The default of a partition must fit what jobs may use, or no job that
    relies on it can start.
    """
    return [*_host_excesses(config, host), *_partition_excesses(config, host)]


def _host_excesses(config: Config, host: HostSize) -> Iterator[str]:
    if config.cpus > host.cpus:
        yield f"[host] cpus = {config.cpus}, but this host has {_cpus(host.cpus)}"
    if config.memory > host.memory:
        yield f"[host] memory = {_size(config.memory)}, but this host has {_size(host.memory)}"


def _partition_excesses(config: Config, host: HostSize) -> Iterator[str]:
    most = HostSize(cpus=config.cpus or host.cpus, memory=config.memory or host.memory)
    for name, partition in config.partitions.items():
        if partition.cpus > most.cpus:
            yield f"[partitions.{name}] cpus = {partition.cpus}, but jobs may use {_cpus(most.cpus)}"
        if partition.mem > most.memory:
            yield f"[partitions.{name}] mem = {_size(partition.mem)}, but jobs may use {_size(most.memory)}"


def _cpus(count: int) -> str:
    return f"{count} CPU" + ("" if count == 1 else "s")


def _size(memory: int) -> str:
    return format_mebibytes(memory)
