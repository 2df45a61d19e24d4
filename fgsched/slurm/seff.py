"""seff: print the efficiency of one ended job, as Slurm's contributed seff does."""

import math
from collections.abc import Sequence

from fgsched import protocol
from fgsched.cli import acctfields
from fgsched.client import Client, find_places
from fgsched.slurm.getopt import BadLine, options, parse
from fgsched.views import choices

KNOWN = options("help version debug local-time", "h:help v:version d:debug")
_KIB = 1024
_UNITS = ("KB", "MB", "GB", "TB")


def answer(words: Sequence[str]) -> str:
    """Return what seff prints. Raises BadLine: there is no such job."""
    found, rest = parse(KNOWN, words, permute=True)
    if ("version", "") in found:
        return "seff Version 2.1\n"
    if ("help", "") in found or not rest:
        return "Usage: seff [Options] <JobID>\n"
    names = choices.ids(rest[:1])
    with Client(find_places()) as client:
        jobs = client.call(protocol.ListHistory(fields=acctfields.ASKED, ids=names)).jobs
    if not jobs:
        raise BadLine("Job not found.", prefix="")
    return "\n".join(_text(job) for job in jobs)


def _text(job: protocol.JobInfo) -> str:
    cores = job.request.demand.cpus
    wall, used = int(job.elapsed), job.cpu_seconds
    array = f"Array Job ID: {job.array}_{job.task}\n" if job.array is not None else ""
    lines = [
        f"Job ID: {job.id}\n{array}Cluster: fgsched",
        f"User/Group: {job.user}/{group(job.gid)}",
        f"State: {job.state.value} (exit code {job.exit_code})",
        f"Nodes: 1\nCores per node: {cores}" if cores > 1 else "Cores: 1",
        f"CPU Utilized: {_clock(round(used))}",
        f"CPU Efficiency: {_part(used, wall * cores)} of {_clock(wall * cores)} core-walltime",
        f"Job Wall-clock time: {_clock(wall)}",
        f"Memory Utilized: {_size(job.max_rss)}",
        f"Memory Efficiency: {_memory(job)}",
    ]
    if job.warning:
        lines.append(f"WARNING: {job.warning}")
    if not job.state.is_final:
        lines.append("WARNING: Efficiency statistics may be misleading for RUNNING jobs.")
    return "\n".join(lines) + "\n"


def _memory(job: protocol.JobInfo) -> str:
    limit = job.request.demand.host_memory
    return f"{_part(job.max_rss, limit)} of {_size(limit)} ({_size(limit)}/node)"


def _part(used: float, total: float) -> str:
    return f"{100 * used / total if total else 0:.2f}%"


def _clock(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def _size(size: int) -> str:
    """Return bytes with two decimals, in the largest unit in which the number is at least 1."""
    amount = size / _KIB
    place = min(int(math.log(amount, _KIB)), len(_UNITS) - 1) if amount >= 1 else 0
    return f"{amount / _KIB**place:.2f} {_UNITS[place]}"


def group(gid: int) -> str:
    """Return the name of a group."""
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
