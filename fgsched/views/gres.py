"""The GPUs of the host as Slurm names them in Gres."""

from collections import Counter
from collections.abc import Iterable

from fgsched.domain.job import Gpu


def gres_type(gpu: Gpu) -> str:
    """Return the type of a GPU, such as h100; of a MIG instance, with its profile: a100_3g.20gb."""
    model = gpu.model.rpartition(" MIG ")[0] if gpu.mig else gpu.model
    words = [model, gpu.profile] if gpu.mig else [model]
    return "_".join(words).lower().replace(" ", "_")


def typed(gpus: Iterable[Gpu]) -> str:
    """Return the number of GPUs of each type, as in gpu:h100:2,gpu:a100_3g.20gb:1; "" without a GPU."""
    counts = Counter(map(gres_type, gpus))
    return ",".join(f"gpu:{name}:{count}" for name, count in counts.items())


def plain(gpus: Iterable[Gpu]) -> str:
    """Return the number of GPUs, by type if some are MIG instances; "" without a GPU."""
    found = list(gpus)
    if any(gpu.mig for gpu in found):
        return typed(found)
    return f"gpu:{len(found)}" if found else ""
