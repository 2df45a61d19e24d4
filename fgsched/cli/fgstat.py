"""fgstat: show what running jobs use now, as sstat does."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import to_builtins

from fgsched import protocol
from fgsched.cli import terminal
from fgsched.cli.command import run, warn, write
from fgsched.cli.listedoptions import listed
from fgsched.client import Client, find_places
from fgsched.domain.errors import BadUsage, Exit, FgschedError
from fgsched.domain.job import WHOLE
from fgsched.domain.states import JobState
from fgsched.domain.times import format_elapsed
from fgsched.domain.units import format_indices
from fgsched.protocol import JobInfo
from fgsched.system.process import TreeUse, use_of
from fgsched.views import choices, display
from fgsched.views import job as view
from fgsched.views.table import USE, UseOptions

_ASKED = (
    *("id", "array", "task", "tasks", "name", "user", "uid", "state", "elapsed", "indices", "memory"),
    *("usage", "now", "allocated"),
)
_HEADINGS = (
    "JOBID",
    "NAME",
    "USER",
    "GPU",
    "MEM",
    "PEAK",
    "LIMIT",
    "SM%",
    "AVG%",
    "ENERGY",
    "CPU",
    "RSS",
    "TIME",
)
_MINOR = ("USER", "PEAK", "AVG%", "ENERGY", "CPU", "RSS")  # a narrow window leaves them out
_UNKNOWN = "-"
_STATES = (JobState.RUNNING, JobState.SUSPENDED)


@listed(USE, epilog="fgstat 1207", operands="[JOB]...")
def fgstat(options: UseOptions, operands: Sequence[str]) -> int:
    """Show what running jobs use of GPUs, CPUs and memory."""
    ids = _ids(options, operands, os.environ)
    where = protocol.Where(id=ids or None, state=_STATES)
    with Client(find_places()) as client:
        found = client.call(protocol.ListQueue(fields=_ASKED, where=where)).jobs
        all_users = bool(ids) or options.allusers or os.geteuid() == 0
        jobs = [job for job in found if all_users or job.uid == os.geteuid()]
        uses = {job.id: _use(client, job) for job in jobs}
    is_missing = bool(ids) and not jobs
    if options.as_json:
        write(display.document(jobs=[_document(job, uses[job.id]) for job in jobs]))
    elif not is_missing:
        rows = [_row(job, uses[job.id]) for job in jobs]
        table = terminal.listing(
            _HEADINGS, rows, header=not options.noheader, cut=("NAME", "USER"), minor=_MINOR
        )
        write(table)
    if is_missing:
        warn("fgstat", f"no running job: {choices.spelled(ids)}", "fgacct shows jobs that have ended.")
        return Exit.NO_SUCH_JOB
    return Exit.DONE


def _ids(options: UseOptions, operands: Sequence[str], environ: Mapping[str, str]) -> list[choices.Name]:
    """Return the jobs that are named. Raises BadUsage if --self is used outside of a job."""
    if not options.own:
        return choices.ids(operands)
    if operands:
        raise BadUsage("--self shows one job: name no other")
    if "FG_JOB_ID" not in environ:
        raise BadUsage("--self is for commands in a job", "Outside of a job, name it: fgstat 12")
    return choices.ids([environ["FG_JOB_ID"]])


def _use(client: Client, job: JobInfo) -> TreeUse | None:
    """Return what the processes of a job use; None for the job of another user."""
    with suppress(FgschedError):
        return use_of(client.call(protocol.ListPids(id=job.id)).pids)
    return None


def _row(job: JobInfo, use: TreeUse | None) -> Sequence[str]:
    now, peak, energy = job.now, view.sampled_peak(job.usage), view.energy(job)
    return (
        view.label(job),
        job.name[:16],
        job.user,
        format_indices(job.indices) or _UNKNOWN,
        _size(max(one.memory for one in now)) if now else _UNKNOWN,
        _UNKNOWN if peak is None else _size(peak),
        _size(job.memory) if job.memory and job.indices else _UNKNOWN,
        _percent(_busy(job)),
        _percent(view.gpu_util(job)),
        _UNKNOWN if energy is None else f"{energy / 1000:.1f}kJ",
        _UNKNOWN if use is None else format_elapsed(use.cpu_seconds),
        _UNKNOWN if use is None else _size(use.rss),
        format_elapsed(job.elapsed),
    )


def _busy(job: JobInfo) -> float | None:
    """Return the compute time used of each GPU in the last look, in percent; None: not measured."""
    known = [one.busy for one in job.now if one.busy is not None]
    return 100 * sum(known) / len(known) / WHOLE if known else None


def _size(size: int) -> str:
    return f"{size >> 20}M"


def _percent(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.0f}"


def _document(job: JobInfo, use: TreeUse | None) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "name": job.name,
        "user": job.user,
        "state": job.state.value,
        "elapsed": job.elapsed,
        "gpus": [
            {"gpu": one.gpu, "memory": one.memory, "util": None if one.busy is None else one.busy / 100}
            for one in job.now
        ],
        "gpu_mem_limit": job.memory if job.indices else None,
        "max_gpu_mem": view.sampled_peak(job.usage),
        "ave_gpu_util": view.gpu_util(job),
        "energy_j": view.energy(job),
        "usage": to_builtins(job.usage),
        "cpu_seconds": use.cpu_seconds if use else None,
        "rss": use.rss if use else None,
        "disk_read": use.read if use else None,
        "disk_written": use.written if use else None,
    }


def main() -> None:
    run(fgstat)


if __name__ == "__main__":
    main()
