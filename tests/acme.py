"""A second GPU vendor, whose devices are files: the least that the package of a vendor contains.

`python tests/acme.py` runs a controller that knows it. Its GPUs are those of FG_DEVICES=acme:COUNT, and their
device nodes are acme0, acme1, … in FG_HOME.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fgsched.domain.errors import BadUsage
from fgsched.domain.job import Gpu, Reading
from fgsched.domain.vendor import VendorFacts
from fgsched.gpus import vendors
from fgsched.gpus.backend import INVENTORY, READING, GpuReport

GIB = 1 << 30


class AcmeGpus:
    """The opened driver of Acme. It never blocks."""

    is_sampled = False

    def __init__(self, count: int) -> None:
        self.gpus = tuple(
            Gpu(index=index, uuid=f"ACME-{os.getpid()}-{index}", model="Acme One", total=16 * GIB)
            for index in range(count)
        )

    def answer(self, want: str) -> GpuReport:
        if want == INVENTORY:
            return GpuReport(want=want, gpus=self.gpus)
        if want == READING:
            return GpuReport(
                want=want, readings={one.uuid: Reading(gpu=one.index, used=0) for one in self.gpus}
            )
        return GpuReport(want=want)


class Acme:
    """The vendor Acme, as `vendors.VENDORS` lists it."""

    facts = VendorFacts(
        name="Acme",
        source="acme",
        may_hang=False,
        is_hooked=False,
        selection="ACME_VISIBLE",
        constant=(("ACME_ORDER", "slot"),),
        prefix="ACME_",
        brands=("Acme",),
        runtime="Acme's runtime",
        listing="acme list",
        query="acme top",
    )

    def has_driver(self) -> bool:
        return False

    def driver_state(self) -> str:
        return ""

    def check(self, description: str) -> None:
        if not description.isdecimal():
            raise BadUsage(f"acme:{description} does not describe GPUs of Acme.", "Use acme:COUNT.")

    def backend(self, description: str, environ: Mapping[str, str], deadline: float) -> AcmeGpus:
        self.check(description)
        return AcmeGpus(int(description))

    def nodes(self) -> tuple[str, ...]:
        return tuple(sorted(map(str, Path(os.environ["FG_HOME"]).glob("acme[0-9]"))))

    def nodes_of(self, gpus: Iterable[Gpu]) -> dict[str, tuple[str, ...]]:
        return {gpu.uuid: (f"{os.environ['FG_HOME']}/acme{gpu.index}",) for gpu in gpus}

    def container_nodes(self, uuids: Sequence[str]) -> tuple[str, ...]:
        return ()

    def container_files(self) -> tuple[str, ...]:
        return ()

    def has_cdi(self) -> bool:
        return False


def main() -> None:
    """Run a controller; print a line when it is ready."""
    from fgsched.controller.__main__ import run_controller

    vendors.VENDORS.append(Acme())
    run_controller(ready=lambda: print("ready", flush=True))


if __name__ == "__main__":
    sys.exit(main())
