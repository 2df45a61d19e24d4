"""Keep the indices of MIG instances, which jobs hold, when the layout of a GPU has changed before a start."""

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from fgsched.domain.job import Gpu, GpuState, MigInstance, is_instance
from fgsched.gpus import mig


def settled(gpus: Sequence[Gpu], known: Iterable[Gpu], held: Collection[int]) -> tuple[Gpu, ...]:
    """Return the GPUs with the indices by which the queue knows them.

    A MIG instance keeps its index, although the driver renumbers instances after a change. An instance that
    has jobs and no longer exists is included as DOWN, so that its jobs are ended.

    Args:
        known: the GPUs of the last controller.
        held: indices of GPUs that jobs hold.
    """
    there = {gpu.uuid for gpu in gpus}
    before = [gpu for gpu in known if is_instance(gpu.uuid)]
    gone = [_gone(gpu) for gpu in before if gpu.uuid not in there and gpu.index in held]
    index_of = {gpu.uuid: gpu.index for gpu in before if gpu.uuid in there}
    taken = {gpu.index for gpu in gpus if not gpu.mig} | {gpu.index for gpu in gone} | set(index_of.values())
    found = []
    for gpu in gpus:
        index = index_of.get(gpu.uuid, gpu.index)
        while gpu.mig and gpu.uuid not in index_of and index in taken:
            index += 1
        taken.add(index)
        found.append(replace(gpu, index=index))
    return tuple(sorted([*found, *gone], key=lambda gpu: gpu.index))


def _gone(gpu: Gpu) -> Gpu:
    return replace(remembered(gpu), state=GpuState.DOWN, note=mig.GONE)


def remembered(gpu: Gpu) -> Gpu:
    """Return a GPU of the queue file; a MIG instance is known by its UUID and its name."""
    if not is_instance(gpu.uuid):
        return gpu
    return replace(gpu, mig=MigInstance(profile=mig.profile_of(gpu.model)), is_unit=True)
