"""Measure the watchdog: how soon it finds and ends a job whose memory the hook does not count."""

import os
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucheck.place import MIB, ROOT, Place
from gpucheck.sheet import NotHere, Row, row

_HOLD = """#!/bin/sh
unset LD_PRELOAD
{python} {program} {root} hold {size} <{gate} | {{ read line; date +%s.%N >{told}; cat; }}
"""
_LEAST = 1 << 30  # bytes above the limit and the tolerance
_LATEST = 20  # seconds after the allocation


def section(place: Place) -> Iterator[Row]:
    """Start jobs with memory outside the hook, and wait for the watchdog."""
    # In a mount namespace the hook stays without LD_PRELOAD, and nothing is left for the watchdog to see.
    with place.controller('[fence]\npreload = "environment"\n') as (client, home):
        found = _Ended(client, home, place)
        yield found.row("shim", 0.25, 600 * MIB, "GpuUnhooked")
        over = place.total // 8 + _LEAST
        if over > place.total // 2:
            raise NotHere("the GPU is too small for a job far above its limit")
        yield found.row("watchdog", 0.125, over, "GpuOutOfMemory")


@dataclass
class _Ended:
    """Jobs that allocate without the hook until the watchdog ends them."""

    client: Any
    home: Path
    place: Place

    def row(self, tier: str, part: float, size: int, reason: str) -> Row:
        """Run a job of this tier that allocates `size` bytes; report when it ended."""
        from fgsched import protocol

        gate, told = self.home / f"gate-{tier}", self.home / f"told-{tier}"
        os.mkfifo(gate)
        holds = os.open(gate, os.O_RDWR)  # so that the program waits for input
        try:
            job = self._submit(tier, part, self._script(size, gate, told))
            self.client.call(protocol.Wait(ids=[job]), patience=120)
            ended = self.client.call(protocol.ShowJob(id=job))
        finally:
            os.close(holds)
        if not told.exists():
            print("\n".join((self.home / f"fg-{job}.out").read_text().splitlines()[-5:]), file=sys.stderr)
            raise NotHere("the program of the job could not allocate")
        after, why = ended.ended_at - float(told.read_text()), ended.reason.value
        seen = f"{ended.state.value}, {why}, {after:.1f} s after the allocation"
        return row(f"tier {tier}: {reason}", why == reason and after <= _LATEST, seen)

    def _script(self, size: int, gate: Path, told: Path) -> str:
        program = Path(__file__).with_name("programs.py")
        python = self.place.python
        return _HOLD.format(python=python, program=program, root=ROOT, size=size, gate=gate, told=told)

    def _submit(self, tier: str, part: float, script: str) -> int:
        from fgsched import protocol
        from fgsched.domain.job import Demand, Request

        demand = Demand(gpus=1, share=int(part * 10_000))
        call = protocol.Submit(
            key=secrets.token_hex(16),
            scripts=[script],
            requests=[Request(name="watched", chdir=str(self.home), demand=demand, tier=tier)],
            environments=[dict(os.environ)],
            jobs=[(0, 0, 0, False)],
        )
        first: int = self.client.call(call).first
        return first
