"""Return the variables of the site's programs. Users can put no code into any of them."""

import re
from collections.abc import Sequence

from fgsched.domain.job import Job
from fgsched.domain.units import format_share
from fgsched.hooks.settings import base
from fgsched.store import Allocation

_LONGEST = 128  # characters of a value
_UNSAFE = re.compile(r"[^A-Za-z0-9_.@+=:-]")


def safe(text: str) -> str:
    """Return `text` with every character replaced that a shell could interpret, at most 128 characters."""
    return _UNSAFE.sub("_", text[:_LONGEST])


_SLURM = {  # our variable -> the variables of Slurm with its value
    "FG_JOB_ID": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "FG_JOB_GPUS": ("SLURM_JOB_GPUS",),
    "FG_JOB_NODELIST": ("SLURM_JOB_NODELIST", "SLURMD_NODENAME"),
    **{
        f"FG_{name}": (f"SLURM_{name}",)
        for name in (
            *("JOB_UID", "JOB_GID", "JOB_USER", "JOB_NAME", "JOB_PARTITION", "JOB_ACCOUNT", "JOB_QOS"),
            *("GPUS_ON_NODE", "CPUS_ON_NODE", "RESTART_COUNT", "ARRAY_JOB_ID", "ARRAY_TASK_ID"),
        )
    },
}


def environment(hook: str, job: Job, given: Sequence[Allocation], host: str) -> dict[str, str]:
    """Return the variables of a prolog or epilog. Values that the job's owner chose are made safe."""
    request = job.request
    own = {
        "FG_JOB_ID": str(job.id),
        "FG_JOB_UID": str(job.uid),
        "FG_JOB_GID": str(job.gid),
        "FG_JOB_USER": safe(job.user),
        "FG_JOB_NAME": safe(request.name),
        "FG_JOB_PARTITION": safe(job.partition or request.partition),
        "FG_JOB_ACCOUNT": safe(request.account),
        "FG_JOB_QOS": safe(request.qos),
        "FG_JOB_NODELIST": safe(host),
        "FG_JOB_GPUS": ",".join(str(one.gpu) for one in given),
        "FG_GPU_UUIDS": ",".join(one.uuid for one in given),
        "FG_GPUS_ON_NODE": str(len(given)),
        "FG_CPUS_ON_NODE": str(request.demand.cpus),
        "FG_RESTART_COUNT": str(job.restarts),
        "FG_ATTEMPT": str(job.attempt),
        "FG_SLOT": str(job.slot),
    }
    if given:
        own["FG_GPU_FRACTION"] = format_share(sum(one.share for one in given))
    if job.task is not None:
        own |= {"FG_ARRAY_JOB_ID": str(job.array), "FG_ARRAY_TASK_ID": str(job.task)}
    slurm = {twin: value for name, value in own.items() for twin in _SLURM.get(name, ())}
    slurm |= {"SLURM_CLUSTER_NAME": "fgsched", "SLURM_SCRIPT_CONTEXT": f"{hook}_slurmd"}
    return base(hook) | own | slurm | (_end(job) if hook == "epilog" else {})


def _end(job: Job) -> dict[str, str]:
    """Return the variables that only an epilog has: state and exit status of the attempt."""
    state = job.outcome.value if job.outcome else job.state.value
    if job.ended is None:
        return {"FG_JOB_STATE": state}
    code = f"{job.ended.exit_code}:{job.ended.signal}"
    status = {"SLURM_JOB_EXIT_CODE": str(job.ended.status), "SLURM_JOB_EXIT_CODE2": code}
    return {"FG_JOB_STATE": state, "FG_JOB_EXIT_CODE": code} | status
