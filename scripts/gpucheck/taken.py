"""Memory of pools, heaps, stacks and module variables, and the prices of the driver's calls."""

from collections.abc import Iterator
from typing import Any

from gpucheck import probing
from gpucheck.place import MIB, Place
from gpucheck.sheet import Row, figure, row

LIMIT = 2048 * MIB  # bytes, of a job that asks for more
_OUT_OF_MEMORY = 2
_RUNS = {"without the hook": None, "with it, not paced": (), "with it, paced": (("hard", 9999),)}
_EXPECTED = 60  # nanoseconds that a launch may cost more with the hook, in any number of streams


def driver(place: Place) -> Iterator[Row]:
    """Measure what the driver takes for pools, heaps, stacks and variables, and when."""
    for way in probing.asked(place, "memory", LIMIT // 2)["ways"]:
        yield figure(way["way"], _seen(way), decides="whether the charge of the hook is due at the call")


def limits(place: Place) -> Iterator[Row]:
    """Ask for twice the limit in each of these ways, in a job."""
    with place.share(LIMIT / place.total) as share:
        ways = probing.asked(place, "memory", 2 * share.limit, **share.preload)["ways"]
    for way in ways:
        is_more = way["asked"] > share.limit and "after a kernel" not in way["way"]
        if not is_more or way["way"] == "managed memory":
            yield figure(f"in a job: {way['way']}", _seen(way), decides="what such a program meets in a job")
            continue
        is_held = way["status"] != 0 and way["fell"] <= 0
        yield row(f"in a job: {way['way']}", is_held, _seen(way), decides="whether this way exceeds a limit")


def _seen(way: dict[str, Any]) -> str:
    asked = f"{way['asked'] // MIB} MiB"
    if way["status"] == _OUT_OF_MEMORY:
        return f"{asked}: out of memory"
    if way["status"]:
        return f"{asked}: status {way['status']}"
    return f"{asked}: free memory fell by {way['fell'] // MIB} MiB"


def prices(place: Place, *, count: int = 20_000) -> Iterator[Row]:
    """Time calls of the driver, without and with the hook."""
    found = {}
    for name, pacing in _RUNS.items():
        if pacing is None:
            found[name] = probing.asked(place, "costs", count)
            continue
        with place.share(0.5, pacing=pacing) as share:
            found[name] = probing.asked(place, "costs", count, **share.preload)
    bare, *hooked = found.values()
    for call, price in bare.items():
        seen = f"{price:.0f} ns; " + ", ".join(
            f"{one[call] - price:+.0f} {name}" for name, one in list(found.items())[1:]
        )
        if not call.startswith("a launch"):
            yield figure(call, seen, decides="the price of an account by events and of a view")
            continue
        dearest = max(one[call] - price for one in hooked)
        yield row(call, dearest <= _EXPECTED + price / 10, seen, decides="whether pacing may use this call")
