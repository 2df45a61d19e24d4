"""The numbers of CUDA_VISIBLE_DEVICES in a job, and the device nodes that it can open."""

import sys
from collections.abc import Iterator
from typing import Any

from gpucheck.place import PROGRAMS, ROOT, Place
from gpucheck.sheet import NotHere, Row, figure, row
from gpucheck.submitted import Submitted, Wanted, gate, submit

_SETTINGS = '[fence]\ntiers = ["driver", "shim", "watchdog", "none"]\n'
_READY = 20.0  # seconds
_LOOK = f"{sys.executable} {PROGRAMS} {ROOT} numbers >@OUT@"
_ONE_GPU = "this host has one GPU: how the driver counts beside closed nodes needs a host with several"


def section(place: Place) -> Iterator[Row]:
    """Compare the numbers in jobs with the GPUs that CUDA and NVML show there."""
    with place.controller(_SETTINGS) as (client, home):
        yield from _job(place, submit(client, home, [Wanted(_LOOK, share=0.5)]), "half of a GPU")
        if place.count < 2:
            yield row("a job beside another one", None, _ONE_GPU)
            return
        with gate(home) as held:
            first = submit(client, home, [Wanted(f"echo '{{}}' >@OUT@; read line <{held}")])
            first.until_printed(_READY + place.longer)
            for gpus in {1, min(2, place.count - 1)}:
                yield from _job(
                    place, submit(client, home, [Wanted(_LOOK, gpus=gpus)]), f"{gpus} GPUs, not the first"
                )
                bare = submit(client, home, [Wanted(_LOOK, gpus=gpus, tier="none")])
                yield from _without_hook(place, bare, f"{gpus} GPUs, not the first, without the hook")


def _said(place: Place, jobs: Submitted) -> dict[str, Any]:
    jobs.until_printed(_READY + place.longer)
    jobs.wait(_READY + place.longer)
    return jobs.said()[0]


def _job(place: Place, jobs: Submitted, what: str) -> Iterator[Row]:
    printed = _said(place, jobs)
    others = jobs.shown()[0].other_gpus
    words, uuids = printed["words"], printed["uuids"]
    are_numbers = words == [str(at) for at in range(len(uuids))]
    yield row(f"{what}: numbers from 0", are_numbers, ",".join(words), decides="whether vLLM can read them")
    yield row(
        f"{what}: CUDA has these GPUs",
        printed["cuda"] == uuids,
        f"{len(printed['cuda'])} of {len(uuids)}, other nodes {others}",
        decides="whether a number selects the right GPU",
    )
    yield row(
        f"{what}: NVML has them under the numbers",
        printed["nvml"] == uuids,
        f"{printed['nvml_count']} in NVML",
        decides="whether frameworks measure the GPU that they use",
    )
    yield row(
        f"{what}: device nodes of other GPUs",
        not printed["foreign"] if others == "closed" else None,
        f"can open {printed['foreign'] or 'none'}, {others}",
        decides="whether the namespace closes them",
    )


def _without_hook(place: Place, jobs: Submitted, what: str) -> Iterator[Row]:
    """Measure how the driver itself counts GPUs whose nodes are closed."""
    try:
        printed = _said(place, jobs)
    except NotHere as reason:
        yield row(what, None, str(reason))
        return
    seen = f"CUDA counts {len(printed['cuda'])} for {','.join(printed['words'])}"
    good = printed["cuda"] == printed["uuids"]
    yield row(what, good, seen, decides="whether the driver counts only the GPUs that it can open")
    yield figure(f"{what}, in NVML", f"{printed['nvml_count']} GPUs", decides="how NVML numbers them there")
