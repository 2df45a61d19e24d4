"""seff: print the efficiency of one ended job, as Slurm's contributed seff does."""

import math
from collections.abc import Sequence

from fgsched import protocol
from fgsched.client import Client, find_paths
from fgsched.domain.times import format_elapsed
from fgsched.domain.units import KIB
from fgsched.slurm.getopt import BadLine, parse
from fgsched.views import choices
from fgsched.views import job as view

_FIELDS = view.attributes(
    view.cpu_seconds, view.host_part, "id array task user gid exit_code warning elapsed cpus"
)
_UNITS = ("KB", "MB", "GB", "TB")


def answer(words: Sequence[str]) -> str:
    """Return what seff prints. Raises BadLine: there is no such job."""
    options, operands = parse("seff", words, permute=True)
    if ("version", "") in options:
        return "seff Version 2.1\n"
    if ("help", "") in options or not operands:
        return "Usage: seff [Known] <JobID>\n"
    names = choices.ids(operands[:1])
    with Client(find_paths()) as client:
        jobs = client.call(protocol.ListHistory(fields=_FIELDS, ids=names)).jobs
    if not jobs:
        raise BadLine("Job not found.", prefix="")
    return "\n".join(_text(job) for job in jobs)


def _text(job: protocol.JobInfo) -> str:
    cores = job.cpus
    wall, used = int(job.elapsed), view.cpu_seconds(job) or 0.0
    array = f"Array Job ID: {job.array}_{job.task}\n" if job.array is not None else ""
    lines = [
        f"Job ID: {job.id}\n{array}Cluster: fgsched",
        f"User/Group: {job.user}/{view.group(job)}",
        f"State: {job.state.value} (exit code {job.exit_code})",
        f"Nodes: 1\nCores per node: {cores}" if cores > 1 else "Cores: 1",
        f"CPU Utilized: {format_elapsed(round(used))}",
        f"CPU Efficiency: {_part(used, wall * cores)} of {format_elapsed(wall * cores)} core-walltime",
        f"Job Wall-clock time: {format_elapsed(wall)}",
        f"Memory Utilized: {_size(view.host_peak(job) or 0)}",
        f"Memory Efficiency: {_memory(job)}",
    ]
    if job.warning:
        lines.append(f"WARNING: {job.warning}")
    if not job.state.is_final:
        lines.append("WARNING: Efficiency statistics may be misleading for RUNNING jobs.")
    return "\n".join(lines) + "\n"


def _memory(job: protocol.JobInfo) -> str:
    limit = job.host_memory
    return f"{_part(view.host_peak(job) or 0, limit)} of {_size(limit)} ({_size(limit)}/node)"


def _part(used: float, total: float) -> str:
    return f"{100 * used / total if total else 0:.2f}%"


def _size(size: int) -> str:
    """Return bytes with two decimals, in the largest unit in which the number is at least 1."""
    amount = size / KIB
    place = min(int(math.log(amount, KIB)), len(_UNITS) - 1) if amount >= 1 else 0
    return f"{amount / KIB**place:.2f} {_UNITS[place]}"
