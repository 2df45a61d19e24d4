"""Compare trainings of PyTorch: two side by side, with and without the hook, and as graphs of kernels."""

import json
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

from gpucheck.place import Place, Share, torch_or_not
from gpucheck.sheet import NotHere, Row, figure, row
from gpucheck.speed import in_turns

_PARTS = (0.25, 0.75)
_WINDOW = 10.0  # seconds over which a share of compute is measured
_ALONE, _TOGETHER, _ONCE = 5, 21, 3  # seconds of a training: alone, beside another, to measure the hook
_RUNS = 3
_OFF = 0.03  # the most that a share may differ in a window
_LOST = 0.05  # the most that two trainings may lose together
_SLOWER = 0.01  # the most that the hook may cost a training
_SAME = 1e-3  # relative difference of equal losses

Mark = tuple[float, int, float]  # seconds since the epoch, steps so far, loss


def trained(output: str) -> list[Mark]:
    """Return the marks of a training. Raises NotHere if it could not run."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {"error": "it printed nothing"}
    if "error" in found:
        raise NotHere(str(found["error"]))
    return [(mark[0], mark[1], mark[2]) for mark in found["marks"]]


def rate(marks: Sequence[Mark]) -> float:
    """Return the steps per second of a whole training."""
    (began, *_), (ended, steps, _) = marks[0], marks[-1]
    return steps / (ended - began) if ended > began else 0.0


def in_window(marks: Sequence[Mark], start: float, end: float) -> float:
    """Return the steps per second between two times. A step counts for its part between them."""
    done = 0.0
    for (before, first, _), (after, last, _) in pairwise(marks):
        inside = min(after, end) - max(before, start)
        if after > before and inside > 0:
            done += (last - first) * inside / (after - before)
    return done / (end - start)


def windows(pair: Sequence[Sequence[Mark]], length: float) -> list[tuple[float, float]]:
    """Return the windows of this length in which both trainings run."""
    start, end = max(marks[0][0] for marks in pair), min(marks[-1][0] for marks in pair)
    count = int((end - start) / length)
    return [(start + at * length, start + (at + 1) * length) for at in range(count)]


def same_losses(one: Sequence[Mark], other: Sequence[Mark]) -> tuple[int, float]:
    """Return the last step that both trainings reached, and the relative difference of their losses there."""
    losses = {steps: loss for _, steps, loss in one}
    common = [(steps, loss, losses[steps]) for _, steps, loss in other if steps in losses]
    steps, have, expected = common[-1]
    return steps, abs(have - expected) / max(abs(expected), 1e-9)


def _together(shares: Sequence[tuple[Share, bool]], seconds: float, how: str = "kernels") -> list[list[Mark]]:
    """Run trainings at once. `shares`: each with whether it has the hook."""
    with ExitStack() as stack:
        running = []
        for share, is_hooked in shares:
            words = share.place.torch_program("train", seconds, how)
            preload = share.preload if is_hooked else {}
            running.append(stack.enter_context(share.place.start(*words, **preload)))
        for one in running:
            one.go()
        return [trained(one.first + one.end()) for one in running]


def side_by_side(place: Place, *, seconds: float = _TOGETHER, window: float = _WINDOW) -> Iterator[Row]:
    """Train with shares of 0.25 and 0.75 at once, and compare with a training alone."""
    torch_or_not(place)
    with ExitStack() as stack:
        made = [
            stack.enter_context(place.share(0.2, pacing=[("hard", int(part * 10_000))])) for part in _PARTS
        ]
        # As graphs, because single launches would not use the whole GPU.
        [alone] = _together([(made[0], False)], min(seconds, _ALONE), "graph")
        with in_turns(made):
            pair = _together([(share, True) for share in made], seconds, "graph")
    yield from compared(alone, pair, window)


def compared(alone: Sequence[Mark], pair: Sequence[Sequence[Mark]], window: float) -> Iterator[Row]:
    """Compare two trainings at once with one alone."""
    whole = rate(alone)
    parts = [rate(marks) / whole for marks in pair]
    yield figure("alone", f"{whole:.1f} steps a second")
    ratio = parts[1] / parts[0] if parts[0] else 0.0
    yield row("throughput of 0.75 by that of 0.25", 2.67 <= ratio <= 3.33, f"{ratio:.2f} (3.00)")
    lost = 1 - sum(parts)
    yield row("throughput that both lose against one alone", lost <= _LOST, f"{lost:.1%}")
    for part, marks in zip(_PARTS, pair, strict=True):
        found = [in_window(marks, *one) / whole for one in windows(pair, window)]
        if not found:
            yield row(f"{part}: share in windows", None, f"they ran together for less than {window:.0f} s")
            continue
        off = statistics.fmean(abs(one - part) for one in found)
        seen = f"{', '.join(f'{one:.3f}' for one in found)}; off by {off:.3f}"
        yield row(f"{part}: share in windows of {window:.0f} s", off <= _OFF, seen)
        steps, difference = same_losses(alone, marks)
        yield row(f"{part}: loss as alone", difference <= _SAME, f"step {steps}: off by {difference:.1e}")


def overhead(place: Place, *, seconds: float = _ONCE, runs: int = _RUNS) -> Iterator[Row]:
    """Train with and without the hook in turns (T8)."""
    torch_or_not(place)
    for how in ("kernels", "graph"):
        with place.share(0.5) as share, ExitStack() as stack:
            words = place.torch_program("train", seconds, how)
            bare, hooked = (stack.enter_context(place.start(*words, **env)) for env in ({}, share.preload))
            turns = [(rate(trained(bare.again())), rate(trained(hooked.again()))) for _ in range(runs)]
        yield cost(f"training with {how}", [one for one, _ in turns], [other for _, other in turns])


def cost(what: str, bare: Sequence[float], hooked: Sequence[float]) -> Row:
    """Compare rates with and without the hook. A cost below the spread of the runs is not judged."""
    usual = statistics.median(bare)
    slower, spread = 1 - statistics.median(hooked) / usual, (max(bare) - min(bare)) / usual
    seen = f"{usual:.1f} steps a second, {slower:+.2%} slower with the hook (spread {spread:.2%})"
    return row(what, None if _SLOWER < slower <= spread else slower <= _SLOWER, seen)


def graphs(place: Place, *, seconds: float = _ONCE) -> Iterator[Row]:
    """Replay graphs of kernels with half of the GPU time."""
    torch_or_not(place)
    with place.share(0.2, pacing=[("hard", 5_000)]) as share:
        [alone] = _together([(share, False)], seconds, "graph")
        with in_turns([share]):
            [paced] = _together([(share, True)], seconds, "graph")
    part = rate(paced) / rate(alone)
    yield row("graphs of kernels at 0.5", abs(part - 0.5) <= 0.05, f"{part:.3f} of the rate alone")
