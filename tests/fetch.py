"""Fill the cache of packages that tests use: see scripts/fetch."""

import sys

import cudapackages
import driverpackages


def runtimes() -> None:
    for major in cudapackages.PACKAGES:
        cudapackages.runtime(major)


def drivers() -> None:
    driverpackages.fetch(driverpackages.BRANCHES)


GROUPS = {"drivers": drivers, "runtimes": runtimes}


def main() -> int:
    """Fetch the groups that are named, or all. Exit code 1: one could not be fetched; the others are."""
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
