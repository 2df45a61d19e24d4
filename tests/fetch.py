"""Fill the cache of packages that tests use: see scripts/fetch."""

import sys
from collections.abc import Callable
from functools import partial

import cudapackages
import driverpackages
import frameworks


def runtimes() -> None:
    for major in cudapackages.PACKAGES:
        cudapackages.runtime(major)


def drivers() -> None:
    driverpackages.fetch(driverpackages.BRANCHES)
    driverpackages.mps_control()


GROUPS: dict[str, Callable[[], None]] = {
    "drivers": drivers,
    "runtimes": runtimes,
    **{group: partial(frameworks.fetch, group) for group in frameworks.PACKAGES},
}


def main() -> int:
    """Fetch the groups that are named, or all.

    Exit code 1: a group could not be fetched; the others are in the cache. 2: there is no such group.
    """
    if unknown := set(sys.argv[1:]) - set(GROUPS):
        print(f"{', '.join(sorted(unknown))}: no such group; there are {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    failed = False
    for name in sys.argv[1:] or GROUPS:
        try:
            GROUPS[name]()
            print(f"{name}: in the cache")
        except cudapackages.NotHere as error:
            failed = True
            print(f"{name}: {error}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
