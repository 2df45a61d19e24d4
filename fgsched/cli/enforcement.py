"""`fgsched doctor --enforcement`: run jobs that try to exceed their share, and report the results."""

import json
import os
import pwd
import secrets
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, astuple

from fgsched import protocol
from fgsched.cli.command import output, write
from fgsched.cli.install.host import as_user, ordinary_user
from fgsched.client import Client, find_paths
from fgsched.domain.errors import Exit, Refused
from fgsched.domain.job import Demand, Request
from fgsched.domain.states import Reason, Tier
from fgsched.domain.text import clean, read_json
from fgshim import selftest
from fgshim.selftest.others import OTHERS
from fgshim.selftest.views import VIEWS
from fgshim.selftest.ways import WAYS

HOLDS, FAILS, ABSENT = "holds", "does not hold", "not offered here"
_VERDICTS = {True: HOLDS, False: FAILS, None: ABSENT}
_LIMIT = 4 << 30  # bytes that a trial requests; less on small GPUs
_PATIENCE = 600.0  # seconds for a job to start and end
_NEEDS = "needs a driver from r615, cgroups of version 2, and a controller of root's"
_UNHOOKED = "unhooked process"
_WIDTHS = (  # of the columns in characters, before any result is known; the last one is not padded
    max(len(tier.value) for tier in Tier),
    max(map(len, (*WAYS, *VIEWS, *OTHERS, _UNHOOKED))),
    max(map(len, _VERDICTS.values())),
    0,
)


class EnforcementResult(Struct, frozen=True):
    """The result of one test."""

    tier: str
    check: str
    verdict: str
    why: str = ""


def tested(*, as_json: bool) -> int:
    """Print which limits are effective on this host; return 1 if one is not."""
    paths = find_paths()
    if paths.mode == "system" and os.geteuid() == 0:  # root may not own jobs
        return _tested_as(ordinary_user(os.environ, pwd.getpwall), as_json=as_json)
    with Client(paths) as client:
        holds = (_print_object if as_json else _print_lines)(enforced(client))
    return Exit.DONE if holds else Exit.REFUSED


def _print_object(rows: Iterable[EnforcementResult]) -> bool:
    """Print all results as one JSON object; return whether no test failed."""
    enforcement_results = list(rows)
    holds = all(row.verdict != FAILS for row in enforcement_results)
    write(json.dumps({"holds": holds, "checks": [asdict(row) for row in enforcement_results]}) + "\n")
    return holds


def _print_lines(rows: Iterable[EnforcementResult]) -> bool:
    """Print each result as soon as it is known; return whether no test failed."""
    holds = True
    for number, row in enumerate(rows):
        if number == 0:  # there is a GPU to test
            _print_line(EnforcementResult("TIER", "CHECK", "RESULT", "WHY"))
        _print_line(row)
        holds &= row.verdict != FAILS
    return holds


def _print_line(row: EnforcementResult) -> None:
    cells = [clean(cell).ljust(width) for cell, width in zip(astuple(row), _WIDTHS, strict=True)]
    write("  ".join(cells).rstrip() + "\n")
    output().flush()


def _tested_as(user: str, *, as_json: bool) -> int:
    """Run the command again with jobs of this user; return its exit status."""
    words = [sys.executable, "-I", "-m", "fgsched.cli.fgsched", "doctor", "--enforcement"]
    return subprocess.run([*words, *["--json"] * as_json], **as_user(user), check=False).returncode


