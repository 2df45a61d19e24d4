"""Find settings that contradict each other, or that name more than this host has."""

import os
from collections.abc import Callable, Iterator
from itertools import chain

from msgspec import Struct

from fgsched.config.schema import Config, PartitionSettings
from fgsched.domain.times import format_limit
from fgsched.domain.units import format_indices, format_mebibytes, format_share, parse_bytes, parse_gpus

# -- the size of the host ------------------------------------------------------------------------------


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


_LIMITS_OF_GPUS = ("max_gpus", "max_gpus_running", "max_gpus_per_user", "max_gpus_per_account")


def doubts(config: Config, host: HostSize) -> list[str]:
    """Return the warnings about settings: what the host lacks, and what contradicts another one."""
    return [*excesses(config, host), *contradictions(config)]


def contradictions(config: Config) -> list[str]:
    """Return a sentence for each setting that another one makes useless.

    Each of them is legal by itself. A job that relies on such a default is refused, or it never starts.
    """
    partitions = (
        _of_partition(f"[partitions.{name}]", partition, config.share_step)
        for name, partition in config.partitions.items()
    )
    return [*chain.from_iterable(partitions), *_of_accounts(config)]


def _of_partition(table: str, partition: PartitionSettings, share_step: int) -> Iterator[str]:
    pairs: tuple[tuple[str, int, str, int, Callable[[int], str]], ...] = (
        ("mem", partition.mem, "max_mem", partition.max_mem, format_mebibytes),
        ("cpus", partition.cpus, "max_cpus", partition.max_cpus, str),
        ("time", partition.time, "max_time", partition.max_time, format_limit),
        ("gpu_mem", _bytes(partition.gpu_mem), "max_gpu_mem", partition.max_gpu_mem, format_mebibytes),
        *(
            ("gpus", _share(partition.gpus), limit, getattr(partition, limit), format_share)
            for limit in _LIMITS_OF_GPUS
        ),
    )
    for default, value, limit, most, shown in pairs:
        if most and value > most:
            yield f"{table} {default} = {shown(value)} is above its {limit} = {shown(most)}"
    step = partition.share_step or share_step
    for limit in _LIMITS_OF_GPUS:
        if 0 < (most := getattr(partition, limit)) < step:
            yield (
                f"{table} {limit} = {format_share(most)} is below the least share of a job,"
                f" share_step = {format_share(step)}"
            )


def _of_accounts(config: Config) -> Iterator[str]:
    """Yield names of accounts that are not declared, at a site that declares some."""
    if not config.accounts:
        return
    for name, user in config.users.items():
        account = config.accounts.get(user.account)
        if user.account and account is None:
            yield f'[users.{name}] account = "{user.account}" is not declared'
        elif account is not None and account.users and name not in account.users:
            yield f'[users.{name}] account = "{user.account}", whose users do not include {name}'
    tables = {f"[partitions.{name}]": partition.accounts for name, partition in config.partitions.items()}
    tables |= {f"[qos.{name}]": qos.accounts for name, qos in config.qos.items()}
    for table, accounts in tables.items():
        for unknown in sorted(set(accounts) - config.accounts.keys()):
            yield f'{table} accounts has "{unknown}", which is not declared'


def _bytes(memory: str) -> int:
    """Return the bytes of a size; 0 for none, and for a part of a GPU."""
    return 0 if not memory or memory.endswith("%") else parse_bytes(memory)


def _share(gpus: str) -> int:
    """Return a request in ten-thousandths of a GPU; 0 for none."""
    if not gpus:
        return 0
    _, count, share = parse_gpus(gpus)
    return count * share
