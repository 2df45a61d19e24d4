"""The program that tries a fence.

fence           what more than any small limit comes to, without a context
all LIMIT       every way, every view and every other process: a line of JSON each
take BYTES      take so much, say the status, hold it until stdin ends
hold SECONDS    take a little, say whether the hook is here, hold it
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
    """{check, holds, why} of every way, view and process; holds is None where there is no such thing here."""
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
    """What a job sees of the card, and what the driver says to more than any small limit."""
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
    status, _ = linear(with_context(), 2 << 20)
    print(json.dumps({"hooked": is_hooked, "status": status}), flush=True)
    time.sleep(seconds)


def main(words: list[str]) -> None:
    """Print what was found, or why nothing was."""
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
