"""Check device memory: the size of contexts, the usable part of a limit, and the effect of failures."""

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack

from gpucheck.place import MIB, Place, Share, near
from gpucheck.sheet import NotHere, Row, figure, row

_PARTS = (0.1, 0.25, 0.5)
_CONTEXT = "primary context"
_ASSUMED = 256 * MIB  # the default of context_memory


def contexts(place: Place) -> Iterator[Row]:
    """Measure the driver's memory for a process before its first allocation (item 2)."""
    before, steps = 0, place.ask("contexts")
    for name, used in steps.items():
        yield figure(name, f"{used / MIB:.0f} MiB in all, {(used - before) / MIB:+.0f}")
        before = used
    with place.share(0.25, contexts=[(_ASSUMED, False)]) as share:
        charged = share.ask("contexts")[_CONTEXT]
    taken = f"the driver takes {steps[_CONTEXT] / MIB:.0f} MiB"
    yield figure("a context's charge until one was measured", f"{charged / MIB:.0f} MiB; {taken}")
    for count in (1, 4, 16):
        yield figure(f"{count} processes with a context", f"{_together(place, count) / MIB:.0f} MiB")


def _together(place: Place, count: int) -> int:
    """Return the additional used memory of the GPU while a number of processes have contexts."""
    empty = place.ask("used")["used"]
    with ExitStack() as running:
        for _ in range(count):
            running.enter_context(place.start(*place.program("hold", 0)))
        return int(place.ask("used")["used"] - empty)


_SMALL = ((1, 8193), (4096, 5120), (64 << 10, 320), (700 << 10, 32), (1 << 20, 32))  # (bytes, allocations)


def chunks(place: Place) -> Iterator[Row]:
    """Check that the hook charges no fewer chunks for small allocations than the driver takes."""
    for size, count in _SMALL:
        found = place.ask("chunks", size, count)
        charged = found["windows"] * 2 * MIB
        seen = f"the driver takes {found['took'] / MIB:.1f} MiB, the hook charges {charged // MIB} MiB"
        yield row(f"{count} allocations of {size} bytes", found["took"] <= charged, seen)


def families(place: Place) -> Iterator[Row]:
    """Check every kind of allocation, at limits of a tenth, a quarter and a half (item 3)."""
    for part in _PARTS:
        with place.share(part) as share:
            for name in share.ask("ways")["ways"]:
                yield _family(share, f"{part}: {name}", name)
            yield from _trial(share, str(part))


def _family(share: Share, what: str, name: str) -> Row:
    try:
        found = share.ask("fill", name, share.limit)
    except NotHere as reason:
        return row(what, None, str(reason))
    had, status = found["had"], found["status"]
    seen = f"{had / share.limit:.1%} of the limit, then status {status}; NVML: {found['used'] // MIB} MiB"
    return row(what, had <= share.limit and had > share.limit * 0.5 and status == 2, seen)


def _trial(share: Share, part: str) -> Iterator[Row]:
    """Check views, a second process, a killed process, and a process with a cleared environment."""
    from fgshim import selftest

    done = share.run(share.place.python, *selftest.command("all", share.limit)[1:])
    for line in done.stdout.splitlines():
        found = json.loads(line) if line.startswith("{") else {}
        if "error" in found:
            yield row(f"{part}: {found['error']}", False, "")
        elif found.get("check") == "env -i":
            why = "LD_PRELOAD alone is lost there: preload = namespace, or the watchdog, is for that"
            yield row(f"{part}: env -i", None if not found["holds"] else True, found["why"] and why)
        elif found and found["check"] not in share.ask("ways")["ways"]:
            yield row(f"{part}: {found['check']}", found["holds"], found["why"] or "as it should be")


def survivors(place: Place) -> Iterator[Row]:
    """Check that neighbours survive a process that runs out of memory or is killed (item 9)."""
    with ExitStack() as stack:
        one, other = (stack.enter_context(place.share(0.25)) for _ in range(2))
        neighbour = stack.enter_context(other.start("hold", other.limit // 2))
        took = json.loads(neighbour.first or "{}").get("status")
        yield row("a neighbour takes half of its share", took == 0, f"status {took}")
        over = one.ask("fill", "cuMemAlloc", one.limit)
        yield row("one runs out of memory", over["status"] == 2 and over["had"] <= one.limit, f"{over}")
        with one.start("churn") as victim:
            victim.process.send_signal(signal.SIGKILL)
            victim.end()
            killed = victim.process.returncode == -signal.SIGKILL
        yield row("one is killed while it allocates", killed, "SIGKILL")
        after = one.ask("fill", "cuMemAlloc", one.limit)
        same = near(after["had"], over["had"])
        yield row("its memory can be had again", same, f"{after['had'] // MIB} of {over['had'] // MIB} MiB")
        neighbour.end()
        code = neighbour.process.returncode
        yield row("the neighbour lives on", code == 0, f"it ended with {code}")
