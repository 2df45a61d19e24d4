"""The process that tries whether the hook holds here: a small limit, a larger wish, and the driver's answer.

It makes what a job's shepherd makes, a region with the hook's link beside it, and lets a program that
has the hook preloaded ask for more than the limit. No context is made and no memory taken.
One question in, one line out.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import fgshim.region as region

from fgsched.gpus import wire
from fgsched.gpus.wire import Report
from fgshim import selftest

LIMIT = 4 << 20  # bytes
_PATIENCE = 60  # seconds; the keeper has less


def main() -> None:
    """The question: {"run": directory, "hook": path, "gpu": index, "uuid": …}."""
    about = json.loads(sys.stdin.readline())
    try:
        error = _tried(about)
    except (OSError, ValueError, subprocess.SubprocessError) as problem:
        error = str(problem)
    sys.stdout.buffer.write(wire.dump(Report(want=wire.FENCE, error=error)))
    sys.stdout.buffer.flush()


def _tried(about: dict[str, Any]) -> str:
    """Why the fence does not hold; "" if it does."""
    with tempfile.TemporaryDirectory(prefix="fence-", dir=about["run"]) as name:
        folder = Path(name)
        head = region.pack(1, 1, [(about["gpu"], about["uuid"], LIMIT)])
        (folder / "region").write_bytes(head + bytes(region.SIZE - len(head)))
        (folder / "libfgshim.so").symlink_to(about["hook"])
        done = subprocess.run(
            selftest.command("fence"),
            env=_environment(folder, about["gpu"]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
        refusals = region.read(folder / "region").gpus[0].refusals
    return judged(done.stdout, done.stderr, refusals)


def _environment(folder: Path, gpu: int) -> dict[str, str]:
    own = {
        "LD_PRELOAD": str(folder / "libfgshim.so"),
        "CUDA_VISIBLE_DEVICES": str(gpu),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    return {**os.environ, **own}


def judged(said: str, complaint: str, refusals: int) -> str:
    """What the program's answer means."""
    try:
        found = json.loads(said)
    except ValueError:
        return f"the trial of the fence failed: {complaint.strip()[-200:] or 'it said nothing'}"
    if found.get("error"):
        return str(found["error"])
    if found["total"] != LIMIT:
        return f"a job would see {found['total']} bytes of memory where its share is {LIMIT}"
    if found["status"] != selftest.OUT_OF_MEMORY or not refusals:
        return f"more than the limit was not refused (status {found['status']}, refusals {refusals})"
    return ""
