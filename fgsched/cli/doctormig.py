"""The check of `fgsched doctor` about MIG: the instances of each card, and how administrators make some."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from fgsched.domain.job import Gpu, GpuState
from fgsched.gpus import mig

_CAPABLE = re.compile(r"\b(A30|A100|A800|H20|H100|H200|H800|GH200|B100|B200|B300|GB200|GB300)\b", re.I)


def check(gpus: Sequence[Gpu]) -> tuple[bool, str, str]:
    """Return (whether all is well, the finding, the remedy)."""
    empty = [gpu for gpu in gpus if gpu.state is GpuState.DOWN and gpu.note == mig.NO_INSTANCES]
    if empty:
        listed = ", ".join(str(gpu.index) for gpu in empty)
        return False, f"GPU {listed} is in MIG mode and has no instances", commands(empty[0], is_on=True)
    layouts = _layouts(gpu for gpu in gpus if gpu.mig)
    capable = [gpu for gpu in gpus if gpu.mig is None and _CAPABLE.search(gpu.model)]
    can = f"GPU {', '.join(str(gpu.index) for gpu in capable)} can have MIG instances" if capable else ""
    found = "; ".join([*layouts, *([can] if can else [])])
    return True, found or "no GPU has MIG instances", commands(capable[0], is_on=False) if capable else ""


def _layouts(instances: Iterable[Gpu]) -> list[str]:
    """Return the instances of each card in words."""
    layouts: dict[int, Counter[str]] = {}
    for gpu in instances:
        layouts.setdefault(gpu.mig.gpu if gpu.mig else -1, Counter())[gpu.profile] += 1
    return [
        f"GPU {index} has " + ", ".join(f"{count} × {profile}" for profile, count in profiles.items())
        for index, profiles in layouts.items()
    ]


def commands(gpu: Gpu, *, is_on: bool) -> str:
    """Return what an administrator runs to make instances; fgsched does not."""
    steps = [] if is_on else [f"nvidia-smi -i {gpu.index} -mig 1"]
    steps += [f"nvidia-smi mig -i {gpu.index} -lgip", f"nvidia-smi mig -i {gpu.index} -cgi PROFILE,… -C"]
    return f"As root, without jobs on the card: {'; '.join(steps)}; then restart the controller."
