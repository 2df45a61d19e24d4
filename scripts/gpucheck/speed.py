"""Measure the cost of the hook for calls, and the precision of compute shares (items 7 and 8)."""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gpucheck.place import Place, Share, torch_or_not
from gpucheck.sheet import NotHere, Row, figure, row

_CALLS = {"launches": 300_000, "pairs": 50_000}
_ADDED = {"launches": 50, "pairs": 2_000}  # nanoseconds that the hook may add; a pair is two calls
_RUNS = 5
_SECONDS = 5
_PAIRS = (
    ("large kernels", 8192, ([0.5], [0.1, 0.9])),
    ("short kernels", 2048, ([0.3, 0.7], [0.5, 0.5])),
)
_WORK = """
import json, sys, time, torch
size, until = int(sys.argv[1]), float(sys.argv[2])
a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
a @ a; torch.cuda.synchronize()
print("{}", flush=True); sys.stdin.readline()
count, began = 0, time.monotonic()
while time.monotonic() - began < until:
    for _ in range(8): a @ a
    torch.cuda.synchronize(); count += 8
print(json.dumps({"rate": count / (time.monotonic() - began)}))
"""


def calls(place: Place, *, scale: int = 1) -> Iterator[Row]:
    """Time empty launches and pairs of malloc and free, with and without the hook (item 7)."""
    for name, count in _CALLS.items():
        bare, hooked = [], []
        try:
            with place.share(0.5) as share:
                for _ in range(_RUNS):
                    bare.append(place.ask(name, count // scale)["ns"])
                    hooked.append(share.ask(name, count // scale)["ns"])
        except NotHere as reason:
            yield row(name, None, str(reason))
            continue
        added = statistics.median(hooked) - statistics.median(bare)
        spread = max(bare) - min(bare)
        seen = f"{statistics.median(bare):.0f} ns, {added:+.0f} with the hook (spread {spread:.0f})"
        yield row(name, added <= _ADDED[name] + spread, seen)


@contextmanager
def in_turns(shares: Sequence[Share]) -> Iterator[None]:
    """Give the jobs of one GPU their turns, as a controller does."""
    from fgsched.domain.job import WHOLE
    from fgsched.launch.arbiter import Arbiter, TurnJob, TurnShare
    from fgshim import spawner

    paced = [share for share in shares if share.pacing and share.pacing[0][1] < WHOLE]
    jobs = {
        (number, 1): TurnJob(os.geteuid(), str(share.folder), (TurnShare(0, 0, *share.pacing[0]),))
        for number, share in enumerate(paced)
    }
    with tempfile.TemporaryDirectory(prefix="fgcheck-") as name:
        arbiter = Arbiter(spawner(), Path(name, "lock"))
        arbiter.update(jobs, time.monotonic())
        try:
            while not all((share.folder / "turns").exists() for share in paced):
                time.sleep(0.01)
            yield
        finally:
            arbiter.end()


def _rates(place: Place, shares: list[float], *, size: int) -> list[float]:
    """Return the matrix products per second of concurrent programs by share; 1.0: without the hook."""
    with ExitStack() as stack:
        running = []
        paces = [[("hard", int(part * 10_000))] for part in shares]
        made = [stack.enter_context(place.share(0.2, pacing=pace)) for pace in paces]
        stack.enter_context(in_turns(made))
        for part, share in zip(shares, made, strict=True):
            words = [place.python, "-c", _WORK, str(size), str(_SECONDS)]
            preload = share.preload if part < 1 else {}
            running.append(stack.enter_context(place.start(*words, **preload)))
        for one in running:
            one.go()
        return [float(json.loads(one.end().splitlines()[-1])["rate"]) for one in running]


def shares(place: Place) -> Iterator[Row]:
    """Compare compute shares with the completed work (item 8)."""
    torch_or_not(place)
    for kind, size, pairs in _PAIRS:
        (alone,) = _rates(place, [1.0], size=size)
        yield figure(f"{kind}: alone", f"{alone:.1f} products a second")
        for parts in pairs:
            got = [rate / alone for rate in _rates(place, parts, size=size)]
            good = all(abs(have - part) <= 0.05 for have, part in zip(got, parts, strict=True))
            seen = ", ".join(f"{part}: {have:.3f}" for part, have in zip(parts, got, strict=True))
            yield row(f"{kind}: {' and '.join(map(str, parts))}", good, seen)
