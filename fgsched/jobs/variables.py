"""Environment variables that fgsched sets for a job, with their SLURM_ equivalents."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from fgsched.domain.job import Job
from fgsched.domain.units import format_indices, format_share
from fgsched.jobs.arrays import variables as array_variables
from fgsched.jobs.enforcement import others_of
from fgsched.jobs.launchcontext import AssignedGpu, LaunchContext, job_dir

_TWINS = {  # variables that Slurm's users know under another name than SLURM_ + ours
    "FG_JOB_ID": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "FG_NNODES": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "FG_JOB_NODELIST": ("SLURM_JOB_NODELIST", "SLURM_NODELIST"),
}


def variables(
    job: Job, given: Sequence[AssignedGpu], *, site: LaunchContext, tmpdir: str, error_file: str
) -> dict[str, str]:
    """Return the variables of a job, with their SLURM_ equivalents if requested."""
    request = job.request
    own = {
        "FG_JOB_ID": str(job.id),
        "FG_JOB_NAME": request.name,
        "FG_JOB_PARTITION": job.partition or request.partition,
        "FG_JOB_ACCOUNT": request.account,
        "FG_JOB_QOS": request.qos,
        "FG_JOB_USER": job.user,
        "FG_SLOT": str(job.slot),
        "FG_JOB_DIR": job_dir(site.run, job.id, job.attempt),
        "FG_SUBMIT_DIR": request.submit_dir,
        "FG_SUBMIT_HOST": site.host,
        "FG_JOB_NODELIST": site.host,
        "FG_NNODES": "1",
        "FG_CPUS_ON_NODE": str(request.demand.cpus),
        "FG_CPUS_PER_TASK": str(request.demand.cpus),
        "FG_JOB_START_TIME": str(int(job.started_at or 0)),
        "FG_RESTART_COUNT": str(job.restarts),
        "FG_ERROR_FILE": error_file,
        "FG_ENFORCE": job.tier,
        "TMPDIR": tmpdir,
        **_gpu_variables(tuple(given), by_uuid=others_of(job.mounts) == "closed"),
        **_resource_variables(job, site.visible),
        **_array_variables(job),
    }
    if request.dependency:
        own["FG_JOB_DEPENDENCY"] = request.dependency
    if job.deadline is not None:
        own["FG_JOB_END_TIME"] = str(int(job.deadline))
    if request.demand.host_memory:
        own["FG_MEM_PER_NODE"] = str(request.demand.host_memory >> 20)
    if request.slurm_env:
        own.update(_slurm(own))
    return own


@lru_cache(maxsize=256)
def _gpu_variables(given: tuple[AssignedGpu, ...], *, by_uuid: bool) -> Mapping[str, str]:
    """Return the variables that select the job's GPUs; an empty list hides all GPUs."""
    indices = ",".join(str(card.hold.gpu) for card in given)
    if not given:
        return {"CUDA_VISIBLE_DEVICES": "", "FG_JOB_GPUS": "", "FG_GPUS_ON_NODE": "0"}
    uuids = ",".join(card.uuid for card in given)
    share = sum(card.hold.share for card in given)
    cpus = format_indices(cpu for card in given for cpu in card.cpus)
    return {
        "CUDA_VISIBLE_DEVICES": uuids if by_uuid else indices,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "FG_JOB_GPUS": indices,
        "FG_GPUS_ON_NODE": str(len(given)),
        "FG_GPU_FRACTION": format_share(share),
        "FG_GPU_MEM_MB": str(given[0].hold.memory >> 20),
        "FG_GPU_UUIDS": uuids,
        **({"FG_GPU_CPUS": cpus} if cpus else {}),
    }


def _resource_variables(job: Job, visible: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the units of site resources that the job received."""
    found = {}
    for name, indices in job.resources:
        listed = ",".join(map(str, indices))
        found["FG_GRES_" + re.sub(r"[^A-Z0-9]", "_", name.upper())] = listed
        if visible.get(name):
            found[visible[name]] = listed
    return found


def _array_variables(job: Job) -> dict[str, str]:
    """Return the variables that describe the array of a task."""
    if not job.array:
        return {}
    about = {"ARRAY_JOB_ID": job.array, "ARRAY_TASK_ID": job.task}
    about |= {f"ARRAY_TASK_{name}": value for name, value in array_variables(job.request.array).items()}
    return {f"FG_{name}": str(value) for name, value in about.items()}


def _slurm(own: Mapping[str, str]) -> dict[str, str]:
    return {
        twin: value
        for name, value in own.items()
        if name.startswith("FG_")
        for twin in _TWINS.get(name, ("SLURM_" + name.removeprefix("FG_"),))
    }


# -- the environment -----------------------------------------------------------------------------------


def merge_environment(base: bytes, own: Mapping[str, str], hook: str) -> bytes:
    """Return the submitted environment, overridden by `own`, with the hook ahead of other preloads."""
    theirs, preload = _kept(base, frozenset(own))
    ours = "".join([f"{name}={value}\0" for name, value in own.items()])
    whole = theirs + ours.encode(errors="surrogateescape")
    libraries = hook.encode(errors="surrogateescape") + preload if hook else preload[1:]
    return whole + b"LD_PRELOAD=" + libraries + b"\0" if libraries else whole


@lru_cache(maxsize=64)
def _kept(base: bytes, ours: frozenset[str]) -> tuple[bytes, bytes]:
    """Return (remaining submitted environment, its LD_PRELOAD). Jobs of one submission share the result."""
    theirs, preload = [], b""
    for entry in base.split(b"\0")[:-1]:
        name, _, value = entry.partition(b"=")
        if name == b"LD_PRELOAD":
            preload = b":" + value if value else b""
        elif name.decode(errors="surrogateescape") not in ours:
            theirs.append(entry + b"\0")
    return b"".join(theirs), preload
