"""Choose the GPUs that jobs may use: by the option --gpus, the environment and the configuration."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from fgsched.domain.errors import BadUsage
from fgsched.domain.job import WHOLE, Gpu, GpuState, MigInstance
from fgsched.domain.text import shown
from fgsched.gpus import vendors
from fgsched.gpus.mig import NO_INSTANCES
from fgsched.lifecycle.jobvariables import translated

_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]{1,36}")


class Selection(Struct, frozen=True, kw_only=True):
    """The source of GPUs, and the GPUs that jobs may use."""

    source: str = "auto"  # "auto" for the driver, "none", or a vendor's such as "sim:4x80G"
    only: tuple[int | str, ...] | None = None  # indices and prefixes of UUIDs; None: all
    headroom: int = 0  # bytes of each GPU that are kept free of jobs
    features: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # of GPUs, by index
    share_instances: bool = False  # parts of MIG instances are allocated
    capacity: int = WHOLE  # ten-thousandths of each GPU that jobs may hold
    capacities: Mapping[int, int] = field(default_factory=dict)  # other ones, by index

    def of(self, gpus: Sequence[Gpu], why: str = "") -> tuple[Gpu, ...]:
        """Return the selected GPUs by index; one that is named but missing is included as DOWN.

        The index or UUID of a GPU in MIG mode selects its instances.

        Args:
            why: the reason for missing GPUs.

        Raises:
            BadUsage: a prefix fits the UUIDs of several GPUs.
        """
        chosen = {gpu.index: self._configured(gpu) for gpu in gpus}
        if self.only is not None:
            chosen = {gpu.index: gpu for gpu in self._named(chosen, why or "the host has no such card")}
        has_whole = any(not gpu.mig and gpu.note != NO_INSTANCES for gpu in chosen.values())
        if has_whole and any(gpu.mig for gpu in chosen.values()):
            chosen = {index: replace(gpu, is_named=gpu.mig is not None) for index, gpu in chosen.items()}
        return tuple(chosen[index] for index in sorted(chosen))

    def _configured(self, gpu: Gpu) -> Gpu:
        is_unit = gpu.mig is not None and not self.share_instances
        features = self.features.get(gpu.index, ())
        capacity = WHOLE if gpu.mig else self.capacities.get(gpu.index, self.capacity)
        return replace(gpu, headroom=self.headroom, features=features, is_unit=is_unit, capacity=capacity)

    def _named(self, gpus: dict[int, Gpu], why: str) -> Iterator[Gpu]:
        free = max([*gpus, *(item for item in self.only or () if isinstance(item, int))], default=-1) + 1
        for item in self.only or ():
            if parts := [gpu for gpu in gpus.values() if gpu.mig and _selects_gpu_of(gpu.mig, item)]:
                yield from parts
                continue
            if isinstance(item, int):
                yield gpus.get(item) or _absent(item, f"absent-{item}", why)
                continue
            matching = [gpu for gpu in gpus.values() if gpu.uuid.lower().startswith(item.lower())]
            if len(matching) > 1:
                raise BadUsage(f"{item} is the beginning of {len(matching)} UUIDs.", "Give a longer prefix.")
            if not matching:
                free += 1
            yield matching[0] if matching else _absent(free - 1, item, why)


def select(
    devices: str,
    environ: Mapping[str, str],
    *,
    option: str = "",
    headroom: int = 0,
    features: Mapping[int, tuple[str, ...]] | None = None,
    share_instances: bool = False,
) -> Selection:
    """Combine the option, FG_DEVICES, CUDA_VISIBLE_DEVICES and the configuration, in descending precedence.

    Each can contain a source, a list or a number of GPUs. After one that contains a source, the others are
    ignored.

    Args:
        devices: `[gpus] devices` of the configuration.
        option: the value of --gpus.
        headroom: bytes of each GPU that are kept free of jobs.
        features: of GPUs, by index.
        share_instances: parts of MIG instances are allocated.

    Raises:
        BadUsage: a value is malformed, or a number and a list disagree.
    """
    source, only = _combined(_settings(devices, environ, option))
    return Selection(
        source=source, only=only, headroom=headroom, features=features or {}, share_instances=share_instances
    )


def _combined(settings: Iterable[tuple[str, str]]) -> tuple[str, tuple[int | str, ...] | None]:
    """Return the source and the list of GPUs of settings in descending precedence. Raises BadUsage."""
    source, number, only = "auto", None, None
    by: dict[str, str] = {}
    for name, text in settings:
        value = _read(name, text)
        if isinstance(value, int) and number is None and only is None:
            number, by["number"] = value, name
        elif isinstance(value, tuple) and only is None:
            only, by["list"] = value, f"{name}={text}"
        elif isinstance(value, str):
            source = value
            break
    if number is not None and only is not None and number != len(only):
        raise BadUsage(
            f"{by['number']} says {number} GPUs, and {by['list']} lists {len(only)}.", "Make them agree."
        )
    if number is not None and only is None:
        only = tuple(range(number))
    return source, only


def _settings(devices: str, environ: Mapping[str, str], option: str) -> Iterator[tuple[str, str]]:
    """Yield (name, value) in descending precedence."""
    if option:
        yield "--gpus", option
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    setting = environ.get("FG_DEVICES", "")
    # A list in FG_DEVICES comes before CUDA's variable; a source there comes after it.
    is_source = _is_source(setting)
    if setting and not is_source:
        yield "FG_DEVICES", setting
    if visible is not None:
        yield "CUDA_VISIBLE_DEVICES", translated(visible, environ, "FG_GPU_UUIDS")
    if setting and is_source:
        yield "FG_DEVICES", setting
    yield "[gpus] devices", devices


def _is_source(text: str) -> bool:
    return text in ("auto", "none") or vendors.described(text) is not None


def _read(name: str, text: str) -> str | int | tuple[int | str, ...]:
    """Parse a source, a number of GPUs, or a list of GPUs."""
    text = text.strip()
    if name == "CUDA_VISIBLE_DEVICES":
        return _visible(text)
    if _is_source(text):
        return text
    if re.fullmatch(r"[0-9]{1,4}", text):
        return int(text)
    return _list(name, text)


def _visible(text: str) -> tuple[int | str, ...]:
    """Parse a list as CUDA does, which ignores everything after the first malformed entry."""
    items: list[str] = []
    for item in text.split(","):
        if not _RANGE.fullmatch(item.strip()) and not item.strip().startswith(("GPU-", "MIG-")):
            break
        items.append(item)
    return _list("CUDA_VISIBLE_DEVICES", ",".join(items)) if items else ()


def _list(name: str, text: str) -> tuple[int | str, ...]:
    items: list[int | str] = []
    for item in (part.strip() for part in text.removesuffix(",").split(",")):
        if indices := _RANGE.fullmatch(item):
            items += range(int(indices[1]), int(indices[2] or indices[1]) + 1)
        elif _UUID.fullmatch(item):
            items.append(item)
        else:
            raise BadUsage(
                f"{name}: {shown(text)} does not name GPUs.",
                "Use auto, none, a number of GPUs, a list such as 0,2-3 (of one GPU: 1,), UUIDs, "
                "or sim:4x80G:H100.",
            )
    return tuple(dict.fromkeys(items))


def _selects_gpu_of(place: MigInstance, item: int | str) -> bool:
    """Tell whether an item selects the GPU of a MIG instance."""
    if isinstance(item, int):
        return place.gpu == item
    return place.parent.lower().startswith(item.lower())


def _absent(index: int, uuid: str, why: str) -> Gpu:
    return Gpu(index=index, uuid=uuid, model="", total=0, state=GpuState.DOWN, note=why)
