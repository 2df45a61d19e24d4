"""The program that checks enforcement from within a job.

fence           allocate more than any small limit, without a context
all LIMIT       every way, every view and every other process: one line of JSON for each
take BYTES      allocate, print the status, hold the memory until stdin ends
hold SECONDS    print whether the hook is loaded; if it is not, allocate a little and hold the memory
"""

import json
import sys
import time
from collections.abc import Iterator
from ctypes import byref, c_size_t
from functools import partial

from fgshim.selftest import BEYOND, NotOffered
from fgshim.selftest.others import OTHERS
from fgshim.selftest.views import VIEWS
from fgshim.selftest.ways import WAYS, driver, linear, virtual, way, with_context


def everything(limit: int) -> Iterator[dict[str, object]]:
    """Yield {check, holds, why} of every check; holds is None if the host lacks it. `limit`: bytes."""
    library = with_context()
    checks = {name: partial(way, library, name, limit) for name in WAYS}
    checks |= {name: partial(look, library, limit) for name, look in (VIEWS | OTHERS).items()}
    for name, check in checks.items():
        try:
            why = check()
        except (NotOffered, AttributeError) as error:
            yield {"check": name, "holds": None, "why": str(error)}
        else:
            yield {"check": name, "holds": not why, "why": why}


def fence() -> dict[str, object]:
    """Return the size of the GPU that the job sees, and the status of an allocation above any small limit.

    Raises: OSError if the driver does not show the GPU.
    """
    library = driver()
    total = c_size_t()
    status = library.cuDeviceTotalMem_v2(byref(total), 0)
    if status:
        raise OSError(f"the driver does not show the card: {status}")
    status, give_back = virtual(library, BEYOND)
    if not status:
        give_back()
    return {"status": status, "total": total.value}


def _take(size: int) -> None:
    status, _ = linear(with_context(), size)
    print(status, flush=True)
    sys.stdin.read()


def _hold(seconds: int) -> None:
    with open("/proc/self/maps") as maps:
        is_hooked = "/libfgshim.so\n" in maps.read()
    if is_hooked:  # the watchdog has nothing to see
        print(json.dumps({"hooked": True}))
        return
    status, _ = linear(with_context(), 2 << 20)
    print(json.dumps({"hooked": False, "status": status}), flush=True)
    time.sleep(seconds)


def main(words: list[str]) -> None:
    """Run one verb and print its result, or the error, as JSON."""
    verb, *numbers = words
    try:
        if verb == "all":
            for found in everything(int(numbers[0])):
                print(json.dumps(found), flush=True)
        elif verb == "fence":
            print(json.dumps(fence()))
        else:
            {"take": _take, "hold": _hold}[verb](int(numbers[0]))
    except (OSError, AttributeError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
