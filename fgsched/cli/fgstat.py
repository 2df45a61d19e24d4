"""fgstat: show what running jobs use now, as sstat does."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from fgsched import protocol
from fgsched.cli import terminal
from fgsched.cli.command import listed, run, warn, write
from fgsched.client import Client, find_paths
from fgsched.domain.errors import BadUsage, Exit, FgschedError
from fgsched.domain.states import JobState
from fgsched.domain.times import format_elapsed
from fgsched.domain.units import format_indices
from fgsched.protocol import JobInfo
from fgsched.system.process import TreeUse, use_of
from fgsched.views import choices, display, documents
from fgsched.views import job as view
from fgsched.views.job import Value
from fgsched.views.listing import LEAST_TEXT, TableColumn
from fgsched.views.options import USE, UseOptions

_UNKNOWN = "-"
_STATES = (JobState.RUNNING, JobState.SUSPENDED)


class JobUseRow(NamedTuple):
    """A running job, and the use of its processes; None: the job of another user."""

    job: JobInfo
    use: TreeUse | None


def _of_job(value: Value, form: Callable[[Any], str]) -> Callable[[JobUseRow], str]:
    """Return the text of a value of the job."""

    def text(row: JobUseRow) -> str:
        shown = value(row.job)
        return _UNKNOWN if shown is None else form(shown)

    return text


def _of_use(value: Callable[[TreeUse], float], form: Callable[[Any], str]) -> Callable[[JobUseRow], str]:
    """Return the text of a value of the processes."""
    return lambda row: _UNKNOWN if row.use is None else form(value(row.use))


def _size(size: int) -> str:
    return f"{size >> 20}M"


def _percent(value: float) -> str:
    return f"{value:.0f}"


COLUMNS = (
    TableColumn("JOBID", lambda row: view.label(row.job)),
    TableColumn("NAME", lambda row: row.job.name[:16], least=LEAST_TEXT),
    TableColumn("USER", lambda row: row.job.user, least=LEAST_TEXT, is_minor=True),
    TableColumn("GPU", lambda row: format_indices(row.job.indices) or _UNKNOWN),
    TableColumn("MEM", _of_job(view.memory_now, _size)),
    TableColumn("PEAK", _of_job(view.sampled_memory, _size), is_minor=True),
    TableColumn("LIMIT", _of_job(view.present_memory_limit, _size)),
    TableColumn("SM%", _of_job(view.busy_now, _percent)),
    TableColumn("AVG%", _of_job(view.gpu_util, _percent), is_minor=True),
    TableColumn("ENERGY", _of_job(view.energy, lambda joules: f"{joules / 1000:.1f}kJ"), is_minor=True),
    TableColumn("CPU", _of_use(lambda use: use.cpu_seconds, format_elapsed), is_minor=True),
    TableColumn("RSS", _of_use(lambda use: use.rss, _size), is_minor=True),
    TableColumn("TIME", lambda row: format_elapsed(row.job.elapsed)),
)
_FIELDS = view.attributes(
    view.label,
    view.memory_now,
    view.sampled_memory,
    view.present_memory_limit,
    view.busy_now,
    view.gpu_util,
    view.energy,
    "name",
    "user",
    "uid",
    "state",
    "elapsed",
)


@listed(USE, epilog="fgstat 1207", operands="[JOB]...")
def fgstat(options: UseOptions, operands: Sequence[str]) -> int:
    """Show what running jobs use of GPUs, CPUs and memory."""
    ids = _ids(options, operands, os.environ)
    where = protocol.Where(id=ids or None, state=_STATES)
    fields = documents.fields_of_queue(documents.keys_of("fgstat")) if options.as_json else _FIELDS
    with Client(find_paths()) as client:
        running = client.call(protocol.ListQueue(fields=fields, where=where)).jobs
        all_users = bool(ids) or options.allusers or os.geteuid() == 0
        jobs = [job for job in running if all_users or job.uid == os.geteuid()]
        uses = {job.id: _use(client, job) for job in jobs}
    is_missing = bool(ids) and not jobs
    if options.as_json:
        write(display.document(jobs=[_document(job, uses[job.id]) for job in jobs]))
    elif not is_missing:
        rows = [JobUseRow(job, uses[job.id]) for job in jobs]
        write(terminal.listing(COLUMNS, rows, header=not options.noheader))
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


def _document(job: JobInfo, use: TreeUse | None) -> dict[str, Any]:
    """Return the document of a job, with what its processes have used so far."""
    return documents.record(documents.keys_of("fgstat"), job) | {
        "cpu_seconds": use.cpu_seconds if use else None,
        "rss": use.rss if use else None,
        "disk_read": use.read if use else None,
        "disk_written": use.written if use else None,
    }


def main() -> None:
    run(fgstat)


if __name__ == "__main__":
    main()
