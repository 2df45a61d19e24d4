"""Two PyTorch jobs through the controller share one card: each sees its share, and the limit holds."""

import json
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpucheck.place import MIB, Place, near, torch_or_not
from gpucheck.sheet import Row, row

JOB = """
import json, os, sys, time, torch
mine = {"visible": os.environ["CUDA_VISIBLE_DEVICES"], "limit": int(os.environ["FG_GPU_MEM_MB"]) << 20}
free, total = torch.cuda.mem_get_info()
mine |= {"free": free, "total": total, "count": torch.cuda.device_count()}
try:
    import pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(os.environ["FG_GPU_UUIDS"])
    seen = pynvml.nvmlDeviceGetMemoryInfo(handle)
    pids = [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    mine |= {"nvml_total": seen.total, "nvml_used": seen.used, "nvml_free": seen.free, "pids": pids}
except ImportError:
    mine["nvml_total"] = None
open(sys.argv[2], "w").close()                      # here I am
while not os.path.exists(sys.argv[3]):              # until the other is, too
    time.sleep(0.05)
blocks = []
try:
    if sys.argv[1] == "past":
        while True:
            blocks.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
    a = torch.randn(2048, 2048, device="cuda")
    for _ in range(200):
        a = (a @ a).tanh()
    torch.cuda.synchronize()
    mine["end"] = "finished"
except torch.OutOfMemoryError as error:
    mine["end"], mine["message"] = "torch.OutOfMemoryError", str(error).splitlines()[0]
    mine["allocated"] = sum(block.numel() for block in blocks)
except Exception as error:
    mine["end"], mine["message"] = type(error).__name__, str(error)[:200]
print(json.dumps(mine))
"""


def section(place: Place) -> Iterator[Row]:
    """Run a job that exceeds its limit beside a job that does not."""
    torch_or_not(place)
    with place.controller() as (client, home):
        yield from _check(client, home, place.python)


def _check(client: Any, home: Path, python: str) -> Iterator[Row]:
    from fgsched import protocol

    past, within = _submit(client, home, python)
    ended = {job.id: job for job in client.call(protocol.Wait(ids=[past, within]), patience=600).jobs}
    for name, job in (("0.25, past its limit", past), ("0.5, within it", within)):
        yield from _look(client, home, name, job)
    told = _said(home, past)
    yield row("0.25: past the limit", told.get("end") == "torch.OutOfMemoryError", str(told.get("message")))
    usable = told.get("allocated", 0) / max(1, told.get("limit", 1))
    yield row("0.25: held before the refusal", 0.5 < usable <= 1.0, f"{usable:.1%} of the limit")
    other = _said(home, within)
    good = other.get("end") == "finished" and ended[within].state == "COMPLETED"
    yield row("0.5: its neighbour finishes", good, f"{other.get('end')}, {ended[within].state}")


def _submit(client: Any, home: Path, python: str) -> tuple[int, int]:
    """Submit two jobs that wait for each other on the GPU and then continue; return their ids."""
    from fgsched import protocol
    from fgsched.domain.job import Demand, Request

    (home / "job.py").write_text(JOB)
    one, two = home / "one-is-there", home / "two-is-there"
    scripts = [
        f"#!/bin/sh\nexec {python} {home}/job.py past {one} {two}\n",
        f"#!/bin/sh\nexec {python} {home}/job.py within {two} {one}\n",
    ]
    requests = [
        Request(name="gpu-check", chdir=str(home), demand=Demand(gpus=1, share=share))
        for share in (2500, 5000)
    ]
    call = protocol.Submit(
        key=secrets.token_hex(16),
        scripts=scripts,
        requests=requests,
        environments=[dict(os.environ)],
        jobs=[(0, 0, 0, False), (1, 1, 0, False)],
    )
    first = client.call(call).first
    return first, first + 1


def _said(home: Path, job: int) -> dict[str, Any]:
    """Decode the last JSON of a job's output, which a line about a refusal may follow; {} without any."""
    lines = (home / f"fg-{job}.out").read_text().splitlines()
    said = [line for line in lines if line.startswith("{")]
    if not said:
        print("\n".join(lines[-5:]), file=sys.stderr)
        return {}
    found: dict[str, Any] = json.loads(said[-1])
    return found


def _look(client: Any, home: Path, name: str, job: int) -> Iterator[Row]:
    """Compare a job's views of its GPU with its limit."""
    told = _said(home, job)
    from fgsched import protocol

    limit = told.get("limit", 0)
    record = client.call(protocol.ShowJob(id=job))
    cards = [one.gpu for one in record.allocated]
    count = told.get("count")
    yield row(f"{name}: one device, cuda:0", count == 1, f"GPU {cards}, {count} visible")
    total, free = told.get("total", 0), told.get("free", 0)
    seen = f"{total // MIB} of {limit // MIB} MiB"
    yield row(f"{name}: mem_get_info total", near(total, limit), seen)
    yield row(f"{name}: mem_get_info free", 0 < free <= total, f"{free // MIB} MiB")
    if told.get("nvml_total") is None:
        yield row(f"{name}: pynvml", None, "it is not there")
        return
    nvml = told["nvml_total"]
    yield row(f"{name}: pynvml total", near(nvml, limit), f"{nvml // MIB} MiB")
    consistent = told["nvml_used"] + told["nvml_free"] == nvml
    yield row(f"{name}: pynvml used + free = total", consistent, f"{told['nvml_used'] // MIB} MiB used")
    yield row(f"{name}: own processes only", len(told["pids"]) <= 1, f"pids {told['pids']}")
    yield row(f"{name}: recorded peak", record.gpu_peak <= limit, f"{record.gpu_peak // MIB} MiB")
