"""sstat: show what the batch step of running jobs uses, in Slurm's fields."""

from collections.abc import Sequence
from typing import NamedTuple

from fgsched import protocol
from fgsched.cli import steps
from fgsched.client import Client, find_paths
from fgsched.domain.errors import FgschedError
from fgsched.domain.states import JobState
from fgsched.slurm import tables
from fgsched.slurm.getopt import BadLine, parse
from fgsched.system.process import TreeUse, descendants, use_of
from fgsched.views import choices
from fgsched.views import job as view
from fgsched.views.display import SLURM_VERSION, host_name
from fgsched.views.listing import TableColumn

_FIELDS = view.attributes(*steps.FIELDS, view.memory_now, view.energy, "state indices ntasks")


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
    memory = view.memory_now(row.job) or 0
    gpus = f",gres/gpumem={memory >> 20}M" if row.job.indices else ""
    return f"cpu={_clock(row.use.cpu_seconds)},mem={_kib(row.use.rss)}{gpus}"


FIELDS = (
    TableColumn("JobID", lambda row: f"{view.label(row.job)}.{row.job.step}", width=12),
    TableColumn("MaxVMSize", lambda row: "", width=10),
    TableColumn("MaxVMSizeNode", lambda row: "", width=14),
    TableColumn("MaxVMSizeTask", lambda row: "", width=14),
    TableColumn("AveVMSize", lambda row: "", width=10),
    TableColumn("MaxRSS", lambda row: _kib(row.use.rss), width=10),
    TableColumn("MaxRSSNode", lambda row: host_name(), width=10),
    TableColumn("MaxRSSTask", lambda row: "0", width=10),
    TableColumn("AveRSS", lambda row: _kib(row.use.rss), width=10),
    TableColumn("MaxPages", lambda row: "", width=8),
    TableColumn("MaxPagesNode", lambda row: "", width=12),
    TableColumn("MaxPagesTask", lambda row: "", width=14),
    TableColumn("AvePages", lambda row: "", width=10),
    TableColumn("MinCPU", lambda row: _clock(row.use.cpu_seconds), width=10),
    TableColumn("MinCPUNode", lambda row: host_name(), width=10),
    TableColumn("MinCPUTask", lambda row: "0", width=10),
    TableColumn("AveCPU", lambda row: _clock(row.use.cpu_seconds), width=10),
    TableColumn("NTasks", lambda row: str(row.job.ntasks), width=8),
    TableColumn("AveCPUFreq", lambda row: "", width=10),
    TableColumn("ReqCPUFreqMin", lambda row: "Unknown", width=13),
    TableColumn("ReqCPUFreqMax", lambda row: "Unknown", width=13),
    TableColumn("ReqCPUFreqGov", lambda row: "Unknown", width=13),
    TableColumn("ConsumedEnergy", lambda row: _joules(row), width=14),
    TableColumn("MaxDiskRead", lambda row: _disk(row.use.read), width=12),
    TableColumn("MaxDiskReadNode", lambda row: host_name(), width=15),
    TableColumn("MaxDiskReadTask", lambda row: "0", width=15),
    TableColumn("AveDiskRead", lambda row: _disk(row.use.read), width=12),
    TableColumn("MaxDiskWrite", lambda row: _disk(row.use.written), width=12),
    TableColumn("MaxDiskWriteNode", lambda row: host_name(), width=16),
    TableColumn("MaxDiskWriteTask", lambda row: "0", width=16),
    TableColumn("AveDiskWrite", lambda row: _disk(row.use.written), width=12),
    TableColumn("TRESUsageInAve", _tres, width=14),
    TableColumn("TRESUsageInMax", _tres, width=14),
    TableColumn("TRESUsageInMaxNode", lambda row: "", width=18),
    TableColumn("TRESUsageInMaxTask", lambda row: "", width=18),
    TableColumn("TRESUsageInMin", _tres, width=14),
    TableColumn("TRESUsageInMinNode", lambda row: "", width=18),
    TableColumn("TRESUsageInMinTask", lambda row: "", width=18),
    TableColumn("TRESUsageInTot", _tres, width=14),
    *(
        TableColumn(f"TRESUsageOut{how}", lambda row: "", width=19 if "Node" in how or "Task" in how else 15)
        for how in ("Ave", "Max", "MaxNode", "MaxTask", "Min", "MinNode", "MinTask", "Tot")
    ),
    TableColumn("ConsumedEnergyRaw", lambda row: _joules(row), width=17),
    TableColumn("ReqCPUFreq", lambda row: "Unknown", width=10),
    TableColumn("Nodelist", lambda row: host_name(), width=20),
    TableColumn("Pids", lambda row: ",".join(map(str, row.pids)), width=20),
)
_NOT_USUAL = ("ConsumedEnergyRaw", "ReqCPUFreq", "Nodelist", "Pids")
_USUAL = ",".join(field.heading for field in FIELDS if field.heading not in _NOT_USUAL)


def answer(words: Sequence[str]) -> str:
    """Return what sstat prints. Raises BadLine in the words of Slurm."""
    spelled, operands = parse("sstat", words, permute=True)
    options = dict(spelled)
    if "version" in options:
        return f"slurm-wlm {SLURM_VERSION}\n"
    if "helpformat" in options:
        return "".join(f"{field.heading}\n" for field in FIELDS)
    named = ",".join(filter(None, [*(value for name, value in spelled if name == "jobs"), *operands]))
    if not named:
        raise BadLine("error: You didn't give me any jobs to stat.")
    usual = "JobID,Nodelist,Pids" if "pidformat" in options else _USUAL
    chosen = tables.columns(options.get("format") or options.get("fields") or usual, FIELDS, owner="")
    rows = _rows(choices.parts(named), all_steps="allsteps" in options)
    if not rows:
        raise BadLine(f"error: no steps running for job {named}")
    return tables.text(rows, chosen, options)


def _rows(named: Sequence[str], *, all_steps: bool) -> list[SstatRow]:
    """Return the running steps among those named; of a job without a named step, its batch step."""
    whole, wanted = steps.split(named)
    where = protocol.Where(id=choices.ids(whole), state=[JobState.RUNNING, JobState.SUSPENDED])
    rows = []
    with Client(find_paths()) as client:
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
        below = {descendant.pid for descendant in descendants(step.srun_steps[0].pid)}
        pids = [pid for pid in pids if pid in below]
    return SstatRow(step, pids, use_of(pids))
