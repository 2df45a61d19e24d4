"""Which cards are given out: what option, environment and configuration say, and who of them prevails."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from fgsched.domain.errors import BadUsage
from fgsched.domain.job import Gpu, GpuState
from fgsched.domain.text import shown

_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
_UUID = re.compile(r"GPU-[0-9a-fA-F-]{1,36}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Where cards come from and which of them are ours to give out."""

    source: str = "auto"  # "auto": the driver, "none", or "sim:…"
    only: tuple[int | str, ...] | None = None  # indices and beginnings of UUIDs; None: all
    headroom: int = 0  # bytes of each that no job is given

    def of(self, gpus: Sequence[Gpu], why: str = "") -> tuple[Gpu, ...]:
        """The chosen cards by index. One that was named and is missing is among them, down."""
        chosen = {gpu.index: replace(gpu, headroom=self.headroom) for gpu in gpus}
        if self.only is not None:
            chosen = {gpu.index: gpu for gpu in self._named(chosen, why or "the host has no such card")}
        return tuple(chosen[index] for index in sorted(chosen))

    def _named(self, gpus: dict[int, Gpu], why: str) -> Iterator[Gpu]:
        free = max([*gpus, *(item for item in self.only or () if isinstance(item, int))], default=-1) + 1
        for item in self.only or ():
            if isinstance(item, int):
                yield gpus.get(item) or _absent(item, f"absent-{item}", why)
                continue
            found = [gpu for gpu in gpus.values() if gpu.uuid.lower().startswith(item.lower())]
            if len(found) > 1:
                raise BadUsage(f"{item} is the beginning of {len(found)} UUIDs.", "Give more of it.")
            if not found:
                free += 1
            yield found[0] if found else _absent(free - 1, item, why)


def select(devices: str, environ: Mapping[str, str], *, option: str = "", headroom: int = 0) -> Selection:
    """The option prevails over FG_DEVICES and CUDA_VISIBLE_DEVICES, these over the configuration.

    Each may name a source, a list or a number of cards; whoever names a source silences those after it.
    """
    source, number, only = "auto", None, None
    by: dict[str, str] = {}
    for name, text in _voices(devices, environ, option):
        said = _read(name, text)
        if isinstance(said, int) and number is None and only is None:
            number, by["number"] = said, name
        elif isinstance(said, tuple) and only is None:
            only, by["list"] = said, f"{name}={text}"
        elif isinstance(said, str):
            source = said
            break
    if number is not None and only is not None and number != len(only):
        raise BadUsage(
            f"{by['number']} says {number} GPUs, and {by['list']} lists {len(only)}.", "Make them agree."
        )
    if number is not None and only is None:
        only = tuple(range(number))
    return Selection(source=source, only=only, headroom=headroom)


def _voices(devices: str, environ: Mapping[str, str], option: str) -> Iterator[tuple[str, str]]:
    """(who, what), the strongest first."""
    if option:
        yield "--gpus", option
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    own = environ.get("FG_DEVICES", "")
    # A list in FG_DEVICES is meant for us; a source there leaves the list to CUDA's variable.
    is_source = own in ("auto", "none") or own.startswith("sim:")
    if own and not is_source:
        yield "FG_DEVICES", own
    if visible is not None:
        yield "CUDA_VISIBLE_DEVICES", visible
    if own and is_source:
        yield "FG_DEVICES", own
    yield "[gpus] devices", devices


def _read(name: str, text: str) -> str | int | tuple[int | str, ...]:
    """A source, a number of cards, or a list of them."""
    text = text.strip()
    if name == "CUDA_VISIBLE_DEVICES":
        return _visible(text)
    if text in ("auto", "none") or text.startswith("sim:"):
        return text
    if re.fullmatch(r"[0-9]{1,4}", text):
        return int(text)
    return _list(name, text)


def _visible(text: str) -> tuple[int | str, ...]:
    """As CUDA reads it: always a list, and nothing after the first entry that names no card."""
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
        elif item.startswith("MIG-"):
            raise BadUsage(f"{name}: {shown(item)}: MIG devices are not supported yet.", "Name whole cards.")
        else:
            raise BadUsage(
                f"{name}: {shown(text)} does not name GPUs.",
                "Use auto, none, a number of cards, a list such as 0,2-3 (of one card: 1,), UUIDs, "
                "or sim:4x80G:H100.",
            )
    return tuple(dict.fromkeys(items))


def _absent(index: int, uuid: str, why: str) -> Gpu:
    return Gpu(index=index, uuid=uuid, model="", total=0, state=GpuState.DOWN, note=why)
