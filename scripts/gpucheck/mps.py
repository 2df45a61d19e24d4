"""Jobs on parts of one card through MPS: daemon, multiprocessors, and the cancel of a neighbour."""

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpucheck.place import Place, torch_or_not
from gpucheck.sheet import NotHere, Row, row

JOB = """
import os, sys, torch
seen = torch.cuda.get_device_properties(0).multi_processor_count
a = torch.randn(2048, 2048, device="cuda")
for _ in range(200):
    a = (a @ a).tanh()
torch.cuda.synchronize()
print(seen, flush=True)
open(sys.argv[1], "w").close()
while sys.argv[2] == "endless":
    a = (a @ a).tanh()
"""


def section(place: Place) -> Iterator[Row]:
    """Run two jobs as clients of one MPS daemon."""
    if not shutil.which("nvidia-cuda-mps-control"):
        raise NotHere("nvidia-cuda-mps-control is not installed")
    torch_or_not(place)
    with place.controller('[gpus]\nmps = "user"\n') as (client, home):
        yield from _check(client, home, place)


def _check(client: Any, home: Path, place: Place) -> Iterator[Row]:
    from fgsched import protocol

    (home / "job.py").write_text(JOB)
    endless = _submit(client, home, place.python, "endless", 2500)
    half = _submit(client, home, place.python, "once", 5000)
    client.call(protocol.Wait(ids=[half]), patience=600)
    for name, job, word in (("0.25", endless, "mps:25"), ("0.5", half, "mps:50")):
        use = client.call(protocol.ShowJob(id=job)).mps
        yield row(f"{name}: a client of its daemon", use and use.word == word, use)
    seen = (home / f"fg-{half}.out").read_text().strip()
    yield row("0.5: multiprocessors that it sees", None, f"{seen}: half of those of the card are right")
    client.call(protocol.Cancel(ids=[endless]))
    [ended] = client.call(protocol.Wait(ids=[endless]), patience=600).jobs
    yield row("0.25: cancelled while it computes", ended.state == "CANCELLED", ended.state)
    after = _submit(client, home, place.python, "once", 5000)
    [ended] = client.call(protocol.Wait(ids=[after]), patience=600).jobs
    yield row("a job after the cancel", ended.state == "COMPLETED", ended.state)


def _submit(client: Any, home: Path, python: str, kind: str, share: int) -> int:
    from fgsched import protocol
    from fgsched.domain.job import Demand, Request

    request = Request(name="gpu-check", chdir=str(home), demand=Demand(gpus=1, share=share))
    call = protocol.Submit(
        key=secrets.token_hex(16),
        scripts=[f"#!/bin/sh\nexec {python} {home}/job.py {home}/{kind} {kind}\n"],
        requests=[request],
        environments=[dict(os.environ)],
        jobs=[(0, 0, 0, False)],
    )
    return int(client.call(call).first)