def enforced(client: Client) -> Iterator[EnforcementResult]:
    """Test every enforcement level with one job each. Raises Refused if there is no GPU."""
    about, answer = client.call(protocol.Ping()), client.call(protocol.ListGpus())
    if about.source != "nvml" or not answer.gpus:
        what = "the GPUs are simulated" if about.source == "sim" else about.note or "no GPU was found"
        remedy = "Run this on a host with a GPU; fginfo -g shows the GPUs of the controller."
        raise Refused(f"there is nothing to enforce: {what}", remedy)
    limit = min([_LIMIT, *(gpu.usable // 4 for gpu in answer.gpus)]) >> 20 << 20
    with tempfile.TemporaryDirectory(prefix="fg-doctor-") as folder:
        host = _Trials(client, Path(folder), limit)
        yield from _by_driver(host, answer.enforce)
        yield from host.tried(Tier.SHIM)
        yield host.served()
        yield host.watched(about)


def _by_driver(host: "_Trials", best: str) -> Iterator[EnforcementResult]:
    if best == Tier.DRIVER.value:
        yield from host.tried(Tier.DRIVER)
    else:
        yield EnforcementResult(Tier.DRIVER.value, "all", ABSENT, _NEEDS)


@dataclass(frozen=True, slots=True)
class _Trials:
    """Runs the test jobs."""

    client: Client
    folder: Path
    limit: int  # bytes

    def tried(self, tier: Tier) -> Iterator[EnforcementResult]:
        """Test all calls, views and processes in one job."""
        job, outcomes = self._run(tier, selftest.command("all", self.limit))
        if not outcomes:
            why = job.detail or f"the job ended {job.state.value} ({job.reason.value}) and said nothing"
            yield EnforcementResult(tier.value, "all", FAILS, why)
        for outcome in outcomes:
            if "error" in outcome:
                yield EnforcementResult(tier.value, "all", FAILS, outcome["error"])
            else:
                yield EnforcementResult(
                    tier.value, outcome["check"], _VERDICTS[outcome["holds"]], outcome["why"]
                )

    def served(self) -> EnforcementResult:
        """Test that a job on a part of a GPU is a client of its user's MPS daemon, if a GPU has MPS."""
        job, _ = self._run(Tier.SHIM, ["true"])
        if job.mps is None:
            return EnforcementResult("mps", "daemon", ABSENT, "mps in [gpus] of the settings is off")
        if job.mps.word:
            return EnforcementResult(
                "mps", "daemon", HOLDS, f"a server runs for {job.user}; the job had {job.mps.word}"
            )
        return EnforcementResult("mps", "daemon", FAILS, job.mps.why)

    def watched(self, about: protocol.About) -> EnforcementResult:
        """Test that the watchdog detects a process without the hook and acts on it."""
        row, kills = (Tier.WATCHDOG.value, _UNHOOKED), about.watchdog == "kill"
        seconds = int(about.interval * 5) + 30 if kills else int(about.interval * 2) + 3
        job, outcomes = self._run(Tier.SHIM, ["env", "-u", "LD_PRELOAD", *selftest.command("hold", seconds)])
        if outcomes and outcomes[0].get("hooked"):
            return EnforcementResult(
                *row, HOLDS, "the hook stays without LD_PRELOAD: there was nothing to see"
            )
        if not job.warning:
            return EnforcementResult(
                *row, FAILS, f"it was not seen; the job ended {job.state.value} {job.detail}".strip()
            )
        if kills and job.reason is not Reason.GPU_UNHOOKED:
            return EnforcementResult(
                *row, FAILS, f"the job was warned and not ended by it: {job.state.value}"
            )
        return EnforcementResult(*row, HOLDS, "the job was ended" if kills else "the job was warned")

    def _run(self, tier: Tier, command: list[str]) -> tuple[protocol.JobInfo, list[dict[str, Any]]]:
        """Run a job; return its state at the end and its output."""
        output = self.folder / f"{tier.value}{secrets.token_hex(4)}"
        request = Request(
            name=f"doctor-{tier.value}",
            chdir=str(self.folder),
            output=str(output),
            demand=Demand(gpus=1, memory=self.limit),
            tier=tier.value,
            time_limit=int(_PATIENCE),
        )
        call = protocol.Submit(
            key=secrets.token_hex(16),
            scripts=[f"#!/bin/sh\nexec {shlex.join(command)}\n"],
            environments=[dict(os.environ)],
            requests=[request],
            jobs=[(0, 0, 0, False)],
        )
        job = self.client.call(call).first
        self.client.call(protocol.Wait(ids=[job]), patience=_PATIENCE)
        return self.client.call(protocol.ShowJob(id=job)), _said(output)


def _said(output: Path) -> list[dict[str, Any]]:
    """Return the JSON lines of the output; other lines are ignored."""
    problems = []
    for line in output.read_text(errors="replace").splitlines() if output.exists() else []:
        if line.startswith("{"):
            try:
                problems.append(read_json(line))
            except ValueError:
                continue
    return problems
