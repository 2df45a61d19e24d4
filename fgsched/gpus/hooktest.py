"""Process that tests whether the hook enforces a memory limit on this host.

Like the shepherd of a job it creates a region and a link to the hook. A program with the hook preloaded then
requests more memory than the limit. No CUDA context is created and no GPU memory is used. It reads one
question and writes one report.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import fgshim.region as region

from fgsched.domain.text import read_json
from fgsched.gpus.backend import HOOK_TEST, GpuReport, dump
from fgsched.system import capture
from fgshim import selftest

LIMIT = 4 << 20  # bytes
_TIMEOUT = 60  # seconds; the supervisor waits less


def main() -> None:
    """Answer the question {"run": directory, "hook": path, "gpu": index, "uuid": …} on standard input."""
    question = read_json(sys.stdin.readline())
    try:
        error = _test_hook(question)
    except (OSError, ValueError, subprocess.SubprocessError) as problem:
        error = str(problem)
    sys.stdout.buffer.write(dump(GpuReport(want=HOOK_TEST, error=error)))
    sys.stdout.buffer.flush()


def _test_hook(question: dict[str, Any]) -> str:
    """Return why the limit is not enforced; "" if it is."""
    with tempfile.TemporaryDirectory(prefix="hooktest-", dir=question["run"]) as name:
        folder = Path(name)
        head = region.pack(1, 1, [(question["gpu"], question["uuid"], LIMIT)])
        (folder / "region").write_bytes(head + bytes(region.SIZE - len(head)))
        (folder / "libfgshim.so").symlink_to(question["hook"])
        environ = _environment(folder)
        outcome = capture.run(selftest.command("fence"), seconds=_TIMEOUT, environ=environ)
        refusals = region.read(folder / "region").gpus[0].refusals
    output, errors = (text.decode(errors="replace") for text in (outcome.output, outcome.errors))
    return verdict(output, errors, refusals)


def _environment(folder: Path) -> dict[str, str]:
    environment = {
        "LD_PRELOAD": str(folder / "libfgshim.so"),
        "CUDA_VISIBLE_DEVICES": "0",  # the only GPU of the region
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    return {**os.environ, **environment}


def verdict(output: str, error_output: str, refusals: int) -> str:
    """Return why the limit is not enforced, from the output of the test program; "" if it is.

    Args:
        refusals: number of allocations that the hook refused.
    """
    try:
        document = read_json(output)
    except ValueError:
        return f"the test of the hook failed: {error_output.strip()[-200:] or 'it printed nothing'}"
    if document.get("error"):
        return str(document["error"])
    if document["total"] != LIMIT:
        return f"a job would see {document['total']} bytes of GPU memory instead of its limit of {LIMIT}"
    if document["status"] != selftest.OUT_OF_MEMORY or not refusals:
        status = document["status"]
        return f"an allocation above the limit was not refused (status {status}, refusals {refusals})"
    return ""
