"""Measure what programs on one GPU feel of each other: latency beside a hungry one, and NCCL."""

import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from gpucheck.place import Place, Share, said, torch_or_not
from gpucheck.sheet import NotHere, Row, figure, row
from gpucheck.speed import in_turns

_SECONDS = 5


def percentile(values: Sequence[float], part: float) -> float:
    """Return the smallest value that is not below this part of all values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _waited(share: Share, seconds: float, rows: int, *, beside: Share | None, is_hooked: bool) -> list[float]:
    """Return the microseconds of small kernels, alone or beside a hungry program of another share."""
    place = share.place
    with ExitStack() as stack:
        if beside is not None:
            words = place.torch_program("hungry", *([rows] if rows else []))
            stack.enter_context(place.start(*words, **(beside.preload if is_hooked else {})))
        preload = share.preload if is_hooked else {}
        small = stack.enter_context(place.start(*place.torch_program("latency", seconds), **preload))
        small.go()
        found = json.loads((small.first + small.end()).splitlines()[-1])
        if "error" in found:
            raise NotHere(found["error"])
        return [float(value) for value in found["us"]]


def latency(place: Place, *, seconds: float = _SECONDS, rows: int = 0) -> Iterator[Row]:
    """Time a small kernel alone and beside a hungry program."""
    torch_or_not(place)
    with ExitStack() as stack:
        small, large = (
            stack.enter_context(place.share(0.2, pacing=[("hard", part)])) for part in (2_500, 7_500)
        )
        alone = _waited(small, seconds, rows, beside=None, is_hooked=False)
        free = _waited(small, seconds, rows, beside=large, is_hooked=False)
        with in_turns([small, large]):
            paced = _waited(small, seconds, rows, beside=large, is_hooked=True)
    for what, values in (("alone", alone), ("beside a hungry one", free), ("the same, 0.25 and 0.75", paced)):
        yield figure(f"small kernel {what}", times(values))


def times(values: Sequence[float]) -> str:
    """Describe durations in microseconds."""
    middle, high = statistics.median(values), percentile(values, 0.99)
    return f"p50 {middle:.0f} us, p99 {high:.0f} us, of {len(values)}"


def nccl(place: Place) -> Iterator[Row]:
    """Add up a tensor with NCCL: one rank, and two ranks on one GPU."""
    torch_or_not(place)
    with place.share(0.5) as share:
        bare, hooked = (_sums(place, 1, env) for env in ({}, share.preload))
        good = hooked == bare if bare == ["1.0 of 1.0"] else None  # NCCL does not work here
        yield row("one rank", good, f"{hooked[0]}, without the hook {bare[0]}")
        bare, hooked = (_sums(place, 2, env) for env in ({}, share.preload))
        yield row("two ranks on one GPU: as without the hook", hooked == bare, "; ".join(hooked))


def _sums(place: Place, ranks: int, env: dict[str, str]) -> list[str]:
    """Return the sum, or the kind of error, of each rank."""
    with tempfile.TemporaryDirectory(prefix="fgcheck-") as folder, ExitStack() as stack:
        meeting = Path(folder, "meeting")
        programs = [place.torch_program("nccl", meeting, rank, ranks) for rank in range(ranks)]
        running = [stack.enter_context(place.begin(*words, **env)) for words in programs]
        return [_sum(one.end()) for one in running]


def _sum(output: str) -> str:
    lines = [line for line in output.splitlines() if line.startswith("{")]
    found = json.loads(lines[-1]) if lines else {"error": "it printed nothing"}
    return (
        str(found["error"]).partition(":")[0]
        if "error" in found
        else f"{found['sum']} of {found['expected']}"
    )


def side_by_side(place: Place) -> Iterator[Row]:
    """Compare all views of one program's memory (T5)."""
    torch_or_not(place)
    size = 512 << 20
    with place.share(0.25) as share:
        found = said(share.run(*place.torch_program("views", size)))
        if "error" in found:
            raise NotHere(found["error"])
        total, used = found["torch"]
        for name, (other, also) in found.items():
            seen = f"{other >> 20} MiB, {also >> 20} used; limit {share.limit >> 20}"
            near = abs(other - total) <= (2 << 20) and abs(also - used) <= max(2 << 20, used // 100)
            yield row(f"{name}: total and used", near and abs(other - share.limit) <= (2 << 20), seen)
