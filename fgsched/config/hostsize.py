"""Compare the CPUs, the host memory and the GPUs of a configuration with those of the host."""

import os
from collections.abc import Iterator

from msgspec import Struct

from fgsched.config.schema import Config
from fgsched.domain.units import format_indices, format_mebibytes, parse_bytes, parse_gpus

REMEDY = "Set the keys to what the host has and the other settings allow, or remove them."


class HostSize(Struct, frozen=True, kw_only=True):
    """The CPUs, the memory and the GPUs of a host."""

    cpus: int
    memory: int  # bytes
    gpus: tuple[int, ...] | None = None  # indices; None: unknown
    gpu_memory: int = 0  # bytes of the largest GPU for jobs


def this_host() -> HostSize:
    """Return the size of this host, whatever CPUs this process is bound to."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return HostSize(cpus=os.cpu_count() or 1, memory=memory)


def excesses(config: Config, host: HostSize) -> list[str]:
    """Return a sentence for each setting that names more CPUs, memory or GPUs than there are.

    Jobs are packed into what the configuration says, so an excess makes them share CPUs, or lets the
    kernel kill them for memory. The default of a partition must fit what jobs may use, or no job that
    relies on it can start.
    """
    return [*_host_excesses(config, host), *_partition_excesses(config, host), *_gpu_excesses(config, host)]


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


def _gpu_excesses(config: Config, host: HostSize) -> Iterator[str]:
    """Compare the GPUs of partitions with those of the host, if they are known."""
    if host.gpus is None:
        return
    for name, partition in config.partitions.items():
        table = f"[partitions.{name}]"
        if missing := set(partition.devices) - set(host.gpus):
            yield f"{table} devices = {format_indices(sorted(missing))}: this host has no such GPU"
        allowed = [gpu for gpu in host.gpus if not partition.devices or gpu in partition.devices]
        if partition.gpus and (count := parse_gpus(partition.gpus)[1]) > len(allowed):
            yield f"{table} gpus = {count}, but jobs may use {len(allowed)}"
        size = partition.gpu_mem
        if size and not size.endswith("%") and parse_bytes(size) > host.gpu_memory:
            yield f"{table} gpu_mem = {size}, but the largest GPU has {_size(host.gpu_memory)}"


def _cpus(count: int) -> str:
    return f"{count} CPU" + ("" if count == 1 else "s")


def _size(memory: int) -> str:
    return format_mebibytes(memory)
