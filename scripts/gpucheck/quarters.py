"""Four jobs with a quarter of the GPU each, which all take the memory that they see as free."""

from collections.abc import Iterator

from gpucheck import probing
from gpucheck.place import MIB, Place
from gpucheck.sheet import Row, row
from gpucheck.submitted import Wanted, gate, submit

_PART = 0.95  # of the free memory that a program takes, as vLLM and llama.cpp do
_READY = 20.0  # seconds until all have taken it
_END = 15.0


def section(place: Place) -> Iterator[Row]:
    """Fill four quarters of the GPU at once."""
    with place.controller() as (client, home), gate(home) as held:
        fill = " ".join(probing.command("fill", _PART))
        wanted = [Wanted(f"PROBE_OUT=@OUT@ exec {fill} <{held}", share=0.25)] * 4
        jobs = submit(client, home, wanted)
        jobs.until_printed(_READY + place.longer)
        used, told = place.ask("used")["used"], jobs.said()
    for at, one in enumerate(told, 1):
        seen = f"told {one['free'] // MIB} MiB free, took {one['asked'] // MIB}, status {one['status']}"
        yield row(
            f"quarter {at} takes {_PART:.0%}",
            not one["status"],
            seen,
            decides="whether a program can take the memory that it sees",
        )
    taken = sum(one["asked"] for one in told if not one["status"])
    seen = f"{used // MIB} of {place.total // MIB} MiB, {taken // MIB} of them by the calls"
    yield row(
        "all four at once", taken <= used <= place.total, seen, decides="what the contexts of four jobs take"
    )
