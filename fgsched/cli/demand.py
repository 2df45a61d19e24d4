"""Compute the demand of a job from the amounts that the user gave."""

from collections.abc import Mapping

from fgsched.cli.options import Setting
from fgsched.cli.optionvalues import Amount, GpuMemory, HostMemory
from fgsched.domain.job import WHOLE, Demand
from fgsched.domain.text import quoted
from fgsched.domain.units import SubmitContext, format_share, neighbours, split_units


def demand(settings: Mapping[str, Setting], site: SubmitContext) -> Demand:
    """Return the demand of a job. Raises BadUsage, with the nearest valid shares, for an invalid share."""
    gpus, share, gpu_type = _cards(settings.get("gpus"), site)
    gpus, memory = _gpu_memory(settings, gpus)
    gpu_type = _gpu_type(settings.get("gpu-type"), gpu_type, gpus)
    cpus = settings["cpus-per-task"].value if "cpus-per-task" in settings else 1
    assert isinstance(cpus, int)
    return Demand(
        gpus=gpus,
        share=share,
        memory=memory.size,
        memory_part=memory.part,
        gpu_type=gpu_type,
        cpus=cpus,
        host_memory=_host_memory(settings.get("mem"), cpus, gpus, site),
        resources=_resources(settings, site),
    )


def _resources(settings: Mapping[str, Setting], site: SubmitContext) -> tuple[tuple[str, int], ...]:
    """Return the site resources of --gres. Raises BadUsage for an unknown resource."""
    found: dict[str, int] = {}
    for setting in (settings[slot] for slot in ("gpus", "gres") if slot in settings):
        amount = setting.value
        assert isinstance(amount, Amount)
        for name, count in amount.resources:
            if name not in site.resources:
                known = ("gpu", "shard", *site.resources)
                meant = _nearest(name, known)
                hint = f"did you mean {meant}?" if meant else f"there are {', '.join(known)}"
                raise setting.bad(
                    f": invalid generic resource specification, there is no {quoted(name)} here; {hint}"
                )
            found[name] = count
    return tuple(sorted(found.items()))


def _nearest(word: str, known: tuple[str, ...]) -> str:
    from difflib import get_close_matches  # slow to import, and only needed for this message

    return next(iter(get_close_matches(word, known, 1, 0.5)), "")


def _cards(setting: Setting | None, site: SubmitContext) -> tuple[int, int, str]:
    """Return (number of GPUs, share of each in ten-thousandths, type) of --gpus, --fgpu or --gres."""
    if setting is None:
        return 0, 0, ""
    amount = setting.value
    assert isinstance(amount, Amount)
    try:
        gpus, share = split_units(_in_gpus(setting, amount, site))
    except ValueError as error:
        raise setting.bad(str(error)) from None
    if share % WHOLE and share % site.share_step:
        low, high = (format_share(each) for each in neighbours(share, site.share_step))
        step = format_share(site.share_step)
        raise setting.bad(f" is not a multiple of this site's step of {step}; use {low} or {high} of a GPU")
    return gpus, share, amount.gpu_type


def _in_gpus(setting: Setting, amount: Amount, site: SubmitContext) -> int:
    if amount.unit == "gpu":
        return amount.size
    parts = site.fgpu_per_gpu if amount.unit == "fgpu" else site.shards_per_gpu
    what = "fGPU" if amount.unit == "fgpu" else "shard"
    if not parts:
        raise setting.bad(f": this site defines no {what}; use --gpus=FRACTION, such as --gpus=0.5")
    units = amount.size // parts  # rounded down: as many fit on a card as the site says
    if amount.size and not units:
        raise setting.bad(": smallest share is 0.0001 of a GPU")
    if units > WHOLE and amount.size % (parts * WHOLE):
        low = amount.size // (parts * WHOLE) * parts
        raise setting.bad(f": above one GPU only whole GPUs; use {low} or {low + parts}")
    return units


def _gpu_memory(settings: Mapping[str, Setting], gpus: int) -> tuple[int, GpuMemory]:
    setting = settings.get("gpu-mem")
    if setting is None:
        return gpus, GpuMemory()
    assert isinstance(setting.value, GpuMemory)
    asked = settings.get("gpus")
    if asked is not None and not gpus:
        raise setting.bad(f": GPU memory needs a GPU, and {asked.label}={asked.text} asks for none")
    return gpus or 1, setting.value


def _gpu_type(setting: Setting | None, in_amount: str, gpus: int) -> str:
    if setting is None:
        return in_amount
    assert isinstance(setting.value, str)
    if in_amount and in_amount.lower() != setting.value.lower():
        raise setting.bad(f": the amount of GPUs names another type, {in_amount}")
    if not gpus:
        raise setting.bad(": a GPU type needs --gpus or --gpu-mem beside it")
    return setting.value


def _host_memory(setting: Setting | None, cpus: int, gpus: int, site: SubmitContext) -> int:
    if setting is None:
        return 0
    memory = setting.value
    assert isinstance(memory, HostMemory)
    if memory.per == "gpu" and not gpus:
        raise setting.bad(": memory per GPU needs --gpus or --gpu-mem (it is host memory; see --gpu-mem)")
    size = memory.size * {"job": 1, "cpu": cpus, "gpu": gpus}[memory.per]
    if size >= 1 << 63:
        raise setting.bad(" is larger than 2^63 bytes in all")
    return size or site.host_memory
