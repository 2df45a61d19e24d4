"""Take this host out of service, and return it, as `scontrol update nodename=HOST state=…` does."""

from collections.abc import Mapping

from fgsched import protocol
from fgsched.client import Client
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import GpuState
from fgsched.domain.policy import DOWN, UP
from fgsched.domain.text import shown
from fgsched.views.display import host_name

_OUT = ("drain", "down", "fail")
_IN = ("resume", "undrain", "idle", "up")
_KEYS = {"nodename", "node", "state", "reason"}


def update_node(client: Client, given: Mapping[str, str]) -> None:
    """Start no new jobs on this host, or start them again: GPUs are drained, partitions are down.

    Raises BadUsage for another host, or a change that one host cannot have.
    """
    name = given.get("nodename") or given.get("node", "")
    if name.upper() != "ALL" and name.partition(".")[0] != host_name():
        raise BadUsage(f"there is no node {shown(name)}", f"This host is {host_name()}.")
    if unknown := sorted(given.keys() - _KEYS):
        raise BadUsage(f"{shown(unknown[0])} of a node cannot be changed", "Keys: state reason.")
    state = given.get("state", "").lower()
    if state in _OUT:
        _take_out(client, given.get("reason", ""))
    elif state in _IN:
        _take_back(client)
    else:
        raise BadUsage(f"state={shown(state)} is no state of this host", f"Give {' '.join((*_OUT, *_IN))}.")


def _take_out(client: Client, reason: str) -> None:
    for row in client.call(protocol.ListGpus()).gpus:
        client.call(protocol.DrainGpu(gpu=row.gpu.index, reason=reason))
    for partition in _partitions(client, UP):
        client.call(protocol.UpdatePartition(name=partition, values={"state": DOWN}))


def _take_back(client: Client) -> None:
    for row in client.call(protocol.ListGpus()).gpus:
        if row.gpu.state is not GpuState.OK:
            client.call(protocol.ResumeGpu(gpu=row.gpu.index))
    for partition in _partitions(client, DOWN):
        client.call(
            protocol.UpdatePartition(name=partition, values={"state": ""})
        )  # that of the configuration


def _partitions(client: Client, state: str) -> list[str]:
    rows = client.call(protocol.ListPartitions()).partitions
    return [row.partition.name for row in rows if row.partition.state == state]
