"""Check the views of a share: nvidia-smi, NVML, beside another share (items 1 and 6)."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack

from gpucheck.place import MIB, Place, near
from gpucheck.sheet import NotHere, Row, row


def nvml(place: Place) -> Iterator[Row]:
    """Compare NVML inside a share, without a share, and with two shares (items 1 and 6)."""
    with ExitStack() as stack:
        shares = [stack.enter_context(place.share(part)) for part in (0.25, 0.5)]
        holders = [stack.enter_context(share.start("hold", 64 * MIB)) for share in shares]
        outside = place.ask("used")
        listed = {holder.pid for holder in holders} <= set(outside["pids"])
        why = "" if listed else " (a virtual machine's driver may count pids elsewhere)"
        yield row("pids of NVML are ours", listed or None, f"{sorted(outside['pids'])}{why}")
        for share, own, name in zip(shares, holders, ("0.25", "0.5"), strict=True):
            seen = share.ask("used")
            total = f"{seen['total'] // MIB} of {share.limit // MIB} MiB"
            yield row(f"{name}: total is its limit", near(seen["total"], share.limit), total)
            whole = seen["free"] + seen["used"] == seen["total"]
            yield row(f"{name}: free + used = total", whole, f"{seen['used'] // MIB} MiB used")
            strangers = set(seen["pids"]) - {own.pid, seen["pid"]}
            yield row(f"{name}: its own processes only", not strangers, f"pids {seen['pids']}")


def given(place: Place) -> Iterator[Row]:
    """Check which process is charged for memory that is shared between processes (items 1 and 6)."""
    size = 512 * MIB
    with place.start(*place.program("give", size)) as giver:
        gave = json.loads(giver.first or "{}")
        if gave.get("status") != 0:
            raise NotHere(f"memory cannot be given away here: {gave}")
        with place.start(*place.program("receive", gave["handle"])) as taker:
            if (took := json.loads(taker.first or "{}").get("status")) != 0:
                raise NotHere(f"memory that was given away cannot be opened here: status {took}")
            held = place.ask("used")["held"]
    mine, its = held.get(str(giver.pid)), held.get(str(taker.pid))
    if mine is None or its is None:
        raise NotHere(f"the driver does not tell what processes hold: {held}")
    seen = f"{mine // MIB} MiB of who gave {size // MIB}, {its // MIB} MiB of who opened them"
    yield row("memory given away stays its giver's", mine - its >= size, seen)  # both have a context


def smi(place: Place) -> Iterator[Row]:
    """Check nvidia-smi in a share (items 1 and 6)."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise NotHere("nvidia-smi is not installed here")
    with place.share(0.25) as share, place.start(*place.program("hold", 0)) as holder:
        for words in ([], ["-q"], ["--query-gpu=memory.total", "--format=csv,noheader,nounits"]):
            done = share.run(program, *words)
            sizes = [int(size) for size in re.findall(r"\b(\d+)(?: ?MiB)?\b", done.stdout)]
            fits = any(near(size * MIB, share.limit) for size in sizes)
            name = " ".join(["nvidia-smi", *words[:1]])
            yield row(f"{name}: ends well", done.returncode == 0, done.stderr.strip()[:100] or "status 0")
            yield row(f"{name}: shows the limit", fits, f"{share.limit // MIB} MiB")
            stranger = str(holder.pid) in re.findall(r"\d+", done.stdout)
            yield row(f"{name}: no other's process", not stranger, f"pid {holder.pid} is outside")
