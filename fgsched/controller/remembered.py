"""The cards of an earlier life, where the driver does not answer now: an upgrade, say."""

import dataclasses

from msgspec.structs import replace

from fgsched import gpus
from fgsched.domain.job import GpuState
from fgsched.gpus.sim import is_simulated
from fgsched.store import Store


def remembered(inventory: gpus.Inventory, store: Store, sampler: gpus.AnySampler) -> gpus.Inventory:
    """The inventory, or the cards that the queue knows, suspect until the driver shows them again.

    The jobs on them go on, and those that wait are told why.
    """
    if not inventory.failed or inventory.gpus:
        return inventory
    known = [gpu for gpu in store.known_cards() if gpu.uuid and not is_simulated(gpu.uuid)]
    cards = tuple(
        replace(gpu, total=gpu.total + gpu.headroom, state=GpuState.SUSPECT, note=inventory.note)
        for gpu in sampler.chosen(known)
        if gpu.total
    )
    if not cards:
        return inventory
    sampler.watch(cards)
    return dataclasses.replace(inventory, gpus=cards, source="nvml", is_sampled=True)
