"""sstat: show what the batch step of running jobs uses, in Slurm's fields."""

from collections.abc import Sequence
from typing import NamedTuple

from fgsched import protocol
from fgsched.cli import steps
from fgsched.client import Client, find_places
from fgsched.domain.errors import FgschedError
from fgsched.domain.states import JobState
from fgsched.slurm import tables
from fgsched.slurm.getopt import BadLine, options, parse
from fgsched.slurm.tables import SlurmField
from fgsched.system.process import TreeUse, descendants, use_of
from fgsched.views import choices
from fgsched.views import job as view
from fgsched.views.display import host_name

_FIELDS = (
    *("id", "array", "task", "tasks", "state", "attempt", "started_at", "ended_at", "elapsed", "suspended"),
    *("indices", "allocated", "ntasks", "now", "usage", "srun_steps"),
)
KNOWN = options(
    """allsteps helpformat fields= format= noheader jobs= noconvert parsable parsable2 pidformat verbose
    version""",
    """a:allsteps e:helpformat o:format n:noheader j:jobs p:parsable P:parsable2 i:pidformat v:verbose
    V:version""",
)


class SstatRow(NamedTuple):
    """A running job and the use of its processes."""

    job: protocol.JobInfo  # the row of the step
    pids: list[int]
    use: TreeUse


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _kib(size: int) -> str:
    return f"{size >> 10}K"


def _disk(size: int | None) -> str:
    """Return bytes; "" if this user may not know."""
    return "" if size is None else _kib(size)


def _joules(row: SstatRow) -> str:
    """Return the energy of the job's GPUs so far; "" if it was not measured, or for a step of srun."""
    energy = view.energy(row.job) if row.job.step == steps.BATCH else None
    return "" if energy is None else str(round(energy))


def _tres(row: SstatRow) -> str:
    memory = max((one.memory for one in row.job.now), default=0)
    gpus = f",gres/gpumem={memory >> 20}M" if row.job.indices else ""
    return f"cpu={_clock(row.use.cpu_seconds)},mem={_kib(row.use.rss)}{gpus}"


FIELDS = (
    SlurmField("JobID", 12, lambda row: f"{view.label(row.job)}.{row.job.step}"),
    SlurmField("MaxVMSize", 10, lambda row: ""),
    SlurmField("MaxVMSizeNode", 14, lambda row: ""),
    SlurmField("MaxVMSizeTask", 14, lambda row: ""),
    SlurmField("AveVMSize", 10, lambda row: ""),
    SlurmField("MaxRSS", 10, lambda row: _kib(row.use.rss)),
    SlurmField("MaxRSSNode", 10, lambda row: host_name()),
    SlurmField("MaxRSSTask", 10, lambda row: "0"),
    SlurmField("AveRSS", 10, lambda row: _kib(row.use.rss)),
    SlurmField("MaxPages", 8, lambda row: ""),
    SlurmField("AvePages", 10, lambda row: ""),
    SlurmField("MinCPU", 10, lambda row: _clock(row.use.cpu_seconds)),
    SlurmField("MinCPUNode", 10, lambda row: host_name()),
    SlurmField("MinCPUTask", 10, lambda row: "0"),
    SlurmField("AveCPU", 10, lambda row: _clock(row.use.cpu_seconds)),
    SlurmField("NTasks", 8, lambda row: str(row.job.ntasks)),
    SlurmField("AveCPUFreq", 10, lambda row: ""),
    SlurmField("ConsumedEnergy", 14, lambda row: _joules(row)),
    SlurmField("MaxDiskRead", 12, lambda row: _disk(row.use.read)),
    SlurmField("AveDiskRead", 14, lambda row: _disk(row.use.read)),
    SlurmField("MaxDiskWrite", 12, lambda row: _disk(row.use.written)),
    SlurmField("AveDiskWrite", 14, lambda row: _disk(row.use.written)),
    SlurmField("TRESUsageInAve", 14, _tres),
    SlurmField("TRESUsageInMax", 14, _tres),
    SlurmField("TRESUsageInTot", 14, _tres),
    SlurmField("TRESUsageOutAve", 15, lambda row: ""),
    SlurmField("TRESUsageOutTot", 15, lambda row: ""),
    SlurmField("Nodelist", 20, lambda row: host_name()),
    SlurmField("Pids", 20, lambda row: ",".join(map(str, row.pids))),
)
_USUAL = ",".join(field.name for field in FIELDS[:22])


def answer(words: Sequence[str]) -> str:
    """Return what sstat prints. Raises BadLine in the words of Slurm."""
    found, rest = parse(KNOWN, words, permute=True)
    given = dict(found)
    if "version" in given:
        return "slurm-wlm 22.05.8\n"
    if "helpformat" in given:
        return "".join(f"{field.name}\n" for field in FIELDS)
    named = ",".join(filter(None, [*(value for name, value in found if name == "jobs"), *rest]))
    if not named:
        raise BadLine("error: You didn't give me any jobs to stat.")
    usual = "JobID,Nodelist,Pids" if "pidformat" in given else _USUAL
    chosen = tables.columns(given.get("format") or given.get("fields") or usual, FIELDS, owner="")
    delimiter = "|" if "parsable" in given or "parsable2" in given else ""
    layout = tables.Layout(chosen, "noheader" not in given, delimiter, "parsable" in given)
    rows = _rows(choices.parts(named), all_steps="allsteps" in given)
    if not rows:
        raise BadLine(f"error: no steps running for job {named}")
    return tables.text(rows, layout)


def _rows(named: Sequence[str], *, all_steps: bool) -> list[SstatRow]:
    """Return the running steps among those named; of a job without a named step, its batch step."""
    whole, wanted = steps.split(named)
    where = protocol.Where(id=choices.ids(whole), state=[JobState.RUNNING, JobState.SUSPENDED])
    rows = []
    with Client(find_places()) as client:
        for job in client.call(protocol.ListQueue(fields=_FIELDS, where=where)).jobs:
            try:
                pids = client.call(protocol.ListPids(id=job.id)).pids
            except FgschedError:
                continue  # of another user, or it has ended
            of_job = wanted.get(str(job.id)) or wanted.get(view.label(job)) or {steps.BATCH}
            rows += [
                _row(step, pids)
                for step in steps.of_job(job)
                if not step.state.is_final and (all_steps or step.step in of_job)
            ]
    return rows


def _row(step: protocol.JobInfo, pids: list[int]) -> SstatRow:
    """Return a step with its processes: those of its srun, or of the job for the batch step."""
    if step.srun_steps:
        below = {one.pid for one in descendants(step.srun_steps[0].pid)}
        pids = [pid for pid in pids if pid in below]
    return SstatRow(step, pids, use_of(pids))
